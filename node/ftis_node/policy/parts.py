"""A judged group cut into passes of bounded size, and turned into the loss's record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ftis_node.policy.ftis_records import FtisInput, FtisSettings
from ftis_node.records import JudgedGroup, Origin, TrainGroup
from ftis_protocol.rollout import Finish


def parts(group: TrainGroup, members: Sequence[int], micro_tokens: int) -> Iterator[list[int]]:
    """`members` in the fewest passes that keep the prompt and the padded completions within `micro_tokens`, but never
    fewer than one member a pass. Members of similar length go together, so that little is padded."""
    part: list[int] = []
    width = 0
    for member in sorted(members, key=lambda m: -len(group.completions[m].token_ids)):
        length = len(group.completions[member].token_ids)
        width = width or length
        if part and len(group.prompt_ids) + width * (len(part) + 1) > micro_tokens:
            yield sorted(part)
            part, width = [], length
        part.append(member)
    if part:
        yield sorted(part)


def ftis_input(
    item: JudgedGroup, members: Sequence[int], policy: Sequence[Tensor], start: Sequence[Tensor], settings: FtisSettings
) -> FtisInput:
    """The loss record of `members`, whose log-prob rows are `policy` (with gradient) and `start`."""
    group = item.group
    chosen = [group.completions[m] for m in members]
    device = start[0].device
    lengths = torch.tensor([len(c.token_ids) for c in chosen], device=device)
    sampler = [c.behaviour_logprobs for c in chosen if c.behaviour_logprobs is not None]
    sums = [c.logprob_sum for c in chosen if c.logprob_sum is not None]
    whole = len(chosen)
    return FtisInput(
        policy_logprobs=_padded(policy),
        start_logprobs=_padded(start),
        mask=torch.arange(int(lengths.max()), device=device) < lengths[:, None],
        rewards=group.rewards,
        length_capped=tuple(c.finish is Finish.LENGTH for c in chosen),
        evidence=group.evidence,
        own=group.origin is Origin.OWN,
        behaviour_logprobs=_padded([torch.tensor(r, device=device) for r in sampler])
        if len(sampler) == whole
        else None,
        logprob_sum=torch.tensor(sums, device=device) if len(sums) == whole else None,
        surprise_bound=item.surprise_bound,
        members=tuple(members),
        settings=settings,
    )


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
