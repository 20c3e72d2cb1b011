"""`otel-worker run`: a Dask program as it is, then where its time went."""

import sys
import tempfile
from pathlib import Path

import click

from otel_worker.cli.report import console
from otel_worker.demo import DemoError
from otel_worker.reports import Options, build, render
from otel_worker.run import run as run_program
from otel_worker.traces import SourceError, read


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Keep spans, metrics, recordings here.")
@click.option("--record", is_flag=True, help="Also record what each worker fetches, for otel-worker lab.")
@click.option("-m", "module", default="", metavar="MODULE", help="Run a module, as python -m does.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(out: Path | None, record: bool, module: str, arguments: tuple[str, ...]) -> None:
    """Run a Dask program, unchanged, and say at the end where its time went.

    Client, scheduler, workers and the children of Nannies are switched on; spans and metrics go to a receiver inside of this
    command, without Docker. Stdout and exit status are the program's own; the report goes to stderr.

    \b
    otel-worker run program.py --its own --arguments
    otel-worker run --out folder --record -m package.module
    """  # noqa: D301  click reads \b as a character
    command = ["-m", module, *arguments] if module else [*arguments]
    if not command:
        raise click.UsageError("Name a program to run, as otel-worker run program.py.")
    folder = out or Path(tempfile.mkdtemp(prefix="otel-worker-run-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        status, _ = run_program(command, folder, record=record)
    except DemoError as error:
        click.echo(f"otel-worker: {error}", err=True)
        raise SystemExit(1) from None
    _report(folder)
    sys.exit(status)


def _report(folder: Path) -> None:
    try:
        found = build(read(folder), str(folder), Options("shares", (), {}, 5, 20))
    except SourceError as error:
        click.echo(f"otel-worker: {error}", err=True)
        return
    if not found.extent.tasks:
        click.echo(
            "otel-worker: No task was seen. Workers on other machines are not: see otel_worker.enable.", err=True
        )
        return
    render(found, console(sys.stderr))
    click.echo(f"\nSpans and metrics are in {folder}; otel-worker report {folder} reads them.", err=True)
