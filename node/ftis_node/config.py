"""Everything a node can be told, in sections whose keys carry their units.

Rules that all members of a swarm share (tasks, sampling, limits) are not here: the swarm's manifest fixes them. Each
key has one default, one unit and one meaning; docs/config.md is written from this file. Where a value came from
(default, file, environment, flag) is `layering`'s business.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from ftis_node.config_base import Section, setting
from ftis_node.config_page import PageSection, TrackSection
from ftis_node.schedule import Hours
from ftis_protocol.errors import InviteError
from ftis_protocol.fields import Label
from ftis_protocol.invite import check_address
from ftis_protocol.rollout import Evidence

#: the choices of the loss; policy/ftis.py says what each of them computes
Estimator = Literal["ftis", "tis", "f-nois", "nois", "vis", "f-vis"]
Positives = Literal["pi", "tis", "one", "shaped"]
Negatives = Literal["exact", "surprise", "off"]
#: how far above the usual cost of own text a foreign one may lie that rescues
RESCUE_GATE_NATS = 1.5


class NodeSection(Section):
    """This machine and its operator."""

    name: Label = setting("", "Name shown to others; empty takes the friendly name of the node's key.", max_length=64)
    state_dir: Path = setting(Path("~/.ftis"), "Where keys, database, checkpoints and logs live.")
    threads: int | None = setting(
        None, "CPU threads for training; empty leaves one core to the generator.", unit="threads", ge=1, le=1024
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Least severe line written to the log.")
    log_format: Literal["text", "json"] = setting(
        "text", "Form of the log file: lines to read, or one JSON object a line."
    )
    step_seconds: float = setting(
        6.0,
        "Time that a running step has to end after the first signal; then it is dropped.",
        unit="seconds",
        ge=0,
        le=600,
    )
    stop_seconds: float = setting(
        60.0, "Time for an orderly stop before it is cut short.", unit="seconds", gt=0, le=600
    )

    @property
    def state_path(self) -> Path:
        """`state_dir` with `~` resolved."""
        return self.state_dir.expanduser()


class SwarmSection(Section):
    """How this node meets the others."""

    invite: str = setting("", "Invite or address of the swarm to join.")
    host: str = setting("0.0.0.0", "IP address to listen on; a loopback address keeps the node on this machine.")
    port: int = setting(0, "TCP port to listen on; 0 takes a free one.", unit="port", ge=0, le=65535)
    announce: tuple[str, ...] = setting(
        (), "Multiaddresses told to others instead of those listened on; a missing peer id is added."
    )
    relay: bool = setting(True, "Let other nodes relay for this one when it cannot be reached directly.")
    client: bool = setting(
        False, "Do not listen: publish and fetch through others only. For a node that nobody can reach."
    )
    upload_kibibytes_per_second: float = setting(
        0.0, "Cap on the records this node sends, own ones and those it keeps for others; 0 sets none.",
        unit="kibibytes per second", ge=0, le=1_048_576,
    )  # fmt: skip
    storage_mebibytes: int = setting(
        256, "Memory for records that this node keeps for others.", unit="mebibytes", ge=1, le=65536
    )
    connect_seconds: float = setting(
        30.0, "Longest wait for one attempt to reach the swarm.", unit="seconds", gt=0, le=600
    )
    retry_seconds: float = setting(
        300.0, "Longest pause between two attempts to reach a lost swarm.", unit="seconds", gt=0, le=86400
    )

    @field_validator("announce")
    @classmethod
    def _announced_are_addresses(cls, announce: tuple[str, ...]) -> tuple[str, ...]:
        for address in announce:
            try:
                check_address(address if "/p2p/" in address else f"{address}/p2p/{'1' * 32}")
            except InviteError as error:
                raise ValueError(str(error)) from None
        return announce

    @model_validator(mode="after")
    def _host_is_an_address(self) -> SwarmSection:
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            raise ValueError(f"host must be an IP address such as 0.0.0.0 or 127.0.0.1, not {self.host!r}") from None
        return self

    @property
    def listen(self) -> tuple[str, ...]:
        """The multiaddresses to listen on."""
        version = ipaddress.ip_address(self.host).version
        return (f"/ip{version}/{self.host}/tcp/{self.port}",)

    @property
    def loopback(self) -> bool:
        """Whether only processes of this machine can reach the node: no relay, no port mapping then."""
        return ipaddress.ip_address(self.host).is_loopback


class ModelSection(Section):
    """The model that learns and the engine that samples from it."""

    model: str | None = setting(None, "Model to train: a directory or a hub name.")
    trainable: Literal["full", "lora"] = setting("full", "Train all weights, or a low-rank adapter.")
    lora_rank: int = setting(16, "Rank of the adapter.", unit="dimensions", ge=1, le=1024)
    lora_alpha: float = setting(32.0, "Scale of the adapter; its output is multiplied by alpha / rank.", gt=0)
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "Where the learner computes.")
    compute_dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "Precision of the learner's passes; its weights stay float32."
    )
    generator: Literal["auto", "vllm", "transformers"] = setting("auto", "Engine that samples completions.")
    generator_dtype: Literal["auto", "float32", "bfloat16"] = setting("auto", "Precision of the generator's weights.")
    generator_process: Literal["auto", "own", "node"] = setting(
        "node",
        "Where vLLM lives: in a process of its own, beside the learner, or in the node's. auto takes its own, except "
        "in lock_step and where memory or cores do not suffice.",
    )
    generator_threads: int | None = setting(
        None, "CPU threads of vLLM's own process; empty takes the cores that node.threads leaves, at least one.",
        unit="threads", ge=1, le=1024,
    )  # fmt: skip
    generator_quantization: Literal["none", "fp8", "int8"] = setting(
        "none", "Let vLLM quantise the weights it samples from; the learner's stay whole. GPUs only."
    )
    running_requests: Literal["wait", "abort"] = setting(
        "wait", "Groups that grow when new weights come: end under the old ones, or begin anew under the new ones."
    )
    request_seconds: float = setting(
        600.0, "Time for one group; after it the group is given up, and an engine that is deaf to that is replaced.",
        unit="seconds", gt=0, le=86400,
    )  # fmt: skip
    kv_cache_mebibytes: int = setting(
        512, "Memory for the generator's key-value cache.", unit="mebibytes", ge=16, le=1_048_576
    )
    check_memory: bool = setting(True, "Refuse to load what the memory plan says does not fit.")


class TrainSection(Section):
    """The learning loop."""

    groups_per_step: int = setting(4, "Groups drawn for one optimiser step, own and foreign.", unit="groups", ge=1)
    group_size: int = setting(8, "Completions this node samples for one prompt.", unit="completions", ge=2, le=64)
    learning_rate: float = setting(1e-5, "AdamW's learning rate.", gt=0, le=1)
    optimiser_steps: int = setting(
        1, "Optimiser steps that one batch is split into; more than one scores own groups beforehand.",
        unit="steps", ge=1, le=64,
    )  # fmt: skip
    epochs: int = setting(1, "Times that one batch is gone through.", unit="passes", ge=1, le=64)
    own_share: float = setting(
        0.5, "Least share of own groups in a step; foreign ones fill the rest, if any.", unit="ratio", ge=0.25, le=1
    )
    groups_ahead: int | None = setting(
        None,
        "Own groups sampled before they are asked for, so that vLLM never waits for the learner; they are that much "
        "older when they train. Empty: groups_per_step where vLLM has its own process, else 0; lock_step has none.",
        unit="groups", ge=0, le=4096,
    )  # fmt: skip
    max_steps: int | None = setting(None, "Stop after this many steps; empty goes on.", unit="steps", ge=1)
    checkpoint_every_steps: int = setting(10, "Steps between two checkpoints.", unit="steps", ge=1)
    checkpoints_kept: int = setting(3, "Checkpoints kept; older ones are deleted.", unit="checkpoints", ge=1, le=100)
    probe_every_steps: int = setting(10, "Steps between two held-out probes; 0 switches them off.", unit="steps", ge=0)
    probe_items: int = setting(64, "Held-out items of one probe, each task its share.", unit="items", ge=1)
    seed: int = setting(0, "Seed of sampling, drawing and adapters.", ge=0, lt=2**63)
    pace_seconds: float = setting(
        0.0, "Least time from one step to the next; leaves the machine to others in between.", unit="seconds", ge=0
    )
    lock_step: bool = setting(
        False, "Generate, exchange and train strictly in turn: slower, but a run can be repeated exactly."
    )


class ReceiveSection(Section):
    """What this node takes from others."""

    exchange: bool = setting(True, "Exchange groups with others; off trains alone and publishes nothing.")
    groups_per_step: int = setting(4, "Foreign groups fetched per optimiser step.", unit="groups", ge=0, le=4096)
    groups_per_peer_and_slot: int = setting(
        256, "Groups of one peer looked at in one slot; more are refused as over its quota.", unit="groups", ge=1
    )
    max_lag_steps: int = setting(
        16, "Foreign groups that their author's policy has left behind by more are dropped.", unit="steps", ge=0
    )
    max_age_seconds: float = setting(600.0, "Foreign groups older than this are dropped.", unit="seconds", gt=0)
    buffer_mebibytes: int = setting(64, "Memory for groups waiting to be drawn.", unit="mebibytes", ge=1, le=65536)
    estimator: Estimator = setting(
        "ftis",
        "Loss of own and foreign groups: importance weights cut at their cap with the filter (ftis) or without (tis), "
        "uncut (f-vis, vis), or every weight 1 (f-nois, nois).",
    )
    constants: Literal["default", "paper"] = setting(
        "default",
        "The filter's threshold and limits: per token with limits on foreign groups, or those of the paper (summed "
        "over a completion, no limits).",
    )
    positives: Positives = setting(
        "pi",
        "Weight of foreign right answers without evidence: own probability (pi), that over the usual one of own text "
        "(tis), 1 (one), or pi / (pi + 0.1) (shaped).",
    )
    negatives: Negatives = setting(
        "exact",
        "Foreign wrong answers that may train: those whose evidence lets the filter judge them (exact), without "
        "evidence also those no more surprising than own ones (surprise), or none at all (off).",
    )
    rescue: bool = setting(
        True, "Learn right foreign answers at full weight while own success on their task is near zero."
    )
    rescue_gate_nats: float = setting(
        RESCUE_GATE_NATS,
        "How much more than own text those answers may surprise this node; wider lets more help in, and more junk.",
        unit="nats per token", ge=0, le=20,
    )  # fmt: skip
    trusted_peers: tuple[str, ...] = setting((), "Node ids whose evidence about their policy is believed.")


class LimitsSection(Section):
    """What the node may take of this machine."""

    memory_mebibytes: int | None = setting(
        None, "Memory of the node and its engine; near it, passes are made smaller.", unit="mebibytes", ge=256
    )
    disk_free_mebibytes: int = setting(
        64, "Free disk below which the node does not start.", unit="mebibytes", ge=0, le=1_048_576
    )
    hours: str = setting("", "Hours of the day in which the node works, e.g. 22-6 or 12-13,20:30-23; empty: always.")

    @field_validator("hours")
    @classmethod
    def _hours_are_spans(cls, hours: str) -> str:
        Hours.parse(hours)
        return hours


class PublishSection(Section):
    """What this node gives to others."""

    evidence: Evidence = setting(
        Evidence.NONE, "What is told about the sampling policy: nothing, one number a completion, or every token."
    )
    all_right_groups_per_slot: int = setting(
        1, "Groups without a wrong answer published per slot, for nodes that fail the task.", unit="groups", ge=0, le=64
    )
    collect_seconds: float = setting(
        5.0, "Longest wait of a finished group for others, to travel in one frame with them; lock_step does not wait.",
        unit="seconds", ge=0, le=60,
    )  # fmt: skip
    groups_per_slot: int = setting(
        256, "Groups published in one slot, spread over it; others look at 256 of one node unless told otherwise.",
        unit="groups", ge=1, le=1024,
    )  # fmt: skip


class NodeConfig(Section):
    """All sections of one node."""

    node: NodeSection = Field(default_factory=NodeSection)
    swarm: SwarmSection = Field(default_factory=SwarmSection)
    model: ModelSection = Field(default_factory=ModelSection)
    train: TrainSection = Field(default_factory=TrainSection)
    receive: ReceiveSection = Field(default_factory=ReceiveSection)
    publish: PublishSection = Field(default_factory=PublishSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    page: PageSection = Field(default_factory=PageSection)
    track: TrackSection = Field(default_factory=TrackSection)
