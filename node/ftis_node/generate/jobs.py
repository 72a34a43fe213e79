"""What goes to an engine and comes back, whether the engine lives in this process or in one of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ftis_node.records import TokenIds
from ftis_protocol.rollout import Finish

#: what becomes of running requests when new weights come: they end first, or they begin anew under the new weights
Running = Literal["wait", "abort"]


#: an engine that is asked to give a job up, or to end, does so after its running step; one that does not hangs
GRACE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Job:
    """One group to sample: `width` completions of at most `max_tokens` behind one prompt. `seed` None is greedy;
    member i draws from `seed` + i. `stop_pattern` is the task's stop rule."""

    number: int
    prompt_ids: TokenIds
    width: int
    max_tokens: int
    seed: int | None
    stop_pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Grown:
    """One completion as the engine left it, cut at the stop rule, not checked yet."""

    token_ids: TokenIds
    logprobs: tuple[float, ...]
    finish: Finish


@dataclass(frozen=True, slots=True)
class Finished:
    """A whole group. `policy_version` names the weights of its every token."""

    number: int
    members: tuple[Grown, ...]
    policy_version: int


# ---- to an engine in a process of its own ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody wants job `number` any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Load:
    """Take the weights in the file `path`. Jobs that have not begun wait until `Release`."""

    path: str
    policy_version: int
    running: Running


@dataclass(frozen=True, slots=True)
class Score:
    """Tell the log-probs of `completion_ids` behind `prompt_ids`. Waits for running jobs."""

    prompt_ids: TokenIds
    completion_ids: TokenIds


@dataclass(frozen=True, slots=True)
class Release:
    """The new weights were found to be the learner's: waiting jobs may begin."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Give the device's memory back until weights come again."""


@dataclass(frozen=True, slots=True)
class Close:
    """End in good order."""


# ---- and back -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reads:
    """The fingerprint of the tokenizer that the engine's checkpoint brings, told before the engine is started."""

    tokenizer: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine stands and has sampled a token."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine did not start, or did not take weights: what a person reads about it."""

    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Job `number` was given up as asked."""

    number: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights of `policy_version` are in place."""

    policy_version: int


@dataclass(frozen=True, slots=True)
class Scored:
    """One log-prob (nats) per completion token."""

    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Asleep:
    """The device's memory is free."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the learner says about a fixed text."""

    prompt_ids: TokenIds
    completion_ids: TokenIds
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Care:
    """How an engine process is kept. `tokenizer`: the learner's fingerprint; `threads`: its CPU threads; `log_path`:
    where its own words go, None for nowhere."""

    tokenizer: str
    threads: int = 1
    request_seconds: float = 600.0
    grace_seconds: float = GRACE_SECONDS
    log_path: Path | None = None


Control = Load | Score | Sleep
Answer = Refused | Loaded | Scored | Asleep
