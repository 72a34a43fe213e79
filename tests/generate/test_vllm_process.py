"""vLLM in a process of its own: it streams, takes weights between groups, and comes back when it is killed."""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import ask, load_module, teacher_forced, worst_difference, write_checkpoint
from torch import nn

from ftis_node.errors import EngineError, UsageError
from ftis_node.generate.base import TooSlow
from ftis_node.generate.jobs import Care
from ftis_node.generate.vllm_process import VllmProcessGenerator
from ftis_node.generate.vllm_start import VllmSettings
from ftis_node.tokens import TextCodec
from ftis_protocol.rollout import Finish

pytestmark = [
    pytest.mark.slow,  # engine processes take half a minute each to start
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

CACHE = Path(tempfile.gettempdir()) / "ftis-node-test-cache"
PROMPTS = [ask("3 * 4 ="), ask("a much longer question, 12 + 30 ="), ask("x")]
DEADLINE_SECONDS = 120
# So long that an engine is surely in the middle of it when something else happens.
LONG = ask("go on", max_tokens=400, stop=r"(?!)")


@dataclass(frozen=True)
class Bench:
    """A running engine process, what it tells, and the two checkpoints it is moved between."""

    generator: VllmProcessGenerator
    told: queue.SimpleQueue[tuple[str, str]]
    paths: tuple[Path, Path]
    modules: tuple[nn.Module, nn.Module]

    def load(self, which: int, version: int | None = None) -> None:
        """As the node does it: weights, check, release."""
        self.generator.load_weights(self.paths[which] / "model.safetensors", which if version is None else version)
        ids, tokens = self.codec.render(PROMPTS[0]), (20, 30, 40)
        learner = teacher_forced(self.modules[which], ids, tokens).tolist()
        assert self.generator.self_check(ids, tokens, learner) < 1e-4
        self.generator.release()

    def next_told(self) -> tuple[str, str]:
        return self.told.get(timeout=DEADLINE_SECONDS)

    @property
    def codec(self) -> TextCodec:
        return self.generator._codec


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("engine")
    paths = tuple(write_checkpoint(root / str(seed), tied=True, seed=seed) for seed in (1, 2))
    codec, told = TextCodec.load(paths[0]), queue.SimpleQueue()
    settings = VllmSettings(paths[0], CACHE, context=512)
    care = Care(codec.fingerprint, request_seconds=60, grace_seconds=2, log_path=root / "engine.log")
    with VllmProcessGenerator(settings, codec, care, notify=lambda *news: told.put(news)) as generator:
        yield Bench(generator, told, paths, tuple(map(load_module, paths)))


def test_it_samples_what_the_learner_would(bench):
    bench.load(0)
    groups = bench.generator.generate(PROMPTS, group_size=4, seed=1)
    assert worst_difference(bench.modules[0], groups) < 1e-4
    assert groups == bench.generator.generate(PROMPTS, group_size=4, seed=1)
    greedy = bench.generator.generate(PROMPTS[:1], group_size=2, greedy=True)[0]
    assert greedy.samples[0] == greedy.samples[1]


def test_groups_stream_and_a_short_one_overtakes_a_long_one(bench):
    bench.load(0)
    long = bench.generator.submit(LONG, group_size=2, seed=1)
    short = bench.generator.submit(ask("a", max_tokens=1), group_size=2, seed=1)
    assert len(short.result(DEADLINE_SECONDS).samples) == 2
    assert not long.done()
    assert len(long.result(DEADLINE_SECONDS).samples) == 2


def test_a_group_that_nobody_wants_any_more_ends(bench):
    bench.load(0)
    futures = [bench.generator.submit(LONG, group_size=64, seed=n) for n in range(20)]
    assert all(future.cancel() for future in futures)
    with pytest.raises(CancelledError):
        futures[0].result(DEADLINE_SECONDS)
    bench.load(1)  # waits for running groups: with twenty of that length the deadline of the test would pass
    assert len(bench.generator._keeper._jobs) == 0


def test_the_stop_rule_ends_sampling(bench):
    """A completion that matched at its first token must not hold the others up for its 400."""
    bench.load(0)
    ruled = bench.generator.submit(ask("go", max_tokens=400, stop="."), group_size=4, seed=1)
    free = bench.generator.submit(LONG, group_size=4, seed=1)
    samples = ruled.result(DEADLINE_SECONDS).samples
    assert not free.done()
    assert {len(s.token_ids) for s in samples} == {1}
    assert {s.finish for s in samples} <= {Finish.RULE, Finish.STOP}
    assert free.cancel()


@pytest.mark.parametrize("running", ["wait", "abort"])
def test_no_completion_mixes_two_policies(bench, running, monkeypatch):
    """Weights come while groups grow. Every token of a group is of the policy that the group names."""
    bench.load(0)
    monkeypatch.setattr(bench.generator, "_running", running)
    long = [bench.generator.submit(ask("go on", max_tokens=200), group_size=8, seed=n) for n in range(4)]
    bench.generator.submit(ask("a", max_tokens=1), group_size=1, seed=1).result(DEADLINE_SECONDS)
    assert not any(future.done() for future in long)
    bench.load(1)
    late = bench.generator.submit(PROMPTS[0], group_size=8, seed=1).result(DEADLINE_SECONDS)
    groups = [future.result(DEADLINE_SECONDS) for future in long]
    assert {g.policy_version for g in groups} == ({0} if running == "wait" else {1})
    assert late.policy_version == 1
    for group in (*groups, late):
        assert worst_difference(bench.modules[group.policy_version], (group,)) < 1e-4


def test_groups_wait_until_the_new_weights_are_approved(bench):
    bench.load(0)
    bench.generator.load_weights(bench.paths[1] / "model.safetensors", 1)
    waiting = bench.generator.submit(PROMPTS[0], group_size=2, seed=1)
    ids, tokens = bench.codec.render(PROMPTS[0]), (20, 30, 40)
    stale = teacher_forced(bench.modules[0], ids, tokens).tolist()
    assert bench.generator.self_check(ids, tokens, stale) > bench.generator.weights_alarm
    assert not waiting.done()
    bench.load(1)
    assert worst_difference(bench.modules[1], (waiting.result(DEADLINE_SECONDS),)) < 1e-4


def test_weights_that_are_no_numbers_never_become_samples(bench, tmp_path):
    bench.load(0)
    tensors = load_file(bench.paths[0] / "model.safetensors")
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, tmp_path / "nan.safetensors")
    bench.generator.load_weights(tmp_path / "nan.safetensors", 5)
    ids, tokens = bench.codec.render(PROMPTS[0]), (20, 30, 40)
    assert not bench.generator.self_check(ids, tokens, [-1.0] * 3) <= bench.generator.weights_alarm
    bench.generator.release()  # what no node would do
    with pytest.raises(EngineError, match=r"log-prob of token 1 .* is nan"):
        bench.generator.generate(PROMPTS[:1], group_size=1, seed=1)
    bench.load(0)


def test_a_file_that_is_not_there_changes_nothing(bench, tmp_path):
    bench.load(1)
    with pytest.raises(EngineError, match="no usable weights"):
        bench.generator.load_weights(tmp_path / "none.safetensors", 9)
    bench.generator.release()
    assert worst_difference(bench.modules[1], bench.generator.generate(PROMPTS, group_size=2, seed=1)) < 1e-4


def test_what_does_not_fit_is_refused_before_it_travels(bench):
    with pytest.raises(UsageError, match="512 tokens of"):
        bench.generator.submit(ask("y" * 505), group_size=2, seed=1)
    with pytest.raises(UsageError, match="at most 0 tokens"):
        bench.generator.submit(ask("y", max_tokens=0), group_size=2, seed=1)


def test_a_killed_engine_comes_back_with_its_weights_and_its_groups(bench):
    bench.load(1, version=7)
    pid = bench.generator.pid
    long = bench.generator.submit(LONG, group_size=2, seed=1)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    kind, text = bench.next_told()
    noticed_seconds = time.monotonic() - killed
    assert (kind, "SIGKILL" in text) == ("engine-died", True)
    assert noticed_seconds < 5  # the one time limit that is promised
    kind, text = bench.next_told()
    assert kind == "engine-restarted", text
    assert bench.generator.pid not in (pid, None)
    group = long.result(DEADLINE_SECONDS)
    assert group.policy_version == 7
    assert worst_difference(bench.modules[1], (group,)) < 1e-4


def test_a_stopped_engine_is_named_and_replaced(bench, monkeypatch):
    bench.load(1)
    pid = bench.generator.pid
    monkeypatch.setattr(bench.generator._keeper._jobs, "_limit_seconds", 0.5)
    os.kill(pid, signal.SIGSTOP)
    stuck = bench.generator.submit(PROMPTS[0], group_size=2, seed=1)
    monkeypatch.undo()
    kind, text = bench.next_told()
    assert kind == "engine-hangs"
    assert f"process {pid} (stopped by a signal)" in text
    news = [bench.next_told() for _ in range(2)]
    assert [kind for kind, _ in news] == ["engine-died", "engine-restarted"], news
    assert worst_difference(bench.modules[1], (stuck.result(DEADLINE_SECONDS),)) < 1e-4


def test_a_group_that_takes_too_long_is_given_up_and_the_engine_goes_on(bench, monkeypatch):
    bench.load(1)
    pid = bench.generator.pid
    monkeypatch.setattr(bench.generator._keeper._jobs, "_limit_seconds", 0.0)
    slow = [bench.generator.submit(LONG, group_size=64, seed=n) for n in range(4)]
    monkeypatch.undo()
    with pytest.raises(TooSlow, match="given up"):
        slow[-1].result(DEADLINE_SECONDS)
    assert len(bench.generator.generate(PROMPTS, group_size=2, seed=1)) == 3
    assert bench.generator.pid == pid


def test_the_engine_works_with_the_threads_it_was_given(bench):
    environment = Path(f"/proc/{bench.generator.pid}/environ").read_bytes().split(b"\0")
    assert b"OMP_NUM_THREADS=1" in environment


NODE = """
import sys, time
from pathlib import Path
from ftis_node.generate.jobs import Care
from ftis_node.generate.vllm_process import VllmProcessGenerator
from ftis_node.generate.vllm_start import VllmSettings
from ftis_node.tokens import TextCodec
if __name__ == "__main__":
    path, cache = map(Path, sys.argv[1:])
    codec = TextCodec.load(path)
    settings = VllmSettings(path, cache, context=512)
    generator = VllmProcessGenerator(settings, codec, Care(codec.fingerprint))
    print(generator.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("state", ["computing", "stopped"])
def test_no_engine_outlives_a_killed_node(state, checkpoint, tmp_path):
    script = tmp_path / "node.py"
    script.write_text(NODE)
    command = [sys.executable, str(script), str(checkpoint), str(CACHE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        pid = int(node.stdout.readline())
        watch = os.pidfd_open(pid)
        if state == "stopped":
            os.kill(pid, signal.SIGSTOP)
        node.kill()
        assert select.select([watch], [], [], 10)[0], "the kernel ends the engine with its node"
        os.close(watch)


def test_another_tokenizer_is_an_error(checkpoint, codec, tmp_path):
    settings = VllmSettings(checkpoint, CACHE, context=512)
    with pytest.raises(EngineError, match="tokenizer") as caught:
        VllmProcessGenerator(settings, codec, Care("0" * 16))
    assert "learner" in str(caught.value)


def test_a_model_that_cannot_be_served_is_named_at_the_start(tmp_path):
    path = write_checkpoint(tmp_path / "model", tied=True, seed=1, hidden=64)
    codec = TextCodec.load(path)
    with pytest.raises(EngineError, match="cannot serve") as caught:
        VllmProcessGenerator(VllmSettings(path, CACHE, context=512), codec, Care(codec.fingerprint))
    assert "attention heads" in caught.value.hint
