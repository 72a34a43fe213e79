"""Talk on stderr, documents on stdout; causes with their remedy; waiting is announced."""

from __future__ import annotations

import io
import json
import threading

import pytest

from ftis_node import console as console_module
from ftis_node.console import Console, table
from ftis_node.errors import UsageError


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def _pair(**options: bool) -> tuple[Console, io.StringIO, io.StringIO]:
    talk, documents = io.StringIO(), io.StringIO()
    return Console(talk=talk, documents=documents, **options), talk, documents


def _events(talk: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in talk.getvalue().splitlines()]


def test_talk_and_documents_are_apart():
    console, talk, documents = _pair()
    console.say("hello")
    console.warn("careful")
    console.document({"a": 1})
    console.document("text")
    assert talk.getvalue() == "hello\nwarning: careful\n"
    assert documents.getvalue() == '{\n  "a": 1\n}\ntext\n'


def test_a_failure_has_cause_and_remedy_and_a_trace_only_when_asked():
    error = UsageError("the cause", hint="The remedy.")
    console, talk, _ = _pair()
    console.fail(error)
    assert talk.getvalue() == "error: the cause\nfix:   The remedy.\n"
    console, talk, _ = _pair(verbose=True)
    console.fail(error)
    assert "UsageError: the cause" in talk.getvalue()


def test_a_bug_is_called_ours():
    console, talk, _ = _pair()
    console.bug(ZeroDivisionError("division by zero"))
    assert "bug:   ZeroDivisionError: division by zero\nThis is our bug" in talk.getvalue()


def test_json_lines():
    console, talk, _ = _pair(json_lines=True)
    console.say("hello", step=3)
    with console.step("work"):
        pass
    console.progress(1, 10, "steps", loss=0.5)
    console.fail(UsageError("cause", hint="remedy"))
    said, done, progress, error = _events(talk)
    assert (said["event"], said["text"], said["step"]) == ("say", "hello", 3)
    assert (done["event"], done["text"]) == ("done", "work")
    assert (progress["done"], progress["total"], progress["loss"]) == (1, 10, 0.5)
    assert (error["event"], error["text"], error["hint"]) == ("error", "cause", "remedy")


def test_a_short_step_says_only_that_it_is_done():
    console, talk, _ = _pair()
    with console.step("load"):
        pass
    assert talk.getvalue() == "✓ load\n"


class _Heard(io.StringIO):
    """Tells when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count


def test_a_long_step_says_what_it_waits_for(monkeypatch):
    monkeypatch.setattr(console_module, "WAIT_SHOWN_AFTER_SECONDS", 0.01)
    talk = _Heard()
    with Console(talk=talk).step("load the model"):
        assert talk.written.wait(timeout=30)
        assert talk.getvalue().startswith("… load the model ... 0 s")


def test_a_failed_step_is_not_done():
    console, talk, _ = _pair()
    with pytest.raises(UsageError), console.step("load"):
        raise UsageError("no", hint="-")
    assert talk.getvalue() == ""


def test_progress_off_a_terminal_is_rare_but_always_ends():
    console, talk, _ = _pair()
    for step in range(1, 101):
        console.progress(step, 100, "steps")
    assert talk.getvalue() == "1/100  steps\n100/100  steps\n"


def test_progress_on_a_terminal_rewrites_its_line():
    screen = _Screen()
    console = Console(talk=screen)
    console.progress(1, 2, "a")
    console.progress(2, 2, "b")
    console.say("end")
    assert screen.getvalue() == "\x1b[36m1/2  a\x1b[0m\r\x1b[2K\x1b[36m2/2  b\x1b[0m\nend\n"


def test_table():
    assert table(("node", "start"), [("a", 0.5), ("longer", "1")]) == (
        "node    start\n------  -----\na         0.5\nlonger      1"
    )
