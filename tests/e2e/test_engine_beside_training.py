"""A whole node with vLLM in a process of its own, which is killed in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from ftis_node import metrics
from ftis_node.generate.vllm_process import VllmProcessGenerator
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.lab.tiny import make_tiny
from ftis_protocol.manifest import SwarmManifest

pytestmark = [
    pytest.mark.slow,  # two starts of an engine process, tens of seconds each
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

DEADLINE_SECONDS = 240
STEPS = 6


async def test_a_node_goes_on_when_its_engine_is_killed(
    letters: Callable[..., SwarmManifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftis_node.planning.cores", lambda: 2)  # also on a machine with one
    model = make_tiny(tmp_path / "tiny")
    settings: dict[str, dict[str, object]] = {
        "train": {"groups_per_step": 4, "group_size": 4, "lock_step": False, "max_steps": STEPS, "learning_rate": 1e-3}
        | {"probe_every_steps": 0},
        "model": {"device": "cpu", "generator": "vllm", "generator_process": "own", "kv_cache_mebibytes": 64},
    }
    async with Lab(tmp_path / "lab", letters()) as lab:
        node = await lab.add(LabPlan("a", model, settings))
        generator, store = node.rooms.generator, node.rooms.store
        assert isinstance(generator, VllmProcessGenerator)
        assert "a process of its own" in generator.reason
        running = asyncio.ensure_future(node.run(asyncio.Event()))
        first = generator.pid
        assert first is not None
        async with asyncio.timeout(DEADLINE_SECONDS):
            while node.train.step < 2:
                await asyncio.sleep(0.01)  # until the second step: an event of the node, looked for
            os.kill(first, signal.SIGKILL)
            await running
        assert node.train.step == node.rooms.policy.version == generator.policy_version == STEPS
        assert generator.pid != first
        kinds = [event.kind for event in store.events()]
        assert kinds.count("engine-died") == kinds.count("engine-restarted") == 1
        assert store.fact("generator_state") == "working"
        changes = [event.text for event in store.events() if event.kind == "state"]
        assert any("-> degraded: engine is restarting" in change for change in changes), changes
        assert metrics.GROUPS_GIVEN_UP not in store.totals(), "no group was lost"
        gaps = [point.value for point in store.points(metrics.WEIGHTS_GAP)]
        assert len(gaps) == STEPS
        assert max(gaps) < 1e-4
        lags = [point.value for point in store.points(metrics.POLICY_LAG)]
        assert max(lags) <= 3, "groups are as fresh as the buffer is short"
