"""Twenty thousand damaged envelopes through decoding and admission; scripts/bench/fuzz sends a million and more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from envelope_fuzz import EnvelopeFuzz, resident_bytes
from ftis_node.lab.tiny import make_tiny
from ftis_node.tokens import TextCodec
from ftis_protocol.errors import Reason

COUNT = 20_000
MAX_GROWTH_BYTES = 64 * 2**20


async def test_no_damaged_envelope_raises_or_costs_memory(tmp_path: Path) -> None:
    fuzz = EnvelopeFuzz(TextCodec.load(make_tiny(tmp_path / "model")), tmp_path, seed=20_26)
    try:
        await fuzz.run(200)
        before = resident_bytes()
        outcomes = await fuzz.run(COUNT)
        assert resident_bytes() - before < MAX_GROWTH_BYTES
    finally:
        fuzz.close()
    reasons = Counter({reason: 0 for _, reason in outcomes})
    for (_, reason), count in outcomes.items():
        reasons[reason] += count
    assert reasons["admitted"] > 20, "some mail must still be good, or nothing behind the first check was tried"
    reached = {Reason.SCHEMA, Reason.SIGNATURE, Reason.KIND, Reason.VERSION, Reason.WRONG_SWARM, Reason.FUTURE}
    reached |= {Reason.EXPIRED, Reason.SLOT, Reason.FINISH, Reason.REWARD_MISMATCH, Reason.DUPLICATE, Reason.GROUP_SIZE}
    assert not {reason.value for reason in reached} - reasons.keys()
