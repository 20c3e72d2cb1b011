"""`otel-worker demo`: work worth looking at, on real processes, without Docker."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from otel_worker import names
from otel_worker.cli.pictures import picture_options, write_pictures
from otel_worker.cli.report import console
from otel_worker.demo import DemoError, run
from otel_worker.demo_work import BUSY_WITH, HELD, ROUNDS
from otel_worker.pages import Found
from otel_worker.reports import Options, build, render
from otel_worker.traces import Traces, read
from otel_worker.trees import clean, subtree
from otel_worker.trees import tree as tree_lines


@click.command()
@click.option(
    "--delay",
    default=0.3,
    show_default=True,
    type=click.FloatRange(0, 5),
    help="Seconds that a slow value takes to unpickle.",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Keep spans, logs and page in this folder."
)
@click.option(
    "--trees", default=1, show_default=True, type=click.IntRange(min=0), help="How many tasks to show as trees."
)
@picture_options
def demo(delay: float, out: Path | None, trees: int, html: Path | None, perfetto: Path | None) -> None:
    """Run a scheduler, four workers and a client as real processes, and show where the time went.

    Alice combines what bob and carol loaded, in several rounds. One of carol's values takes --delay seconds to unpickle. It
    is on carol's disk when alice asks for it: it is unpickled to read it back on carol, to receive it on alice, and, where
    alice spilled it meanwhile, to read it back there. While alice waits, she runs producers that need nothing. Then bob
    serves as many as he may, and tells carol that he is busy; and a coroutine holds dave's event loop for three delays
    while alice asks him. Double the delay, and those seconds double.

    A page, demo.html in the folder, explains it: --html names another file.

    \b
    otel-worker demo
    otel-worker demo --delay 0.6 --out demo
    """  # noqa: D301  click reads \b as a character
    folder = out or Path(tempfile.mkdtemp(prefix="otel-worker-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    click.echo("Starting a scheduler and four workers; this takes some 20 seconds …", err=True)
    try:
        traces = read(run(folder, delay))
    except DemoError as error:
        click.echo(f"otel-worker: {error}", err=True)
        raise SystemExit(1) from None
    _show(traces, folder, delay, trees)
    asked = bool(html or perfetto)
    if not write_pictures(traces, str(folder), html or folder / "demo.html", perfetto) and asked:
        raise SystemExit(1)


def _answer(found: Found) -> Iterator[str]:
    """What the page says first."""
    yield found.answer.headline
    yield from (f"- {verdict.verdict}: {verdict.sentence}" for verdict in found.answer.verdicts)
    yield from (f"- {remark}" for remark in found.answer.remarks)


def _show(traces: Traces, folder: Path, delay: float, trees: int) -> None:
    tasks = sorted((s for s in traces.spans if s.operation == names.TASK), key=lambda s: -s.duration)
    slowest = [s for s in tasks if any(child.operation == names.FETCH for child in subtree(traces.spans, s))][:trees]
    click.echo(
        f"Injected: {ROUNDS} values on carol that take {delay:g} s to unpickle, wherever that happens; "
        f"{BUSY_WITH} of bob that take {1.5 * delay:g} s; dave's event loop held for {HELD * delay:g} s.\n"
    )
    for sentence in _answer(Found(traces, str(folder), Options())):
        click.echo(clean(sentence))
    click.echo()
    for task in slowest:
        for line in tree_lines(subtree(traces.spans, task), links=True, seconds=True, details=True, among=traces.spans):
            click.echo(clean(line))
        click.echo()
    render(build(traces, str(folder), Options("shares", (), {}, 5, 20)), console(sys.stdout))
    click.echo(f"\nThe {len(traces.spans)} spans and the logs are in {folder}; otel-worker report {folder} reads them.")
