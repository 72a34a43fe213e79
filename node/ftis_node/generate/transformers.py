"""Sampling with plain transformers, from the learner's own module.

Slower than vLLM, but it needs nothing else, runs every architecture that transformers knows, and can never hold stale
weights. A prompt is encoded once; its keys and values are then repeated for the members of its group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ftis_node.generate.base import Generator, make_sample, prompt_seeds, render_all, rule_matches
from ftis_node.records import Prompt, Sample, SampledGroup, TokenIds
from ftis_protocol.rollout import Finish

if TYPE_CHECKING:
    from ftis_node.tokens import TextCodec


@dataclass(slots=True)
class _Row:
    """One completion while it grows. `uniforms` are its random numbers, one per token, drawn beforehand so that they
    depend on neither the device nor the other rows."""

    prompt: Prompt
    uniforms: Tensor
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None

    def push(self, token: int, logprob: float, codec: TextCodec) -> None:
        """Takes the next token and decides whether the completion ends with it."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if token in codec.eos_ids:
            self.finish = Finish.STOP
        elif self.prompt.stop_pattern is not None and rule_matches(
            self.prompt.stop_pattern, codec.decode(tuple(self.token_ids))
        ):
            self.finish = Finish.RULE
        elif len(self.token_ids) >= self.prompt.max_tokens:
            self.finish = Finish.LENGTH

    def sample(self, codec: TextCodec) -> Sample:
        assert self.finish is not None
        return make_sample(self.token_ids, self.logprobs, codec, self.finish)


class TransformersGenerator(Generator):
    """Samples from `module`, a causal language model of transformers or one wrapped by peft.

    `max_rows` bounds how many completions grow at once (memory: their keys and values). `autocast` is the trainer's
    autocast type, or None: with another one the recorded log-probs would differ from the learner's.
    """

    name: ClassVar[str] = "transformers"

    def __init__(
        self,
        module: nn.Module,
        codec: TextCodec,
        *,
        policy_version: int = 0,
        max_rows: int = 64,
        autocast: torch.dtype | None = None,
        reason: str = "",
    ) -> None:
        self._module = module
        self._codec = codec
        self._version = policy_version
        self._max_rows = max_rows
        self._autocast = autocast
        self.reason = reason

    @property
    def policy_version(self) -> int:
        return self._version

    def load_weights(self, path: Path, policy_version: int) -> None:
        """Records the version; the module is the learner's own and holds the new weights already."""
        self._version = policy_version

    def generate(
        self, prompts: Sequence[Prompt], *, group_size: int, greedy: bool = False, seed: int | None = None
    ) -> tuple[SampledGroup, ...]:
        assert group_size >= 1
        rendered = render_all(self._codec, prompts, self._codec.max_length)
        if seed is None:
            seed = int(torch.randint(2**62, ()).item())
        seeds = prompt_seeds(rendered, seed)
        width = 1 if greedy else group_size
        grown = [_rows_of(prompt, width, own) for prompt, own in zip(prompts, seeds, strict=True)]
        # Neighbours in this order have similar lengths, so a batch of them carries little padding.
        order = sorted(range(len(prompts)), key=lambda i: len(rendered[i]))
        step = max(1, self._max_rows // width)
        with self._sampling_mode():
            for start in range(0, len(order), step):
                chunk = order[start : start + step]
                self._grow([rendered[i] for i in chunk], [grown[i] for i in chunk], greedy)
        groups = []
        for prompt, ids, rows in zip(prompts, rendered, grown, strict=True):
            samples = tuple(row.sample(self._codec) for row in rows)
            groups.append(SampledGroup(prompt, ids, samples * (group_size // width), self._version))
        return tuple(groups)

    @contextmanager
    def _sampling_mode(self) -> Iterator[None]:
        """Evaluation mode without gradients; every submodule's own mode comes back afterwards."""
        modes = [(part, part.training) for part in self._module.modules()]
        self._module.eval()
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.inference_mode())
                if self._autocast is not None:
                    device = next(self._module.parameters()).device.type
                    stack.enter_context(torch.autocast(device, dtype=self._autocast))
                yield
        finally:
            # Casts made here are inference tensors; a surrounding autocast must not hand them to a training pass.
            torch.clear_autocast_cache()
            for part, mode in modes:
                part.training = mode

    def _grow(self, prompt_ids: Sequence[TokenIds], groups: Sequence[list[_Row]], greedy: bool) -> None:
        """Samples all rows of a few prompts to their ends. `groups[i]` are the rows of `prompt_ids[i]`."""
        width = len(groups[0])
        ids, mask = self._left_padded(prompt_ids)
        logits, cache = self._forward(ids, mask, None)
        cache.batch_repeat_interleave(width)
        logits, mask = logits.repeat_interleave(width, 0), mask.repeat_interleave(width, 0)
        rows = [row for group in groups for row in group]
        while True:
            uniforms = torch.stack([row.uniforms[len(row.token_ids)] for row in rows]).to(logits.device)
            tokens, logprobs = draw(logits, None if greedy else uniforms)
            for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
                row.push(token, logprob, self._codec)
            alive = [i for i, row in enumerate(rows) if row.finish is None]
            if not alive:
                return
            if len(alive) < len(rows):
                keep = torch.tensor(alive, device=mask.device)
                cache.batch_select_indices(keep)
                tokens, mask, rows = tokens[keep], mask[keep], [rows[i] for i in alive]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
            logits, cache = self._forward(tokens[:, None], mask, cache)

    def _left_padded(self, prompt_ids: Sequence[TokenIds]) -> tuple[Tensor, Tensor]:
        """Ids and mask [P, L], both int64; the padding id never matters, it is masked."""
        device = next(self._module.parameters()).device
        longest = max(map(len, prompt_ids))
        ids = torch.zeros(len(prompt_ids), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(prompt_ids):
            ids[i, longest - len(row) :] = torch.tensor(row)
            mask[i, longest - len(row) :] = 1
        return ids.to(device), mask.to(device)

    def _forward(self, ids: Tensor, mask: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits [R, V] after the last column of `ids` [R, T], and the cache that now covers the mask [R, L]."""
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = self._module(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1], out.past_key_values


def _rows_of(prompt: Prompt, width: int, seed: int) -> list[_Row]:
    uniforms = torch.rand(width, prompt.max_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return [_Row(prompt, uniforms[i]) for i in range(width)]


def draw(logits: Tensor, uniforms: Tensor | None) -> tuple[Tensor, Tensor]:
    """Next tokens [R] and their log-probs [R] (float32, temperature 1) from logits [R, V].

    With `uniforms` [R] in [0, 1) the token is where the cumulative distribution passes the number (double precision,
    because a vocabulary of 100,000 float32 terms loses the rare tokens); with None it is the most likely one.
    """
    logprobs = logits.float().log_softmax(-1)
    if uniforms is None:
        tokens = logprobs.argmax(-1)
    else:
        cumulative = logprobs.double().exp().cumsum(-1)
        target = uniforms[:, None].double() * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]
