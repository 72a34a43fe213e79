"""Messages, keys and hypothesis strategies that the protocol's tests share."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ftis_protocol.identity import Identity
from ftis_protocol.manifest import Sampling, SwarmManifest, TaskSpec
from ftis_protocol.presence import Departure, NodeCard, Offer, OfferedFrame, OfferedGroup, PeerTally
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, PolicyRef, PromptRef

# One fixed sequence of examples and no clock: the fast tier must not depend on luck or on the machine's load.
FUZZ = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)

IDENTITY = Identity.create()
OTHER_IDENTITY = Identity.create()
POLICY = PolicyRef(model="tiny/adder", revision="main", tokenizer="abcdefgh", trainable="full")
MANIFEST = SwarmManifest(
    name="Sums for everyone",
    tasks=(
        TaskSpec(name="arithmetic", version=1, parameters={"operations": "+-", "digits": 2, "carry": True, "p": 0.5}),
    ),
    sampling=Sampling(max_completion_tokens=64),
    evidence=(Evidence.NONE, Evidence.SEQUENCE, Evidence.TOKEN),
    creator=b"\x07" * 32,
    created_at=1_700_000_000,
)
SWARM_ID = MANIFEST.swarm_id
OTHER_SWARM_ID = MANIFEST.model_copy(update={"name": "Another"}).swarm_id


def completion(text: str = "12", reward: float = 1.0, **more: Any) -> Completion:
    return Completion(text=text, finish=more.pop("finish", Finish.STOP), reward=reward, **more)


def group(*completions: Completion, evidence: Evidence = Evidence.NONE, index: int = 3) -> Group:
    return Group(
        prompt=PromptRef(task="arithmetic", version=1, slot=59_000_000, index=index),
        policy_version=12,
        evidence=evidence,
        completions=completions or (completion("12", 1.0), completion("13", 0.0, finish=Finish.RULE)),
    )


def frame(*groups: Group) -> Frame:
    return Frame(slot=59_000_001, policy=POLICY, groups=groups or (group(),))


CARD = NodeCard(
    name="brave-otter-42",
    state="training",
    model="tiny/adder",
    parameters=106_000,
    tokenizer="abcdefgh",
    policy_version=12,
    tokens_per_second=812.5,
    pass_at_1=0.25,
    peers={OTHER_IDENTITY.node_id: PeerTally(accepted=9, refused=1)},
    addresses=("/ip4/127.0.0.1/tcp/4001/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",),
    software="ftis-node 0.1.0",
)
OFFER = Offer(
    slot=59_000_001,
    frames=(
        OfferedFrame(
            digest=b"\x01" * 32,
            size_bytes=900,
            policy_version=12,
            groups=(OfferedGroup(task="arithmetic", version=1, right=3, size=8, tokens=40),),
        ),
    ),
)
MESSAGES = (MANIFEST, CARD, Departure(reason="bye"), OFFER, frame())

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Zs"]), min_size=1, max_size=12)
counts = st.integers(0, 2**53)
finishes = st.sampled_from(Finish)
rewards = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(allow_nan=False, allow_infinity=False))
logprobs = st.one_of(st.floats(-50, 0), st.floats(-50, 0, width=16), st.floats(-50, 0, width=32))
tokens = st.lists(st.tuples(st.integers(0, 2**32 - 1), logprobs), max_size=6)


plain_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=5),
        st.binary(max_size=5),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    evidence = draw(st.sampled_from(Evidence))
    members = []
    for _ in range(draw(st.integers(2, 5))):
        more: dict[str, Any] = {}
        if evidence is Evidence.SEQUENCE:
            more["logprob_sum"] = draw(logprobs)
        elif evidence is Evidence.TOKEN:
            pairs = draw(tokens)
            more = {"token_ids": tuple(t for t, _ in pairs), "logprobs": tuple(value for _, value in pairs)}
        members.append(Completion(text=draw(texts), finish=draw(finishes), reward=draw(rewards), **more))
    prompt = PromptRef(task=draw(names), version=draw(counts), slot=draw(counts), index=draw(counts))
    return Group(prompt=prompt, policy_version=draw(counts), evidence=evidence, completions=tuple(members))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    policy = PolicyRef(
        model=draw(names), revision="", tokenizer=draw(names), trainable=draw(st.sampled_from(["full", "lora"]))
    )
    return Frame(slot=draw(counts), policy=policy, groups=tuple(draw(st.lists(groups(), min_size=1, max_size=4))))
