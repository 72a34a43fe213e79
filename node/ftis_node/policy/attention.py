"""Attention in float32 inside bfloat16 passes on a CPU.

torch's bfloat16 attention for CPUs has a backward pass several times slower than the float32 one at the lengths that
short answers have: a quarter of a whole step on a model of 135M. Everything around it stays bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAME = "sdpa_float32"


def use_float32_attention(module: Any) -> None:
    """Switch a model that uses torch's scaled dot product attention; any other is left as it is."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if module.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    module.set_attn_implementation(NAME)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    with torch.autocast(query.device.type, enabled=False):
        wide = (tensor.float() for tensor in (query, key, value))
        output, _ = sdpa_attention_forward(module, *wide, attention_mask, **options)
    return output.to(query.dtype), None
