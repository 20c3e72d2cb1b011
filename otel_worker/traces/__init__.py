"""A file of OTLP JSON lines, a directory of them, or a Jaeger -> spans as frozen data, problems as sentences."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from otel_worker.traces.collected import Collected, Limits
from otel_worker.traces.data import Event, Link, Ref, Resource, Span, Traces, Value, by_ref, children, number
from otel_worker.traces.files import add_path, looks_like_address
from otel_worker.traces.jaeger import Query, add_jaeger
from otel_worker.traces.problems import SourceError, count

__all__ = [
    "Event",
    "Limits",
    "Link",
    "Ref",
    "Resource",
    "SourceError",
    "Span",
    "Traces",
    "Value",
    "by_ref",
    "children",
    "count",
    "number",
    "read",
]


def read(
    source: str | os.PathLike[str],
    *,
    service: str = "",
    since: float = 3600.0,
    trace_id: str = "",
    max_traces: int = 1000,
    limits: Limits | None = None,
    progress: Callable[[int], None] | None = None,
) -> Traces:
    """The spans of a file, directory or Jaeger address; raise SourceError where nothing can be read.

    `service` and `trace_id` select; `since` (seconds before now) and `max_traces` (of each service) bound what a Jaeger is asked for. `progress` is told
    the number of spans so far, many times a second.
    """
    into = Collected(limits or Limits(), progress)
    with _collector_off():
        if looks_like_address(str(source)):
            add_jaeger(str(source), Query(time.time(), service, since, trace_id, max_traces), into)
            return into.traces()
        add_path(Path(source), into)
        return _selected(into.traces(), service, trace_id)


def _selected(traces: Traces, service: str, trace_id: str) -> Traces:
    """What a Jaeger selects, for files: whole traces that the service takes part in."""
    if not service and not trace_id:
        return traces
    wanted = {s.trace_id for s in traces.spans if (not service or s.service == service)}
    if trace_id:
        wanted &= {trace_id.lower().zfill(32)}
    return Traces(tuple(s for s in traces.spans if s.trace_id in wanted), traces.problems, traces.fates)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Nothing that is read can form a cycle, and full collections over a million spans double the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
