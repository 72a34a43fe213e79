"""Tiny models that half know a task: enough for rewards to differ within a group, with room left to learn.

Supervised cross-entropy on prompt and answer of training items, loss on the answer alone. Held-out items are never
drawn, so a probe on them stays honest. Teaching ends when the model gives the right answer with the probability
`goal`, averaged over the items of a batch and smoothed; about 15 CPU-seconds for one-digit sums and differences.

Shapes: B items of a batch, T tokens of prompt and answer, V vocabulary.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ftis_node.lab.atomic import made_once
from ftis_node.lab.styles import Style, lesson, written
from ftis_node.lab.tiny import TinyConfig, build_tiny, save_tiny
from ftis_node.records import TokenIds
from ftis_node.tasks.base import Item, Task, draw
from ftis_node.tasks.registry import build, prompt_of
from ftis_node.tokens import TextCodec
from ftis_protocol.manifest import TaskSpec
from ftis_protocol.rollout import Finish, PromptRef

if TYPE_CHECKING:
    import torch

FORMAT = 1  # rises when teaching changes, so that an older cache is not used
DEFAULT_GOAL = 0.6
BATCH_ITEMS = 64
LEARNING_RATE = 1e-3
WARM_UP_STEPS = 20
MAX_STEPS = 1500
SMOOTHING = 0.8
IGNORED = -100  # label of a position without loss, by torch's convention

Encoded = tuple[TokenIds, TokenIds, bool]  # prompt, answer with its end token, whether the answer is right


@dataclass(frozen=True, slots=True)
class TeachSchedule:
    """Items of a batch, AdamW's rate after the warm-up, and the step at which teaching ends whatever was reached.
    `noise` is the share of digits that the lessons get wrong: such a model knows more than it says, so there is
    something for rewards to bring out."""

    batch_items: int
    learning_rate: float
    max_steps: int
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class TeachProgress:
    """State after `step` optimiser steps: loss in nats per answer token; `success`: smoothed probability of the right
    answer on training items; `goal`: the success at which teaching ends."""

    step: int
    loss: float
    success: float
    goal: float


def ensure_taught(
    config: TinyConfig,
    spec: TaskSpec,
    cache_dir: str | Path,
    *,
    goal: float = DEFAULT_GOAL,
    style: Style = "plain",
    schedule: TeachSchedule | None = None,
    progress: Callable[[TeachProgress], None] | None = None,
) -> Path:
    """The checkpoint of a tiny model taught `spec` in `style` up to `goal`, made at the first call; returns its
    directory.

    Equal arguments mean equal weights on one machine. `progress` is called after every step. What was reached stands
    in taught.json; a task that is too hard for the model ends at the schedule's last step with whatever it learned.
    """
    wanted = {"model": asdict(config), "task": spec.model_dump(mode="json"), "goal": goal, "format": FORMAT}
    if style != "plain":
        wanted["style"] = style
    if schedule is not None:
        wanted["schedule"] = asdict(schedule)
    digest = blake2b(json.dumps(wanted, sort_keys=True).encode(), digest_size=5).hexdigest()
    target = Path(cache_dir).expanduser() / f"taught-{digest}" / config.label

    paced = schedule or TeachSchedule(BATCH_ITEMS, LEARNING_RATE, MAX_STEPS)

    def make(aside: Path) -> None:
        model, tokenizer = build_tiny(config)
        save_tiny(model, tokenizer, aside)  # the codec reads tokenizer and limits from here
        lessons = _lessons(build(spec), TextCodec.load(aside), config.seed, style, paced.noise)
        reached = _teach(model, lessons, goal, paced, progress)
        save_tiny(model, tokenizer, aside)
        (aside / "taught.json").write_text(json.dumps({**wanted, "reached": asdict(reached)}, indent=1))

    return made_once(target, make)


def _teach(
    model: Any,
    lessons: Iterator[Encoded],
    goal: float,
    schedule: TeachSchedule,
    progress: Callable[[TeachProgress], None] | None,
) -> TeachProgress:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=schedule.learning_rate, weight_decay=0.1)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP_STEPS))
    model.train()
    success, state = 0.0, TeachProgress(0, float("nan"), 0.0, goal)
    while state.step < schedule.max_steps and success < goal:
        batch = [next(lessons) for _ in range(schedule.batch_items)]
        loss, probabilities = _loss(model, *_batch(batch))
        hits = fmean([p for p, (_, _, right) in zip(probabilities, batch, strict=True) if right] or [0.0])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        success = SMOOTHING * success + (1 - SMOOTHING) * hits
        state = TeachProgress(state.step + 1, float(loss.detach()), success, goal)
        if progress is not None:
            progress(state)
    model.eval()
    return state


def _loss(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """Cross-entropy per answer token, and the probability of each item's whole answer.

    `ids`, `labels`: [B, T], padded on the right, where causal attention keeps padding out of sight.
    """
    import torch
    from torch.nn.functional import cross_entropy

    logits = model(input_ids=ids).logits[:, :-1]  # [B, T-1, V]
    targets = labels[:, 1:]
    nats = cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")  # [B, T-1]
    probabilities: list[float] = torch.exp(-nats.detach().sum(dim=1)).tolist()
    return nats.sum() / (targets != IGNORED).sum(), probabilities


def _batch(lessons: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, both [B, T]; only the answer has labels."""
    import torch

    longest = max(len(prompt) + len(answer) for prompt, answer, _ in lessons)
    ids = torch.zeros(len(lessons), longest, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, (prompt, answer, _) in enumerate(lessons):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return ids, labels


def _lessons(task: Task, codec: TextCodec, seed: int, style: Style = "plain", noise: float = 0.0) -> Iterator[Encoded]:
    """Training items without end, encoded; without noise each question is encoded once."""
    known: dict[str, Encoded] = {}
    slice_seed, index = draw("teach", task.name, seed), 0
    while True:
        item = task.item(slice_seed, index)
        if noise or style == "undecided":
            text, right = lesson(item, style, noise, random.Random(f"{seed}/noise/{index}"))
            yield *_encoded(task, codec, item, text, style), right
        else:
            if item.question not in known:
                known[item.question] = *_encoded(task, codec, item, written(item, style), style), True
            yield known[item.question]
        index += 1


def _encoded(task: Task, codec: TextCodec, item: Item, text: str, style: Style) -> tuple[TokenIds, TokenIds]:
    """Prompt and answer. Written-out answers end as they do when sampled; plain ones always with the end token."""
    ref = PromptRef(task=task.name, version=task.version, slot=0, index=0)
    prompt = codec.render(prompt_of(task, item, ref, author=""))
    ruled = style != "plain" and task.stop_pattern is not None and re.match(task.stop_pattern, text)
    return prompt, codec.encode_completion(text, Finish.RULE if ruled else Finish.STOP)
