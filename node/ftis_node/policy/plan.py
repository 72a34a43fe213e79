"""Finding out, once per model, which short cuts of the log-prob passes are exact for its architecture."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ftis_node.policy.logprobs import REFERENCE_PLAN, ForwardPlan, group_logprobs

#: Parameters whose gradients the one-time check compares, and how far values and gradients may be apart.
PROBE_PARAMETERS = 8
PROBE_TOLERANCE = 1e-4

# How an architecture says that it cannot do what the faster way asks of it.
_UNABLE = (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError, IndexError, KeyError)


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


def _full_attention_only(module: Any) -> bool:
    from transformers.cache_utils import DynamicCache, DynamicLayer

    try:
        layers = DynamicCache(config=module.config).layers
    except _UNABLE:
        return False
    return len(layers) > 0 and all(type(layer) is DynamicLayer for layer in layers)


def _probe(module: Any, plan: ForwardPlan) -> tuple[Tensor, ...] | None:
    """Log-probs of two tiny groups and gradients of a few parameters; None where the architecture refuses."""
    size = module.get_input_embeddings().weight.shape[0]
    ids = [n % size for n in (3, 5, 7, 11, 13, 17, 19, 23, 29)]
    groups = [(ids[:4], (ids[4:7], ids[7:8])), (ids[8:], (ids[2:4], ids[5:6]))]
    wanted = [p for p in module.parameters() if p.requires_grad][:PROBE_PARAMETERS]
    try:
        with torch.enable_grad():
            made = group_logprobs(module, groups, plan=plan)
            logprobs = torch.cat([values[mask] for values, mask in made])
            loss = logprobs @ torch.linspace(0.5, 1.5, len(logprobs), device=logprobs.device)
            gradients = torch.autograd.grad(loss, wanted, allow_unused=True) if wanted else ()
    except _UNABLE:
        return None
    kept = (g if g is not None else torch.zeros_like(p) for g, p in zip(gradients, wanted, strict=True))
    return (logprobs.detach(), *kept)


def _agree(found: tuple[Tensor, ...] | None, reference: tuple[Tensor, ...]) -> bool:
    if found is None:
        return False
    for mine, other in zip(found, reference, strict=True):
        difference = (mine - other).abs().max().item()
        if not math.isfinite(difference) or difference > PROBE_TOLERANCE * max(other.abs().max().item(), 1e-6):
            return False
    return True
