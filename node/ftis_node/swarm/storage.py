"""The part of the hash table that lives in this process: checked by our rules and bounded in memory."""

from __future__ import annotations

import time
from collections import Counter

from ftis_node.swarm.flow import Limit
from ftis_node.swarm.hive import (
    DHTID,
    DHTLocalStorage,
    DHTRecord,
    DictionaryDHTValue,
    RecordValidatorBase,
    TimedStorage,
)
from ftis_node.swarm.rules import RecordRules
from ftis_protocol.canonical import pack
from ftis_protocol.errors import Reason

MAX_STORED_BYTES = 256 * 1024 * 1024
# All entries of a key travel in one message, and messages above 4 MiB are lost in silence.
MAX_DICTIONARY_BYTES = 2 * 1024 * 1024
MAX_CACHED_BYTES = 16 * 1024 * 1024
_NO_SUBKEY = pack(None)
_HEADERS = {0xC4: 1, 0xC5: 2, 0xC6: 4}  # msgpack bin 8, 16, 32: bytes of length after the first


def hash_key(key: str) -> bytes:
    """The bytes under which the hash table files a key."""
    hashed: bytes = DHTID.generate(source=key).to_bytes()
    return hashed


def wrap(value: bytes) -> bytes:
    """Bytes as the hash table stores them."""
    return pack(value)


def unwrap(stored: bytes) -> bytes | None:
    """The inverse of `wrap`, by hand: a general reader would build whatever objects a stranger describes."""
    width = _HEADERS.get(stored[0]) if stored else None
    if width is None or len(stored) < 1 + width:
        return None
    size = int.from_bytes(stored[1 : 1 + width], "big")
    return stored[1 + width :] if len(stored) == 1 + width + size else None


def _subkey_of(packed: bytes) -> str | None:
    """The text of a packed subkey of at most 31 ASCII characters; None for anything else."""
    if not packed or not 0xA0 <= packed[0] <= 0xBF or len(packed) != 1 + (packed[0] & 0x1F):
        return None
    try:
        return packed[1:].decode("ascii")
    except UnicodeDecodeError:
        return None


class RuleValidator(RecordValidatorBase):  # type: ignore[misc]
    """Lets `RecordRules` judge what peers store here and what they return."""

    def __init__(self, rules: RecordRules) -> None:
        self.rules = rules

    def validate(self, record: DHTRecord) -> bool:
        value = unwrap(record.value)
        subkey = _subkey_of(record.subkey)
        if value is None or (subkey is None and record.subkey != _NO_SUBKEY):
            self.rules.refused[Reason.SCHEMA] += 1
            return False
        return self.rules.accepts(record.key, subkey, value, record.expiration_time)


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]
    """Refuses what would take more than `max_bytes` in all, or too much under one key. What is there stays there: a
    flood cannot push out what was stored before it."""

    def __init__(self, max_bytes: int = MAX_STORED_BYTES, limited: Counter[Limit] | None = None) -> None:
        super().__init__()
        self._limited: Counter[Limit] = Counter() if limited is None else limited
        self._max_bytes = max_bytes
        self._estimate = 0
        self._measured_at = 0.0

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: str | None = None) -> bool:
        if subkey is not None:
            return self.store_subkey(key, subkey, value, expiration_time)
        if not self._room_for(len(value)):
            return False
        return bool(super().store(key, value, expiration_time))

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        if not self._room_for(len(value)):
            return False
        self._remove_outdated()
        present = self.data.get(key)
        if present is None or not isinstance(present.value, DictionaryDHTValue):
            return bool(super().store_subkey(key, subkey, value, expiration_time))
        others = sum(len(item.value) for name, item in present.value.items() if name != subkey)
        if others + len(value) > MAX_DICTIONARY_BYTES:
            self._limited[Limit.DICTIONARY] += 1
            return False
        accepted = bool(present.value.store(subkey, value, expiration_time))
        if accepted and expiration_time > present.expiration_time:
            TimedStorage.store(self, key, present.value, expiration_time)
        return accepted

    def get(self, key: DHTID) -> object:
        """A dictionary comes as a copy: searches merge into it what other nodes return."""
        found = super().get(key)
        if found is None or not isinstance(found.value, DictionaryDHTValue):
            return found
        return type(found)(_copy(found.value), found.expiration_time)

    def _room_for(self, size: int) -> bool:
        self._estimate += size
        if self._estimate <= self._max_bytes:
            return True
        if time.monotonic() - self._measured_at > 1.0:  # full or nearly so: counting again is not for every record
            self._measured_at = time.monotonic()
            self._estimate = size + sum(_size(item.value) for _, item in self.items())
        if self._estimate > self._max_bytes:
            self._estimate -= size
            self._limited[Limit.MEMORY] += 1
            return False
        return True


def _size(value: bytes | DictionaryDHTValue) -> int:
    return sum(len(item.value) for _, item in value.items()) if isinstance(value, DictionaryDHTValue) else len(value)


def _copy(original: DictionaryDHTValue) -> DictionaryDHTValue:
    copy = DictionaryDHTValue()
    for subkey, (value, expiration_time) in original.items():
        copy.store(subkey, value, expiration_time)
    return copy
