"""vLLM itself, in this process: engines for a tied and an untied model, one after the other."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import ask, load_module, teacher_forced, worst_difference, write_checkpoint
from torch import nn

from ftis_node.errors import EngineError, UsageError
from ftis_node.generate.vllm import VllmGenerator, VllmSettings
from ftis_node.policy.model import load_policy
from ftis_node.tokens import TextCodec
from ftis_protocol.rollout import Finish

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

# The kernel that vLLM compiles depends on torch and vLLM alone, so it may outlive a test run.
CACHE = Path(tempfile.gettempdir()) / "ftis-node-test-cache"

PROMPTS = [ask("3 * 4 ="), ask("a much longer question, 12 + 30 ="), ask("x")]
# Longer than any block of the prefix cache, so that a second request finds it there.
LONG = ask("the quick brown fox " * 15)


@dataclass(frozen=True)
class Bench:
    """A running engine, the two checkpoints it is moved between, and their modules."""

    generator: VllmGenerator
    paths: tuple[Path, Path]
    modules: tuple[nn.Module, nn.Module]
    tied: bool

    def load(self, which: int) -> nn.Module:
        self.generator.load_weights(self.paths[which] / "model.safetensors", which)
        return self.modules[which]

    def difference(self, which: int, *prompts) -> float:
        groups = self.generator.generate(prompts or PROMPTS, group_size=4, seed=1)
        return worst_difference(self.modules[which], groups)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def bench(request, tmp_path_factory) -> Iterator[Bench]:
    tied = request.param
    root = tmp_path_factory.mktemp("vllm")
    paths = tuple(write_checkpoint(root / str(seed), tied=tied, seed=seed) for seed in (1, 2))
    settings = VllmSettings(paths[0], CACHE, context=512)
    with VllmGenerator(settings, TextCodec.load(paths[0])) as generator:
        yield Bench(generator, paths, tuple(map(load_module, paths)), tied)


def test_logprobs_are_the_learners_before_and_after_every_hand_over(bench):
    bench.load(0)
    assert bench.difference(0, *PROMPTS, LONG) < 1e-4
    assert bench.difference(1) > 1
    for which in (1, 0, 1):
        bench.load(which)
        assert bench.generator.policy_version == which
        assert bench.difference(which, *PROMPTS, LONG) < 1e-4


def test_weights_as_the_trainer_exports_them(bench, tmp_path):
    """A file with the tied head written out, as some exporters do, is the same policy."""
    tensors = load_file(bench.paths[1] / "model.safetensors")
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())
    save_file(tensors, tmp_path / "full.safetensors")
    bench.generator.load_weights(tmp_path / "full.safetensors", 5)
    assert bench.difference(1) < 1e-4


def test_an_adapter_reaches_the_engine_merged(bench, tmp_path):
    pytest.importorskip("peft")
    policy = load_policy(bench.paths[0], trainable="lora", device="cpu", compute_dtype="float32")
    for parameter in policy.trainable_parameters.values():
        torch.nn.init.normal_(parameter, std=0.2)
    policy.export_weights(tmp_path / "merged.safetensors")
    bench.generator.load_weights(tmp_path / "merged.safetensors", 6)
    groups = bench.generator.generate(PROMPTS, group_size=4, seed=1)
    assert worst_difference(policy.module.eval(), groups) < 1e-4
    assert worst_difference(bench.modules[0], groups) > 0.5


def test_another_thread_may_sample(bench):
    bench.load(1)
    with ThreadPoolExecutor(1) as pool:
        groups = pool.submit(bench.generator.generate, PROMPTS, group_size=4, seed=1).result(timeout=60)
    assert groups == bench.generator.generate(PROMPTS, group_size=4, seed=1)


def test_a_tied_head_goes_stale_without_being_packed_again(bench, monkeypatch):
    """Not a wish but a proof that the tests above can see this fault."""
    bench.load(0)
    with monkeypatch.context() as patch:
        patch.setattr("ftis_node.generate.vllm_weights.pack_heads", lambda model: None)
        module = bench.load(1)
    stale = bench.difference(1)
    ids, tokens = bench.generator._codec.render(PROMPTS[0]), (20, 30, 40)
    alarm = bench.generator.self_check(ids, tokens, teacher_forced(module, ids, tokens).tolist())
    if bench.tied:
        assert stale > 0.5
        assert alarm > bench.generator.weights_alarm
    else:
        assert max(stale, alarm) < 1e-4  # vLLM packs an untied head by itself


def test_cached_prompts_go_stale_without_a_reset(bench, monkeypatch):
    bench.load(0)
    assert bench.difference(0, LONG) < 1e-4
    with monkeypatch.context() as patch:
        patch.setattr(bench.generator._engine._llm, "reset_prefix_cache", lambda: True)
        bench.load(1)
    assert bench.difference(1, LONG) > 0.1
    bench.load(1)
    assert bench.difference(1, LONG) < 1e-4


def test_self_check_accepts_fresh_weights_and_alarms_on_others(bench):
    module = bench.load(1)
    ids, tokens = bench.generator._codec.render(PROMPTS[1]), (20, 30, 40, 50)
    assert bench.generator.self_check(ids, tokens, teacher_forced(module, ids, tokens).tolist()) < 1e-4
    other = teacher_forced(bench.modules[0], ids, tokens).tolist()
    assert bench.generator.self_check(ids, tokens, other) > bench.generator.weights_alarm


def test_importance_ratio_of_equal_weights_is_one(bench):
    module = bench.load(0)
    groups = bench.generator.generate(PROMPTS, group_size=16, seed=3)
    gaps = [
        teacher_forced(module, g.prompt_ids, s.token_ids) - torch.tensor(s.logprobs) for g in groups for s in g.samples
    ]
    assert abs(torch.cat(gaps).exp().mean().item() - 1) < 0.05


def test_frequencies_are_the_models_probabilities_whatever_its_generation_config_says(bench):
    module = bench.load(0)
    groups = bench.generator.generate([ask("3 *", max_tokens=1)] * 40, group_size=64, seed=4)
    tokens = torch.tensor([s.token_ids[0] for g in groups for s in g.samples])
    with torch.no_grad():
        exact = module(input_ids=torch.tensor([groups[0].prompt_ids])).logits[0, -1].float().softmax(-1)
    seen = torch.bincount(tokens, minlength=len(exact)) / len(tokens)
    assert (seen - exact).abs().sum() / 2 < 0.1  # about .04 for honest sampling; top_k = 3 gives .5 and more
    assert (exact > 0.005).sum() > 10


def test_seed_repeats_and_company_does_not_matter(bench):
    bench.load(0)
    together = bench.generator.generate(PROMPTS, group_size=3, seed=5)
    alone = tuple(bench.generator.generate([p], group_size=3, seed=5)[0] for p in PROMPTS)
    assert [[s.text for s in g.samples] for g in together] == [[s.text for s in g.samples] for g in alone]
    assert len({s.text for s in together[0].samples}) > 1
    repeated = bench.generator.generate([PROMPTS[0]] * 2, group_size=3, seed=5)
    assert repeated[0].samples != repeated[1].samples


def test_greedy_takes_the_best_token(bench):
    module = bench.load(0)
    group = bench.generator.generate(PROMPTS[:1], group_size=2, greedy=True)[0]
    assert group.samples[0] == group.samples[1]
    with torch.no_grad():
        logits = module(input_ids=torch.tensor([group.prompt_ids + group.samples[0].token_ids])).logits[0]
    assert tuple(logits[len(group.prompt_ids) - 1 : -1].argmax(-1).tolist()) == group.samples[0].token_ids
    assert worst_difference(module, (group,)) < 1e-4


def test_every_finish_happens_and_is_kept_apart(bench):
    bench.load(0)
    eos_ids = bench.generator._codec.eos_ids
    prompts = [ask("go", max_tokens=40), ask("go", max_tokens=40, stop=r".*[0-9a-f]")]
    open_end, ruled = bench.generator.generate(prompts, group_size=64, seed=1)
    assert {s.finish for s in open_end.samples} == {Finish.STOP, Finish.LENGTH}
    assert {s.finish for s in ruled.samples} >= {Finish.STOP, Finish.RULE}
    for sample in (*open_end.samples, *ruled.samples):
        assert (sample.token_ids[-1] in eos_ids) == (sample.finish is Finish.STOP)
        assert eos_ids.isdisjoint(sample.token_ids[:-1])


def test_a_prompt_longer_than_the_context_is_refused(bench):
    with pytest.raises(UsageError, match="512 tokens of"):
        bench.generator.generate([ask("y" * 505)], group_size=2)


@pytest.mark.parametrize("fault", ["missing", "torn"])
def test_a_file_that_is_not_whole_changes_nothing(fault, bench, tmp_path):
    bench.load(0)
    if fault == "torn":
        (tmp_path / "new.safetensors").write_bytes((bench.paths[1] / "model.safetensors").read_bytes()[:-1000])
    with pytest.raises(UsageError, match="no usable weights"):
        bench.generator.load_weights(tmp_path / "new.safetensors", 9)
    assert bench.generator.policy_version == 0
    assert bench.difference(0) < 1e-4


@pytest.fixture(scope="module")
def spare(tmp_path_factory) -> Iterator[VllmGenerator]:
    """An engine that tests may break. It lives beside the one of `bench`."""
    path = write_checkpoint(tmp_path_factory.mktemp("spare"), tied=True, seed=3)
    with VllmGenerator(VllmSettings(path, CACHE, context=512), TextCodec.load(path)) as generator:
        yield generator


def test_two_engines_in_one_process_keep_apart(bench, spare):
    bench.load(1)
    spare.generate(PROMPTS, group_size=4, seed=1)
    assert bench.difference(1) < 1e-4


@pytest.mark.parametrize("fault", ["missing", "strange"])
def test_a_file_of_another_shape_makes_the_engine_wait_for_a_right_one(fault, tmp_path, checkpoint, codec, module):
    file = tmp_path / "weights.safetensors"
    tensors = load_file(checkpoint / "model.safetensors")
    if fault == "missing":
        del tensors["model.layers.1.mlp.down_proj.weight"]
    if fault == "strange":
        tensors["model.layers.7.mlp.down_proj.weight"] = tensors["model.layers.1.mlp.down_proj.weight"].clone()
    save_file(tensors, file)
    with VllmGenerator(VllmSettings(checkpoint, CACHE, context=512), codec) as generator:
        with pytest.raises(EngineError, match="did not take"):
            generator.load_weights(file, 3)
        with pytest.raises(EngineError, match="partly replaced"):
            generator.generate(PROMPTS, group_size=2)
        generator.load_weights(checkpoint / "model.safetensors", 4)
        assert worst_difference(module, generator.generate(PROMPTS, group_size=4, seed=1)) < 1e-4
    generator.close()
    with pytest.raises(EngineError, match="closed"):
        generator.generate(PROMPTS, group_size=2)


def test_a_start_leaves_the_process_as_it_was(checkpoint, codec, tmp_path):
    state = torch.get_rng_state(), random.getstate(), torch.get_num_threads(), torch.set_num_threads
    preload = os.environ.get("LD_PRELOAD")
    VllmGenerator(VllmSettings(checkpoint, CACHE, context=512), codec).close()
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (random.getstate(), torch.get_num_threads(), torch.set_num_threads) == state[1:]
    assert os.environ.get("LD_PRELOAD") == preload


def test_a_model_that_cannot_be_served_is_named_at_the_start(tmp_path):
    path = write_checkpoint(tmp_path / "model", tied=True, seed=1, hidden=64)
    with pytest.raises(EngineError, match="cannot serve") as caught:
        VllmGenerator(VllmSettings(path, CACHE, context=512), TextCodec.load(path))
    assert "attention heads" in caught.value.hint


def test_bfloat16_is_close_and_not_alarming(tmp_path, checkpoint, codec, module):
    settings = VllmSettings(checkpoint, CACHE, dtype="bfloat16", context=512)
    with VllmGenerator(settings, codec) as generator:
        assert 1e-5 < worst_difference(module, generator.generate(PROMPTS, group_size=4, seed=1)) < 1
        ids, tokens = codec.render(PROMPTS[1]), (20, 30, 40, 50)
        learner = teacher_forced(module, ids, tokens).tolist()
        assert generator.self_check(ids, tokens, learner) < generator.weights_alarm
