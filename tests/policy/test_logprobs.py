"""Log-probs of completions: every short cut against whole rows through the whole model, values and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ftis_node.policy.logprobs import REFERENCE_PLAN, ForwardPlan, completion_logprobs, group_logprobs
from ftis_node.policy.model import Policy, load_policy
from ftis_node.policy.plan import choose_plan

PROMPT = (40, 41, 42, 43, 44)
ROWS = ((50, 51, 52, 2), (60,), (50, 51, 52, 2), (70, 71))
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": 0,
}
FASTEST = ForwardPlan(shared_prefix=True, plain_head=True)
PLANS = [FASTEST, ForwardPlan(shared_prefix=False, plain_head=True)]


def gradients(policy: Policy, plan: ForwardPlan, rows: Sequence[Sequence[int]] = ROWS, **options: int) -> torch.Tensor:
    """All gradients of a loss in which every token has a weight of its own, as one vector."""
    logprobs, _ = completion_logprobs(policy.module, PROMPT, rows, plan=plan, **options)
    weights = torch.linspace(0.5, 2.0, logprobs.numel()).reshape(logprobs.shape)
    parts = torch.autograd.grad((logprobs * weights).sum(), list(policy.trainable_parameters.values()))
    return torch.cat([part.flatten() for part in parts])


def by_hand(policy: Policy, row: Sequence[int]) -> list[float]:
    """One unpadded row through the model; the logits at position p are about token p + 1."""
    logits = policy.module(input_ids=torch.tensor([[*PROMPT, *row]])).logits[0].log_softmax(-1)
    return [logits[len(PROMPT) - 1 + i, token].item() for i, token in enumerate(row)]


@pytest.mark.parametrize("plan", [*PLANS, REFERENCE_PLAN])
def test_a_row_in_a_padded_group_equals_the_row_alone(policy: Policy, plan: ForwardPlan) -> None:
    logprobs, mask = completion_logprobs(policy.module, PROMPT, ROWS, plan=plan)
    assert logprobs.shape == mask.shape == (4, 4)
    assert logprobs.dtype == torch.float32
    assert mask.sum(-1).tolist() == [4, 1, 4, 2]
    for row, values, kept in zip(ROWS, logprobs, mask, strict=True):
        assert values[kept].tolist() == pytest.approx(by_hand(policy, row), abs=1e-5)
        assert not values[~kept].any()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("which", ["policy", "lora_policy"])
def test_short_cuts_have_the_reference_gradient(which: str, plan: ForwardPlan, request: pytest.FixtureRequest) -> None:
    policy: Policy = request.getfixturevalue(which)
    expected = gradients(policy, REFERENCE_PLAN)
    assert torch.allclose(gradients(policy, plan), expected, atol=1e-5, rtol=1e-5)
    assert expected.abs().max() > 0.1


@pytest.mark.parametrize("plan", [*PLANS, REFERENCE_PLAN])
def test_groups_in_one_pass_equal_groups_alone(policy: Policy, plan: ForwardPlan) -> None:
    # Prompts of 5, 1 and 8 tokens: the fillers behind the shorter ones must stay unseen, positions must go on.
    prompts = (PROMPT, (99,), tuple(range(100, 108)))
    groups = [
        (prompt, rows) for prompt, rows in zip(prompts, (ROWS, ((7, 8, 9), (7, 8)), ((50, 51, 52, 2),)), strict=True)
    ]
    parameters = list(policy.trainable_parameters.values())
    together, apart = group_logprobs(policy.module, groups, plan=plan), []
    for (prompt, rows), (logprobs, mask) in zip(groups, together, strict=True):
        expected, expected_mask = completion_logprobs(policy.module, prompt, rows)
        assert torch.equal(mask, expected_mask)
        assert torch.allclose(logprobs, expected, atol=1e-5)
        apart.append(expected)
    weighted = [
        sum((values * torch.linspace(0.5, 2.0, values.numel()).reshape(values.shape)).sum() for values in made)
        for made in ([values for values, _ in together], apart)
    ]
    found, expected_gradient = (torch.cat([g.flatten() for g in torch.autograd.grad(w, parameters)]) for w in weighted)
    assert torch.allclose(found, expected_gradient, atol=1e-5, rtol=1e-5)


def test_the_prompt_receives_gradient_through_the_shared_cache(untied_dir: Path) -> None:
    # Token 41 occurs in the prompt alone and the head has its own matrix, so the gradient of its embedding can only
    # come from the prompt's keys and values.
    policy = load_policy(untied_dir, device="cpu", compute_dtype="float32")
    embedding = policy.module.get_input_embeddings().weight
    found = []
    for plan in (FASTEST, REFERENCE_PLAN):
        logprobs, _ = completion_logprobs(policy.module, PROMPT, ((50, 51), (60, 61)), plan=plan)
        (gradient,) = torch.autograd.grad(logprobs[:, 1].sum(), embedding)
        found.append(gradient[41])
    assert torch.allclose(found[0], found[1], atol=1e-6)
    assert found[1].abs().max() > 1e-4


def test_blocks_of_the_head_change_nothing(policy: Policy) -> None:
    vocabulary = policy.module.get_output_embeddings().weight.shape[0]
    two_rows = 2 * 4 * vocabulary
    assert torch.allclose(gradients(policy, FASTEST, head_block_bytes=two_rows), gradients(policy, FASTEST), atol=1e-6)
    with torch.no_grad():
        cut, _ = completion_logprobs(policy.module, PROMPT, ROWS, plan=FASTEST, head_block_bytes=two_rows)
        whole, _ = completion_logprobs(policy.module, PROMPT, ROWS, plan=FASTEST)
    assert torch.allclose(cut, whole, atol=1e-6)


def test_one_token_completions_and_one_token_prompts(policy: Policy) -> None:
    for rows in (((7,),), ((7,), (8,)), ((7, 8), (9,))):
        found, _ = completion_logprobs(policy.module, (40,), rows, plan=FASTEST)
        expected, _ = completion_logprobs(policy.module, (40,), rows)
        assert torch.allclose(found, expected, atol=1e-5)


def test_padding_id_inside_a_completion_counts(policy: Policy) -> None:
    # Id 0 is both the filler and a real token here; a mask made from ids would drop it.
    logprobs, mask = completion_logprobs(policy.module, PROMPT, ((0, 2, 0), (9,)), plan=FASTEST)
    assert mask[0].tolist() == [True] * 3
    assert logprobs[0].tolist() == pytest.approx(by_hand(policy, (0, 2, 0)), abs=1e-5)


def test_bfloat16_compute_is_close_and_still_float32_outside(policy: Policy) -> None:
    exact, _ = completion_logprobs(policy.module, PROMPT, ROWS, plan=FASTEST)
    rough, _ = completion_logprobs(policy.module, PROMPT, ROWS, plan=FASTEST, autocast=torch.bfloat16)
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).abs().max() < 0.05
    rough.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in policy.trainable_parameters.values())


def test_broken_promises_are_asserted(policy: Policy) -> None:
    for prompt, rows in ((PROMPT, ((),)), (PROMPT, ()), ((), ((1,),))):
        with pytest.raises(AssertionError):
            completion_logprobs(policy.module, prompt, rows)


class TestPlan:
    def test_llama_takes_every_short_cut(self, policy: Policy, lora_policy: Policy, untied_dir: Path) -> None:
        assert policy.plan == lora_policy.plan == FASTEST
        assert load_policy(untied_dir, device="cpu").plan == FASTEST

    def test_qwen_too(self) -> None:
        assert choose_plan(Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval()) == FASTEST

    def test_a_sliding_window_is_not_shared(self) -> None:
        module = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4)).eval()
        assert choose_plan(module) == ForwardPlan(shared_prefix=False, plain_head=True)

    def test_soft_capped_logits_go_through_the_model(self) -> None:
        config = Gemma2Config(**SHAPE, final_logit_softcapping=0.5, attn_implementation="eager")
        module = Gemma2ForCausalLM(config).eval()
        assert choose_plan(module) == REFERENCE_PLAN
        logprobs, mask = completion_logprobs(module, (3, 4), ((5, 6), (7,)))
        logits = module(input_ids=torch.tensor([[3, 4, 7]])).logits[0, 1].log_softmax(-1)
        assert logprobs[1, 0].item() == pytest.approx(logits[7].item(), abs=1e-6)
        logprobs[mask].sum().backward()
