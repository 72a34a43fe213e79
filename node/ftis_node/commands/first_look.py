"""What a start looks at before anything else: the machine, and how the last process here ended."""

from __future__ import annotations

import logging
import time

from ftis_node.aftermath import cause_of_death
from ftis_node.config import NodeConfig
from ftis_node.console import Console
from ftis_node.doctor.machine import start_gates
from ftis_node.errors import CheckFailed
from ftis_node.health import Verdict
from ftis_node.state import StateDir
from ftis_node.state_lock import StateLock

log = logging.getLogger(__name__)


def check_machine(config: NodeConfig, console: Console) -> None:
    """The short form of the doctor, at every start: tell what is not as it should be, and refuse what cannot work."""
    gates = start_gates(config)
    for gate in gates:
        log.info("%s %s: %s", gate.verdict, gate.name, gate.why)
    weak = [gate.name for gate in gates if gate.verdict in (Verdict.WARN, Verdict.UNKNOWN)]
    more = f", {len(weak)} could be better ({', '.join(weak)}; ftis-node doctor says how)" if weak else ""
    console.say(f"checks: {len(gates) - len(weak)} of {len(gates)} pass{more}")
    if bad := [gate for gate in gates if gate.verdict is Verdict.FAIL]:
        raise CheckFailed("; ".join(f"{gate.name}: {gate.why}" for gate in bad), hint=" ".join(g.fix for g in bad))


def tell_aftermath(lock: StateLock, state: StateDir, console: Console) -> str:
    """Tell what is known about a predecessor that did not say good-bye; one sentence, empty when it did."""
    if lock.previous is None:
        return ""
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(lock.previous.started_at))
    cause = cause_of_death(lock.previous, state.logs)
    text = f"the last process (pid {lock.previous.pid}, begun {began}) ended without saying so: {cause}"
    console.warn(text)
    return text
