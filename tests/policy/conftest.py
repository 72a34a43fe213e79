"""A tiny model on disk, policies on it, and groups to learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from ftis_node.lab.tiny import make_tiny
from ftis_node.policy.model import Policy, load_policy
from ftis_node.records import Origin, Prompt, TrainCompletion, TrainGroup
from ftis_protocol.rollout import Evidence, Finish, PromptRef

PROMPT_IDS = (40, 41, 42, 43, 44)

MakeGroup = Callable[..., TrainGroup]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums in one order, so that equal steps are equal to the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tied", layers=2, hidden=64, seed=1)


@pytest.fixture(scope="session")
def untied_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "untied", layers=2, hidden=64, tied=False, seed=2)


@pytest.fixture
def policy(tiny_dir: Path) -> Policy:
    return load_policy(tiny_dir, device="cpu", compute_dtype="float32")


@pytest.fixture
def lora_policy(tiny_dir: Path) -> Policy:
    """An adapter that has already moved away from its neutral beginning."""
    made = load_policy(tiny_dir, trainable="lora", device="cpu", compute_dtype="float32")
    with torch.no_grad():
        for parameter in made.trainable_parameters.values():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made


@pytest.fixture
def make_group() -> MakeGroup:
    """Builds a group from token rows and rewards. Own groups get sampler log-probs of -1 a token unless told."""

    def make(
        rows: Sequence[Sequence[int]],
        rewards: Sequence[float],
        *,
        origin: Origin = Origin.OWN,
        evidence: Evidence = Evidence.NONE,
        sampler: Sequence[Sequence[float]] | None = None,
        finish: Finish = Finish.STOP,
        digest: bytes = b"g",
        prompt_ids: tuple[int, ...] = PROMPT_IDS,
    ) -> TrainGroup:
        prompt = Prompt(PromptRef(task="sums", version=1, slot=0, index=0), "me", "key", (), "", None, 16)
        known = origin is Origin.OWN or evidence is Evidence.TOKEN
        sampler = sampler or [[-5.5] * len(row) for row in rows]
        completions = tuple(
            TrainCompletion(
                text=str(row),
                token_ids=tuple(row),
                finish=finish,
                reward=reward,
                behaviour_logprobs=tuple(mu) if known else None,
                logprob_sum=sum(mu) if evidence is Evidence.SEQUENCE else None,
            )
            for row, reward, mu in zip(rows, rewards, sampler, strict=True)
        )
        return TrainGroup(origin, "me", prompt, prompt_ids, completions, evidence, 0, 0.0, digest)

    return make
