"""Names, flags and exit codes of the command line, and that it stays light."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import typer.main

import ftis_node.commands
from ftis_node import cli
from ftis_node.commands.options import TaskOption
from ftis_node.errors import NotAllowed, SwarmUnreachable, TaskError, UsageError
from ftis_protocol.errors import InviteError
from ftis_protocol.rollout import Evidence

COMMANDS = {
    "join",
    "create",
    "seed",
    "dashboard",
    "demo",
    "ablate",
    "eval",
    "status",
    "identity",
    "peers",
    "invite",
    "pause",
    "resume",
    "leave",
    "doctor",
    "export",
    "config",
}
HEAVY = ("torch", "transformers", "vllm", "hivemind", "starlette", "numpy", "peft", "safetensors")


@pytest.fixture(autouse=True)
def _restored_hook(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.fixture
def command(monkeypatch):
    """Put a function in the place of a command's module; returns what it is called with."""

    def replace(name: str, action=lambda options, console: None) -> list:
        calls: list = []

        def run(options, console):
            calls.append(options)
            action(options, console)

        module = types.SimpleNamespace(run=run)
        monkeypatch.setattr(ftis_node.commands, name, module, raising=False)
        monkeypatch.setitem(sys.modules, f"ftis_node.commands.{name}", module)
        return calls

    return replace


def test_a_fresh_interpreter_loads_nothing_heavy():
    code = (
        "import sys, ftis_protocol, ftis_node.cli\n"
        "for name in ('rollout', 'manifest', 'presence', 'identity', 'codec', 'envelope', 'keys', 'invite'):\n"
        "    __import__(f'ftis_protocol.{name}')\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_help_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    listed = re.findall(r"^  (\w+)  ", shown.partition("Commands:")[2], flags=re.MULTILINE)
    assert set(listed) == COMMANDS


def test_join_has_few_flags():
    join = typer.main.get_command(cli.app).commands["join"]  # type: ignore[attr-defined]
    flags = {parameter.opts[0] for parameter in join.params}
    assert flags == {
        "--swarm", "--model", "--name", "--state", "--config", "--trainable", "--generator", "--port", "--steps",
        "--check-only", "--json", "--verbose",
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ["jion"],
        ["join", "--swrm", "x"],
        ["join", "--port", "99999"],
        ["join", "--steps", "0"],
        ["join", "--trainable", "some"],
        ["create", "--name", "x"],
        ["create", "--name", "x", "--task", "sums", "--evidence", "everything"],
        ["identity", "shw"],
        [],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_2_and_say_so(arguments, capsys):
    assert cli.main(arguments) == 2
    talk = capsys.readouterr()
    assert "Usage: ftis-node" in talk.err + talk.out
    assert "Traceback" not in talk.err


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ftis-node {ftis_node.__version__}\n"


def test_join_hands_over_its_flags(command, monkeypatch, tmp_path):
    monkeypatch.setenv("FTIS_TRAIN__GROUP_SIZE", "6")
    file = tmp_path / "node.toml"
    file.write_text("[model]\nmodel = 'from-file'\ntrainable = 'lora'\n")
    calls = command("join")
    line = ["join", "--swarm", "ftis:x", "--config", str(file), "--trainable", "full", "--port", "7", "--steps", "3"]
    assert cli.main([*line, "--state", str(tmp_path), "-v", "--check-only"]) == 0
    (options,) = calls
    assert options.check_only
    layered = options.layered()
    config = layered.config
    assert (config.swarm.invite, config.swarm.port, config.train.max_steps) == ("ftis:x", 7, 3)
    assert (config.model.model, config.model.trainable, config.train.group_size) == ("from-file", "full", 6)
    assert (config.node.state_dir, config.node.log_level) == (tmp_path, "debug")
    assert layered.source("model.trainable") == "--trainable"
    assert layered.source("model.model") == str(file)
    assert layered.source("node.log_level") == "--verbose"


def test_create_hands_over_its_flags(command):
    calls = command("create")
    line = ["create", "--name", "sums", "--task", "arithmetic:operations=+-,digits=1", "--task", "other", "--no-model"]
    assert cli.main([*line, "--evidence", "sequence", "--group-size", "4", "--temperature", "0.7"]) == 0
    (options,) = calls
    assert options.tasks == (
        TaskOption("arithmetic", {"operations": "+-", "digits": 1}),
        TaskOption("other", {}),
    )
    assert (options.name, options.with_model, options.temperature) == ("sums", False, 0.7)
    assert options.evidence == (Evidence.SEQUENCE,)
    config = options.layered().config
    assert config.train.group_size == 4
    assert config.node.name == ""


def test_other_commands_hand_over_their_flags(command):
    seeds, demos, evals, ablates = command("seed"), command("demo"), command("eval"), command("ablate")
    assert cli.main(["seed", "--host", "127.0.0.1", "--port", "4001"]) == 0
    assert seeds[0].layered().config.swarm.listen == ("/ip4/127.0.0.1/tcp/4001",)
    assert cli.main(["demo", "--steps", "2", "--nodes", "4", "--no-exchange", "--keep"]) == 0
    assert (demos[0].steps, demos[0].nodes, demos[0].exchange, demos[0].keep) == (2, 4, False, True)
    assert cli.main(["eval", "--model", "m", "--task", "arithmetic:digits=2", "--count", "5"]) == 0
    assert (evals[0].model, evals[0].task, evals[0].count) == ("m", TaskOption("arithmetic", {"digits": 2}), 5)
    assert cli.main(["ablate", "plan.toml", "--seeds", "3, 4", "--arms", "alone,nois", "--out", "o"]) == 0
    assert (ablates[0].file, ablates[0].seeds, ablates[0].arms) == (Path("plan.toml"), (3, 4), ("alone", "nois"))
    assert cli.main(["ablate"]) == 0
    assert (ablates[1].file, ablates[1].seeds, ablates[1].arms, ablates[1].rounds) == (None, None, None, None)
    assert cli.main(["ablate", "--seeds", "one"]) == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("the cause", hint="the remedy"), 2),
        (NotAllowed("the cause", hint="the remedy"), 4),
        (SwarmUnreachable("the cause", hint="the remedy"), 5),
        (TaskError("the cause", hint="the remedy"), 1),
        (InviteError("the cause", "the remedy"), 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_errors_have_cause_remedy_and_exit_code(command, capsys, error, code):
    def fail(options, console):
        raise error

    command("join", fail)
    assert cli.main(["join"]) == code
    assert capsys.readouterr().err == "error: the cause\nfix:   the remedy\n"
    assert cli.main(["join", "--verbose"]) == code
    assert "Traceback" in capsys.readouterr().err
    assert cli.main(["join", "--json"]) == code
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["text"], line["hint"]) == ("error", "the cause", "the remedy")


def test_interruption_exits_130(command):
    def interrupt(options, console):
        raise KeyboardInterrupt

    command("join", interrupt)
    assert cli.main(["join"]) == 130


def test_an_unforeseen_error_is_called_our_bug_and_exits_1():
    code = (
        "import sys, types, ftis_node.commands, ftis_node.cli as cli\n"
        "def run(options, console): raise ZeroDivisionError('oh')\n"
        "ftis_node.commands.join = types.SimpleNamespace(run=run)\n"
        "sys.exit(cli.main(['join']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "bug:   ZeroDivisionError: oh\nThis is our bug" in done.stderr
    assert "Traceback" in done.stderr  # there is no log that could hold it


@pytest.mark.parametrize("text", ["", ":digits=1", "sums:", "sums:digits", "sums:=1", "sums:a=1,a=2", "sums:a=1,,b=2"])
def test_tasks_that_cannot_be_read(text):
    if text == "sums:":
        assert TaskOption.parse(text) == TaskOption("sums", {})
        return
    with pytest.raises(UsageError) as caught:
        TaskOption.parse(text)
    assert "name:key=value" in caught.value.hint


def test_task_values_have_types():
    parsed = TaskOption.parse("sums:a=1,b=1.5,c=true,d=+-*,e=x=y,f=-")
    assert parsed.parameters == {"a": 1, "b": 1.5, "c": True, "d": "+-*", "e": "x=y", "f": "-"}


def test_bad_task_on_the_line_exits_2(capsys):
    assert cli.main(["create", "--name", "x", "--task", "sums:digits"]) == 2
    assert "error: --task sums:digits" in capsys.readouterr().err
