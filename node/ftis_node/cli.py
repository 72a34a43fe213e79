"""The command line: names, flags and exit codes. Nothing heavy is imported before a command runs.

Exit codes: 0 done, 1 our bug, 2 usage or configuration, 3 a check of the machine failed, 4 not allowed, 5 the swarm
cannot be reached (try again), 130 interrupted. One signal to a node at work is no interruption: it saves, says good-bye
and ends with 0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

import ftis_node
from ftis_node import cli_operating as operating
from ftis_node import environment, logfile
from ftis_node.cli_flags import (
    Config,
    Generator,
    Json,
    Model,
    NodeName,
    Port,
    State,
    Steps,
    Swarm,
    Trainable,
    Verbose,
    voice,
)
from ftis_node.commands.options import (
    AblateOptions,
    CreateOptions,
    DashboardOptions,
    DemoOptions,
    EvalOptions,
    JoinOptions,
    SeedOptions,
    TaskOption,
    listed,
    numbered,
)
from ftis_node.errors import FtisError
from ftis_protocol.errors import ProtocolError
from ftis_protocol.rollout import Evidence

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
FOREIGN_FAULT_EXIT_CODE = 2  # an invite, a key file or a manifest that cannot be used as given
INTERRUPTED_EXIT_CODE = 130


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ftis-node {ftis_node.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Letting strangers' language models learn together."""


@app.command("join")
def _join(
    swarm: Swarm = None,
    model: Model = None,
    name: NodeName = None,
    state: State = None,
    config: Config = None,
    trainable: Trainable = None,
    generator: Generator = None,
    port: Port = None,
    steps: Steps = None,
    check_only: Annotated[
        bool, typer.Option("--check-only", help="Say what would be done, check it, then stop.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Join a swarm and train with it. The same line again resumes."""
    console = voice.set_up(json=json, verbose=verbose)
    options = JoinOptions(
        swarm=swarm, model=model, name=name, state=state, config=config, trainable=trainable, generator=generator,
        port=port, steps=steps, check_only=check_only, json=json, verbose=verbose,
    )  # fmt: skip
    from ftis_node.commands import join

    join.run(options, console)


@app.command("create")
def _create(
    task: Annotated[
        list[str], typer.Option("--task", help="Task, e.g. arithmetic:operations=+-,digits=1; repeatable.")
    ],
    name: Annotated[str, typer.Option("--name", help="Name of the swarm.")],
    model: Model = None,
    no_model: Annotated[bool, typer.Option("--no-model", help="Serve as the swarm's seed, train nothing.")] = False,
    group_size: Annotated[
        int | None, typer.Option("--group-size", min=2, max=64, help="Completions of one prompt.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Longest completion.")] = None,
    slice_size: Annotated[
        int | None, typer.Option("--slice-size", min=1, help="Prompts open to one node in one slot.")
    ] = None,
    evidence: Annotated[
        list[Evidence] | None,
        typer.Option("--evidence", help="Evidence allowed besides plain text; repeatable."),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="Must be 1; others are refused.")] = 1.0,
    state: State = None,
    config: Config = None,
    port: Port = None,
    steps: Steps = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Found a swarm, print its join line and go on as its first node."""
    console = voice.set_up(json=json, verbose=verbose)
    options = CreateOptions(
        tasks=tuple(TaskOption.parse(text) for text in task), name=name, model=model, with_model=not no_model,
        group_size=group_size, max_tokens=max_tokens, slice_size=slice_size, evidence=tuple(evidence or ()),
        temperature=temperature, state=state, config=config, port=port, steps=steps, json=json, verbose=verbose,
    )  # fmt: skip
    from ftis_node.commands import create

    create.run(options, console)


@app.command("seed")
def _seed(
    swarm: Swarm = None,
    name: NodeName = None,
    state: State = None,
    config: Config = None,
    host: Annotated[str | None, typer.Option("--host", help="IP address to listen on.")] = None,
    port: Port = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Serve a swarm as a meeting point, without a model."""
    console = voice.set_up(json=json, verbose=verbose)
    options = SeedOptions(
        swarm=swarm, name=name, state=state, config=config, host=host, port=port, json=json, verbose=verbose
    )
    from ftis_node.commands import seed

    seed.run(options, console)


@app.command("dashboard")
def _dashboard(
    swarm: Swarm = None,
    state: State = None,
    config: Config = None,
    host: Annotated[str | None, typer.Option("--host", help="IP address that the page listens on.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="TCP port of the page.")] = None,
    public: Annotated[bool, typer.Option("--public", help="For anybody: read-only and rate-limited.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show a swarm's page without taking part in the swarm."""
    console = voice.set_up(json=json, verbose=verbose)
    options = DashboardOptions(
        swarm=swarm, state=state, config=config, host=host, port=port, public=public, json=json, verbose=verbose
    )
    from ftis_node.commands import dashboard

    dashboard.run(options, console)


@app.command("demo")
def _demo(
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimiser steps of each node.")] = 20,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=16, help="Number of nodes.")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of sampling and drawing.")] = 0,
    no_exchange: Annotated[bool, typer.Option("--no-exchange", help="The same nodes, each on its own.")] = False,
    work_dir: Annotated[Path | None, typer.Option("--work-dir", help="Directory for the nodes' state.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the nodes' state afterwards.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a whole swarm on this machine and show what its nodes learned."""
    console = voice.set_up(json=json, verbose=verbose)
    options = DemoOptions(
        steps=steps, nodes=nodes, seed=seed, exchange=not no_exchange, work_dir=work_dir, keep=keep, json=json,
        verbose=verbose,
    )  # fmt: skip
    from ftis_node.commands import demo

    demo.run(options, console)


@app.command("ablate")
def _ablate(
    file: Annotated[Path | None, typer.Argument(help="TOML file of docs/ablate.md; default: a tiny pair.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Rounds of each arm.")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Seeds, e.g. 0,1,2.")] = None,
    arms: Annotated[str | None, typer.Option("--arms", help="Arms, e.g. alone,nois,f-tis-token.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory of results; finished runs in it are kept. Default: ablation."),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare estimators and evidence tiers, each with every seed."""
    console = voice.set_up(json=json, verbose=verbose)
    options = AblateOptions(
        file=file, rounds=rounds, seeds=numbered(seeds, "--seeds"), arms=listed(arms), out=out, json=json,
        verbose=verbose,
    )  # fmt: skip
    from ftis_node.commands import ablate

    ablate.run(options, console)


@app.command("eval")
def _eval(
    model: Annotated[str | None, typer.Option("--model", help="Model to measure: a directory or a hub name.")] = None,
    state: State = None,
    task: Annotated[str | None, typer.Option("--task", help="Task to measure; default: the swarm's.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Held-out items.")] = 64,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", help="Model to compare with item by item, or none; default: what it began with."),
    ] = None,
    generator: Generator = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Measure held-out pass@1 of a model or of a node's newest checkpoint."""
    console = voice.set_up(json=json, verbose=verbose)
    options = EvalOptions(
        model=model, state=state, task=TaskOption.parse(task) if task is not None else None, count=count,
        baseline=baseline,
        generator=generator, json=json, verbose=verbose,
    )  # fmt: skip
    from ftis_node.commands import eval as evaluation

    evaluation.run(options, console)


operating.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return the exit code. Unforeseen errors pass through."""
    environment.prepare()
    sys.excepthook = report_bug
    logfile.end()
    logfile.silence()
    voice.set_up(json=False, verbose=False)
    try:
        # not app(...): calling that would put typer's own exception hook in the place of ours
        typer.main.get_command(app)(args=arguments, prog_name="ftis-node")
    except (FtisError, ProtocolError) as error:
        voice.console.fail(error)
        return error.exit_code if isinstance(error, FtisError) else FOREIGN_FAULT_EXIT_CODE
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    return 0


def report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The process's last word on an error that nobody foresaw; Python then exits with 1."""
    if issubclass(kind, KeyboardInterrupt):
        return
    voice.console.bug(error)
