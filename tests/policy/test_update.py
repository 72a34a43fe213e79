"""One optimiser step: what moves the weights, what must not, and that the cut into passes changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from ftis_node.errors import TrainingStopped
from ftis_node.policy.ftis import FtisSettings
from ftis_node.policy.group_work import GroupWork
from ftis_node.policy.model import Policy, load_policy
from ftis_node.policy.passes import passes
from ftis_node.policy.update import Updater, UpdateSettings
from ftis_node.records import JudgedGroup, Origin, TrainGroup
from ftis_protocol.rollout import Evidence, Finish

ROWS = ((50, 51, 2), (60, 2), (70, 71, 72, 2), (80, 2))
MIXED = (1.0, 0.0, 1.0, 0.0)
BY_SURPRISE = UpdateSettings(ftis=FtisSettings(negatives="surprise"))
PROMPT_IDS = (40, 41, 42, 43, 44)

MakeGroup = Callable[..., TrainGroup]


def snapshot(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.trainable_parameters.values()])


def gradient_of(policy: Policy, judged: Sequence[JudgedGroup], drawn: int, **settings: object) -> torch.Tensor:
    """The accumulated gradient before clipping, without a step."""
    updater = Updater(policy, UpdateSettings(**settings))  # type: ignore[arg-type]
    updater._accumulate([GroupWork(item, updater.settings.ftis, policy.device) for item in judged], drawn)
    kept = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.trainable_parameters.values()]
    updater._optimizer.zero_grad()
    return torch.cat([g.flatten() for g in kept])


def scored(policy: Policy, group: TrainGroup, bound: float | None = None) -> JudgedGroup:
    (item,) = Updater(policy).score([group])
    return JudgedGroup(group, item.start_logprobs, bound)


class TestScore:
    def test_each_row_has_its_own_length_and_value(self, policy: Policy, make_group: MakeGroup) -> None:
        group = make_group(ROWS, MIXED)
        for settings in (UpdateSettings(), UpdateSettings(micro_tokens=1)):
            (item,) = Updater(policy, settings).score([group])
            assert [len(row) for row in item.start_logprobs] == [3, 2, 4, 2]
            for row, found in zip(ROWS, item.start_logprobs, strict=True):
                alone, _ = policy.logprobs(PROMPT_IDS, [row])
                assert found == pytest.approx(alone[0].tolist(), abs=1e-5)

    def test_it_leaves_no_gradient(self, policy: Policy, make_group: MakeGroup) -> None:
        Updater(policy).score([make_group(ROWS, MIXED)])
        assert all(p.grad is None for p in policy.trainable_parameters.values())


class TestStep:
    def test_the_right_answer_becomes_likelier_and_the_wrong_one_less(
        self, policy: Policy, make_group: MakeGroup
    ) -> None:
        group = make_group(ROWS, MIXED)
        before = [item.sum().item() for item in policy.logprobs(PROMPT_IDS, ROWS)[0]]
        report = Updater(policy, UpdateSettings(learning_rate=1e-3)).update([JudgedGroup(group)], drawn=1)
        after = [item.sum().item() for item in policy.logprobs(PROMPT_IDS, ROWS)[0]]
        assert report.stepped
        assert report.finite
        assert report.policy_version == policy.version == 1
        assert [a > b for a, b in zip(after, before, strict=True)] == [True, False, True, False]
        assert report.used_digests == {b"g"}
        assert report.tokens == len(PROMPT_IDS) + 11
        assert report.gradient_norm > 0
        assert report.seconds > 0

    def test_the_gradient_is_the_formula_by_hand(self, policy: Policy, make_group: MakeGroup) -> None:
        # Two one-token members, rewards 1 and 0 (A = +1, -1), sampler equal to the policy: w = 1, R = 1.
        # Loss = -(log pi(a) - log pi(b)) / 2 up to a constant, over 4 groups drawn.
        rows = ((50,), (60,))
        logprobs, _ = policy.logprobs(PROMPT_IDS, rows)
        expected = torch.autograd.grad(-(logprobs[0, 0] - logprobs[1, 0]) / 2 / 4, list(policy.module.parameters()))
        group = make_group(rows, (1.0, 0.0), sampler=logprobs.detach().tolist())
        found = gradient_of(policy, [JudgedGroup(group)], drawn=4)
        assert torch.allclose(found, torch.cat([g.flatten() for g in expected]), atol=1e-6)

    def test_warm_up(self, policy: Policy, make_group: MakeGroup) -> None:
        updater = Updater(policy, UpdateSettings(learning_rate=1e-3, warmup_steps=4))
        rates = [updater.update([JudgedGroup(make_group(ROWS, MIXED))], 1).learning_rate for _ in range(5)]
        assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])

    def test_the_gradient_is_clipped_before_the_step(self, policy: Policy, make_group: MakeGroup) -> None:
        updater = Updater(policy, UpdateSettings(max_gradient_norm=0.01))
        met: list[float] = []

        def look(*_: object) -> None:
            met.append(torch.cat([p.grad.flatten() for p in policy.module.parameters()]).norm().item())

        updater._optimizer.register_step_pre_hook(look)
        report = updater.update([JudgedGroup(make_group(ROWS, MIXED))], 1)
        assert report.gradient_norm > 0.02
        assert met == [pytest.approx(0.01, rel=1e-3)]

    def test_one_token_completions_train(self, policy: Policy, make_group: MakeGroup) -> None:
        report = Updater(policy).update([JudgedGroup(make_group(((50,), (60,)), (1.0, 0.0)))], 1)
        assert report.stepped

    def test_own_groups_first_and_each_side_counted(self, policy: Policy, make_group: MakeGroup) -> None:
        foreign = make_group(ROWS, MIXED, origin=Origin.FOREIGN, digest=b"foreign")
        own = make_group(ROWS, MIXED, digest=b"own")
        judged = scored(policy, foreign)
        report = Updater(policy).update([judged, JudgedGroup(own)], drawn=3)
        assert [o.group.digest for o in report.outcomes] == [b"own", b"foreign"]
        assert report.used_groups(Origin.OWN) == report.used_groups(Origin.FOREIGN) == 1
        assert report.metrics(Origin.OWN).used == 4
        theirs = report.metrics(Origin.FOREIGN)
        assert (theirs.used, theirs.negatives_off, theirs.tokens) == (2, 2, 7)
        # A text-only weight is the own probability.
        start = judged.start_logprobs
        assert start is not None
        weights = [math.exp(x) for m in (0, 2) for x in start[m]]
        assert theirs.mean_weight == pytest.approx(sum(weights) / 7, rel=1e-4)
        assert report.tokens == 2 * len(PROMPT_IDS) + 11 + 7, "members without a weight are not computed"
        assert report.outcomes[1].surprise == pytest.approx([-sum(row) / len(row) for row in start], abs=1e-5)

    def test_an_adapter_trains_and_the_base_stays(self, lora_policy: Policy, make_group: MakeGroup) -> None:
        base = {n: p.detach().clone() for n, p in lora_policy.module.named_parameters() if not p.requires_grad}
        before = snapshot(lora_policy)
        report = Updater(lora_policy, UpdateSettings(learning_rate=1e-3)).update(
            [JudgedGroup(make_group(ROWS, MIXED))], 1
        )
        assert report.stepped
        assert not torch.equal(snapshot(lora_policy), before)
        assert all(torch.equal(p, base[n]) for n, p in lora_policy.module.named_parameters() if n in base)

    def test_bfloat16_compute(self, tiny_dir: Path, make_group: MakeGroup) -> None:
        policy = load_policy(tiny_dir, device="cpu", compute_dtype="bfloat16")
        group = make_group(ROWS, MIXED, origin=Origin.FOREIGN)
        report = Updater(policy).update([scored(policy, group), JudgedGroup(make_group(ROWS, MIXED))], 2)
        assert report.stepped
        assert {p.dtype for p in policy.trainable_parameters.values()} == {torch.float32}


class TestNothingToLearn:
    @pytest.mark.parametrize("rewards", [(0.0,) * 4, (1.0,) * 4, (0.1, 0.2, 0.0, 0.3)])
    def test_outcomes_agree(self, policy: Policy, make_group: MakeGroup, rewards: tuple[float, ...]) -> None:
        before = snapshot(policy)
        report = Updater(policy).update([JudgedGroup(make_group(ROWS, rewards))], 1)
        assert (report.stepped, report.finite, report.loss, report.tokens) == (False, True, 0.0, 0)
        assert not report.used_digests
        assert report.metrics(Origin.OWN).members == 4
        assert policy.version == 0
        assert torch.equal(snapshot(policy), before)

    @pytest.mark.parametrize("drawn", [0, 3])
    def test_empty_batch(self, policy: Policy, drawn: int) -> None:
        report = Updater(policy).update([], drawn)
        assert (report.stepped, report.finite, report.loss, policy.version) == (False, True, 0.0, 0)

    def test_no_member_has_a_weight(self, policy: Policy, make_group: MakeGroup) -> None:
        # Negatives are off, and the right answers are impossible for this policy: exp(-200) is 0 in float32.
        group = make_group(ROWS, MIXED, origin=Origin.FOREIGN)
        before = snapshot(policy)
        judged = JudgedGroup(group, tuple((-200.0,) * len(row) for row in ROWS))
        report = Updater(policy).update([judged], 1)
        assert (report.stepped, report.finite, report.loss, report.tokens, policy.version) == (False, True, 0.0, 0, 0)
        assert not report.used_digests
        assert torch.equal(snapshot(policy), before)

    def test_a_step_of_nothing_does_not_move_adam(self, policy: Policy, make_group: MakeGroup) -> None:
        # With momentum left from a first step, an empty batch would still move the weights if a step were taken.
        updater = Updater(policy, UpdateSettings(learning_rate=1e-3))
        updater.update([JudgedGroup(make_group(ROWS, MIXED))], 1)
        before = snapshot(policy)
        assert not updater.update([JudgedGroup(make_group(ROWS, (0.0,) * 4))], 1).stepped
        assert torch.equal(snapshot(policy), before)
        assert policy.version == 1


class TestCuts:
    @pytest.mark.parametrize("which", ["own", "foreign"])
    def test_one_pass_of_32_equals_8_of_4(self, policy: Policy, make_group: MakeGroup, which: str) -> None:
        rows = [(50 + i, 51 + i % 3, *range(60, 60 + i % 4), 2) for i in range(32)]
        rewards = [float(i % 3 == 0) for i in range(32)]
        if which == "own":
            judged = JudgedGroup(make_group(rows, rewards))
        else:
            sampler = [[-5.5 - 0.01 * i] * len(row) for i, row in enumerate(rows)]
            group = make_group(rows, rewards, origin=Origin.FOREIGN, evidence=Evidence.TOKEN, sampler=sampler)
            judged = scored(policy, group)
        whole = gradient_of(policy, [judged], 2)
        longest = max(map(len, rows))
        cut = gradient_of(policy, [judged], 2, micro_tokens=len(PROMPT_IDS) + 4 * longest)
        alone = gradient_of(policy, [judged], 2, micro_tokens=1)
        assert whole.abs().max() > 1e-3
        assert torch.allclose(cut, whole, atol=1e-6)
        assert torch.allclose(alone, whole, atol=1e-6)

    def test_groups_together_equal_groups_one_by_one(self, policy: Policy, make_group: MakeGroup) -> None:
        judged = [
            JudgedGroup(make_group(ROWS, MIXED)),
            JudgedGroup(make_group(ROWS[1:], MIXED[1:], prompt_ids=(90, 91))),
            scored(policy, make_group(ROWS, MIXED, origin=Origin.FOREIGN, prompt_ids=tuple(range(90, 99)))),
        ]
        together = gradient_of(policy, judged, 3)
        apart = sum(gradient_of(policy, [item], 3) for item in judged)
        assert torch.allclose(together, apart, atol=1e-6)

    @pytest.mark.parametrize("shared", [True, False])
    def test_passes_hold_their_bound_and_everyone_once(self, make_group: MakeGroup, shared: bool) -> None:
        groups = [
            make_group([tuple(range(50, 50 + n)) for n in lengths], (0.0,) * len(lengths), prompt_ids=(40,) * prompt)
            for prompt, lengths in ((5, (9, 1, 5, 5, 2)), (3, (30,)), (2, (2, 2, 2)))
        ]
        made = list(passes([(g, range(len(g.completions))) for g in groups], 25, shared_prefix=shared))
        everyone = [(place, m) for p in made for place, members in p.parts for m in members]
        assert sorted(everyone) == [(0, m) for m in range(5)] + [(1, 0)] + [(2, m) for m in range(3)]
        for one in made:
            rows = [(groups[place], m) for place, members in one.parts for m in members]
            longest = max(len(g.prompt_ids) for g, _ in rows)
            prompts = len({id(g) for g, _ in rows}) if shared else len(rows)
            padded = prompts * longest + len(rows) * max(len(g.completions[m].token_ids) for g, m in rows)
            assert padded <= 25 or len(rows) == 1
        if shared:  # 5 + 2*9 = 23; 5 + 3*5 = 20; the long one alone; 2 + 3*2 = 8
            assert [p.parts for p in made] == [[(0, [0, 2])], [(0, [3, 4, 1])], [(1, [0])], [(2, [0, 1, 2])]]

    def test_filtered_members_still_count_in_the_mean(self, policy: Policy, make_group: MakeGroup) -> None:
        # Text-only: only the right answer of two trains, with half the weight that it would have alone.
        group = make_group(((50,), (60,)), (1.0, 0.0), origin=Origin.FOREIGN)
        logprobs, _ = policy.logprobs(PROMPT_IDS, ((50,),))
        weight = logprobs[0, 0].detach().exp()
        expected = torch.autograd.grad(-weight * logprobs[0, 0] / 2, list(policy.module.parameters()))
        found = gradient_of(policy, [scored(policy, group)], drawn=1)
        assert torch.allclose(found, torch.cat([g.flatten() for g in expected]), atol=1e-7)

    def test_surprise_bound_reaches_the_loss(self, policy: Policy, make_group: MakeGroup) -> None:
        group = make_group(ROWS, MIXED, origin=Origin.FOREIGN)
        report = Updater(policy, BY_SURPRISE).update([scored(policy, group, bound=50.0)], 1)
        assert report.metrics(Origin.FOREIGN).used == 4

    def test_length_capped_foreign_negatives_do_not_train(self, policy: Policy, make_group: MakeGroup) -> None:
        group = make_group(ROWS, MIXED, origin=Origin.FOREIGN, finish=Finish.LENGTH)
        report = Updater(policy, BY_SURPRISE).update([scored(policy, group, bound=50.0)], 1)
        assert (report.metrics(Origin.FOREIGN).used, report.metrics(Origin.FOREIGN).length_capped) == (2, 2)

    @pytest.mark.parametrize("evidence", list(Evidence))
    def test_every_tier_trains(self, policy: Policy, make_group: MakeGroup, evidence: Evidence) -> None:
        group = make_group(ROWS, MIXED, origin=Origin.FOREIGN, evidence=evidence)
        assert Updater(policy, UpdateSettings(ftis=FtisSettings.paper())).update([scored(policy, group)], 1).stepped


class TestNonFinite:
    def test_a_nan_gradient_leaves_the_weights(self, policy: Policy, make_group: MakeGroup) -> None:
        updater, before = Updater(policy), snapshot(policy)
        group = JudgedGroup(make_group(ROWS, MIXED))
        weight = next(iter(policy.trainable_parameters.values()))
        hook = weight.register_hook(lambda g: g * math.nan)
        report = updater.update([group], 1)
        assert (report.stepped, report.finite, policy.version) == (False, False, 0)
        assert math.isnan(report.gradient_norm)
        assert not report.used_digests
        assert torch.equal(snapshot(policy), before)
        hook.remove()
        assert updater.update([group], 1).stepped
        assert snapshot(policy).isfinite().all()

    def test_a_nan_loss_leaves_the_weights(self, policy: Policy, make_group: MakeGroup) -> None:
        bad = make_group(ROWS, MIXED, origin=Origin.FOREIGN)
        judged = JudgedGroup(bad, tuple((math.nan,) * len(row) for row in ROWS))
        before = snapshot(policy)
        report = Updater(policy).update([JudgedGroup(make_group(ROWS, MIXED)), judged], 2)
        assert (report.stepped, report.finite, policy.version) == (False, False, 0)
        assert torch.equal(snapshot(policy), before)
        assert all(p.grad is None for p in policy.trainable_parameters.values())

    def test_five_in_a_row_stop_the_run(self, policy: Policy, make_group: MakeGroup) -> None:
        updater, group = Updater(policy), JudgedGroup(make_group(ROWS, MIXED))
        weight = next(iter(policy.trainable_parameters.values()))
        poison = lambda g: g * math.inf  # noqa: E731
        hook = weight.register_hook(poison)
        for _ in range(4):
            updater.update([group], 1)
        hook.remove()
        updater.update([group], 1)  # a good step in between: the count begins again
        hook = weight.register_hook(poison)
        for _ in range(4):
            updater.update([group], 1)
        before = snapshot(policy)
        with pytest.raises(TrainingStopped, match="5 steps in a row") as caught:
            updater.update([group], 1)
        assert caught.value.hint
        assert torch.equal(snapshot(policy), before)
