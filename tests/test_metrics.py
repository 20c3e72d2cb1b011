"""What the metrics say: exact sums of what happened, complete at the end, few series, and names that are not Dask's."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader
from opentelemetry.trace import format_trace_id

from otel_worker import names
from otel_worker.metrics import Instruments, WorkerMetrics
from otel_worker.settings import Settings
from tests.desk import Desk, ns
from tests.faults.tools import cluster, hold, plain, use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Client, Scheduler, Worker

    from tests.live import Live

Points = dict[tuple[str, ...], float]


class Measured:
    """A desk with the sums of its worker, as an SDK exports them."""

    def __init__(self, **settings: Any) -> None:
        self.desk = Desk()
        self.desk.recorder.address, self.desk.recorder.name = "tcp://me", "me"
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.now = 0.0
        instruments = Instruments(self.provider.get_meter("test"), lambda: ns(self.now))
        self.metrics = WorkerMetrics(self.desk.recorder, Settings(**settings), instruments)
        instruments.workers[self.desk.recorder] = self.metrics
        self.desk.recorder.observers.append(self.metrics)

    def read(self, metric: str, at: float = 0.0, *labels: str) -> Points:
        """Values by these labels, at `at` seconds."""
        self.now = at
        return {
            tuple(str(point.attributes[label]) for label in labels): round(point.value, 9)
            for point in points(self.reader, metric)
        }

    def states(self, at: float, *, entered: bool = False) -> Points:
        metric = names.METRIC_STATE_ENTERED if entered else names.METRIC_STATE_TIME
        return self.read(metric, at, names.TASK_PREFIX, names.STATE)


def points(reader: MetricReader, metric: str) -> list[Any]:
    data = reader.get_metrics_data()  # type: ignore[attr-defined]
    found = (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics) if data else ()
    return [point for m in found if m.name == metric for point in m.data.data_points]


@pytest.fixture
def measured() -> Measured:
    return Measured()


# --- states ------------------------------------------------------------------------------------------------------------


def test_the_time_in_each_state_and_how_many_entered(measured: Measured):
    desk = measured.desk
    desk.wait(0, "sum-1", "x", x="flight")
    fetch = desk.begin(0, "a", "x")
    desk.end(2, fetch, **{"x": "memory", "sum-1": "ready"})
    desk.move(5, **{"sum-1": "executing", "sum-2": "ready"})
    assert measured.states(6) == {
        ("x", "flight"): 2,
        ("x", "memory"): 4,
        ("sum", "waiting"): 2,
        ("sum", "ready"): 4,
        ("sum", "executing"): 1,
    }
    assert measured.states(6, entered=True)["sum", "ready"] == 2
    desk.move(7, **{"sum-1": "released", "sum-2": "released", "x": "released"})
    assert measured.states(100) == measured.states(7)


def test_a_sum_never_falls_though_a_task_moved_after_the_export_began(measured: Measured):
    """The sums are read in the exporter's thread, which asked for the time before the last tasks moved."""
    desk = measured.desk
    desk.move(0, **{"sum-1": "ready"})
    desk.move(3, **{"sum-1": "released"})
    assert measured.states(2.5) == {("sum", "ready"): 3}
    desk.move(4.001, **{"sum-2": "ready"})
    assert measured.states(4) == {("sum", "ready"): 3}
    assert measured.states(5) == {("sum", "ready"): 3.999}


def test_a_first_task_that_came_after_the_export_began_has_no_negative_time(measured: Measured):
    measured.desk.move(4.001, **{"sum-1": "ready"})
    assert measured.states(4) == {("sum", "ready"): 0}


class Watched(list[int]):
    """The counts of a state, read in the middle of each change, as another thread may."""

    def __init__(self, measured: Measured) -> None:
        super().__init__([0, 0, 0])
        self._measured = measured
        self.at = 0.0
        self.seen: list[float] = []

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self.seen.append(self._measured.states(self.at)["sum", "ready"])


def test_a_sum_read_in_the_middle_of_a_transition_is_not_too_large(measured: Measured):
    cell = measured.desk.recorder.states["sum", "ready"] = Watched(measured)
    for at, key, state in (
        (0, "sum-1", "ready"),
        (1, "sum-2", "ready"),
        (3, "sum-1", "memory"),
        (4, "sum-2", "memory"),
    ):
        cell.at = at
        measured.desk.move(at, **{key: state})
    assert cell.seen == sorted(cell.seen)
    assert max(cell.seen) == 6
    assert measured.states(9)["sum", "ready"] == 6


def test_the_oldest_task_of_each_state(measured: Measured):
    desk = measured.desk
    desk.wait(0, "stuck-1", "x", x="fetch")
    desk.move(1, **{"sum-1": "ready"})
    desk.move(4, **{"sum-2": "ready"})
    desk.move(5, **{"sum-1": "executing"})
    oldest = measured.read(names.METRIC_TASK_OLDEST, 9, names.STATE)
    assert oldest == {("waiting",): 9, ("ready",): 5, ("executing",): 4}
    desk.move(10, **{"sum-1": "memory", "sum-2": "released"})
    assert measured.read(names.METRIC_TASK_OLDEST, 11, names.STATE) == {("waiting",): 11}


# --- prefixes ------------------------------------------------------------------------------------------------------------


def test_past_max_prefixes_the_rest_counts_as_other():
    measured = Measured(max_prefixes=2)
    for i, prefix in enumerate(("a", "b", "c", "d")):
        measured.desk.move(i, **{f"{prefix}-1": "ready"})
    assert measured.states(10) == {("a", "ready"): 10, ("b", "ready"): 9, ("other", "ready"): 8 + 7}
    assert measured.states(10, entered=True)["other", "ready"] == 2


def fetched(measured: Measured) -> None:
    """`sum` and `mean` each wait for one key; then a replica comes that no task waits for."""
    desk = measured.desk
    for at, task, key in ((0, "sum-1", "x"), (5, "mean-1", "y")):
        desk.wait(at, task, key, **{key: "flight"})
        desk.end(at + 3, desk.begin(at, "a", key), **{key: "memory", task: "ready"})
        desk.move(at + 4, **{task: "released"})
    desk.move(10, z="flight")
    desk.end(12, desk.begin(10, "a", "z"), z="memory")


def test_activities_are_told_without_prefixes(measured: Measured):
    fetched(measured)
    assert measured.read(names.METRIC_WAIT_TIME, 20, names.ACTIVITY) == {("network",): 6}
    assert measured.read(names.METRIC_FETCH_TIME, 20, names.ACTIVITY) == {("network",): 8}
    assert all(names.TASK_PREFIX not in point.attributes for point in points(measured.reader, names.METRIC_WAIT_TIME))


def test_metrics_by_prefix_tell_activities_by_the_prefix_of_the_dependent():
    measured = Measured(metrics_by_prefix=True)
    fetched(measured)
    by = (names.TASK_PREFIX, names.ACTIVITY)
    assert measured.read(names.METRIC_WAIT_TIME, 20, *by) == {("sum", "network"): 3, ("mean", "network"): 3}
    assert measured.read(names.METRIC_FETCH_TIME, 20, *by) == {
        ("sum", "network"): 3,
        ("mean", "network"): 3,
        (names.REPLICA, "network"): 2,
    }


def test_every_series_names_its_worker(measured: Measured):
    fetched(measured)
    data = measured.reader.get_metrics_data()
    assert data is not None
    found = [p for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics for p in m.data.data_points]
    assert found
    for point in found:
        assert point.attributes is not None
        assert point.attributes[names.WORKER_ADDRESS] == "tcp://me"
        assert point.attributes[names.WORKER_NAME] == "me"


# --- real clusters -------------------------------------------------------------------------------------------------------


@pytest.fixture
def reader(live: Live) -> Iterator[InMemoryMetricReader]:
    """What us, switched on, tell a provider."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    live.again(meter_provider=provider)
    yield reader
    provider.shutdown()


class Kept(InMemoryMetricReader):
    """Keeps what was told when it was last flushed."""

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        self.last = {metric: points(self, metric) for metric in (names.METRIC_STATE_ENTERED, names.METRIC_EXECUTE_TIME)}
        return True


def test_a_worker_that_closes_exports_its_last_sums_and_then_no_series(live: Live):
    reader = Kept()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    live.again(meter_provider=provider)

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, a: Worker):
        assert await c.gather([c.submit(hold, name="h", seconds=0.01, key=f"hold-{i}") for i in range(5)]) == [1] * 5

    scenario()
    entered = {
        (p.attributes[names.TASK_PREFIX], p.attributes[names.STATE]): p.value
        for p in reader.last[names.METRIC_STATE_ENTERED]
    }
    assert entered["hold", "executing"] == entered["hold", "memory"] == 5
    assert sum(p.value for p in reader.last[names.METRIC_EXECUTE_TIME]) > 5 * 0.01
    assert points(reader, names.METRIC_STATE_ENTERED) == []
    provider.shutdown()


def test_an_exit_exports_the_last_sums_of_workers_that_nobody_closed(live: Live, reader: InMemoryMetricReader):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, a: Worker):
        await c.submit(use, key="use-1")
        live.runtime._endings._close()  # what the exit of the process calls, before it shuts the provider down
        found.update(p.attributes[names.STATE] for p in points(reader, names.METRIC_STATE_ENTERED))

    found: set[str] = set()
    scenario()
    assert found >= {"executing", "memory"}


def test_a_fetch_is_an_exemplar_that_leads_to_its_trace(live: Live, reader: InMemoryMetricReader):
    @cluster()
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
        await c.submit(use, x, key="use-1", workers=[b.address])
        told.extend(points(reader, names.METRIC_FETCH_DURATION))

    told: list[Any] = []
    scenario()
    (point,) = told
    assert point.count == 1
    assert point.attributes[names.OUTCOME] == "success"
    (exemplar,) = point.exemplars
    (fetch,) = [s for s in live.spans() if s.operation == names.FETCH]
    assert format_trace_id(exemplar.trace_id) == fetch.trace_id
    assert f"{exemplar.span_id:016x}" == fetch.span_id
    assert exemplar.value == pytest.approx((fetch.end - fetch.start) / 1e9, abs=0.05)


# --- names ---------------------------------------------------------------------------------------------------------------

METRICS = {name: value for name, value in vars(names).items() if name.startswith("METRIC_")}
UNITS = r"(_(seconds|bytes|time|total|maximum|median|count|bucket|sum))*$"


def prometheus_names_of_dask() -> set[str]:
    """Read in its sources: prometheus_client need not be there."""
    spec = importlib.util.find_spec("distributed")
    assert spec is not None
    assert spec.submodule_search_locations
    found = set()
    for kind in ("worker", "scheduler"):
        for path in (Path(spec.submodule_search_locations[0]) / "http" / kind / "prometheus").glob("*.py"):
            text = path.read_text()
            subsystem = re.search(r'self\.subsystem = "(\w+)"', text)
            found |= {
                f"dask_{subsystem[1] if subsystem else kind}_{name}"
                for name in re.findall(r'build_name\(\s*"(\w+)"', text)
            }
    return found


def test_no_metric_has_a_name_that_dask_exports():
    dask = {re.sub(UNITS, "", name) for name in prometheus_names_of_dask()}
    assert {"dask_worker_tasks", "dask_worker_spill", "dask_scheduler_tasks"} <= dask
    ours = {re.sub(UNITS, "", value.replace(".", "_")) for value in METRICS.values()}
    assert len(METRICS) == 19
    assert not ours & dask
