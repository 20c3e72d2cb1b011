"""What a real Collector shows Prometheus is what Dask itself counted: states, transfers, spilling, within 2 %."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import requests
from distributed import Client, wait

from tests.docs import blocks
from tests.faults.tools import hold, slow, use
from tests.processes import Programs, eventually
from tests.services import ROOT, ends_with_us, free_endpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services import Collector

pytestmark = [pytest.mark.services, pytest.mark.slow]

Labels = frozenset[tuple[str, str]]
LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
WORKER = {
    "PYTHONPATH": str(ROOT),
    "OTEL_METRIC_EXPORT_INTERVAL": "500",
    "OTEL_LOGS_EXPORTER": "none",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "0.5",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False",
}
LEAST = 0.1  # seconds: what Dask counts less of is not compared
BLOCK = 8_000_000  # bytes; two's memory keeps six
HOLDS, FETCHES = 6, 5
SCRAPE = {"job_name": "dask", "honor_labels": True, "scrape_timeout": "250ms"}


@dataclass(frozen=True)
class Page:
    """The series that the Collector shows."""

    series: dict[tuple[str, Labels], float]

    def by(self, name: str, *labels: str, **only: str) -> dict[tuple[str, ...], float]:
        """Sums by these labels, of the series that have those."""
        found: dict[tuple[str, ...], float] = {}
        for (metric, held), value in self.series.items():
            about = dict(held)
            if metric == name and all(about.get(label) == value for label, value in only.items()):
                key = tuple(about.get(label, "") for label in labels)
                found[key] = found.get(key, 0.0) + value
        return found


def page(collector: Collector) -> Page:
    text = requests.get(collector.prometheus_url, timeout=10).text
    matches = (LINE.match(line) for line in text.splitlines() if not line.startswith("#"))
    return Page(
        {
            (found[1], frozenset(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))): float(found[3])
            for found in matches
            if found
        }
    )


def counters(dask_worker: Any) -> dict[str, Any]:
    """What Dask itself counted."""
    state = dask_worker.state
    return {
        "states": dict(state.task_counter.cumulative_elapsed(by_prefix=True)),
        "tasks": len(state.tasks),
        "spill": dict(dask_worker.data.cumulative_metrics),
        "fetches": state.transfer_incoming_count_total,
        "sent": dask_worker.transfer_outgoing_bytes_total,
    }


def work(client: Client, at: dict[str, str], run: int) -> None:
    """`one` is kept busy, and waits for values of `two`, which has to spill and read back."""

    def submit(where: str, function: Any, *args: Any, key: str, **options: Any) -> Any:
        return client.submit(function, *args, key=f"{key}-{run}", workers=[at[where]], **options)

    wait([submit("one", hold, name="h", seconds=0.3, key=f"hold-{i}") for i in range(HOLDS)], timeout=60)
    options = {"pickling": 0.2, "nbytes": 100_000}
    made = [submit("two", slow, name=f"s{i}", key=f"slow-{i}", **options) for i in range(FETCHES)]
    wait(made, timeout=60)
    wait([submit("one", use, x, key=f"use-{i}") for i, x in enumerate(made)], timeout=60)
    options = {"pickling": 0.05, "unpickling": 0.05, "nbytes": BLOCK}
    blocks = [submit("two", slow, name=f"b{i}", key=f"block-{i}", **options) for i in range(12)]
    wait(blocks, timeout=60)
    wait([submit("two", use, x, key=f"read-{i}") for i, x in enumerate(blocks)], timeout=60)


@dataclass
class Cluster:
    client: Client
    at: dict[str, str]
    collector: Collector
    runs: int = 0

    def work(self) -> dict[str, dict[str, Any]]:
        """Afterwards nothing grows any more, and all is exported. What Dask counted until then, by worker."""
        self.runs += 1
        work(self.client, self.at, self.runs)
        eventually(lambda: not any(w["tasks"] for w in self.client.run(counters).values()), "tasks are left")
        time.sleep(2.0)  # three exports
        found = self.client.run(counters)
        return {name: found[address] for name, address in self.at.items()}


@pytest.fixture(scope="module")
def cluster(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    programs = Programs(tmp_path_factory.mktemp("prometheus"))
    try:
        scheduler = programs.scheduler()
        for name in ("one", "two"):
            options = ("--no-nanny", "--memory-limit", "100MB", "--local-directory", str(programs.folder))
            programs.worker(scheduler, name, *options, endpoint=f"http://{collector.grpc}", **WORKER)
        with Client(scheduler.address) as client:
            client.wait_for_workers(2, timeout=60)
            workers = client.scheduler_info(n_workers=-1)["workers"]
            yield Cluster(client, {str(w["name"]): address for address, w in workers.items()}, collector)
    finally:
        programs.end()


@dataclass(frozen=True)
class Told:
    dask: dict[str, dict[str, Any]]  # by worker
    page: Page
    before: dict[str, dict[str, Any]]
    ask: Callable[[str], dict[tuple[str, ...], float]] | None  # PromQL over the second run -> by labels, sorted by name


@pytest.fixture(scope="module")
def told(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """The work is done twice: rates need series that exist."""
    with prometheus(cluster.collector, tmp_path_factory.mktemp("tsdb")) as ask:
        before, began = cluster.work(), time.time()
        dask = cluster.work()
        window = f"[{int(1000 * (time.time() - began)) + 1000}ms]"  # from before it, when nothing grew
        in_window = None if ask is None else lambda promql: ask(promql.replace("[5m]", window))
        yield Told(dask, page(cluster.collector), before, in_window)


@contextmanager
def prometheus(collector: Collector, folder: Path) -> Iterator[Callable[[str], dict[tuple[str, ...], float]] | None]:
    """A real Prometheus that reads the Collector's page, where there is one."""
    binary = shutil.which("prometheus")
    if binary is None:
        yield None
        return
    (address,) = free_endpoints(1)
    target = collector.prometheus_url.removeprefix("http://").removesuffix("/metrics")
    config = {
        "global": {"scrape_interval": "250ms"},
        "scrape_configs": [SCRAPE | {"static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    options = [f"--storage.tsdb.path={folder}", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*ends_with_us(), binary, f"--config.file={folder / 'prometheus.yml'}", *options], stdout=log, stderr=log
        )

    def ask(promql: str) -> dict[tuple[str, ...], float]:
        answer = requests.get(f"http://{address}/api/v1/query", params={"query": promql}, timeout=10).json()
        assert answer["status"] == "success", answer
        return {
            tuple(value for _, value in sorted(one["metric"].items())): float(one["value"][1])
            for one in answer["data"]["result"]
        }

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(20)


def assert_within(ours: float, dasks: float, what: object) -> None:
    print(f"{what}: {ours:.6g}, Dask {dasks:.6g}, {(ours / dasks - 1):+.3%}")
    assert ours == pytest.approx(dasks, rel=0.02), what


@pytest.mark.parametrize("worker", ["one", "two"])
def test_seconds_in_each_state(told: Told, worker: str):
    ours = told.page.by(
        "dask_task_state_time_seconds_total", "dask_task_prefix", "dask_task_state", dask_worker_name=worker
    )
    dasks = {key: value for key, value in told.dask[worker]["states"].items() if value > LEAST and key[1] != "released"}
    assert {state for _, state in dasks} >= (
        {"ready", "executing", "flight", "waiting"} if worker == "one" else {"memory"}
    )
    for key, seconds in dasks.items():
        assert_within(ours[key], seconds, (worker, *key))


def test_bytes_transferred(told: Told):
    ((fetched,),) = [told.page.by("dask_fetch_io_bytes_total", dask_worker_name="one").values()]
    assert_within(fetched, told.dask["two"]["sent"], "bytes that one fetched from two")
    ((fetches,),) = [told.page.by("dask_fetch_duration_seconds_count", dask_worker_name="one").values()]
    assert fetches == told.dask["one"]["fetches"]


@pytest.mark.parametrize(
    ("activity", "labels"),
    [
        ("spill.write", ["disk-write"]),
        ("spill.serialize", ["serialize", "compress"]),
        ("unspill.read", ["disk-read"]),
        ("unspill.deserialize", ["deserialize", "decompress"]),
    ],
)
def test_spilling(told: Told, activity: str, labels: list[str]):
    dasks = told.dask["two"]["spill"]
    only = {"dask_worker_name": "two", "dask_activity": activity}
    seconds = sum(dasks.get((label, "seconds"), 0.0) for label in labels)
    ((ours,),) = [told.page.by("dask_spill_time_seconds_total", **only).values()]
    print(f"{activity}: {ours:.6f} s, Dask {seconds:.6f} s, {ours / seconds - 1:+.3%}")
    assert ours == pytest.approx(seconds, rel=0.02, abs=0.01)  # 0.4 ms for each of its 24 disk accesses
    if (labels[0], "bytes") in dasks:
        ((written,),) = [told.page.by("dask_spill_io_bytes_total", **only).values()]
        assert_within(written, dasks[labels[0], "bytes"], f"{activity}, bytes")


def test_the_number_of_series_of_a_worker(told: Told):
    """As docs/metrics.md says: up to 26 a prefix, and 175 besides."""
    for worker in ("one", "two"):
        ours = [(name, dict(held)) for name, held in told.page.series if ("dask_worker_name", worker) in held]
        by_prefix = [held["dask_task_prefix"] for _, held in ours if "dask_task_prefix" in held]
        print(f"{worker}: {len(ours)} series, {len(by_prefix)} of {len(set(by_prefix))} prefixes")
        assert len(by_prefix) <= 26 * len(set(by_prefix))
        assert len(ours) - len(by_prefix) <= 175


# --- averages ------------------------------------------------------------------------------------------------------------

AVERAGES = ("ready queue", "every state", "tasks in a state", "gather", "gather by activity")
QUERIES = dict(
    zip(
        AVERAGES,
        (block.text for block in blocks(ROOT / "docs" / "metrics.md") if block.language == "promql"),
        strict=True,
    )
)


def asked(told: Told, name: str) -> dict[tuple[str, ...], float]:
    """What the documented query answers for the second run."""
    if told.ask is None:
        required = os.environ.get("OTEL_WORKER_REQUIRE", "") not in ("", "0")
        (pytest.fail if required else pytest.skip)(
            "there is no prometheus on PATH; scripts/install-prometheus gets one"
        )
    return told.ask(QUERIES[name])


def grown(told: Told, worker: str, prefix: str, state: str) -> float:
    """Seconds of the second run, as Dask counted them."""
    key = prefix, state
    return float(told.dask[worker]["states"][key] - told.before[worker]["states"][key])


def test_the_average_time_in_the_ready_queue(told: Told):
    seen = asked(told, "ready queue")
    assert_within(seen["hold", "one"], grown(told, "one", "hold", "ready") / HOLDS, "ready, a task")


def test_the_average_time_in_each_state(told: Told):
    seen = asked(told, "every state")
    assert_within(seen["hold", "executing"], grown(told, "one", "hold", "executing") / HOLDS, "executing, a task")
    assert_within(seen["use", "waiting"], grown(told, "one", "use", "waiting") / FETCHES, "waiting, a task")


def test_the_tasks_in_a_state(told: Told):
    seen = asked(told, "tasks in a state")
    assert_within(
        seen["ready", "one"] / seen["executing", "one"],
        sum(grown(told, "one", prefix, "ready") for prefix in ("hold", "use"))
        / sum(grown(told, "one", prefix, "executing") for prefix in ("hold", "use")),
        "tasks ready a task executing",
    )


def test_the_average_gather_and_what_it_went_to(told: Told):
    (average,) = [seconds for (worker,), seconds in asked(told, "gather").items() if worker == "one"]
    parts = {key: seconds for key, seconds in asked(told, "gather by activity").items() if "one" in key}
    assert_within(sum(parts.values()), average, "activities of a gather")
    flight = grown(told, "one", "slow", "flight") / FETCHES
    print(f"gather {average:.4f} s, in flight a key {flight:.4f} s, {parts}")
    assert parts["peer.serialize", "one"] == pytest.approx(max(parts.values()))
