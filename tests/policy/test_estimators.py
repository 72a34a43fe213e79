"""Every estimator, weight and rule for foreign text against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
import torch
from ftis_cases import gradient, group, rows, token_group

from ftis_node.policy.ftis import FtisInput, FtisSettings, ftis_loss, importance_weights
from ftis_protocol.rollout import Evidence

# Two members, rewards 1 and 0, so A = +1 and -1. The right one has two tokens, the wrong one has one.
START = ([0.5, 0.9], [0.2])
# Ratios to the sampler: 4 and 1; 0.4. The wrong answer costs ln 2.5 = 0.916 nats more here: beyond 0.25, below 50.
SAMPLER = ([0.125, 0.9], [0.5])
RIGHT_WRONG = (1.0, 0.0)


def with_tokens(**choices: object) -> FtisInput:
    settings = FtisSettings(**choices)  # type: ignore[arg-type]
    return token_group([*START], [*SAMPLER], RIGHT_WRONG, settings=settings)


def text_only(settings: FtisSettings, **more: object) -> FtisInput:
    return group([*START], RIGHT_WRONG, settings=settings, **more)


class TestTokenEvidence:
    # J = 1/2 ((w_1 + w_2) / 2 - w_3); the gradient of the loss is -w A / (|a| G)
    @pytest.mark.parametrize(
        ("estimator", "objective", "slopes"),
        [
            ("ftis", 0.75, ([-0.5, -0.25], 0.0)),  # weights 2 (cut), 1; the wrong one is filtered
            ("tis", 0.55, ([-0.5, -0.25], 0.2)),  # and with the wrong one at 0.4
            ("f-vis", 1.25, ([-1.0, -0.25], 0.0)),  # weights 4, 1
            ("vis", 1.05, ([-1.0, -0.25], 0.2)),
            ("f-nois", 0.5, ([-0.25, -0.25], 0.0)),  # weights 1, 1
            ("nois", 0.0, ([-0.25, -0.25], 0.5)),
        ],
    )
    @pytest.mark.parametrize("own", [True, False])
    def test_loss_and_gradient(
        self, estimator: str, objective: float, slopes: tuple[list[float], float], own: bool
    ) -> None:
        given = replace(with_tokens(estimator=estimator), own=own)
        assert ftis_loss(given).loss.item() == pytest.approx(-objective, abs=1e-6)
        assert gradient(given) == [pytest.approx(slopes[0]), pytest.approx([slopes[1], 0.0])]

    def test_one_number_per_completion(self) -> None:
        # S = ln 0.04 over two tokens: a ratio of 0.5 / 0.2 = 2.5 and 0.9 / 0.2 = 4.5; S = ln 0.5 for the wrong one
        given = group(
            [*START], RIGHT_WRONG, evidence=Evidence.SEQUENCE, logprob_sum=torch.tensor([log(0.04), log(0.5)])
        )
        for estimator, weights in (("vis", [2.5, 4.5]), ("f-tis", [2.0, 2.0]), ("nois", [1.0, 1.0])):
            name = "ftis" if estimator == "f-tis" else estimator
            chosen = replace(given, settings=FtisSettings(estimator=name))  # type: ignore[arg-type]
            assert importance_weights(chosen)[0][0].tolist() == pytest.approx(weights)

    def test_the_paper_constants(self) -> None:
        paper = FtisSettings.paper()
        assert (paper.estimator, paper.weight_cap, paper.filter_by, paper.filter_sum_nats) == ("ftis", 2.0, "sum", 50.0)
        assert (paper.clip_low, paper.clip_high) == (0.2, 0.2)
        assert paper.foreign_advantage_cap is None
        assert paper.foreign_capped_negatives
        assert FtisSettings.paper("f-vis").estimator == "f-vis"
        # the wrong one, 0.9 nats off, stays: J = 1/2 (1.5 - 0.4)
        assert ftis_loss(replace(with_tokens(), settings=paper)).loss.item() == pytest.approx(-0.55)


class TestTextOnly:
    @pytest.mark.parametrize(
        ("estimator", "objective"),
        [
            ("ftis", 0.35),  # 1/2 (0.5 + 0.9) / 2; nothing judges the wrong one
            ("f-vis", 0.35),  # without a sampler there is no ratio to leave uncut
            ("tis", 0.25),  # and 1/2 * 0.2 for the wrong one, which no filter takes out
            ("vis", 0.25),
            ("f-nois", 0.5),
            ("nois", 0.0),
        ],
    )
    def test_estimators(self, estimator: str, objective: float) -> None:
        given = text_only(FtisSettings(estimator=estimator))  # type: ignore[arg-type]
        assert ftis_loss(given).loss.item() == pytest.approx(-objective, abs=1e-6)

    @pytest.mark.parametrize(
        ("positives", "own_surprise", "weights"),
        [
            ("pi", log(4), [0.5, 0.9]),
            ("one", None, [1.0, 1.0]),
            ("shaped", None, [0.5 / 0.6, 0.9]),  # 0.9 / (0.9 + 0.1)
            ("tis", None, [0.5, 0.9]),  # nothing known of own text yet
            ("tis", log(2), [1.0, 1.8]),
            ("tis", log(4), [2.0, 2.0]),  # 2.0 and 3.6, cut at 2
        ],
    )
    def test_weights_of_right_answers(self, positives: str, own_surprise: float | None, weights: list[float]) -> None:
        chosen = FtisSettings(positives=positives, negatives="surprise")  # type: ignore[arg-type]
        given = text_only(chosen, own_surprise=own_surprise, surprise_bound=2.0)
        found, capped = importance_weights(given)
        assert found.tolist() == [pytest.approx(weights), pytest.approx([0.2, 0.0])], "wrong ones weigh pi"
        assert capped.sum() == (own_surprise == log(4) and positives == "tis")
        assert ftis_loss(given).loss.item() == pytest.approx(-(sum(weights) / 2 - 0.2) / 2)

    def test_they_are_for_text_alone(self) -> None:
        with_evidence = with_tokens(positives="one")
        assert importance_weights(with_evidence)[0][0].tolist() == pytest.approx([2.0, 1.0])

    @pytest.mark.parametrize("positives", ["pi", "tis", "one", "shaped"])
    def test_impossible_texts_weigh_nothing_or_one(self, positives: str) -> None:
        logprobs, mask = torch.tensor([[-2000.0], [-0.5]]), torch.tensor([[True], [True]])
        chosen = FtisSettings(positives=positives)  # type: ignore[arg-type]
        given = FtisInput(
            logprobs.clone().requires_grad_(), logprobs, mask, RIGHT_WRONG, (False, False), Evidence.NONE, False,
            own_surprise=1.0, settings=chosen,
        )  # fmt: skip
        result = ftis_loss(given)
        assert result.loss.isfinite()
        assert result.metrics.used == (positives == "one")


class TestNegatives:
    def test_off_is_off_for_every_estimator_and_tier(self) -> None:
        for estimator in ("ftis", "tis", "f-nois", "nois", "vis", "f-vis"):
            chosen = FtisSettings(estimator=estimator, negatives="off")  # type: ignore[arg-type]
            for given in (text_only(chosen, surprise_bound=9.0), with_tokens(estimator=estimator, negatives="off")):
                metrics = ftis_loss(given).metrics
                assert (metrics.used, metrics.filtered, metrics.negatives_off) == (1, 0, 1)

    def test_own_ones_are_not_concerned(self) -> None:
        own = replace(with_tokens(estimator="tis", negatives="off"), own=True)
        assert ftis_loss(own).metrics.used == 2

    @pytest.mark.parametrize(("bound", "used"), [(None, 1), (1.6, 1), (1.62, 2)])
    def test_surprise_needs_a_bound_above_the_text(self, bound: float | None, used: int) -> None:
        # own surprise of the wrong member: ln 5 = 1.609
        given = text_only(FtisSettings(negatives="surprise"), surprise_bound=bound)
        assert ftis_loss(given).metrics.used == used

    def test_exact_does_not_look_at_surprise(self) -> None:
        metrics = ftis_loss(text_only(FtisSettings(), surprise_bound=9.0)).metrics
        assert (metrics.used, metrics.negatives_off) == (1, 1)

    @pytest.mark.parametrize("negatives", ["exact", "surprise"])
    def test_evidence_brings_the_filter_itself(self, negatives: str) -> None:
        far = with_tokens(negatives=negatives)
        assert ftis_loss(far).metrics.filtered == 1
        near = replace(far, behaviour_logprobs=far.start_logprobs)
        assert ftis_loss(near).metrics.used == 2


class TestNoisTakesForeignAsOwn:
    def test_no_limit_on_foreign_groups(self) -> None:
        # 1 right of 12: A = 3.3166; the wrong ones were cut at the cap
        rewards = (1.0,) + (0.0,) * 11
        start = [[0.5]] * 12
        for estimator, first, used in (("nois", 3.3166248, 12), ("f-nois", 3.0, 1)):
            chosen = FtisSettings(estimator=estimator)  # type: ignore[arg-type]
            given = token_group(start, start, rewards, settings=chosen, length_capped=(True,) * 12)
            metrics = ftis_loss(given).metrics
            assert (metrics.advantages[0], metrics.used) == (pytest.approx(first), used)


class TestRescue:
    # Surprise: (0.693 + 0.105) / 2 = 0.399; 1.609; 0.693
    TEXTS = ([0.5, 0.9], [0.2], [0.5])

    def given(self, rewards: tuple[float, ...], gate: float = 1.0, **more: object) -> FtisInput:
        return group([*self.TEXTS], rewards, rescue_gate=gate, **more)

    def test_near_and_right_weighs_one(self) -> None:
        given = self.given((1.0, 1.0, 0.0))
        # J = 1/3 * (1 + 1) / 2; each of its two tokens -1 / (2 * 3)
        assert ftis_loss(given).loss.item() == pytest.approx(-1 / 3)
        assert gradient(given) == [pytest.approx([-1 / 6] * 2), [0.0, 0.0], [0.0, 0.0]]
        metrics = ftis_loss(given).metrics
        assert (metrics.used, metrics.rescued, metrics.filtered, metrics.advantages) == (1, 1, 1, (1.0, 0.0, 0.0))
        assert metrics.mean_weight == 1.0

    def test_groups_without_a_wrong_answer_train_too(self) -> None:
        metrics = ftis_loss(self.given((1.0, 1.0, 1.0))).metrics
        assert metrics.advantages == (1.0, 0.0, 1.0)

    def test_the_gate_is_the_only_measure(self) -> None:
        # ln 5 = 1.6094: at the gate it is in, above not; advantage, evidence and the end of the text do not matter
        for gate, used in ((1.6095, 2), (1.6093, 1)):
            assert ftis_loss(self.given((1.0, 1.0, 0.0), gate, length_capped=(True,) * 3)).metrics.used == used
        told = self.given(
            (1.0, 1.0, 0.0), 9.0, evidence=Evidence.TOKEN, behaviour_logprobs=rows([[0.01, 0.02], [0.9], [0.9]])[0]
        )
        assert importance_weights(told)[0].tolist() == [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]
        assert ftis_loss(told).metrics.advantages == (1.0, 1.0, 0.0)

    def test_spam_does_nothing(self) -> None:
        start = [[exp(-2.4)], [exp(-11.0)]]
        result = ftis_loss(group(start, (1.0, 1.0), rescue_gate=2.0))
        assert (result.loss.item(), result.loss.requires_grad, result.metrics.used) == (0.0, False, 0)
        assert result.metrics.filtered == 2

    def test_it_is_held_by_the_clip_over_several_steps(self) -> None:
        given = group([[0.2], [0.2]], (1.0, 1.0), rescue_gate=2.0)
        moved = given.start_logprobs + torch.tensor([[1.5], [1.1]]).log()
        given = replace(given, policy_logprobs=moved.requires_grad_())
        assert ftis_loss(given).loss.item() == pytest.approx(-(1.2 + 1.1) / 2)
        assert gradient(given) == [[0.0], pytest.approx([-0.55])]

    def test_parts_add_up(self) -> None:
        whole = ftis_loss(self.given((1.0, 1.0, 1.0), 9.0)).loss.item()
        parts = [
            ftis_loss(group([self.TEXTS[m]], (1.0, 1.0, 1.0), rescue_gate=9.0, members=(m,))).loss.item()
            for m in range(3)
        ]
        assert sum(parts) == pytest.approx(whole)

    def test_own_groups_cannot_rescue(self) -> None:
        with pytest.raises(AssertionError, match="foreign"):
            replace(with_tokens(), own=True, rescue_gate=1.0)
