"""Every kind of bad mail has a reason, and the reason a counter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftis_node.app import Node
from ftis_node.lab.harness import Lab, LabPlan
from ftis_protocol import limits
from ftis_protocol.canonical import pack, raw_id
from ftis_protocol.codec import compress, encode
from ftis_protocol.dictionaries import TextDictionary
from ftis_protocol.envelope import seal
from ftis_protocol.errors import Reason
from ftis_protocol.frame_layout import flatten
from ftis_protocol.manifest import SwarmManifest
from loops.test_exchange_loop import Liar, refused
from resigning import resigned

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]


def hostile(liar: Liar) -> dict[Reason, list[bytes]]:
    """Bodies by the reason that each is refused for."""
    rules, now = liar.lab.manifest, int(liar.lab.clock.now())
    good = liar.sealed(liar.frame(2, lying=False))
    fields = flatten(liar.frame(3, lying=False))

    def signed(**changes: Any) -> bytes:
        return resigned(good, liar.identity, **changes)

    def column(place: int, value: bytes) -> bytes:
        return signed(body=compress(pack([*fields[:place], value, *fields[place + 1 :]])))

    other_swarm = "a" * 26
    elsewhere = seal(liar.frame(4), liar.identity, other_swarm, 1, now)
    moved = elsewhere.replace(raw_id(other_swarm) or b"", raw_id(rules.swarm_id) or b"")
    unknown = TextDictionary.of_text(b"a text that nobody ships")
    _, bomb = unknown.compress(bytes(200_000))
    return {
        Reason.SIZE: [signed(body=compress(bytes(limits.MAX_FRAME_DECOMPRESSED_BYTES + 1)))],
        Reason.SCHEMA: [
            signed(body=compress(b"\x91" * 900 + b"\xc0")),
            column(14, b"h\x00\x00"),  # rewards: a column of one value for two completions
            column(15, b"z\x00\x00"),  # a column of no type
            signed(body=compress(b"\x82" + pack("slot") + b"\x01" + pack("slot") + b"\x02")),
        ],
        Reason.WRONG_SWARM: [elsewhere],
        Reason.SIGNATURE: [moved],
        Reason.VERSION: [signed(version=2)],
        Reason.KIND: [signed(kind=99)],
        Reason.FUTURE: [signed(issued_at=now + 3600)],
        Reason.EXPIRED: [signed(issued_at=now - 7 * 86_400)],
        Reason.DICTIONARY: [
            signed(body=encode(liar.frame(5), unknown)),
            signed(body=b"\x01" + unknown.tag + b"\xff\xff\xff\xff" + bomb),
        ],
        Reason.DUPLICATE: [signed(sequence=9), signed(sequence=10)],
    }


async def test_every_kind_of_bad_mail_has_its_reason_and_its_counter(
    letters: Rules, plan: MakePlan, tmp_path: Path
) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a", receive__groups_per_step=32))
        liar = Liar(lab)
        mail = hostile(liar)
        await admit(node, liar, liar.sealed(liar.frame(2, lying=False)))  # of which the last two are replays
        for bodies in mail.values():
            for body in bodies:
                await admit(node, liar, body)
        expected = {reason.value: len(bodies) for reason, bodies in mail.items()}
        assert refused(node) == expected
        counts = node.rooms.store.counts()
        assert {reason: counts["refused", reason] for reason in expected} == expected
        assert len(node.rooms.foreign) == 1


async def admit(node: Node, liar: Liar, body: bytes) -> None:
    node.exchange._keep(await node.rooms.admission.admit(body, liar.identity.node_id), liar.identity.node_id)
