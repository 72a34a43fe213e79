"""All arms and seeds of an ablation, one after the other. A finished run is one file and is never done again.

Runs of one plan share a directory. A file tells the fingerprint of everything that could change its numbers, starting
weights included, so files of another plan are noticed instead of mixed in. An interrupted run leaves no file and starts
over.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftis_node.errors import UsageError
from ftis_node.lab.ablation import NodeCurve, run_arm
from ftis_node.lab.ablation_plan import AblationPlan, ModelTable
from ftis_node.lab.teach import TeachProgress, TeachSchedule, ensure_taught
from ftis_node.lab.tiny import TinyConfig
from ftis_node.state import write_atomically

FORMAT = 1  # rises when the same plan would give other numbers


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One arm with one seed: the nodes' curves, and wall seconds on a machine that may have been busy."""

    arm: str
    seed: int
    seconds: float
    nodes: tuple[NodeCurve, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` rounds in this call; `seconds_left` None until something was measured."""

    arm: str
    seed: int
    done: int
    total: int
    seconds_left: float | None


def start_models(plan: AblationPlan, cache: Path, progress: Callable[[str, TeachProgress], None]) -> dict[str, Path]:
    """The starting checkpoints by name; tiny ones are taught at the first call and kept in `cache`."""
    return {model.name: _start_model(plan, model, cache, progress) for model in plan.models}


def _start_model(
    plan: AblationPlan, model: ModelTable, cache: Path, progress: Callable[[str, TeachProgress], None]
) -> Path:
    if model.path is not None:
        if not model.path.expanduser().is_dir():
            raise UsageError(f"there is no checkpoint {model.path}", hint="Name a directory with a model in it.")
        return model.path.expanduser()
    return ensure_taught(
        TinyConfig(layers=model.layers, hidden=model.hidden, alphabet=model.alphabet, seed=model.teach_seed),
        plan.task.spec,
        cache,
        goal=model.goal,
        style=model.style,
        schedule=TeachSchedule(
            model.teach_batch_items, model.teach_learning_rate, model.teach_max_steps, model.teach_noise
        ),
        progress=lambda now: progress(model.name, now),
    )


def run_all(
    plan: AblationPlan, models: Mapping[str, Path], out: Path, progress: Callable[[Progress], None]
) -> tuple[ArmRun, ...]:
    """Every arm with every seed, from its file where there is one; arms of one seed come together.

    Raises UsageError where `out` holds the runs of another plan.
    """
    wanted = [(arm, seed) for seed in plan.seeds for arm in plan.arms]
    weights = weights_digest(models)
    marks = {arm: fingerprint(plan, arm, weights) for arm in plan.arms}
    runs = {(arm, seed): _stored(run_path(out, arm, seed), marks[arm]) for arm, seed in wanted}
    missing = [key for key in wanted if runs[key] is None]
    began, total = time.monotonic(), plan.rounds * len(missing)
    for place, (arm, seed) in enumerate(missing):

        def tell(done: int, before: int = plan.rounds * place, arm: str = arm, seed: int = seed) -> None:
            each = (time.monotonic() - began) / (before + done)
            progress(Progress(arm, seed, before + done, total, each * (total - before - done)))

        started = time.monotonic()
        nodes = asyncio.run(run_arm(plan, plan.arm_table[arm], seed, models, tell))
        run = ArmRun(arm, seed, round(time.monotonic() - started, 1), nodes)
        _store(run, out, marks[arm])
        runs[arm, seed] = run
    return tuple(run for run in runs.values() if run is not None)


def weights_digest(models: Mapping[str, Path]) -> str:
    """Changes with the weights of any starting checkpoint."""
    digest = hashlib.blake2b(digest_size=8)
    for name, path in sorted(models.items()):
        digest.update(name.encode())
        for file in sorted(path.glob("*.safetensors")):
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def fingerprint(plan: AblationPlan, arm: str, weights: str) -> str:
    """Changes with everything that this arm's numbers depend on; not with seeds, other arms or where a model lies."""
    relevant = plan.model_dump(mode="json", exclude={"seeds", "arms", "arm_table", "last_rounds"})
    relevant["arm"] = plan.arm_table[arm].model_dump(mode="json", exclude={"meaning"})
    for model in relevant["models"]:
        model.pop("path")
    text = json.dumps([FORMAT, weights, relevant], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def run_path(out: Path, arm: str, seed: int) -> Path:
    """Where a finished run lies."""
    return out / "runs" / f"{arm}-seed{seed}.json"


def _store(run: ArmRun, out: Path, mark: str) -> None:
    path = run_path(out, run.arm, run.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"fingerprint": mark, **asdict(run)}
    write_atomically(path, json.dumps(content, indent=1).encode())


def _stored(path: Path, mark: str) -> ArmRun | None:
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        nodes = tuple(
            NodeCurve(**{**node, "sampled": tuple(node["sampled"]), "greedy": tuple(node["greedy"])})
            for node in content["nodes"]
        )
        run = ArmRun(content["arm"], content["seed"], content["seconds"], nodes)
        stored_mark = content["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"cannot read the run {path}: {error}", hint="Delete the file to run it again.") from error
    if stored_mark != mark:
        raise UsageError(
            f"{path} belongs to an ablation with other settings or starting weights",
            hint="Give another --out, or delete the directory to start over.",
        )
    return run
