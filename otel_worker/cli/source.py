"""What `tree` and `report` have in common: the source that they read, and how they say that they can't."""

import re
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from otel_worker.traces import SourceError, Traces, read

F = TypeVar("F", bound=Callable[..., Any])
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_EVERY = 0.2  # seconds between two lines of progress


class Since(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.4 only
    """Seconds, as 90s, 15m, 1h, 2d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no duration such as 90s, 15m, 1h or 2d.", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


def source_options(command: F) -> F:
    for option in (
        click.option("--trace-id", default="", metavar="ID", help="Only this trace."),
        click.option("--service", default="", metavar="NAME", help="Only traces that this service takes part in."),
        click.option(
            "--since", type=Since(), default="1h", show_default=True, help="How far back a Jaeger is searched."
        ),
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            default=1000,
            show_default=True,
            help="At most so many traces of each service from a Jaeger.",
        ),
        click.argument("source"),
    ):
        command = option(command)
    return command


def read_or_exit(source: str, *, service: str, since: float, trace_id: str, limit: int) -> Traces:
    """Without a span there is nothing to show: the reason goes to stderr, the status is 1."""
    progress = _Progress(source)
    try:
        traces = read(source, service=service, since=since, trace_id=trace_id, max_traces=limit, progress=progress)
    except SourceError as error:
        progress.end()
        raise SystemExit(_say(str(error))) from None
    progress.end()
    if not traces.spans:
        raise SystemExit(_say(" ".join([f"No span in {source}.", *traces.problems])))
    return traces


def _say(sentence: str) -> int:
    click.echo(f"otel-worker: {sentence}", err=True)
    return 1


class _Progress:
    """One line on stderr that is written over, where a person looks at it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._shown = 0.0
        self._on = sys.stderr.isatty()

    def __call__(self, spans: int) -> None:
        now = time.monotonic()
        if self._on and now - self._shown > _EVERY:
            self._shown = now
            click.echo(f"\r{spans:,} spans of {self._source} read\x1b[K", err=True, nl=False)

    def end(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)
