"""Very small language models as ordinary checkpoints: quick enough for tests, shaped so that every engine takes them.

A Llama of a few layers (vLLM's attention wants 32 or 64 numbers per head) with a tokenizer of one token per byte or
per character. `make_tiny` gives random weights in a moment; teach.py teaches them arithmetic.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ftis_node.imports import guard_broken_extras, no_progress_bars
from ftis_node.lab.atomic import made_once

Alphabet = Literal["bytes", "ascii", "merged"]

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"
HEAD_NUMBERS = 32
MAX_TOKENS = 512
# Each turn is a line of its own; the assistant's line stays open.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """Shape of a tiny model. `hidden` is a multiple of 32. `tied`: input and output embedding are one matrix.

    `alphabet`: "bytes" takes every text, one token per UTF-8 byte; "ascii" has one token per printable ASCII
    character, in another order, and refuses the rest; "merged" has those and a token for each digit behind a space or
    behind "=". They stand for strangers' tokenizers.
    """

    layers: int = 2
    hidden: int = 128
    tied: bool = True
    alphabet: Alphabet = "bytes"
    seed: int = 0

    @property
    def label(self) -> str:
        """A name for files: equal labels mean equal random weights."""
        head = "tied" if self.tied else "untied"
        return f"tiny-{self.layers}x{self.hidden}-{head}-{self.alphabet}-seed{self.seed}"


def make_tiny(
    path: str | Path,
    *,
    tied: bool = True,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 128,
    alphabet: Alphabet = "bytes",
) -> Path:
    """A checkpoint directory at `path` with random float32 weights, made unless it is there; returns the path."""
    config = TinyConfig(layers=layers, hidden=hidden, tied=tied, alphabet=alphabet, seed=seed)

    def save(target: Path) -> None:
        save_tiny(*build_tiny(config), target)

    return made_once(Path(path), save)


def save_tiny(model: Any, tokenizer: Any, target: Path) -> None:
    """Write both as an ordinary checkpoint directory."""
    with no_progress_bars():
        model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def build_tiny(config: TinyConfig) -> tuple[Any, Any]:
    """(model, tokenizer) with random weights that depend on `config` alone; torch's own random state is kept."""
    guard_broken_extras()
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer(config.alphabet)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=2 * config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.hidden // HEAD_NUMBERS,
        num_key_value_heads=config.hidden // HEAD_NUMBERS,
        head_dim=HEAD_NUMBERS,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=config.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.02,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return LlamaForCausalLM(shape).to(torch.float32), tokenizer


def build_tokenizer(alphabet: Alphabet) -> Any:
    """A fast tokenizer over an alphabet (see TinyConfig), with an end token and a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, END, UNKNOWN]
    if alphabet == "bytes":
        pieces = special + sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = Tokenizer(models.BPE(vocab=_numbered(pieces), merges=[], unk_token=None))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
    elif alphabet == "merged":
        merges = [(before, digit) for before in " =" for digit in string.digits]
        pieces = special + sorted({*string.printable}) + [before + digit for before, digit in merges]
        backend = Tokenizer(models.BPE(vocab=_numbered(pieces), merges=merges, unk_token=UNKNOWN))
        backend.decoder = decoders.Fuse()
    else:
        pieces = special + sorted({*string.printable} - {"\r", "\x0b", "\x0c"}, reverse=True)
        backend = Tokenizer(models.WordLevel(vocab=_numbered(pieces), unk_token=UNKNOWN))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=MAX_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _numbered(pieces: list[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(pieces)}
