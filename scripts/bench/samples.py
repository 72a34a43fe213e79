"""Real completions for measurements: SmolLM2-135M at temperature 1, sampled once and kept as JSON in the cache."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

SEED = 20260

QUESTIONS = (
    "Explain how to add 37 and 45 step by step.",
    "Why does the moon seem to change its shape during a month?",
    "A train leaves at 9:40 and needs 2 hours and 35 minutes. When does it arrive? Explain your steps.",
    "Describe how bread is made, from flour to loaf.",
    "Write a short story about a fox who learns to count.",
    "How do I find the area of a triangle with base 12 and height 7? Show the calculation.",
    "What is the difference between weather and climate?",
    "Solve 3x + 7 = 25 and explain every step.",
    "Give advice to somebody who starts to learn the piano.",
    "How does a bicycle stay upright while it moves?",
    "A shop sells 4 pens for 6 dollars. What do 10 pens cost? Think step by step.",
    "Explain to a child what a computer program is.",
    "List the steps for planting a tomato in a pot.",
    "What is 15 percent of 240? Explain how you get there.",
    "Why do leaves turn yellow and red in autumn?",
    "Describe a walk through an old harbour town in the rain.",
)


@dataclass(frozen=True, slots=True)
class RealCompletion:
    """One completion as sampled: `token_ids` with the end token iff `stopped`, `logprobs` in nats, one per id."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    stopped: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the samples; its hash names the cached file."""

    prompts: int = 8
    group_size: int = 8
    max_tokens: int = 128
    seed: int = SEED

    @property
    def file_name(self) -> str:
        content = json.dumps([asdict(self), QUESTIONS[: self.prompts]])
        return f"smollm2-samples-{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}.json"


def load_or_sample(cache: Path, recipe: Recipe) -> list[list[RealCompletion]]:
    """One list of `group_size` completions per prompt; sampling takes minutes on one core, reading nothing."""
    path = cache / "bench" / recipe.file_name
    if not path.exists():
        groups = _sample(cache, recipe)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps([[asdict(completion) for completion in group] for group in groups]))
        partial.replace(path)
    return [[RealCompletion(**completion) for completion in group] for group in json.loads(path.read_text())]


def _sample(cache: Path, recipe: Recipe) -> list[list[RealCompletion]]:
    from ftis_node.imports import guard_broken_extras

    guard_broken_extras()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ftis_node.lab.smollm2 import ensure_smollm2

    directory = ensure_smollm2(cache)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    torch.manual_seed(recipe.seed)
    groups = []
    for number, question in enumerate(QUESTIONS[: recipe.prompts], start=1):
        began = time.monotonic()
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        groups.append(_sample_group(model, tokenizer, prompt["input_ids"], recipe))
        seconds = time.monotonic() - began
        print(f"sampled prompt {number} of {recipe.prompts} in {seconds:.0f} s", file=sys.stderr, flush=True)
    return groups


def _sample_group(model, tokenizer, prompt_ids, recipe: Recipe) -> list[RealCompletion]:
    """`prompt_ids` [1, P]; plain ancestral sampling, every token with its log-probability."""
    import torch

    size, eos = recipe.group_size, tokenizer.eos_token_id
    ids = [[] for _ in range(size)]
    logprobs = [[] for _ in range(size)]
    stopped = [False] * size
    step, past = prompt_ids.expand(size, -1), None
    with torch.inference_mode():
        for _ in range(recipe.max_tokens):
            output = model(input_ids=step, past_key_values=past, use_cache=True, logits_to_keep=1)
            past = output.past_key_values
            scores = torch.log_softmax(output.logits[:, -1].float(), dim=-1)
            step = torch.multinomial(scores.exp(), 1)
            drawn = zip(step[:, 0].tolist(), scores.gather(1, step)[:, 0].tolist(), strict=True)
            for row, (token, score) in enumerate(drawn):
                if not stopped[row]:
                    ids[row].append(token)
                    logprobs[row].append(score)
                    stopped[row] = token == eos
            if all(stopped):
                break
    return [
        RealCompletion(tokenizer.decode(row[:-1] if ended else row), row, scores, ended)
        for row, scores, ended in zip(ids, logprobs, stopped, strict=True)
    ]
