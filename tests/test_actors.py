"""Actors: creating one is a task; calls stand below who calls, and what their methods do stands below the calls."""

from __future__ import annotations

import asyncio
import threading
import time
from types import MethodType
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Worker, get_client, get_worker
from distributed.utils_test import gen_cluster, inc
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_worker import names
from otel_worker.actor_facts import ActorCall
from otel_worker.trees import subtree, tree
from tests.desk import SECOND, Desk, ns
from tests.test_metrics import points

if TYPE_CHECKING:
    from distributed import Client, Scheduler

    from otel_worker.traces import Span
    from tests.live import Live

cluster = gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
PLAIN = {name: getattr(Worker, name) for name in ("actor_execute", "actor_attribute")}  # Dask's own


PROVIDERS: list[Any] = []


def user(name: str) -> Any:
    """A span of the user's own."""
    return PROVIDERS[-1].get_tracer("user").start_as_current_span(name)


@pytest.fixture(autouse=True)
def provider(live: Live) -> None:
    PROVIDERS[:] = [live.switch.provider]


class Counter:
    n = 0

    def increment(self, by: int = 1) -> int:
        with user("counting"):
            self.n += by
        return self.n

    def work(self) -> int:
        """Until the thread has had 20 ms of CPU."""
        started = time.thread_time()
        while time.thread_time() < started + 0.02:
            pass
        return threading.get_native_id()

    async def later(self) -> int:
        with user("thinking"):
            return self.n

    def blocks(self) -> bool:
        time.sleep(0.2)
        return True

    async def sleeps(self) -> int:
        await asyncio.sleep(0.2)
        return self.n

    def fails(self) -> None:
        raise LookupError("nothing there")

    def submits(self) -> int:
        result: int = get_client().submit(inc, 1, key="inc-2").result()
        return result


def calls(counter: Any, n: int) -> int:
    """As a task, which calls the actor that it was given."""
    assert get_worker()
    for _ in range(n):
        result: int = counter.increment().result()
    return result


def ours(live: Live) -> list[Span]:
    return [span for span in live.spans() if span.scope == names.SCOPE]


def of(live: Live, name: str, kind: str) -> list[Span]:
    return [span for span in live.spans() if span.name == name and span.kind == kind]


def test_creating_an_actor_is_a_task_that_says_so(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await c.submit(Counter, key="Counter-1", actor=True)
        await c.submit(inc, 1, key="inc-1")

    scenario()
    live.check()
    assert live.find("task Counter").attributes["dask.task.actor"] is True
    assert "dask.task.actor" not in live.find("task inc").attributes


def test_a_task_calls_an_actor_on_another_worker(live: Live):
    live.again(min_phase=10.0)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        counter = c.submit(Counter, key="Counter-1", actor=True, workers=[a.address])
        await counter
        assert await c.submit(calls, counter, 2, key="calls-1", workers=[b.address]) == 2
        addresses.update(a=a.address, b=b.address)

    addresses: dict[str, str] = {}
    scenario()
    assert live.tree("compute calls") == [
        "compute calls",
        "  submit",
        "  task calls",
        "    waiting",
        "      fetch calls",
        "        request",
        "          get_data",
        "    execute",
        "      run",
        *["        actor Counter.increment", "          actor Counter.increment", "            counting"] * 2,
    ]
    live.check()
    asked, served = (of(live, "actor Counter.increment", kind) for kind in ("client", "server"))
    assert {span.attributes["dask.worker.address"] for span in asked} == {addresses["b"]}
    for span in served:
        assert span.attributes["dask.worker.address"] == addresses["a"]
        assert span.attributes["dask.peer.address"] == addresses["b"]
        assert span.attributes["dask.peer.kind"] == "worker"
        assert span.attributes["dask.task.key"] == "Counter-1"
        assert span.attributes["dask.actor.method"] == "increment"
        assert span.attributes["dask.executor"] == "actor_thread"
        assert "Dask-Actor-Threads" in span.attributes["thread.name"]
        assert sum(v for k, v in span.attributes.items() if k.startswith("dask.actor.time.")) == pytest.approx(
            span.duration / 1e9, abs=2e-6
        )


def test_a_client_calls_an_actor(live: Live):
    """Directly its context goes along; through the scheduler, Dask's default, nothing does."""

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        counter = await c.submit(Counter, key="Counter-1", actor=True)
        with user("mine"):
            c.direct_to_workers = True
            assert await counter.increment(by=3) == 3
            assert await counter.later() == 3
            assert await counter.n == 3
        c.direct_to_workers = False
        assert await counter.increment() == 4

    scenario()
    live.check()
    assert live.tree("mine") == [
        "mine",
        "  actor Counter.increment",
        "    actor Counter.increment",
        "      counting",
        "  actor Counter.later",
        "    actor Counter.later",
        "      thinking",
        "  actor Counter.n",
        "    actor Counter.n",
    ]
    roots = [span for span in live.spans() if span.name == "actor Counter.increment" and not span.parent_id]
    assert sorted(span.kind for span in roots) == ["client", "server"]
    kinds = {span.attributes["dask.peer.kind"] for span in live.spans() if span.kind == "server"}
    assert kinds >= {"client", "unknown"}


def test_what_a_method_submits_hangs_below_the_call(live: Live):
    live.again(min_phase=10.0)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        counter = await c.submit(Counter, key="Counter-1", actor=True, workers=[a.address])
        c.direct_to_workers = True
        assert await counter.submits() == 2

    scenario()
    live.check()
    (call,) = of(live, "actor Counter.submits", "client")
    assert [line.strip() for line in tree(subtree(live.spans(), call))][:4] == [
        "actor Counter.submits",
        "actor Counter.submits",
        "compute inc",
        "submit",
    ]
    assert call.parent_id == ""


def test_cpu_and_failures(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        counter = await c.submit(Counter, key="Counter-1", actor=True)
        threads.append(await counter.work())
        with pytest.raises(LookupError, match="nothing there"):
            await counter.fails()

    threads: list[int] = []
    scenario()
    live.check()
    (work,) = of(live, "actor Counter.work", "server")
    assert work.attributes["dask.actor.time.run.cpu"] >= 0.02
    assert work.attributes["thread.id"] == threads[0]
    assert work.attributes["dask.outcome"] == "success"
    for kind in ("server", "client"):
        (fails,) = of(live, "actor Counter.fails", kind)
        assert (fails.status, fails.attributes["error.type"]) == ("error", "LookupError")
        assert fails.attributes["dask.outcome"] == "error"


def test_a_method_that_wants_no_thread_runs_on_the_event_loop(live: Live):
    """If it takes long, the loop was blocked, and says by which actor."""

    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], config={"distributed.admin.tick.interval": "20 ms"})
    async def scenario(c: Client, s: Scheduler, a: Worker):
        counter = await c.submit(Counter, key="Counter-1", actor=True)
        assert await counter.blocks(separate_thread=False)
        assert await counter.sleeps() == 0
        await asyncio.sleep(0.1)

    scenario()
    live.check()
    (blocks,) = of(live, "actor Counter.blocks", "server")
    assert blocks.attributes["dask.executor"] == "event_loop"
    assert blocks.attributes["dask.actor.time.run.cpu"] < 0.15 < blocks.attributes["dask.actor.time.run.noncpu"]
    (sleeps,) = of(live, "actor Counter.sleeps", "server")
    assert "dask.actor.time.run.cpu" not in sleeps.attributes
    blocked = [s for s in live.spans() if s.name == "event_loop.blocked" and "Counter-1" in s.attributes.values()]
    assert [s.attributes["dask.event_loop.cause"] for s in blocked] == ["actor"]


def test_without_budget_there_are_sums_and_no_spans(live: Live):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    live.again(meter_provider=provider, span_budget=0.0, span_burst=0.0)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        counter = await c.submit(Counter, key="Counter-1", actor=True)
        for n in range(5):
            assert await counter.increment() == n + 1
        await counter.work()
        with pytest.raises(LookupError):
            await counter.fails()
        calls = {p.attributes[names.OUTCOME]: p.value for p in points(reader, names.METRIC_ACTOR_CALLS)}
        assert calls == {"success": 6, "error": 1}
        times = {p.attributes[names.ACTIVITY]: p.value for p in points(reader, names.METRIC_ACTOR_TIME)}
        assert times["run.cpu"] >= 0.02
        assert set(times) >= {"executor_queue", "run.cpu", "run.noncpu", "loop"}

    scenario()
    provider.shutdown()
    assert [span for span in live.spans() if span.name.startswith("actor")] == []


def test_a_peer_that_did_not_announce_itself_is_sent_no_key(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        for name, plain in PLAIN.items():
            a.handlers[name] = MethodType(plain, a)
        counter = await c.submit(Counter, key="Counter-1", actor=True, workers=[a.address])
        c.direct_to_workers = True
        assert await counter.increment() == 1
        assert await counter.n == 1

    scenario()
    live.check()
    assert len(of(live, "actor Counter.increment", "client")) == 1
    assert of(live, "actor Counter.increment", "server") == []


def test_switched_off_while_connections_are_open(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        counter = await c.submit(Counter, key="Counter-1", actor=True, workers=[a.address])
        c.direct_to_workers = True
        assert await counter.increment() == 1
        handlers = dict(a.handlers)
        live.switch.off()
        before = len(ours(live))
        assert await counter.increment() == 2
        for name, field in (("actor_execute", "function"), ("actor_attribute", "attribute")):
            answer = handlers[name](**{"actor": "Counter-1", field: "n", "otel_worker": {"carrier": {}}})
            answer = answer if isinstance(answer, dict) else await answer
            assert answer["status"] in ("OK", "error")  # Dask's own answer, and not a TypeError for our key
        assert len(ours(live)) == before

    scenario()


def test_the_parts_of_a_call():
    call = ActorCall("Counter-1", "Counter", "increment", Desk().recorder, ns(0))
    call.run_begun, call.run_ended, call.ended, call.cpu = ns(1), ns(4), ns(6), 2 * SECOND
    assert {name: part / SECOND for name, part in call.parts().items()} == {
        "executor_queue": 1,
        "run.cpu": 2,
        "run.noncpu": 1,
        "loop": 2,
    }


def test_the_parts_of_a_call_on_the_event_loop():
    call = ActorCall("Counter-1", "Counter", "later", Desk().recorder, ns(0))
    call.ended = ns(3)
    assert {name: part / SECOND for name, part in call.parts().items()} == {"run.noncpu": 3}
