"""What cannot work is refused with its cause, its remedy and the right exit code, and leaves nothing in the way."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from e2e.asking import Ask
from ftis_node.cli import main
from ftis_node.state import StateDir

STRANGER = "12D3KooWR5PnYTAiXprb7zUYWsPq4VcVxAyJ9qiFTZuw1JHKS3Pp"
ADDRESS = f"/ip4/127.0.0.1/tcp/1/p2p/{STRANGER}"
NOBODY = "a" * 26
SUMS = ("--task", "arithmetic:operations=+,digits=1")
CREATE = ("create", "--name", "sums", "--no-model")
JOIN = ("join", "--model", "somebody/something", "--swarm")


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("arithmetik", "no task 'arithmetik'", "Did you mean 'arithmetic'"),
        ("chess", "no task 'chess'", "Known tasks: arithmetic"),
        ("arithmetic:digit=1", "no parameter 'digit'", "Did you mean 'digits'"),
        ("arithmetic:digits=99", "digits 99 is out of range", "1 to 9"),
        ("arithmetic:digits=two", "parameter 'digits' .* is 'two'", "type int"),
        ("arithmetic:operations=%", "operations '%'", "Give some of"),
        ("arithmetic:digits", "cannot read 'digits'", "name:key=value"),
    ],
)
def test_tasks_that_do_not_exist(ask: Ask, text: str, cause: str, remedy: str):
    ask(*CREATE, "--task", text).refuses(2, cause, remedy).leaves_nothing()


@pytest.mark.parametrize(
    ("flags", "cause", "remedy"),
    [
        (("--temperature", "0.7"), "temperature 0.7 reshapes", "Leave temperature at 1"),
        (("--temperature", "nan"), "temperature cannot be used", "found the swarm again"),
        (("--slice-size", "100000000"), "slice_size cannot be used", "found the swarm again"),
        (("--max-tokens", "100000000"), "max_completion_tokens cannot be used", "found the swarm again"),
        (("--name", "x" * 300), "name cannot be used", "found the swarm again"),
        (("--name", ""), "name cannot be used", "found the swarm again"),
        (("--name", "a\x1b[31m"), "control characters", "found the swarm again"),
        (SUMS, "listed twice", "List every task once"),
    ],
    ids=lambda value: "=".join(value)[:24] if isinstance(value, tuple) else None,
)
def test_rules_that_no_swarm_can_have(ask: Ask, flags: tuple[str, ...], cause: str, remedy: str):
    answer = ask(*CREATE, *SUMS, *flags).refuses(2, cause, remedy)
    assert "\x1b" not in answer.talk
    answer.leaves_nothing()


def test_a_group_of_one(ask: Ask):
    answer = ask(*CREATE, *SUMS, "--group-size", "1")
    assert (answer.code, answer.state.exists()) == (2, False)
    assert "--group-size" in answer.talk
    assert "greater than or equal to 2" in answer.talk


@pytest.mark.parametrize(
    ("toml", "cause", "remedy"),
    [
        (
            "[train]\ngroup_size = 1",
            r"train.group_size = 1 .*node.toml.*must be at least 2",
            "train.group_size",
        ),
        ("[train]\nown_share = 0.2", r"train.own_share = 0.2 .*at least 0.25", "Least share of own groups"),
        ("[train]\ngroupsize = 4", "unknown key train.groupsize in .*node.toml", "Did you mean train.group_size"),
        ("[trian]\ngroup_size = 4", "unknown key trian", "Did you mean train"),
        ("[train]\ngroup_size = '4'", "train.group_size = '4'", "train.group_size"),
        ("[train", "not valid TOML", "quotes"),
        ("[swarm]\nannounce = ['here']", "does not begin with a slash", "swarm.announce|docs/config.md"),
        ("[swarm]\nannounce = ['/ip4/203.0.113.7']", "has no port", "swarm.announce|docs/config.md"),
    ],
)
def test_files_with_mistakes(ask: Ask, toml: str, cause: str, remedy: str):
    ask(*CREATE, *SUMS, toml=toml).refuses(2, cause, remedy).leaves_nothing()


@pytest.mark.parametrize(
    ("name", "value", "cause", "remedy"),
    [
        ("FTIS_X__Y", "1", "unknown variable FTIS_X__Y", "docs/config.md"),
        ("FTIS_TRAIN__GRUP_SIZE", "8", "unknown variable FTIS_TRAIN__GRUP_SIZE", "FTIS_TRAIN__GROUP_SIZE"),
        ("FTIS_TRAIN__GROUP_SIZE", "many", "train.group_size = 'many' .FTIS_TRAIN__GROUP_SIZE", "train.group_size"),
        ("FTIS_SWARM__HOST", "localhost", "must be an IP address", r"\[swarm\]"),
    ],
)
def test_variables_with_mistakes(ask: Ask, name: str, value: str, cause: str, remedy: str):
    ask(*CREATE, *SUMS, **{name: value}).refuses(2, cause, remedy).leaves_nothing()


@pytest.mark.parametrize(
    ("invite", "cause", "remedy"),
    [
        ("", "no swarm given", "--swarm ftis:"),
        ("hello", "neither an invite nor an address", "begins with ftis:"),
        ("ftis:abc", "has no @", "cut off"),
        (f"ftis:abc@{ADDRESS}", "abc is not a swarm id", "26 characters"),
        (f"ftis:{NOBODY}@", "has no address", "after the @"),
        (f"ftis:{NOBODY}@{ADDRESS[:-3]}!!!", "is not a peer id", "without a gap"),
        (f"ftis:{NOBODY}@/ip4/1.2.3/tcp/1/p2p/{STRANGER}", "not a host for /ip4", "An address looks like"),
        (f"/ip4/127.0.0.1/tcp/99999/p2p/{STRANGER}", "99999 .* is not a port", "1 to 65535"),
        ("/ip4/127.0.0.1/tcp/1", "no peer id at its end", "Add /p2p/PEERID"),
        ("ftis:" + "a" * 5000, "has no @", "cut off"),
        (
            f"ftis:{NOBODY}@" + ",".join(f"/ip4/127.0.0.1/tcp/{n}/p2p/{STRANGER}" for n in range(1, 99)),
            "98 addr",
            "most",
        ),
    ],
    ids=lambda value: value[:24],
)
def test_invites_that_cannot_be_read(ask: Ask, invite: str, cause: str, remedy: str):
    ask(*JOIN, invite).refuses(2, cause, remedy).leaves_nothing()
    ask("seed", "--swarm", invite).refuses(2, cause, "Paste an invite" if not invite else remedy).leaves_nothing()


@pytest.mark.parametrize(
    ("model", "cause", "remedy"),
    [
        ("/no/such/model", "no model at /no/such/model", "owner/name"),
        ("./missing", "no model at ./missing", "owner/name"),
        ("word", "no model at word", "owner/name"),
        (__file__, "is a file, not a checkpoint directory", "config.json"),
        ("", "no model given", "--model"),
    ],
)
def test_models_that_are_nowhere(ask: Ask, model: str, cause: str, remedy: str):
    ask("create", "--name", "sums", *SUMS, "--model", model).refuses(2, cause, remedy).leaves_nothing()
    ask("join", "--swarm", ADDRESS, "--model", model).refuses(2, cause, remedy).leaves_nothing()


def test_a_hub_model_that_nobody_fetched_without_a_network(ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def unreachable(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("socket.create_connection", unreachable)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    ask(*JOIN, ADDRESS).refuses(2, "hub cannot be reached", "Check the network").leaves_nothing()


def test_a_seed_with_a_model(ask: Ask):
    ask(*CREATE, *SUMS, "--model", "somebody/something").refuses(2, "trains no model", "--no-model").leaves_nothing()


def test_a_demo_in_the_home_of_something_else(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "identity.key").touch()
    assert main(["demo", "--work-dir", str(tmp_path)]) == 2
    assert f"error: {tmp_path} is not an empty directory\nfix: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["identity.key"]


class TestStateDirectories:
    def test_a_file_in_its_place(self, ask: Ask, tmp_path: Path):
        (tmp_path / "file").touch()
        ask(*CREATE, *SUMS, state=tmp_path / "file").refuses(2, "it is a file", "--state")
        ask(*CREATE, *SUMS, state=tmp_path / "file" / "below").refuses(2, "a part of the path is a file", "--state")

    def test_in_use_by_another_node(self, ask: Ask, tmp_path: Path):
        with StateDir.open(tmp_path / "state").lock("join"):
            before = sorted((tmp_path / "state").rglob("*"))
            ask(*CREATE, *SUMS).refuses(4, r"in use by process \d+ \(`join`\) since", r"kill -INT \d+")
            ask(*JOIN, ADDRESS).refuses(4, "in use by process", "own --state")
            assert sorted((tmp_path / "state").rglob("*")) == before

    def test_almost_full(self, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100 << 20, 90 << 20, 10 << 20))
        ask(*CREATE, *SUMS).refuses(2, "64 MiB of free disk, 10 MiB are left", "Free some")

    def test_nothing_there_to_look_at(self, ask: Ask):
        ask("status").refuses(2, "there is no node in", "--state")
        ask("identity", "show").refuses(2, "no key file", "Check the path").leaves_nothing()
        ask("eval").refuses(2, "there is no node in", "--state").leaves_nothing()

    def test_a_key_that_is_no_key(self, ask: Ask, tmp_path: Path):
        state = StateDir.open(tmp_path / "state")
        state.identity.write_bytes(b"")
        state.identity.chmod(0o600)
        ask(*CREATE, *SUMS).refuses(2, "identity.key", ".")
        assert state.identity.read_bytes() == b""


def test_errors_as_json_lines(ask: Ask):
    answer = ask(*JOIN, "hello", "--json")
    assert answer.code == 2
    (line,) = [json.loads(line) for line in answer.talk.splitlines()]
    assert (line["event"], "hello" in line["text"], "ftis:" in line["hint"]) == ("error", True, True)


def test_verbose_shows_the_trace(ask: Ask):
    answer = ask(*JOIN, "hello", "--verbose")
    assert answer.code == 2
    assert "Traceback" in answer.talk
    assert "error: hello is neither" in answer.talk
