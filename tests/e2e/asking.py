"""One command line in this process, and what it came to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """What a command line came to."""

    code: int
    talk: str
    state: Path

    def refuses(self, code: int, cause: str, remedy: str) -> Answer:
        """One line that names the cause and one the remedy, each a pattern; no trace."""
        lines = self.talk.splitlines()
        (error,) = [line for line in lines if line.startswith("error: ")]
        (fix,) = [line for line in lines if line.startswith("fix:   ")]
        assert "Traceback" not in self.talk
        assert re.search(cause, self.talk[self.talk.index(error) :]), self.talk
        assert re.search(remedy, fix), self.talk
        assert self.code == code, self.talk
        return self

    def leaves_nothing(self) -> None:
        assert not self.state.exists(), sorted(self.state.rglob("*"))


Ask = Callable[..., Answer]
