"""The rules of a swarm: which are possible, and that their id is theirs alone. Cards and offers likewise."""

from __future__ import annotations

import math
from typing import Any

import pytest
from protocol_samples import CARD, MANIFEST, OFFER
from pydantic import ValidationError

from ftis_protocol.errors import ManifestError, Reason
from ftis_protocol.manifest import Sampling, SwarmManifest, TaskSpec
from ftis_protocol.presence import Departure, NodeCard, OfferedFrame, OfferedGroup
from ftis_protocol.rollout import Evidence

FIELDS: dict[str, Any] = {name: getattr(MANIFEST, name) for name in SwarmManifest.model_fields}
TASK = TaskSpec(name="arithmetic", version=1)


def test_the_id_is_the_same_on_every_machine() -> None:
    assert MANIFEST.swarm_id == "7bfspt3dyg43uqnzevymk5cqse"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "sums for everyone"},
        {"tasks": (TASK,)},
        {
            "tasks": (
                MANIFEST.tasks[0].model_copy(
                    update={"parameters": {"operations": "+-", "digits": 2, "carry": 1, "p": 0.5}}
                ),
            )
        },
        {"sampling": Sampling(max_completion_tokens=65)},
        {"group_size_min": 3},
        {"evidence": (Evidence.NONE,)},
        {"admission": "members"},
        {"slot_seconds": 31},
        {"slice_size": 63},
        {"shard_count": 2},
        {"creator": b"\x08" * 32},
        {"created_at": 1},
    ],
)
def test_every_rule_is_part_of_the_id(change: dict[str, Any]) -> None:
    assert SwarmManifest(**(FIELDS | change)).swarm_id != MANIFEST.swarm_id


def test_the_order_of_parameters_is_not() -> None:
    task = MANIFEST.tasks[0]
    turned = TaskSpec(name=task.name, version=task.version, parameters=dict(reversed(task.parameters.items())))
    assert SwarmManifest(**(FIELDS | {"tasks": (turned,)})).swarm_id == MANIFEST.swarm_id
    assert hash(turned) == hash(task)


@pytest.mark.parametrize(
    "change",
    [{"temperature": 0.7}, {"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 50}, {"top_k": -1}],
)
def test_sampling_that_bends_the_distribution_is_refused_with_the_reason(change: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match=f"{next(iter(change))} .* importance ratios") as caught:
        Sampling(max_completion_tokens=10, **change)
    assert caught.value.reason is Reason.MANIFEST
    assert "Leave" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"protocol_version": 2}, "protocol 2"),
        ({"name": ""}, "name"),
        ({"name": "two\nlines"}, "name.*control characters"),
        ({"name": " blank"}, "name.*blank"),
        ({"name": "x" * 300}, "name"),
        ({"name": "\ud800"}, "name.*surrogate"),
        ({"tasks": ()}, "tasks"),
        ({"tasks": (TASK, TASK)}, "listed twice"),
        ({"tasks": ({"name": "a\x00", "version": 1},)}, "name"),
        ({"tasks": ({"name": "a", "version": -1},)}, "version"),
        ({"tasks": ({"name": "a", "version": 1, "parameters": {"p": math.nan}},)}, "parameters"),
        ({"tasks": ({"name": "a", "version": 1, "parameters": {"p": None}},)}, "parameters"),
        ({"tasks": ({"name": "a", "version": 1, "parameters": {"p": 2**60}},)}, "parameters"),
        ({"sampling": {"max_completion_tokens": 0}}, "max_completion_tokens"),
        ({"group_size_min": 1}, "group_size_min"),
        ({"group_size_max": 65}, "group_size_max"),
        ({"group_size_min": 9, "group_size_max": 8}, "above"),
        ({"evidence": ()}, "evidence"),
        ({"evidence": (Evidence.TOKEN,)}, "evidence"),
        ({"evidence": (Evidence.NONE, Evidence.NONE)}, "evidence"),
        ({"admission": "closed"}, "admission"),
        ({"slot_seconds": 0}, "slot_seconds"),
        ({"slice_size": 0}, "slice_size"),
        ({"shard_count": 0}, "shard_count"),
        ({"creator": b"short"}, "creator"),
        ({"created_at": 1.5}, "created_at"),
        ({"reward": "mine"}, "reward"),
    ],
)
def test_impossible_rules_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestError, match=said) as caught:
        SwarmManifest(**(FIELDS | change))
    assert caught.value.hint


@pytest.mark.parametrize("name", ["a.b/c d", "Ünï-cödé 日本", "x" * 80])
def test_odd_names_are_fine(name: str) -> None:
    assert SwarmManifest(**(FIELDS | {"name": name})).name == name


def test_parameters_keep_their_types() -> None:
    values = TaskSpec(name="a", version=1, parameters={"b": True, "i": 1, "f": 1.0, "s": "1"}).parameters
    assert [type(values[key]) for key in "bifs"] == [bool, int, float, str]


def test_a_task_is_found_by_name_and_version() -> None:
    assert MANIFEST.task("arithmetic", 1) is MANIFEST.tasks[0]
    assert MANIFEST.task("arithmetic", 2) is None


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"role": "boss"},
        {"parameters": -1},
        {"tokens_per_second": math.inf},
        {"tokens_per_second": -1.0},
        {"pass_at_1": 1.01},
        {"pass_at_1": math.nan},
        {"peers": {"not an id": {"accepted": 1, "refused": 0}}},
        {
            "peers": {
                f"{letter * 25}{other}": {"accepted": 1, "refused": 0}
                for letter in "abcdefgh"
                for other in "abcdefghij"
            }
        },
        {"addresses": ("/a",) * 9},
        {"addresses": ("x" * 257,)},
        {"model": "x" * 300},
        {"state": "line\nbreak"},
    ],
)
def test_a_card_out_of_bounds_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NodeCard.model_validate(CARD.model_dump() | change)


def test_an_observer_needs_no_model() -> None:
    assert NodeCard(name="page", role="observer", state="watching").model == ""
    assert Departure().reason == ""


def test_an_offer_out_of_bounds_is_refused() -> None:
    offered = OFFER.frames[0]
    with pytest.raises(ValidationError, match="9 right completions in a group of 8"):
        OfferedGroup(task="a", version=1, right=9, size=8, tokens=1)
    for change in ({"digest": b"short"}, {"size_bytes": 2**21}, {"groups": ()}):
        with pytest.raises(ValidationError):
            OfferedFrame.model_validate(offered.model_dump() | change)
