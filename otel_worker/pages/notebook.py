"""`otel_worker.report(source)`: in a notebook a chart and tables, in a program numbers."""

from __future__ import annotations

import importlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from otel_worker import names
from otel_worker.pages import pieces
from otel_worker.pages.found import Found
from otel_worker.pages.page import page
from otel_worker.reports import METHODS, Method, Options, render
from otel_worker.traces import Traces, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_worker.breakdown import Task
    from otel_worker.breakdown.answer import Answer
    from otel_worker.reports import Report

_WIDTH = 120


def report(
    source: Any, *, method: Method = "shares", by: tuple[str, ...] = (), top: int = 5, **selecting: Any
) -> TimeReport:
    """Say where the time of the tasks in `source` went.

    `source` is what the command takes: a file of OTLP JSON lines, a directory of them, a Jaeger's address; or spans that were
    collected: `Traces`, or anything with a method `traces()` that gives them, as a capture. `selecting` goes to
    `otel_worker.traces.read`: service, since (seconds), trace_id, max_traces.

    Raises SourceError where nothing can be read, ValueError for an unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not one of {', '.join(METHODS)}.")
    if isinstance(source, (str, os.PathLike)):
        traces, name = read(source, **selecting), str(source)
    else:
        traces, name = _collected(source), type(source).__name__
    return TimeReport(Found(traces, name, Options(method, tuple(by), {}, top)))


def _collected(source: Any) -> Traces:
    if isinstance(source, Traces):
        return source
    told = getattr(source, "traces", None)
    found = told() if callable(told) else told
    if not isinstance(found, Traces):
        raise TypeError(
            f"report() takes a file, a directory, a Jaeger's address, or traces, not {type(source).__name__}."
        )
    return found


class TimeReport:
    """Where the time went. Jupyter shows it as a chart and tables; `print` as text. All durations are in seconds."""

    def __init__(self, found: Found) -> None:
        self._found = found

    @property
    def data(self) -> Report:
        """What `otel-worker report --json` prints, as an object."""
        return self._found.report

    @property
    def answer(self) -> Answer:
        """In plain words: where the time went, which peer was slow, and why."""
        return self._found.answer

    def text(self, width: int = _WIDTH) -> str:
        """What `otel-worker report` prints."""
        out = io.StringIO()
        console = Console(
            file=out, width=width, highlight=False, markup=False, emoji=False, color_system=None, force_jupyter=False
        )
        render(self.data, console)
        return out.getvalue()

    def to_html(self, file: str | os.PathLike[str]) -> Path:
        """Write the page of `--html` and return where it is. Raises PageError where Bokeh is not installed."""
        path = Path(file)
        path.write_text(page(self._found), encoding="utf-8")
        return path

    def to_pandas(self) -> Any:
        """A DataFrame, a row a task by its start; a row with `count` above 1 stands for that many coalesced tasks.

        Columns: key, prefix, group, worker (address), worker_name, outcome, count, start (UTC), and in seconds: total, waiting,
        ready, execute, arrival, other, and a column for each activity that any task has, as `waiting.peer.unspill`. The
        activities add up to their phase, phases with arrival and other to the total.

        Raises ImportError where pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ImportError("to_pandas() needs pandas: pip install pandas.") from None
        tasks = self._found.tasks
        paths = sorted({path for task in tasks for path in task.parts if "." in path})
        frame = pandas.DataFrame([dict(_row(task, paths)) for task in tasks], columns=[*_COLUMNS, *_SECONDS, *paths])
        frame["start"] = pandas.to_datetime(frame["start"], unit="ns", utc=True, errors="coerce")
        return frame

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        extent = self.data.extent
        return f"<TimeReport of {self.data.source}: {extent.tasks:,} tasks on {extent.workers:,} workers>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:  # noqa: ARG002
        return {"text/plain": self.text(), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        """Needs no script, so that a notebook shows it that is not trusted, or was exported."""
        found = self._found
        style = f"<style>{pieces.style('.otel-worker.otel-worker')}</style>"
        return f'<div class="otel-worker">{style}{"".join(_shown(found))}</div>'


_COLUMNS = ("key", "prefix", "group", "worker", "worker_name", "outcome", "count", "start")
_SECONDS = ("total", "waiting", "ready", "execute", "arrival", "other")


def _row(task: Task, paths: list[str]) -> Iterator[tuple[str, Any]]:
    attributes = task.span.attributes
    told = (
        *(task.key, task.prefix, task.group, task.worker, str(attributes.get(names.WORKER_NAME, ""))),
        *(str(attributes.get(names.OUTCOME, "")), task.count, task.span.start),
    )
    yield from zip(_COLUMNS, told, strict=True)
    yield "total", task.total / 1e9
    for phase in _SECONDS[1:]:
        yield phase, sum(ns for path, ns in task.parts.items() if path.partition(".")[0] == phase) / 1e9
    for path in paths:
        yield path, task.parts.get(path, 0) / 1e9


def _shown(found: Found) -> Iterator[str]:
    yield pieces.answer(found.answer)
    yield pieces.legend() + pieces.breakdown(found.tasks)
    if found.peers:
        yield "<h4>Whom tasks waited for</h4>" + pieces.peers(found.peers, found.workers)
    yield "<h4>Slowest tasks</h4>" + pieces.slowest(found.report.slowest, found.workers, {})
    for sentence in (*found.report.missing, *found.report.problems):
        yield f"<p>{pieces.text(sentence)}</p>"
