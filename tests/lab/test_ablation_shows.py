"""Three arms on the built-in pair, a few minutes. Starting checkpoints are taught once and kept in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ftis_node.environment import cache_dir
from ftis_node.lab.ablation_plan import read_plan
from ftis_node.lab.ablation_report import Row, summarise
from ftis_node.lab.ablation_runs import run_all, start_models

pytestmark = [pytest.mark.training, pytest.mark.slow]

LARGER = "columns"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Row]:
    """The larger node in each arm: 60 rounds, one seed."""
    plan = read_plan(None, arms=("nois", "f-tis-token", "text-only"), seeds=(0,), rounds=60)
    models: Mapping[str, Path] = start_models(plan, cache_dir(), lambda _, __: None)
    runs = run_all(plan, models, tmp_path_factory.mktemp("ablation"), lambda _: None)
    return {row.arm: row for row in summarise(plan, runs) if row.node == LARGER}


@pytest.mark.parametrize("arm", ["f-tis-token", "text-only"])
def test_importance_weights_leave_the_larger_node_its_skill(rows: Mapping[str, Row], arm: str) -> None:
    assert rows[arm].greedy_end > 0.6
    assert rows[arm].foreign_used > 0


def test_foreign_groups_taken_as_own_destroy_the_larger_node(rows: Mapping[str, Row]) -> None:
    assert rows["nois"].greedy_end < 0.3
