"""How a task ended, and as much of its exception as the setting lets out."""

import threading
import time

import pytest
from distributed import Client, Reschedule, Scheduler, Worker, wait

from otel_worker.traces import Span
from tests.faults.tools import assert_near, cluster, every, hold, lasts, local, measured, noting, one, shape, until, use
from tests.live import Live

pytestmark = pytest.mark.faults


class OwnError(ValueError):
    pass


def fails(secret: str) -> None:
    raise OwnError(f"can't use {secret}")


def exceptions(span: Span) -> list[dict[str, str]]:
    return [dict(event.attributes) for event in span.events if event.name == "exception"]


@pytest.mark.parametrize(
    ("captured", "names"),
    [
        ("type", {"exception.type"}),
        ("message", {"exception.type", "exception.message"}),
        ("stacktrace", {"exception.type", "exception.message", "exception.stacktrace"}),
    ],
)
def test_an_error(live: Live, captured: str, names: set[str]):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        with pytest.raises(OwnError):
            await c.submit(fails, "a-secret", key="fails-1")

    live.switch.off()
    live.switch.on(capture_exceptions=captured)
    scenario()
    task, run = one(live, "task fails"), one(live, "run")
    assert task.attributes["dask.outcome"] == "error"
    for span in (task, run):
        assert (span.status, span.attributes["error.type"]) == ("error", f"{__name__}.OwnError")
        assert ("a-secret" in span.status_message) is (captured != "type")
    assert one(live, "execute").status == "unset"
    (event,) = exceptions(run)
    assert set(event) == names
    assert event["exception.type"] == f"{__name__}.OwnError"
    assert "can't use a-secret" in event.get("exception.message", "can't use a-secret")
    assert "in fails" in event.get("exception.stacktrace", "in fails")
    compute = one(live, "compute fails")
    assert (compute.status, compute.attributes["dask.outcome"]) == ("error", "error")
    live.check()


def test_what_depends_on_an_error_never_came(live: Live):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        with pytest.raises(OwnError):
            await c.submit(use, c.submit(fails, "it", key="fails-1"), key="use-1")

    scenario()
    assert every(live, "task use") == []
    assert one(live, "compute use").attributes["dask.outcome"] == "error"
    live.check()


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_a_task_cancelled_while_it_runs_lasts_as_long_as_its_thread(live: Live, delay: float):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        x = c.submit(hold, name="held", seconds=delay, key="hold-1")
        await until(lambda: "hold-1" in b.state.tasks and b.state.tasks["hold-1"].state == "executing")
        await c.cancel(x)
        await until(lambda: not b.state.tasks)

    scenario()
    task = one(live, "task hold")
    assert task.attributes["dask.outcome"] == "cancelled"
    assert task.status == "unset"
    assert shape(live, task) == ["task hold", "  execute", "    run"]
    assert_near(lasts(one(live, "run")), measured("held"))
    assert_near(lasts(task), measured("held"))
    live.check()


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_a_task_released_before_it_ran(live: Live, delay: float):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        x = c.submit(hold, name="held", seconds=delay + 0.1, key="hold-1")
        y = c.submit(use, key="use-1", workers=[b.address])
        await until(lambda: "use-1" in b.state.tasks and b.state.tasks["use-1"].state == "ready")
        with noting("ready"):
            time.sleep(delay)  # noqa: ASYNC251 - so that nobody can be quicker
            await c.cancel(y)
            await until(lambda: "use-1" not in b.state.tasks)
        await wait(x)

    scenario()
    task = one(live, "task use")
    assert task.attributes["dask.outcome"] == "released"
    assert task.status == "unset"
    assert shape(live, task) == ["task use", "  ready"]
    assert_near(lasts(one(live, "ready", "use")), measured("ready"))
    assert_near(one(live, "ready", "use").attributes["dask.ready.thread_slot"], measured("ready"))
    assert one(live, "compute use").attributes["dask.outcome"] == "cancelled"
    live.check()


def test_a_task_that_asks_for_another_worker(live: Live):
    @local
    def once() -> int:
        if not asked.is_set():
            asked.set()
            raise Reschedule
        return 1

    @cluster()
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        assert await c.submit(once, key="once-1") == 1

    asked = threading.Event()
    scenario()
    first, second = every(live, "task once")
    assert [t.attributes["dask.outcome"] for t in (first, second)] == ["rescheduled", "memory"]
    assert first.status == second.status == "unset"
    assert first.attributes["dask.task.run_id"] != second.attributes["dask.task.run_id"]
    assert shape(live, one(live, "compute once")) == [
        "compute once",
        "  submit",
        *["  task once", "    execute", "      run"] * 2,
    ]
    live.check()
