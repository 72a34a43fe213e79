"""Everything that can be wrong with what a peer, an invite or a key file says, with one reason code each.

    ProtocolError
      WireError        bytes that are not a message of this swarm
      PeerError        a well-formed message whose promise does not hold
      InviteError      an invite or address that a person pasted
      IdentityError    the file that holds this node's key
      ManifestError    a swarm's rules that contradict themselves or their own id

A reason is data: it is counted per peer and shown to the operator, and it never stops a node.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Every code that a verdict or a refusal may carry; `REASON_MEANINGS` has a sentence for each."""

    SIZE = "size"
    SCHEMA = "schema"
    VERSION = "version"
    KIND = "kind"
    WRONG_SWARM = "wrong_swarm"
    SIGNATURE = "signature"
    MEMBERSHIP = "membership"
    REPLAY = "replay"
    FUTURE = "future"
    EXPIRED = "expired"
    QUOTA = "quota"
    UNKNOWN_TASK = "unknown_task"
    SLOT = "slot"
    INDEX = "index"
    ROUND_TRIP = "round_trip"
    TOO_LONG = "too_long"
    EMPTY = "empty"
    FINISH = "finish"
    GROUP_SIZE = "group_size"
    DUPLICATE = "duplicate"
    REWARD_MISMATCH = "reward_mismatch"
    VERIFIER_FAILED = "verifier_failed"
    ZERO_SPREAD = "zero_spread"
    EVIDENCE = "evidence"
    DIGEST = "digest"
    DICTIONARY = "dictionary"
    NO_POSITIVE = "no_positive"
    SURPRISE = "surprise"
    UNSCORABLE = "unscorable"
    FILTERED = "filtered"
    STALE = "stale"
    USED = "used"
    RESCUE_ONLY = "rescue_only"
    INVITE = "invite"
    IDENTITY = "identity"
    MANIFEST = "manifest"


REASON_MEANINGS: dict[Reason, str] = {
    Reason.SIZE: "The bytes, or what they would decompress to, are over the limit for their kind.",
    Reason.SCHEMA: "The bytes do not have the form of the message they claim to be.",
    Reason.VERSION: "The sender speaks another version of the protocol.",
    Reason.KIND: "The kind of message is unknown, or not one that belongs in this place.",
    Reason.WRONG_SWARM: "The message was made for another swarm.",
    Reason.SIGNATURE: "The signature does not belong to the sender and these bytes.",
    Reason.MEMBERSHIP: "The swarm admits members only and the sender showed no valid certificate.",
    Reason.REPLAY: "The sequence number of the sender was seen before or went backwards.",
    Reason.FUTURE: "The message is dated later than the allowed clock difference permits.",
    Reason.EXPIRED: "The message is older than the lifetime of its kind.",
    Reason.QUOTA: "The sender already used up its share of this node's attention.",
    Reason.UNKNOWN_TASK: "The swarm's manifest has no task of that name and version.",
    Reason.SLOT: "The prompt was drawn in a slot that is too old or has not begun.",
    Reason.INDEX: "The index of the prompt is outside the sender's slice for that slot.",
    Reason.ROUND_TRIP: "The text does not survive encoding and decoding with the receiver's tokenizer.",
    Reason.TOO_LONG: "A completion exceeds what the swarm or the receiver accepts.",
    Reason.EMPTY: "A completion holds no text, or comes to no token at all.",
    Reason.FINISH: "The claimed end of a completion is not the one that the task's stop rule gives.",
    Reason.GROUP_SIZE: "The group has fewer or more completions than the swarm allows.",
    Reason.DUPLICATE: "The same completions for the same prompt, or a near copy of a long text, came before.",
    Reason.REWARD_MISMATCH: "The claimed reward differs from the one the receiver computed.",
    Reason.VERIFIER_FAILED: "The receiver's own checker failed; the sender is not to blame.",
    Reason.ZERO_SPREAD: "All completions have the same outcome, so there is nothing to compare.",
    Reason.EVIDENCE: "What is told about the sampling policy is not what the declared tier requires or permits.",
    Reason.DIGEST: "The bytes do not hash to the digest they were announced under.",
    Reason.DICTIONARY: "The frame was compressed with a dictionary that the swarm does not name or this node lacks.",
    Reason.NO_POSITIVE: "No completion of the group may train with a positive advantage.",
    Reason.SURPRISE: "The text is too unlikely under the receiver's own policy.",
    Reason.UNSCORABLE: "The receiver's policy has no finite log-probability for a text; training on it would break.",
    Reason.FILTERED: "Every completion of the group lost its gradient in the F-TIS filter.",
    Reason.STALE: "The group waited too long, or its policy is too many updates behind.",
    Reason.USED: "The group had a non-zero weight in an optimiser step.",
    Reason.RESCUE_ONLY: "All completions are right; kept for the case that this node fails the task.",
    Reason.INVITE: "The invite or address cannot be understood.",
    Reason.IDENTITY: "The key file is missing, damaged, unsafe or already there.",
    Reason.MANIFEST: "The rules of the swarm are impossible, or do not belong to the swarm id.",
}

_NOTHING_TO_DO = "Nothing to do here: the message is dropped and counted against its sender."


class ProtocolError(Exception):
    """Base of the tree. `reason` is the code, `detail` says what was found, `hint` what to do about it."""

    def __init__(self, reason: Reason, detail: str = "", hint: str = _NOTHING_TO_DO) -> None:
        super().__init__(reason, detail, hint)
        self.reason = reason
        self.detail = detail or REASON_MEANINGS[reason]
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


class WireError(ProtocolError):
    """Bytes that are not an acceptable message: too big, malformed, of another swarm, badly signed."""


class PeerError(ProtocolError):
    """A well-formed message that breaks a promise every member makes."""


class _FixedReasonError(ProtocolError):
    _reason: Reason

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(self._reason, detail, hint)
        self.args = (detail, hint)

    def __str__(self) -> str:
        return self.detail


class InviteError(_FixedReasonError):
    """A pasted invite or address cannot be used; `hint` shows the right form of the part that is wrong."""

    _reason = Reason.INVITE


class IdentityError(_FixedReasonError):
    """The key file cannot be read or written; nothing was changed."""

    _reason = Reason.IDENTITY


class ManifestError(_FixedReasonError):
    """The rules of a swarm cannot hold together, or are not the ones its id names."""

    _reason = Reason.MANIFEST
