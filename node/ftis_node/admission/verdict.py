"""What was decided about one group, and why: the record that counters, store and page are made from."""

from __future__ import annotations

from dataclasses import dataclass

from ftis_protocol.errors import Reason

#: refusals that only a peer which breaks a rule of the swarm can earn; everything else happens between honest nodes
BROKEN_PROMISES = frozenset(
    {
        Reason.SIZE,
        Reason.SCHEMA,
        Reason.KIND,
        Reason.WRONG_SWARM,
        Reason.SIGNATURE,
        Reason.DIGEST,
        Reason.FUTURE,
        Reason.INDEX,
        Reason.SLOT,
        Reason.GROUP_SIZE,
        Reason.FINISH,
        Reason.EMPTY,
        Reason.REWARD_MISMATCH,
    }
)


class RefusedGroup(Exception):
    """Inside this room only: carries the reason from a check to the verdict."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision. `digest` identifies the group (or, where no group could be read, the frame)."""

    author: str
    task: str
    digest: bytes
    reason: Reason
    detail: str = ""

    @property
    def broken_promise(self) -> bool:
        """True when no honest peer could have caused it; the only kind that costs a peer its standing."""
        return self.reason in BROKEN_PROMISES
