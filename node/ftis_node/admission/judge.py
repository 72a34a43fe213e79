"""The second judgement on foreign groups: in the train loop, with the log-probabilities that training needs anyway.

A foreign group that passes here still gives nothing where every weight ends at zero; "used" is said only after an
optimiser step in which one of its completions had a weight. What the judgement leans on is this node's own text, which
it watches as it is sampled: how surprising that is to its own policy, and how often it is right.

The rescue rule, while own success on a task is near zero: right foreign texts within the gate train at full weight,
from groups without a wrong answer too, and all others of that task are put aside. Before the first block of own answers
nobody knows whether the rule is needed, so foreign groups of that task wait in the pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ftis_node.admission.success import Success, skill_of
from ftis_node.admission.surprise import Surprise
from ftis_node.admission.verdict import Verdict
from ftis_node.config import RESCUE_GATE_NATS
from ftis_node.records import RIGHT_REWARD, JudgedGroup, ScoredGroup, TrainGroup
from ftis_protocol.errors import Reason
from ftis_protocol.manifest import TaskSpec
from ftis_protocol.rollout import Evidence


@dataclass(frozen=True, slots=True)
class Judged:
    """What goes on to the update, and what was put aside with its reason."""

    groups: tuple[JudgedGroup, ...]
    unused: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """What a node knows of its own text, by skill (see `skill_of`)."""

    surprise: dict[str, Surprise] = field(default_factory=dict)
    success: dict[str, Success] = field(default_factory=dict)


class Judge:
    """Decides which foreign groups are drawn and which of those train. `rescue` False leaves the rescue rule out: then
    foreign groups train from the start, and those without a wrong answer never. `gate_nats` is how far above own text
    a right foreign one may lie that rescues, in nats per token."""

    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        record: OwnRecord | None = None,
        *,
        rescue: bool = True,
        gate_nats: float = RESCUE_GATE_NATS,
    ) -> None:
        self._skills = {(spec.name, spec.version): skill_of(spec) for spec in tasks}
        self._rescue = rescue
        self._gate_nats = gate_nats
        self.record = record or OwnRecord()

    def observe_own(self, groups: Sequence[TrainGroup]) -> None:
        """Take in own groups as they were sampled and rewarded, every one of them."""
        for group in groups:
            skill = self._skill(group.prompt.ref.task, group.prompt.ref.version)
            success = self.record.success.get(skill, Success())
            self.record.success[skill] = success.with_outcomes(group.right, len(group.completions))
            for completion in group.completions:
                if completion.behaviour_logprobs:
                    known = self.record.surprise.get(skill, Surprise())
                    self.record.surprise[skill] = known.with_value(-fmean(completion.behaviour_logprobs))

    def rescuing(self, task: str, version: int) -> bool:
        """Whether the rescue rule is on for a task."""
        return self._rescue and self._success(task, version).rescuing

    @property
    def rescuing_tasks(self) -> int:
        """Number of tasks on which the rescue rule is on."""
        return sum(self.rescuing(*task) for task in self._skills)

    def useful(self, task: str, version: int, right: int, size: int) -> bool:
        """Whether a group with that many right completions could train as things stand."""
        return 0 < right < size or (right == size and self.rescuing(task, version))

    def wants(self, group: TrainGroup) -> bool:
        """Whether a waiting group may be drawn now."""
        ref = group.prompt.ref
        measured = not self._rescue or self._success(ref.task, ref.version).rate is not None
        return measured and self.useful(ref.task, ref.version, group.right, len(group.completions))

    def judge(self, scored: Sequence[ScoredGroup]) -> Judged:
        """Split scored foreign groups into those that may train and those that cannot."""
        kept: list[JudgedGroup] = []
        unused: list[Verdict] = []
        for item in scored:
            verdict = self._one(item)
            if isinstance(verdict, Verdict):
                unused.append(verdict)
            else:
                kept.append(verdict)
        return Judged(tuple(kept), tuple(unused))

    def _one(self, item: ScoredGroup) -> JudgedGroup | Verdict:
        group, ref = item.group, item.group.prompt.ref
        if not all(math.isfinite(x) for row in item.start_logprobs for x in row):
            return _unused(group, Reason.UNSCORABLE, "this node's own log-probabilities of it are not finite")
        usual = self.record.surprise.get(self._skill(ref.task, ref.version), Surprise())
        if self.rescuing(ref.task, ref.version):
            gate = usual.gate(self._gate_nats)
            if not any(_rescues(item, member, gate) for member in range(len(group.completions))):
                return _unused(group, Reason.SURPRISE, f"no right text within {gate:.2f} nats per token")
            return JudgedGroup(group, item.start_logprobs, rescue_gate=gate)
        if group.all_right:  # drawn just before the rule switched off
            return _unused(group, Reason.RESCUE_ONLY)
        bound = usual.bound if group.evidence is Evidence.NONE else None
        return JudgedGroup(group, item.start_logprobs, bound, usual.usual)

    def _success(self, task: str, version: int) -> Success:
        return self.record.success.get(self._skill(task, version), Success())

    def _skill(self, task: str, version: int) -> str:
        """The key of a task; of one that the swarm does not have (peers may offer anything), a key never met."""
        return self._skills.get((task, version), f"{task}/{version}")


def _rescues(item: ScoredGroup, member: int, gate: float) -> bool:
    return item.group.completions[member].reward >= RIGHT_REWARD and item.surprise(member) <= gate


def _unused(group: TrainGroup, reason: Reason, detail: str = "") -> Verdict:
    return Verdict(group.author, group.task, group.digest, reason, detail)
