"""The node's own decisions in a simulated network, from ten to ten thousand nodes, with churn; see simulation.py.

scripts/bench/scale                                    the table
scripts/bench/scale --check 8.json 32.json 64.json     compare with real runs (scripts/bench/swarm N --json N.json)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from simulation import Simulation, World


def check(paths: list[Path]) -> list[dict]:
    """The same load in the simulation as in real runs, with the calls' times of each."""
    rows = []
    for path in paths:
        real = json.loads(path.read_text())
        load = real["load"]
        world = World(load["peers"], load["steps"], load["step_seconds"], load["groups"], load["appetite"], 1e9,
                      real["call_p50"], real["call_p99"], frame_bytes=real["frame_bytes"], followed=True)  # fmt: skip
        simulated = Simulation(world).run()
        pairs = {"payload": "wire_payload_bytes_per_node_step", "control": "wire_control_bytes_per_node_step"}
        row = {"nodes": load["peers"]}
        for name, key in pairs.items():
            row[f"{name} real"], row[f"{name} simulated"] = real[key], simulated[f"{name}_bytes_per_node_step"]
        row |= {"visible real": real["fetched_p50"], "visible simulated": simulated["directed_p50"]}
        rows.append({key: round(value, 3) for key, value in row.items()})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 30, 100, 300, 1000, 3000, 10_000])
    parser.add_argument("--lifetime-seconds", type=float, default=3600.0)
    parser.add_argument("--call-p50", type=float, default=0.005)
    parser.add_argument("--call-p99", type=float, default=0.05)
    parser.add_argument("--check", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.check:
        rows = check(arguments.check)
    else:
        rows = []
        for nodes in arguments.nodes:
            world = World(nodes, lifetime_seconds=arguments.lifetime_seconds, call_p50=arguments.call_p50,
                          call_p99=arguments.call_p99)  # fmt: skip
            rows.append(Simulation(world).run())
            print({key: value for key, value in rows[-1].items() if key != "world"} | {"nodes": nodes}, flush=True)
    for row in rows if arguments.check else ():
        print(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
