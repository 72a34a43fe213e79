"""Optimiser steps from judged groups, and the scoring pass before them.

A batch is one step unless told otherwise: gradients of all groups are accumulated, own groups first, each divided by
the number of groups drawn, so a group whose members were all filtered still counts in the mean. Members that cannot
have a weight are left out. Groups share passes of at most `micro_tokens`, and a large group is cut between its members:
the gradient is the same, since advantages, 1/G and 1/|a| do not depend on the cut.

With several steps a batch, groups are dealt out to the steps like cards, so that each gets its share of own and foreign
ones, and weighs them by its share of the groups drawn. All log-probs at the start of the batch are then taken before
the first step: importance weights, filter and the ratio of the PPO clip stay tied to the policy that took the batch up.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ftis_node.errors import TrainingStopped
from ftis_node.policy.ftis import carries_signal
from ftis_node.policy.group_work import GroupWork
from ftis_node.policy.model import Policy
from ftis_node.policy.passes import Pass, passes
from ftis_node.policy.update_records import GroupOutcome, UpdateReport, UpdateSettings
from ftis_node.records import JudgedGroup, Origin, ScoredGroup, TrainGroup

#: a pass is not made smaller than this
LEAST_PASS_TOKENS = 256

__all__ = ["GroupOutcome", "UpdateReport", "UpdateSettings", "Updater"]


@dataclass(frozen=True, slots=True)
class _Step:
    """One optimiser step, or why there was none. `outcomes` is empty when a loss was not finite."""

    stepped: bool
    finite: bool
    norm: float
    rate: float
    outcomes: tuple[GroupOutcome, ...]
    tokens: int


class Updater:
    """Owns the optimiser of one policy. Not thread-safe; nothing else may use the policy's gradients."""

    def __init__(self, policy: Policy, settings: UpdateSettings | None = None) -> None:
        self.policy = policy
        self.settings = settings or UpdateSettings()
        self._parameters = list(policy.trainable_parameters.values())
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self.settings.learning_rate,
            betas=self.settings.betas,
            eps=self.settings.epsilon,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )
        self._steps = 0
        self._nonfinite_in_a_row = 0
        #: held while weights and optimiser change, so that a save from another thread sees them before or after
        self.changing = threading.Lock()

    @torch.no_grad()
    def score(self, groups: Sequence[TrainGroup]) -> tuple[ScoredGroup, ...]:
        """The policy's log-probs of every completion, without gradient, in the order of `groups`."""
        rows: list[dict[int, tuple[float, ...]]] = [{} for _ in groups]
        for current in self._passes([(group, range(len(group.completions))) for group in groups]):
            for (place, members), (logprobs, mask) in zip(current.parts, self._run(current, groups), strict=True):
                lengths = mask.sum(-1).tolist()
                for member, row, length in zip(members, logprobs.tolist(), lengths, strict=True):
                    rows[place][member] = tuple(row[:length])
        by_member = (tuple(found[m] for m in range(len(found))) for found in rows)
        return tuple(ScoredGroup(group, found) for group, found in zip(groups, by_member, strict=True))

    def update(self, judged: Sequence[JudgedGroup], drawn: int) -> UpdateReport:
        """Learn from `judged`, the groups that may train out of `drawn` (the divisor of the mean, dropped ones
        included). No step is taken when nothing had a weight, and none when the loss or its gradient is not finite:
        the weights then stay as they were. Raises TrainingStopped after too many such steps in a row."""
        assert drawn >= len(judged), "drawn counts every group of the batch"
        started = time.perf_counter()
        items = self._anchored(_own_first(judged))
        works = [GroupWork(item, self.settings.ftis, self.policy.device) for item in items]
        parts = min(self.settings.optimiser_steps, max(1, len(works)))
        dealt = [works[first::parts] for first in range(parts)] * self.settings.epochs
        steps = [self._one_step(part, drawn / parts) for part in dealt]
        latest = {
            id(w): o for part, step in zip(dealt, steps, strict=True) for w, o in zip(part, step.outcomes, strict=False)
        }
        outcomes = tuple(latest[id(work)] for work in works if id(work) in latest)
        skipped = sum(not step.finite for step in steps)
        return UpdateReport(
            steps=sum(step.stepped for step in steps),
            skipped=skipped,
            loss=math.fsum(o.loss for o in outcomes) / max(drawn, 1) if outcomes or not skipped else math.nan,
            gradient_norm=fmean([step.norm for step in steps if step.stepped] or [math.nan]),
            learning_rate=steps[-1].rate,
            drawn=drawn,
            outcomes=outcomes,
            used_digests=frozenset(o.group.digest for step in steps if step.stepped for o in step.outcomes if o.used),
            policy_version=self.policy.version,
            seconds=time.perf_counter() - started,
            tokens=sum(step.tokens for step in steps),
        )

    def _anchored(self, judged: Sequence[JudgedGroup]) -> Sequence[JudgedGroup]:
        """The groups with their log-probs at the start of the batch, where later steps will need them."""
        if self.settings.optimiser_steps * self.settings.epochs == 1:
            return judged
        missing = [
            place
            for place, item in enumerate(judged)
            if item.start_logprobs is None and carries_signal(item.group.rewards, self.settings.ftis)
        ]
        anchored = list(judged)
        for place, scored in zip(missing, self.score([judged[p].group for p in missing]), strict=True):
            anchored[place] = replace(judged[place], start_logprobs=scored.start_logprobs)
        return anchored

    def _one_step(self, works: Sequence[GroupWork], drawn: float) -> _Step:
        finite, tokens = self._accumulate(works, drawn)
        outcomes = tuple(work.outcome() for work in works) if finite else ()
        norm, stepped = math.nan, False
        if any(o.used for o in outcomes):
            norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.max_gradient_norm).item()
            stepped = finite = math.isfinite(norm)
        rate = self._rate()
        if stepped:
            self._step(rate)
        self._optimizer.zero_grad(set_to_none=True)
        self._count_nonfinite(finite, stepped)
        return _Step(stepped, finite, norm, rate, outcomes, tokens)

    def halve_passes(self) -> int | None:
        """Let passes have half as many tokens from now on, for less memory and the same gradient. The new bound, or
        None when they are at their least."""
        tokens = self.settings.micro_tokens // 2
        if tokens < LEAST_PASS_TOKENS:
            return None
        self.settings = replace(self.settings, micro_tokens=tokens)
        return tokens

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint needs beside the weights: tensors and plain numbers only."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "steps": self._steps,
            "nonfinite_in_a_row": self._nonfinite_in_a_row,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()`. The settings given to this object stay in force (a changed rate takes effect)."""
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
        self._steps = state["steps"]
        self._nonfinite_in_a_row = state["nonfinite_in_a_row"]

    def _accumulate(self, works: Sequence[GroupWork], drawn: float) -> tuple[bool, int]:
        """(whether every loss was finite, tokens computed); leaves the mean gradient, or stops at a bad loss."""
        self._optimizer.zero_grad(set_to_none=True)
        groups, tokens = [work.group for work in works], 0
        for current in self._passes([(work.group, work.members) for work in works]):
            results = zip(current.parts, self._run(current, groups), strict=True)
            losses = [works[place].loss(members, *result) for (place, members), result in results]
            total = torch.stack(losses).sum() / drawn
            tokens += current.real_tokens(groups)
            if not total.isfinite():
                return False, tokens
            if total.requires_grad:
                torch.autograd.backward(total)
        return True, tokens

    def _passes(self, wanted: Sequence[tuple[TrainGroup, Sequence[int]]]) -> Iterator[Pass]:
        return passes(wanted, self.settings.micro_tokens, shared_prefix=self.policy.plan.shared_prefix)

    def _run(self, current: Pass, groups: Sequence[TrainGroup]) -> list[tuple[Tensor, Tensor]]:
        """The log-probs and mask of each part of a pass."""
        wanted = [(groups[place], members) for place, members in current.parts]
        return self.policy.group_logprobs(
            [(group.prompt_ids, [group.completions[m].token_ids for m in members]) for group, members in wanted]
        )

    def _rate(self) -> float:
        """The learning rate of the next step."""
        return self.settings.learning_rate * min(1.0, (self._steps + 1) / max(1, self.settings.warmup_steps))

    def _step(self, rate: float) -> None:
        with self.changing:
            for parameters in self._optimizer.param_groups:
                parameters["lr"] = rate
            self._optimizer.step()
            self._steps += 1
            self.policy.version += 1

    def _count_nonfinite(self, finite: bool, stepped: bool) -> None:
        if not finite:
            self._nonfinite_in_a_row += 1
        elif stepped:
            self._nonfinite_in_a_row = 0
        if self._nonfinite_in_a_row >= self.settings.max_nonfinite_steps:
            raise TrainingStopped(
                f"{self._nonfinite_in_a_row} steps in a row had a loss or gradient that is not finite",
                hint="Go back to the last checkpoint with a lower learning rate, or compute in float32.",
            )


def _own_first(judged: Sequence[JudgedGroup]) -> list[JudgedGroup]:
    return sorted(judged, key=lambda item: item.group.origin is Origin.FOREIGN)
