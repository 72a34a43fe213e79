"""What goes wrong when text is all that travels: each hazard once, through the real door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import Desk, reasons

from ftis_node.admission.evidence import learnable
from ftis_node.lab.tiny import make_tiny
from ftis_node.tasks.verify import VerifyPool
from ftis_node.tokens import TextCodec
from ftis_protocol.errors import Reason
from ftis_protocol.rollout import Completion, Evidence, Finish, Group


@pytest.fixture(scope="module")
def ascii_codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """A tokenizer that has no piece for most of Unicode."""
    return TextCodec.load(make_tiny(tmp_path_factory.mktemp("tiny") / "ascii", alphabet="ascii"))


@pytest.fixture
def ascii_desk(ascii_codec: TextCodec, verify: VerifyPool, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(ascii_codec, verify, tmp_path)
    yield made
    made.store.close()


def ended(group: Group, finish: Finish, *texts: str) -> Group:
    """The group with these endings, and texts where they are given."""
    completions = group.completions
    if texts:
        completions = tuple(c.model_copy(update={"text": t}) for c, t in zip(completions, texts, strict=True))
    return group.model_copy(update={"completions": tuple(c.model_copy(update={"finish": finish}) for c in completions)})


class TestRoundTrip:
    @pytest.mark.parametrize("text", ["99é", "１２", "x\u2028y", "☃"])
    async def test_a_text_that_this_tokenizer_cannot_write_is_refused(self, ascii_desk: Desk, text: str) -> None:
        admitted = await ascii_desk.admit(ascii_desk.group(0, f" {ascii_desk.answer(0)}\n", text))
        assert reasons(admitted) == [Reason.ROUND_TRIP]
        assert not admitted.refused[0].broken_promise, "honest between unlike tokenizers"

    async def test_another_tokenizer_takes_the_same_text(self, desk: Desk) -> None:
        (group,) = (await desk.admit(desk.group(0, f" {desk.answer(0)}\n", "99é"))).groups
        assert desk.codec.decode(group.completions[1].token_ids) == "99é"

    async def test_equal_text_may_have_unlike_token_counts(
        self, desk: Desk, ascii_desk: Desk, codec: TextCodec
    ) -> None:
        assert len(codec.encode_completion("é", Finish.LENGTH)) == 2
        assert not ascii_desk.codec.round_trips("é")


class TestEndOfText:
    async def test_only_stop_brings_the_receivers_own_end_token(self, desk: Desk) -> None:
        # one digit and nothing after it: the stop rule leaves open how the text ends
        first, second = [index for index in range(64) if len(desk.answer(index)) == 1][:2]
        cut = ended(desk.group(first, f" {desk.answer(first)}", "  "), Finish.LENGTH)
        stopped = ended(desk.group(second, f" {desk.answer(second)}", "  "), Finish.STOP)
        plain, closed = (await desk.admit(cut, stopped)).groups
        assert all(desk.codec.eos_id not in c.token_ids for c in plain.completions)
        assert all(c.token_ids[-1] == desk.codec.eos_id for c in closed.completions)
        assert closed.completions[1].token_ids[:-1] == plain.completions[1].token_ids

    async def test_a_control_string_at_the_end_is_no_end(self, desk: Desk) -> None:
        texts = (f" {desk.answer(0)}\n<|end|>", "x<|end|>")
        (group,) = (await desk.admit(desk.group(0, *texts, rewards=(1.0, 0.0)))).groups
        assert all(desk.codec.eos_id not in c.token_ids for c in group.completions)

    def test_a_senders_sum_has_the_end_inside_as_the_receivers_length_has(self, codec: TextCodec) -> None:
        told = Completion(text="12", finish=Finish.STOP, reward=1.0, logprob_sum=-3.0)
        made = learnable(told, Evidence.SEQUENCE, codec, 8)
        assert (made.logprob_sum, len(made.token_ids)) == (-3.0, 3), "one nat a token: two digits and the end"

    async def test_the_rule_and_the_text_must_agree(self, desk: Desk) -> None:
        sent = desk.group(0)  # the texts end with the answer's line
        for lie in (Finish.STOP, Finish.LENGTH):
            assert reasons(await desk.admit(ended(sent, lie))) == [Reason.FINISH]
        assert reasons(await desk.admit(ended(sent, Finish.RULE, " 1", " 2"))) == [Reason.FINISH]


class TestLength:
    @pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.RULE])
    async def test_a_completion_of_no_tokens_is_refused(self, desk: Desk, finish: Finish) -> None:
        sent = desk.group(0)
        empty = sent.completions[1].model_copy(update={"text": "", "finish": finish})
        admitted = await desk.admit(sent.model_copy(update={"completions": (sent.completions[0], empty)}))
        assert reasons(admitted) == [Reason.EMPTY]
        assert admitted.refused[0].broken_promise

    async def test_an_end_token_alone_is_a_completion_of_one(self, desk: Desk) -> None:
        sent = desk.group(0)
        empty = sent.completions[1].model_copy(update={"text": "", "finish": Finish.STOP})
        (group,) = (await desk.admit(sent.model_copy(update={"completions": (sent.completions[0], empty)}))).groups
        assert group.completions[1].token_ids == (desk.codec.eos_id,)

    async def test_a_text_over_the_own_limit_is_dropped_and_never_cut(
        self, codec: TextCodec, verify: VerifyPool, tmp_path: Path
    ) -> None:
        desk = Desk(codec, verify, tmp_path, max_completion_tokens=6)
        fits, over = "1 or 23", "1 or 234"
        assert len(codec.encode_completion(fits, Finish.LENGTH)) == 7
        right = f"{desk.answer(0)}\n"
        assert reasons(await desk.admit(desk.group(0, right, over))) == [Reason.TOO_LONG]
        assert reasons(await desk.admit(desk.group(0, right, fits))) == [Reason.TOO_LONG]
        (group,) = (await desk.admit(desk.group(0, right, fits[:6]))).groups
        assert group.completions[1].text == "1 or 2"
        desk.store.close()
