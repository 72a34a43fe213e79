"""Admission against real bytes: real keys and envelopes, a real tokenizer, the checker in its own process.

The rule under test is the kind, not the example: whatever a peer sends ends as a reason, never as an exception, one bad
group never costs its neighbours, and our own faults never cost a peer its standing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from desk import MANIFEST, NOW, SLOT, TASK, Desk, reasons
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftis_node.records import Origin
from ftis_node.tasks.verify import VerifyPool
from ftis_node.tokens import TextCodec
from ftis_protocol.errors import Reason
from ftis_protocol.identity import Identity
from ftis_protocol.rollout import Evidence, Finish, item_seed


async def test_an_honest_group_comes_through_whole(desk: Desk) -> None:
    admitted = await desk.admit(desk.group(3))
    (group,) = admitted.groups
    assert admitted.refused == ()
    assert group.origin is Origin.FOREIGN
    assert group.author == desk.sender.node_id
    assert group.rewards == (1.0, 0.0)
    assert group.evidence is Evidence.NONE
    assert all(desk.codec.decode(c.token_ids) == c.text for c in group.completions)
    assert all(c.behaviour_logprobs is None and c.logprob_sum is None for c in group.completions)
    seed = item_seed(MANIFEST.swarm_id, desk.sender.node_id, SLOT, TASK.name, TASK.version)
    assert group.prompt.item_key == desk.task.item(seed, 3).key, "the prompt is rebuilt here, not believed"


async def test_one_bad_group_does_not_spoil_nineteen(desk: Desk) -> None:
    groups = [desk.group(index) for index in range(20)]
    right, wrong = groups[7].completions
    groups[7] = groups[7].model_copy(update={"completions": (right, wrong.model_copy(update={"reward": 1.0}))})
    admitted = await desk.admit(*groups)
    assert len(admitted.groups) == 19
    assert len(admitted.refused) == 1


async def test_lies_about_rewards_are_broken_promises(desk: Desk) -> None:
    group = desk.group(0)
    flipped = tuple(c.model_copy(update={"reward": 1.0 - c.reward}) for c in group.completions)
    admitted = await desk.admit(group.model_copy(update={"completions": flipped}))
    assert reasons(admitted) == [Reason.REWARD_MISMATCH]
    assert admitted.refused[0].broken_promise


async def test_nobody_answers_items_of_another_slice(desk: Desk) -> None:
    """Text copied from another author's slice does not fit the copier's own items."""
    other = Identity.create()
    index = next(i for i in range(64) if desk.answer(i, other) != desk.answer(i))
    right = desk.answer(index, other)
    group = desk.group(index, f" {right}\n", " x", rewards=(1.0, 0.0))
    assert reasons(await desk.admit(group)) == [Reason.REWARD_MISMATCH]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"task": "sums"}, Reason.UNKNOWN_TASK),
        ({"version": 99}, Reason.UNKNOWN_TASK),
        ({"slot": SLOT - 100}, Reason.SLOT),
        ({"slot": SLOT + 5}, Reason.SLOT),
        ({"index": MANIFEST.slice_size}, Reason.INDEX),
    ],
)
async def test_prompt_references_are_checked(desk: Desk, change: dict[str, Any], reason: Reason) -> None:
    group = desk.group(0)
    moved = group.model_copy(update={"prompt": group.prompt.model_copy(update=change)})
    assert reasons(await desk.admit(moved)) == [reason]


async def test_texts_are_checked(desk: Desk) -> None:
    right = desk.answer(0)
    cases = {
        Reason.TOO_LONG: (f" {right}" + " " * 30 + "\n", " 1\n"),
        Reason.FINISH: (f" {right}\n" + "and then much more than one token holds", " 1\n"),
    }
    for reason, texts in cases.items():
        assert reasons(await desk.admit(desk.group(0, *texts))) == [reason], texts
    lied = desk.group(0)
    completions = tuple(c.model_copy(update={"finish": Finish.STOP}) for c in lied.completions)
    assert reasons(await desk.admit(lied.model_copy(update={"completions": completions}))) == [Reason.FINISH]


async def test_control_tokens_of_a_template_stay_plain_text(desk: Desk) -> None:
    texts = (f" {desk.answer(0)}\n", "<|end|>")
    (group,) = (await desk.admit(desk.group(0, *texts))).groups
    assert desk.codec.eos_id not in group.completions[1].token_ids
    assert len(group.completions[1].token_ids) == len("<|end|>")


async def test_groups_without_spread_carry_nothing(desk: Desk) -> None:
    admitted = await desk.admit(desk.group(0, " x", " y"))
    assert reasons(admitted) == [Reason.ZERO_SPREAD]
    assert not admitted.refused[0].broken_promise


async def test_groups_without_a_wrong_answer_are_kept_for_rescues(desk: Desk) -> None:
    right = desk.answer(0)
    (group,) = (await desk.admit(desk.group(0, f" {right}\n", f"{right}\n"))).groups
    assert group.all_right
    assert group.rewards == (1.0, 1.0)


async def test_the_same_prompt_reference_counts_once(desk: Desk) -> None:
    assert len((await desk.admit(desk.group(0))).groups) == 1
    again = desk.group(0, f" {desk.answer(0)}.", " 1.", rewards=None)
    assert reasons(await desk.admit(desk.group(0))) == [Reason.DUPLICATE]
    assert reasons(await desk.admit(again)) == [Reason.DUPLICATE], "other text for the same item is no second group"


async def test_two_peers_may_answer_unlike_items_with_the_same_words(desk: Desk) -> None:
    """Short honest answers collide; the same words at the same place of another node's slice are no copy."""
    first = desk.sender
    index, other = next(
        (i, peer) for peer in iter(Identity.create, None) for i in range(64) if desk.answer(i, peer) == desk.answer(i)
    )
    assert len((await desk.admit(desk.group(index))).groups) == 1
    desk.sender = other
    (admitted,) = (await desk.admit(desk.group(index))).groups
    assert (admitted.author, first.node_id != other.node_id) == (other.node_id, True)


async def test_a_refused_group_does_not_block_a_later_honest_one(desk: Desk) -> None:
    group = desk.group(0)
    flipped = tuple(c.model_copy(update={"reward": 1.0 - c.reward}) for c in group.completions)
    await desk.admit(group.model_copy(update={"completions": flipped}))
    assert len((await desk.admit(group)).groups) == 1


async def test_envelopes_of_others_and_other_times_are_refused(desk: Desk) -> None:
    group = desk.group(0)
    assert reasons(await desk.admit(group, identity=Identity.create())) == [Reason.SIGNATURE]
    assert reasons(await desk.admit(group, swarm_id="a" * 26)) == [Reason.WRONG_SWARM]
    assert reasons(await desk.admit(group, issued_at=NOW + 3600)) == [Reason.FUTURE]
    assert reasons(await desk.admit(group, issued_at=NOW - 3600)) == [Reason.EXPIRED]


async def test_a_peer_has_a_quota_and_uses_up_only_its_own(
    codec: TextCodec, verify: VerifyPool, tmp_path: Path
) -> None:
    desk = Desk(codec, verify, tmp_path, max_groups_per_peer_and_slot=2)
    admitted = await desk.admit(*[desk.group(i) for i in range(3)])
    assert (len(admitted.groups), reasons(admitted)) == (2, [Reason.QUOTA])
    first, desk.sender = desk.sender, Identity.create()
    assert len((await desk.admit(desk.group(0))).groups) == 1
    desk.sender = first
    desk.clock.advance(MANIFEST.slot_seconds)
    assert len((await desk.admit(desk.group(5))).groups) == 1, "the next slot begins anew"
    desk.store.close()


async def test_a_dead_checker_is_our_fault(codec: TextCodec, tmp_path: Path) -> None:
    desk = Desk(codec, VerifyPool(patience_seconds=0.0), tmp_path)
    admitted = await desk.admit(desk.group(0))
    assert reasons(admitted) == [Reason.VERIFIER_FAILED]
    assert not admitted.refused[0].broken_promise
    desk.admission._verify.close()
    desk.store.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
async def test_no_bytes_raise(desk: Desk, data: st.DataObject) -> None:
    sealed = bytearray(desk.sealed(desk.group(0)))
    for _ in range(data.draw(st.integers(1, 4))):
        sealed[data.draw(st.integers(0, len(sealed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(sealed[: data.draw(st.integers(0, len(sealed)))])
    admitted = await desk.admission.admit(cut, desk.sender.node_id)
    assert admitted.groups or admitted.refused
