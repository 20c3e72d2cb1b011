"""P2P shuffles and rechunks: what tasks do in them, and the batches of shards between workers, on real clusters and at a desk."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections import defaultdict
from types import MethodType
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed.shuffle._disk import DiskShardsBuffer
from distributed.shuffle._worker_plugin import ShuffleWorkerPlugin
from distributed.utils_test import gen_cluster
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_worker import names, waits
from otel_worker.facts import Task
from otel_worker.shuffle_facts import Step, Transport, activity
from otel_worker.trees import tree
from tests.desk import SECOND, Desk, ns
from tests.test_metrics import points

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Client, Scheduler, Worker

    from otel_worker.traces import Span
    from tests.live import Live

cluster = gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)

EVERYTHING = {"span_budget": 10_000.0, "span_burst": 10_000.0, "min_phase": 0.0}
PLAIN_RECEIVE = ShuffleWorkerPlugin.shuffle_receive  # Dask's own: the fixture `live` patches later


async def rechunk(c: Client) -> None:
    """Four rows become four columns."""
    x = da.ones((40, 40), chunks=(10, 40)).rechunk((40, 10), method="p2p", block_size_limit=3200)
    assert await c.compute((x + 1).sum()) == 3200


async def shuffle(c: Client) -> None:
    dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    df = dd.from_pandas(pd.DataFrame({"x": np.arange(1000), "y": np.arange(1000) % 7}), npartitions=3)
    with dask.config.set({"dataframe.shuffle.method": "p2p", "dataframe.convert-string": False}):
        assert await c.compute(df.shuffle("y").x.sum()) == 499_500


def paths(live: Live) -> set[str]:
    """From the root to each span of a shuffle, as text; how many batches there are is up to chance."""
    found: set[str] = set()
    above: list[str] = []
    for line in tree(live.spans()):
        depth = (len(line) - len(line.lstrip())) // 2
        above[depth:] = [line.strip()]
        if "shuffle" in above[-1].partition(" ")[0]:
            found.add(" / ".join(["compute" if above[0].startswith("compute ") else above[0], *above[1:]]))
    return found


def of(live: Live, name: str) -> list[Span]:
    return [span for span in live.spans() if span.name == name]


# --- real clusters -------------------------------------------------------------------------------------------------------

BETWEEN = {"shuffle.send", "shuffle.send / shuffle_receive", "shuffle.write", "shuffle.flush"}


def test_a_shuffle_of_a_dataframe(live: Live):
    live.again(**EVERYTHING)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await shuffle(c)

    scenario()
    assert paths(live) == {
        "compute / task shuffle-transfer / execute / run / shuffle.transfer",
        "compute / task shuffle-barrier / execute / run / shuffle.barrier",
        "compute / task p2pshuffle / execute / run / shuffle.unpack",
        *(f"compute / {path}" for path in BETWEEN),
    }
    assert_sound(live, "shuffle-transfer", nparts=3)


def test_a_rechunk(live: Live):
    live.again(**EVERYTHING)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await rechunk(c)

    scenario()
    assert paths(live) == {
        "compute / task ones_like-rechunk-transfer / execute / run / shuffle.transfer",
        "compute / task shuffle-barrier / execute / run / shuffle.barrier",
        "compute / task rechunk-sum / execute / run / shuffle.unpack",
        *(f"compute / {path}" for path in BETWEEN),
    }
    assert_sound(live, "ones_like-rechunk-transfer", nparts=4)


def assert_sound(live: Live, prefix: str, nparts: int) -> None:
    """Every transfer is there; what was sent was received, with links to the tasks that brought it."""
    live.check()
    spans = {span.ref: span for span in live.spans()}
    transfers = of(live, "shuffle.transfer")
    assert len({span.attributes["dask.shuffle.partition"] for span in transfers}) == len(transfers) == nparts
    for span in live.spans():
        if span.name.startswith("shuffle"):
            parts = sum(v for k, v in span.attributes.items() if k.startswith("dask.shuffle.time."))
            assert parts == pytest.approx(span.duration / 1e9, abs=2e-6)
    sends, receives = of(live, "shuffle.send"), of(live, "shuffle_receive")
    assert {span.kind for span in sends} == {"client"}
    assert {span.kind for span in receives} == {"server"}
    assert len(sends) == len(receives)
    for receive in receives:
        send = spans[receive.parent_ref]
        assert send.attributes["dask.peer.address"] == receive.attributes["dask.worker.address"]
        assert receive.attributes["dask.peer.address"] == send.attributes["dask.worker.address"]
        assert send.attributes["dask.peer.instrumented"] is True
        assert send.attributes["dask.shuffle.nbytes"] > 0
        assert receive.attributes["dask.shuffle.nbytes"] > 0
        assert {spans[link.ref].name for link in send.links} == {f"task {prefix}"}
        assert len(send.links) == send.attributes["dask.shuffle.partitions"]


@pytest.fixture
def reader(live: Live) -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    live.again(meter_provider=provider, span_budget=0.0, span_burst=0.0)
    yield reader
    provider.shutdown()


@pytest.mark.parametrize("work", [rechunk, shuffle])
def test_metrics_equal_dasks_own_and_need_no_spans(live: Live, reader: InMemoryMetricReader, work: Any):
    dasks: dict[tuple[str, str], float] = defaultdict(float)
    ours: dict[tuple[str, str], float] = defaultdict(float)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await work(c)
        for worker in (a, b):
            for name, value in worker.digests_total.items():
                if isinstance(name, tuple) and name[0] == "p2p":
                    _, _, where, *label, unit = name
                    dasks[f"{activity(where)}.{activity(tuple(label))}", unit] += value
        for metric, unit in ((names.METRIC_SHUFFLE_TIME, "seconds"), (names.METRIC_SHUFFLE_IO, "bytes")):
            for point in points(reader, metric):
                ours[point.attributes[names.ACTIVITY], unit] += point.value

    scenario()
    dasks = {name: value for name, value in dasks.items() if name[1] != "count" and value}
    assert {name[0].partition(".")[0] for name in dasks} == {"foreground", "background_comms", "background_disk"}
    assert {name: ours.get(name, 0) for name in dasks} == pytest.approx(dasks, rel=1e-6, abs=1e-6)
    own = {name for name, _ in ours} - {name for name, _ in dasks}
    assert own >= {"receive", "receive.other", "foreground.join", "foreground.loop", "foreground.inputs_done"}
    assert paths(live) == set()


def test_a_peer_that_did_not_announce_itself_is_sent_no_key(live: Live):
    """Its handler is Dask's own, which refuses what it does not know: an error there would fail the shuffle."""
    live.again(**EVERYTHING)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        b.handlers["shuffle_receive"] = MethodType(PLAIN_RECEIVE, b.extensions["shuffle"])
        await rechunk(c)
        addresses.update(plain=b.address, ours=a.address)

    addresses: dict[str, str] = {}
    scenario()
    live.check()
    sends = of(live, "shuffle.send")
    assert {(s.attributes["dask.peer.address"], s.attributes["dask.peer.instrumented"]) for s in sends} == {
        (addresses["plain"], False),
        (addresses["ours"], True),
    }
    assert {s.attributes["dask.worker.address"] for s in of(live, "shuffle_receive")} == {addresses["ours"]}


def test_switched_off_while_connections_are_open(live: Live):
    """Who has announced itself strips our key for as long as it lives."""

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await rechunk(c)
        handler = b.handlers["shuffle_receive"]
        live.switch.off()
        before = len(live.switch.exported.finished)
        await shuffle(c)
        answer = await handler(shuffle_id="none", run_id=1, data=b"", otel_worker={"carrier": {}})
        assert answer["status"] == "error"  # Dask's own complaint about the shuffle, and not a TypeError
        assert len(live.switch.exported.finished) == before

    scenario()


def test_a_full_disk_fails_the_shuffle_and_says_so(live: Live, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DiskShardsBuffer, "_write_frames", full)
    live.again(**EVERYTHING)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        with pytest.raises(Exception, match=r"P2P|disk"):
            await rechunk(c)

    scenario()
    live.check()
    failed = [span for span in live.spans() if span.name.startswith("shuffle") and span.status == "error"]
    assert {span.name for span in failed} >= {"shuffle.write"}
    kinds = {span.attributes["error.type"].rpartition(".")[2] for span in failed}
    assert "P2POutOfDiskError" in kinds
    assert kinds <= {"P2POutOfDiskError", "P2PConsistencyError"}  # who comes later finds the run gone


def test_names_that_were_imported_while_we_were_on_are_dasks_own_again():
    """`distributed.worker` and the scheduler import `send_recv` by name from a module that is patched already."""
    program = """
from otel_worker import DaskInstrumentor
DaskInstrumentor().instrument()
import distributed.core, distributed.worker, distributed.scheduler
holders = distributed.core, distributed.worker, distributed.scheduler
assert len({holder.send_recv for holder in holders}) == 3
assert len({holder.send_recv.__wrapped__ for holder in holders}) == 1
DaskInstrumentor().uninstrument()
assert len({holder.send_recv for holder in holders}) == 1
assert not hasattr(distributed.core.send_recv, "__wrapped__")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# --- at a desk ---------------------------------------------------------------------------------------------------------------


def parts(record: Step | Transport) -> dict[str, float]:
    found = record.parts()
    assert sum(found.values()) == record.ended - record.begun
    return {name: part / SECOND for name, part in found.items()}


def test_the_parts_of_a_transfer():
    step = Step(names.SHUFFLE_TRANSFER, "s", 0, ns(0))
    step.joined = ns(1)
    step.metered = [
        ("p2p-shard-partition-cpu", 0.5, "seconds"),
        ("p2p-shards", 80, "bytes"),
        ("p2p-shard-partition-noncpu", 0.25, "seconds"),
        ("p2p-comms-limiter", 1, "count"),
        ("p2p-comms-limiter", 2.0, "seconds"),
    ]
    step.ended = ns(4)
    assert parts(step) == {
        "join": 1,
        "shard_partition_cpu": 0.5,
        "shard_partition_noncpu": 0.25,
        "comms_limiter": 2,
        "loop": 0.25,
    }
    assert step.nbytes == 80
    assert {name: part / SECOND for name, part in step.waits().items()} == {
        "run.shuffle.join": 1,
        "run.shuffle.comms_limiter": 2,
        "run.shuffle.loop": 0.25,
    }


def test_the_parts_of_an_unpack():
    step = Step(names.SHUFFLE_UNPACK, "s", 0, ns(0))
    step.flush_begun, step.flush_ended, step.ended = ns(1), ns(3), ns(4)
    step.metered = [("p2p-get-output-cpu", 0.75, "seconds"), ("p2p-get-output-noncpu", 0.25, "seconds")]
    assert parts(step) == {"join": 1, "flush": 2, "get_output_cpu": 0.75, "get_output_noncpu": 0.25}


def test_the_parts_of_a_barrier():
    step = Step(names.SHUFFLE_BARRIER, "s", None, ns(0))
    step.joined, step.ended = ns(1), ns(4)
    assert parts(step) == {"join": 1, "inputs_done": 3}


def test_a_step_that_never_joined():
    step = Step(names.SHUFFLE_UNPACK, "s", 0, ns(0))
    step.ended = ns(4)
    assert parts(step) == {"join": 4}


def test_what_dask_meters_is_bounded_by_the_step():
    step = Step(names.SHUFFLE_TRANSFER, "s", 0, ns(0))
    step.joined, step.ended = ns(1), ns(2)
    step.metered = [("p2p-shard-partition-cpu", 3.0, "seconds"), ("p2p-comms-limiter", 3.0, "seconds")]
    assert parts(step) == {"join": 1, "shard_partition_cpu": 1}


def test_the_parts_of_a_batch():
    record = Transport(names.SHUFFLE_SEND, "s", None, Desk().recorder, ns(0))
    record.meter(("compress", "lz4"), 0.5, "seconds")
    record.meter("send", 1.0, "seconds")
    record.meter("process", 100, "bytes")
    record.ended = ns(2)
    assert parts(record) == {"compress.lz4": 0.5, "send": 1, "other": 0.5}


def test_a_step_that_is_open_when_its_task_ends_ends_with_it():
    desk = Desk()
    desk.move(0, **{"t-1": "executing"})
    task = desk.recorder.tasks["t-1"]
    task.loading = task.submitted = task.run_begun = ns(0)
    step = Step(names.SHUFFLE_UNPACK, "s", 0, ns(1))
    step.flush_begun = ns(2)
    task.steps = [step]
    desk.recorder.close(ns(5))
    assert parts(step) == {"join": 1, "flush": 3}
    found = {name: part / SECOND for name, part in (task.execute_parts or {}).items() if part}
    assert found == {"run.shuffle.join": 1, "run.shuffle.flush": 3, "run.noncpu": 1}


def test_an_execution_tells_what_its_steps_waited_for():
    desk = Desk()
    desk.move(0, **{"t-1": "ready"})
    desk.move(1, **{"t-1": "executing"})
    task = desk.recorder.tasks["t-1"]
    task.loading, task.submitted, task.run_begun = ns(1), ns(1), ns(2)
    step = Step(names.SHUFFLE_UNPACK, "s", 0, ns(2))
    step.flush_begun, step.flush_ended, step.ended = ns(3), ns(6), ns(7)
    step.metered = [("p2p-get-output-cpu", 1.0, "seconds")]
    task.steps = [step]
    task.run_cpu, task.run_ended, task.taken = SECOND, ns(8), ns(8)
    desk.move(9, **{"t-1": "memory"})
    assert task.execute_parts == waits.execute_sums(task, ns(9))
    assert {name: part / SECOND for name, part in (task.execute_parts or {}).items() if part} == {
        "executor_queue": 1,
        "run.cpu": 1,
        "run.shuffle.join": 1,
        "run.shuffle.flush": 3,
        "run.noncpu": 1,
        "store": 1,
    }
    assert sum((task.execute_parts or {}).values()) == 8 * SECOND
    assert isinstance(task, Task)
