"""The commonest words of a dictionary as single bytes, which leaves a coder of bytes less to guess.

    80, 81, ...   a word of the list, with the blank before it if that belongs to it
    FE            the next byte stands for itself

Only whole words are replaced, and only bytes that the list uses up need an escape.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ftis_protocol.errors import Reason, WireError

MAX_WORDS = 126
MAX_WORD_BYTES = 16
_FIRST = 0x80
_ESCAPE = b"\xfe"
_WORD = re.compile(rb" ?[A-Za-z]+")


def commonest(text: bytes) -> tuple[bytes, ...]:
    """The words whose replacement saves most, best first."""
    counts = Counter(_WORD.findall(text))
    worth = [(-(count * (len(word) - 1)), word) for word, count in counts.items() if 1 < len(word) <= MAX_WORD_BYTES]
    return tuple(word for saved, word in sorted(worth)[:MAX_WORDS] if saved < -1)


class WordList:
    """Replaces the words of one list. Raises WireError(SCHEMA) for a list that is none."""

    def __init__(self, words: Sequence[bytes]) -> None:
        sound = all(1 < len(word) <= MAX_WORD_BYTES and _WORD.fullmatch(word) for word in words)
        if len(words) > MAX_WORDS or len(set(words)) < len(words) or not sound:
            raise WireError(Reason.SCHEMA, "not a list of words")
        self.words = tuple(words)
        codes = [bytes([_FIRST + place]) for place in range(len(words))]
        self._short = dict(zip(words, codes, strict=True)) | {code: _ESCAPE + code for code in (*codes, _ESCAPE)}
        self._long = dict(zip(codes, words, strict=True))
        taken = rb"[%s\xfe]" % b"".join(codes)
        self._to_replace = re.compile(_WORD.pattern + b"|" + taken)
        self._replaced = re.compile(rb"\xfe(?s:.)?|" + taken)

    def shorten(self, content: bytes) -> bytes:
        """Content with its words replaced."""
        short = self._short
        return self._to_replace.sub(lambda match: short.get(match[0], match[0]), content)

    def lengthen(self, content: bytes, most: int) -> bytes:
        """What `shorten` was given, of which at most `most` bytes (an escaped code counts as its word) are made. Raises
        WireError."""
        size = len(content) + sum(content.count(code) * (len(word) - 1) for code, word in self._long.items())
        if size > most:
            raise WireError(Reason.SIZE, f"{size} bytes with all words, at most {most} are allowed")
        if content.replace(_ESCAPE * 2, b"").endswith(_ESCAPE):
            raise WireError(Reason.SCHEMA, "an escape at the end")
        return self._replaced.sub(lambda match: self._long.get(match[0], match[0][1:]), content)
