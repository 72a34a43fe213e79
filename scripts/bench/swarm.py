"""Real peers on loopback: how fast a published frame reaches a random reader, what it costs, and what is lost.

scripts/bench/swarm 8                      eight peers
scripts/bench/swarm 64 --kill 0.3          then SIGKILL 30 % of the daemons, every entrance among them
scripts/bench/swarm 8 --json out.json      the numbers for machines

All peers live in one process, each with its own p2pd daemon; on a small machine they share its cores, so times are
upper bounds. Bytes are those of the calls' protobuf messages, without the transport's own framing and encryption.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean

from peers import Peer, follow, manifest, resident_kilobytes, vocabulary

from ftis_node.swarm import publisher
from ftis_node.swarm.failures import JoinFailed

ENTRANCES = 3
BATCH = 4
PATIENCE_SECONDS = 20.0
NEWCOMERS = 3


@dataclass(frozen=True, slots=True)
class Load:
    """What each peer does: a step every `step_seconds`, `groups` published and `appetite` wanted in it."""

    peers: int
    steps: int
    step_seconds: float
    groups: int
    appetite: int
    seed: int


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))] if ordered else float("nan")


async def gather_peers(load: Load, rng: Random) -> list[Peer]:
    rules, words, peers = manifest(load.seed), vocabulary(rng), []

    def another(entrances: tuple[str, ...]) -> Peer:
        return Peer(rules, entrances, Random(rng.random()), words, load.groups, load.appetite)

    for _ in range(min(ENTRANCES, load.peers)):
        peers.append(another(tuple(a for p in peers for a in p.swarm.addresses)))
        await peers[-1].start()
    entrances = tuple(a for p in peers for a in p.swarm.addresses)
    while len(peers) < load.peers:
        batch = [another(entrances) for _ in range(min(BATCH, load.peers - len(peers)))]
        await asyncio.gather(*(peer.start() for peer in batch))
        peers += batch
    return peers


async def work(peers: list[Peer], load: Load, rng: Random) -> list:
    """Every peer does its steps, each at its own moment; returns how each published frame fared."""

    async def life(peer: Peer) -> list:
        await asyncio.sleep(peer.rng.uniform(0, load.step_seconds))
        fates = []
        for _ in range(load.steps):
            began = time.monotonic()
            reader = rng.choice([other for other in peers if other is not peer])
            await peer.announce()
            fates.append(await follow(peer, reader, PATIENCE_SECONDS))
            await peer.gather()
            await asyncio.sleep(max(0.0, load.step_seconds - (time.monotonic() - began)))
        return fates

    return [fate for fates in await asyncio.gather(*map(life, peers)) for fate in fates]


async def readable(readers: list[Peer], digests: list[bytes], rng: Random) -> int:
    """How many of the frames a random reader each can fetch."""
    found = 0
    for start in range(0, len(digests), 8):
        chunk = digests[start : start + 8]
        got = await asyncio.gather(*(rng.choice(readers).swarm.fetch(digest) for digest in chunk))
        found += sum(data is not None for data in got)
    return found


async def massacre(peers: list[Peer], share: float, rng: Random) -> dict:
    """Kill daemons, look what is left, let the living renew, look again, and let newcomers in."""
    doomed = [*peers[:ENTRANCES]]
    doomed += rng.sample(peers[ENTRANCES:], max(0, round(share * len(peers)) - len(doomed)))
    entrances = tuple(a for p in peers[:ENTRANCES] for a in p.swarm.addresses)
    living = [peer for peer in peers if peer not in doomed]
    for peer in living[:NEWCOMERS]:
        await peer.swarm.peers()
    remembered = [address for peer in living[:NEWCOMERS] for address in peer.swarm._book]
    for peer in doomed:
        peer.kill()
    for peer in doomed:
        await peer.close()
    every = [digest for peer in peers for digest in peer.published]
    of_living = [digest for peer in living for digest in peer.published]
    after_kill = await readable(living, every, rng)
    living_after_kill = await readable(living, of_living, rng)
    publisher.RECHECK_SECONDS, publisher.MAX_RECHECKS = 0.0, len(every)
    renewed = sum([await peer.swarm.renew() for peer in living])
    return {
        "killed": len(doomed),
        "frames": len(every),
        "readable_after_kill": after_kill,
        "frames_of_living": len(of_living),
        "living_readable_after_kill": living_after_kill,
        "records_renewed": renewed,
        "living_readable_after_renewal": await readable(living, of_living, rng),
        "newcomers": await newcomers(living[0], entrances, remembered, of_living),
    }


async def newcomers(model: Peer, entrances: tuple[str, ...], remembered: list[str], digests: list[bytes]) -> list[dict]:
    """Nodes that know the dead entrances and what is in their address book from an earlier run."""
    results = []
    with tempfile.TemporaryDirectory() as root:
        for number in range(NEWCOMERS):
            state = Path(root) / str(number)
            state.mkdir()
            (state / "peers.json").write_text(json.dumps(remembered))
            peer = Peer(model.rules, entrances, Random(number), ["word"], 1, 1, state)
            began = time.monotonic()
            try:
                await peer.start()
            except JoinFailed:
                results.append({"joined": False})
                continue
            seconds = time.monotonic() - began
            reads = await readable([peer], digests[:20], Random(0))
            results.append({"joined": True, "seconds": round(seconds, 2), "reads": f"{reads}/{len(digests[:20])}"})
            await peer.close()
    return results


def summary(peers: list[Peer], fates: list, load: Load, began_kilobytes: int) -> dict:
    node_steps = load.peers * load.steps
    fetched = [fate.fetched for fate in fates if fate.fetched is not None]
    visible = [fate.visible for fate in fates if fate.visible is not None]
    sources = sum((peer.sources for peer in peers), Counter())
    shares = [sources[peer.swarm.node_id] for peer in peers]
    squares = sum(share * share for share in shares)
    calls = sum((peer.wire.calls for peer in peers), Counter())
    call_seconds = [seconds for peer in peers for seconds in peer.wire.seconds]
    return {
        "load": asdict(load),
        "published": len(fates),
        "visible": len(visible),
        "fetched": len(fetched),
        "stored_p50": percentile([fate.stored for fate in fates], 0.5),
        "visible_p50": percentile(visible, 0.5),
        "fetched_p50": percentile(fetched, 0.5),
        "fetched_p99": percentile(fetched, 0.99),
        "frame_bytes": sum(p.swarm.traffic.written["body"] for p in peers) / len(fates),
        "record_payload_bytes_per_node_step": sum(
            p.swarm.traffic.read["body"] + p.swarm.traffic.written["body"] for p in peers) / node_steps,
        "wire_payload_bytes_per_node_step": sum(p.wire.payload for p in peers) / node_steps,
        "wire_control_bytes_per_node_step": sum(p.wire.control for p in peers) / node_steps,
        "calls_per_node_step": {name: round(count / node_steps, 1) for name, count in sorted(calls.items())},
        "call_p50": percentile(call_seconds, 0.5),
        "call_p99": percentile(call_seconds, 0.99),
        "missing_on_first_ask": sum(peer.missing for peer in peers),
        "jain_fairness": sum(shares) ** 2 / (len(shares) * squares) if squares else float("nan"),
        "authors_never_fetched": sum(share == 0 for share in shares),
        "daemon_mebibytes": fmean(peer.daemon_kilobytes() for peer in peers) / 1024,
        "python_mebibytes_per_peer": (resident_kilobytes(os.getpid()) - began_kilobytes) / 1024 / load.peers,
        "refused": {r.value: n for r, n in sum((p.swarm.refused for p in peers), Counter()).items()},
        "limited": {name.value: n for name, n in sum((p.swarm.limited for p in peers), Counter()).items()},
        "size_estimates": [round(percentile([p.swarm._dht.size for p in peers], q)) for q in (0.05, 0.5, 0.95)],
    }  # fmt: skip


async def run(load: Load, kill: float) -> dict:
    rng, began_kilobytes, began = Random(load.seed), resident_kilobytes(os.getpid()), time.monotonic()
    peers = await gather_peers(load, rng)
    try:
        await asyncio.gather(*(peer.announce() for peer in peers))
        starting = time.monotonic() - began
        for peer in peers:
            peer.wire.clear()
            peer.swarm.traffic.read.clear()
            peer.swarm.traffic.written.clear()
        fates = await work(peers, load, rng)
        result = {**summary(peers, fates, load, began_kilobytes), "starting_seconds": starting}
        if kill:
            result["kill"] = await massacre(peers, kill, rng)
        return result
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=int)
    parser.add_argument("--kill", type=float, default=0.0, help="share of the daemons to kill afterwards")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--step-seconds", type=float, default=20.0)
    parser.add_argument("--groups", type=int, default=4, help="groups a peer publishes per step")
    parser.add_argument("--appetite", type=int, default=8, help="foreign groups a peer fetches per step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.peers < 2:
        parser.error("a swarm has at least two peers")
    load = Load(arguments.peers, arguments.steps, arguments.step_seconds, arguments.groups, arguments.appetite,
                arguments.seed)  # fmt: skip
    result = asyncio.run(run(load, arguments.kill))
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    return 0 if result["fetched"] == result["published"] else 1


if __name__ == "__main__":
    sys.exit(main())
