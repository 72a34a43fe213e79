"""Log-probabilities of given completions under a causal language model, with gradient.

The prompt of a group is encoded once, with gradient, and its keys and values are shared by all completions; equal
completions of a group are computed once. Prompt and completions are joined as token ids. Padding stands behind the
completions only, where causal attention cannot see it, so masks come from lengths and no padding id is ever compared.

Shapes: G completions of a group, U <= G distinct ones, P prompt tokens, C tokens of the longest completion, H hidden
size, V vocabulary, N = real completion tokens. Log-probabilities are float32, in nats, at temperature 1.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Memory for one block of float32 logits; longer inputs go through the output head block by block.
HEAD_BLOCK_BYTES = 256 * 2**20
#: Parameters whose gradients the one-time check compares, and how far values and gradients may be apart.
PROBE_PARAMETERS = 8
PROBE_TOLERANCE = 1e-4

# How an architecture says that it cannot do what the faster way asks of it.
_UNABLE = (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError, IndexError, KeyError)


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """Which short cuts are exact for an architecture. `shared_prefix`: the cache of the prompt can be shared and
    carries gradients. `plain_head`: logits are the output head applied to the decoder's last hidden state, without
    soft-capping or scaling, so that the head may run block by block. Neither: whole rows through the whole model."""

    shared_prefix: bool
    plain_head: bool


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
    assert len(prompt_ids) > 0, "a prompt needs a token"
    assert len(completions) > 0, "a group needs a member"
    assert all(len(c) > 0 for c in completions), "a completion needs a token"
    distinct = list(dict.fromkeys(map(tuple, completions)))
    device = next(module.parameters()).device
    prompt = torch.tensor([list(prompt_ids)], device=device)
    ids, mask = _right_padded(distinct, device)
    with _autocast(device, autocast):
        if not plan.plain_head:
            values = _through_module(module, prompt, distinct)
        else:
            shared = plan.shared_prefix and len(distinct) > 1
            hidden = (_shared_hidden if shared else _full_hidden)(module, prompt, ids)
            values = _head_logprobs(module.get_output_embeddings(), hidden[mask], ids[mask], head_block_bytes)
    logprobs = torch.zeros(mask.shape, device=device).masked_scatter(mask, values)
    if len(distinct) == len(completions):
        return logprobs, mask
    place = {row: i for i, row in enumerate(distinct)}
    rows = torch.tensor([place[tuple(c)] for c in completions], device=device)
    return logprobs[rows], mask[rows]


def choose_plan(module: Any) -> ForwardPlan:
    """The fastest exact way for this module, found by trying: values and gradients of a tiny group are compared with
    whole rows through the whole model, in float32. Caches other than plain full attention are not shared, since a
    sliding window would pass the test and fail on longer prompts."""
    reference = _probe(module, REFERENCE_PLAN)
    assert reference is not None, "the model does not run"
    if not _agree(_probe(module, ForwardPlan(shared_prefix=False, plain_head=True)), reference):
        return REFERENCE_PLAN
    fastest = ForwardPlan(shared_prefix=True, plain_head=True)
    shared = _full_attention_only(module) and _agree(_probe(module, fastest), reference)
    return fastest if shared else ForwardPlan(shared_prefix=False, plain_head=True)


def _right_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [U, C] and mask [U, C] from lengths; the filler is id 0, which nothing reads."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return ids, torch.arange(width, device=device) < lengths[:, None]


def _full_hidden(module: Any, prompt: Tensor, ids: Tensor) -> Tensor:
    """Hidden states [U, C, H] that predict the completion tokens, from whole rows."""
    rows = torch.cat([prompt.expand(len(ids), -1), ids[:, :-1]], 1)
    hidden = module.get_decoder()(input_ids=rows, use_cache=False).last_hidden_state
    predicting: Tensor = hidden[:, prompt.shape[1] - 1 :]
    return predicting


def _shared_hidden(module: Any, prompt: Tensor, ids: Tensor) -> Tensor:
    """The same as `_full_hidden`, with the prompt [1, P] encoded once. `expand` copies nothing, and its backward sums
    what the rows send to the prompt's keys and values."""
    from transformers import DynamicCache

    decoder, cache = module.get_decoder(), DynamicCache(config=module.config)
    first: Tensor = decoder(input_ids=prompt, past_key_values=cache, use_cache=True).last_hidden_state[:, -1:]
    first = first.expand(len(ids), -1, -1)
    if ids.shape[1] == 1:
        return first
    for layer in cache.layers:
        layer.keys = layer.keys.expand(len(ids), -1, -1, -1)
        layer.values = layer.values.expand(len(ids), -1, -1, -1)
    rest = decoder(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True).last_hidden_state
    return torch.cat([first, rest], 1)


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
    return _gathered(head(hidden), targets)


def _gathered(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.float()
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)


def _through_module(module: Any, prompt: Tensor, distinct: Sequence[Sequence[int]]) -> Tensor:
    """Log-probs [N] row by row through the module's own forward, whatever it does to its logits."""
    cut = "logits_to_keep" in inspect.signature(module.forward).parameters

    def one_row(row: Tensor, targets: Tensor) -> Tensor:
        keep = {"logits_to_keep": len(targets)} if cut else {}
        logits = module(input_ids=row, use_cache=False, **keep).logits
        return _gathered(logits[0, -len(targets) :], targets)

    compute = _recomputed if torch.is_grad_enabled() and len(distinct) > 1 else _directly
    parts = []
    for completion in distinct:
        targets = torch.tensor(completion, device=prompt.device)
        row = torch.cat([prompt, targets[None, :-1]], 1)
        parts.append(compute(one_row, row, targets))
    return torch.cat(parts)


def _directly(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return function(*arguments)


def _recomputed(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    result: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result


def _autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def _full_attention_only(module: Any) -> bool:
    from transformers.cache_utils import DynamicCache, DynamicLayer

    try:
        layers = DynamicCache(config=module.config).layers
    except _UNABLE:
        return False
    return len(layers) > 0 and all(type(layer) is DynamicLayer for layer in layers)


def _probe(module: Any, plan: ForwardPlan) -> tuple[Tensor, ...] | None:
    """Log-probs of a tiny group and gradients of a few parameters; None where the architecture refuses."""
    size = module.get_input_embeddings().weight.shape[0]
    numbers = [n % size for n in (3, 5, 7, 11, 13, 17, 19, 23)]
    wanted = [p for p in module.parameters() if p.requires_grad][:PROBE_PARAMETERS]
    try:
        with torch.enable_grad():
            logprobs, mask = completion_logprobs(module, numbers[:4], (numbers[4:7], numbers[7:]), plan=plan)
            scale = torch.arange(1, logprobs.numel() + 1, device=logprobs.device).reshape(logprobs.shape)
            loss = (logprobs * scale).sum() / scale.sum()
            gradients = torch.autograd.grad(loss, wanted, allow_unused=True) if wanted else ()
    except _UNABLE:
        return None
    kept = (g if g is not None else torch.zeros_like(p) for g, p in zip(gradients, wanted, strict=True))
    return (logprobs.detach()[mask], *kept)


def _agree(found: tuple[Tensor, ...] | None, reference: tuple[Tensor, ...]) -> bool:
    if found is None:
        return False
    for mine, other in zip(found, reference, strict=True):
        difference = (mine - other).abs().max().item()
        if not math.isfinite(difference) or difference > PROBE_TOLERANCE * max(other.abs().max().item(), 1e-6):
            return False
    return True
