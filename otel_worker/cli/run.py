"""`otel-worker run`: a Dask program as it is, then where its time went."""

import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import click
from rich.text import Text

from otel_worker import names
from otel_worker.cli.pictures import picture_options, write_pictures
from otel_worker.cli.progress import progress
from otel_worker.cli.report import console
from otel_worker.demo import DemoError
from otel_worker.receiver import Receiver
from otel_worker.reports import Options, build, render
from otel_worker.run import run as run_program
from otel_worker.traces import SourceError, Traces, read
from otel_worker.trees import clean
from otel_worker.watching import Cluster, Watcher

_HOW = """\
  In the program, otel_worker.enable(client, endpoint=os.environ['OTEL_EXPORTER_OTLP_ENDPOINT']) switches on workers that
  have otel_worker installed, and otel_worker.disable(client) at its end fetches the rest. Where they run on other machines,
  otel-worker run --host ADDRESS, with an address of this one, lets them reach it."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Keep spans, metrics, recordings here.")
@click.option("--record", is_flag=True, help="Also record what each worker fetches, for otel-worker lab.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Receive on this address of this machine, for workers on other machines.",
)
@picture_options
@click.option("-m", "module", default="", metavar="MODULE", help="Run a module, as python -m does.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    out: Path | None,
    record: bool,
    host: str,
    html: Path | None,
    perfetto: Path | None,
    module: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a Dask program, unchanged, and say at the end where its time went.

    Client, scheduler, workers and the children of Nannies are switched on; spans and metrics go to a receiver inside of this
    command, without Docker. Stdout and exit status are the program's own; the report goes to stderr, and so does a line that
    tells how it goes, where stderr is a terminal. Workers that something else started are not switched on: the program can do that,
    see otel_worker.enable.

    \b
    otel-worker run program.py --its own --arguments
    otel-worker run --out folder --record -m package.module
    otel-worker run --html page.html program.py
    otel-worker run --host 10.0.0.5 program.py
    """  # noqa: D301  click reads \b as a character
    command = ["-m", module, *arguments] if module else [*arguments]
    if not command:
        raise click.UsageError("Name a program to run, as otel-worker run program.py.")
    folder = out or Path(tempfile.mkdtemp(prefix="otel-worker-run-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        status, watcher = run_program(command, folder, record=record, beside=_beside, host=host)
    except DemoError as error:
        _say(str(error))
        raise SystemExit(1) from None
    _report(folder, watcher, html, perfetto)
    sys.exit(status)


# --- while it runs -----------------------------------------------------------------------------------------------------


def _beside(receiver: Receiver, watcher: Watcher) -> AbstractContextManager[object]:
    return progress(sys.stderr, lambda: _line(receiver, watcher))


def _line(receiver: Receiver, watcher: Watcher) -> Text:
    line = Text("otel-worker  ", style="dim")
    tasks = receiver.tasks_received
    line.append(f"{tasks:,} task{'' if tasks == 1 else 's'}, {receiver.spans_received:,} spans")
    if (slowest := watcher.slowest) is not None:
        key, name = clean(str(slowest["key"])), clean(str(slowest["name"]))
        line.append(f"; open for {slowest['seconds']:,.0f} s: {key} on {name}, {clean(str(slowest['phase']))}")
    return line


# --- afterwards --------------------------------------------------------------------------------------------------------


def _report(folder: Path, watcher: Watcher, html: Path | None, perfetto: Path | None) -> None:
    try:
        traces = read(folder)
    except SourceError as error:
        _say(str(error))
        _tell_unseen(watcher, set())
        return
    found = build(traces, str(folder), Options("shares", (), {}, 5, 20))
    if found.extent.tasks:
        render(found, console(sys.stderr))
        click.echo(f"\nSpans and metrics are in {folder}; otel-worker report {folder} reads them.", err=True)
        write_pictures(traces, str(folder), html, perfetto)
    else:
        _say("No task was seen.")
    _tell_unseen(watcher, _workers(traces))


def _workers(traces: Traces) -> set[str]:
    return {str(s.attributes[names.WORKER_ADDRESS]) for s in traces.spans if names.WORKER_ADDRESS in s.attributes}


def _tell_unseen(watcher: Watcher, seen: set[str]) -> None:
    """What of the program's clusters is not in the report, and how it would be."""
    sentences = [sentence for cluster in watcher.clusters.values() for sentence in _unseen(cluster, seen)]
    for sentence in sentences:
        _say(sentence)
    if sentences:
        click.echo(_HOW, err=True)


def _unseen(cluster: Cluster, seen: set[str]) -> list[str]:
    states = cluster.workers
    without = [w for w, state in states.items() if state == "without" and w not in seen]
    elsewhere = [w for w, n in cluster.recorded.items() if n and w not in seen and states.get(w) != "without"]
    found = []
    if without:
        found.append(
            f"{_of(without, states)} of {cluster.scheduler} run without otel_worker: of their tasks only what the client "
            "and other workers saw is in the report."
        )
    if elsewhere:
        found.append(
            f"{_of(elsewhere, states)} of {cluster.scheduler} have otel_worker, but send their spans elsewhere."
        )
    if not states and not seen:
        found.append(f"The scheduler {cluster.scheduler} could not be asked who its workers are.")
    return found


def _of(some: list[str], workers: dict[str, str]) -> str:
    return f"{len(some)} of {len(workers)} workers"


def _say(sentence: str) -> None:
    click.echo(f"otel-worker: {clean(sentence)}", err=True)
