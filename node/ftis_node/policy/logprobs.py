"""Log-probabilities of given completions under a causal language model, with gradient.

The prompt of a group is encoded once, with gradient, and its keys and values are shared by all completions; equal
completions of a group are computed once. Several groups go through the model together, since for short texts most of
the time is spent on moving weights and their gradients, not on tokens. Prompt and completions are joined as token ids.
Padding stands on the right, positions and masks come from lengths, and no padding id is ever compared.

Shapes: K groups in a pass, G completions of a group, U distinct completions of the pass, P tokens of the longest
prompt, C of the longest completion, H hidden size, V vocabulary, N real tokens of the distinct completions.
Log-probabilities are float32, in nats, at temperature 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Memory for one block of float32 logits; longer inputs go through the output head block by block.
HEAD_BLOCK_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """Which short cuts are exact for an architecture. `shared_prefix`: the cache of the prompt can be shared and
    carries gradients. `plain_head`: logits are the output head applied to the decoder's last hidden state, without
    soft-capping or scaling, so that the head may run block by block. Neither: whole rows through the whole model."""

    shared_prefix: bool
    plain_head: bool


PromptAndCompletions = tuple[Sequence[int], Sequence[Sequence[int]]]

REFERENCE_PLAN = ForwardPlan(shared_prefix=False, plain_head=False)


def completion_logprobs(
    module: Any,
    prompt_ids: Sequence[int],
    completions: Sequence[Sequence[int]],
    *,
    plan: ForwardPlan = REFERENCE_PLAN,
    autocast: torch.dtype | None = None,
    head_block_bytes: int = HEAD_BLOCK_BYTES,
) -> tuple[Tensor, Tensor]:
    """(logprobs [G, C] float32, 0 on padding; mask [G, C] bool) of each completion behind the prompt.

    The first token's logits come from the last position of the prompt. `autocast` is the compute type, None for
    float32. Asserts that the prompt and every completion have at least one token.
    """
    block = head_block_bytes
    (result,) = group_logprobs(
        module, [(prompt_ids, completions)], plan=plan, autocast=autocast, head_block_bytes=block
    )
    return result


def group_logprobs(
    module: Any,
    groups: Sequence[PromptAndCompletions],
    *,
    plan: ForwardPlan = REFERENCE_PLAN,
    autocast: torch.dtype | None = None,
    head_block_bytes: int = HEAD_BLOCK_BYTES,
) -> list[tuple[Tensor, Tensor]]:
    """`completion_logprobs` of several groups in one pass, in their order; C is each group's own."""
    rows = _Rows.of(groups, next(module.parameters()).device)
    with _autocast(rows.ids.device, autocast):
        if not plan.plain_head:
            values = _through_module(module, rows)
        else:
            shared = plan.shared_prefix and len(rows.owners) > len(groups)
            hidden = _shared_hidden(module, rows) if shared else _full_hidden(module, rows)
            values = _head_logprobs(module.get_output_embeddings(), hidden, rows.ids[rows.mask], head_block_bytes)
    logprobs = torch.zeros(rows.mask.shape, device=values.device).masked_scatter(rows.mask, values)
    results = []
    for group, (_, completions) in enumerate(groups):
        places, width = rows.places(group, completions), max(map(len, completions))
        results.append((logprobs[places, :width], rows.mask[places, :width]))
    return results


@dataclass(frozen=True, slots=True)
class _Rows:
    """The distinct completions of a pass: `ids` and `mask` [U, C], `owners` (the group of each row), and the groups'
    `prompts` [K, P] with their `prompt_lengths` [K]. Fillers are id 0; nothing reads them."""

    distinct: dict[tuple[int, tuple[int, ...]], int]
    owners: tuple[int, ...]
    owner: Tensor
    ids: Tensor
    mask: Tensor
    prompts: Tensor
    prompt_lengths: Tensor

    @classmethod
    def of(cls, groups: Sequence[PromptAndCompletions], device: torch.device) -> _Rows:
        assert len(groups) > 0, "a pass needs a group"
        distinct: dict[tuple[int, tuple[int, ...]], int] = {}
        for group, (prompt_ids, completions) in enumerate(groups):
            assert len(prompt_ids) > 0, "a prompt needs a token"
            assert len(completions) > 0, "a group needs a member"
            assert all(len(c) > 0 for c in completions), "a completion needs a token"
            for completion in completions:
                distinct.setdefault((group, tuple(completion)), len(distinct))
        ids, lengths = _right_padded([completion for _, completion in distinct], device)
        prompts, prompt_lengths = _right_padded([prompt_ids for prompt_ids, _ in groups], device)
        owners = tuple(group for group, _ in distinct)
        mask = torch.arange(ids.shape[1], device=device) < lengths[:, None]
        return cls(distinct, owners, torch.tensor(owners, device=device), ids, mask, prompts, prompt_lengths)

    def places(self, group: int, completions: Sequence[Sequence[int]]) -> Tensor:
        """[G] the row of each completion of one group."""
        return torch.tensor([self.distinct[group, tuple(c)] for c in completions], device=self.ids.device)

    @property
    def starts(self) -> Tensor:
        """[U, 1] the length of each row's prompt: the position of its first completion token."""
        return self.prompt_lengths[self.owner][:, None]


def _right_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [R, longest] and lengths [R]."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    return ids, torch.tensor([len(row) for row in rows], device=device)


def _full_hidden(module: Any, rows: _Rows) -> Tensor:
    """Hidden states [N, H] that predict the completion tokens, from whole rows."""
    joined = []
    for (group, completion), start in zip(rows.distinct, rows.starts[:, 0].tolist(), strict=True):
        joined.append([*rows.prompts[group, :start].tolist(), *completion[:-1]])
    ids, _ = _right_padded(joined, rows.ids.device)
    hidden = module.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    row, token = rows.mask.nonzero(as_tuple=True)
    predicting: Tensor = hidden[row, rows.starts[row, 0] - 1 + token]
    return predicting


def _shared_hidden(module: Any, rows: _Rows) -> Tensor:
    """The same as `_full_hidden`, with each prompt encoded once. The backward of `index_select` sums what the rows of
    a group send to its prompt's keys and values; fillers behind shorter prompts are masked, and positions go on from
    each prompt's own end."""
    from transformers import DynamicCache

    decoder, cache = module.get_decoder(), DynamicCache(config=module.config)
    encoded = decoder(input_ids=rows.prompts, past_key_values=cache, use_cache=True).last_hidden_state
    first: Tensor = encoded[rows.owner, rows.starts[:, 0] - 1][:, None]
    count, longest = rows.ids.shape[1] - 1, rows.prompts.shape[1]
    if count == 0:
        return first[:, 0]
    for layer in cache.layers:
        layer.keys = layer.keys.index_select(0, rows.owner)
        layer.values = layer.values.index_select(0, rows.owner)
    steps = torch.arange(longest + count, device=rows.ids.device)
    visible = (steps < rows.starts) | (steps >= longest)
    rest = decoder(
        input_ids=rows.ids[:, :-1],
        attention_mask=None if bool(visible.all()) else visible.long(),
        position_ids=rows.starts + steps[:count],
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return torch.cat([first, rest], 1)[rows.mask]


def _head_logprobs(head: Any, hidden: Tensor, targets: Tensor, block_bytes: int) -> Tensor:
    """Log-probs [N] of `targets` [N] from `hidden` [N, H]. With several blocks, each block's logits are computed
    again in the backward pass instead of being kept."""
    block = max(1, block_bytes // (4 * head.weight.shape[0]))
    if len(targets) <= block:
        return _target_logprobs(head, hidden, targets)
    compute = _recomputed if torch.is_grad_enabled() else _directly
    starts = range(0, len(targets), block)
    return torch.cat([compute(_target_logprobs, head, hidden[i : i + block], targets[i : i + block]) for i in starts])


def _target_logprobs(head: Any, hidden: Tensor, targets: Tensor) -> Tensor:
    """The head always runs in float32: rounding logits of size 20 to bfloat16 moves log-probs by 0.04 nats, and
    differently in every batch, which would show up as noise in each importance ratio."""
    with torch.autocast(hidden.device.type, enabled=False):
        return _gathered(head(hidden.float()), targets)


def _gathered(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.float()
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)


def _through_module(module: Any, rows: _Rows) -> Tensor:
    """Log-probs [N] row by row through the module's own forward, whatever it does to its logits."""
    cut = "logits_to_keep" in inspect.signature(module.forward).parameters

    def one_row(row: Tensor, targets: Tensor) -> Tensor:
        keep = {"logits_to_keep": len(targets)} if cut else {}
        logits = module(input_ids=row[None], use_cache=False, **keep).logits
        return _gathered(logits[0, -len(targets) :], targets)

    compute = _recomputed if torch.is_grad_enabled() and len(rows.owners) > 1 else _directly
    parts = []
    for (group, completion), start in zip(rows.distinct, rows.starts[:, 0].tolist(), strict=True):
        targets = torch.tensor(completion, device=rows.ids.device)
        parts.append(compute(one_row, torch.cat([rows.prompts[group, :start], targets[:-1]]), targets))
    return torch.cat(parts)


def _directly(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return function(*arguments)


def _recomputed(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    result: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result


def _autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
