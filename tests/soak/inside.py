"""Inside a worker's process: a preload that switches us on and counts every span, and what a probe tells of it.

`OTEL_WORKER_SOAK` is where the spans go, as http://host:port. Workers get different budgets, by their process id.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from distributed.core import Status
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_worker import names
from otel_worker.facts import Fetch, Serve, SpillOp, Task, Want
from otel_worker.instrumentor import DaskInstrumentor
from otel_worker.submissions import Submission
from otel_worker.testing import EVERYTHING

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span

ENDPOINT = "OTEL_WORKER_SOAK"
BUDGETS: tuple[dict[str, Any], ...] = (EVERYTHING, {"span_budget": 100.0, "span_burst": 200.0}, {"span_budget": 5.0})
RECORDS = (Task, Want, Fetch, Serve, SpillOp, Submission)
COMPLAINTS = ("opentelemetry", "otel_worker")


class Ends(SpanProcessor):
    """Which spans are open, and how many ended that were not."""

    def __init__(self) -> None:
        self.open: dict[int, str] = {}
        self.started = self.twice = 0
        self._lock = threading.Lock()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        with self._lock:
            self.started += 1
            self.open[_id(span)] = span.name

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            self.twice += self.open.pop(_id(span), None) is None


def _id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


class Complaints(logging.Handler):
    """What OpenTelemetry or ours has to say: a second end of a span, a context that could not be detached."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(f"{record.name}: {record.getMessage()}"[:500])


class Watch:
    """Us, switched on in this process with a provider of its own."""

    def __init__(self, endpoint: str, settings: dict[str, Any]) -> None:
        self.ends = Ends()
        self.complaints = Complaints()
        for name in COMPLAINTS:
            logging.getLogger(name).addHandler(self.complaints)
        self.provider = TracerProvider()
        self.provider.add_span_processor(self.ends)
        exporter = OTLPSpanExporter(f"{endpoint}/v1/traces")
        self.provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=100_000, schedule_delay_millis=200)
        )
        self.reader = InMemoryMetricReader()
        self.instrumentor = DaskInstrumentor()
        self.instrumentor.instrument(
            tracer_provider=self.provider, meter_provider=MeterProvider([self.reader]), **settings
        )
        self.fetched = 0  # bytes, as Dask has logged them

    def probe(self) -> dict[str, Any]:
        """What this process holds: all of it has to be nothing when nothing goes on."""
        runtime = self.instrumentor.runtime
        assert runtime is not None
        gc.collect()
        kept = Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, RECORDS))
        self.provider.force_flush()
        return {
            "pid": os.getpid(),
            "open": dict(Counter(self.ends.open.values())),
            "started": self.ends.started,
            "twice": self.ends.twice,
            "told": list(self.complaints.told),
            "failures": [f"{name}: {error!r}" for name, error in runtime.guard.failures],
            "sizes": [recorder.sizes() for recorder in runtime.by_worker.values()],
            "futures": len(runtime.submissions.by_future),
            "kept": dict(kept),
            "produced": sum(len(spans.tasks.produced) for spans in runtime.spans.values()),
            "rss": _rss(),
            "reanchored": runtime.clock.reanchored,
        }

    def compared(self, worker: Any) -> dict[str, tuple[float, float]]:
        """By what is counted: ours, and Dask's own."""
        ours = self._sums()
        # Consumed here: the log forgets.
        self.fetched += sum(entry["total"] for entry in worker.transfer_incoming_log)
        worker.transfer_incoming_log.clear()
        elapsed = worker.state.task_counter.cumulative_elapsed(by_prefix=False)
        spilled = getattr(worker.data, "cumulative_metrics", {})
        return {
            **{
                f"seconds {state}": (ours[names.METRIC_STATE_TIME, state], elapsed.get(state, 0.0)) for state in SECONDS
            },
            "bytes fetched": (ours[names.METRIC_FETCH_IO, ""], self.fetched),
            "bytes written": (ours[names.METRIC_SPILL_IO, names.SPILL_WRITE], spilled.get(("disk-write", "bytes"), 0)),
            "bytes read": (ours[names.METRIC_SPILL_IO, names.UNSPILL_READ], spilled.get(("disk-read", "bytes"), 0)),
        }

    def states(self, worker: Any) -> dict[str, tuple[float, float]]:
        """Seconds by prefix and state: ours, and Dask's own."""
        runtime = self.instrumentor.runtime
        assert runtime is not None
        now = time.perf_counter_ns()
        ours = {cell: (n * now - at) / 1e9 for cell, (n, at, _) in runtime.by_worker[id(worker)].states.items()}
        elapsed = worker.state.task_counter.cumulative_elapsed(by_prefix=True)
        return {" ".join(cell): (ours.get(cell, 0.0), elapsed.get(cell, 0.0)) for cell in {*ours, *elapsed}}

    def _sums(self) -> Counter[tuple[str, str]]:
        """What the SDK exports, by metric and by state or activity."""
        data = self.reader.get_metrics_data()
        found: Counter[tuple[str, str]] = Counter()
        for metric in (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics) if data else ():
            for point in metric.data.data_points:
                about = point.attributes or {}
                what = str(about.get(names.STATE, about.get(names.ACTIVITY, "")))
                found[metric.name, what] += getattr(point, "value", 0)
        return found


SECONDS = ("waiting", "ready", "executing", "long-running", "fetch", "flight", "memory")
WATCH: list[Watch] = []


def watch() -> Watch:
    return WATCH[0]


def dask_setup(worker: Any) -> None:
    settings = BUDGETS[os.getpid() % len(BUDGETS)]
    WATCH.append(Watch(os.environ[ENDPOINT], settings))
    runtime = watch().instrumentor.runtime
    assert runtime is not None
    runtime.adopt(worker)


def _rss() -> int:
    """Bytes."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - no folder to speak of
        return int(file.read().split()[1]) * resource.getpagesize()


# --- called through Client.run -------------------------------------------------------------------------------------------


def probe(dask_worker: Any) -> dict[str, Any]:
    return {**watch().probe(), "compared": watch().compared(dask_worker), "states": watch().states(dask_worker)}


async def pause(seconds: float, dask_worker: Any) -> None:
    """As the memory monitor does it."""
    dask_worker.status = Status.paused
    await asyncio.sleep(seconds)
    if dask_worker.status == Status.paused:
        dask_worker.status = Status.running


async def stop_the_loop(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - the fault
