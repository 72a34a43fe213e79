"""One arm of an ablation with one seed: unlike models in one process, in lock step over the memory swarm.

Every node samples the same number of own groups a round in every arm, so arms differ in what foreign groups do and in
nothing else; a product node would sample less the more it gets. Rewards of foreign groups are recomputed as always.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ftis_node import metrics
from ftis_node.app import Node
from ftis_node.compute import to_its_end
from ftis_node.lab.ablation_plan import AblationPlan, ModelTable
from ftis_node.lab.arms import Arm
from ftis_node.lab.harness import Lab, LabPlan, lab_node_id, manifest_for
from ftis_node.lab.horizontal import pooled_round
from ftis_node.loops.rooms import Rooms
from ftis_node.loops.train import TrainLoop
from ftis_node.tasks.registry import build
from ftis_protocol.rollout import Evidence

#: more than any slot of the laboratory sees
UNLIMITED_GROUPS = 4096
NEVER = 1_000_000_000


@dataclass(frozen=True, slots=True)
class NodeCurve:
    """One node in one run. `sampled`: mean reward of its own completions, round by round; `greedy`: held-out pass@1
    before the first round and after the last; `foreign_used`: foreign groups that moved its weights."""

    node: str
    parameters: int
    sampled: tuple[float, ...]
    greedy: tuple[float, float]
    held_out_items: int
    foreign_used: int


class FixedOwnTrain(TrainLoop):
    """A train loop whose batch is `own` groups of its own and at most `foreign` of others on top."""

    def __init__(self, rooms: Rooms, weights_path: Path, own: int, foreign: int) -> None:
        super().__init__(rooms, weights_path)
        self._own, self._foreign = own, foreign

    async def once(self) -> None:
        """See TrainLoop.once."""
        rooms, began = self._rooms, time.monotonic()
        chance = random.Random(f"{rooms.config.train.seed}/draw/{self.step}")
        foreign = rooms.foreign.draw(self._foreign, chance, rooms.judge.wants)
        rooms.own.ask(self._own)
        own = await rooms.own.take(self._own)
        await to_its_end(self._step(own, foreign, began))


async def run_arm(
    plan: AblationPlan, arm: Arm, seed: int, models: Mapping[str, Path], on_round: Callable[[int], None]
) -> tuple[NodeCurve, ...]:
    """All rounds of one arm; `models` are the starting checkpoints by name, `on_round` hears of each round done."""
    manifest = manifest_for(
        [plan.task.spec],
        max_completion_tokens=build(plan.task.spec).max_completion_tokens,
        evidence=(Evidence.NONE, Evidence.SEQUENCE, Evidence.TOKEN),
    )
    with TemporaryDirectory(prefix="ftis-ablate-") as scratch:
        async with Lab(Path(scratch), manifest) as lab:
            for model in plan.models:
                node = await lab.add(_node_plan(plan, arm, seed, model, models[model.name]))
                _set_up(node, plan, arm, Path(scratch))
            first = [(await node.train.probe()).pass_at_1 for node in lab.nodes]
            for done in range(plan.rounds):
                if arm.exchange == "horizontal":
                    await pooled_round(lab, plan.own_groups)
                else:
                    await lab.rounds(1)
                on_round(done + 1)
            return tuple([await _curve(node, start) for node, start in zip(lab.nodes, first, strict=True)])


def _node_plan(plan: AblationPlan, arm: Arm, seed: int, model: ModelTable, path: Path) -> LabPlan:
    peers: Sequence[str] = [lab_node_id(other.name, seed) for other in plan.models if other.name != model.name]
    settings: dict[str, dict[str, object]] = {
        "node": {"threads": plan.threads},
        "model": {"trainable": model.trainable},
        "train": {
            "groups_per_step": plan.own_groups,
            "group_size": plan.group_size,
            "learning_rate": model.learning_rate or plan.learning_rate,
            "checkpoint_every_steps": NEVER,
            "probe_every_steps": 0,
            "probe_items": plan.held_out_items,
            "seed": seed,
        },
        "receive": {
            "exchange": arm.exchange == "vertical",
            "groups_per_step": plan.foreign_groups,
            "groups_per_peer_and_slot": UNLIMITED_GROUPS,
            "estimator": arm.estimator,
            "positives": arm.positives,
            "negatives": arm.negatives,
            "rescue": arm.rescue,
            "trusted_peers": peers if arm.evidence is not Evidence.NONE else (),
        },
        "publish": {"evidence": arm.evidence},
    }
    return LabPlan(model.name, path, settings)


def _set_up(node: Node, plan: AblationPlan, arm: Arm, root: Path) -> None:
    """What no node's configuration offers: a fixed number of own groups, and the constants of the loss."""
    rooms = node.rooms
    weights = root / rooms.config.node.name / "weights.safetensors"
    node.train = FixedOwnTrain(rooms, weights, plan.own_groups, plan.foreign_groups)
    loss = replace(
        rooms.updater.settings.ftis,
        weight_cap=arm.weight_cap,
        filter_by="mean" if arm.filter_sum_nats is None else "sum",
        filter_mean_nats=arm.filter_mean_nats,
        filter_sum_nats=arm.filter_sum_nats or rooms.updater.settings.ftis.filter_sum_nats,
    )
    rooms.updater.settings = replace(rooms.updater.settings, ftis=loss, warmup_steps=plan.warmup_rounds)


async def _curve(node: Node, start: float) -> NodeCurve:
    rooms = node.rooms
    end = await node.train.probe()
    return NodeCurve(
        node=rooms.config.node.name,
        parameters=rooms.policy.parameter_count,
        sampled=tuple(point.value for point in rooms.store.points(metrics.OWN_REWARD)),
        greedy=(start, end.pass_at_1),
        held_out_items=end.items,
        foreign_used=int(rooms.store.totals().get(metrics.FOREIGN_GROUPS_USED, 0)),
    )
