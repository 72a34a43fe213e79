"""The rooms that a loop may enter: all between which it moves records."""

from __future__ import annotations

from dataclasses import dataclass

from ftis_node.admission.admit import Admission
from ftis_node.admission.judge import Judge
from ftis_node.buffer import ForeignSide, OwnSide
from ftis_node.clock import Clock
from ftis_node.compute import ComputeThread
from ftis_node.config import NodeConfig
from ftis_node.generate.base import Generator
from ftis_node.loops.prompts import PromptSource
from ftis_node.policy.model import Policy
from ftis_node.policy.update import Updater
from ftis_node.states import StateMachine
from ftis_node.store import Store
from ftis_node.supervision import Parts
from ftis_node.swarm.base import Swarm
from ftis_node.tasks.base import Task
from ftis_node.tasks.verify import VerifyPool
from ftis_protocol.manifest import SwarmManifest


@dataclass(frozen=True, slots=True)
class Rooms:
    """One node's parts, as the app built them."""

    config: NodeConfig
    manifest: SwarmManifest
    tasks: dict[tuple[str, int], Task]
    prompts: PromptSource
    generator: Generator
    policy: Policy
    updater: Updater
    verify: VerifyPool
    swarm: Swarm
    admission: Admission
    judge: Judge
    own: OwnSide
    foreign: ForeignSide
    store: Store
    compute: ComputeThread
    clock: Clock
    states: StateMachine
    parts: Parts
