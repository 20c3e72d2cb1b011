"""Spills that fail, that unspilling causes, that the memory monitor does, and who pays for them."""

from __future__ import annotations

import errno
import resource
from typing import TYPE_CHECKING, Any

import pytest
from distributed import wait
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_worker import names
from tests.faults.peer import peer_process
from tests.faults.test_loops import warm
from tests.faults.tools import (
    MEGABYTE,
    SPILLS,
    assert_near,
    below,
    calm,
    cluster,
    every,
    lasts,
    local,
    measured,
    one,
    shape,
    slow,
    sums,
    until,
    use,
)
from tests.test_metrics import points

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distributed import Client, Scheduler, Worker

    from tests.live import Live

pytestmark = pytest.mark.faults

HALF = 4 * MEGABYTE  # two of them exceed the target of 5 MB
WHOLE = 6 * MEGABYTE  # is written at once


class Sealed:
    """A value that can't be pickled."""

    def __init__(self, claims: int) -> None:
        self.claims = claims

    def __sizeof__(self) -> int:
        return self.claims

    def __reduce__(self) -> Any:
        raise LookupError("this value can't be pickled")


def sealed(*_: object, claims: int) -> Sealed:
    return Sealed(claims)


def small(workers: int = 1, **config: Any) -> Any:
    options = {f"distributed.worker.memory.{name.replace('_', '-')}": value for name, value in config.items()}
    return cluster(workers, {**SPILLS, **options}, worker_kwargs={"memory_limit": 10 * MEGABYTE})


@pytest.fixture
def told(live: Live) -> Iterator[dict[tuple[str, str], int]]:
    """How many values were spilled and read back, by outcome, at the end of the test's cluster."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    live.again(meter_provider=provider)
    found: dict[tuple[str, str], int] = {}

    def read() -> None:
        for point in points(reader, names.METRIC_SPILL_OPERATIONS):
            found[point.attributes[names.ACTIVITY], point.attributes[names.OUTCOME]] = point.value

    READERS[:] = [read]
    yield found
    provider.shutdown()


READERS: list[Any] = []


def test_a_value_that_does_not_pickle(live: Live, told: dict[tuple[str, str], int]):
    """It stays in memory, and so does the new one that it was to make room for."""

    @small()
    async def scenario(c: Client, s: Scheduler, b: Worker):
        old = c.submit(local(sealed), claims=HALF, key="sealed-1")
        await wait(old)
        new = c.submit(local(sealed), claims=HALF, key="fresh-1")
        await wait(new)
        READERS[0]()

    scenario()
    live.check()
    spill = below(live, one(live, "execute", "fresh"), "spill")
    assert (spill.status, spill.attributes["error.type"]) == ("error", "TypeError")  # Dask's own words
    assert spill.attributes["dask.outcome"] == "not_pickled"
    assert spill.attributes["dask.spill.cause"] == "store"
    assert told["spill", "not_pickled"] >= 1
    assert set(told) <= {("spill", "not_pickled")}


def test_a_result_that_is_too_large_for_memory_and_does_not_pickle(live: Live):
    """Dask fails its task; the span says why."""

    @small()
    async def scenario(c: Client, s: Scheduler, b: Worker):
        x = c.submit(local(sealed), claims=WHOLE, key="sealed-1")
        await wait(x)
        assert x.status == "error"

    scenario()
    live.check()
    task = one(live, "task sealed")
    assert (task.attributes["dask.outcome"], task.attributes["error.type"]) == (
        "error",
        "TypeError",
    )  # by which Dask says it
    (spill,) = every(live, "spill")
    assert spill.attributes["dask.outcome"] == "not_pickled"
    assert below(live, task, "run").status == "unset"


def test_more_than_may_be_spilled(live: Live, told: dict[tuple[str, str], int]):
    @small(max_spill=1000)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        old = c.submit(slow, name="x", nbytes=10_000, claims=HALF, key="slow-1")
        await wait(old)
        new = c.submit(slow, name="y", nbytes=10_000, claims=HALF, key="fresh-1")
        await wait(new)
        READERS[0]()

    scenario()
    live.check()
    spill = below(live, one(live, "execute", "fresh"), "spill")
    assert spill.attributes["dask.outcome"] == "max_spill"
    assert (spill.status, spill.attributes["error.type"]) == ("error", "distributed.spill.MaxSpillExceeded")
    assert set(told) == {("spill", "max_spill")}


def test_a_full_disk(live: Live, told: dict[tuple[str, str], int]):
    """The kernel refuses the file's growth."""

    @small()
    async def scenario(c: Client, s: Scheduler, b: Worker):
        old = c.submit(slow, name="x", nbytes=1 << 20, claims=HALF, key="slow-1")
        await wait(old)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        try:
            new = c.submit(slow, name="y", claims=HALF, key="fresh-1")
            await wait(new)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        READERS[0]()

    scenario()
    live.check()
    spill = below(live, one(live, "execute", "fresh"), "spill")
    assert (spill.attributes["dask.outcome"], spill.attributes["error.type"]) == ("disk_full", "OSError")
    assert set(told) == {("spill", "disk_full")}


def test_unspilling_arguments_spills_others(live: Live):
    """To read the one back, the other goes."""

    @small()
    async def scenario(c: Client, s: Scheduler, b: Worker):
        x = c.submit(slow, name="x", claims=HALF, key="slow-x")
        await wait(x)
        y = c.submit(slow, name="y", pickling=0.2, claims=HALF, key="slow-y")
        await wait(y)
        assert set(b.data.disk) == {"slow-x"}
        assert await c.submit(use, x, key="use-1") == 1

    scenario()
    live.check()
    execute = one(live, "execute", "use")
    spill = below(live, execute, "spill")
    assert spill.attributes["dask.spill.cause"] == "load"
    assert spill.attributes["dask.spill.key"] == "slow-y"
    assert spill.attributes["dask.outcome"] == "success"
    assert_near(lasts(spill), measured("y.pickling"))
    assert_near(sums(execute, "dask.execute.")["load.spill"], measured("y.pickling"))
    assert [line for line in shape(live, execute) if not line.startswith("    ")] == [
        "execute",
        "  unspill",
        "  spill",
        "  run",
    ]


def test_the_memory_monitor_spills(live: Live):
    """By itself, for no task: a root."""

    @cluster(
        1,
        {
            **SPILLS,
            "distributed.worker.memory.target": False,
            "distributed.worker.memory.spill": 0.7,
            "distributed.worker.memory.monitor-interval": "1h",
        },
        worker_kwargs={"memory_limit": 10 * MEGABYTE},
    )
    async def scenario(c: Client, s: Scheduler, b: Worker):
        x = c.submit(slow, name="x", pickling=0.2, claims=HALF, key="slow-x")
        await wait(x)
        b.monitor.get_process_memory = lambda: 9 * MEGABYTE if b.data.memory else MEGABYTE
        await b.memory_manager.memory_monitor(b)
        assert set(b.data.disk) == {"slow-x"}

    scenario()
    live.check()
    (spill,) = every(live, "spill")
    assert spill.parent_id == ""
    assert (spill.attributes["dask.spill.cause"], spill.attributes["dask.spill.key"]) == ("monitor", "slow-x")
    assert spill.attributes["dask.outcome"] == "success"
    assert_near(lasts(spill), measured("x.pickling"))


@pytest.mark.parametrize("delay", [0.3])
def test_who_pays_for_a_spill(live: Live, tmp_path: Path, delay: float):
    """The event loop spills for one task; another, the value of which is there meanwhile, waits for the loop, and says for what."""

    @small()
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with peer_process(s, live, tmp_path) as peer:
            x = c.submit(slow, name="x", pickling=0.3, key="slow-x", workers=[peer.address])
            old = c.submit(slow, name="old", pickling=0.3 + delay, claims=HALF, key="old-1", workers=[b.address])
            await wait([x, old])
            await warm(c, b, peer.address)
            await calm()
            waits = c.submit(use, x, key="use-1", workers=[b.address])
            await until(lambda: bool(b.state.in_flight_workers))
            fresh = c.submit(slow, name="new", claims=HALF, key="fresh-1", workers=[b.address])
            assert await waits == 1
            await wait(fresh)

    scenario()
    live.check()
    spill = below(live, one(live, "execute", "fresh"), "spill")
    assert_near(lasts(spill), measured("old.pickling"))
    waiting = one(live, "waiting", "use")
    waited = sums(waiting, "dask.wait.")
    assert waited["loop"] >= delay / 2
    assert waited["loop"] <= lasts(spill)
    assert waiting.attributes["dask.event_loop.blocked_by"] == "old-1"
    blocked = [s for s in every(live, "event_loop.blocked") if s.attributes["dask.event_loop.cause"] == "spill"]
    assert [s.attributes["dask.event_loop.blocked_by"] for s in blocked] == ["old-1"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
        (OSError(errno.EDQUOT, "Quota exceeded"), "disk_full"),
        (OSError(errno.EIO, "Input/output error"), "failure"),
        (KeyError("x"), "failure"),
    ],
)
def test_outcomes(error: Exception, outcome: str):
    from otel_worker.runtime import _spill_outcome

    assert _spill_outcome(error) == outcome
