"""The commands beside a node: looking at it, asking something of it, and examining the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ftis_node.cli_flags import Config, Generator, Json, Model, Port, State, Swarm, Verbose, voice
from ftis_node.commands.options import ConfigOptions, DoctorOptions, ExportOptions, ReadOptions
from ftis_node.store_commands import CommandKind

identity_app = typer.Typer(help="This node's key and name.", no_args_is_help=True, rich_markup_mode=None)
config_app = typer.Typer(help="The settings of a node.", no_args_is_help=True, rich_markup_mode=None)
Wait = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for the node's answer.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the program."""
    app.command("status")(_status)
    app.command("peers")(_peers)
    app.command("invite")(_invite)
    app.command("doctor")(_doctor)
    app.command("pause")(_pause)
    app.command("resume")(_resume)
    app.command("leave")(_leave)
    app.command("export")(_export)
    app.add_typer(config_app, name="config")
    app.add_typer(identity_app, name="identity")


def _status(
    state: State = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show what a node does now, or did last."""
    from ftis_node.commands import status

    options, console = ReadOptions(state=state, json=json, verbose=verbose), voice.set_up(json=json, verbose=verbose)
    (status.watch if watch else status.run)(options, console)


def _peers(state: State = None, json: Json = False, verbose: Verbose = False) -> None:
    """List the other nodes that this one has met, and what became of their groups."""
    from ftis_node.commands import peers

    peers.run(ReadOptions(state=state, json=json, verbose=verbose), voice.set_up(json=json, verbose=verbose))


def _invite(state: State = None, json: Json = False, verbose: Verbose = False) -> None:
    """Print the line that others paste to join this node's swarm."""
    from ftis_node.commands import peers

    peers.invite(ReadOptions(state=state, json=json, verbose=verbose), voice.set_up(json=json, verbose=verbose))


def _doctor(
    swarm: Swarm = None,
    model: Model = None,
    state: State = None,
    config: Config = None,
    generator: Generator = None,
    port: Port = None,
    quick: Annotated[bool, typer.Option("--quick", help="Look at this machine only: no network, no model.")] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write a bundle for a bug report, secrets and paths left out.")
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check this machine, the way into a swarm and a model; exit code 3 when something fails."""
    console = voice.set_up(json=False, verbose=verbose)
    options = DoctorOptions(
        swarm=swarm, model=model, state=state, config=config, generator=generator, port=port, quick=quick,
        report=report, json=json, verbose=verbose,
    )  # fmt: skip
    from ftis_node.commands import doctor

    doctor.run(options, console)


def _pause(state: State = None, wait: Wait = 10.0, json: Json = False, verbose: Verbose = False) -> None:
    """Let a running node sample and train nothing until `resume`; it stays in the swarm."""
    _request(CommandKind.PAUSE, state, wait, json, verbose)


def _resume(state: State = None, wait: Wait = 10.0, json: Json = False, verbose: Verbose = False) -> None:
    """Let a paused node work again."""
    _request(CommandKind.RESUME, state, wait, json, verbose)


def _leave(state: State = None, wait: Wait = 10.0, json: Json = False, verbose: Verbose = False) -> None:
    """Let a running node save, say good-bye and end."""
    _request(CommandKind.LEAVE, state, wait, json, verbose)


def _request(kind: CommandKind, state: State, wait: float, json: bool, verbose: bool) -> None:
    from ftis_node.commands import asking

    options = ReadOptions(state=state, json=json, verbose=verbose)
    asking.run(kind, options, wait, voice.set_up(json=json, verbose=verbose))


def _export(
    out: Annotated[Path, typer.Option("--out", help="New directory for the model.")],
    state: State = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="Only the adapter, for peft, without the base.")] = False,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option("--dtype", help="Number format of merged weights.")
    ] = "bfloat16",
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Write a node's newest checkpoint as a Hugging Face model, with a model card."""
    console = voice.set_up(json=False, verbose=verbose)
    from ftis_node.commands import export

    options = ExportOptions(state=state, out=out, adapter=adapter, dtype=dtype, json=json, verbose=verbose)
    export.run(options, console)


@config_app.command("show")
def _config_show(
    state: State = None,
    config: Config = None,
    toml: Annotated[bool, typer.Option("--toml", help="As a file, only what differs from the defaults.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show every setting, its value, and whether default, file, variable or flag set it."""
    console = voice.set_up(json=json, verbose=verbose)
    from ftis_node.commands import config as configuration

    configuration.show(ConfigOptions(state=state, config=config, toml=toml, json=json, verbose=verbose), console)


@identity_app.command("show")
def _identity_show(state: State = None, json: Json = False, verbose: Verbose = False) -> None:
    """Show this node's id, friendly name and key file."""
    from ftis_node.commands import identity

    identity.show(ReadOptions(state=state, json=json, verbose=verbose), voice.set_up(json=json, verbose=verbose))
