"""One judged group on its way through the passes of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ftis_node.policy.ftis import carries_signal, filtered_advantages, ftis_loss, importance_weights
from ftis_node.policy.ftis_fates import fates
from ftis_node.policy.ftis_records import FtisInput, FtisMetrics, FtisSettings
from ftis_node.policy.update_records import GroupOutcome
from ftis_node.records import JudgedGroup, Origin
from ftis_protocol.rollout import Finish


class GroupWork:
    """Gathers the log-probs of a group's members as they come, and turns them into losses and metrics.

    `members` are those worth a pass: none of a group whose outcomes agree (unless the rescue rule takes it); where the
    log-probs at the start of the batch are known, only those with a weight; else all. A group may go through several
    times: R then compares with the log-probs at the start of the batch, and `outcome` tells of the last time.
    """

    def __init__(self, item: JudgedGroup, settings: FtisSettings, device: torch.device) -> None:
        self.group = item.group
        self._item = item
        self._settings = settings
        self._device = device
        self._start: dict[int, Tensor] = {}
        self._signal = item.rescue_gate is not None or carries_signal(self.group.rewards, settings)
        self.members: Sequence[int] = range(len(self.group.completions)) if self._signal else ()
        if self._signal and item.start_logprobs is not None:
            self._start = {m: torch.tensor(row, device=device) for m, row in enumerate(item.start_logprobs)}
            advantages, _ = filtered_advantages(self._input(self.members, list(self._start.values())))
            self.members = advantages.nonzero()[:, 0].tolist()
        self._current = dict(self._start)

    def loss(self, members: Sequence[int], logprobs: Tensor, mask: Tensor) -> Tensor:
        """The share of `members` in the group's loss, from their log-probs [M, C] with gradient and mask [M, C]."""
        rows = [row[kept] for row, kept in zip(logprobs, mask, strict=True)]
        self._current.update(zip(members, (row.detach() for row in rows), strict=True))
        for member in members:
            self._start.setdefault(member, self._current[member])
        return ftis_loss(self._input(members, rows)).loss

    def outcome(self) -> GroupOutcome:
        """Loss and metrics of the whole group, once every one of `members` was in a pass."""
        count = len(self.group.completions)
        if not self._signal:
            none = FtisMetrics(groups=1, members=count, advantages=(0.0,) * count)
            return GroupOutcome(self.group, none, 0.0, fates=("no_signal",) * count)
        entry = self._input(range(count), [self._current[m] for m in range(count)])
        whole = ftis_loss(entry)
        surprise = torch.stack([-self._start[m].mean() for m in range(count)]).tolist()
        weights = (importance_weights(entry)[0].sum(-1) / entry.lengths).tolist()
        told = fates(entry, whole.metrics.advantages, weights)
        return GroupOutcome(self.group, whole.metrics, whole.loss.item(), tuple(surprise), tuple(weights), told)

    def _input(self, members: Sequence[int], policy: Sequence[Tensor]) -> FtisInput:
        chosen = [self.group.completions[m] for m in members]
        lengths = torch.tensor([len(c.token_ids) for c in chosen], device=self._device)
        sampler = [self._tensor(c.behaviour_logprobs) for c in chosen if c.behaviour_logprobs is not None]
        sums = [c.logprob_sum for c in chosen if c.logprob_sum is not None]
        return FtisInput(
            policy_logprobs=_padded(policy),
            start_logprobs=_padded([self._start[m] for m in members]),
            mask=torch.arange(int(lengths.max()), device=self._device) < lengths[:, None],
            rewards=self.group.rewards,
            length_capped=tuple(c.finish is Finish.LENGTH for c in chosen),
            evidence=self.group.evidence,
            own=self.group.origin is Origin.OWN,
            behaviour_logprobs=_padded(sampler) if len(sampler) == len(chosen) else None,
            logprob_sum=self._tensor(sums) if len(sums) == len(chosen) else None,
            surprise_bound=self._item.surprise_bound,
            own_surprise=self._item.own_surprise,
            rescue_gate=self._item.rescue_gate,
            members=tuple(members),
            settings=self._settings,
        )

    def _tensor(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=self._device, dtype=torch.float32)


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
