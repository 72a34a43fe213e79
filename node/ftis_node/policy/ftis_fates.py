"""What became of each completion of a group in the loss, in one word; for people who read the texts afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from ftis_node.policy.ftis import group_advantages, negatives_off
from ftis_node.policy.ftis_records import FtisInput


def fates(group: FtisInput, kept: Sequence[float], weights: Sequence[float]) -> tuple[str, ...]:
    """One word of `store_rollouts.VERDICTS` per row, given its A' (`kept`) and its mean weight."""
    advantages = group_advantages(group.rewards, group.settings)
    return tuple(_fate(group, row, advantages[m], kept[row], weights[row]) for row, m in enumerate(group.places))


def _fate(group: FtisInput, row: int, advantage: float, kept: float, weight: float) -> str:
    if group.rescue_gate is not None:
        return "rescued" if kept else "outside_gate"
    if kept:
        return "trained"
    if not advantage:
        return "no_signal"
    if not weight or advantage > 0:
        return "weightless"
    if group.length_capped[row] and not group.own and not group.settings.foreign_capped_negatives:
        return "length_capped"
    return "negatives_off" if negatives_off(group) else "filtered"
