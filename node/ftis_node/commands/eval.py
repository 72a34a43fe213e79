"""`ftis-node eval`: held-out pass@1 of any model, or of a node's newest checkpoint."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftis_node.commands.options import EvalOptions
from ftis_node.commands.running import check_model, remembered_manifest
from ftis_node.compute import ComputeThread
from ftis_node.config import ModelSection
from ftis_node.console import Console
from ftis_node.environment import cache_dir
from ftis_node.errors import UsageError
from ftis_node.learner import Places, open_policy, start_generator
from ftis_node.loops.compare import Paired
from ftis_node.loops.evaluate import Score, answered_right
from ftis_node.policy.checkpoint import CheckpointStore
from ftis_node.policy.update import Updater
from ftis_node.state import StateDir, SwarmDir
from ftis_node.tasks.registry import describe
from ftis_node.tasks.verify import VerifyPool
from ftis_protocol.manifest import TaskSpec


def run(options: EvalOptions, console: Console) -> None:
    """Measure and print pass@1 with its standard error, and what changed against the baseline."""
    folder = _folder(options)
    specs = _specs(options, folder)
    model = _model(options, folder)
    check_model(model.model, console)
    baseline = _baseline(options, model)
    if baseline is not None:
        check_model(baseline.model, console)
    measured = _measured(model, specs, folder if options.model is None else None, options.count, console)
    result = _result(measured, specs)
    text = _text(measured)
    if baseline is not None:
        other = _measured(baseline, specs, None, options.count, console)
        result["baseline"], result["paired"] = _result(other, specs), _paired_result(measured, other)
        text += f"\n{_text(other)}\n{_paired_text(result['paired'])}"
    console.document(result if options.json else text)


@dataclass(frozen=True, slots=True)
class Measured:
    """One model's answers: `rights` item by item."""

    name: str
    version: int
    rights: tuple[bool, ...]

    @property
    def score(self) -> Score:
        return Score(sum(self.rights), len(self.rights))


def _result(measured: Measured, specs: tuple[TaskSpec, ...]) -> dict[str, Any]:
    score = measured.score
    return {
        "model": measured.name,
        "policy_version": measured.version,
        "tasks": [spec.model_dump(mode="json") for spec in specs],
        "right": score.right,
        "items": score.items,
        "pass_at_1": score.pass_at_1,
        "standard_error": score.standard_error,
    }


def _text(measured: Measured) -> str:
    score = measured.score
    return (
        f"{measured.name}, policy version {measured.version}: pass@1 {score.pass_at_1:.3f} "
        f"(standard error {score.standard_error:.3f}), {score.right} of {score.items} held-out items"
    )


def _paired_result(measured: Measured, other: Measured) -> dict[str, Any]:
    paired = Paired.of(measured.rights, other.rights)
    low, high = paired.interval
    return {
        "difference": paired.difference,
        "interval_95": [low, high],
        "gained": paired.gained,
        "lost": paired.lost,
        "items": paired.items,
        "p_value": paired.p_value,
    }


def _paired_text(paired: dict[str, Any]) -> str:
    low, high = paired["interval_95"]
    return (
        f"difference {paired['difference']:+.3f} (95 % interval {low:+.3f} to {high:+.3f}): {paired['gained']} items "
        f"gained, {paired['lost']} lost of {paired['items']}, exact p {paired['p_value']:.3g}"
    )


def _measured(
    model: ModelSection, specs: tuple[TaskSpec, ...], folder: SwarmDir | None, count: int, console: Console
) -> Measured:
    """Answers of a model as it is, or with the newest checkpoint in `folder`."""
    with tempfile.TemporaryDirectory(prefix="ftis-eval-") as scratch:
        root = Path(scratch)
        checkpoints = folder.checkpoints if folder else root / "none"
        places = Places(checkpoints, root / "weights.safetensors", root / "engine", cache_dir())
        return asyncio.run(_measure(model, specs, places, count, console))


async def _measure(
    model: ModelSection, specs: tuple[TaskSpec, ...], places: Places, count: int, console: Console
) -> Measured:
    compute, verify = ComputeThread(), VerifyPool()
    try:
        with console.step(f"loading {model.model}"):
            policy = await compute.run(open_policy, model, 0)
            await compute.run(CheckpointStore(places.checkpoints).restore, Updater(policy))
            generator = await compute.run(start_generator, model, policy, places, console.say)
        try:
            with console.step("answering held-out items"):
                rights = await answered_right(compute, generator, verify, specs, count)
                return Measured(policy.name, policy.version, rights)
        finally:
            await compute.run(generator.close)
    finally:
        compute.close()
        verify.close()


def _baseline(options: EvalOptions, model: ModelSection) -> ModelSection | None:
    """The model to compare with: the one named, or the one that a node's checkpoint began with."""
    if options.baseline == "none" or (options.baseline is None and options.model is not None):
        return None
    name = options.baseline or model.model
    return model.model_copy(update={"model": name, "trainable": "full"})


def _folder(options: EvalOptions) -> SwarmDir | None:
    """The node's directory in its swarm; None when only a model was named."""
    if options.state is None:
        return None
    current = StateDir.existing(options.state).current_swarm()
    if current is None:
        raise UsageError(f"the node in {options.state} never joined a swarm", hint="Name a model with --model.")
    return current[1]


def _specs(options: EvalOptions, folder: SwarmDir | None) -> tuple[TaskSpec, ...]:
    if options.task is not None:
        return (describe(options.task.name, **options.task.parameters),)
    manifest = remembered_manifest(folder) if folder else None
    if manifest is None:
        raise UsageError(
            "no task given", hint="Name one, for example --task arithmetic:operations=+-,digits=1, or a node's --state."
        )
    return manifest.tasks


def _model(options: EvalOptions, folder: SwarmDir | None) -> ModelSection:
    """The named model as it is, or the model and adapter of the node's newest checkpoint."""
    if options.model is not None:
        model = ModelSection(model=options.model)
    elif folder is not None:
        stored = CheckpointStore(folder.checkpoints).latest()
        if stored is None:
            raise UsageError("this node has no checkpoint yet", hint="Let it train a while, or name a --model.")
        model = ModelSection.model_validate(stored.extra["model"])
    else:
        raise UsageError("no model given", hint="Name a model with --model, or a node's directory with --state.")
    return model.model_copy(update={"generator": options.generator or "auto"})
