"""Swarms that cannot be reached or found, models that cannot be used: told apart, with nothing left running, and
nothing left behind that keeps the corrected line from working."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.asking import Ask
from e2e.living import SETTINGS, TASK, Crowd
from e2e.watching import daemons, processes, until
from ftis_node.lab.children import Child, start_child
from ftis_node.lab.local_swarm import ENVIRONMENT
from ftis_node.state import StateDir
from ftis_node.swarm.ports import free_port
from ftis_protocol.invite import Invite
from swarm.dht_arena import daemons as own_daemons
from swarm.dht_arena import over_the_network

pytestmark = over_the_network

STRANGER = "12D3KooWR5PnYTAiXprb7zUYWsPq4VcVxAyJ9qiFTZuw1JHKS3Pp"
NOBODY = "a" * 26
HURRY = {"FTIS_SWARM__CONNECT_SECONDS": "2"}


@pytest.fixture(autouse=True)
def _no_daemon_stays() -> Iterator[None]:
    yield
    assert own_daemons() == set()


def address(port: int, host: str = "ip4/127.0.0.1") -> str:
    return f"/{host}/tcp/{port}/p2p/{STRANGER}"


def forgot(state: Path) -> bool:
    """Whether no swarm was entered, or even begun, in a state directory."""
    return StateDir.existing(state).current_swarm() is None and not list((state / "swarms").iterdir())


class TestUnreachable:
    @pytest.mark.parametrize("swarm_id", [f"ftis:{NOBODY}@", ""], ids=["invite", "bare address"])
    @pytest.mark.parametrize("command", [("join", "--model", "nobody/nothing"), ("seed",)], ids=lambda c: c[0])
    def test_a_closed_port(self, ask: Ask, command: tuple[str, ...], swarm_id: str):
        answer = ask(*command, "--swarm", swarm_id + address(free_port("127.0.0.1")))
        assert forgot(answer.refuses(5, "port closed", "Nothing listens on that port").state)

    def test_a_host_that_says_nothing(self, ask: Ask):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            invite = f"ftis:{NOBODY}@{address(silent.getsockname()[1])}"
            assert forgot(ask("seed", "--swarm", invite, **HURRY).refuses(5, "time-out", "Nobody answered").state)

    def test_a_name_that_nobody_has(self, ask: Ask):
        invite = f"ftis:{NOBODY}@{address(4001, 'dns4/no-such-host.invalid')}"
        ask("seed", "--swarm", invite, **HURRY).refuses(5, "host name unknown", "spelling of the host name")

    def test_an_address_that_is_not_this_machines(self, ask: Ask):
        line = ("create", "--name", "sums", "--task", TASK, "--no-model")
        answer = ask(*line, FTIS_SWARM__HOST="203.0.113.9").refuses(
            2, "cannot listen on 203.0.113.9", "address of this"
        )
        assert forgot(answer.state)

    def test_a_port_that_is_taken(self, ask: Ask):
        with socket.create_server(("127.0.0.1", 0)) as owner:
            port = str(owner.getsockname()[1])
            line = ("create", "--name", "sums", "--task", TASK, "--no-model", "--port", port)
            assert forgot(ask(*line).refuses(2, f"port {port} .* is taken", "Choose another port").state)

    def test_an_interrupted_search_ends_with_130(self, tmp_path: Path):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            line = ["seed", "--swarm", address(silent.getsockname()[1]), "--state", str(tmp_path / "state")]
            child = start_child("the search", line, tmp_path / "log", ENVIRONMENT)
            until(lambda: daemons(child.process.pid), "the search begins")
            until(lambda: "looking" in child.tail() or child.process.poll() is not None, "it says so")
            os.killpg(child.process.pid, signal.SIGINT)
            assert child.process.wait(20) == 130, child.tail()
        assert "Traceback" not in child.tail()
        until(lambda: not processes(child.process.pid), "its processes end", 10)
        assert forgot(tmp_path / "state")


def test_a_wrong_swarm_id_and_then_the_right_one(ask: Ask, crowd: Crowd, taught: dict[str, Path]):
    assert crowd.seed
    right = Invite.parse(crowd.swarm.invite)
    wrong = Invite(NOBODY, right.addresses).format()
    line = ("join", "--model", str(taught["ann"]), "--check-only", "--swarm")
    answer = ask(*line, wrong, FTIS_MODEL__GENERATOR="transformers").refuses(
        5, f"do not know a swarm {NOBODY}", "Check"
    )
    assert forgot(answer.state)
    answer = ask(*line, right.format(), FTIS_MODEL__GENERATOR="transformers")
    assert (answer.code, "nothing was trained" in answer.talk) == (0, True), answer.talk
    assert re.search(rf"^swarm +{re.escape(right.format())}$", answer.talk, re.MULTILINE)
    found = StateDir.existing(answer.state).current_swarm()
    assert found is not None
    assert found[0] == right.swarm_id


Edit = Callable[[Path], Any]


def rewrite(name: str, change: Callable[[dict[str, Any]], Any]) -> Edit:
    """Change one JSON file of a checkpoint."""

    def edit(model: Path) -> None:
        content = json.loads((model / name).read_text())
        change(content)
        (model / name).write_text(json.dumps(content))

    return edit


def cut(model: Path) -> None:
    data = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(data[: len(data) // 2])


ALL_SEVENS = {"type": "Replace", "pattern": {"Regex": "[0-9]"}, "content": "7"}
BROKEN: dict[str, tuple[Edit, str, str]] = {
    "no end token": (
        rewrite("tokenizer_config.json", lambda config: config.pop("eos_token")),
        "names no end token",
        "eos_token",
    ),
    "a tokenizer that changes digits": (
        rewrite("tokenizer.json", lambda state: state.update(normalizer=ALL_SEVENS)),
        "cannot write answers of task 'arithmetic'",
        "keeps text as it is",
    ),
    "no tokenizer": (
        lambda model: [file.unlink() for file in model.glob("tokenizer*")],
        "holds no tokenizer",
        "save_pretrained",
    ),
    "half of its weights": (cut, "cannot load the model", "model.safetensors"),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), "no file named model.safetensors", "Name a"),
    "no configuration": (lambda model: (model / "config.json").unlink(), "cannot load the model", "config.json"),
    "half a configuration": (lambda model: (model / "config.json").write_text("{"), "config.json", "again"),
    "other shapes": (
        rewrite("config.json", lambda config: config.update(vocab_size=17)),
        "do not have the shapes",
        "Name a directory",
    ),
}


FOUND = ("create", "--name", "sums", "--task", TASK, "--steps", "1", "--model")
QUICK = {"FTIS_MODEL__GENERATOR": "transformers", "FTIS_TRAIN__PROBE_EVERY_STEPS": "0"}


class TestModels:
    @pytest.fixture
    def model(self, tmp_path: Path, taught: dict[str, Path]) -> Path:
        """A copy of ann's model, to be broken."""
        return Path(shutil.copytree(taught["ann"], tmp_path / "model"))

    @pytest.mark.parametrize("fault", BROKEN)
    def test_broken_in_one_way(self, ask: Ask, model: Path, fault: str):
        edit, cause, remedy = BROKEN[fault]
        edit(model)
        answer = ask(*FOUND, str(model), **QUICK).refuses(2, cause, remedy)
        unindented = [line for line in answer.talk.splitlines() if not line.startswith(" ")]
        assert len(unindented) == 9, "the checks, the start, the plan, the error and no chatter of libraries"

    def test_a_name_that_cannot_be_fetched(self, ask: Ask):
        answer = ask(*FOUND, "nobody/nothing", **QUICK)
        answer.refuses(2, "nobody/nothing is not in the local cache", "Unset HF_HUB_OFFLINE")

    def test_the_corrected_line_goes_on_with_the_same_swarm(self, ask: Ask, model: Path, taught: dict[str, Path]):
        cut(model)
        answer = ask(*FOUND, str(model), **QUICK).refuses(2, "cannot load", ".")
        founded = StateDir.existing(answer.state).current_swarm()
        again = ask(*FOUND, str(taught["ann"]), **QUICK)
        assert again.code == 0, again.talk
        assert "stopped at step 1" in again.talk
        assert StateDir.existing(again.state).current_swarm() == founded

    def test_without_a_chat_template_the_plain_one_serves(self, ask: Ask, model: Path):
        (model / "chat_template.jinja").unlink()
        answer = ask(*FOUND, str(model), **QUICK)
        assert answer.code == 0, answer.talk
        assert "stopped at step 1" in answer.talk


class TestDisk:
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Path]:
        """A file system of 72 MiB; only root can make one."""
        place = tmp_path / "disk"
        place.mkdir()
        if os.geteuid() or os.system(f"mount -t tmpfs -o size=72m tmpfs {place} 2>/dev/null"):
            pytest.skip("needs the right to mount a small file system")
        try:
            yield place
        finally:
            os.system(f"umount {place}")

    def test_read_only(self, ask: Ask, disk: Path):
        assert os.system(f"mount -o remount,ro {disk}") == 0
        line = ("create", "--name", "sums", "--task", TASK, "--no-model")
        ask(*line, state=disk / "state").refuses(2, "the file system is read-only", "--state").leaves_nothing()

    def test_it_fills_up_while_the_node_trains(self, crowd: Crowd, disk: Path, tmp_path: Path):
        assert crowd.seed
        model = crowd.models["ann"]
        config = tmp_path / "node.toml"
        config.write_text("".join(f"[{name}]\n{_keys(keys)}" for name, keys in SETTINGS.items()))
        line = ["join", "--swarm", crowd.swarm.invite, "--model", str(model), "--config", str(config)]
        line += ["--state", str(disk / "state")]
        node = start_child("the node", line, tmp_path / "first.log", ENVIRONMENT)
        try:
            self._until_saved(node, disk)
            _fill(disk / "filler")
            assert node.process.wait(60) in (1, 2), node.tail()
            said = (tmp_path / "first.log").read_text()
            assert "Traceback" not in said
            assert len([row for row in said.splitlines() if row.startswith("error: ")]) == 1, said
            assert "space" in said
            until(lambda: not processes(node.process.pid), "its processes end", 10)

            (disk / "filler").unlink()
            node = start_child("the node", line, tmp_path / "second.log", ENVIRONMENT)
            until(lambda: "resumed at step" in node.tail() or node.process.poll() is not None, "it resumes")
            until(lambda: "working" in node.tail() or node.process.poll() is not None, "it works")
            assert node.running, node.tail()
        finally:
            node.process.terminate()
            if not node.ended(30):
                node.kill()

    def _until_saved(self, node: Child, disk: Path) -> None:
        saved = "state/swarms/*/checkpoints/checkpoint-*"
        until(lambda: list(disk.glob(saved)) or not node.running, "its first checkpoint")
        assert node.running, node.tail()


def _keys(keys: dict[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def _fill(path: Path) -> None:
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
