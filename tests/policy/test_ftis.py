"""The F-TIS loss against numbers worked by hand; every expected value is derived in a comment, never by the code."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
import torch
from ftis_cases import gradient, group, rows, token_group

from ftis_node.policy.ftis import (
    FtisInput,
    FtisMetrics,
    FtisSettings,
    ftis_loss,
    group_advantages,
    importance_weights,
)
from ftis_protocol.rollout import Evidence

PLAIN = FtisSettings()
BY_SURPRISE = FtisSettings(negatives="surprise")


class TestAdvantages:
    def test_one_right_of_four(self) -> None:
        # mean 1/4, population variance 3/16, std 0.4330127; (3/4) / std = sqrt 3, (-1/4) / std = -1 / sqrt 3
        assert group_advantages((1, 0, 0, 0), PLAIN) == pytest.approx((1.7320508, *[-0.5773503] * 3))

    @pytest.mark.parametrize(
        "rewards",
        [
            (0, 0, 0),  # all wrong
            (1, 1, 1),  # all right
            (1.0, 1.0 - 1e-9, 1.0 + 1e-9),  # all right up to float noise
            (0.1, 0.3, 0.0),  # a shaped reward on an all-wrong group
            (1.0, 1.2, 1.0),  # a shaped reward on an all-right group
        ],
    )
    def test_no_spread_in_the_outcome_is_no_signal(self, rewards: tuple[float, ...]) -> None:
        assert group_advantages(rewards, PLAIN) == (0.0, 0.0, 0.0)

    def test_shaped_rewards_have_a_floor_under_the_spread(self) -> None:
        # right 1.0, wrong 0.5: mean 0.75, std 0.25 + 0.0001, so (0.25) / 0.2501
        assert group_advantages((1.0, 0.5), PLAIN) == pytest.approx((0.99960016, -0.99960016))

    def test_foreign_advantages_are_capped_and_own_are_not(self) -> None:
        # 1 right of 12: mean 1/12, std sqrt(11)/12, so the right one has A = 11 / sqrt 11 = 3.3166248
        rewards = (1.0,) + (0.0,) * 11
        start = [[0.5]] * 12
        foreign = token_group(start, start, rewards)
        assert ftis_loss(foreign).metrics.advantages[0] == 3.0
        own = replace(foreign, own=True)
        assert ftis_loss(own).metrics.advantages[0] == pytest.approx(3.3166248)
        paper = replace(foreign, settings=FtisSettings.paper())
        assert ftis_loss(paper).metrics.advantages[0] == pytest.approx(3.3166248)


class TestTokenEvidence:
    # Two members, rewards 1 and 0, so A = +1 and -1. Member 1 has two tokens, member 2 has one.
    START = ([0.5, 0.9], [0.2])
    # Ratios: 0.5 / 0.125 = 4, cut at 2; 0.9 / 0.9 = 1; 0.2 / 0.2 = 1.
    SAMPLER = ([0.125, 0.9], [0.2])

    def test_weights(self) -> None:
        weights, capped = importance_weights(token_group([*self.START], [*self.SAMPLER], (1.0, 0.0)))
        assert weights.tolist() == [pytest.approx([2.0, 1.0]), pytest.approx([1.0, 0.0])]
        assert capped.tolist() == [[True, False], [False, False]]

    @pytest.mark.parametrize("own", [True, False])
    def test_loss_and_gradient(self, own: bool) -> None:
        given = token_group([*self.START], [*self.SAMPLER], (1.0, 0.0), own=own)
        # J = 1/2 * ((2 + 1) / 2 * (+1) + 1 * (-1)) = 0.25
        assert ftis_loss(given).loss.item() == pytest.approx(-0.25)
        # dJ/dlog pi = w A / (|a| G): 2/4, 1/4 and -1/2; the loss is -J; padding gets nothing
        assert gradient(given) == [pytest.approx([-0.5, -0.25]), pytest.approx([0.5, 0.0])]

    def test_metrics(self) -> None:
        metrics = ftis_loss(token_group([*self.START], [*self.SAMPLER], (1.0, 0.0))).metrics
        assert (metrics.groups, metrics.members, metrics.used, metrics.filtered, metrics.tokens) == (1, 2, 2, 0, 3)
        assert metrics.mean_weight == pytest.approx(4 / 3)
        assert metrics.weights_capped_ratio == pytest.approx(1 / 3)
        assert metrics.effective_sample_ratio == pytest.approx(16 / 6 / 3)  # (2+1+1)^2 / (4+1+1) tokens, of 3
        assert metrics.mismatch == pytest.approx(log(0.125 / 0.5) / 3)  # only the first token differs
        assert (metrics + metrics).mean_weight == pytest.approx(4 / 3)

    def test_importance_weight_carries_no_gradient(self) -> None:
        # w = 0.25 / 0.5 below the cap: with w attached the gradient would be twice 0.5 * 1 / (1 * 2)
        given = token_group([[0.25], [0.5]], [[0.5], [0.5]], (1.0, 0.0))
        assert gradient(given)[0] == pytest.approx([-0.25])


class TestFilter:
    @pytest.mark.parametrize(("nats", "kept"), [(0.24, True), (0.26, False)])
    @pytest.mark.parametrize("own", [True, False])
    def test_mean_threshold(self, nats: float, kept: bool, own: bool) -> None:
        # The wrong member's two tokens cost `nats` each more here than at the sampler: D / |a| = nats.
        wrong = [0.5 * exp(-nats), 0.9 * exp(-nats)]
        given = token_group([[0.5], wrong], [[0.5], [0.5, 0.9]], (1.0, 0.0), own=own)
        metrics = ftis_loss(given).metrics
        assert metrics.advantages == ((1.0, -1.0) if kept else (1.0, 0.0))
        assert (metrics.used, metrics.filtered) == ((2, 0) if kept else (1, 1))
        # The right member still counts 1/G with G = 2: loss -1/2, and +1/2 exp(-nats) from the wrong one when kept.
        assert ftis_loss(given).loss.item() == pytest.approx(-0.5 + (0.5 * exp(-nats) if kept else 0.0))

    @pytest.mark.parametrize(("nats", "kept"), [(24.9, True), (25.1, False)])
    def test_paper_thresholds_the_sum(self, nats: float, kept: bool) -> None:
        wrong = [0.5 * exp(-nats)] * 2  # D = 2 * nats against 50
        given = token_group([[0.5], wrong], [[0.5], [0.5, 0.5]], (1.0, 0.0), settings=FtisSettings.paper())
        assert ftis_loss(given).metrics.used == (2 if kept else 1)

    def test_positives_stay_however_far(self) -> None:
        given = token_group([[1e-6], [0.5]], [[0.9], [0.5]], (1.0, 0.0))
        assert ftis_loss(given).metrics.advantages == (1.0, -1.0)


class TestTextOnly:
    START = ([0.5, 0.9], [0.2])

    def test_weight_is_the_own_probability_and_negatives_are_off(self) -> None:
        given = group([*self.START], (1.0, 0.0))
        # J = 1/2 * (0.5 + 0.9) / 2; gradient of the loss -w A / (|a| G)
        assert ftis_loss(given).loss.item() == pytest.approx(-0.35)
        assert gradient(given) == [pytest.approx([-0.125, -0.225]), [0.0, 0.0]]
        metrics = ftis_loss(given).metrics
        assert (metrics.used, metrics.filtered, metrics.negatives_off) == (1, 0, 1)
        assert metrics.mismatch is None

    @pytest.mark.parametrize(("bound", "kept"), [(1.62, True), (1.60, False)])
    def test_surprise_bound(self, bound: float, kept: bool) -> None:
        # own surprise of the wrong member: -ln 0.2 = 1.609 nats per token
        metrics = ftis_loss(group([*self.START], (1.0, 0.0), surprise_bound=bound, settings=BY_SURPRISE)).metrics
        assert (metrics.used, metrics.filtered, metrics.negatives_off) == ((2, 0, 0) if kept else (1, 1, 0))

    def test_no_weight_above_one(self) -> None:
        given = group([[1.0], [0.5]], (1.0, 0.0))
        noisy = replace(given, start_logprobs=given.start_logprobs + 0.01)
        assert importance_weights(noisy)[0].max().item() == 1.0

    def test_evidence_in_the_record_is_ignored_when_not_trusted(self) -> None:
        # The group counts as `none`; log-probs that are present all the same change nothing.
        plain, lied = (group([*self.START], (1.0, 0.0), logprob_sum=s) for s in (None, torch.tensor([-90.0, -90.0])))
        assert gradient(plain) == gradient(lied)


class TestSequenceEvidence:
    # S = ln 0.04 over 2 tokens is ln 0.2 a token: ratios 0.1 / 0.2 = 0.5 and 0.8 / 0.2 = 4, cut at 2.
    # The other one: 1 token, S = ln 0.5, ratio 0.4 / 0.5 = 0.8.
    def given(self, **more: object) -> FtisInput:
        sums = torch.tensor([log(0.04), log(0.5)])
        return group([[0.1, 0.8], [0.4]], (1.0, 0.0), evidence=Evidence.SEQUENCE, logprob_sum=sums, **more)

    def test_weights_loss_and_gradient(self) -> None:
        assert importance_weights(self.given())[0].tolist() == [pytest.approx([0.5, 2.0]), pytest.approx([0.8, 0.0])]
        # D of the wrong member: ln 0.5 - ln 0.4 = 0.2231 a token, below 0.25, so it stays.
        # J = 1/2 * ((0.5 + 2) / 2 - 0.8) = 0.225
        assert ftis_loss(self.given()).loss.item() == pytest.approx(-0.225)
        assert gradient(self.given()) == [pytest.approx([-0.125, -0.5]), pytest.approx([0.4, 0.0])]

    def test_filter_uses_the_receivers_token_count(self) -> None:
        tight = FtisSettings(filter_mean_nats=0.22)
        metrics = ftis_loss(self.given(settings=tight)).metrics
        assert (metrics.used, metrics.filtered) == (1, 1)
        # k1 over all members: (ln 0.04 - ln 0.08 + ln 0.5 - ln 0.4) nats over 3 tokens
        assert metrics.mismatch == pytest.approx((log(0.5) + log(1.25)) / 3)

    def test_own_groups_use_token_evidence_whatever_they_publish(self) -> None:
        own = replace(self.given(), own=True, behaviour_logprobs=rows([[0.1, 0.8], [0.4]])[0])
        assert importance_weights(own)[0].tolist() == [pytest.approx([1.0, 1.0]), pytest.approx([1.0, 0.0])]


class TestLengthCapped:
    def test_foreign_negatives_cut_at_the_cap_do_not_train(self) -> None:
        given = token_group([[0.5], [0.5]], [[0.5], [0.5]], (1.0, 0.0), length_capped=(True, True))
        metrics = ftis_loss(given).metrics
        assert metrics.advantages == (1.0, 0.0)  # a right answer trains, however it ended
        assert (metrics.length_capped, metrics.filtered) == (1, 0)
        assert ftis_loss(replace(given, own=True)).metrics.advantages == (1.0, -1.0)
        assert ftis_loss(replace(given, settings=FtisSettings.paper())).metrics.advantages == (1.0, -1.0)


class TestPpoClip:
    def moved(self, ratio: tuple[float, float]) -> FtisInput:
        """One-token members with A = +1 and -1 and w = 1; the policy has moved by `ratio` since the batch began."""
        given = token_group([[0.2], [0.2]], [[0.2], [0.2]], (1.0, 0.0))
        return replace(
            given, policy_logprobs=(given.start_logprobs + torch.tensor(ratio).log()[:, None]).requires_grad_()
        )

    def test_inside_the_range(self) -> None:
        # J = (1.1 - 0.9) / 2; gradient of -J is -R A / G
        given = self.moved((1.1, 0.9))
        assert ftis_loss(given).loss.item() == pytest.approx(-0.1)
        assert gradient(given) == [pytest.approx([-0.55]), pytest.approx([0.45])]

    def test_gains_are_held_at_the_range(self) -> None:
        # A right answer 1.5 times as likely counts 1.2; a wrong one half as likely counts 0.8: no gradient for either.
        given = self.moved((1.5, 0.5))
        assert ftis_loss(given).loss.item() == pytest.approx(-(1.2 - 0.8) / 2)
        assert gradient(given) == [[0.0], [0.0]]
        assert ftis_loss(given).metrics.ratios_clipped == 2

    def test_losses_are_not_held(self) -> None:
        # The pessimistic side of the minimum: R = 0.5 with A = +1 and R = 1.5 with A = -1 keep their gradient.
        given = self.moved((0.5, 1.5))
        assert gradient(given) == [pytest.approx([-0.25]), pytest.approx([0.75])]
        assert ftis_loss(given).metrics.ratios_clipped == 0


class TestZeroAndParts:
    def test_nothing_used_is_exactly_zero_without_a_graph(self) -> None:
        for rewards in ((0.0, 0.0), (1.0, 1.0)):
            result = ftis_loss(token_group([[0.5], [0.5]], [[0.5], [0.5]], rewards))
            assert result.loss.item() == 0.0
            assert not result.loss.requires_grad
            assert result.metrics.used == result.metrics.tokens == 0
            assert result.metrics.mean_weight is result.metrics.effective_sample_ratio is None
        assert FtisMetrics().mismatch is None

    def test_rows_without_weight_cannot_poison_the_gradient(self) -> None:
        given = token_group([[0.5], [0.1]], [[0.5], [0.9]], (1.0, 0.0))  # the wrong one is filtered
        policy = given.policy_logprobs.detach().clone()
        policy[1] = float("inf")
        given = replace(given, policy_logprobs=policy.requires_grad_())
        assert gradient(given) == [pytest.approx([-0.5]), [0.0]]

    def test_a_single_token_trains(self) -> None:
        assert gradient(group([[0.5], [0.5]], (1.0, 0.0)))[0] == pytest.approx([-0.25])

    def test_parts_add_up_to_the_group(self) -> None:
        start, mu = [[0.5, 0.9], [0.2], [0.3]], [[0.4, 0.9], [0.25], [0.2]]
        whole = token_group(start, mu, (1.0, 0.0, 0.0))
        parts = [
            token_group([start[i] for i in m], [mu[i] for i in m], (1.0, 0.0, 0.0), members=m) for m in ((0, 2), (1,))
        ]
        assert sum(ftis_loss(p).loss.item() for p in parts) == pytest.approx(ftis_loss(whole).loss.item())
        summed = ftis_loss(parts[0]).metrics + ftis_loss(parts[1]).metrics
        assert (summed.members, summed.used, summed.tokens) == (3, 3, 4)


def test_broken_promises_are_asserted() -> None:
    with pytest.raises(AssertionError, match="token evidence"):
        group([[0.5]], (1.0,), own=True)
    with pytest.raises(AssertionError, match="sequence evidence"):
        group([[0.5]], (1.0,), evidence=Evidence.SEQUENCE)
    with pytest.raises(AssertionError, match="one row per member"):
        group([[0.5]], (1.0, 0.0))
