"""The ablation itself: its plan, that finished runs are kept, that arms do what they say, and what it shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ftis_node.errors import UsageError
from ftis_node.lab import ablation_runs
from ftis_node.lab.ablation import NodeCurve
from ftis_node.lab.ablation_plan import AblationPlan, ModelTable, TaskTable, read_plan
from ftis_node.lab.ablation_plot import as_svg
from ftis_node.lab.ablation_report import as_document, as_text, rounds_csv, summarise, summary_csv
from ftis_node.lab.ablation_runs import ArmRun, Progress, run_all, run_path
from ftis_node.lab.arms import ARMS
from ftis_protocol.manifest import SwarmManifest

ROUNDS = 2


@pytest.fixture
def plan(letters: Callable[..., SwarmManifest], tiny_models: list[Path]) -> AblationPlan:
    """Two untaught strangers on the task of letters.py, a few rounds."""
    return AblationPlan(
        rounds=ROUNDS,
        last_rounds=2,
        own_groups=3,
        foreign_groups=3,
        group_size=4,
        held_out_items=4,
        seeds=(0,),
        arms=("alone", "f-tis-token"),
        task=TaskTable(name="letters", parameters={}),
        models=tuple(ModelTable(name=f"model-{n}", path=path) for n, path in enumerate(tiny_models)),
    )


def models(plan: AblationPlan) -> Mapping[str, Path]:
    return {model.name: model.path for model in plan.models if model.path is not None}


def run(plan: AblationPlan, out: Path) -> tuple[ArmRun, ...]:
    return run_all(plan, models(plan), out, lambda _: None)


def ignoring_time(runs: tuple[ArmRun, ...]) -> list[tuple[str, int, tuple[NodeCurve, ...]]]:
    return [(run.arm, run.seed, run.nodes) for run in runs]


@pytest.mark.parametrize("arm", list(ARMS))
def test_every_arm_runs(plan: AblationPlan, tmp_path: Path, arm: str) -> None:
    (done,) = run(plan.model_copy(update={"arms": (arm,)}), tmp_path)
    for curve in done.nodes:
        assert len(curve.sampled) == ROUNDS
        assert curve.held_out_items == 4
    exchanged = sum(curve.foreign_used for curve in done.nodes)
    assert (exchanged > 0) == (ARMS[arm].exchange == "vertical")


def test_equal_plans_give_equal_numbers_and_finished_runs_are_kept(plan: AblationPlan, tmp_path: Path) -> None:
    told: list[Progress] = []
    first = run_all(plan, models(plan), tmp_path / "one", told.append)
    assert [(now.done, now.total) for now in told] == [(n + 1, 2 * ROUNDS) for n in range(2 * ROUNDS)]
    again = run(plan, tmp_path / "two")
    assert ignoring_time(first) == ignoring_time(again)
    run_path(tmp_path / "one", "alone", 0).unlink()
    told.clear()
    resumed = run_all(plan, models(plan), tmp_path / "one", told.append)
    assert {now.arm for now in told} == {"alone"}
    assert sorted(ignoring_time(resumed)) == sorted(ignoring_time(first))


def test_an_interrupted_run_leaves_nothing_and_starts_over(plan: AblationPlan, tmp_path: Path) -> None:
    def interrupt(now: Progress) -> None:
        if now.arm == "f-tis-token":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(plan, models(plan), tmp_path, interrupt)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["alone-seed0.json"]
    told: list[Progress] = []
    assert len(run_all(plan, models(plan), tmp_path, told.append)) == 2
    assert [now.done for now in told] == list(range(1, ROUNDS + 1))


def test_runs_of_another_plan_are_not_mixed_in(plan: AblationPlan, tmp_path: Path) -> None:
    one = plan.model_copy(update={"arms": ("alone",)})
    run(one, tmp_path)
    run(one.model_copy(update={"last_rounds": 1}), tmp_path)  # only changes what is made of the numbers
    with pytest.raises(UsageError, match="other settings") as refused:
        run(one.model_copy(update={"learning_rate": 1e-3}), tmp_path)
    assert "--out" in refused.value.hint


def test_a_damaged_run_is_named(plan: AblationPlan, tmp_path: Path) -> None:
    path = run_path(tmp_path, "alone", 0)
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(UsageError, match="alone-seed0"):
        run(plan, tmp_path)


def curve(node: str, end: float, greedy: float) -> NodeCurve:
    return NodeCurve(node, 10, (0.2, 0.3, end, end), (0.5, greedy), 64, 7)


def made_up(monkeypatch: pytest.MonkeyPatch) -> tuple[AblationPlan, tuple[ArmRun, ...]]:
    plan = read_plan(None, arms=("alone", "nois"), seeds=(0, 1), rounds=4).model_copy(update={"last_rounds": 2})
    ends = {("alone", 0): 0.6, ("alone", 1): 0.7, ("nois", 0): 0.1, ("nois", 1): 0.2}
    runs = tuple(
        ArmRun(arm, seed, 1.0, (curve("undecided", end, 0.9), curve("columns", end / 2, 0.8)))
        for (arm, seed), end in ends.items()
    )
    return plan, runs


def test_the_table_tells_means_ranges_and_the_distance_from_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, runs = made_up(monkeypatch)
    rows = {(row.arm, row.node): row for row in summarise(plan, runs)}
    assert list(rows) == [("alone", "undecided"), ("alone", "columns"), ("nois", "undecided"), ("nois", "columns")]
    row = rows["nois", "undecided"]
    assert (row.start, row.seeds, row.greedy_start, row.greedy_end) == (0.2, 2, 0.5, 0.9)
    assert (row.end, row.end_low, row.end_high) == pytest.approx((0.15, 0.1, 0.2))
    assert row.against_alone == pytest.approx(-0.5)
    text = as_text(plan, runs, "a machine")
    assert "-0.500" in text
    assert "0.100-0.200" in text
    assert text.endswith("a machine")
    assert json.loads(json.dumps(as_document(plan, runs, "a machine")))["rows"][2]["end"] == pytest.approx(0.15)
    assert summary_csv(plan, runs).splitlines()[0].startswith("arm,node,parameters,seeds,start,end")
    assert len(rounds_csv(runs).splitlines()) == 1 + 2 * 2 * 2 * 4


def test_the_plot_has_a_line_and_a_band_for_every_arm_and_node(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, runs = made_up(monkeypatch)
    drawn = ElementTree.fromstring(as_svg(plan, runs))
    kinds = [part.tag.rpartition("}")[2] for part in drawn.iter()]
    assert (kinds.count("polyline"), kinds.count("polygon")) == (4, 4)


FILE = """
[ablation]
rounds = 7
seeds = [4]
arms = ["alone", "nois", "sum-of-8"]

[task]
name = "written-sums"
parameters = {digits = 2, brief = true}

[[model]]
name = "small"
style = "direct"

[[model]]
name = "large"
style = "columns"
hidden = 96
learning_rate = 1e-4

[arm.sum-of-8]
like = "f-tis-sequence"
filter_sum_nats = 8.0

[arm.nois]
rescue = true
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_a_file_is_a_plan_and_flags_win(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, FILE), rounds=9, seeds=None)
    assert (plan.rounds, plan.seeds, plan.task.parameters["digits"]) == (9, (4,), 2)
    assert [model.name for model in plan.models] == ["small", "large"]
    assert plan.models[1].learning_rate == 1e-4
    mine = plan.arm_table["sum-of-8"]
    assert (mine.evidence, mine.filter_sum_nats, plan.arm_table["nois"].rescue) == ("sequence", 8.0, True)
    assert plan.arm_table["nois"].estimator == "nois"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[ablation", "cannot read"),
        ("[ablation]\nround = 3", "round"),
        ("[ablation]\nrounds = 0", "rounds"),
        ('[ablation]\narms = ["noise"]', "nois"),
        ("[other]\n", r"\[other\]"),
        ('[arm.mine]\nlike = "noise"', "noise"),
        ("[arm.mine]\nestimater = 3", "estimater"),
        ('[[model]]\nname = "a"\n[[model]]\nname = "a"', "same name"),
        ('[task]\nname = "written-summs"', "written-summs"),
    ],
)
def test_a_file_that_cannot_work_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        read_plan(written(tmp_path, text))
    assert refused.value.hint


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    plan = read_plan(None).model_copy(update={"models": (ModelTable(name="a", path=tmp_path / "none"),)})
    with pytest.raises(UsageError, match="none"):
        ablation_runs.start_models(plan, tmp_path, lambda _, __: None)
