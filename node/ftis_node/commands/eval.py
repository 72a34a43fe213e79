"""`ftis-node eval`: held-out pass@1 of any model, or of a node's newest checkpoint."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from ftis_node.commands.options import EvalOptions
from ftis_node.commands.running import check_model, remembered_manifest
from ftis_node.compute import ComputeThread
from ftis_node.config import ModelSection
from ftis_node.console import Console
from ftis_node.environment import cache_dir
from ftis_node.errors import UsageError
from ftis_node.learner import Places, open_policy, start_generator
from ftis_node.loops.evaluate import Score, evaluate
from ftis_node.policy.checkpoint import CheckpointStore
from ftis_node.policy.model import Policy
from ftis_node.policy.update import Updater
from ftis_node.state import StateDir, SwarmDir
from ftis_node.tasks.registry import describe
from ftis_node.tasks.verify import VerifyPool
from ftis_protocol.manifest import TaskSpec


def run(options: EvalOptions, console: Console) -> None:
    """Measure and print pass@1 with its standard error."""
    folder = _folder(options)
    specs = _specs(options, folder)
    model = _model(options, folder)
    check_model(model.model, console)
    with tempfile.TemporaryDirectory(prefix="ftis-eval-") as scratch:
        places = Places(
            folder.checkpoints if folder and options.model is None else Path(scratch) / "none",
            Path(scratch) / "weights.safetensors",
            Path(scratch) / "engine",
            cache_dir(),
        )
        policy, score = asyncio.run(_measure(model, specs, places, options.count, console))
    result = {
        "model": policy.name,
        "policy_version": policy.version,
        "tasks": [spec.model_dump(mode="json") for spec in specs],
        "right": score.right,
        "items": score.items,
        "pass_at_1": score.pass_at_1,
        "standard_error": score.standard_error,
    }
    text = (
        f"{policy.name}, policy version {policy.version}: pass@1 {score.pass_at_1:.3f} "
        f"(standard error {score.standard_error:.3f}), {score.right} of {score.items} held-out items"
    )
    console.document(result if options.json else text)


async def _measure(
    model: ModelSection, specs: tuple[TaskSpec, ...], places: Places, count: int, console: Console
) -> tuple[Policy, Score]:
    compute, verify = ComputeThread(), VerifyPool()
    try:
        with console.step(f"loading {model.model}"):
            policy = await compute.run(open_policy, model, 0)
            await compute.run(CheckpointStore(places.checkpoints).restore, Updater(policy))
            generator = await compute.run(start_generator, model, policy, places, console.say)
        try:
            with console.step("answering held-out items"):
                return policy, await evaluate(compute, generator, verify, specs, count)
        finally:
            await compute.run(generator.close)
    finally:
        compute.close()
        verify.close()


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
