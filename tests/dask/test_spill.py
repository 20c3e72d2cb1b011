"""Values that do not fit: what goes to disk, what comes back, and what happens when it can't."""

import asyncio
import errno
import os
import pickle
from pathlib import Path

import pytest
import zict
from distributed import Client, Nanny, Scheduler, Worker, wait
from distributed.compatibility import LINUX
from distributed.core import Status
from distributed.spill import SpillBuffer
from distributed.utils_test import async_poll_for, captured_logger, gen_cluster, inc


def psize(buffer):
    """Bytes of the files on disk."""
    return sum(file.stat().st_size for file in Path(buffer._slow_uncached.d.directory).iterdir())


class Unpicklable:
    def __init__(self, size):
        self.size = size

    def __sizeof__(self):
        return self.size

    def __reduce__(self):
        raise TypeError("stays where it is")


class FailsToLoad:
    """Pickles well and raises when it is read back."""

    def __init__(self, size):
        self.size = size

    def __sizeof__(self):
        return self.size

    def __getstate__(self):
        return {"size": self.size}

    def __setstate__(self, state):
        raise ValueError("broken on disk")


class WeakReferenced:
    def __init__(self, size):
        self.size = size

    def __sizeof__(self):
        return self.size


# --- the buffer alone ------------------------------------------------------------------------------------------------


def test_small_values_stay_in_memory(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=10_000)
    buf["a"], buf["b"] = b"x" * 1000, b"y" * 1000
    assert set(buf.memory) == {"a", "b"}
    assert not buf.disk
    assert buf.spilled_total == (0, 0)


def test_the_oldest_goes_first(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=2500)
    for key in "abc":
        buf[key] = key.encode() * 1000
    assert set(buf.memory) == {"b", "c"}
    assert set(buf.disk) == {"a"}
    assert buf["a"] == b"a" * 1000
    assert set(buf.disk) == {"b"}
    assert set(buf) == {"a", "b", "c"}


def test_a_read_refreshes(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=2500)
    buf["a"], buf["b"] = b"a" * 1000, b"b" * 1000
    assert buf["a"]
    buf["c"] = b"c" * 1000
    assert set(buf.disk) == {"b"}


def test_larger_than_the_target_goes_straight_to_disk(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=500)
    buf["a"] = b"a" * 1000
    assert not buf.memory
    assert set(buf.disk) == {"a"}
    assert buf.spilled_total.memory == 1000
    assert buf.spilled_total.disk == psize(buf) > 1000


def test_overwriting_and_deleting(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=1500)
    buf["a"], buf["b"] = b"a" * 1000, b"b" * 1000
    assert set(buf.disk) == {"a"}
    buf["a"] = b"c" * 100
    assert buf["a"] == b"c" * 100
    assert "a" not in buf.disk
    del buf["a"]
    del buf["b"]
    assert len(buf) == 0
    assert buf.spilled_total == (0, 0)
    assert psize(buf) == 0


def test_evict_by_hand(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=10_000)
    buf["a"], buf["b"] = b"a" * 1000, b"b" * 2000
    assert buf.evict() == 1000
    assert set(buf.disk) == {"a"}
    assert buf.evict() == 2000
    assert not buf.memory


def test_max_spill(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=1500, max_spill=1500)
    buf["a"], buf["b"] = os.urandom(1000), os.urandom(1000)
    assert set(buf.disk) == {"a"}
    buf["c"] = os.urandom(1000)
    assert set(buf.disk) == {"a"}
    assert set(buf.memory) == {"b", "c"}
    assert buf.evict() == -1
    del buf["a"]
    assert buf.evict() == 1000


def test_an_old_value_that_does_not_pickle_stays_in_memory(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=1500)
    buf["bad"] = Unpicklable(1000)
    with captured_logger("distributed.spill") as log:
        buf["a"] = b"a" * 1000
    assert "Failed to pickle 'bad'" in log.getvalue()
    assert set(buf.memory) == {"bad", "a"}
    assert buf.logged_pickle_errors == {"bad"}
    with captured_logger("distributed.spill") as log:
        assert buf.evict() == -1
    assert not log.getvalue()


def test_a_huge_value_that_does_not_pickle_is_refused(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=500)
    with pytest.raises(TypeError, match="Failed to pickle 'bad'"):
        buf["bad"] = Unpicklable(1000)
    assert "bad" not in buf
    assert not buf.logged_pickle_errors


def test_a_full_disk_keeps_values_in_memory(tmp_path, monkeypatch):
    buf = SpillBuffer(str(tmp_path), target=1500)
    buf["a"] = b"a" * 1000

    def full(*_args):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(zict.File, "__setitem__", full)
    buf["b"] = b"b" * 1000
    assert set(buf.memory) == {"a", "b"}


def test_a_value_that_does_not_load(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=500)
    buf["a"] = FailsToLoad(1000)
    with pytest.raises(Exception, match="broken on disk"):
        buf["a"]
    assert set(buf.disk) == {"a"}
    del buf["a"]


def test_who_is_referenced_elsewhere_is_not_read_twice(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=1500)
    value = WeakReferenced(1000)
    buf["a"] = value
    buf.evict()
    assert buf["a"] is value


@pytest.mark.parametrize("key", ["a/b", ("x", 0), 7, "../outside", "line\nbreak", "ünï", "k" * 40])
def test_any_key_spills(tmp_path, key):
    buf = SpillBuffer(str(tmp_path), target=500)
    buf[key] = b"v" * 1000
    assert key in buf.disk
    assert buf[key] == b"v" * 1000
    del buf[key]
    assert psize(buf) == 0


def test_the_buffer_counts(tmp_path):
    buf = SpillBuffer(str(tmp_path), target=1500)
    buf["a"], buf["b"] = os.urandom(1000), os.urandom(1000)
    assert buf["b"]
    assert buf["a"]
    counts = dict(buf.cumulative_metrics)
    assert counts["memory-read", "count"] == 1
    assert counts["disk-read", "count"] == 1
    assert counts["disk-write", "count"] == 2
    assert counts["disk-write", "bytes"] > 2000
    assert {label for label, unit in counts if unit == "seconds"} >= {"disk-read", "disk-write", "serialize"}


def test_pop_is_refused(tmp_path):
    with pytest.raises(NotImplementedError):
        SpillBuffer(str(tmp_path), target=500).pop("x", None)


# --- on workers --------------------------------------------------------------------------------------------------------

TARGET = {
    "distributed.worker.memory.target": 0.6,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
}
spilling = gen_cluster(
    client=True, nthreads=[("127.0.0.1", 1)] * 2, worker_kwargs={"memory_limit": 100_000}, config=TARGET
)


def blob(n):
    return os.urandom(n)


@spilling
async def test_results_are_spilled_and_gathered(c: Client, s: Scheduler, a: Worker, b: Worker):
    futures = [c.submit(blob, 25_000, key=f"blob-{i}", workers=[a.address]) for i in range(5)]
    await wait(futures)
    assert len(a.data.memory) == 2
    assert len(a.data.disk) == 3
    assert [len(value) for value in await c.gather(futures)] == [25_000] * 5


@spilling
async def test_arguments_are_read_back(c: Client, s: Scheduler, a: Worker, b: Worker):
    futures = [c.submit(blob, 25_000, key=f"blob-{i}", workers=[a.address]) for i in range(4)]
    await wait(futures)
    assert await c.submit(len, futures[0], key="len", workers=[a.address]) == 25_000
    assert a.data.cumulative_metrics["disk-read", "count"] == 1


@spilling
async def test_a_peer_reads_back_what_is_asked_for(c: Client, s: Scheduler, a: Worker, b: Worker):
    futures = [c.submit(blob, 25_000, key=f"blob-{i}", workers=[a.address]) for i in range(4)]
    await wait(futures)
    lens = await c.gather([c.submit(len, f, key=f"len-{i}", workers=[b.address]) for i, f in enumerate(futures)])
    assert lens == [25_000] * 4
    assert b.data.disk


@spilling
async def test_released_keys_leave_the_disk(c: Client, s: Scheduler, a: Worker, b: Worker):
    futures = [c.submit(blob, 25_000, key=f"blob-{i}", workers=[a.address]) for i in range(5)]
    await wait(futures)
    del futures
    await async_poll_for(lambda: not a.data, timeout=10)
    assert psize(a.data) == 0


@spilling
async def test_a_result_that_does_not_pickle_fails_its_task(c: Client, s: Scheduler, a: Worker, b: Worker):
    future = c.submit(Unpicklable, 80_000, key="bad", workers=[a.address])
    await wait(future)
    assert future.status == "error"
    with pytest.raises(TypeError, match="pickle"):
        await future
    assert await c.submit(inc, 1, workers=[a.address]) == 2


@spilling
async def test_a_result_that_does_not_load_fails_its_dependent(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(FailsToLoad, 80_000, key="bad", workers=[a.address])
    await wait(x)
    y = c.submit(id, x, key="dependent", workers=[a.address])
    await wait(y)
    assert y.status == "error"
    with pytest.raises(Exception, match="broken on disk"):
        await y


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    worker_kwargs={"memory_limit": 100_000},
    config={**TARGET, "distributed.worker.memory.max-spill": 40_000},
)
async def test_max_spill_on_a_worker(c: Client, s: Scheduler, a: Worker):
    futures = [c.submit(blob, 25_000, key=f"blob-{i}") for i in range(6)]
    await wait(futures)
    assert len(a.data.disk) == 1
    assert len(a.data.memory) == 5
    assert {future.status for future in futures} == {"finished"}


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    worker_kwargs={"memory_limit": "1000 MB"},
    config={
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": 0.7,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.monitor-interval": "10ms",
    },
)
async def test_the_memory_monitor_spills(c: Client, s: Scheduler, a: Worker):
    a.monitor.get_process_memory = lambda: 800_000_000 if a.data.fast else 0
    x = c.submit(inc, 1, key="x")
    await wait(x)
    await async_poll_for(lambda: a.data.disk, timeout=10)
    assert set(a.data.disk) == {"x"}


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    worker_kwargs={"memory_limit": "1000 MB"},
    config={
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": 0.8,
        "distributed.worker.memory.monitor-interval": "10ms",
    },
)
async def test_the_memory_monitor_pauses_and_resumes(c: Client, s: Scheduler, a: Worker):
    memory = 900_000_000
    a.monitor.get_process_memory = lambda: memory
    await async_poll_for(lambda: a.status == Status.paused, timeout=10)
    future = c.submit(inc, 1, key="x", workers=[a.address], allow_other_workers=False)
    await asyncio.sleep(0.05)
    assert not future.done()
    memory = 0
    assert await future == 2
    assert a.status == Status.running


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], worker_kwargs={"data": dict})
async def test_any_mapping_holds_the_data(c: Client, s: Scheduler, a: Worker):
    assert type(a.data) is dict
    assert await c.submit(inc, 1, key="x") == 2


@pytest.mark.skipif(not LINUX, reason="spawns a process with a memory limit")
@gen_cluster(
    client=True, nthreads=[("127.0.0.1", 1)], Worker=Nanny, worker_kwargs={"memory_limit": "400 MiB"}, timeout=120
)
async def test_a_worker_process_spills_real_memory(c: Client, s: Scheduler, a: Nanny):
    futures = [c.submit(blob, 60 * 2**20, key=f"blob-{i}", pure=False) for i in range(6)]
    assert await c.gather([c.submit(len, f) for f in futures]) == [60 * 2**20] * 6
    spilled = await c.run(lambda dask_worker: len(dask_worker.data.disk))
    assert sum(spilled.values()) > 0


def test_pickles_of_the_helpers():
    """The helpers do what the tests above believe."""
    with pytest.raises(TypeError):
        pickle.dumps(Unpicklable(1))
    with pytest.raises(ValueError, match="broken"):
        pickle.loads(pickle.dumps(FailsToLoad(1)))
