"""How fast the engines sample: vLLM, transformers' own `generate`, and the sampler with a shared prompt.

    scripts/bench/generate                     SmolLM2-135M in bfloat16, 16 x 8 and 64 x 8 completions of 32 tokens
    scripts/bench/generate --model DIRECTORY --dtype float32 --sizes 16x8 --tokens 64

Every arm runs in a process of its own with one thread, after a warm-up of two prompts, and is measured in seconds and
in CPU seconds of that process; on a busy machine only the latter mean something. Plain `generate` returns no log-probs,
which spares it work that the others do. The last two arms are one engine with a stop rule (the first sentence): once it
acts while sampling, once only afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from samples import QUESTIONS

from ftis_node.imports import guard_broken_extras

ARMS = ("plain", "shared", "vllm", "vllm, rule afterwards", "vllm, rule while sampling")
FIRST_SENTENCE = r"(?s).*?[.!?\n]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint directory; default: SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--sizes", nargs="+", default=["16x8", "64x8"], help="prompts x completions")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model is None:
        from ftis_node.environment import cache_dir
        from ftis_node.lab.smollm2 import ensure_smollm2

        options.model = ensure_smollm2(cache_dir())
    if options.arm:
        print(json.dumps([measure(options, size) for size in options.sizes]))
        return
    rows = {arm: _in_own_process(options, arm) for arm in ARMS}
    load = os.getloadavg()[0]
    print(f"{options.model.name}, {options.dtype}, up to {options.tokens} tokens, one thread, load {load:.1f}")
    print(f"{'':>28} " + " ".join(f"{size:>24}" for size in options.sizes))
    print(f"{'':>28} " + " ".join(f"{'tokens/s  per CPU s':>24}" for _ in options.sizes))
    for arm, found in rows.items():
        cells = (f"{row['tokens'] / row['seconds']:.0f} {row['tokens'] / row['cpu_seconds']:>10.0f}" for row in found)
        print(f"{arm:>28} " + " ".join(f"{cell:>24}" for cell in cells))
    for place, size in enumerate(options.sizes):
        after, during = (rows[arm][place] for arm in ARMS[3:])
        share = 1 - during["cpu_seconds"] / after["cpu_seconds"]
        print(f"{size}: the stop rule kept {during['tokens']:,} tokens and saved {share:.0%} of the CPU time")


def _in_own_process(options: argparse.Namespace, arm: str) -> list[dict[str, float]]:
    command = [sys.executable, __file__, "--arm", arm, "--model", str(options.model), "--dtype", options.dtype]
    command += ["--tokens", str(options.tokens), "--sizes", *options.sizes]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def measure(options: argparse.Namespace, size: str) -> dict[str, float]:
    """Tokens, seconds and CPU seconds of one arm at one size."""
    prompts, width = map(int, size.split("x"))
    sample = _sampler(options)
    sample(2, width)
    wall, cpu = time.monotonic(), time.process_time()
    tokens = sample(prompts, width)
    return {"tokens": tokens, "seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}


_built = {}


def _sampler(options: argparse.Namespace):
    if options.arm not in _built:
        _built[options.arm] = _build(options)
    return _built[options.arm]


def _build(options: argparse.Namespace):
    guard_broken_extras()
    from ftis_node.tokens import TextCodec

    codec = TextCodec.load(options.model)
    if options.arm == "plain":
        return _plain(options, codec)
    if options.arm == "shared":
        from ftis_node.generate.transformers import TransformersGenerator

        generator = TransformersGenerator(_module(options), codec, max_rows=128)
    else:
        from ftis_node.generate.vllm import VllmGenerator
        from ftis_node.generate.vllm_start import VllmSettings

        cache = Path(os.environ.get("FTIS_CACHE", tempfile.gettempdir()))
        settings = VllmSettings(options.model, cache, dtype=options.dtype, context=512, max_rows=128)
        generator = VllmGenerator(settings, codec)
    rule = FIRST_SENTENCE if options.arm.startswith("vllm, rule") else None
    asked = rule if options.arm.endswith("while sampling") else None

    def sample(prompts: int, width: int) -> int:
        from ftis_node.generate.base import cut_at_stop
        from ftis_protocol.rollout import Finish

        groups = generator.generate(_prompts(prompts, options.tokens, asked), group_size=width, seed=1)
        samples = [s for group in groups for s in group.samples]
        if rule and not asked:
            samples = [
                cut_at_stop(s.token_ids, s.logprobs, codec, rule, ended_by_eos=s.finish is Finish.STOP, capped=True)
                for s in samples
            ]
        return sum(len(s.token_ids) for s in samples)

    return sample


def _plain(options: argparse.Namespace, codec):
    import torch

    module, tokenizer = _module(options), codec.tokenizer
    tokenizer.padding_side = "left"

    def sample(prompts: int, width: int) -> int:
        tokens = 0
        for start in range(0, prompts, max(1, 128 // width)):
            chunk = [codec.render(p) for p in _prompts(prompts, options.tokens, None)[start : start + 128 // width]]
            batch = tokenizer.pad({"input_ids": [list(ids) for ids in chunk]}, return_tensors="pt")
            with torch.inference_mode():
                grown = module.generate(
                    **batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=options.tokens,
                    num_return_sequences=width, pad_token_id=codec.pad_id,
                )  # fmt: skip
            for row in grown[:, batch["input_ids"].shape[1] :].tolist():
                ends = [place for place, token in enumerate(row) if token in codec.eos_ids]
                tokens += ends[0] + 1 if ends else len(row)
        return tokens

    return sample


def _module(options: argparse.Namespace):
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    return AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype)).eval()


def _prompts(count: int, tokens: int, stop: str | None):
    from ftis_node.records import ChatMessage, Prompt
    from ftis_protocol.rollout import PromptRef

    first = Prompt(PromptRef(task="bench", version=1, slot=0, index=0), "", "", (), "", stop, tokens)
    texts = [f"{QUESTIONS[n % len(QUESTIONS)]}{f' ({n})' if n >= len(QUESTIONS) else ''}" for n in range(count)]
    return [replace(first, item_key=text, messages=(ChatMessage("user", text),)) for text in texts]


if __name__ == "__main__":
    main()
