from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftis_node.errors import EngineError, UsageError
from ftis_node.generate import vllm_stepper
from ftis_node.generate.choose import (
    Choice,
    Machine,
    ModelNeeds,
    build_generator,
    choose_generator,
    free_memory,
    inspect_machine,
    inspect_model,
)
from ftis_node.generate.vllm_start import VllmSettings

GIB = 2**30
READY = Machine(vllm_build="cpu", vllm_version="0.32.0", compiler=True, free_bytes=8 * GIB)
NEEDS = ModelNeeds(head_size=64, engine_bytes=GIB)


def test_auto_takes_vllm_where_it_works_and_says_so():
    choice = choose_generator("auto", "cpu", READY, NEEDS)
    assert choice.name == "vllm"
    assert choice.replaceable
    assert "0.32.0" in choice.reason
    assert choose_generator("vllm", "cpu", READY, NEEDS) == Choice("vllm", "asked for")
    assert choose_generator("transformers", "cpu", READY, NEEDS) == Choice("transformers", "asked for")
    cuda = replace(READY, vllm_build="cuda")
    assert choose_generator("auto", "cuda", cuda, replace(NEEDS, head_size=48)).name == "vllm"


@pytest.mark.parametrize(
    ("machine", "needs", "device", "reason", "remedy"),
    [
        (replace(READY, vllm_build=None), NEEDS, "cpu", "not installed", "extra 'cpu'"),
        (replace(READY, vllm_build=None), NEEDS, "cuda", "not installed", "extra 'cuda'"),
        (replace(READY, vllm_build="cuda"), NEEDS, "cpu", "cuda build", "extra 'cpu'"),
        (READY, NEEDS, "cuda", "cpu build", "extra 'cuda'"),
        (replace(READY, vllm_version="0.31.4"), NEEDS, "cpu", "0.31.4", "extra 'cpu'"),
        (replace(READY, compiler=False), NEEDS, "cpu", "compiler", "g++"),
        (READY, replace(NEEDS, head_size=16), "cpu", "size 16", "model"),
        (replace(READY, free_bytes=GIB), NEEDS, "cpu", "2.0 GiB beside the learner and 1.0 GiB", "free memory"),
    ],
)
def test_what_keeps_vllm_away(machine, needs, device, reason, remedy):
    choice = choose_generator("auto", device, machine, needs)
    assert choice.name == "transformers"
    assert reason in choice.reason
    with pytest.raises(UsageError, match=reason) as caught:
        choose_generator("vllm", device, machine, needs)
    assert remedy in caught.value.hint
    assert choose_generator("transformers", device, machine, needs).name == "transformers"


def test_model_needs_come_from_the_checkpoint(checkpoint, module):
    weights = sum(p.numel() for p in module.parameters())
    assert inspect_model(checkpoint, "bfloat16", 1000) == ModelNeeds(32, 2 * weights + 1000)
    assert inspect_model(checkpoint, "float32", 0).engine_bytes == 4 * weights


def test_free_memory_stays_within_the_container(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:  4000 kB\n")
    assert free_memory("cpu", tmp_path) == 4000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert free_memory("cpu", tmp_path) == 4000 * 1024
    (group / "memory.max").write_text("51000\n")
    assert free_memory("cpu", tmp_path) == 50000


def test_looking_works_here():
    machine = inspect_machine("cpu")
    assert machine.free_bytes > 0
    assert machine.vllm_build in (None, "cpu", "cuda")


@pytest.fixture
def broken_vllm(monkeypatch):
    def refuse(settings):
        raise RuntimeError("the head is on fire\nand more")

    monkeypatch.setattr(vllm_stepper, "start_engine", refuse)


def _build(choice, module, codec, checkpoint: Path, cache: Path):
    return build_generator(
        choice, module=module, codec=codec, settings=VllmSettings(checkpoint, cache), policy_version=4
    )


@pytest.mark.usefixtures("broken_vllm")
def test_transformers_steps_in_for_a_vllm_that_does_not_start(module, codec, checkpoint, tmp_path):
    generator = _build(Choice("vllm", "installed", replaceable=True), module, codec, checkpoint, tmp_path)
    assert (generator.name, generator.policy_version) == ("transformers", 4)
    assert "the head is on fire" in generator.reason


@pytest.mark.usefixtures("broken_vllm")
def test_nothing_steps_in_for_a_vllm_that_was_asked_for(module, codec, checkpoint, tmp_path):
    with pytest.raises(EngineError, match="on fire") as caught:
        _build(Choice("vllm", "asked for"), module, codec, checkpoint, tmp_path)
    assert "transformers" in caught.value.hint


def test_transformers_is_built_with_its_reason(module, codec, checkpoint, tmp_path):
    generator = _build(Choice("transformers", "because"), module, codec, checkpoint, tmp_path)
    assert (generator.name, generator.reason) == ("transformers", "because")
