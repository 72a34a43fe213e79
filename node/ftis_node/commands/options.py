"""What the command line hands to a command: one frozen record each. Defaults of a node live in `config`, so None here
means that the flag was not given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ftis_node import layering
from ftis_node.errors import UsageError
from ftis_protocol.rollout import Evidence

ParameterValue = int | float | str | bool


@dataclass(frozen=True, slots=True)
class TaskOption:
    """A task as named on the command line, with the parameters given; the task fills in the others."""

    name: str
    parameters: dict[str, ParameterValue]

    @classmethod
    def parse(cls, text: str) -> TaskOption:
        """`arithmetic` or `arithmetic:operations=+-,digits=1`. UsageError for anything else."""
        name, _, rest = text.partition(":")
        parameters: dict[str, ParameterValue] = {}
        for part in rest.split(",") if rest else ():
            key, equals, value = part.partition("=")
            if not (key.strip() and equals and value.strip()) or key.strip() in parameters:
                raise UsageError(f"--task {text}: cannot read {part!r}", hint=_TASK_HINT)
            parameters[key.strip()] = _parameter(value.strip())
        if not name.strip():
            raise UsageError(f"--task {text!r} names no task", hint=_TASK_HINT)
        return cls(name.strip(), parameters)


_TASK_HINT = "Write it as name:key=value,key=value, for example arithmetic:operations=+-,digits=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Flags that every command which runs a node has. `json` turns remarks into JSON lines."""

    state: Path | None = None
    config: Path | None = None
    name: str | None = None
    model: str | None = None
    trainable: str | None = None
    generator: str | None = None
    port: int | None = None
    steps: int | None = None
    json: bool = False
    verbose: bool = False

    def layered(self) -> layering.Layered:
        """The configuration of this start: defaults, --config file, environment and these flags, in that order."""
        return layering.load(self.config, os.environ, self._flags())

    def _flags(self) -> dict[str, object]:
        return {
            "node.state_dir": self.state,
            "node.name": self.name,
            "node.log_level": "debug" if self.verbose else None,
            "model.model": self.model,
            "model.trainable": self.trainable,
            "model.generator": self.generator,
            "swarm.port": self.port,
            "train.max_steps": self.steps,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions(NodeOptions):
    """`ftis-node join`. `swarm` is an invite or an address; `check_only` says what the line
    would do and stops after the checks."""

    swarm: str | None = None
    check_only: bool = False

    def _flags(self) -> dict[str, object]:
        return {**NodeOptions._flags(self), "swarm.invite": self.swarm}


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions(NodeOptions):
    """`ftis-node create`. `name` is the swarm's; `with_model` False founds the swarm and serves as its seed only.

    `group_size` is what this node samples and must fit the range of the manifest; `evidence` lists the tiers allowed
    besides plain text.
    """

    tasks: tuple[TaskOption, ...] = ()
    group_size: int | None = None
    max_tokens: int | None = None
    slice_size: int | None = None
    evidence: tuple[Evidence, ...] = ()
    temperature: float = 1.0
    with_model: bool = True

    def _flags(self) -> dict[str, object]:
        # --name is the swarm's here; the founder's own node keeps its friendly or configured name
        return {**NodeOptions._flags(self), "node.name": None, "train.group_size": self.group_size}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions(NodeOptions):
    """`ftis-node seed`: a meeting point without a model. `host` is the IP address to listen on."""

    swarm: str | None = None
    host: str | None = None

    def _flags(self) -> dict[str, object]:
        return {**NodeOptions._flags(self), "swarm.invite": self.swarm, "swarm.host": self.host}


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """`ftis-node dashboard`: an observer's page. `state` None takes the folder `observer` in the configured directory;
    `host` and `port` are the page's, and so is `public`."""

    swarm: str | None = None
    state: Path | None = None
    config: Path | None = None
    host: str | None = None
    port: int | None = None
    public: bool = False
    json: bool = False
    verbose: bool = False

    def layered(self) -> layering.Layered:
        """The configuration of this start; an observer never shares the directory of a node."""
        flags: dict[str, object] = {
            "node.state_dir": self.state,
            "node.log_level": "debug" if self.verbose else None,
            "swarm.invite": self.swarm,
            "page.host": self.host,
            "page.port": self.port,
            "page.public": self.public or None,
        }
        if self.state is None:
            configured = layering.load(self.config, os.environ, flags).config.node.state_dir
            flags["node.state_dir"] = configured / "observer"
        return layering.load(self.config, os.environ, flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions(NodeOptions):
    """`ftis-node doctor`. `quick` looks at this machine only; `report` is a file or directory for the bundle."""

    swarm: str | None = None
    quick: bool = False
    report: Path | None = None

    def _flags(self) -> dict[str, object]:
        return {**NodeOptions._flags(self), "swarm.invite": self.swarm}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """`ftis-node demo`: a whole swarm on this machine. `work_dir` None takes a temporary directory, deleted at the end
    unless `keep`; `exchange` False runs the same nodes without any exchange, for comparison."""

    steps: int = 20
    nodes: int = 3
    seed: int = 0
    exchange: bool = True
    work_dir: Path | None = None
    keep: bool = False
    json: bool = False
    verbose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AblateOptions:
    """`ftis-node ablate`. `file` None takes the built-in plan; None elsewhere takes the file's values. `out` holds the
    finished runs and the results."""

    file: Path | None = None
    rounds: int | None = None
    seeds: tuple[int, ...] | None = None
    arms: tuple[str, ...] | None = None
    out: Path | None = None
    json: bool = False
    verbose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """`ftis-node eval`: held-out pass@1 of a model, or (with `model` None) of the newest checkpoint in `state`.
    `baseline` is compared item by item: a model, "none", or None for the one that a checkpoint began with."""

    model: str | None = None
    state: Path | None = None
    task: TaskOption | None = None
    baseline: str | None = None
    count: int = 64
    generator: str | None = None
    json: bool = False
    verbose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOptions(NodeOptions):
    """`ftis-node config show`. `toml` prints a file with what differs from the defaults."""

    toml: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Commands that only read a state directory; `state` None takes the configured one."""

    state: Path | None = None
    json: bool = False
    verbose: bool = False

    def state_path(self) -> Path:
        """The directory meant."""
        flags = {"node.state_dir": self.state}
        return layering.load(None, os.environ, flags).config.node.state_path


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(ReadOptions):
    """`ftis-node export` to the directory `out`. `adapter` leaves the base model out; `dtype` is that of merged
    weights."""

    out: Path
    adapter: bool = False
    dtype: str = "bfloat16"


def listed(text: str | None) -> tuple[str, ...] | None:
    """The parts of a list given with commas; None stays None."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def numbered(text: str | None, flag: str) -> tuple[int, ...] | None:
    """`listed`, as whole numbers. UsageError for anything else."""
    parts = listed(text)
    if parts is not None and not all(part.isdecimal() for part in parts):
        raise UsageError(f"{flag} {text}: not a list of whole numbers", hint=f"Write it as {flag} 0,1,2")
    return None if parts is None else tuple(int(part) for part in parts)


def _parameter(text: str) -> ParameterValue:
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
