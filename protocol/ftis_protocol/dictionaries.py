"""Text that both ends of a transfer know, so that a frame need not pay for what completions have in common.

A dictionary is a run of completions as small models write them on our kinds of task, behind the list of its commonest
words. It ships with this package as one raw LZMA stream, the head, and is named by the hash of that stream. In a frame
the words of the list become single bytes first; then the frame is coded as the rest of a stream: of the dictionary with
the frame behind it, less the bytes at its front that it has in common with the head.

    bytes kept from the head (3 bytes, little-endian)   rest of the stream

So the coder's statistics are warm when the frame begins, a reader needs no more than an ordinary LZMA decoder, and
writers may differ in how they compress: a stream that leaves the head early is longer, never wrong.
"""

from __future__ import annotations

import hashlib
import lzma
from functools import cache
from importlib import resources
from typing import Any

from ftis_protocol.errors import ManifestError, Reason, WireError
from ftis_protocol.words import WordList, commonest

#: Digests of the dictionaries that this version knows, newest last. Old ones stay, for the swarms that name them.
DICTIONARIES: tuple[str, ...] = ("33442ce7d28f719599903c0427ece7eb",)
TAG_BYTES = 4
MAX_DICTIONARY_BYTES = 256 * 1024
_DIGEST_BYTES = 16
_KEPT_BYTES = 3
_LIST_END = b"\n\n"
# Bytes of text: nothing is aligned to machine words (lp, pb), and four bits of the byte before tell most (lc).
_FILTER: dict[str, Any] = {
    "id": lzma.FILTER_LZMA1,
    "preset": 9 | lzma.PRESET_EXTREME,
    "dict_size": 512 * 1024,
    "lc": 4,
    "lp": 0,
    "pb": 0,
}


class TextDictionary:
    """A dictionary by its head. `digest` names it in a manifest, `tag` in a frame."""

    def __init__(self, head: bytes) -> None:
        """Raises WireError(SCHEMA) for bytes that are no dictionary, SIZE for one that is too long."""
        self.head = head
        self._text = _decoded(head, MAX_DICTIONARY_BYTES + 1)
        if len(self._text) > MAX_DICTIONARY_BYTES:
            raise WireError(Reason.SIZE, f"a dictionary has at most {MAX_DICTIONARY_BYTES} bytes")
        listed, end, _ = self._text.partition(_LIST_END)
        if not end:
            raise WireError(Reason.SCHEMA, "a dictionary begins with its list of words")
        self._words = WordList(listed.split(b"\n") if listed else [])
        raw = hashlib.blake2b(head, digest_size=_DIGEST_BYTES, person=b"ftis-dictionary").digest()
        self.digest = raw.hex()
        self.tag = raw[:TAG_BYTES]

    @classmethod
    def of_text(cls, text: bytes) -> TextDictionary:
        """A new dictionary."""
        words = WordList(commonest(text))
        return cls(_encoded(b"\n".join(words.words) + _LIST_END + words.shorten(text)))

    def compress(self, content: bytes) -> tuple[int, bytes]:
        """The size of the content once its words are replaced, and what it costs beyond the dictionary."""
        short = self._words.shorten(content)
        stream = _encoded(self._text + short)
        common = _common(stream, self.head)
        return len(short), common.to_bytes(_KEPT_BYTES, "little") + stream[common:]

    def decompress(self, data: bytes, size: int, most: int) -> bytes:
        """What `compress` was given, from its two results; no more than `size` bytes are produced before, and `most`
        after the words are put back. Raises WireError."""
        kept = int.from_bytes(data[:_KEPT_BYTES], "little")
        if len(data) < _KEPT_BYTES or kept > len(self.head):
            raise WireError(Reason.SCHEMA, "no such place in the dictionary")
        whole = len(self._text) + size
        produced = _decoded(self.head[:kept] + data[_KEPT_BYTES:], whole + 1)
        if len(produced) != whole or not produced.startswith(self._text):
            raise WireError(Reason.SCHEMA, "the content is not what the dictionary and the header say")
        return self._words.lengthen(produced[len(self._text) :], most)


@cache
def text_dictionary(digest: str) -> TextDictionary | None:
    """The dictionary that a manifest names; None for "", which stands for none. Raises ManifestError for one that this
    installation does not have."""
    if not digest:
        return None
    if digest not in DICTIONARIES:
        raise ManifestError(
            f"the swarm compresses its frames with dictionary {digest}, which this installation does not have",
            "Install the version of ftis-node that the swarm's founder uses; it brings the dictionary.",
        )
    found = TextDictionary(resources.files("ftis_protocol").joinpath("data", f"{digest}.lzma").read_bytes())
    assert found.digest == digest, f"dictionary {digest} is damaged"
    return found


def newest_dictionary() -> str:
    """The digest that new swarms name."""
    return DICTIONARIES[-1] if DICTIONARIES else ""


def _common(stream: bytes, head: bytes) -> int:
    """Bytes at the front of both, found by halving."""
    low, high = 0, min(len(stream), len(head))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if stream[low:middle] == head[low:middle] else (low, middle - 1)
    return low


def _encoded(text: bytes) -> bytes:
    return lzma.compress(text, format=lzma.FORMAT_RAW, filters=[_FILTER])


def _decoded(stream: bytes, most: int) -> bytes:
    """At most `most` bytes of a stream that must be whole and end where its bytes end."""
    reader = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=[_FILTER])
    try:
        produced = reader.decompress(stream, max_length=most)
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise WireError(Reason.SCHEMA, "not a stream of this dictionary") from error
    if len(produced) < most and (not reader.eof or reader.unused_data):
        raise WireError(Reason.SCHEMA, "the stream is cut, or bytes follow its end")
    return produced
