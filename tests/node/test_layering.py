"""Defaults < file < environment < flags; every misfit is named with its key, value and source."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from ftis_node import layering
from ftis_node.config import NodeConfig, SwarmSection, TrainSection
from ftis_node.errors import UsageError
from ftis_protocol.rollout import Evidence


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_alone():
    layered = layering.load()
    assert layered.config == NodeConfig()
    assert set(layered.sources.values()) == {"default"}
    assert layered.config.train.own_share == 0.5
    assert layered.config.publish.evidence is Evidence.NONE


def test_each_layer_wins_over_the_one_below(tmp_path):
    file = _file(tmp_path, "[train]\ngroup_size = 4\nlearning_rate = 1\nseed = 1\nmax_steps = 5\n")
    environment = {"FTIS_TRAIN__GROUP_SIZE": "6", "FTIS_TRAIN__SEED": "2", "OTHER": "x"}
    layered = layering.load(file, environment, {"train.seed": 3, "train.max_steps": None})
    train = layered.config.train
    assert (train.learning_rate, train.group_size, train.seed, train.max_steps) == (1.0, 6, 3, 5)
    assert layered.source("train.learning_rate") == str(file)
    assert layered.source("train.group_size") == "FTIS_TRAIN__GROUP_SIZE"
    assert layered.source("train.seed") == "--seed"
    assert layered.source("train.max_steps") == str(file)
    assert layered.source("train.own_share") == "default"


def test_flags_with_another_name_are_called_as_typed():
    sources = layering.load(flags={"swarm.invite": "x", "train.max_steps": 2, "node.state_dir": Path("/a")}).sources
    assert [sources[key] for key in ("swarm.invite", "train.max_steps", "node.state_dir")] == [
        "--swarm",
        "--steps",
        "--state",
    ]


def test_environment_text_becomes_values(tmp_path):
    config = layering.load(
        _file(tmp_path, "[train]\nmax_steps = 9\n"),
        {
            "FTIS_RECEIVE__EXCHANGE": "false",
            "FTIS_RECEIVE__TRUSTED_PEERS": "abc, def,",
            "FTIS_PUBLISH__EVIDENCE": "none",
            "FTIS_TRAIN__MAX_STEPS": "none",
            "FTIS_NODE__THREADS": "",
            "FTIS_NODE__STATE_DIR": "/var/ftis",
        },
    ).config
    assert config.receive.exchange is False
    assert config.receive.trusted_peers == ("abc", "def")
    assert config.publish.evidence is Evidence.NONE
    assert config.train.max_steps is None
    assert config.node.threads is None
    assert config.node.state_dir == Path("/var/ftis")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("[train]\ngroup_siz = 4", "train.group_size"),
        ("[receive]\ngroup_size = 4", "train.group_size"),
        ("[trian]\nseed = 4", "train"),
        ("group_size = 4", "train.group_size"),
    ],
)
def test_unknown_key_in_a_file_names_the_file_and_the_nearest_key(tmp_path, text, meant):
    with pytest.raises(UsageError, match=r"node\.toml") as caught:
        layering.load(_file(tmp_path, text))
    assert caught.value.hint == f"Did you mean {meant}?"


@pytest.mark.parametrize("variable", ["FTIS_TRAIN__GROUP_SIZ", "FTIS_GROUP_SIZE", "FTIS_RECEIVE__GROUP_SIZE"])
def test_unknown_variable_names_itself_and_the_nearest_one(variable):
    with pytest.raises(UsageError, match=variable) as caught:
        layering.load(environment={variable: "4"})
    assert caught.value.hint == "Did you mean FTIS_TRAIN__GROUP_SIZE?"


def test_variables_of_others_pass():
    assert layering.load(environment={"FTIS_CACHE": "/tmp", "PATH": "/bin"}).config == NodeConfig()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[train]\ngroup_size = 'eight'", "'eight'"),
        ("[train]\ngroup_size = '8'", "'8'"),
        ("[train]\ngroup_size = true", "True"),
        ("[train]\ngroup_size = 1", "1"),
        ("[train]\ngroup_size = 8.5", "8.5"),
    ],
)
def test_misfit_in_a_file_says_key_value_file_and_what_was_expected(tmp_path, text, value):
    with pytest.raises(UsageError) as caught:
        layering.load(_file(tmp_path, text))
    message = str(caught.value)
    assert message.startswith(f"train.group_size = {value} (")
    assert "node.toml" in message
    assert "the value must be" in message


@pytest.mark.parametrize("text", ["[train]\nlearning_rate = nan", "[train]\nlearning_rate = inf", "train = 3"])
def test_impossible_values_are_refused(tmp_path, text):
    with pytest.raises(UsageError):
        layering.load(_file(tmp_path, text))


def test_misfit_of_a_flag_and_of_a_variable():
    with pytest.raises(UsageError, match=r"swarm\.port = 70000 \(--port\)"):
        layering.load(flags={"swarm.port": 70000})
    with pytest.raises(UsageError, match=r"train\.own_share = '0\.1' \(FTIS_TRAIN__OWN_SHARE\)"):
        layering.load(environment={"FTIS_TRAIN__OWN_SHARE": "0.1"})


def test_a_rule_over_a_whole_section_names_who_set_it():
    with pytest.raises(UsageError, match=r"section \[swarm\] \(FTIS_SWARM__HOST\): host must be an IP address"):
        layering.load(environment={"FTIS_SWARM__HOST": "example.org"})


@pytest.mark.parametrize("content", [b"[train\n", b"\xff\xfe", b"a = [1"])
def test_unreadable_files_are_the_users_business(tmp_path, content):
    path = tmp_path / "node.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"node\.toml"):
        layering.load(path)
    with pytest.raises(UsageError, match="cannot read"):
        layering.load(tmp_path / "missing.toml")
    with pytest.raises(UsageError, match="cannot read"):
        layering.load(tmp_path)


def test_listening():
    assert SwarmSection().listen == ("/ip4/0.0.0.0/tcp/0",)
    assert not SwarmSection().loopback
    assert SwarmSection(host="127.0.0.1", port=4001).listen == ("/ip4/127.0.0.1/tcp/4001",)
    assert SwarmSection(host="127.0.0.9").loopback
    assert SwarmSection(host="::1").loopback
    assert SwarmSection(host="::1").listen == ("/ip6/::1/tcp/0",)


def test_sections_are_frozen_and_closed():
    with pytest.raises(ValidationError):
        TrainSection(groupsize=3)
    with pytest.raises(ValidationError):
        TrainSection().seed = 3  # type: ignore[misc]


def test_every_key_has_a_meaning_and_units_stand_in_names():
    named_units = ("seconds", "mebibytes", "steps")
    for name, info in layering.fields().items():
        assert info.description, name
        unit = info.json_schema_extra["unit"]
        if unit in named_units:
            assert unit in name, f"{name} is in {unit}"


def test_a_file_for_a_newer_version_is_refused(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text("format = 1\n[train]\ngroup_size = 4\n")
    assert layering.load(file).config.train.group_size == 4
    file.write_text("format = 2\n[train]\nsize_of_groups = 4\n")
    with pytest.raises(UsageError, match="newer ftis-node") as caught:
        layering.load(file)
    assert "Update" in caught.value.hint
    file.write_text("format = 'x'\n")
    with pytest.raises(UsageError, match="not a number"):
        layering.load(file)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("TRAIN__GROUP_SIZE", "1", "must be at least 2"),
        ("TRAIN__GROUP_SIZE", "65", "must be at most 64"),
        ("TRAIN__GROUP_SIZE", "four", "must be a whole number"),
        ("TRAIN__LEARNING_RATE", "0", "must be above 0"),
        ("TRAIN__LOCK_STEP", "maybe", "must be true or false"),
        ("MODEL__GENERATOR", "magic", "must be 'auto', 'vllm' or 'transformers'"),
        ("LIMITS__HOURS", "noon", "not a span of hours"),
    ],
)
def test_what_a_value_must_be_is_said_in_plain_words(key, value, told):
    with pytest.raises(UsageError) as caught:
        layering.load(environment={f"FTIS_{key}": value})
    assert told in str(caught.value)
    assert "Input" not in str(caught.value)
