"""The commands beside a node: looking at it, asking something of it, and examining the machine."""

from __future__ import annotations

from typing import Annotated

import typer

from ftis_node.cli_flags import Json, State, Verbose, voice
from ftis_node.commands.options import ReadOptions
from ftis_node.store_commands import CommandKind

identity_app = typer.Typer(help="This node's key and name.", no_args_is_help=True, rich_markup_mode=None)
Wait = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for the node's answer.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the program."""
    app.command("status")(_status)
    app.command("peers")(_peers)
    app.command("invite")(_invite)
    app.command("pause")(_pause)
    app.command("resume")(_resume)
    app.command("leave")(_leave)
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


@identity_app.command("show")
def _identity_show(state: State = None, json: Json = False, verbose: Verbose = False) -> None:
    """Show this node's id, friendly name and key file."""
    from ftis_node.commands import identity

    identity.show(ReadOptions(state=state, json=json, verbose=verbose), voice.set_up(json=json, verbose=verbose))
