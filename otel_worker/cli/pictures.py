"""The options --html and --perfetto of `report`, `run` and `demo`: pictures beside the report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from otel_worker.pages import Found, PageError, page, to_perfetto
from otel_worker.reports import Options
from otel_worker.traces import Traces

F = TypeVar("F", bound=Callable[..., Any])
SLOWEST = 20  # tasks that a page lists


def picture_options(command: F) -> F:
    file = click.Path(dir_okay=False, writable=True, path_type=Path)
    for option in (
        click.option("--perfetto", type=file, metavar="FILE", help="Write a trace for https://ui.perfetto.dev."),
        click.option("--html", type=file, metavar="FILE", help="Write a page that explains it; it needs no network."),
    ):
        command = option(command)
    return command


def write_pictures(traces: Traces, source: str, html: Path | None, perfetto: Path | None) -> bool:
    """Write what was asked for; say where it is, or in a sentence why it is not and return False."""
    made: list[tuple[Path, str, Callable[[], bytes]]] = []
    if html:
        made.append((html, "The page", lambda: page(Found(traces, source, Options(top=SLOWEST))).encode()))
    if perfetto:
        made.append((perfetto, "The trace for Perfetto", lambda: to_perfetto(traces.spans)))
    written = [_written(*one) for one in made]  # one that can't be written keeps no other from it
    return all(written)


def _written(path: Path, what: str, make: Callable[[], bytes]) -> bool:
    try:
        path.write_bytes(make())
    except (PageError, OSError) as error:
        reason = f"{path} can't be written: {error.strerror}." if isinstance(error, OSError) else str(error)
        click.echo(f"otel-worker: {reason}", err=True)
        return False
    click.echo(f"{what} is in {path}.", err=True)
    return True
