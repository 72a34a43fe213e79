"""Loading, precision, adapters and exports of a policy."""

from __future__ import annotations

import errno
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ftis_node.errors import UsageError
from ftis_node.policy import export, model
from ftis_node.policy.lora import LoraSettings
from ftis_node.policy.model import Policy, load_policy, resolve_compute

IDS = torch.tensor([[40, 41, 42, 43]])


def logits(module: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return module(input_ids=IDS).logits


class TestLoad:
    def test_a_policy_begins_at_version_zero(self, policy: Policy, tiny_dir: Path) -> None:
        assert (policy.version, policy.name, policy.trainable, policy.autocast) == (0, "tied", "full", None)
        assert policy.device == torch.device("cpu")
        assert policy.parameter_count == sum(t.numel() for t in load_file(tiny_dir / "model.safetensors").values())
        assert all(p.dtype == torch.float32 for p in policy.trainable_parameters.values())
        assert not policy.module.training

    def test_a_bfloat16_checkpoint_trains_in_float32(self, policy: Policy, tmp_path: Path) -> None:
        policy.export_hf(tmp_path / "half", torch.bfloat16)
        loaded = load_policy(tmp_path / "half", device="cpu")
        assert {p.dtype for p in loaded.trainable_parameters.values()} == {torch.float32}

    def test_equal_models_have_equal_fingerprints_wherever_they_lie(self, tiny_dir: Path, tmp_path: Path) -> None:
        moved = Path(shutil.copytree(tiny_dir, tmp_path / "moved"))
        first, second = load_policy(tiny_dir), load_policy(moved)
        assert (first.fingerprint, first.revision) == (second.fingerprint, second.revision)

    def test_what_differs_has_another_fingerprint(self, tiny_dir: Path, untied_dir: Path, tmp_path: Path) -> None:
        changed = Path(shutil.copytree(tiny_dir, tmp_path / "changed"))
        weights = load_file(changed / "model.safetensors")
        weights["model.norm.weight"] = weights["model.norm.weight"] + 0.01
        save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
        made = [
            load_policy(tiny_dir),
            load_policy(untied_dir),
            load_policy(changed),
            load_policy(tiny_dir, trainable="lora"),
            load_policy(tiny_dir, trainable="lora", lora=LoraSettings(rank=4)),
            load_policy(tiny_dir, trainable="lora", lora=LoraSettings(alpha=8.0)),
        ]
        assert len({p.fingerprint for p in made}) == len(made)

    def test_precision_of_the_passes_is_no_part_of_the_model(self, tiny_dir: Path, tmp_path: Path) -> None:
        exact = load_policy(tiny_dir, device="cpu", compute_dtype="float32")
        rough = load_policy(tiny_dir, device="cpu", compute_dtype="bfloat16")
        assert rough.fingerprint == exact.fingerprint
        assert rough.autocast is torch.bfloat16
        rough.export_hf(tmp_path / "out")
        assert "attn" not in (tmp_path / "out" / "config.json").read_text()

    def test_compute_type(self) -> None:
        cpu = torch.device("cpu")
        assert resolve_compute("float32", cpu, 10**9) is None
        assert resolve_compute("bfloat16", cpu, 1000) is torch.bfloat16
        assert resolve_compute("auto", cpu, 1000) is None


class TestRefusals:
    def test_no_such_path(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            load_policy(tmp_path / "nowhere")
        assert caught.value.hint

    def test_a_directory_without_weights(self, tiny_dir: Path, tmp_path: Path) -> None:
        bare = Path(shutil.copytree(tiny_dir, tmp_path / "bare"))
        (bare / "model.safetensors").unlink()
        with pytest.raises(UsageError, match=r"cannot load the model") as caught:
            load_policy(bare)
        assert "model.safetensors" in caught.value.hint

    def test_truncated_weights(self, tiny_dir: Path, tmp_path: Path) -> None:
        torn = Path(shutil.copytree(tiny_dir, tmp_path / "torn"))
        content = (torn / "model.safetensors").read_bytes()
        (torn / "model.safetensors").write_bytes(content[: len(content) // 2])
        with pytest.raises(UsageError, match="cannot load the model"):
            load_policy(torn)

    def test_missing_weights_are_not_made_up(self, tiny_dir: Path, tmp_path: Path) -> None:
        partial = Path(shutil.copytree(tiny_dir, tmp_path / "partial"))
        weights = load_file(partial / "model.safetensors")
        del weights["model.layers.0.mlp.up_proj.weight"]
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UsageError, match=r"lacks 1 of its weights, model\.layers\.0\.mlp\.up_proj\.weight"):
            load_policy(partial)

    def test_a_tokenizer_larger_than_the_model(self, tiny_dir: Path, tmp_path: Path) -> None:
        odd = Path(shutil.copytree(tiny_dir, tmp_path / "odd"))
        weights = load_file(odd / "model.safetensors")
        weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:100].clone()
        save_file(weights, odd / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((odd / "config.json").read_text())
        (odd / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
        with pytest.raises(UsageError, match="its weights only 100"):
            load_policy(odd)

    def test_full_disk_while_fetching(self, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", full)
        with pytest.raises(UsageError, match="No space left") as caught:
            load_policy(tiny_dir)
        assert "space" in caught.value.hint

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_no_gpu(self, tiny_dir: Path) -> None:
        with pytest.raises(UsageError, match="CUDA"):
            load_policy(tiny_dir, device="cuda")

    def test_no_peft(self, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "peft" else found(name, *a))
        with pytest.raises(UsageError, match="peft") as caught:
            load_policy(tiny_dir, trainable="lora")
        assert "pip install" in caught.value.hint

    @pytest.mark.parametrize("targets", [("no_such_layer",), ("embed_tokens",)])
    def test_bad_adapter_targets(self, tiny_dir: Path, targets: tuple[str, ...]) -> None:
        with pytest.raises(UsageError):
            load_policy(tiny_dir, trainable="lora", lora=LoraSettings(target_modules=targets))


class TestLora:
    def test_a_fresh_adapter_changes_nothing_and_trains_alone(self, tiny_dir: Path, policy: Policy) -> None:
        state = torch.get_rng_state()
        made = load_policy(tiny_dir, trainable="lora", device="cpu")
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(logits(made.module), logits(policy.module))
        assert all(".lora_" in name for name in made.trainable_parameters)
        # 7 linear layers in each of 2 blocks, two matrices each; the output head has none.
        assert len(made.trainable_parameters) == 7 * 2 * 2

    def test_the_seed_fixes_the_adapter(self, tiny_dir: Path) -> None:
        made = [load_policy(tiny_dir, trainable="lora", lora=LoraSettings(seed=s)) for s in (1, 1, 2)]
        first, same, other = (torch.cat([p.flatten() for p in m.trainable_parameters.values()]) for m in made)
        assert torch.equal(first, same)
        assert not torch.equal(first, other)


class TestExport:
    @pytest.mark.parametrize("which", ["policy", "lora_policy"])
    def test_a_checkpoint_computes_what_the_policy_computes(
        self, which: str, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        policy: Policy = request.getfixturevalue(which)
        expected = logits(policy.module)
        policy.export_hf(tmp_path / "out")
        assert torch.equal(logits(policy.module), expected), "the export disturbed the policy"
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
        assert torch.allclose(logits(loaded), expected, atol=1e-6)
        assert load_policy(tmp_path / "out").codec.fingerprint == policy.codec.fingerprint

    def test_the_adapter_matters_in_that_comparison(self, policy: Policy, lora_policy: Policy) -> None:
        assert (logits(policy.module) - logits(lora_policy.module)).abs().max() > 1e-2

    @pytest.mark.parametrize("which", ["policy", "lora_policy"])
    def test_weights_file_has_the_names_of_the_original(
        self, which: str, request: pytest.FixtureRequest, tiny_dir: Path, tmp_path: Path
    ) -> None:
        policy: Policy = request.getfixturevalue(which)
        policy.version = 7
        policy.export_weights(tmp_path / "w.safetensors", torch.bfloat16)
        written, original = load_file(tmp_path / "w.safetensors"), load_file(tiny_dir / "model.safetensors")
        assert written.keys() == original.keys()
        assert "lm_head.weight" not in written
        assert {t.dtype for t in written.values()} == {torch.bfloat16}
        with safe_open(tmp_path / "w.safetensors", "pt") as file:
            assert file.metadata()["policy_version"] == "7"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["w.safetensors"]

    def test_an_untied_head_is_written(self, untied_dir: Path, tmp_path: Path) -> None:
        load_policy(untied_dir).export_weights(tmp_path / "w.safetensors")
        assert "lm_head.weight" in load_file(tmp_path / "w.safetensors")

    def test_full_weights_are_written_exactly(self, policy: Policy, tiny_dir: Path, tmp_path: Path) -> None:
        policy.export_weights(tmp_path / "w.safetensors")
        written, original = load_file(tmp_path / "w.safetensors"), load_file(tiny_dir / "model.safetensors")
        assert all(torch.equal(written[name], original[name]) for name in original)

    def test_a_full_disk_leaves_the_old_file(
        self, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = tmp_path / "w.safetensors"
        place.write_text("old")

        def full(_: object, path: Path, **__: object) -> None:
            path.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(export, "save_file", full)
        with pytest.raises(UsageError, match="No space left"):
            policy.export_weights(place)
        assert place.read_text() == "old"
        assert list(tmp_path.iterdir()) == [place]

    def test_a_directory_in_use_is_refused(self, policy: Policy, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text("keep")
        with pytest.raises(UsageError, match="not empty"):
            policy.export_hf(tmp_path)
        assert (tmp_path / "mine.txt").read_text() == "keep"


def test_only_a_checkpoint_name_goes_out(tiny_dir: Path) -> None:
    assert model.checkpoint_name(tiny_dir) == "tied"
    assert model.checkpoint_name("owner/name") == "owner/name"
