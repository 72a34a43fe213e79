"""One receiver with a real codec, store and checker, and one sender with a real key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ftis_node.admission.admit import Admission, AdmissionLimits, Admitted
from ftis_node.clock import StepClock
from ftis_node.lab.harness import manifest_for
from ftis_node.store import Store
from ftis_node.tasks.registry import build, describe
from ftis_node.tasks.verify import VerifyPool
from ftis_node.tokens import TextCodec
from ftis_protocol.envelope import seal
from ftis_protocol.errors import Reason
from ftis_protocol.identity import Identity
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, PolicyRef, PromptRef, item_seed

TASK = describe("arithmetic", operations="+", digits=1)
MANIFEST = manifest_for([TASK], max_completion_tokens=8, evidence=(Evidence.NONE, Evidence.SEQUENCE, Evidence.TOKEN))
NOW = 1_000_000_000.0
SLOT = int(NOW // MANIFEST.slot_seconds)
POLICY = PolicyRef(model="m", revision="", tokenizer="aa", trainable="full")


class Desk:
    """One receiver and one sender."""

    def __init__(self, codec: TextCodec, verify: VerifyPool, path: Path, **limits: Any) -> None:
        self.clock = StepClock(NOW)
        self.sender = Identity.create()
        self.task = build(TASK)
        self.codec = codec
        self.store = Store.open(path / "node.db")
        bounds = AdmissionLimits(**{"max_completion_tokens": 32, "max_groups_per_peer_and_slot": 64, **limits})
        tasks = {(TASK.name, TASK.version): self.task}
        self.admission = Admission(MANIFEST, tasks, codec, verify, self.store, self.clock, bounds)

    def trusting(self, codec: TextCodec, verify: VerifyPool) -> None:
        """From now on the sender's claims about its policy are believed."""
        bounds = AdmissionLimits(32, 64, frozenset({self.sender.node_id}))
        tasks = {(TASK.name, TASK.version): self.task}
        self.admission = Admission(MANIFEST, tasks, codec, verify, self.store, self.clock, bounds)

    def answer(self, index: int, author: Identity | None = None, slot: int = SLOT) -> str:
        node_id = (author or self.sender).node_id
        return self.task.item(item_seed(MANIFEST.swarm_id, node_id, slot, TASK.name, TASK.version), index).answer

    def group(self, index: int = 0, *texts: str, rewards: tuple[float, ...] | None = None, **changes: Any) -> Group:
        """A right and a wrong answer to the sender's own item `index`, unless texts are given."""
        right = self.answer(index)
        wrong = "1" if right != "1" else "2"
        chosen = texts or (f" {right}\n", f" {wrong}\n")
        scores = rewards or tuple(1.0 if t.strip() == right else 0.0 for t in chosen)
        pattern = self.task.stop_pattern
        assert pattern is not None
        completions = tuple(
            Completion(text=t, finish=finish_of(pattern, t), reward=r) for t, r in zip(chosen, scores, strict=True)
        )
        ref = PromptRef(task=TASK.name, version=TASK.version, slot=SLOT, index=index)
        made = Group(prompt=ref, policy_version=0, evidence=Evidence.NONE, completions=completions)
        return made.model_copy(update=changes)

    def sealed(self, *groups: Group, **changes: Any) -> bytes:
        frame = Frame.model_construct(slot=SLOT, policy=changes.pop("policy", POLICY), groups=groups)  # liars too
        identity = changes.pop("identity", self.sender)
        arguments = {"swarm_id": MANIFEST.swarm_id, "sequence": 1, "issued_at": NOW, **changes}
        return seal(frame, identity, **arguments)

    async def admit(self, *groups: Group, **changes: Any) -> Admitted:
        return await self.admission.admit(self.sealed(*groups, **changes), self.sender.node_id)


def finish_of(pattern: str, text: str) -> Finish:
    return Finish.RULE if re.match(pattern, text) else Finish.LENGTH


def reasons(admitted: Admitted) -> list[Reason]:
    return [verdict.reason for verdict in admitted.refused]
