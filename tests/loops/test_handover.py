"""New weights reach the generator, and a generator that holds others is found out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from ftis_node.errors import EngineError
from ftis_node.generate.base import Generator
from ftis_node.loops.handover import hand_over, weights_gap
from ftis_node.policy.model import Policy, load_policy
from ftis_node.records import Prompt, SampledGroup, TokenIds


class Stub(Generator):
    """Answers `self_check` with the gaps it was given, one after the other."""

    name: ClassVar[str] = "stub"

    def __init__(self, alarm: float | None, *gaps: float) -> None:
        self.weights_alarm = alarm
        self.gaps = list(gaps)
        self.loaded: list[tuple[bool, int]] = []
        self.checked: list[tuple[TokenIds, TokenIds, tuple[float, ...]]] = []

    @property
    def policy_version(self) -> int:
        return self.loaded[-1][1]

    def generate(
        self, prompts: Sequence[Prompt], *, group_size: int, greedy: bool = False, seed: int | None = None
    ) -> tuple[SampledGroup, ...]:
        raise NotImplementedError

    def load_weights(self, path: Path, policy_version: int) -> None:
        self.loaded.append((path.exists(), policy_version))

    def self_check(self, prompt_ids: TokenIds, completion_ids: TokenIds, learner_logprobs: Sequence[float]) -> float:
        self.checked.append((prompt_ids, completion_ids, tuple(learner_logprobs)))
        return self.gaps.pop(0)


@pytest.fixture
def policy(tiny_models: Sequence[Path]) -> Policy:
    made = load_policy(tiny_models[0], device="cpu")
    made.version = 7
    return made


def test_weights_that_arrive_are_loaded_once(policy: Policy, tmp_path: Path) -> None:
    stub = Stub(0.1, 0.05)
    hand_over(policy, stub, tmp_path / "w.safetensors")
    assert stub.loaded == [(True, 7)]


def test_a_second_try_may_help(policy: Policy, tmp_path: Path) -> None:
    stub = Stub(0.1, 3.0, 0.1)
    hand_over(policy, stub, tmp_path / "w.safetensors")
    assert len(stub.loaded) == 2


def test_a_generator_that_keeps_other_weights_is_an_error(policy: Policy, tmp_path: Path) -> None:
    stub = Stub(0.1, 3.0, 2.5)
    with pytest.raises(EngineError, match=r"stub generator is 2\.500 nats") as caught:
        hand_over(policy, stub, tmp_path / "w.safetensors")
    assert "transformers" in caught.value.hint


def test_no_number_is_no_proof(policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        hand_over(policy, Stub(0.1, float("nan"), float("nan")), tmp_path / "w.safetensors")


def test_a_shared_module_needs_no_file(policy: Policy, tmp_path: Path) -> None:
    stub = Stub(None)
    hand_over(policy, stub, tmp_path / "w.safetensors")
    assert stub.loaded == [(False, 7)]


def test_both_sides_read_the_same_text(policy: Policy) -> None:
    stub = Stub(0.1, 0.0)
    weights_gap(policy, stub)
    ((prompt, completion, logprobs),) = stub.checked
    assert len(completion) == len(logprobs) > 20
    assert prompt
    assert all(value < 0 for value in logprobs)
