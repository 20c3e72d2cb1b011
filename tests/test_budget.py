"""Far over budget: spans stay within it, sums stay whole, and nothing is lost on the way to a receiver."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed import Client, Scheduler, Worker, wait
from distributed.utils_test import gen_cluster
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_worker import names
from otel_worker.receiver import Receiver
from otel_worker.traces import Span, read
from tests.live import Live

TASKS = 200
RATE, BURST = 1, 12  # of spans; the tasks would have had hundreds a second
INTERVAL = 0.3  # s

# Dask's own checks of each transition look at all tasks.
unchecked = {"validate": False}
cluster = gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1), ("127.0.0.1", 1)],
    scheduler_kwargs=unchecked,
    worker_kwargs=unchecked,
    timeout=120,
    clean_kwargs={"threads": False},  # those of gRPC come when the first span does
)


class Counting(BatchSpanProcessor):
    """The standard processor, that says how many spans it was handed."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(OTLPSpanExporter(endpoint=endpoint, insecure=True))
        self.ended = 0

    def on_end(self, span):
        self.ended += 1
        super().on_end(span)


@contextmanager
def exporting(folder: Path) -> Iterator[tuple[TracerProvider, Counting, Receiver]]:
    """A provider as `opentelemetry-instrument` makes one, that sends to a receiver in this process."""
    with Receiver(folder) as receiver:
        provider, processor = TracerProvider(shutdown_on_exit=False), Counting(receiver.grpc_endpoint)
        provider.add_span_processor(processor)
        yield provider, processor, receiver
        provider.shutdown()


def nothing(*_):
    pass


def seconds(spans: Iterable[Span], prefix: str) -> float:
    return sum(float(v) for s in spans for k, v in s.attributes.items() if k.startswith(prefix))


def sums(reader: InMemoryMetricReader) -> dict[str, float]:
    """Each of our metrics, summed over all its attributes."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: sum(getattr(point, "value", 0) for point in metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def of_tasks(spans: Iterable[Span]) -> list[Span]:
    return [s for s in spans if s.operation in (names.TASK, names.TASKS, names.WAITING, names.READY, names.EXECUTE)]


@pytest.mark.parametrize("budget", [0, RATE])
def test_fifty_times_over_budget(live: Live, tmp_path: Path, caplog: pytest.LogCaptureFixture, budget: int):
    reader = InMemoryMetricReader()
    addresses: list[str] = []
    told: dict[str, float] = {}
    with exporting(tmp_path) as (provider, processor, receiver):
        live.switch.off()
        live.switch.provider = provider
        live.switch.on(
            meter_provider=MeterProvider([reader], shutdown_on_exit=False),
            span_budget=budget,
            span_burst=BURST if budget else 0,
            coalesce_interval=INTERVAL,
            min_phase=0.001,
        )

        @cluster
        async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
            addresses.extend((a.address, b.address))
            begun = time.monotonic()
            made = c.map(nothing, range(TASKS), key="make", pure=False)
            await wait(c.map(nothing, made, made[::-1], key="pair", pure=False))  # half of them are fetched
            told.update(sums(reader), elapsed=time.monotonic() - begun)

        scenario()
        provider.force_flush()
        spans = read(receiver.path).spans

    # Nothing was dropped by the queue of the SDK.
    assert len(spans) == processor.ended
    assert "dropping" not in caplog.text

    # Each task is in one span of its own or in one that stands for many.
    counted = Counter[object]()
    for span in spans:
        if span.operation == names.TASKS:
            counted[span.attributes[names.TASK_PREFIX]] += int(span.attributes[names.TASKS_COUNT])
        elif span.operation == names.TASK:
            counted[span.attributes[names.TASK_PREFIX]] += 1
    assert counted == {"make": TASKS, "pair": TASKS}

    # What spans say adds up to what the metrics say, which are facts, whatever became of spans.
    for prefix, metric in (
        (names.EXECUTE_PREFIX, names.METRIC_EXECUTE_TIME),
        (names.WAIT_PREFIX, names.METRIC_WAIT_TIME),
    ):
        assert seconds(of_tasks(spans), prefix) == pytest.approx(told[metric], rel=1e-6)

    # Within the budget; when a worker closes, the groups of its last interval are shown for nothing.
    for address in addresses:
        mine = [s for s in spans if s.attributes.get(names.WORKER_ADDRESS) == address]
        last = 2 if budget else len(mine)
        assert len(mine) <= (BURST if budget else 0) + budget * (told["elapsed"] + 10 * INTERVAL) + last
        if not budget:
            assert {s.operation for s in mine} == {names.TASKS}
