"""The node's key file in every state it can be found in, and the names that follow from a key."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st
from protocol_samples import FUZZ, IDENTITY, OTHER_IDENTITY

from ftis_protocol.errors import IdentityError, Reason
from ftis_protocol.identity import Identity, friendly_name, node_id_of, verify
from ftis_protocol.names import ADJECTIVES, ANIMALS


def pem(key: Ed25519PrivateKey | X25519PrivateKey, encryption: KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


GOOD = pem(Ed25519PrivateKey.generate())


def key_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "identity.pem"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def refused(path: Path) -> IdentityError:
    with pytest.raises(IdentityError) as caught:
        Identity.load(path)
    assert caught.value.reason is Reason.IDENTITY
    assert caught.value.hint
    return caught.value


def test_a_saved_identity_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "identity.pem"
    IDENTITY.save(path)
    again = Identity.load(path)
    assert (again.node_id, again.public_key) == (IDENTITY.node_id, IDENTITY.public_key)
    assert verify(IDENTITY.public_key, b"data", again.sign(b"data"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["identity.pem"]


def test_a_careless_umask_does_not_open_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        IDENTITY.save(tmp_path / "key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_an_existing_file_is_never_replaced(tmp_path: Path) -> None:
    path = key_file(tmp_path, b"precious")
    with pytest.raises(IdentityError, match="already exists"):
        IDENTITY.save(path)
    assert path.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["identity.pem"]


def test_without_hard_links_a_file_is_still_written_and_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    IDENTITY.save(tmp_path / "key")
    assert Identity.load(tmp_path / "key").node_id == IDENTITY.node_id
    with pytest.raises(IdentityError, match="already exists"):
        OTHER_IDENTITY.save(tmp_path / "key")
    assert os.listdir(tmp_path) == ["key"]


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(IdentityError, match="No space left"):
        IDENTITY.save(tmp_path / "key")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match="cannot be made"):
        IDENTITY.save(tmp_path / "file" / "key")


def test_a_missing_file(tmp_path: Path) -> None:
    assert "there is no key file" in str(refused(tmp_path / "none"))
    assert "cannot be opened" in str(refused(key_file(tmp_path, GOOD) / "below"))


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file(tmp_path: Path, content: bytes) -> None:
    assert "is empty" in str(refused(key_file(tmp_path, content)))


def test_a_file_cut_anywhere(tmp_path: Path) -> None:
    for length in range(1, len(GOOD.rstrip())):
        assert "cut off" in str(refused(key_file(tmp_path, GOOD[:length])))


def test_a_directory(tmp_path: Path) -> None:
    assert "is a directory" in str(refused(tmp_path))


def test_a_named_pipe_does_not_hang_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "not an ordinary file" in str(refused(tmp_path / "pipe"))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o602, 0o777])
def test_a_file_that_others_can_touch(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, GOOD, mode)
    error = refused(path)
    assert f"mode {mode:04o}" in str(error)
    assert error.hint == f"Run: chmod 600 {path}"


def test_a_read_only_file_is_fine(tmp_path: Path) -> None:
    assert len(Identity.load(key_file(tmp_path, GOOD, 0o400)).node_id) == 26


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a key at all", "not a key file"),
        (bytes(range(256)), "not a key file"),
        (b"\x00" * 10_000_000, "not a key file"),
        (GOOD.replace(b"PRIVATE", b"PUBLIC"), "not a key file"),
        (pem(Ed25519PrivateKey.generate(), BestAvailableEncryption(b"x")), "not a key file"),
        (GOOD.replace(b"MC4", b"MC5"), "is damaged"),
        (pem(X25519PrivateKey.generate()), "another kind"),
    ],
)
def test_other_content(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in str(refused(key_file(tmp_path, content)))


@FUZZ
@given(data=st.data())
def test_a_damaged_file_is_refused_or_still_a_key(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(GOOD) - 1))
    spoiled = GOOD[:place] + data.draw(st.binary(max_size=3)) + GOOD[place + data.draw(st.integers(0, 3)) :]
    path = key_file(tmp_path_factory.mktemp("keys"), spoiled)
    with contextlib.suppress(IdentityError):
        Identity.load(path)


def test_the_key_is_not_shown() -> None:
    assert repr(IDENTITY) == f"Identity({IDENTITY.friendly_name}, {IDENTITY.node_id})"


def test_names_follow_from_the_key() -> None:
    assert node_id_of(b"\x01" * 32) == "ya27qu742dyfrhrqzhrnygqpk4"
    assert re.fullmatch(r"[a-z2-7]{26}", IDENTITY.node_id)
    assert IDENTITY.friendly_name == friendly_name(IDENTITY.node_id)
    assert re.fullmatch(r"[a-z]+-[a-z]+-\d{1,2}", IDENTITY.friendly_name)
    assert friendly_name("ya27qu742dyfrhrqzhrnygqpk4") == "bold-eel-71"
    assert len(set(ADJECTIVES)) == len(set(ANIMALS)) == 64


@FUZZ
@given(st.binary(max_size=70), st.binary(max_size=20), st.binary(max_size=70))
def test_verifying_never_raises(key: bytes, data: bytes, signature: bytes) -> None:
    assert not verify(key, data, signature)
    assert not verify(IDENTITY.public_key, data, signature)
    assert not verify(key, data, IDENTITY.sign(data))


def test_keys_that_anybody_could_sign_for_are_refused() -> None:
    """All points of order 1, 2, 4 and 8: an all-zero signature fits some of them for some messages."""
    field = 2**255 - 19
    d = -121665 * pow(121666, -1, field) % field
    order_8 = int("05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826", 16)
    assert (d * pow(order_8, 4, field) + 2 * order_8**2 - 1) % field == 0  # 2P has y = 0, so P has order 8
    for y in (0, 1, field - 1, field, field + 1, order_8, field - order_8):
        for sign in (0, 1 << 255):
            key = (y | sign).to_bytes(32, "little")
            for number in range(16):
                for r in (b"\x00" * 32, b"\x01" + b"\x00" * 31, key):
                    assert not verify(key, bytes([number]), r + b"\x00" * 32)
