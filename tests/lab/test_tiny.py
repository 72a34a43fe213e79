"""Tiny models: ordinary checkpoints, made once, equal for equal settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ftis_node.lab.atomic import made_once
from ftis_node.lab.tiny import TinyConfig, build_tiny, make_tiny
from ftis_node.tokens import TextCodec
from ftis_protocol.rollout import Finish


@pytest.mark.parametrize("tied", [True, False])
def test_a_tiny_model_loads_like_any_other(tmp_path: Path, tied: bool) -> None:
    path = make_tiny(tmp_path / "model", tied=tied, seed=3)
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.dtype == torch.float32
    assert model.config.head_dim == 32
    assert model.config.num_attention_heads * 32 == model.config.hidden_size
    head, embedding = model.lm_head.weight, model.model.embed_tokens.weight
    assert (head.data_ptr() == embedding.data_ptr()) == tied
    assert len(head) == TextCodec.load(path).vocabulary_size


def test_weights_depend_on_the_settings_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, _ = build_tiny(TinyConfig(seed=7))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    again, _ = build_tiny(TinyConfig(seed=7))
    other, _ = build_tiny(TinyConfig(seed=8))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_merged_pieces_are_another_spelling_of_the_same_text(tmp_path: Path) -> None:
    codecs = [TextCodec.load(make_tiny(tmp_path / alphabet, alphabet=alphabet)) for alphabet in ("ascii", "merged")]
    single, merged = (codec.encode_completion("14 13 9=934", Finish.RULE) for codec in codecs)
    assert (len(single), len(merged)) == (11, 8)
    assert [codec.decode(ids) for codec, ids in zip(codecs, (single, merged), strict=True)] == ["14 13 9=934"] * 2
    assert codecs[0].fingerprint != codecs[1].fingerprint


def test_what_is_there_stays(tmp_path: Path) -> None:
    path = make_tiny(tmp_path / "model")
    stamp = (path / "model.safetensors").stat().st_mtime_ns
    assert make_tiny(tmp_path / "model", seed=99) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == stamp


def test_a_directory_is_whole_or_absent(tmp_path: Path) -> None:
    def fails(aside: Path) -> None:
        (aside / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(tmp_path / "made", fails)
    assert list(tmp_path.iterdir()) == []


def test_two_makers_at_once_agree_on_one_result(tmp_path: Path) -> None:
    target = tmp_path / "made"

    def quick(aside: Path) -> None:
        (aside / "by").write_text("quick")

    def slow(aside: Path) -> None:
        (aside / "by").write_text("slow")
        made_once(target, quick)

    assert made_once(target, slow) == target
    assert (target / "by").read_text() == "quick"
    assert list(tmp_path.iterdir()) == [target]
