"""Real completions for measurements and for the text dictionary: SmolLM2-135M on our kinds of task, sampled once.

A corpus is a list of tasks, a temperature and a seed; its hash names the file that keeps it in the cache. Corpora whose
names begin with "train" feed the dictionary, those of the bench are measured: other items, other seeds, and the corpus
"unseen" has task families of which the dictionary saw nothing at all.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

FORMAT = 2
ROWS = 192  # completions that grow at once

# Families of reasoning-gym that ask for words and steps. The dictionary is trained on the first list only.
FAMILIES = (
    "aiw", "basic_arithmetic", "calendar_arithmetic", "chain_sum", "coin_flip", "count_primes", "family_relationships",
    "fraction_simplification", "gsm_symbolic", "knights_knaves", "leg_counting", "letter_counting", "number_sequence",
    "simple_equations", "time_intervals", "word_sorting",
)  # fmt: skip
# Those of them on which the model writes at length.
LONG_FAMILIES = (
    "basic_arithmetic", "coin_flip", "count_primes", "fraction_simplification", "gsm_symbolic", "leg_counting",
    "number_sequence", "simple_equations", "word_sorting",
)  # fmt: skip
UNSEEN_FAMILIES = (
    "base_conversion", "course_schedule", "dice", "lcm", "needle_haystack", "number_filtering", "self_reference",
    "simple_geometry",
)  # fmt: skip


# Beyond a model of this size, and answered at any length; nothing like them is in the dictionary.
OPEN = "open"
QUESTIONS = (
    "Explain how to add 37 and 45 step by step.",
    "Why does the moon seem to change its shape during a month?",
    "A train leaves at 9:40 and needs 2 hours and 35 minutes. When does it arrive? Explain your steps.",
    "How do I find the area of a triangle with base 12 and height 7? Show the calculation.",
    "What is the difference between weather and climate?",
    "Write a short story about a fox who learns to count.",
    "A shop sells 4 pens for 6 dollars. What do 10 pens cost? Think step by step.",
    "Give advice to somebody who starts to learn the piano.",
)


@dataclass(frozen=True, slots=True)
class Source:
    """One task and how many of its items to ask; the task "open" has QUESTIONS."""

    task: str
    parameters: dict[str, Any]
    items: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """What decides the samples. `max_tokens` caps a completion; `logprobs` keeps ids and log-probabilities as well;
    without `stop_rule` completions run on behind their answer, which no node does."""

    name: str
    sources: tuple[Source, ...]
    group_size: int
    temperature: float
    max_tokens: int
    seed: int
    logprobs: bool = False
    stop_rule: bool = True

    @property
    def file_name(self) -> str:
        content = json.dumps([FORMAT, asdict(self)], sort_keys=True)
        return f"smollm2-{self.name}-{hashlib.blake2b(content.encode(), digest_size=6).hexdigest()}.json"


def _prose(families: Sequence[str], items: int) -> tuple[Source, ...]:
    return tuple(Source("reasoning-gym", {"family": family}, items) for family in families)


def _digits(items: int, kinds: Sequence[tuple[str, int]]) -> tuple[Source, ...]:
    return tuple(
        Source("arithmetic", {"operations": operations, "digits": digits}, items) for operations, digits in kinds
    )


# Answers of about eight tokens: SmolLM2 takes one for each digit. Behind the easy ones a tail is sampled instead.
_LONG_NUMBERS = (("+-", 6), ("*", 3), ("+-", 7), ("*", 4))
_SMALL_NUMBERS = (("+-", 1), ("*", 1), ("+-", 2), ("*", 2))


TRAINING = (
    Corpus("train-short", _digits(40, _LONG_NUMBERS), 4, 1.0, 12, 101),
    Corpus("train-tails", _digits(40, _SMALL_NUMBERS), 4, 1.0, 8, 105, stop_rule=False),
    Corpus("train-cool", _prose(FAMILIES, 20), 1, 0.6, 160, 103),
    Corpus("train-warm", _prose(FAMILIES, 16), 1, 1.0, 160, 104),
)
MEASURED = {
    corpus.name: corpus
    for corpus in (
        Corpus("short", _digits(40, _LONG_NUMBERS), 12, 1.0, 12, 201, logprobs=True),
        Corpus("short-cool", _digits(40, _SMALL_NUMBERS), 12, 0.6, 8, 207, stop_rule=False),
        Corpus("short-tails", _digits(40, _SMALL_NUMBERS), 12, 1.0, 8, 206, logprobs=True, stop_rule=False),
        Corpus("brief", _prose(FAMILIES, 1), 12, 0.6, 128, 202),
        Corpus("realistic", _prose(LONG_FAMILIES, 2), 12, 0.6, 256, 208),
        Corpus("unseen", _prose(UNSEEN_FAMILIES, 1), 12, 0.6, 128, 203),
        Corpus("noise", _prose(LONG_FAMILIES, 2), 12, 1.0, 160, 204, logprobs=True),
        Corpus("long-noise", (Source(OPEN, {}, len(QUESTIONS)),), 12, 1.0, 448, 205, logprobs=True),
    )
}


@dataclass(frozen=True, slots=True)
class RealCompletion:
    """One completion as sampled. `tokens` counts the end token iff `finish` is "stop"; ids and log-probs (nats at
    temperature 1) are there where the corpus keeps them."""

    text: str
    tokens: int
    finish: str
    reward: float
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RealGroup:
    """All completions of one item; `task` and `version` as in a manifest."""

    task: str
    version: int
    index: int
    completions: tuple[RealCompletion, ...]


def load_or_sample(cache: Path, corpus: Corpus) -> tuple[RealGroup, ...]:
    """The groups of a corpus. Sampling takes minutes on one core; reading what the cache holds takes none."""
    path = cache / "bench" / corpus.file_name
    if not path.exists():
        groups = list(_sample(cache, corpus))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps([asdict(group) for group in groups]))
        partial.replace(path)
    return tuple(_group(plain) for plain in json.loads(path.read_text()))


def asked_in(corpus: Corpus) -> list[tuple[str, str]]:
    """Question and answer of each group, drawn again from the tasks."""
    asked = (asked for number, source in enumerate(corpus.sources) for asked in _questions(corpus, source, number))
    return [(item.question, item.answer) for item, _, _ in asked]


def _group(plain: dict[str, Any]) -> RealGroup:
    members = (
        RealCompletion(**{**member, "token_ids": tuple(member["token_ids"]), "logprobs": tuple(member["logprobs"])})
        for member in plain["completions"]
    )
    return RealGroup(plain["task"], plain["version"], plain["index"], tuple(members))


def _sample(cache: Path, corpus: Corpus) -> Iterator[RealGroup]:
    import torch

    from ftis_node.generate.vllm_start import MEBIBYTE, VllmSettings, start_engine
    from ftis_node.lab.smollm2 import ensure_smollm2
    from ftis_node.tokens import TextCodec

    directory = ensure_smollm2(cache)
    codec = TextCodec.load(directory)
    settings = VllmSettings(
        directory, cache, dtype="bfloat16", context=2048, kv_cache_bytes=1536 * MEBIBYTE, max_rows=ROWS
    )
    engine = start_engine(settings)
    torch.manual_seed(corpus.seed)  # one for the whole: vLLM's seeds per request fail on a CPU
    asked = [asked for number, source in enumerate(corpus.sources) for asked in _questions(corpus, source, number)]
    requests = [{"prompt_token_ids": list(codec.render(prompt))} for _, prompt, _ in asked]
    began = time.monotonic()
    outputs = engine.generate(requests, _sampling(corpus, codec), use_tqdm=False)
    count = sum(len(member.token_ids) for output in outputs for member in output.outputs)
    rate = count / (time.monotonic() - began)
    print(f"sampled {corpus.name}: {count} tokens, {rate:.0f} a second", file=sys.stderr, flush=True)
    for (item, prompt, score), output in zip(asked, outputs, strict=True):
        pattern = prompt.stop_pattern if corpus.stop_rule else None
        members = sorted(output.outputs, key=lambda member: member.index)
        kept = (_kept(member, codec, pattern, corpus.logprobs) for member in members)
        scored = tuple(replace(member, reward=score(item, member.text)) for member in kept)
        yield RealGroup(prompt.ref.task, prompt.ref.version, prompt.ref.index, scored)


def _questions(corpus: Corpus, source: Source, number: int) -> Iterator[tuple[Any, Any, Any]]:
    """Item, prompt and checker."""
    from ftis_node.records import ChatMessage, Prompt
    from ftis_node.tasks import registry
    from ftis_node.tasks.base import Item
    from ftis_protocol.rollout import PromptRef

    if source.task == OPEN:
        for index in range(source.items):
            said = (ChatMessage(role="user", content=QUESTIONS[index]),)
            ref = PromptRef(task=OPEN, version=1, slot=0, index=index)
            item = Item(QUESTIONS[index], said, "", "", QUESTIONS[index])
            yield item, Prompt(ref, "", item.key, said, "", None, corpus.max_tokens), lambda item, text: 0.0
        return
    task = registry.build(registry.describe(source.task, **source.parameters))
    for index in range(source.items):
        item = task.item(corpus.seed * 1000 + number, index)
        ref = PromptRef(task=task.name, version=task.version, slot=0, index=index)
        yield item, registry.prompt_of(task, item, ref, ""), task.score


def _sampling(corpus: Corpus, codec: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        n=corpus.group_size,
        temperature=corpus.temperature,
        max_tokens=corpus.max_tokens,
        detokenize=False,
        logprobs=0,
        ignore_eos=True,
        stop_token_ids=sorted(codec.eos_ids),
    )


def _kept(member: Any, codec: Any, pattern: str | None, logprobs: bool) -> RealCompletion:
    """What a node would publish of it: cut by the task's stop rule, and text that its own tokenizer can spell."""
    from ftis_node.generate.base import cut_at_stop

    ids = tuple(member.token_ids)
    scores = [float(place[token].logprob) for place, token in zip(member.logprobs, ids, strict=True)]
    ended = ids[-1] in codec.eos_ids
    sample = cut_at_stop(ids, scores, codec, pattern, ended_by_eos=ended, capped=not ended)
    more = (sample.token_ids, sample.logprobs) if logprobs else ()
    return RealCompletion(sample.text, len(sample.token_ids), sample.finish.value, 0.0, *more)
