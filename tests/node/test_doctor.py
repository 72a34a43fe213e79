"""The doctor: each gate with verdict, reason and remedy, the exit code, and a report that betrays nobody."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tarfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftis_node import cli
from ftis_node.config import NodeConfig
from ftis_node.doctor import machine
from ftis_node.doctor.report import redacted, write_report
from ftis_node.health import Gate, Verdict, passed
from ftis_node.layering import load
from ftis_node.state import StateDir

MEBIBYTE = 1024 * 1024
Usage = namedtuple("Usage", "total used free")


def config(**flags: Any) -> NodeConfig:
    return load(flags={key.replace("__", "."): value for key, value in flags.items()}).config


def verdicts(gates: Any) -> dict[str, Verdict]:
    return {gate.name: gate.verdict for gate in gates}


def test_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.daemon_gate().verdict is Verdict.PASS
    fake = tmp_path / "p2pd"
    monkeypatch.setattr(machine, "daemon_path", lambda: fake)
    gate = machine.daemon_gate()
    assert (gate.verdict, "missing" in gate.why, "reinstall" in gate.fix) == (Verdict.FAIL, True, True)
    fake.touch(mode=0o644)
    gate = machine.daemon_gate()
    assert (gate.verdict, "not executable" in gate.why, gate.fix) == (Verdict.FAIL, True, f"chmod +x {fake}")
    monkeypatch.setattr(machine, "daemon_path", lambda: None)
    assert machine.daemon_gate().verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("torch", "vision", "verdict"),
    [("2.13.0+cpu", None, Verdict.PASS), ("2.13.0+cpu", "0.28.0", Verdict.WARN), (None, None, Verdict.FAIL)],
)
def test_packages(monkeypatch: pytest.MonkeyPatch, torch: str | None, vision: str | None, verdict: Verdict) -> None:
    found = {"torch": torch, "torchvision": vision}
    monkeypatch.setattr(machine, "_version", lambda name: found.get(name, None if name in machine.BREAKABLE else "1"))
    assert machine.packages_gate().verdict is verdict


@pytest.mark.parametrize(("free", "verdict"), [(10, Verdict.FAIL), (100, Verdict.WARN), (10_000, Verdict.PASS)])
def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: Verdict) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: Usage(0, 0, free * MEBIBYTE))
    gates = verdicts(machine.state_gates(config(node__state_dir=tmp_path / "not" / "made")))
    assert gates["disk"] is verdict
    assert not (tmp_path / "not").exists(), "looking makes nothing"


def test_the_key(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path)
    settings = config(node__state_dir=tmp_path)
    assert verdicts(machine.state_gates(settings))["key"] is Verdict.PASS
    state.identity.write_bytes(b"")
    state.identity.chmod(0o600)
    (*_, gate) = machine.state_gates(settings)
    assert (gate.verdict, "identity.key" in gate.why) == (Verdict.FAIL, True)


def test_memory_and_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, verdict in ((100, Verdict.FAIL), (2000, Verdict.WARN), (9000, Verdict.PASS)):
        monkeypatch.setattr(machine, "free_memory", lambda device, free=free: free * MEBIBYTE)
        assert machine.memory_gate().verdict is verdict
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path / "none")
    gate = machine.shared_memory_gate()
    assert (gate.verdict, "--shm-size" in gate.fix) == (Verdict.WARN, True)
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: Usage(0, 0, 64 * MEBIBYTE))
    assert machine.shared_memory_gate().verdict is Verdict.WARN


def test_a_driver_without_a_build_that_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_version", lambda name: "2.13.0+cpu")
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "none")
    assert machine.device_gate().verdict is Verdict.PASS
    monkeypatch.setattr(machine, "DRIVER", tmp_path)
    assert machine.device_gate().verdict is Verdict.WARN


def test_too_few_open_files_stop_a_start(tmp_path: Path) -> None:
    """In a process of its own, as after `ulimit -n 64`: the named gate, its fix, exit code 3, no trace."""
    line = [sys.executable, "-m", "ftis_node", "create", "--name", "x", "--task", "arithmetic", "--no-model"]
    done = subprocess.run(
        [*line, "--state", str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "FTIS_SWARM__HOST": "127.0.0.1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )
    assert done.returncode == 3, done.stderr
    assert "open files: 64 open files allowed" in done.stderr
    assert "ulimit -n 4096" in done.stderr
    assert "Traceback" not in done.stderr


class TestCommand:
    @pytest.fixture
    def gates(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Gate], None]:
        from ftis_node.commands import doctor

        def only(gate: Gate) -> None:
            monkeypatch.setattr(doctor, "machine_gates", lambda config: (passed("python", "3.11"), gate))

        return only

    def test_all_is_well(self, gates: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        gates(Gate("memory", Verdict.WARN, "little", "End other programs."))
        assert cli.main(["doctor", "--quick", "--json", "--state", str(tmp_path / "none")]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["verdict"] == "warn"
        assert [gate["name"] for gate in shown["gates"]] == ["python", "memory"]
        assert not (tmp_path / "none").exists()

    def test_a_failure_is_exit_code_3(self, gates: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        gates(Gate("memory", Verdict.FAIL, "none at all", "Buy some."))
        assert cli.main(["doctor", "--quick", "--state", str(tmp_path)]) == 3
        shown = capsys.readouterr()
        assert "✗ fail     memory: none at all\n             fix: Buy some." in shown.out
        assert "1 of 2 gates fail: memory" in shown.err


SECRETS = (
    'HF_TOKEN=hf_abcdefghijklmnop "password": "hunter2"',
    "dialled /ip4/203.0.113.7/tcp/4001/p2p/12D3KooWR5PnYTAiXprb7zUYWsPq4VcVxAyJ9qiFTZuw1JHKS3Pp",
    "dialled /dns4/home.example.org/tcp/4001 and 2001:db8:1:2:3:4:5:6",
    "read /home/alice/private/models/tiny/config.json",
    "key " + "ab" * 32,
)
BETRAYED = ("hf_abc", "hunter2", "203.0.113", "12D3KooW", "home.example", "2001:db8", "alice", "private", "abab")


def test_a_report_betrays_nobody(tmp_path: Path) -> None:
    for line in SECRETS:
        assert not [word for word in BETRAYED if word in redacted(line)], redacted(line)
    assert "config.json" in redacted(SECRETS[3]), "the name of the file helps"
    state = StateDir.open(tmp_path / "state")
    (state.logs / "one.log").write_text("\n".join(SECRETS))
    path = write_report(tmp_path / "r.tar.gz", [passed("x", SECRETS[3])], {"node": {"path": SECRETS[3]}}, state)
    with tarfile.open(path) as bundle:
        files = {entry.name: bundle.extractfile(entry) for entry in bundle}
        texts = {name: file.read().decode() for name, file in files.items() if file}
    assert set(texts) == {"gates.json", "config.json", "about.json", "logs/one.log"}
    assert not [word for word in BETRAYED for text in texts.values() if word in text]
