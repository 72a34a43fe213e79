"""The learner and an engine that samples beside it: what is bounded, what is replaced, and who says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ftis_node import app, metrics
from ftis_node.app import Node
from ftis_node.errors import EngineError, TaskError
from ftis_node.generate.base import Generator, StreamingGenerator, TooSlow, mean_gap
from ftis_node.generate.transformers import TransformersGenerator
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.policy.model import Policy, load_policy
from ftis_node.records import Prompt, SampledGroup, TokenIds
from ftis_protocol.manifest import SwarmManifest

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]
DEADLINE_SECONDS = 60


class Beside(StreamingGenerator):
    """Samples in a thread of its own from weights of its own: what vLLM's process does, without vLLM."""

    name: ClassVar[str] = "beside"
    weights_alarm = 1e-3

    def __init__(self, model: str) -> None:
        self._policy = load_policy(model, device="cpu")
        self._inner = TransformersGenerator(self._policy.module, self._policy.codec)
        self._pool = ThreadPoolExecutor(1)
        self._released = threading.Event()
        self._released.set()
        self._version = 0
        self.asked = self.most_under_way = self._under_way = 0
        self.slow: set[int] = set()
        self.deaf = False
        self.turns: list[str] = []

    @property
    def policy_version(self) -> int:
        return self._version

    def submit(self, prompt: Prompt, *, group_size: int, seed: int) -> Future[SampledGroup]:
        self.asked += 1
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        future = self._pool.submit(self._one, prompt, group_size, seed, self.asked)
        future.add_done_callback(self._over)
        return future

    def _over(self, _: object) -> None:
        self._under_way -= 1

    def _one(self, prompt: Prompt, group_size: int, seed: int, number: int) -> SampledGroup:
        assert self._released.wait(DEADLINE_SECONDS)
        if number in self.slow:
            raise TooSlow("it took too long", hint="none")
        return self._inner.generate([prompt], group_size=group_size, seed=seed)[0]

    def generate(self, prompts: Sequence[Prompt], **how: Any) -> tuple[SampledGroup, ...]:
        return self._pool.submit(self._inner.generate, prompts, **how).result(DEADLINE_SECONDS)

    def rest(self) -> None:
        self.turns.append("rest")

    def load_weights(self, path: Path, policy_version: int) -> None:
        self.turns.append("load")
        self._released.clear()
        if not self.deaf:
            from safetensors.torch import load_file

            self._policy.module.load_state_dict(load_file(path), strict=False)
        self._version = policy_version
        self._inner.load_weights(path, policy_version)

    def self_check(self, prompt_ids: TokenIds, completion_ids: TokenIds, learner_logprobs: Sequence[float]) -> float:
        return mean_gap(self._policy.score(prompt_ids, completion_ids), learner_logprobs)

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self._released.set()
        self._pool.shutdown(wait=True, cancel_futures=True)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes get such an engine."""

    def start(model: Any, policy: Policy, *_: object) -> Generator:
        return Beside(model.model)

    monkeypatch.setattr(app, "start_generator", start)


async def run(node: Node) -> None:
    await asyncio.wait_for(node.run(asyncio.Event()), DEADLINE_SECONDS)


def engine(node: Node) -> Beside:
    assert isinstance(node.rooms.generator, Beside)
    return node.rooms.generator


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("ahead", [None, 0, 2])
async def test_what_is_under_way_is_bounded_and_what_trains_is_fresh(
    letters: Rules, plan: MakePlan, tmp_path: Path, ahead: int | None
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        settings = {"train__max_steps": 5, "train__groups_ahead": ahead, "train__lock_step": False}
        node = await lab.add(plan("a", **settings))
        await run(node)
        assert node.train.step == node.rooms.policy.version == engine(node).policy_version == 5
        bound = 4 + (4 if ahead is None else ahead)  # one batch, and what is sampled ahead of it
        assert engine(node).most_under_way <= bound
        assert engine(node).asked <= 5 * 4 + bound
        lags = [point.value for point in node.rooms.store.points(metrics.POLICY_LAG)]
        assert max(lags) <= 1 + (bound - 4) / 4 + 1, "a group waits for its batch, and for the one before it"
        gaps = [point.value for point in node.rooms.store.points(metrics.WEIGHTS_GAP)]
        assert len(gaps) == 5
        assert max(gaps) < 1e-4


@pytest.mark.usefixtures("beside")
async def test_a_group_that_took_too_long_is_replaced_and_counted(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", train__max_steps=2, train__lock_step=False))
        engine(node).slow = {2, 3}
        await run(node)
        assert node.train.step == 2
        assert node.rooms.store.totals()[metrics.GROUPS_GIVEN_UP] == 2
        assert [e.text for e in node.rooms.store.events() if e.kind == "group-given-up"] == ["it took too long"] * 2


@pytest.mark.usefixtures("beside")
async def test_group_after_group_without_result_ends_the_run(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters(fault="always")) as lab:
        node = await lab.add(plan("a", train__lock_step=False))
        with pytest.raises(TaskError, match="came to nothing"):
            await run(node)


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("ahead", [0, 4])
async def test_an_engine_that_keeps_old_weights_stops_the_node_before_it_samples(
    letters: Rules, plan: MakePlan, tmp_path: Path, ahead: int
) -> None:
    """Also when the learner waits for groups that will never come."""
    async with Lab(tmp_path, letters()) as lab:
        settings = {"train__lock_step": False, "train__learning_rate": 0.5, "train__groups_ahead": ahead}
        node = await lab.add(plan("a", **settings))
        engine(node).deaf = True
        with pytest.raises(EngineError, match="after two hand-overs") as caught:
            await run(node)
        assert caught.value.hint
        kept = list(node.rooms.own._groups._queue)  # type: ignore[attr-defined]
        assert {group.policy_version for group in kept} <= {0}, "nothing was sampled from unknown weights"
        assert "after two hand-overs" in next(e.text for e in node.rooms.store.events() if e.kind == "failed")


@pytest.mark.usefixtures("beside")
async def test_lock_step_samples_in_turn_with_any_engine(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        await lab.rounds(3)
        assert [point.value for point in node.rooms.store.points(metrics.POLICY_LAG)] == [0, 0, 0]
        assert engine(node).asked == 0


@pytest.mark.usefixtures("beside")
async def test_an_engine_that_shares_a_card_rests_while_the_learner_computes(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    """Its weights are gone then, so they come again even where a batch changed nothing."""
    async with Lab(tmp_path, letters(alike=True)) as lab:
        node = await lab.add(plan("a", train__max_steps=3, train__lock_step=False))
        engine(node).sleeps = True
        await run(node)
        assert node.rooms.policy.version == 0
        assert engine(node).turns == ["rest", "load"] * 3
