"""One optimiser step from judged groups, and the scoring pass before it.

A batch is one step: gradients of all groups are accumulated, own groups first, each divided by the number of groups
drawn, so a group whose members were all filtered still counts in the mean. Members that cannot have a weight are left
out of the pass. A group whose tokens exceed `micro_tokens` is cut into parts of members; the parts' gradients add up to
the whole group's, since advantages, 1/G and 1/|a| do not depend on the cut.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ftis_node.errors import TrainingStopped
from ftis_node.policy.ftis import carries_signal, filtered_advantages, ftis_loss
from ftis_node.policy.ftis_records import FtisMetrics
from ftis_node.policy.model import Policy
from ftis_node.policy.parts import ftis_input, parts
from ftis_node.policy.update_records import GroupOutcome, UpdateReport, UpdateSettings
from ftis_node.records import JudgedGroup, Origin, ScoredGroup, TrainGroup

__all__ = ["GroupOutcome", "UpdateReport", "UpdateSettings", "Updater"]


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

    @torch.no_grad()
    def score(self, groups: Sequence[TrainGroup]) -> tuple[ScoredGroup, ...]:
        """The policy's log-probs of every completion, without gradient, in the order of `groups`."""
        scored = []
        for group in groups:
            rows: dict[int, tuple[float, ...]] = {}
            for members in parts(group, range(len(group.completions)), self.settings.micro_tokens):
                logprobs, mask = self._pass(group, members)
                lengths = mask.sum(-1).tolist()
                for member, row, length in zip(members, logprobs.tolist(), lengths, strict=True):
                    rows[member] = tuple(row[:length])
            scored.append(ScoredGroup(group, tuple(rows[m] for m in range(len(rows)))))
        return tuple(scored)

    def update(self, judged: Sequence[JudgedGroup], drawn: int) -> UpdateReport:
        """One step on `judged`, the groups that may train out of `drawn` (the divisor of the mean, dropped ones
        included). No step is taken when nothing had a weight, and none when the loss or its gradient is not finite:
        the weights then stay as they were. Raises TrainingStopped after too many such steps in a row."""
        assert drawn >= len(judged), "drawn counts every group of the batch"
        started = time.perf_counter()
        outcomes, tokens = self._accumulate(judged, drawn)
        loss = math.fsum(o.loss for o in outcomes) / max(drawn, 1)
        norm, finite, stepped = math.nan, math.isfinite(loss), False
        if finite and any(o.used for o in outcomes):
            clipped = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.max_gradient_norm)
            norm = clipped.item()
            stepped = finite = math.isfinite(norm)
        rate = self._rate()
        if stepped:
            self._step(rate)
        self._optimizer.zero_grad(set_to_none=True)
        self._count_nonfinite(finite, stepped)
        seconds = time.perf_counter() - started
        version = self.policy.version
        return UpdateReport(stepped, finite, loss, norm, rate, drawn, outcomes, version, seconds, tokens)

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

    def _accumulate(self, judged: Sequence[JudgedGroup], drawn: int) -> tuple[tuple[GroupOutcome, ...], int]:
        """Gradients of all groups, own ones first; stops at the first loss that is not finite."""
        self._optimizer.zero_grad(set_to_none=True)
        outcomes, tokens = [], 0
        for item in sorted(judged, key=lambda j: j.group.origin is Origin.FOREIGN):
            outcome, passed = self._learn(item, drawn)
            outcomes.append(outcome)
            tokens += passed
            if not math.isfinite(outcome.loss):
                break
        return tuple(outcomes), tokens

    def _learn(self, item: JudgedGroup, drawn: int) -> tuple[GroupOutcome, int]:
        """Forward and backward of one group, part by part."""
        group, settings = item.group, self.settings.ftis
        if not carries_signal(group.rewards, settings):
            empty = FtisMetrics(groups=1, members=len(group.rewards), advantages=(0.0,) * len(group.rewards))
            return GroupOutcome(group, empty, 0.0), 0
        device = self.policy.device
        start = None if item.start_logprobs is None else [torch.tensor(r, device=device) for r in item.start_logprobs]
        members: Sequence[int] = range(len(group.completions))
        if start is not None:
            advantages, _ = filtered_advantages(ftis_input(item, members, start, start, settings))
            members = advantages.nonzero()[:, 0].tolist()
        known = dict(enumerate(start)) if start is not None else {}
        current, tokens = dict(known), 0
        for part in parts(group, members, self.settings.micro_tokens):
            logprobs, mask = self._pass(group, part)
            rows = [row[kept] for row, kept in zip(logprobs, mask, strict=True)]
            current.update(zip(part, (row.detach() for row in rows), strict=True))
            if start is None:
                known.update((m, current[m]) for m in part)
            loss = ftis_loss(ftis_input(item, part, rows, [known[m] for m in part], settings)).loss
            tokens += len(group.prompt_ids) + sum(len(group.completions[m].token_ids) for m in part)
            if loss.requires_grad and loss.isfinite():
                torch.autograd.backward(loss / drawn)
        return self._outcome(
            item, [current[m] for m in range(len(current))], [known[m] for m in range(len(known))]
        ), tokens

    def _outcome(self, item: JudgedGroup, current: list[Tensor], known: list[Tensor]) -> GroupOutcome:
        """Loss and metrics of the whole group, once every member's log-probs are there."""
        whole = ftis_loss(ftis_input(item, range(len(known)), current, known, self.settings.ftis))
        surprise = tuple(torch.stack([-row.mean() for row in known]).tolist())
        return GroupOutcome(item.group, whole.metrics, whole.loss.item(), surprise)

    def _pass(self, group: TrainGroup, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.policy.logprobs(group.prompt_ids, [group.completions[m].token_ids for m in members])

    def _rate(self) -> float:
        """The learning rate of the next step."""
        return self.settings.learning_rate * min(1.0, (self._steps + 1) / max(1, self.settings.warmup_steps))

    def _step(self, rate: float) -> None:
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
