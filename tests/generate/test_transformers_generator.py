from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from small_models import ask, small_llama, teacher_forced, worst_difference

from ftis_node.errors import EngineError, UsageError
from ftis_node.generate.base import cut_at_stop
from ftis_node.generate.transformers import TransformersGenerator, draw
from ftis_protocol.rollout import Finish

PROMPTS = [ask("3 * 4 ="), ask("a much longer question, 12 + 30 ="), ask("x"), ask("3 * 5 =")]


@pytest.fixture
def generator(module, codec):
    return TransformersGenerator(module, codec)


def test_logprobs_are_those_of_a_plain_forward_pass(generator, module):
    assert worst_difference(module, generator.generate(PROMPTS, group_size=6, seed=1)) < 1e-4


def test_importance_ratio_of_equal_weights_is_one(generator, module):
    groups = generator.generate(PROMPTS, group_size=16, seed=2)
    gaps = [
        teacher_forced(module, g.prompt_ids, s.token_ids) - torch.tensor(s.logprobs) for g in groups for s in g.samples
    ]
    assert abs(torch.cat(gaps).exp().mean().item() - 1) < 0.05


def test_groups_come_in_the_order_of_the_prompts(generator, codec):
    groups = generator.generate(PROMPTS, group_size=3, seed=1)
    assert [g.prompt for g in groups] == PROMPTS
    assert [g.prompt_ids for g in groups] == [codec.render(p) for p in PROMPTS]
    assert {len(g.samples) for g in groups} == {3}


def test_seed_repeats_and_company_does_not_matter(module, codec):
    together = TransformersGenerator(module, codec).generate(PROMPTS, group_size=4, seed=7)
    narrow = TransformersGenerator(module, codec, max_rows=4)
    alone = tuple(narrow.generate([p], group_size=4, seed=7)[0] for p in PROMPTS)
    chunked = narrow.generate(PROMPTS, group_size=4, seed=7)
    ids = [[s.token_ids for s in g.samples] for g in together]
    assert (
        ids == [[s.token_ids for s in g.samples] for g in alone] == [[s.token_ids for s in g.samples] for g in chunked]
    )
    for one, other in zip(together, alone, strict=True):
        for a, b in zip(one.samples, other.samples, strict=True):
            assert torch.allclose(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-4)
    assert ids != [[s.token_ids for s in g.samples] for g in narrow.generate(PROMPTS, group_size=4, seed=8)]


def test_a_repeated_prompt_gets_other_samples(generator):
    first, second = generator.generate([PROMPTS[0]] * 2, group_size=4, seed=1)
    assert [s.token_ids for s in first.samples] != [s.token_ids for s in second.samples]


def test_without_a_seed_torchs_own_state_decides(generator):
    torch.manual_seed(3)
    first, second = (generator.generate(PROMPTS[:1], group_size=4) for _ in range(2))
    torch.manual_seed(3)
    assert generator.generate(PROMPTS[:1], group_size=4) == first
    assert first != second


def test_greedy_takes_the_best_token_and_keeps_temperature_one_logprobs(generator, module):
    groups = generator.generate(PROMPTS, group_size=2, greedy=True)
    assert worst_difference(module, groups) < 1e-4
    group = groups[0]
    assert group.samples[0] == group.samples[1]
    with torch.no_grad():
        logits = module(input_ids=torch.tensor([group.prompt_ids + group.samples[0].token_ids])).logits[0]
    best = logits[len(group.prompt_ids) - 1 : -1].argmax(-1)
    assert tuple(best.tolist()) == group.samples[0].token_ids


def test_every_finish_happens_and_is_kept_apart(generator, codec):
    pattern = r".*[0-9a-f]"
    open_end = generator.generate([ask("go", max_tokens=40)], group_size=64, seed=1)[0]
    ruled = generator.generate([ask("go", max_tokens=40, stop=pattern)], group_size=64, seed=1)[0]
    assert {s.finish for s in open_end.samples} == {Finish.STOP, Finish.LENGTH}
    assert {s.finish for s in ruled.samples} >= {Finish.STOP, Finish.RULE}
    for sample in (*open_end.samples, *ruled.samples):
        assert (sample.token_ids[-1] in codec.eos_ids) == (sample.finish is Finish.STOP)
        assert codec.eos_ids.isdisjoint(sample.token_ids[:-1])
        assert len(sample.token_ids) == 40 or sample.finish is not Finish.LENGTH
    for whole, stopped in zip(open_end.samples, ruled.samples, strict=True):
        ended = whole.finish is Finish.STOP
        cut = cut_at_stop(whole.token_ids, whole.logprobs, codec, pattern, ended_by_eos=ended, capped=not ended)
        assert (cut.text, cut.token_ids, cut.finish) == (stopped.text, stopped.token_ids, stopped.finish)


class Letters:
    """Six ids, one of them the end; the prompt is always the single id 1."""

    eos_ids = frozenset({2})
    max_length = 64

    def render(self, prompt):
        return (1,)

    def decode(self, ids):
        return "".join("abcdef"[i] for i in ids if i != 2)


def test_frequencies_are_the_models_probabilities():
    module = small_llama(vocabulary=6, tied=False, seed=4, hidden=32, heads=2)
    group = TransformersGenerator(module, Letters()).generate([ask("", max_tokens=2)], group_size=6000, seed=1)[0]
    counts: dict[tuple[int, ...], int] = {}
    for sample in group.samples:
        counts[sample.token_ids] = counts.get(sample.token_ids, 0) + 1
    outcomes = [(2,), *((a, b) for a, b in itertools.product(range(6), repeat=2) if a != 2)]
    exact = {o: float(teacher_forced(module, (1,), o).sum().exp()) for o in outcomes}
    assert abs(sum(exact.values()) - 1) < 1e-4
    chi_square = sum((counts.get(o, 0) - 6000 * p) ** 2 / (6000 * p) for o, p in exact.items())
    assert chi_square < 60  # 30 degrees of freedom; 1 in 1,000 honest samplers is above 59.7


def test_draw_never_takes_an_impossible_token():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).repeat(3, 1)
    tokens, logprobs = draw(logits, torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64))
    assert tokens.tolist() == [1, 3, 3]
    assert torch.allclose(logprobs, torch.tensor(0.5).log())


def test_modes_come_back_and_no_gradient_is_left(generator, module):
    module.train()
    module.model.layers[0].eval()
    before = [part.training for part in module.modules()]
    generator.generate(PROMPTS[:1], group_size=2, seed=1)
    assert [part.training for part in module.modules()] == before
    module.eval()
    assert all(p.grad is None and not p.is_inference() for p in module.parameters())


def test_training_after_sampling_works_under_autocast(checkpoint, codec):
    from small_models import load_module

    module = load_module(checkpoint)
    generator = TransformersGenerator(module, codec, autocast=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        group = generator.generate(PROMPTS[:1], group_size=2, seed=1)[0]
        ids = torch.tensor([group.prompt_ids + group.samples[0].token_ids])
        module(input_ids=ids).logits.float().logsumexp(-1).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert worst_difference(module, (group,)) < 0.2


def test_weights_that_overflowed_are_an_engine_error(codec):
    module = small_llama(vocabulary=codec.vocabulary_size, tied=True, seed=1)
    torch.nn.init.constant_(module.model.norm.weight, torch.nan)
    with pytest.raises(EngineError, match="token 1 of"):
        TransformersGenerator(module, codec).generate(PROMPTS, group_size=2, seed=1)


def test_a_prompt_longer_than_the_context_is_refused(generator):
    with pytest.raises(UsageError, match="512 tokens of"):
        generator.generate([ask("y" * 505)], group_size=2)


def test_version_is_recorded(generator):
    generator.load_weights(Path("unused"), 12)
    assert generator.policy_version == 12
    assert generator.generate(PROMPTS[:1], group_size=2)[0].policy_version == 12
    assert generator.self_check((1,), (2, 3), (-1.0, -2.0)) == 0
    assert generator.weights_alarm is None


def test_an_adapter_is_part_of_the_policy(checkpoint, codec):
    peft = pytest.importorskip("peft")
    from small_models import load_module

    base = load_module(checkpoint)
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.5))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.train()
    groups = TransformersGenerator(adapted, codec).generate(PROMPTS, group_size=4, seed=1)
    adapted.eval()
    assert worst_difference(adapted, groups) < 1e-4
    with adapted.disable_adapter():
        assert worst_difference(adapted, groups) > 0.1
