"""`ftis-node doctor`: every gate of this machine and its way into a swarm, with what to do about those that fail."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from ftis_node.commands.options import DoctorOptions
from ftis_node.commands.running import dht_options, remembered_manifest
from ftis_node.config import NodeConfig
from ftis_node.console import Console
from ftis_node.doctor.learning import learning_gates
from ftis_node.doctor.machine import machine_gates
from ftis_node.doctor.network import network_gates
from ftis_node.doctor.report import write_report
from ftis_node.errors import CheckFailed, UsageError
from ftis_node.health import Gate, Verdict, worst
from ftis_node.state import StateDir
from ftis_protocol.invite import Invite
from ftis_protocol.manifest import TaskSpec

_MARKS = {Verdict.PASS: "✓", Verdict.UNKNOWN: "?", Verdict.WARN: "!", Verdict.FAIL: "✗"}


def run(options: DoctorOptions, console: Console) -> None:
    """Look at everything and print it. Raises CheckFailed when a gate fails."""
    layered = options.layered()
    gates = list(machine_gates(layered.config))
    if not options.quick:
        addresses, specs = _swarm(layered.config)
        with console.step("asking the network"):
            gates += asyncio.run(network_gates(layered.config, dht_options(layered.config), addresses))
        with console.step("trying model and tasks"):
            gates += asyncio.run(learning_gates(layered.config, specs))
    document = {"verdict": worst(gates).value, "gates": [gate.as_json() for gate in gates]}
    if options.report is not None:
        state = StateDir(StateDir.path_of(layered.config.node.state_dir))
        document["report"] = str(_report(options.report, gates, layered.config, state))
    console.document(document if options.json else as_text(gates, document.get("report")))
    if bad := [gate.name for gate in gates if gate.verdict is Verdict.FAIL]:
        raise CheckFailed(
            f"{len(bad)} of {len(gates)} gates fail: {', '.join(bad)}", hint="See the line of each above."
        )


def as_text(gates: list[Gate], report: object = None) -> str:
    """One line a gate, the remedy below those that do not pass."""
    lines = []
    for gate in gates:
        lines.append(f"{_MARKS[gate.verdict]} {gate.verdict:<8} {gate.name}: {gate.why}")
        if gate.fix and gate.verdict is not Verdict.PASS:
            lines.append(f"             fix: {gate.fix}")
    return "\n".join([*lines, *([f"report: {report}"] if report else [])])


def _swarm(config: NodeConfig) -> tuple[tuple[str, ...], tuple[TaskSpec, ...]]:
    """The addresses to try and the tasks of the swarm, as far as they are known without asking anybody."""
    addresses: tuple[str, ...] = ()
    if config.swarm.invite:
        addresses = Invite.parse(config.swarm.invite).addresses
    root = StateDir.path_of(config.node.state_dir)
    current = StateDir(root).current_swarm() if root.is_dir() else None
    manifest = remembered_manifest(current[1]) if current else None
    return addresses, manifest.tasks if manifest else ()


def _report(path: Path, gates: list[Gate], config: NodeConfig, state: StateDir) -> Path:
    if path.is_dir():
        path = path / f"ftis-doctor-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz"
    try:
        return write_report(path, gates, config.model_dump(mode="json"), state if state.logs.is_dir() else None)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Name a file in a directory of yours."
        ) from error
