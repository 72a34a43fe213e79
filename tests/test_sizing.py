from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftis_node import planning
from ftis_node.config import NodeConfig
from ftis_node.errors import UsageError
from ftis_node.generate.choose import Choice
from ftis_node.sizing import GIB, ModelShape, Workload, plan_memory, read_shape, refuse

SHAPE = ModelShape(parameters=134_515_008, layers=30, width=576, vocabulary=49_152, head_size=64)
WORK = Workload(
    trainable="full", lora_rank=16, half_passes=True, rows=32, tokens=32, pass_tokens=8192, device="cpu",
    engine_dtype="bfloat16", kv_cache_bytes=512 << 20,
)  # fmt: skip


def sizes(engine="own", shape=SHAPE, work=WORK) -> dict[str, int]:
    return {share.name: share.size_bytes for share in plan_memory(shape, work, engine, 0).shares}


def test_shares_of_a_model_worked_out_by_hand():
    found = sizes()
    assert found["learner's weights"] == 4 * 134_515_008
    assert found["gradients"] == 4 * 134_515_008
    assert found["optimiser"] == 8 * 134_515_008
    assert found["half-size weights"] == found["vLLM's weights"] == 2 * 134_515_008
    assert found["hand-over"] == 2 * 2 * 134_515_008
    assert found["key-value cache"] == 512 << 20
    tokens = 256 + 32 * 32
    assert found["activations"] == 4 * tokens * (30 * 576 * 24 + 3 * 49_152)
    assert "key-value cache" not in sizes("transformers")


def test_an_adapter_and_full_precision_change_the_right_shares():
    lora = sizes(work=replace(WORK, trainable="lora"))
    assert lora["optimiser"] == 8 * 14 * 30 * 576 * 16
    whole = sizes(work=replace(WORK, half_passes=False, engine_dtype="float32"))
    assert "half-size weights" not in whole
    assert whole["vLLM's weights"] == 4 * 134_515_008
    assert sizes(work=replace(WORK, rows=10**6))["activations"] == sizes(work=replace(WORK, rows=256))["activations"]


def test_the_page_cache_gives_way():
    plan = plan_memory(SHAPE, WORK, "own", 0)
    needed = sum(share.size_bytes for share in plan.shares if share.name != "page cache")
    assert plan.needed_bytes == int(needed * 1.1)
    assert replace(plan, free_bytes=plan.needed_bytes).fits
    assert not replace(plan, free_bytes=plan.needed_bytes - 1).fits


def test_one_card_is_shared_by_turns_when_both_do_not_fit():
    work = replace(WORK, device="cuda", kv_cache_bytes=4 * GIB)
    room = plan_memory(SHAPE, work, "own", 100 * GIB)
    assert room.fits
    assert not room.taking_turns
    tight = plan_memory(SHAPE, work, "own", room.needed_bytes - 1)
    assert tight.taking_turns
    assert tight.needed_bytes < room.needed_bytes
    assert "taking turns" in tight.text


def test_the_text_names_every_share_with_its_size():
    text = plan_memory(SHAPE, WORK, "own", 8 * GIB).text
    assert "of 8.0 GiB free (vLLM in its own process)" in text
    for name, size in sizes().items():
        (line,) = [line for line in text.splitlines() if line.strip().startswith(name + " ")]
        assert f"{size / GIB:.2f} GiB" in line


@pytest.mark.parametrize("engine", ["own", "transformers"])
def test_the_error_names_three_things_that_help(engine):
    plan = plan_memory(SHAPE, WORK, engine, GIB)
    error = refuse(plan, SHAPE, WORK)
    assert f"{plan.needed_bytes / GIB:.1f} GiB" in str(error)
    assert error.hint.count(" saves ") == 3
    assert "--trainable lora saves 1.5 GiB" in error.hint
    assert ("--generator transformers" in error.hint) == (engine == "own")
    assert "--trainable lora" not in refuse(plan, SHAPE, replace(WORK, trainable="lora")).hint


def test_the_shape_is_read_from_the_files(tiny_models):
    shape = read_shape(tiny_models[0])
    assert (shape.layers, shape.width, shape.head_size) == (1, 32, 32)
    assert shape.parameters > 0


@pytest.mark.parametrize("damage", ["config", "weights"])
def test_damaged_files_are_named(tiny_models, tmp_path: Path, damage: str):
    (tmp_path / "config.json").write_text("{" if damage == "config" else "{}")
    (tmp_path / "model.safetensors").write_bytes(b"not that")
    with pytest.raises(UsageError, match="cannot read"):
        read_shape(tmp_path)


# ---- what a node makes of it -----------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """Two cores, plenty of memory, a usable vLLM; the attributes can be changed."""

    class Machine:
        free = 64 * GIB
        cores = 2
        choice = Choice("vllm", "it is there", replaceable=True)

    here = Machine()
    monkeypatch.setattr(planning, "free_memory", lambda device: here.free)
    monkeypatch.setattr(planning, "cores", lambda: here.cores)
    monkeypatch.setattr(planning, "choose_generator", lambda *_: here.choice)
    return here


def config(model: Path, **sections) -> NodeConfig:
    chosen = {"model": str(model), "device": "cpu", "generator_process": "auto"} | sections.pop("model_keys", {})
    return NodeConfig.model_validate({"model": chosen, **sections})


def test_a_node_takes_a_process_of_its_own_where_it_can(tiny_models, machine):
    plan = planning.plan_engine(config(tiny_models[0]), 32)
    assert plan.engine == "own"
    assert "while the learner computes" in plan.reason
    assert plan.memory is not None
    assert plan.memory.fits


@pytest.mark.parametrize(
    ("sections", "engine", "reason"),
    [
        ({"train": {"lock_step": True}}, "node", "lock step"),
        ({"model_keys": {"generator_process": "node"}}, "node", "asked for"),
        ({"model_keys": {"generator_process": "own"}, "train": {"lock_step": True}}, "own", "asked for"),
        ({"model_keys": {"generator": "transformers"}}, "transformers", "asked for"),
    ],
)
def test_what_was_asked_for_decides(tiny_models, machine, sections, engine, reason):
    plan = planning.plan_engine(config(tiny_models[0], **sections), 32)
    assert plan.engine == engine
    assert reason in plan.reason


def test_one_core_or_no_vllm_leave_the_node_alone(tiny_models, machine):
    machine.cores = 1
    assert planning.plan_engine(config(tiny_models[0]), 32).engine == "node"
    machine.choice = Choice("transformers", "vLLM is not installed")
    plan = planning.plan_engine(config(tiny_models[0]), 32)
    assert (plan.engine, plan.reason) == ("transformers", "vLLM is not installed")


def test_memory_decides_when_nobody_asked(tiny_models, machine, monkeypatch):
    monkeypatch.setattr(planning, "PASS_TOKENS", (8192,))
    whole = planning.plan_engine(config(tiny_models[0]), 32).memory
    assert whole is not None
    machine.free = whole.needed_bytes - 1
    node = planning.plan_engine(config(tiny_models[0]), 32)
    assert node.engine == "node"
    assert "does not fit" in node.reason
    machine.free = node.memory.needed_bytes - 1
    assert planning.plan_engine(config(tiny_models[0]), 32).engine == "transformers"


def test_passes_shrink_before_the_engine_gives_way(tiny_models, machine):
    wanted = config(tiny_models[0], train={"groups_per_step": 64, "group_size": 32})
    whole = planning.plan_engine(wanted, 512)
    assert whole.pass_tokens == 8192
    machine.free = whole.memory.needed_bytes - 1
    smaller = planning.plan_engine(wanted, 512)
    assert (smaller.engine, smaller.pass_tokens) == ("own", 4096)
    assert smaller.memory.fits


def test_what_fits_nowhere_is_an_error_unless_told_otherwise(tiny_models, machine):
    machine.free = 1 << 20
    with pytest.raises(UsageError, match=r"GiB on the cpu and 0\.0 GiB are free"):
        planning.plan_engine(config(tiny_models[0]), 32)
    plan = planning.plan_engine(config(tiny_models[0], model_keys={"check_memory": False}), 32)
    assert plan.engine == "own"


def test_a_model_that_is_still_on_the_hub_is_not_planned(machine):
    plan = planning.plan_engine(config(Path("owner/name")), 32)
    assert (plan.engine, plan.memory) == ("own", None)
    assert "not planned" in plan.text


def test_damaged_files_are_left_to_the_loader_and_its_words(machine, tmp_path):
    (tmp_path / "config.json").write_text("{")
    assert planning.plan_engine(config(tmp_path), 32).memory is None


@pytest.mark.parametrize("how", ["fp8", "int8"])
def test_quantised_sampling_is_refused_on_a_cpu(tiny_models, machine, how):
    with pytest.raises(UsageError, match=f"generator_quantization = {how} needs a GPU") as caught:
        planning.plan_engine(config(tiny_models[0], model_keys={"generator_quantization": how}), 32)
    assert "bfloat16" in caught.value.hint


def test_threads_are_never_more_than_the_cores(tiny_models, machine):
    model = config(tiny_models[0]).model
    machine.cores = 8
    assert planning.engine_threads(model, 7) == 1
    assert planning.engine_threads(model, 4) == 4
    assert planning.engine_threads(model.model_copy(update={"generator_threads": 2}), 4) == 2
    with pytest.raises(UsageError, match="more than the 8 cores"):
        planning.engine_threads(model.model_copy(update={"generator_threads": 3}), 6)
    machine.cores = 1
    assert planning.engine_threads(model, 1) == 1


def test_sampling_settings_of_the_model_are_named(tmp_path: Path):
    from ftis_node.generate.choose import sampling_overrides

    assert sampling_overrides(tmp_path) == ""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "temperature": 1.0, "top_p": None}))
    assert sampling_overrides(tmp_path) == ""
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": 3, "temperature": 0.3}))
    assert sampling_overrides(tmp_path) == "temperature 0.3, top_k 3"
