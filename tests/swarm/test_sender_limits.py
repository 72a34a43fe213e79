"""What is over a limit is refused where it is made, with a reason and a hint, and never lost on the way."""

from __future__ import annotations

import pytest

from ftis_node.clock import StepClock
from ftis_node.swarm.memory import MemoryNetwork, MemorySwarm
from ftis_protocol import limits
from ftis_protocol.errors import ManifestError, ProtocolError, Reason
from ftis_protocol.identity import Identity
from ftis_protocol.presence import Offer, OfferedFrame, OfferedGroup
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group
from swarm.builders import POLICY, frame, group, manifest

SLOT = 1000
ENTRY = OfferedFrame(
    digest=bytes(32),
    size_bytes=1,
    policy_version=0,
    groups=(OfferedGroup(task="arithmetic", version=1, right=1, size=2, tokens=2),),
)


async def test_a_full_slot_refuses_the_next_frame_and_keeps_the_others() -> None:
    clock = StepClock(SLOT * 30.0)
    network, rules = MemoryNetwork(clock), manifest()
    author, reader = (MemorySwarm(network, Identity.create(), rules) for _ in range(2))
    for swarm in (author, reader):
        await swarm.start()
    for index in range(limits.MAX_OFFER_FRAMES):
        assert (await author.publish(frame(SLOT, index))).stored
        clock.advance(0.01)
    with pytest.raises(ProtocolError) as caught:
        await author.publish(frame(SLOT, limits.MAX_OFFER_FRAMES))
    assert caught.value.reason is Reason.SIZE
    assert "Nothing was sent" in caught.value.hint
    clock.advance(1)
    offered = await reader.offers(limit=1000)
    assert len({offer.frame.digest for offer in offered}) == limits.MAX_OFFER_FRAMES


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Offer.build(slot=SLOT, frames=(ENTRY,) * 65), Reason.SIZE),
        (lambda: Frame.build(slot=SLOT, policy=POLICY, groups=(group(SLOT),) * 257), Reason.SIZE),
        (lambda: Frame.build(slot=SLOT, policy=POLICY, groups=()), Reason.SIZE),
        (lambda: Completion.build(text="a" * 65_537, finish=Finish.STOP, reward=0.0), Reason.SIZE),
        (lambda: Completion.build(text="\ud800", finish=Finish.STOP, reward=0.0), Reason.SCHEMA),
        (lambda: Completion.build(text="a", finish=Finish.STOP, reward=float("nan")), Reason.SCHEMA),
        (
            lambda: Group.build(
                prompt=group(SLOT).prompt,
                policy_version=0,
                evidence=Evidence.NONE,
                completions=group(SLOT).completions[:1],
            ),
            Reason.GROUP_SIZE,
        ),
    ],
    ids=["frames", "groups", "no group", "text", "surrogate", "reward", "group of one"],
)
def test_an_impossible_message_is_a_refusal_with_a_hint(build, reason: Reason) -> None:
    with pytest.raises(ProtocolError) as caught:
        build()
    assert caught.value.reason is reason
    assert "Nothing was sent" in caught.value.hint


def test_a_swarm_whose_dictionary_is_missing_here_is_not_entered() -> None:
    rules = manifest().model_copy(update={"dictionary": "ab" * 16})
    with pytest.raises(ManifestError, match="which this installation does not have") as caught:
        MemorySwarm(MemoryNetwork(StepClock(0.0)), Identity.create(), rules)
    assert "Install the version" in caught.value.hint
