"""Groups written down as probabilities, for losses that are worked by hand."""

from __future__ import annotations

from math import log

import torch

from ftis_node.policy.ftis import FtisInput, ftis_loss
from ftis_protocol.rollout import Evidence


def rows(values: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs [M, C] of probabilities given row by row, and their mask; padding holds junk."""
    width = max(map(len, values))
    padded = [[log(p) for p in row] + [-77.0] * (width - len(row)) for row in values]
    mask = [[True] * len(row) + [False] * (width - len(row)) for row in values]
    return torch.tensor(padded), torch.tensor(mask)


def group(start: list[list[float]], rewards: tuple[float, ...], **changes: object) -> FtisInput:
    """A foreign text-only group on the policy that took up the batch (R = 1 everywhere)."""
    logprobs, mask = rows(start)
    given = {"evidence": Evidence.NONE, "own": False, "length_capped": (False,) * len(start)} | changes
    return FtisInput(logprobs.clone().requires_grad_(), logprobs, mask, rewards, **given)  # type: ignore[arg-type]


def token_group(
    start: list[list[float]], mu: list[list[float]], rewards: tuple[float, ...], **more: object
) -> FtisInput:
    return group(start, rewards, evidence=Evidence.TOKEN, behaviour_logprobs=rows(mu)[0], **more)


def gradient(given: FtisInput) -> list[list[float]]:
    loss = ftis_loss(given).loss
    if not loss.requires_grad:
        return torch.zeros_like(given.policy_logprobs).tolist()
    return torch.autograd.grad(loss, given.policy_logprobs)[0].tolist()
