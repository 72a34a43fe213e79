"""What sampling and training cost each other, and what it takes to hand weights over.

    scripts/bench/overlap                 a tiny model, a quarter of a minute per row, then hand-overs of three sizes
    scripts/bench/overlap --seconds 30 --skip-hand-over

Sampling: vLLM in a process of its own with as many threads as the learner leaves. Training: real optimiser steps on
groups that the engine sampled, with one thread fewer than there are cores. Run it on an idle machine: everything here
is wall time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import threading
import time
from pathlib import Path

from ftis_node.imports import guard_broken_extras

CACHE = Path(os.environ.get("FTIS_CACHE", tempfile.gettempdir()))
PROMPTS, WIDTH, TOKENS = 16, 8, 32
SHARED_MEMORY = Path("/dev/shm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each measurement")
    parser.add_argument("--skip-hand-over", action="store_true")
    parser.add_argument("--skip-overlap", action="store_true")
    options = parser.parse_args()
    guard_broken_extras()
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
        if not options.skip_overlap:
            _overlap(Path(folder), options.seconds)
        if not options.skip_hand_over:
            _hand_overs(Path(folder))


class Bench:
    """A learner with `cores - 1` threads and an engine with the rest."""

    def __init__(self, model: Path, folder: Path) -> None:
        from ftis_node.generate.jobs import Care
        from ftis_node.generate.vllm_process import VllmProcessGenerator
        from ftis_node.generate.vllm_start import VllmSettings
        from ftis_node.planning import cores
        from ftis_node.policy.model import load_policy, use_threads
        from ftis_node.policy.update import Updater

        self.threads = use_threads(None)
        self.policy = load_policy(model, device="cpu")
        self.updater = Updater(self.policy)
        self.path = folder / f"{model.name}.safetensors"
        dtype = "float32" if self.policy.autocast is None else "bfloat16"
        settings = VllmSettings(model, CACHE, dtype=dtype, context=512, max_rows=128, scratch_dir=folder)
        care = Care(self.policy.codec.fingerprint, threads=max(1, cores() - self.threads))
        self.generator = VllmProcessGenerator(settings, self.policy.codec, care)
        self.seeds = itertools.count()

    def sample(self, stop: threading.Event) -> float:
        """Tokens per second until `stop`; twice as many groups are under way as grow at once."""
        tokens, began = 0, time.monotonic()
        growing = [self._submit() for _ in range(PROMPTS * 2)]
        while not stop.is_set():
            group = growing.pop(0).result()
            growing.append(self._submit())
            tokens += sum(len(sample.token_ids) for sample in group.samples)
        seconds = time.monotonic() - began
        for future in growing:
            future.cancel()
        return tokens / seconds

    def _submit(self):
        number = next(self.seeds)
        return self.generator.submit(_prompt(number % PROMPTS), group_size=WIDTH, seed=number)

    def groups(self):
        """A batch to learn from; half of each group counts as right, because only that gives gradients."""
        sampled = self.generator.generate([_prompt(n) for n in range(4)], group_size=WIDTH, seed=1)
        return [_judged(group) for group in sampled]

    def train(self, seconds: float, every: float | None = None) -> float:
        """Optimiser steps per second; with a hand-over `every` so many seconds, checked as a node does it."""
        from ftis_node.loops.handover import hand_over

        batch = self.groups()
        self.updater.update(batch, drawn=len(batch))
        steps, began = 0, time.monotonic()
        handed_at = began
        while (now := time.monotonic()) < began + seconds:
            self.updater.update(batch, drawn=len(batch))
            steps += 1
            if every is not None and now > handed_at + every:
                hand_over(self.policy, self.generator, self.path)
                handed_at = time.monotonic()
        return steps / (time.monotonic() - began)


def _overlap(folder: Path, seconds: float) -> None:
    from ftis_node.lab.tiny import make_tiny

    bench = Bench(make_tiny(folder / "tiny"), folder)
    print(f"tiny model, learner with {bench.threads} thread(s), {PROMPTS} x {WIDTH} x {TOKENS} tokens growing")
    with bench.generator:
        stop = threading.Event()
        threading.Timer(2.0, stop.set).start()
        bench.sample(stop)  # warm-up
        stop = threading.Event()
        threading.Timer(seconds, stop.set).start()
        alone = bench.sample(stop)
        steps_alone = bench.train(seconds)
        print(f"{'sampling alone':>40} {alone:8.0f} tokens/s")
        print(f"{'training alone':>40} {steps_alone:8.2f} steps/s")
        for every, name in ((None, "both"), (1.0, "both, weights handed over every second")):
            tokens, steps = _both(bench, seconds, every)
            kept = tokens / alone, steps / steps_alone
            print(f"{name:>40} {tokens:8.0f} tokens/s ({kept[0]:.0%}) {steps:8.2f} steps/s ({kept[1]:.0%})")


def _both(bench: Bench, seconds: float, every: float | None) -> tuple[float, float]:
    stop, found = threading.Event(), []
    sampling = threading.Thread(target=lambda: found.append(bench.sample(stop)))
    sampling.start()
    steps = bench.train(seconds, every)
    stop.set()
    sampling.join()
    return found[0], steps


def _hand_overs(folder: Path) -> None:
    from ftis_node.environment import cache_dir
    from ftis_node.lab.smollm2 import ensure_smollm2
    from ftis_node.lab.tiny import make_tiny

    print(f"{'hand-over':>32} {'bytes':>12} {'write':>7} {'load':>7} {'check':>7} {'all':>7} {'bare':>7} {'ratio':>6}")
    models = [
        make_tiny(folder / "tiny"),
        make_tiny(folder / "tiny-8x512", layers=8, hidden=512),
        ensure_smollm2(cache_dir()),
    ]
    for model in models:
        bench = Bench(model, folder)
        with bench.generator:
            for dtype in dict.fromkeys(("float32", bench.generator.weights_dtype)):
                bench.generator.weights_dtype = dtype
                rows = [_hand_over(bench) for _ in range(4)][1:]
                size, *times = [sorted(column)[len(column) // 2] for column in zip(*rows, strict=True)]
                whole, bare = sum(times[:3]), times[3]
                print(
                    f"{model.name + ' ' + dtype:>32} {size:>12,} "
                    + " ".join(f"{t:7.3f}" for t in (*times[:3], whole))
                    + f" {bare:7.3f} {whole / bare:6.1f}"
                )
        del bench


def _hand_over(bench: Bench) -> tuple[float, ...]:
    """Bytes; seconds to write, load and check; seconds to write and read as many bytes with nothing else done."""
    from ftis_node.loops.handover import pack

    bench.policy.version += 1
    moments = [time.monotonic()]
    shipment = pack(bench.policy, bench.generator, bench.path)
    moments.append(time.monotonic())
    bench.generator.load_weights(shipment.path, shipment.policy_version)
    moments.append(time.monotonic())
    gap = bench.generator.self_check(shipment.prompt_ids, shipment.completion_ids, shipment.learner_logprobs)
    moments.append(time.monotonic())
    assert gap <= bench.generator.weights_alarm, gap
    bench.generator.release()
    size = shipment.path.stat().st_size
    content = bytes(size)
    copied = time.monotonic()
    plain = shipment.path.with_name("plain")
    plain.write_bytes(content)
    plain.read_bytes()
    copied = time.monotonic() - copied
    plain.unlink()
    shipment.path.unlink()
    return (size, *(after - before for before, after in itertools.pairwise(moments)), copied)


def _prompt(number: int):
    from ftis_node.records import ChatMessage, Prompt
    from ftis_protocol.rollout import PromptRef

    text = f"{number} + {number * 7 % 10} ="
    ref = PromptRef(task="bench", version=1, slot=0, index=number)
    return Prompt(ref, "", text, (ChatMessage("user", text),), "", None, TOKENS)


def _judged(group):
    from ftis_node.records import JudgedGroup, Origin, TrainCompletion, TrainGroup
    from ftis_protocol.rollout import Evidence

    completions = tuple(
        TrainCompletion(s.text, s.token_ids, s.finish, float(n % 2), s.logprobs, sum(s.logprobs))
        for n, s in enumerate(group.samples)
    )
    made = TrainGroup(
        Origin.OWN, "bench", group.prompt, group.prompt_ids, completions, Evidence.TOKEN, group.policy_version, 0.0,
        group.prompt.item_key.encode(),
    )  # fmt: skip
    return JudgedGroup(made)


if __name__ == "__main__":
    main()
