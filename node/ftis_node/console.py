"""How the program talks: to a person on a terminal, to a plain log, or as JSON lines. Talk goes to stderr; stdout holds
only the documents that were asked for.

Whatever takes longer than two seconds says what it waits for; off a terminal a repeated line comes every 30 seconds.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from ftis_node import logfile

WAIT_SHOWN_AFTER_SECONDS = 2.0
PLAIN_EVERY_SECONDS = 30.0
log = logging.getLogger(__name__)

_STYLES = {"done": "32", "warn": "33", "error": "31", "wait": "2", "progress": "36"}


class Console:
    """One voice for a whole command.

    `json_lines`: every remark is one JSON object a line. `verbose`: errors come with their trace. Streams default to
    the process's own; colour and rewritten lines only where stderr is a terminal.
    """

    def __init__(
        self,
        *,
        json_lines: bool = False,
        verbose: bool = False,
        talk: TextIO | None = None,
        documents: TextIO | None = None,
    ) -> None:
        self.json_lines = json_lines
        self.verbose = verbose
        self._talk = talk or sys.stderr
        self._documents = documents or sys.stdout
        self._terminal = self._talk.isatty() and not json_lines
        self._lock = threading.Lock()
        self._open_line = False
        self._last_progress = float("-inf")
        self._done_said = ""

    @property
    def is_screen(self) -> bool:
        """Whether documents go to a terminal, where a later one may take the place of an earlier one."""
        return self._documents.isatty()

    def say(self, text: str, **data: Any) -> None:
        """A remark. `data` travels with it in JSON mode."""
        self._put("say", text, data)

    def warn(self, text: str, **data: Any) -> None:
        """Something is not as it should be, but the work goes on."""
        log.warning("%s", text)
        self._put("warn", text, data, prefix="warning: ")

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Around a piece of work that may take long: says that it is waited for, and how long it took."""
        begun = time.monotonic()
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(text, begun, over), name="console-step", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
        seconds = time.monotonic() - begun
        self._put("done", text, {"seconds": round(seconds, 3)}, suffix=f" ({seconds:.1f} s)" if seconds >= 1 else "")

    def progress(self, done: int, total: int | None, text: str, **data: Any) -> None:
        """How far a long job is: a rewritten line on a terminal, elsewhere at most one line in 30 seconds."""
        now = time.monotonic()
        last = total is not None and done >= total
        if last and self._done_said == text:
            return
        self._done_said = text if last else ""
        if not self._terminal and not self.json_lines and not last and now - self._last_progress < PLAIN_EVERY_SECONDS:
            return
        self._last_progress = now
        of = f"{done}/{total}" if total is not None else str(done)
        self._put("progress", f"{of}  {text}", {"done": done, "total": total, **data}, rewrite=not last)

    def fail(self, error: Exception) -> None:
        """The end of a command that could not do its work: cause, remedy, log file; the trace only when verbose."""
        log.error("%s", error, exc_info=error)
        hint = str(getattr(error, "hint", ""))
        path = logfile.current()
        if self.json_lines:
            self._put("error", str(error), {"hint": hint, "log": str(path) if path else None})
            return
        if self.verbose:
            self._write("".join(traceback.format_exception(error)).rstrip())
        self._put("error", str(error), {}, prefix="error: ")
        if hint:
            self._write(f"fix:   {hint}")
        if path:
            self._write(f"log:   {path}")

    def bug(self, error: BaseException) -> None:
        """A failure nobody foresaw: our fault, said so, with the trace in the log (or here when there is no log)."""
        log.critical("unexpected", exc_info=error)
        path = logfile.current()
        if self.verbose or path is None:
            self._write("".join(traceback.format_exception(error)).rstrip())
        cause = f"{type(error).__name__}: {error}"
        self._put("bug", cause, {"log": str(path) if path else None}, prefix="bug:   ")
        if not self.json_lines:
            self._write("This is our bug, not your mistake. Please report it with the log.")
            if path:
                self._write(f"log:   {path}")

    def document(self, content: Any) -> None:
        """The answer itself, on stdout: text as it is, anything else as one JSON document."""
        text = content if isinstance(content, str) else json.dumps(content, indent=2, default=str)
        with self._lock:
            self._documents.write(text + "\n")
            self._documents.flush()

    def _watch(self, text: str, begun: float, over: threading.Event) -> None:
        pause = WAIT_SHOWN_AFTER_SECONDS
        while not over.wait(pause):
            seconds = time.monotonic() - begun
            self._put("wait", f"{text} ... {seconds:.0f} s", {"seconds": round(seconds, 1)}, rewrite=True)
            pause = 1.0 if self._terminal else PLAIN_EVERY_SECONDS

    def _put(
        self,
        event: str,
        text: str,
        data: dict[str, Any],
        *,
        prefix: str = "",
        suffix: str = "",
        rewrite: bool = False,
    ) -> None:
        if self.json_lines:
            line = {"ts": round(time.time(), 3), "event": event, "text": text, **data}
            self._write(json.dumps(line, default=str))
            return
        mark = {"done": "✓ ", "wait": "… "}.get(event, prefix)
        line_text = f"{mark}{text}{suffix}"
        if self._terminal and event in _STYLES:
            line_text = f"\x1b[{_STYLES[event]}m{line_text}\x1b[0m"
        self._write(line_text, rewrite=rewrite and self._terminal)

    def _write(self, text: str, *, rewrite: bool = False) -> None:
        """One line; on a terminal a line written with `rewrite` is replaced by the next one."""
        with self._lock:
            start = "\r\x1b[2K" if self._open_line else ""
            self._talk.write(start + text + ("" if rewrite else "\n"))
            self._talk.flush()
            self._open_line = rewrite


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns under their headers, as plain text: the first column to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
