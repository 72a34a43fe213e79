"""The flags that several commands share, and the voice in which a command line answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ftis_node.console import Console

State = Annotated[Path | None, typer.Option("--state", help="Directory of keys, checkpoints and logs.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file with any key of docs/config.md.")]
Swarm = Annotated[str | None, typer.Option("--swarm", help="Invite or address of the swarm.")]
Model = Annotated[str | None, typer.Option("--model", help="Model to train: a directory or a hub name.")]
Trainable = Annotated[
    Literal["full", "lora"] | None, typer.Option("--trainable", help="Train all weights or an adapter.")
]
Generator = Annotated[
    Literal["auto", "vllm", "transformers"] | None, typer.Option("--generator", help="Engine that samples.")
]
NodeName = Annotated[str | None, typer.Option("--name", help="Name shown to other nodes.")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="TCP port to listen on; 0 takes a free one.")
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Stop after this many optimiser steps.")]
Json = Annotated[bool, typer.Option("--json", help="JSON: one document on stdout, or remarks as JSON lines.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log everything; show the trace of an error.")]


class Voice:
    """The console of this process: a command sets it up from its flags, `main` uses it for the last word."""

    def __init__(self) -> None:
        self.console = Console()

    def set_up(self, *, json: bool, verbose: bool) -> Console:
        self.console = Console(json_lines=json, verbose=verbose)
        return self.console


voice = Voice()
