"""What the page's programming interface answers and accepts; the published schema is made from these models. Times are
Unix seconds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Finite = Annotated[float, Field(allow_inf_nan=False)]
MAX_ID = 2**53
MAX_POINTS = 2_000
MAX_SERIES = 16
#: nobody asks for numbers beyond this; what is outside is a mistake
Reach = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=100)]


class Answer(BaseModel):
    """Anything that is sent out."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Question(BaseModel):
    """The parameters of a request: closed to names that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Fault(Answer):
    """Why a request was not answered."""

    error: str
    hint: str = ""


class GateView(Answer):
    """One thing that must hold for the node to be of use. `verdict`: pass, warn, fail or unknown."""

    name: str
    verdict: str
    why: str
    fix: str = ""


class SwarmView(Answer):
    """The swarm as this node sees it. `nodes` counts nodes with a model by state; silent ones showed a card before."""

    id: str
    name: str
    state: Literal["alive", "alone", "unknown"]
    nodes: dict[str, int]
    seeds: int
    policy_steps: int
    tokens_per_second: Finite
    published_groups: int


class NodeView(Answer):
    """The node that serves the page, or the observer."""

    id: str
    name: str
    role: str
    state: str
    why: str = ""
    doing: str = ""
    model: str = ""
    parameters: int = 0
    trainable: str = ""
    tokenizer: str = ""
    generator: str = ""
    step: int = 0
    policy_version: int = 0
    started_at: float | None = None
    alone_since: float | None = None
    invite: str = ""
    software: str


class ReasonCount(Answer):
    """How often groups got a reason code since the first start, and what it means."""

    reason: str
    count: int
    meaning: str


class Counts(Answer):
    """Groups since the first start. `used`: moved weights."""

    own_used: int
    foreign_used: int
    admitted: int
    published: int
    refused: tuple[ReasonCount, ...]
    unused: tuple[ReasonCount, ...]


class Traffic(Answer):
    """Message bytes since the first start, and bytes per completion token; None before there was a token."""

    bytes_in: int
    bytes_out: int
    tokens_in: int
    tokens_out: int
    bytes_per_token_in: Finite | None
    bytes_per_token_out: Finite | None
    tokens_generated: int


class Bottleneck(Answer):
    """Where the time of a step goes, in seconds, averaged over the last steps; `name` is the largest share."""

    name: Literal["rollouts", "weights", "learning", "unknown"]
    why: str
    wait_groups_seconds: Finite | None = None
    load_weights_seconds: Finite | None = None
    learn_seconds: Finite | None = None
    step_seconds: Finite | None = None


class State(Answer):
    """Everything that the page shows beside curves, lists and texts. `age_seconds`: since the newest entry in the
    database; `writable`: whether this address takes actions at all (with the token)."""

    now: float
    age_seconds: float
    role: str
    public: bool
    writable: bool
    swarm: SwarmView
    node: NodeView
    gates: tuple[GateView, ...]
    counts: Counts
    traffic: Traffic
    bottleneck: Bottleneck
    latest: dict[str, float]


class Tally(Answer):
    accepted: int
    refused: int


class NodeRow(Answer):
    """One node: what its card claims, what we counted of it (`here`), and what it says it counted of us (`of_us`).
    `opinion`: what the operator said of it, trust, block or nothing."""

    node_id: str
    name: str
    role: str
    state: str
    me: bool
    model: str
    parameters: int
    tokenizer: str
    trainable: str
    software: str
    policy_version: int
    tokens_per_second: Finite
    pass_at_1: Finite | None
    groups_published: int
    groups_used: int
    here: Tally
    used_here: int
    of_us: Tally | None
    opinion: str
    seen_at: float


class Nodes(Answer):
    """A part of the list of nodes. `published_here` is what this node itself counts as published."""

    total: int
    offset: int
    published_here: int
    nodes: tuple[NodeRow, ...]


class CurveView(Answer):
    """One series, oldest first; where `thinned`, `y` is the mean of several values between `low` and `high`."""

    name: str
    thinned: bool
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class Series(Answer):
    """The series asked for. `upto` is the id of the newest value they may contain: live points above it are new."""

    x: str
    upto: int
    series: tuple[CurveView, ...]


class CompletionView(Answer):
    """One completion as this node read it; see the words of `verdict` in docs/metrics.md."""

    text: str
    finish: str
    reward: Finite
    tokens: int
    verdict: str
    advantage: Finite | None
    weight: Finite | None
    surprise: Finite | None


class RolloutView(Answer):
    """One group as it trained here, or did not."""

    id: int
    ts: float
    step: int
    digest: str
    author: str
    author_name: str
    origin: str
    task: str
    verdict: str
    reason: str
    reason_meaning: str
    prompt: str
    completions: tuple[CompletionView, ...]


class Rollouts(Answer):
    """A page of groups, newest first; `before` goes into the next question, None at the end."""

    before: int | None
    rollouts: tuple[RolloutView, ...]


class EventView(Answer):
    id: int
    ts: float
    level: str
    kind: str
    text: str


class Events(Answer):
    """A page of events, newest first; `before` goes into the next question, None at the end."""

    before: int | None
    events: tuple[EventView, ...]


class Done(Answer):
    id: int


class SeriesQuestion(Question):
    """`name` may be repeated. `start` and `end` are in units of `x`."""

    name: Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_SERIES)]
    x: Literal["step", "time", "tokens"] = "step"
    start: Reach | None = None
    end: Reach | None = None
    points: Annotated[int, Field(ge=2, le=MAX_POINTS)] = 400


class NodesQuestion(Question):
    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    offset: Annotated[int, Field(ge=0, le=100_000)] = 0
    state: Text | None = None


class RolloutsQuestion(Question):
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    before: Annotated[int, Field(ge=1, le=MAX_ID)] | None = None
    origin: Literal["own", "foreign"] | None = None
    verdict: Literal["used", "unused", "refused"] | None = None
    reason: Text | None = None
    author: Text | None = None
    task: Text | None = None
    step: Annotated[int, Field(ge=0, le=MAX_ID)] | None = None


class EventsQuestion(Question):
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    before: Annotated[int, Field(ge=1, le=MAX_ID)] | None = None
    level: Literal["debug", "info", "warning", "error"] | None = None


class NoQuestion(Question):
    """No parameters."""


class Action(Question):
    """What the operator wants: `node_id` for trust, block and forget."""

    kind: Literal["pause", "resume", "trust", "block", "forget"]
    node_id: Annotated[str, Field(max_length=64, pattern=r"^[a-z2-7]*$")] = ""
