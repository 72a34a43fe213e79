"""Checkpoints from which training goes on exactly as if it had never stopped, also after a crash inside a save.

One directory per checkpoint, in a ring of the newest K:

    checkpoint-00000042/
        weights.safetensors     the trainable weights (all, or the adapter)
        trainer.pt              optimiser and random states; tensors and plain numbers, loaded with weights_only
        state.json              fingerprint of the policy, its version, and whatever the caller wants back
        SHA256SUMS              content hashes of the three, in the form that `sha256sum --check` reads

Everything is written aside, flushed to the disk and renamed, so a name that exists is whole; the hashes catch what the
disk itself loses later. A damaged checkpoint is passed over for the one before it, and said so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ftis_node.errors import UsageError
from ftis_node.policy.export import disk_errors
from ftis_node.policy.model import Policy
from ftis_node.policy.update import Updater

logger = logging.getLogger(__name__)

PREFIX, ASIDE_PREFIX = "checkpoint-", ".checkpoint-"
WEIGHTS, TRAINER, STATE, SUMS = "weights.safetensors", "trainer.pt", "state.json", "SHA256SUMS"
FORMAT = 1

_DAMAGE = (OSError, ValueError, KeyError, TypeError, SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint whose hashes are right. `damaged` names newer ones that were passed over; `extra` is what the
    caller gave to `save`."""

    path: Path
    policy_version: int
    fingerprint: str
    extra: dict[str, Any]
    damaged: tuple[str, ...] = ()


class CheckpointStore:
    """A ring of the last `keep` checkpoints in `directory`. One process at a time."""

    def __init__(self, directory: Path, keep: int = 3) -> None:
        assert keep >= 1
        self._directory = directory
        self._keep = keep

    def save(self, updater: Updater, extra: Mapping[str, Any] | None = None) -> Path:
        """Write weights, optimiser, random states, version and `extra` (JSON values); returns the new directory.

        Older ones beyond the ring are deleted afterwards. Raises UsageError when the disk refuses; all earlier
        checkpoints are then untouched.
        """
        number = max((_number(path) for path in self._stored()), default=0) + 1
        final = self._directory / f"{PREFIX}{number:08d}"
        aside = self._directory / f"{ASIDE_PREFIX}{number:08d}"
        with disk_errors(final):
            self._directory.mkdir(parents=True, exist_ok=True)
            for left_over in self._directory.glob(f"{ASIDE_PREFIX}*"):
                shutil.rmtree(left_over)
            try:
                aside.mkdir()
                _write(aside, updater, dict(extra or {}))
                os.rename(aside, final)
                _flush(self._directory)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            for old in self._stored()[: -self._keep]:
                shutil.rmtree(old)
        return final

    def latest(self) -> StoredCheckpoint | None:
        """The newest checkpoint that is whole, None where there is none. Raises UsageError when checkpoints exist and
        every one is damaged, so that a run never silently begins again."""
        damaged: list[str] = []
        for path in reversed(self._stored()):
            try:
                _verify(path)
                state = json.loads((path / STATE).read_text(encoding="utf-8"))
                if state["format"] != FORMAT:
                    raise UsageError(
                        f"{path} has format {state['format']}, this program reads {FORMAT}",
                        hint="Use the version of the program that wrote it, or start in a new state directory.",
                    )
                return StoredCheckpoint(path, state["version"], state["fingerprint"], state["extra"], tuple(damaged))
            except _DAMAGE as error:
                logger.warning("checkpoint %s is damaged (%s); trying the one before it", path.name, error)
                damaged.append(path.name)
        if damaged:
            raise UsageError(
                f"all checkpoints in {self._directory} are damaged: {', '.join(damaged)}",
                hint="Move the directory away to start afresh, or restore it from a copy.",
            )
        return None

    def restore(self, updater: Updater) -> StoredCheckpoint | None:
        """Put the newest whole checkpoint into the updater and its policy, torch's and Python's random states
        included; None where there is none. Raises UsageError if it belongs to another model, tokenizer or adapter;
        nothing is changed then."""
        stored = self.latest()
        if stored is None:
            return None
        policy = updater.policy
        if stored.fingerprint != policy.fingerprint:
            raise UsageError(
                f"{stored.path} belongs to another model, tokenizer or adapter than {policy.name} ({policy.trainable})",
                hint="Start with the model and adapter settings of that run, or in a new state directory.",
            )
        _load_weights(policy, stored.path / WEIGHTS)
        trainer = torch.load(stored.path / TRAINER, map_location="cpu", weights_only=True)
        updater.load_state(trainer["updater"])
        _set_random_states(trainer["torch"], trainer["cuda"], trainer["python"])
        policy.version = stored.policy_version
        return stored

    def _stored(self) -> list[Path]:
        """Directories of the ring, oldest first."""
        found = [p for p in self._directory.glob(f"{PREFIX}*") if p.is_dir() and p.name.removeprefix(PREFIX).isdigit()]
        return sorted(found, key=_number)


def weights_are_finite(policy: Policy) -> bool:
    """Whether every trained weight is a number; nothing can go on from a checkpoint where one is not."""
    return all(bool(p.isfinite().all()) for p in policy.trainable_parameters.values())


def _number(path: Path) -> int:
    return int(path.name.removeprefix(PREFIX))


def _write(folder: Path, updater: Updater, extra: dict[str, Any]) -> None:
    policy = updater.policy
    weights = {name: p.detach().cpu().contiguous() for name, p in policy.trainable_parameters.items()}
    save_file(weights, folder / WEIGHTS)
    trainer = {
        "updater": updater.state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
    }
    torch.save(trainer, folder / TRAINER)
    state = {"format": FORMAT, "fingerprint": policy.fingerprint, "version": policy.version, "extra": extra}
    (folder / STATE).write_text(json.dumps(state, indent=1, allow_nan=False), encoding="utf-8")
    sums = "".join(f"{_sha256(folder / name)}  {name}\n" for name in (WEIGHTS, TRAINER, STATE))
    (folder / SUMS).write_text(sums, encoding="ascii")
    for name in (WEIGHTS, TRAINER, STATE, SUMS):
        _flush(folder / name)
    _flush(folder)


def _flush(path: Path) -> None:
    """Wait until the file or directory is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _verify(path: Path) -> None:
    """Raises ValueError or OSError for a checkpoint with a missing, extra-short or changed file."""
    lines = (path / SUMS).read_text(encoding="ascii").splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name in (WEIGHTS, TRAINER, STATE):
        if sums.get(name) != _sha256(path / name):
            raise ValueError(f"{name} is not what was written")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@torch.no_grad()
def _load_weights(policy: Policy, path: Path) -> None:
    stored, wanted = load_file(path), policy.trainable_parameters
    assert stored.keys() == wanted.keys(), "equal fingerprints have equal weight names"
    for name, parameter in wanted.items():
        parameter.copy_(stored[name])


def _set_random_states(cpu: torch.Tensor, cuda: list[torch.Tensor], python: Any) -> None:
    torch.set_rng_state(cpu)
    if cuda and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)
    version, internal, gauss = python
    random.setstate((version, tuple(internal), gauss))
