"""The text codec: the seam behind the prefill, end tokens, control strings, exact round trips, fingerprints, errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.errors import UsageError
from ftis_node.imports import guard_broken_extras
from ftis_node.lab.tiny import END, make_tiny
from ftis_node.records import ChatMessage, Prompt
from ftis_node.tokens import TextCodec
from ftis_protocol.rollout import Finish, PromptRef


def prompt(*contents: str, prefill: str = "") -> Prompt:
    return Prompt(
        ref=PromptRef(task="t", version=1, slot=0, index=0),
        author="",
        item_key="",
        messages=tuple(ChatMessage("user", content) for content in contents),
        prefill=prefill,
        stop_pattern=None,
        max_tokens=8,
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    make_tiny(home / "bytes", alphabet="bytes")
    make_tiny(home / "ascii", alphabet="ascii")
    return home


@pytest.fixture(scope="module")
def codec(models: Path) -> TextCodec:
    return TextCodec.load(models / "bytes")


def without_template(model: Path, target: Path) -> Path:
    """A copy of a model's tokenizer as a base model has it."""
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (target / name).write_bytes((model / name).read_bytes())
    return target


def edited(model: Path, target: Path, file: str, **changes: object) -> Path:
    without_template(model, target)
    content = json.loads((target / file).read_text())
    (target / file).write_text(json.dumps({**content, **changes}))
    return target


def sentencepiece_like(model: Path, target: Path) -> Path:
    """A tokenizer that puts a blank before every text and takes it off when decoding, as Llama 2's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["<|pad|>", "<|end|>", "<|unknown|>", "▁", *"0123456789=+-.abc"]
    backend = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], unk_token="<|unknown|>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    without_template(model, target)
    backend.save(str(target / "tokenizer.json"))
    return target


class TestRender:
    def test_the_prompt_ends_with_the_prefill(self, codec: TextCodec) -> None:
        ids = codec.render(prompt("What is 1 + 1?", prefill="1 + 1 ="))
        assert codec.decode(ids) == "What is 1 + 1?\n1 + 1 ="

    def test_a_base_model_gets_the_plain_template(self, models: Path, tmp_path: Path) -> None:
        codec = TextCodec.load(without_template(models / "bytes", tmp_path / "base"))
        assert codec.decode(codec.render(prompt("1+1?", prefill="It is"))) == "Question: 1+1?\nAnswer: It is"
        assert codec.decode(codec.render(prompt("1+1?"))) == "Question: 1+1?\nAnswer:"

    def test_a_start_token_that_the_template_lacks_comes_first_and_once(self, models: Path, tmp_path: Path) -> None:
        asked = prompt("1+1?")
        plain = TextCodec.load(models / "bytes").render(asked)
        gemma = edited(models / "bytes", tmp_path / "gemma", "config.json", model_type="gemma3_text")
        settings = json.loads((gemma / "tokenizer_config.json").read_text())
        (gemma / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "<|pad|>"}))
        (gemma / "chat_template.jinja").write_bytes((models / "bytes" / "chat_template.jinja").read_bytes())
        assert TextCodec.load(gemma).render(asked) == (0, *plain)
        (gemma / "chat_template.jinja").write_text("<|pad|>{{ messages[0]['content'] + '\\n' }}")
        assert TextCodec.load(gemma).render(asked) == (0, *plain)


class TestCompletions:
    def test_the_end_token_stands_only_where_the_model_ended(self, codec: TextCodec) -> None:
        bare = codec.encode_completion(" 12", Finish.RULE)
        assert codec.encode_completion(" 12", Finish.LENGTH) == bare
        assert codec.encode_completion(" 12", Finish.STOP) == (*bare, codec.eos_id)
        assert codec.eos_id not in bare
        assert codec.decode((*bare, codec.eos_id)) == codec.decode(bare) == " 12"

    @pytest.mark.parametrize("model", ["bytes", "ascii"])
    def test_control_strings_stay_plain_text(self, models: Path, model: str) -> None:
        codec = TextCodec.load(models / model)
        ids = codec.encode_completion(f"a{END}b", Finish.LENGTH)
        assert codec.eos_ids.isdisjoint(ids)
        assert len(ids) == len(f"a{END}b")
        assert codec.round_trips(f"a{END}b")
        assert codec.decode(ids) == f"a{END}b"

    @given(text=st.text(min_size=1))
    def test_bytes_take_every_text(self, codec: TextCodec, text: str) -> None:
        assert codec.round_trips(text)
        assert codec.decode(codec.encode_completion(text, Finish.STOP)) == text

    @given(text=st.text(st.characters(codec="ascii"), min_size=1))
    def test_a_seam_never_merges(self, codec: TextCodec, text: str) -> None:
        start = codec.render(prompt("q", prefill="1 + 1 ="))
        whole = (*start, *codec.encode_completion(text, Finish.LENGTH))
        assert codec.decode(whole) == "q\n1 + 1 =" + text

    @pytest.mark.parametrize("text", ["", "é", "\x00", "\ud800", "<|unknown|>é"])
    def test_what_cannot_come_back_is_noticed(self, models: Path, text: str) -> None:
        assert not TextCodec.load(models / "ascii").round_trips(text)

    def test_a_lone_surrogate_is_no_text(self, codec: TextCodec) -> None:
        assert not codec.round_trips("a\udfff")

    def test_a_continuation_gets_no_blank_of_its_own(self, models: Path, tmp_path: Path) -> None:
        codec = TextCodec.load(sentencepiece_like(models / "ascii", tmp_path / "spm"))
        bare, blank = (codec.encode_completion(text, Finish.LENGTH) for text in ("12", " 12"))
        assert (len(bare), len(blank)) == (2, 3)
        assert (codec.decode(bare), codec.decode(blank)) == ("12", " 12")
        assert codec.round_trips("  a =")

    def test_several_end_tokens(self, models: Path, tmp_path: Path) -> None:
        path = edited(models / "ascii", tmp_path / "two", "config.json", eos_token_id=[1, 5])
        codec = TextCodec.load(path)
        assert codec.eos_ids == {1, 5}
        assert codec.decode([20, 5]) == codec.decode([20])


class TestIdentity:
    def test_lengths_and_padding(self, codec: TextCodec) -> None:
        assert (codec.max_length, codec.vocabulary_size, codec.pad_id, codec.eos_id) == (512, 259, 0, 1)

    def test_the_fingerprint_is_pinned_and_survives_saving(self, models: Path, tmp_path: Path) -> None:
        first = TextCodec.load(models / "bytes")
        assert first.fingerprint == "19c8dc0de51f972b"
        first.tokenizer(["a", "bcd"], padding=True, truncation=True, max_length=2)  # leaves traces in its state
        first.tokenizer.save_pretrained(tmp_path / "again")
        assert TextCodec.load(tmp_path / "again").fingerprint == first.fingerprint

    def test_other_vocabularies_have_other_fingerprints(self, models: Path, tmp_path: Path) -> None:
        spm = TextCodec.load(sentencepiece_like(models / "ascii", tmp_path / "spm"))
        found = {TextCodec.load(models / name).fingerprint for name in ("bytes", "ascii")} | {spm.fingerprint}
        assert len(found) == 3


class TestErrors:
    @pytest.mark.parametrize("path", ["/no/such/place", "./nowhere", "~/nowhere-at-all", "bare-name", Path("nowhere")])
    def test_a_missing_path(self, path: str | Path) -> None:
        with pytest.raises(UsageError, match="no model at") as refused:
            TextCodec.load(path)
        assert refused.value.hint

    def test_a_file(self, models: Path) -> None:
        with pytest.raises(UsageError, match="is a file"):
            TextCodec.load(models / "bytes" / "config.json")

    def test_a_directory_without_a_tokenizer(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(UsageError, match="no tokenizer"):
            TextCodec.load(tmp_path)

    def test_a_truncated_file(self, models: Path, tmp_path: Path) -> None:
        path = without_template(models / "bytes", tmp_path / "cut")
        whole = (path / "tokenizer.json").read_text()
        (path / "tokenizer.json").write_text(whole[: len(whole) // 2])
        with pytest.raises(UsageError, match="damaged"):
            TextCodec.load(path)

    def test_no_end_token(self, models: Path, tmp_path: Path) -> None:
        path = edited(models / "bytes", tmp_path / "endless", "tokenizer_config.json", eos_token=None)
        with pytest.raises(UsageError, match="no end token"):
            TextCodec.load(path)

    @pytest.mark.parametrize(("offline", "said"), [("1", "HF_HUB_OFFLINE forbids"), ("0", "cannot fetch .* no route")])
    def test_a_name_that_the_hub_does_not_give(self, monkeypatch: pytest.MonkeyPatch, offline: str, said: str) -> None:
        def unreachable(*_: object, **__: object) -> None:
            raise OSError("no route\nmore")

        monkeypatch.setenv("HF_HUB_OFFLINE", offline)
        monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", unreachable)
        with pytest.raises(UsageError, match=said) as refused:
            TextCodec.load("someone/some-model")
        assert refused.value.hint


class TestGuard:
    def test_a_broken_extra_looks_absent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = tmp_path / "brokenvision"
        package.mkdir()
        (package / "part.py").write_text("")
        (package / "__init__.py").write_text(
            "import brokenvision.part\nraise RuntimeError('operator brokenvision::nms does not exist')"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "brokenvision", raising=False)
        assert guard_broken_extras(["brokenvision", "never_installed", "json"]) == ("brokenvision",)
        assert "brokenvision.part" not in sys.modules
        with pytest.raises(ImportError):
            __import__("brokenvision")
        assert guard_broken_extras(["brokenvision"]) == ("brokenvision",)
        monkeypatch.delitem(sys.modules, "brokenvision")
