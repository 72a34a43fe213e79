#!/usr/bin/env python3
"""Writes tests/vectors: what another implementation of the protocol must make of fixed input, and refuse.

python scripts/vectors.py           write them
python scripts/vectors.py --check   exit 1 and name those that are not current

Keys and times are fixed. Compressed bodies may differ between versions of zstd and LZMA, all of them right: the field
`sealed` of a message is one way to write it, `canonical` the only one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "protocol")]

from ftis_protocol import columns, keys, limits  # noqa: E402
from ftis_protocol.canonical import pack, raw_id, unpack  # noqa: E402
from ftis_protocol.codec import canonical_bytes, compress, encode  # noqa: E402
from ftis_protocol.dictionaries import newest_dictionary, text_dictionary  # noqa: E402
from ftis_protocol.envelope import KINDS, Kind, Message, open_envelope, seal, signed_part  # noqa: E402
from ftis_protocol.errors import ProtocolError  # noqa: E402
from ftis_protocol.identity import Identity  # noqa: E402
from ftis_protocol.manifest import Sampling, SwarmManifest, TaskSpec  # noqa: E402
from ftis_protocol.presence import Departure, NodeCard, Offer, OfferedFrame, OfferedGroup, PeerTally  # noqa: E402
from ftis_protocol.rollout import (  # noqa: E402
    Completion,
    Evidence,
    Finish,
    Frame,
    Group,
    PolicyRef,
    PromptRef,
    group_digest,
    item_seed,
)

FOLDER = ROOT / "tests" / "vectors"
SEEDS = ("founder", "author", "stranger")
NOW = 1_790_000_000
SLOT = NOW // 30
POLICY = PolicyRef(model="tiny/adder", revision="main", tokenizer="9f3a1c20b7d4e856", trainable="full")


def identity(name: str) -> Identity:
    """The key whose 32 private bytes are the name, filled up with zeros."""
    return Identity(Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"\0")))


FOUNDER, AUTHOR, STRANGER = map(identity, SEEDS)


def manifest(dictionary: str = "") -> SwarmManifest:
    return SwarmManifest(
        name="Sums for everyone",
        tasks=(
            TaskSpec(
                name="arithmetic", version=1, parameters={"operations": "+-", "digits": 2, "p": 0.5, "easy": True}
            ),
            TaskSpec(name="arithmetic:times", version=1, parameters={"operations": "*"}),
        ),
        sampling=Sampling(max_completion_tokens=64),
        evidence=tuple(Evidence),
        creator=FOUNDER.public_key,
        created_at=NOW,
        dictionary=dictionary,
    )


PLAIN, PACKED = manifest(), manifest(newest_dictionary())


def groups() -> tuple[Group, ...]:
    """One of each evidence tier."""
    texts = ((" 42\n", Finish.RULE, 1.0), (" 43", Finish.LENGTH, 0.0), ("à peu près 40 😀", Finish.STOP, 0.25))
    tiers: dict[Evidence, list[dict[str, Any]]] = {
        Evidence.NONE: [{}, {}, {}],
        Evidence.SEQUENCE: [{"logprob_sum": -1.5}, {"logprob_sum": columns.single(-0.1)}, {"logprob_sum": -30.0}],
        Evidence.TOKEN: [
            {"token_ids": (5, 70_000), "logprobs": columns.half((-0.1, -2.0))},
            {"token_ids": (6,), "logprobs": (-0.5,)},
            {"token_ids": (), "logprobs": ()},
        ],
    }
    return tuple(
        Group(
            prompt=PromptRef(
                task="arithmetic:times" if place else "arithmetic", version=1, slot=SLOT, index=place * 300
            ),
            policy_version=12,
            evidence=tier,
            completions=tuple(
                Completion(text=text, finish=finish, reward=reward, **more)
                for (text, finish, reward), more in zip(texts, tiers[tier], strict=True)
            ),
        )
        for place, tier in enumerate(Evidence)
    )


FRAME = Frame(slot=SLOT, policy=POLICY, groups=groups())
MESSAGES: dict[str, Message] = {
    "manifest": PLAIN,
    "manifest with a dictionary": PACKED,
    "card": NodeCard(
        name="brave-otter-42",
        state="training",
        model="tiny/adder",
        parameters=106_000,
        tokenizer=POLICY.tokenizer,
        policy_version=12,
        tokens_per_second=812.5,
        pass_at_1=0.25,
        peers={STRANGER.node_id: PeerTally(accepted=9, refused=1)},
        addresses=("/ip4/203.0.113.7/tcp/4001/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",),
        software="ftis-node 0.1.0",
    ),
    "departure": Departure(reason="closed for the night"),
    "offer": Offer(
        slot=SLOT,
        frames=(
            OfferedFrame(
                digest=bytes(range(32)),
                size_bytes=900,
                policy_version=12,
                groups=(OfferedGroup(task="arithmetic", version=1, right=3, size=8, tokens=40),),
            ),
        ),
    ),
    "frame": FRAME,
    "frame in a swarm with a dictionary": FRAME,
}


def swarm_of(name: str) -> SwarmManifest:
    return PACKED if "dictionary" in name else PLAIN


def plain(message: Message) -> Any:
    """The message in JSON: byte strings in hexadecimal, enumerations by their value."""
    return json.loads(json.dumps(message.model_dump(mode="python"), default=bytes.hex))


def messages() -> dict[str, Any]:
    """Every kind of message, to be made from `message` and to be read from `sealed`."""
    entries = {}
    for name, message in MESSAGES.items():
        rules = swarm_of(name)
        sealed = seal(message, AUTHOR, rules.swarm_id, 7, NOW, text_dictionary(rules.dictionary))
        kind = next(kind for kind, rule in KINDS.items() if rule.model is type(message))
        entries[name] = {
            "kind": int(kind),
            "swarm_id": rules.swarm_id,
            "dictionary": rules.dictionary,
            "sequence": 7,
            "issued_at": NOW,
            "message": plain(message),
            "canonical": canonical_bytes(message).hex(),
            "sealed": sealed.hex(),
            "digest": keys.body_digest(sealed).hex(),
        }
    return {"sender": SEEDS[1], "messages": entries}


def names() -> dict[str, Any]:
    """Keys, ids, digests and seeds."""
    one = FRAME.groups[0]
    return {
        "identities": [
            {
                "private": seed.encode().ljust(32, b"\0").hex(),
                "public": who.public_key.hex(),
                "node_id": who.node_id,
                "friendly_name": who.friendly_name,
                "shard_of_16": keys.shard_of(who.node_id, 16),
                "signature_of_ftis": who.sign(b"ftis").hex(),
            }
            for seed, who in zip(SEEDS, (FOUNDER, AUTHOR, STRANGER), strict=True)
        ],
        "swarm_ids": {"without a dictionary": PLAIN.swarm_id, "with one": PACKED.swarm_id},
        "dictionary": newest_dictionary(),
        "keys": {
            "discovery": keys.discovery_key(),
            "manifest": keys.manifest_key(PLAIN.swarm_id),
            "presence": keys.presence_key(PLAIN.swarm_id, 3),
            "offers": keys.offers_key(PLAIN.swarm_id, 3, SLOT),
            "body": keys.body_key(bytes(range(32))),
        },
        "item_seed": {
            "of": [PLAIN.swarm_id, AUTHOR.node_id, SLOT, "arithmetic", 1],
            "is": str(item_seed(PLAIN.swarm_id, AUTHOR.node_id, SLOT, "arithmetic", 1)),
        },
        "group_digest": {
            "of": [plain(FRAME)["groups"][0], AUTHOR.node_id],
            "is": group_digest(one, AUTHOR.node_id).hex(),
        },
    }


def forms() -> dict[str, Any]:
    """Canonical msgpack and columns."""
    values: list[Any] = [None, True, 0, 127, 128, -1, -33, 65_536, 2**53, 0.5, "é", [1, ["a"]], {"b": 1, "a": {"d": 2}}]
    integers = [[], [0, 255], [256], [65_536], [2**32]]
    floats = [[], [1.0, 0.0, 1.0], [0.5, -2.0], [columns.single(-0.1)], [-0.1]]
    return {
        "msgpack": [{"value": value, "bytes": pack(value).hex()} for value in values],
        "integers": [{"values": some, "bytes": columns.pack_ints(some).hex()} for some in integers],
        "floats": [{"values": some, "bytes": columns.pack_floats(some).hex()} for some in floats],
    }


def refused() -> dict[str, Any]:
    """Bytes that every reader of the swarm without a dictionary refuses, each with its reason."""
    return {
        "swarm_id": PLAIN.swarm_id,
        "dictionary": PLAIN.dictionary,
        "refused": {name: {"bytes": data.hex(), "reason": _reason(data)} for name, data in _hostile()},
    }


def _hostile() -> Iterator[tuple[str, bytes]]:
    good = seal(FRAME, AUTHOR, PLAIN.swarm_id, 7, NOW)
    fields = list(unpack(good))
    yield "nothing", b""
    yield "cut", good[:-1]
    yield "a byte behind the end", good + b"\0"
    yield "another version", _signed(version=2)
    yield "an unknown kind", _signed(kind=99)
    yield "another swarm", seal(FRAME, AUTHOR, PACKED.swarm_id, 7, NOW)
    elsewhere = list(unpack(seal(FRAME, AUTHOR, PACKED.swarm_id, 7, NOW)))
    yield "a signature for another swarm", pack([*elsewhere[:2], raw_id(PLAIN.swarm_id), *elsewhere[3:]])
    yield "another's key", pack([*fields[:3], STRANGER.public_key, *fields[4:]])
    yield "a key of small order", pack([*fields[:3], bytes(32), *fields[4:7], bytes(64)])
    yield "a negative sequence number", _signed(sequence=-1)
    yield "a body that is not compressed", _signed(body=b"junk")
    yield "a bomb", _signed(body=compress(bytes(limits.MAX_FRAME_DECOMPRESSED_BYTES + 1)))
    yield "deep nesting", _signed(body=compress(b"\x91" * 900 + b"\xc0"))
    yield "a key twice", _signed(kind=int(Kind.DEPARTURE), body=compress(b"\x82" + b"\xa6reason\xa1a" * 2))
    yield "an unknown field", _signed(kind=int(Kind.DEPARTURE), body=compress(pack({"reason": "", "more": 1})))
    yield "a group of one", _signed(body=encode(_with_group(completions=FRAME.groups[0].completions[:1])))
    packed = encode(FRAME, text_dictionary(PACKED.dictionary))
    yield "a dictionary that the swarm does not name", _signed(body=packed)


def _with_group(**changes: Any) -> Frame:
    return FRAME.model_copy(update={"groups": (FRAME.groups[0].model_copy(update=changes),)})


def _signed(**changes: Any) -> bytes:
    """The frame's envelope with some fields replaced under an honest signature."""
    order = ("version", "kind", "swarm", "key", "sequence", "issued_at", "body")
    good = unpack(seal(FRAME, AUTHOR, PLAIN.swarm_id, 7, NOW))
    head = list((dict(zip(order, good, strict=False)) | changes).values())
    return pack([*head, AUTHOR.sign(signed_part(head))])


def _reason(data: bytes) -> str:
    try:
        open_envelope(data, swarm_id=PLAIN.swarm_id)
    except ProtocolError as error:
        return error.reason.value
    raise AssertionError("a hostile vector was accepted")


VECTORS = {"messages.json": messages, "names.json": names, "forms.json": forms, "refused.json": refused}


def text_of(name: str) -> str:
    """The content of a file in tests/vectors, as this version makes it."""
    return json.dumps(VECTORS[name](), indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    stale = []
    for name in VECTORS:
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text_of(name):
            continue
        stale.append(f"tests/vectors/{name}")
        if "--check" not in arguments:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(text_of(name), encoding="utf-8")
    print(f"{'not current' if '--check' in arguments else 'written'}: {', '.join(stale) or 'none'}")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
