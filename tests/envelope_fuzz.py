"""Mutated envelopes for a whole receiver: from a flipped byte to well-signed messages that say impossible things.

Each mutation goes in one layer: the sealed bytes, the envelope's fields, the compressed body, the unpacked body, one
column, or the objects. Below the sealed bytes everything is signed again, so that the damage reaches the layer it is
meant for. One seed gives one sequence.
"""

from __future__ import annotations

import gc
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgpack

from ftis_node.admission.admit import Admission, AdmissionLimits
from ftis_node.clock import StepClock
from ftis_node.lab.harness import manifest_for
from ftis_node.store import Store
from ftis_node.tasks.registry import build, describe
from ftis_node.tokens import TextCodec
from ftis_protocol.canonical import unpack
from ftis_protocol.codec import canonical_bytes, compress, encode
from ftis_protocol.dictionaries import newest_dictionary, text_dictionary
from ftis_protocol.envelope import seal
from ftis_protocol.frame_layout import flatten
from ftis_protocol.identity import Identity
from ftis_protocol.packing import pack_frame
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, PolicyRef, PromptRef, item_seed
from inline_pool import InlinePool
from resigning import resigned

TASK = describe("arithmetic", operations="+", digits=1)
NOW = 1_000_000_000.0
ODD_NUMBERS = (0, 1, -1, 2**16, 2**31, 2**53, 2**53 + 1, 2**63, 2**64 - 1, float("nan"), float("inf"), -0.0, 1e308)
ODD_TEXTS = ("", " ", "\x00", "<|end|>", "é" * 9, "\u202e12", "1" * 5000, "\n" * 40, "𝟙𝟚", "nan", "-0", "=" * 64)


def resident_bytes() -> int:
    """Memory of this process."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


class EnvelopeFuzz:
    """A receiver that trusts its one sender, and that sender's damaged mail."""

    def __init__(self, codec: TextCodec, folder: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.manifest = manifest_for([TASK], max_completion_tokens=16, evidence=tuple(Evidence)).model_copy(
            update={"dictionary": newest_dictionary()}
        )
        self.dictionary = text_dictionary(self.manifest.dictionary)
        self.sender, self.task = Identity.create(), build(TASK)
        self.slot = int(NOW // self.manifest.slot_seconds)
        self.store = Store.open(folder / "node.db")
        bounds = AdmissionLimits(32, 2**40, frozenset({self.sender.node_id}))
        tasks = {(TASK.name, TASK.version): self.task}
        self.admission = Admission(self.manifest, tasks, codec, InlinePool(), self.store, StepClock(NOW), bounds)
        self._serial = 0
        self._frames = [self._frame(tier) for tier in Evidence for _ in range(3)]
        self._good = [self._sealed(frame) for frame in self._frames]
        self._layers: dict[str, tuple[Callable[[], bytes], int]] = {
            "sealed bytes": (self._bytes, 160),
            "envelope": (self._envelope, 40),
            "body": (self._body, 20),
            "column": (self._column, 20),
            "objects": (self._objects, 20),
            "packed": (self._packed, 1),
        }

    async def run(self, count: int) -> Counter[tuple[str, str]]:
        """Outcomes by layer and reason; an exception is a failed run."""
        outcomes: Counter[tuple[str, str]] = Counter()
        names = list(self._layers)
        weights = [weight for _, weight in self._layers.values()]
        for layer in self.rng.choices(names, weights, k=count):
            admitted = await self.admission.admit(self._layers[layer][0](), self.sender.node_id)
            outcomes.update((layer, verdict.reason.value) for verdict in admitted.refused)
            outcomes[layer, "admitted"] += len(admitted.groups)
        return outcomes

    def close(self) -> None:
        self.store.close()

    def _frame(self, tier: Evidence) -> Frame:
        groups = tuple(self._group(self._next(), tier) for _ in range(self.rng.randint(1, 3)))
        return Frame(
            slot=self.slot, policy=PolicyRef(model="m", revision="", tokenizer="aa", trainable="full"), groups=groups
        )

    def _next(self) -> int:
        self._serial += 1
        return self._serial % self.manifest.slice_size

    def _group(self, index: int, tier: Evidence) -> Group:
        seed = item_seed(self.manifest.swarm_id, self.sender.node_id, self.slot, TASK.name, TASK.version)
        right = self.task.item(seed, index).answer
        more: dict[str, Any] = {}
        if tier is Evidence.SEQUENCE:
            more = {"logprob_sum": -1.5}
        elif tier is Evidence.TOKEN:
            more = {"token_ids": (1, 2, 3), "logprobs": (-0.5, -0.25, -3.0)}
        texts = ((f" {right}\n", 1.0), (" x", 0.0), (" 7q", float(right == "7")))
        return Group(
            prompt=PromptRef(task=TASK.name, version=TASK.version, slot=self.slot, index=index),
            policy_version=3,
            evidence=tier,
            completions=tuple(Completion(text=t, finish=Finish.RULE, reward=r, **more) for t, r in texts),
        )

    def _sealed(self, frame: Frame) -> bytes:
        return seal(frame, self.sender, self.manifest.swarm_id, self._next(), NOW, None)

    def _signed(self, body: Any, **changes: Any) -> bytes:
        return resigned(self._good[0], self.sender, **{"sequence": self._next(), "body": body} | changes)

    def _bytes(self) -> bytes:
        return self._damaged(self.rng.choice(self._good), [b"", *self._good])

    def _envelope(self) -> bytes:
        field = self.rng.choice(["version", "kind", "swarm", "key", "sequence", "issued_at", "body"])
        odd = self.rng.choice([*ODD_NUMBERS, None, True, "text", b"", bytes(16), bytes(32), self.rng.randbytes(20)])
        if field == "issued_at" and self.rng.random() < 0.7:
            odd = int(NOW) + self.rng.choice([4, 3600, -601, -86_400, 50 * 365 * 86_400])
        return self._signed(**{"body": unpack(self.rng.choice(self._good))[6], field: odd})

    def _body(self) -> bytes:
        frame = self.rng.choice(self._frames)
        raw = canonical_bytes(frame)
        if self.rng.random() < 0.5:
            return self._signed(compress(self._damaged(raw, [raw]) or b"\0"))
        return self._signed(self._damaged(encode(frame), [encode(frame)]))

    def _column(self) -> bytes:
        fields = flatten(self.rng.choice(self._frames))
        for _ in range(self.rng.randint(1, 2)):
            place = self.rng.randrange(len(fields))
            fields[place] = self._other(fields[place], fields)
        return self._signed(compress(msgpack.packb(fields)))

    def _other(self, field: Any, fields: Sequence[Any]) -> Any:
        choice = self.rng.random()
        if choice < 0.4 and isinstance(field, bytes):
            return self._damaged(field, [f for f in fields if isinstance(f, bytes)])
        if choice < 0.7:
            return self.rng.choice(fields)
        if choice < 0.8 and isinstance(field, bytes):
            return b"d" + struct.pack("<d", self.rng.choice(ODD_NUMBERS)) * self.rng.randint(1, 9)
        nested: list[Any] = [[1], {"a": 1}, [[[[]]]], None, self.rng.randbytes(self.rng.randint(0, 40)), "t" * 300]
        return self.rng.choice([*nested, *(n for n in ODD_NUMBERS if n != n or abs(n) < 2**63)])

    def _objects(self) -> bytes:
        frame = self.rng.choice(self._frames)
        group = self.rng.choice(frame.groups)
        prompt: dict[str, Any] = {"index": self._next()}
        if self.rng.random() < 0.3:
            prompt[self.rng.choice(["slot", "index", "version"])] = self.rng.choice([0, 1, 10**9, 2**53, self.slot + 2])
        members = list(group.completions)
        place = self.rng.randrange(len(members))
        members[place] = members[place].model_copy(update=self._oddity())
        if self.rng.random() < 0.2:
            members = self.rng.choice([members[:1], members * 30, members[:2] * 2])
        changed = group.model_copy(
            update={"prompt": group.prompt.model_copy(update=prompt), "completions": tuple(members)}
        )
        return self._signed(encode(frame.model_copy(update={"groups": (changed, *frame.groups[1:])})))

    def _oddity(self) -> dict[str, Any]:
        return self.rng.choice(
            [
                {"text": self.rng.choice(ODD_TEXTS)},
                {"reward": float(self.rng.choice([n for n in ODD_NUMBERS if n == n]))},
                {"finish": self.rng.choice(list(Finish))},
                {"logprob_sum": self.rng.choice([None, -1e300, -5000.0, 0.0005, 0.5])},
                {"token_ids": (1, 2), "logprobs": (-1.0, self.rng.choice([-2000.0, 0.0, 0.0009]))},
            ]
        )

    def _packed(self) -> bytes:
        frame = self.rng.choice(self._frames)
        body = encode(frame, self.dictionary)
        choice = self.rng.random()
        if choice < 0.2 and self.dictionary is not None:
            content = pack_frame(flatten(frame))
            size, coded = self.dictionary.compress(self._damaged(content, [content, body]))
            body = body[:1] + self.dictionary.tag + size.to_bytes(4, "little") + coded
        return self._signed(self._damaged(body, [body]) if 0.1 < choice < 0.9 else body)

    def _damaged(self, data: bytes, others: Sequence[bytes]) -> bytes:
        """One to four edits: a bit, a stretch cut, repeated, overwritten, or spliced in from elsewhere."""
        for _ in range(self.rng.randint(1, 4)):
            start = self.rng.randint(0, len(data))
            end = min(len(data), start + self.rng.choice([1, 1, 2, 8, 64]))
            donor = self.rng.choice(others)
            at = self.rng.randint(0, len(donor))
            piece = self.rng.choice(
                [
                    b"",
                    data[start:end] * 2,
                    self.rng.randbytes(end - start),
                    donor[at : at + end - start],
                    b"\xff",
                    b"\0",
                ]
            )
            data = data[:start] + piece + data[end:]
        return data
