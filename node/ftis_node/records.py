"""The typed, frozen records that walk through a node, one along each arrow.

    task --Prompt--> generate --SampledGroup--> verify --TrainGroup--> buffer --> policy.score --ScoredGroup--> judge
                                                                        ^
    swarm --bytes--> admission.admit --TrainGroup (foreign)-------------'

Token ids and log-probabilities live here, never on the wire unless the swarm's evidence tier says so. Log-probabilities
are natural logarithms (nats) at temperature 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from ftis_protocol.rollout import Evidence, Finish, PromptRef

LogProbs = tuple[float, ...]
TokenIds = tuple[int, ...]

#: the least reward of a right answer; graded rewards below it count as wrong
RIGHT_REWARD = 0.99


class Origin(StrEnum):
    """Who sampled a group: this node or a peer."""

    OWN = "own"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation, before any chat template."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked. Carries no answer.

    `author` is the node id whose slice `ref` points into (empty for held-out items); `item_key` the item's canonical
    content; `prefill` the beginning of the assistant's turn, which is part of the prompt; `stop_pattern` the task's
    stop rule, a regular expression matched from the start of the completion.
    """

    ref: PromptRef
    author: str
    item_key: str
    messages: tuple[ChatMessage, ...]
    prefill: str
    stop_pattern: str | None
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion in the generator's own tokens. `token_ids` ends with an EOS id iff `finish` is STOP;
    `logprobs` has one value per token id."""

    text: str
    token_ids: TokenIds
    logprobs: LogProbs
    finish: Finish


@dataclass(frozen=True, slots=True)
class SampledGroup:
    """The completions that one policy sampled for one prompt; all of one policy version."""

    prompt: Prompt
    prompt_ids: TokenIds
    samples: tuple[Sample, ...]
    policy_version: int


@dataclass(frozen=True, slots=True)
class TrainCompletion:
    """A completion ready to be learned from, in the LEARNER's tokens, with the reward computed here.

    `behaviour_logprobs` (own, or `token` evidence): one per token id. `logprob_sum` (`sequence` evidence): total
    log-probability of the text under the sampler, EOS inside iff `finish` is STOP.
    """

    text: str
    token_ids: TokenIds
    finish: Finish
    reward: float
    behaviour_logprobs: LogProbs | None = None
    logprob_sum: float | None = None


@dataclass(frozen=True, slots=True)
class TrainGroup:
    """A whole group of one generator, admitted and verified. `created_at` is Unix time in seconds; `digest`
    identifies prompt reference and texts; `evidence` is what may be used, after trust was weighed."""

    origin: Origin
    author: str
    prompt: Prompt
    prompt_ids: TokenIds
    completions: tuple[TrainCompletion, ...]
    evidence: Evidence
    policy_version: int
    created_at: float
    digest: bytes

    @property
    def task(self) -> str:
        return self.prompt.ref.task

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(c.reward for c in self.completions)

    @property
    def token_count(self) -> int:
        return sum(len(c.token_ids) for c in self.completions)

    @property
    def right(self) -> int:
        """How many of the completions are right."""
        return sum(c.reward >= RIGHT_REWARD for c in self.completions)

    @property
    def mixed(self) -> bool:
        """True with a right and a wrong completion: the only groups that can be compared within themselves."""
        return 0 < self.right < len(self.completions)

    @property
    def all_right(self) -> bool:
        return self.right == len(self.completions)


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with the learner's log-probs of its tokens at the start of the batch (`start_logprobs[i][t]`, nats)."""

    group: TrainGroup
    start_logprobs: tuple[LogProbs, ...]

    def surprise(self, member: int) -> float:
        """Mean nats per token that completion `member` costs the learner; the filter statistic of text-only groups."""
        return -fmean(self.start_logprobs[member])


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """A group that may train. `start_logprobs` is None for own groups: the training pass itself supplies them when a
    batch is one optimiser step. In nats per token, all for foreign groups: `surprise_bound` up to which text-only
    negatives train (None: none do), `own_surprise` the mean cost of own text, `rescue_gate` up to which right texts
    train by the rescue rule (None: the rule is off for the task)."""

    group: TrainGroup
    start_logprobs: tuple[LogProbs, ...] | None = None
    surprise_bound: float | None = None
    own_surprise: float | None = None
    rescue_gate: float | None = None
