"""The same engine on a GPU. Nothing here has run yet: no machine with one was at hand when it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import ask, write_checkpoint

from ftis_node.generate.jobs import Care
from ftis_node.generate.vllm_process import VllmProcessGenerator
from ftis_node.generate.vllm_start import VllmSettings
from ftis_node.loops.handover import hand_over
from ftis_node.policy.model import Policy, load_policy

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here"),
]

PROMPTS = [ask("3 * 4 ="), ask("a much longer question, 12 + 30 ="), ask("x")]
Start = Callable[..., VllmProcessGenerator]


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return load_policy(write_checkpoint(tmp_path / "model", tied=True, seed=1), device="cuda", compute_dtype="bfloat16")


@pytest.fixture
def start(tmp_path: Path, policy: Policy) -> Iterator[Start]:
    """An engine process on the card of `policy`, with its checkpoint."""
    started: list[VllmProcessGenerator] = []

    def make(**settings: Any) -> VllmProcessGenerator:
        wanted = VllmSettings(tmp_path / "model", tmp_path / "cache", "cuda", "bfloat16", context=512, **settings)
        started.append(VllmProcessGenerator(wanted, policy.codec, Care(policy.codec.fingerprint)))
        return started[-1]

    yield make
    for generator in started:
        generator.close()


def step(policy: Policy) -> None:
    """Other weights, as after a large optimiser step."""
    with torch.no_grad():
        for parameter in policy.trainable_parameters.values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    policy.version += 1


@pytest.mark.parametrize(
    "settings", [{}, {"quantization": "fp8"}, {"quantization": "int8"}], ids=["whole", "fp8", "int8"]
)
def test_weights_reach_an_engine_on_the_same_card(
    policy: Policy, start: Start, tmp_path: Path, settings: dict[str, Any]
) -> None:
    generator = start(**settings)
    for _ in range(2):
        step(policy)
        assert hand_over(policy, generator, tmp_path / "w.safetensors") <= generator.weights_alarm
        groups = generator.generate(PROMPTS, group_size=4, seed=1)
        assert {group.policy_version for group in groups} == {policy.version}


def test_an_engine_that_slept_gets_whole_weights_and_an_empty_cache(
    policy: Policy, start: Start, tmp_path: Path
) -> None:
    generator = start(sleeps=True)
    before = torch.cuda.mem_get_info()[0]
    generator.rest()
    assert torch.cuda.mem_get_info()[0] > before
    waiting = generator.submit(PROMPTS[0], group_size=2, seed=1)
    assert not waiting.done()
    step(policy)
    hand_over(policy, generator, tmp_path / "w.safetensors")
    assert waiting.result(60).policy_version == policy.version
