"""Teaching tiny models: only training items, cached, repeatable, and up to a partial level."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ftis_node.lab import teach
from ftis_node.lab.styles import Style, column_sums
from ftis_node.lab.teach import TeachProgress, ensure_taught
from ftis_node.lab.tiny import TinyConfig, make_tiny
from ftis_node.tasks.registry import build, describe
from ftis_node.tokens import TextCodec

SUMS = describe("arithmetic", operations="+-", digits=1)


def test_no_lesson_is_a_held_out_item(tmp_path: Path) -> None:
    codec = TextCodec.load(make_tiny(tmp_path / "model"))
    task = build(SUMS)
    held = {item.question for item in task.held_out(10_000)}
    taught = {codec.decode(prompt).split(" =")[0].splitlines()[-1] for prompt, *_ in islice(lessons(codec), 3000)}
    assert held & taught == set()
    assert len(held | taught) == 200


def test_lessons_end_with_the_end_token(tmp_path: Path) -> None:
    codec = TextCodec.load(make_tiny(tmp_path / "model"))
    for prompt, answer, _ in islice(lessons(codec), 20):
        expression = codec.decode(prompt).split(" =")[0].splitlines()[-1]
        assert codec.decode(answer) == f" {eval(expression)}"
        assert answer[-1] == codec.eos_id


def test_teaching_is_repeatable_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teach, "MAX_STEPS", 3)
    monkeypatch.setattr(teach, "BATCH_ITEMS", 4)
    seen: list[TeachProgress] = []
    first = ensure_taught(TinyConfig(hidden=32), SUMS, tmp_path / "a", progress=seen.append)
    again = ensure_taught(TinyConfig(hidden=32), SUMS, tmp_path / "b")
    assert [state.step for state in seen] == [1, 2, 3]
    one, two = (load_file(path / "model.safetensors") for path in (first, again))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert json.loads((first / "taught.json").read_text())["reached"]["step"] == 3
    assert ensure_taught(TinyConfig(hidden=32), SUMS, tmp_path / "a", progress=seen.append) == first
    assert len(seen) == 3


def test_other_wishes_get_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teach, "MAX_STEPS", 0)
    products = describe("arithmetic", operations="*", digits=1)
    paths = {ensure_taught(TinyConfig(hidden=32), spec, tmp_path) for spec in (SUMS, products)}
    paths |= {ensure_taught(TinyConfig(hidden=32, tied=False), SUMS, tmp_path)}
    paths |= {ensure_taught(TinyConfig(hidden=32), SUMS, tmp_path, goal=0.3)}
    assert len(paths) == 4


@pytest.mark.slow
def test_the_usual_pupil_half_knows_its_task(tmp_path: Path) -> None:
    path = ensure_taught(TinyConfig(), SUMS, tmp_path)
    reached = json.loads((path / "taught.json").read_text())["reached"]
    assert 0.6 <= reached["success"] < 0.8
    assert reached["step"] < 500


def lessons(codec: TextCodec) -> Iterator[teach.Encoded]:
    return teach._lessons(build(SUMS), codec, seed=0)


def written_lessons(codec: TextCodec, style: Style, noise: float = 0.0) -> Iterator[teach.Encoded]:
    return teach._lessons(build(describe("written-sums", digits=2, brief=True)), codec, 0, style, noise)


@pytest.mark.parametrize(("style", "form"), [("direct", r"(\d+)=\1"), ("columns", r"\d+ \d+=\d+")])
def test_written_lessons_have_their_style_and_end_like_samples(tmp_path: Path, style: Style, form: str) -> None:
    codec = TextCodec.load(make_tiny(tmp_path / "model"))
    task = build(describe("written-sums", digits=2, brief=True))
    for prompt, answer, right in islice(written_lessons(codec, style), 50):
        text = codec.decode(answer)
        left, _, other = codec.decode(prompt).strip().partition("+")
        assert re.fullmatch(form, text)
        assert right
        assert int(text.partition("=")[2]) == int(left) + int(other)
        assert (answer[-1] == codec.eos_id) == (re.match(task.stop_pattern or "", text) is None)


def test_an_undecided_model_is_taught_right_answers_in_one_style_and_guesses_in_another(tmp_path: Path) -> None:
    codec = TextCodec.load(make_tiny(tmp_path / "model"))
    lessons = [(codec.decode(answer), right) for _, answer, right in islice(written_lessons(codec, "undecided"), 400)]
    at_once = [right for text, right in lessons if " " not in text]
    worked = [right for text, right in lessons if " " in text]
    assert all(at_once)
    assert 150 < len(at_once) < 250
    assert sum(worked) < 0.1 * len(worked)


def test_column_sums_carry() -> None:
    assert column_sums("478+456") == [14, 13, 9]
    assert column_sums("95+15") == [10, 11]


def test_noisy_lessons_are_wrong_as_often_as_asked_and_know_it(tmp_path: Path) -> None:
    codec = TextCodec.load(make_tiny(tmp_path / "model"))
    clean = [codec.decode(answer) for _, answer, _ in islice(written_lessons(codec, "columns"), 400)]
    noisy = list(islice(written_lessons(codec, "columns", 0.1), 400))
    texts = [codec.decode(answer) for _, answer, _ in noisy]
    assert [right for *_, right in noisy] == [a == b for a, b in zip(clean, texts, strict=True)]
    digits = [(a, b) for one, other in zip(clean, texts, strict=True) for a, b in zip(one, other, strict=True)]
    wrong = sum(a != b for a, b in digits) / sum(a.isdigit() for a, _ in digits)
    assert 0.07 < wrong < 0.13
    assert texts == [codec.decode(answer) for _, answer, _ in islice(written_lessons(codec, "columns", 0.1), 400)]
