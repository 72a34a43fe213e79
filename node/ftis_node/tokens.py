"""Text to token ids and back, for one model.

Nodes exchange text, so each completion of a peer is encoded here, alone and behind a prompt that is encoded alone: ids
are concatenated and no token ever merges across the seam. Three properties are guaranteed:

* a completion's text is plain text: "<|im_end|>" inside it becomes ordinary pieces, never the control token;
* the end token exists only where `Finish.STOP` says so;
* `decode` gives back the exact characters (no clean-up), a single trailing end token aside.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ftis_node.imports import guard_broken_extras
from ftis_node.records import ChatMessage, Prompt, TokenIds
from ftis_node.tokenizer_files import MODEL_CONFIG, load_tokenizer, read_json
from ftis_protocol.rollout import Finish

FINGERPRINT_BYTES = 8
UNBOUNDED_TOKENS = 1 << 20  # stands in for "the model names no limit"

# Base models bring no chat template; every node renders their prompts this way.
PLAIN_LABELS = {"system": "", "user": "Question: ", "assistant": "Answer: "}


def plain_prompt(messages: tuple[ChatMessage, ...], prefill: str) -> str:
    """The prompt of a model without a chat template: one labelled line per turn, the last one left open."""
    turns = [f"{PLAIN_LABELS.get(m.role, m.role + ': ')}{m.content}\n" for m in messages]
    opening = PLAIN_LABELS["assistant"]
    return "".join(turns) + (opening + prefill if prefill else opening.rstrip())


class TextCodec:
    """Encodes prompts and completions for one model, and names its tokenizer by fingerprint.

    Attributes: `fingerprint` (16 hex digits, equal only for tokenizers that give equal ids), `eos_id` (the end token
    that is appended), `eos_ids` (all ids that end a completion), `pad_id` (a filler; masks must come from lengths,
    since it may equal an end id), `vocabulary_size`, `max_length` (tokens of prompt and completion together).
    """

    def __init__(self, tokenizer: Any, *, eos_ids: frozenset[int], max_length: int, wants_bos: bool) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = tokenizer
        self.eos_id: int = tokenizer.eos_token_id
        self.eos_ids = eos_ids
        self.pad_id: int = self.eos_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.vocabulary_size: int = len(tokenizer)
        self.max_length = max_length
        self._bos_id: int | None = tokenizer.bos_token_id if wants_bos else None
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        # These two record how the last caller wanted batches shaped; they say nothing about the vocabulary.
        state["truncation"] = state["padding"] = None
        self.fingerprint = _fingerprint(state, self.eos_id)
        self._prompts = Tokenizer.from_str(json.dumps(state))
        self._completions = Tokenizer.from_str(json.dumps(_continuing(state)))
        self._completions.encode_special_tokens = True
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._control_ids = frozenset(special) | eos_ids

    @classmethod
    def load(cls, path: str | Path) -> TextCodec:
        """Read the tokenizer of a checkpoint directory, or of a model name on the hub (unless HF_HUB_OFFLINE is set).

        Raises UsageError for a missing path, a directory without a tokenizer, a name that cannot be fetched and a
        tokenizer that has no end token or no fast form.
        """
        guard_broken_extras()
        tokenizer, directory = load_tokenizer(path)
        config = read_json(directory / MODEL_CONFIG) if directory else {}
        text_config = config.get("text_config", config)
        limits = [tokenizer.model_max_length, text_config.get("max_position_embeddings") or UNBOUNDED_TOKENS]
        generation = read_json(directory / "generation_config.json") if directory else {}
        return cls(
            tokenizer,
            eos_ids=_end_ids(tokenizer.eos_token_id, config, text_config, generation),
            max_length=int(min(*limits, UNBOUNDED_TOKENS)),
            wants_bos=_wants_bos(tokenizer, str(config.get("model_type", ""))),
        )

    def render(self, prompt: Prompt) -> TokenIds:
        """Token ids of the whole prompt: the model's chat template up to the assistant's turn, then the prefill."""
        if self.tokenizer.chat_template:
            turns = [{"role": m.role, "content": m.content} for m in prompt.messages]
            text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            text += prompt.prefill
        else:
            text = plain_prompt(prompt.messages, prompt.prefill)
        ids = tuple(self._prompts.encode(text, add_special_tokens=False).ids)
        if self._bos_id is not None and ids[:1] != (self._bos_id,):
            return (self._bos_id, *ids)
        return ids

    def encode_completion(self, text: str, finish: Finish) -> TokenIds:
        """Token ids of a completion that follows a rendered prompt; ends with `eos_id` iff `finish` is STOP."""
        ids = tuple(self._completions.encode(text, add_special_tokens=False).ids)
        return (*ids, self.eos_id) if finish is Finish.STOP else ids

    def decode(self, ids: TokenIds | list[int]) -> str:
        """Text of a completion's token ids, without the end token that closes it."""
        kept = list(ids)
        if kept and kept[-1] in self.eos_ids:
            kept.pop()
        return str(self._completions.decode(kept, skip_special_tokens=False))

    def spells(self, ids: TokenIds, text: str, finish: Finish) -> bool:
        """Whether `ids` are one way to say `text` in plain tokens of this tokenizer, closed by an end token iff
        `finish` is STOP. Sampled text is often cut otherwise than `encode_completion` would."""
        body = list(ids)
        if finish is Finish.STOP and (not body or body.pop() not in self.eos_ids):
            return False
        known = all(0 <= i < self.vocabulary_size and self._completions.id_to_token(i) is not None for i in body)
        return known and self._control_ids.isdisjoint(body) and self.decode(body) == text

    def round_trips(self, text: str) -> bool:
        """Whether `text` survives this tokenizer unchanged, as one or more plain tokens."""
        if not text or not _is_utf8(text):
            return False
        ids = self.encode_completion(text, Finish.LENGTH)
        return self._control_ids.isdisjoint(ids) and self.decode(ids) == text


def _fingerprint(state: dict[str, Any], eos_id: int) -> str:
    canonical = json.dumps([state, eos_id], sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_BYTES).hexdigest()


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate: no tokenizer takes it
        return False
    return True


def _end_ids(eos_id: int, *configs: dict[str, Any]) -> frozenset[int]:
    """All end ids that the tokenizer and the model's files name; chat models often have more than one."""
    named: list[Any] = [eos_id]
    for config in configs:
        entry = config.get("eos_token_id")
        named.extend(entry if isinstance(entry, list) else [entry])
    return frozenset(i for i in named if isinstance(i, int))


def _wants_bos(tokenizer: Any, model_type: str) -> bool:
    """Whether prompts must begin with the start token even where the chat template leaves it out.

    Gemma is named because tokenizers recovered from packed files lose the setting, and it talks nonsense without.
    """
    if tokenizer.bos_token_id is None:
        return False
    by_itself = tokenizer.backend_tokenizer.encode("a", add_special_tokens=True).ids[:1] == [tokenizer.bos_token_id]
    return by_itself or bool(tokenizer.init_kwargs.get("add_bos_token")) or model_type.startswith("gemma")


def _continuing(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of a tokenizer's state for text in mid-sentence.

    SentencePiece-like tokenizers put a blank before a text and take it off again when decoding. A completion is the
    continuation of a prompt, so both habits would change its first word.
    """

    def strip(part: dict[str, Any] | None) -> dict[str, Any] | None:
        if part is None or part.get("type") == "Prepend":
            return None
        if part.get("type") == "Strip" and part.get("content") == " ":
            return {**part, "start": 0}
        changed = dict(part)
        if part.get("type") == "Metaspace":
            changed["prepend_scheme"] = "never"
        if part.get("type") == "ByteLevel":
            changed["add_prefix_space"] = False
        for key in ("normalizers", "pretokenizers", "decoders"):
            if key in part:
                changed[key] = [kept for inner in part[key] if (kept := strip(inner)) is not None]
        return changed

    return {**state, **{key: strip(state.get(key)) for key in ("normalizer", "pre_tokenizer", "decoder")}}
