"""A batch that is split into several optimiser steps, or gone through several times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from ftis_node.policy.ftis import FtisInput, FtisSettings, ftis_loss
from ftis_node.policy.model import Policy, load_policy
from ftis_node.policy.update import Updater, UpdateSettings
from ftis_node.records import JudgedGroup, Origin, TrainGroup
from ftis_protocol.rollout import Evidence

ROWS = ((50, 51, 2), (60, 2), (70, 71, 72, 2), (80, 2))
MIXED = (1.0, 0.0, 1.0, 0.0)
RATE = 2e-3

MakeGroup = Callable[..., TrainGroup]


def snapshot(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.trainable_parameters.values()])


def batch(policy: Policy, make_group: MakeGroup) -> list[JudgedGroup]:
    """Two own and three foreign groups; the sampler of the own ones lies close, so that nothing is filtered."""
    rows = [tuple((t + 3 * k) if t > 2 else t for t in row) for k in range(5) for row in ROWS]
    made: list[JudgedGroup] = []
    for k in range(5):
        texts = rows[4 * k : 4 * k + 4]
        found, mask = policy.logprobs((40, 41, 42, 43, 44), texts)
        sampler = [[x + 0.01 for x in line[kept].tolist()] for line, kept in zip(found.detach(), mask, strict=True)]
        origin = Origin.OWN if k < 2 else Origin.FOREIGN
        group = make_group(texts, MIXED, origin=origin, sampler=sampler, digest=b"%d" % k)
        start = None if origin is Origin.OWN else Updater(policy).score([group])[0].start_logprobs
        made.append(JudgedGroup(group, start, rescue_gate=9.0 if k == 4 else None))
    return made


def straightforward(policy: Policy, judged: Sequence[JudgedGroup], drawn: int, parts: int, epochs: int) -> None:
    """The same steps without any cut or short cut: one group after the other, R against the first log-probs."""
    optimizer = torch.optim.AdamW(policy.module.parameters(), lr=RATE, weight_decay=0.0)

    def logprobs(group: TrainGroup) -> tuple[torch.Tensor, torch.Tensor]:
        return policy.logprobs(group.prompt_ids, [c.token_ids for c in group.completions])

    start = [logprobs(item.group)[0].detach() for item in judged]
    for _ in range(epochs):
        for first in range(parts):
            optimizer.zero_grad()
            for item, before in list(zip(judged, start, strict=True))[first::parts]:
                group = item.group
                now, mask = logprobs(group)
                own = group.origin is Origin.OWN
                known = [torch.tensor(c.behaviour_logprobs or (0.0,) * len(c.token_ids)) for c in group.completions]
                given = FtisInput(
                    now, before, mask, group.rewards, (False,) * 4, Evidence.NONE, own,
                    behaviour_logprobs=torch.nn.utils.rnn.pad_sequence(known, batch_first=True) if own else None,
                    rescue_gate=item.rescue_gate,
                )  # fmt: skip
                (ftis_loss(given).loss / (drawn / parts)).backward()
            torch.nn.utils.clip_grad_norm_(policy.module.parameters(), 1.0)
            optimizer.step()


@pytest.mark.parametrize(("parts", "epochs"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_equals_the_straightforward_loop(tiny_dir: Path, make_group: MakeGroup, parts: int, epochs: int) -> None:
    mine, plain = (load_policy(tiny_dir, device="cpu", compute_dtype="float32") for _ in range(2))
    judged = batch(mine, make_group)
    settings = UpdateSettings(learning_rate=RATE, optimiser_steps=parts, epochs=epochs, micro_tokens=40)
    report = Updater(mine, settings).update(judged, drawn=6)
    straightforward(plain, judged, 6, parts, epochs)
    assert (report.steps, mine.version) == (parts * epochs, parts * epochs)
    moved = (snapshot(plain) - snapshot(load_policy(tiny_dir, device="cpu", compute_dtype="float32"))).abs().max()
    assert moved > 1e-3
    assert torch.allclose(snapshot(mine), snapshot(plain), atol=2e-5)


def test_one_step_scores_nothing_beforehand(
    policy: Policy, make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = batch(policy, make_group)
    calls: list[int] = []
    monkeypatch.setattr(Updater, "score", lambda self, groups: calls.append(len(groups)) or ())
    assert Updater(policy).update(judged, 5).steps == 1
    assert calls == []


def test_several_score_own_groups_once_and_only_those_with_a_signal(
    policy: Policy, make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = [*batch(policy, make_group), JudgedGroup(make_group(ROWS, (0.0,) * 4, digest=b"dull"))]
    scored: list[bytes] = []
    original = Updater.score
    monkeypatch.setattr(
        Updater, "score", lambda self, groups: scored.extend(g.digest for g in groups) or original(self, groups)
    )
    assert Updater(policy, UpdateSettings(optimiser_steps=2, epochs=2)).update(judged, 6).steps == 4
    assert scored == [b"0", b"1"]


def test_what_is_reported(policy: Policy, make_group: MakeGroup) -> None:
    settings = UpdateSettings(learning_rate=RATE, optimiser_steps=2, epochs=3)
    report = Updater(policy, settings).update(batch(policy, make_group), drawn=5)
    assert (report.steps, report.skipped, report.policy_version) == (6, 0, 6)
    assert report.used_digests == {b"0", b"1", b"2", b"3", b"4"}
    assert [o.group.digest for o in report.outcomes] == [b"0", b"1", b"2", b"3", b"4"], "each once, own ones first"
    own, foreign = report.metrics(Origin.OWN), report.metrics(Origin.FOREIGN)
    assert (own.members, foreign.members, foreign.rescued) == (8, 12, 2)
    assert own.ratios_clipped > 0, "the policy has left the range of the clip by the last pass"
    assert math.isfinite(report.gradient_norm)
    # weights and filter belong to the policy that took the batch up: pi_start / mu = exp(-0.01) for every own token
    assert own.mean_weight == pytest.approx(math.exp(-0.01), rel=1e-4)
    assert own.mismatch == pytest.approx(0.01, abs=1e-4)


def test_one_bad_step_does_not_cost_the_others(policy: Policy, make_group: MakeGroup) -> None:
    good = JudgedGroup(make_group(ROWS, MIXED, digest=b"good"))
    bad = make_group(ROWS, MIXED, origin=Origin.FOREIGN, digest=b"bad")
    nan = JudgedGroup(bad, tuple((math.nan,) * len(row) for row in ROWS))
    report = Updater(policy, UpdateSettings(optimiser_steps=2)).update([good, nan], 2)
    assert (report.steps, report.skipped, report.stepped, report.finite) == (1, 1, True, False)
    assert report.used_digests == {b"good"}
    assert math.isfinite(report.loss)
    assert snapshot(policy).isfinite().all()


def test_a_part_without_weight_takes_no_step(policy: Policy, make_group: MakeGroup) -> None:
    updater = Updater(policy, UpdateSettings(learning_rate=RATE, optimiser_steps=2))
    dull = JudgedGroup(make_group(ROWS, (1.0,) * 4, digest=b"dull"))
    report = updater.update([JudgedGroup(make_group(ROWS, MIXED)), dull], 2)
    assert (report.steps, report.skipped) == (1, 0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_more_steps_than_groups(policy: Policy, make_group: MakeGroup, count: int) -> None:
    judged = [JudgedGroup(make_group(ROWS, MIXED, digest=b"%d" % k)) for k in range(count)]
    report = Updater(policy, UpdateSettings(optimiser_steps=8, epochs=2)).update(judged, drawn=count)
    assert (report.steps, report.skipped) == (2 * count, 0)


@pytest.mark.parametrize("estimator", ["ftis", "tis", "f-nois", "nois", "vis", "f-vis"])
@pytest.mark.parametrize("evidence", list(Evidence))
def test_every_estimator_steps(policy: Policy, make_group: MakeGroup, estimator: str, evidence: Evidence) -> None:
    group = make_group(ROWS, MIXED, origin=Origin.FOREIGN, evidence=evidence)
    item = JudgedGroup(group, Updater(policy).score([group])[0].start_logprobs, 50.0, 1.0)
    loss = FtisSettings(estimator=estimator, negatives="surprise")  # type: ignore[arg-type]
    report = Updater(policy, UpdateSettings(optimiser_steps=2, epochs=2, ftis=loss)).update([item], 1)
    assert report.steps == 2
    assert snapshot(policy).isfinite().all()


class TestRescue:
    def test_a_group_without_a_wrong_answer_makes_its_near_texts_likelier(
        self, policy: Policy, make_group: MakeGroup
    ) -> None:
        group = make_group(ROWS, (1.0,) * 4, origin=Origin.FOREIGN)
        (scored,) = Updater(policy).score([group])
        costs = [scored.surprise(m) for m in range(4)]
        gate = sorted(costs)[1] + 1e-4  # two of the four are near enough
        report = Updater(policy, UpdateSettings(learning_rate=RATE)).update(
            [JudgedGroup(group, scored.start_logprobs, rescue_gate=gate)], 1
        )
        metrics = report.metrics(Origin.FOREIGN)
        assert (report.steps, metrics.rescued, metrics.used) == (1, 2, 2)
        assert metrics.mean_weight == 1.0
        assert report.tokens == len(group.prompt_ids) + sum(
            len(row) for row, cost in zip(ROWS, costs, strict=True) if cost <= gate
        )
        (after,) = Updater(policy).score([group])
        assert all(after.surprise(m) < cost for m, cost in enumerate(costs) if cost <= gate)

    def test_beyond_the_gate_nothing_moves(self, policy: Policy, make_group: MakeGroup) -> None:
        group = make_group(ROWS, MIXED, origin=Origin.FOREIGN)
        (scored,) = Updater(policy).score([group])
        before = snapshot(policy)
        report = Updater(policy).update([JudgedGroup(group, scored.start_logprobs, rescue_gate=0.01)], 1)
        assert (report.steps, report.used_digests) == (0, frozenset())
        assert torch.equal(snapshot(policy), before)
