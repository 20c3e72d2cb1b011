"""`otel-worker report`: where the time went."""

import gc
import os
import sys
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console

from otel_worker.breakdown import BY
from otel_worker.cli.pictures import picture_options, write_pictures
from otel_worker.cli.source import read_or_exit, source_options
from otel_worker.reports import METHODS, Method, Options, build, render, to_json

_PIPE_WIDTH = 120


def _only(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, equals, wanted = value.partition("=")
        if not equals or name not in BY:
            raise click.BadParameter(f"{value!r} is not one of {', '.join(f'{b}=…' for b in BY)}.", ctx, param)
        found[name] = wanted
    return found


def _by(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip()))
    for name in names:
        if name not in BY:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(BY)}.", ctx, param)
    return names


@click.command()
@source_options
@click.option("--by", multiple=True, callback=_by, metavar="NAME", help=f"A tree for each {', '.join(BY)}; combinable.")
@click.option("--only", multiple=True, callback=_only, metavar="NAME=VALUE", help="Only such tasks, as prefix=sum.")
@click.option("--key", default="", help="Only the tasks of this key.")
@click.option("--method", type=click.Choice(METHODS), default="shares", show_default=True, help="See below.")
@click.option("--top", default=5, show_default=True, type=click.IntRange(min=0), help="How many of the slowest tasks.")
@click.option("--groups", default=20, show_default=True, type=click.IntRange(min=1), help="How many groups of --by.")
@picture_options
@click.option("--json", "as_json", is_flag=True, help="For programs; docs/report.schema.json describes it.")
def report(
    source: str,
    trace_id: str,
    service: str,
    since: float,
    limit: int,
    by: tuple[str, ...],
    only: dict[str, str],
    key: str,
    method: Method,
    top: int,
    groups: int,
    html: Path | None,
    perfetto: Path | None,
    as_json: bool,
) -> None:
    """Say where the time of the tasks in SOURCE went while they were not computing.

    SOURCE is a file of OTLP JSON lines (also gzip or zstd), a directory of them, or the address of a Jaeger.

    \b
    otel-worker report traces.jsonl
    otel-worker report traces.jsonl --by prefix --by worker --top 20
    otel-worker report localhost:16686 --service dask-worker --since 15m --json
    otel-worker report traces.jsonl --html page.html --perfetto trace.json

    Method `shares` is what the workers worked out: at each instant of a wait, the dependencies still lacking share it.
    Method `critical_path` follows, for each task, the fetch that arrived last through its phases.
    """  # noqa: D301  click reads \b as a character
    traces = read_or_exit(source, service=service, since=since, trace_id=trace_id, limit=limit)
    gc.disable()  # the process ends soon, and collections over a million spans take longer than the report
    found = build(traces, source, Options(method, by, only | ({"key": key} if key else {}), top, groups))
    if not found.extent.tasks:
        raise SystemExit(_nothing(source, (*found.missing, *found.problems)))
    if as_json:
        click.echo(to_json(found))
    else:
        render(found, console(sys.stdout))
    if not write_pictures(traces, source, html, perfetto):
        raise SystemExit(1)


def _nothing(source: str, sentences: tuple[str, ...]) -> int:
    click.echo(" ".join([f"otel-worker: No task to report in {source}.", *sentences]), err=True)
    return 1


def console(stream: TextIO) -> Console:
    """Rich itself looks at NO_COLOR, TERM and COLUMNS; a pipe has room."""
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
