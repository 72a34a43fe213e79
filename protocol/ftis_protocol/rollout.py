"""What one node sampled and shows to others: completions in groups, groups in a frame.

A prompt travels as a reference; every receiver draws the item again from its own copy of the task, so nobody chooses
his own questions and no answer is ever sent. Log-probabilities are natural logarithms at temperature 1.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ftis_protocol import limits
from ftis_protocol.canonical import pack
from ftis_protocol.errors import Reason
from ftis_protocol.fields import Count, Fingerprint, ModelName, Record, Revision, TaskName, Text, refusal

LogProb = Annotated[float, Field(le=limits.LOGPROB_NOISE)]
TokenId = Annotated[int, Field(ge=0, le=limits.MAX_TOKEN_ID)]


class Finish(StrEnum):
    """How a completion ended. STOP: the model's own end-of-sequence token, which the receiver appends again. LENGTH:
    cut at the token cap. RULE: ended by the task's stop rule right after the answer; no end token follows."""

    STOP = "stop"
    LENGTH = "length"
    RULE = "rule"


class Evidence(StrEnum):
    """What a group tells about the policy that sampled it: nothing, one number per completion, or every token."""

    NONE = "none"
    SEQUENCE = "sequence"
    TOKEN = "token"


class PromptRef(Record):
    """Which prompt: item `index` of the slice that this task gives the author in this slot (see `item_seed`)."""

    task: TaskName
    version: Count
    slot: Count
    index: Count


class PolicyRef(Record):
    """The model that sampled. `tokenizer` is the fingerprint of its tokenizer; equal ones share token ids."""

    model: ModelName
    revision: Revision
    tokenizer: Fingerprint
    trainable: Literal["full", "lora"]


class Completion(Record):
    """One sampled answer. `reward` is the author's claim. `logprob_sum` (nats, whole text, end token inside
    iff `finish` is STOP) belongs to SEQUENCE evidence; `token_ids` and `logprobs`, of equal length, to TOKEN evidence.

    An empty text can be built and sent, so that a receiver refuses this group alone and keeps its neighbours.
    """

    text: Annotated[Text, Field(max_length=limits.MAX_COMPLETION_CHARS)]
    finish: Annotated[Finish, Field(strict=False)]
    reward: float
    logprob_sum: LogProb | None = None
    token_ids: Annotated[tuple[TokenId, ...], Field(max_length=limits.MAX_COMPLETION_TOKENS)] | None = None
    logprobs: Annotated[tuple[LogProb, ...], Field(max_length=limits.MAX_COMPLETION_TOKENS)] | None = None

    @model_validator(mode="after")
    def _one_logprob_per_token(self) -> Self:
        if (self.token_ids is None) != (self.logprobs is None):
            raise refusal(Reason.EVIDENCE, "token ids and their log-probs come together or not at all")
        if self.token_ids is not None and self.logprobs is not None and len(self.token_ids) != len(self.logprobs):
            raise refusal(Reason.EVIDENCE, f"{len(self.token_ids)} token ids, but {len(self.logprobs)} log-probs")
        return self

    @property
    def evidence(self) -> Evidence | None:
        """The one tier that these fields make up, or None when they mix two."""
        if self.token_ids is not None:
            return Evidence.TOKEN if self.logprob_sum is None else None
        return Evidence.NONE if self.logprob_sum is None else Evidence.SEQUENCE


class Group(Record):
    """All completions that one policy sampled for one prompt; the unit that is judged and trained on."""

    prompt: PromptRef
    policy_version: Count
    evidence: Annotated[Evidence, Field(strict=False)]
    completions: tuple[Completion, ...]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        size = len(self.completions)
        if not limits.MIN_GROUP_SIZE <= size <= limits.MAX_GROUP_SIZE:
            allowed = f"{limits.MIN_GROUP_SIZE} to {limits.MAX_GROUP_SIZE}"
            raise refusal(Reason.GROUP_SIZE, f"a group has {allowed} completions, this one {size}")
        for number, completion in enumerate(self.completions):
            if completion.evidence is not self.evidence:
                raise refusal(
                    Reason.EVIDENCE, f"completion {number} does not carry exactly what tier {self.evidence.value} asks"
                )
        return self


class Frame(Record):
    """What one node publishes in one slot: groups of one model under one signature."""

    slot: Count
    policy: PolicyRef
    groups: tuple[Group, ...]

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if not 1 <= len(self.groups) <= limits.MAX_FRAME_GROUPS:
            raise refusal(
                Reason.SIZE, f"a frame has 1 to {limits.MAX_FRAME_GROUPS} groups, this one {len(self.groups)}"
            )
        tokens = sum(len(c.token_ids or ()) for group in self.groups for c in group.completions)
        if tokens > limits.MAX_FRAME_TOKENS:
            raise refusal(Reason.SIZE, f"a frame describes at most {limits.MAX_FRAME_TOKENS} tokens, this one {tokens}")
        return self


def group_digest(group: Group, author: str) -> bytes:
    """16 bytes that name a group by its author (a node id), prompt and texts, whatever it claims about rewards, policy
    or order. Without the author two nodes' short answers to unlike items would often share a name."""
    prompt = group.prompt
    texts = sorted((completion.text, completion.finish.value) for completion in group.completions)
    content = pack([author, prompt.task, prompt.version, prompt.slot, prompt.index, texts])
    return hashlib.blake2b(content, digest_size=16, person=b"ftis-group").digest()


def item_seed(swarm_id: str, node_id: str, slot: int, task: str, version: int) -> int:
    """The 64-bit seed of a node's slice of a task in one slot; the same on every machine."""
    content = pack([swarm_id, node_id, slot, task, version])
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, person=b"ftis-item").digest(), "little")
