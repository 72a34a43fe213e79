"""The key of a node. Whoever holds the file is the node; its id and its friendly name follow from the public half.

The file is an Ed25519 key in unencrypted PKCS#8 PEM, readable by its owner alone.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from secrets import token_hex

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from ftis_protocol.canonical import short_id
from ftis_protocol.errors import IdentityError
from ftis_protocol.names import ADJECTIVES, ANIMALS

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
_FIELD = 2**255 - 19
_ORDER_8_Y = int("05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826", 16)
# y-coordinates of all points whose order divides 8, also in the two spellings that are not reduced
_SMALL_ORDER_Y = frozenset({0, 1, _FIELD - 1, _FIELD, _FIELD + 1, _ORDER_8_Y, _FIELD - _ORDER_8_Y})
_MAX_FILE_BYTES = 4096
_HEADER = b"-----BEGIN PRIVATE KEY-----"
_FOOTER = b"-----END PRIVATE KEY-----"
_RESTORE = "Restore the file from a copy, or move it away and let the node create a new identity."


class Identity:
    """A node's Ed25519 key pair. Make one with `create` or `load`."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self.public_key: bytes = private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.node_id: str = node_id_of(self.public_key)
        self.friendly_name: str = friendly_name(self.node_id)

    @classmethod
    def create(cls) -> Identity:
        """A new random identity, not stored anywhere yet."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Identity:
        """Read a key file. Raises IdentityError, with what to do, for every way in which it can be unusable."""
        return cls(_parse(_read(Path(path)), Path(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key with mode 0600, all or nothing. An existing file is never replaced (IdentityError)."""
        target = Path(path)
        pem = self._private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            os.makedirs(target.parent, exist_ok=True)
        except OSError as error:
            raise IdentityError(
                f"the folder {target.parent} cannot be made: {error.strerror}", "Choose another path for the key file."
            ) from error
        try:
            _write_new(target, pem)
        except FileExistsError as error:
            raise IdentityError(
                f"{target} already exists",
                "An identity is never overwritten: choose another path or move the old file.",
            ) from error
        except OSError as error:
            raise IdentityError(
                f"{target} cannot be written: {error.strerror}", "Check the folder's permissions and free space."
            ) from error

    def sign(self, data: bytes) -> bytes:
        """The 64-byte signature of `data`."""
        return self._private_key.sign(data)

    def __repr__(self) -> str:
        return f"Identity({self.friendly_name}, {self.node_id})"


def node_id_of(public_key: bytes) -> str:
    """The 26-character id of a 32-byte public key."""
    return short_id(public_key)


def friendly_name(node_id: str) -> str:
    """A name such as brave-otter-42 for people to read; not unique, so never used to tell nodes apart."""
    digest = hashlib.blake2b(node_id.encode(), digest_size=8, person=b"ftis-name").digest()
    number = int.from_bytes(digest, "little")
    number, adjective = divmod(number, len(ADJECTIVES))
    number, animal = divmod(number, len(ANIMALS))
    return f"{ADJECTIVES[adjective]}-{ANIMALS[animal]}-{number % 100}"


def verify(public_key: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `signature` was made over `data` with the private half of `public_key`. Never raises."""
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES or _has_small_order(public_key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _has_small_order(public_key: bytes) -> bool:
    """Whether the key is one of the few points for which anybody can make signatures. OpenSSL lets them pass."""
    y = int.from_bytes(public_key, "little") & (2**255 - 1)
    return y in _SMALL_ORDER_Y


def _read(path: Path) -> bytes:
    try:
        # Without O_NONBLOCK a named pipe in the file's place would hang the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise IdentityError(f"there is no key file at {path}", "Check the path, or let the node create one.") from error
    except OSError as error:
        raise IdentityError(
            f"{path} cannot be opened: {error.strerror}", "Check the path and run as its owner."
        ) from error
    try:
        _check_mode(os.fstat(descriptor).st_mode, path)
        return os.read(descriptor, _MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)


def _check_mode(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IdentityError(f"{path} is a directory, not a key file", "Give the path of the file inside it.")
    if not stat.S_ISREG(mode):
        raise IdentityError(f"{path} is not an ordinary file", "Give the path of a key file.")
    if mode & 0o077:
        raise IdentityError(
            f"{path} can be read or changed by others (mode {stat.S_IMODE(mode):04o})", f"Run: chmod 600 {path}"
        )


def _parse(data: bytes, path: Path) -> Ed25519PrivateKey:
    if not data.strip():
        raise IdentityError(f"{path} is empty", _RESTORE)
    text = data.strip()
    if len(data) <= _MAX_FILE_BYTES and _HEADER.startswith(text[: len(_HEADER)]) and not text.endswith(_FOOTER):
        raise IdentityError(f"{path} is cut off before its end", _RESTORE)
    if len(data) > _MAX_FILE_BYTES or not text.startswith(_HEADER):
        raise IdentityError(f"{path} is not a key file of this program", "Give an Ed25519 key in PKCS#8 PEM form.")
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError(f"{path} is damaged", _RESTORE) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(f"{path} holds a key of another kind", "Give an Ed25519 key in PKCS#8 PEM form.")
    return key


def _write_new(target: Path, data: bytes) -> None:
    """Write aside, flush to disk, then appear under the final name."""
    aside = target.with_name(f".{target.name}.{token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        _appear(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _appear(aside: Path, target: Path) -> None:
    """A hard link, unlike a rename, cannot replace a file that another process put there in between; a rename serves
    only where the file system has no hard links."""
    try:
        os.link(aside, target)
    except FileExistsError:
        raise
    except OSError:
        if target.exists():
            raise FileExistsError(target) from None
        aside.rename(target)
