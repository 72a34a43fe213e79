"""What this node published and may have to store again, and the description of a frame that its offer carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftis_node.records import RIGHT_REWARD
from ftis_protocol.limits import BODY_LIFETIME_SECONDS
from ftis_protocol.presence import OfferedFrame, OfferedGroup
from ftis_protocol.rollout import Frame, Group

# Bytes of text a token stands for in most tokenizers; only for the sizes told in offers of text-only groups.
_BYTES_PER_TOKEN = 4


@dataclass(slots=True)
class OwnFrame:
    """One published frame. `attempts` makes every new store expire a little later than the last, as boards demand."""

    slot: int
    offered: OfferedFrame
    data: bytes
    published_at: float
    stored: bool = False
    checked_at: float = 0.0
    attempts: int = 0

    def next_expiry(self) -> float:
        """When the next stored copy expires: the lifetime counts from publication, however often it is renewed."""
        self.attempts += 1
        return self.published_at + BODY_LIFETIME_SECONDS + 0.001 * self.attempts


class Outbox:
    """Own frames of the last BODY_LIFETIME_SECONDS, in order of publication."""

    def __init__(self) -> None:
        self._frames: dict[bytes, OwnFrame] = {}
        self._recovered: dict[int, tuple[OfferedFrame, ...]] = {}

    def adopt(self, slot: int, frames: Sequence[OfferedFrame]) -> None:
        """Offers of `slot` that an earlier run of this node left behind; they stay in the slot's offer."""
        self._recovered[slot] = tuple(frames)

    def add(self, frame: OwnFrame) -> None:
        self._frames[frame.offered.digest] = frame

    def get(self, digest: bytes) -> bytes | None:
        """The bytes of an own frame."""
        frame = self._frames.get(digest)
        return frame.data if frame is not None else None

    def offered(self, slot: int) -> tuple[OfferedFrame, ...]:
        """What the offer of `slot` lists: frames that a storing node has confirmed."""
        own = tuple(f.offered for f in self._frames.values() if f.slot == slot and f.stored)
        known = {frame.digest for frame in own}
        return tuple(f for f in self._recovered.get(slot, ()) if f.digest not in known) + own

    def alive(self, now: float) -> tuple[OwnFrame, ...]:
        """Frames within their lifetime; older ones are forgotten."""
        self._frames = {d: f for d, f in self._frames.items() if now < f.published_at + BODY_LIFETIME_SECONDS}
        slots = {frame.slot for frame in self._frames.values()}
        newest = max(slots, default=0)
        self._recovered = {s: r for s, r in self._recovered.items() if s in slots or s >= newest}
        return tuple(self._frames.values())


def describe(frame: Frame, digest: bytes, size_bytes: int, tokens: Sequence[int] | None) -> OfferedFrame:
    """The entry for `frame` in its slot's offer; `tokens` as in `Swarm.publish`."""
    counts = [_token_count(group) for group in frame.groups] if tokens is None else list(tokens)
    assert len(counts) == len(frame.groups), "one token count per group"
    groups = tuple(_describe_group(group, count) for group, count in zip(frame.groups, counts, strict=True))
    version = max(group.policy_version for group in frame.groups)
    return OfferedFrame(digest=digest, size_bytes=size_bytes, policy_version=version, groups=groups)


def _describe_group(group: Group, tokens: int) -> OfferedGroup:
    right = sum(completion.reward >= RIGHT_REWARD for completion in group.completions)
    prompt = group.prompt
    return OfferedGroup(
        task=prompt.task, version=prompt.version, right=right, size=len(group.completions), tokens=tokens
    )


def _token_count(group: Group) -> int:
    return sum(
        len(c.token_ids) if c.token_ids is not None else max(1, len(c.text.encode()) // _BYTES_PER_TOKEN)
        for c in group.completions
    )
