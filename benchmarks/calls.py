"""How Dask calls what we hook: for each hook the calls to be timed, with
Dask's own objects where the hook reads them.

An act calls the function that it is handed, once. What a call needs is made beforehand, or in the act itself, where it
costs the original the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass, field
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.worker_state_machine import ExecuteSuccessEvent, GatherDepSuccessEvent, TaskState

from otel_worker import wire
from otel_worker.current import CURRENT
from otel_worker.hooks import STREAM

if TYPE_CHECKING:
    from otel_worker.facts import Fetch, Task

Act = Callable[[Any], Any]
PEER = "tcp://127.0.0.1:1"


class Comm:
    """As much of a comm as the hooks read."""

    peer_address = PEER
    remote_info = wire.announcement()
    stream = None

    async def write(self, msg: Any, *_: Any, **__: Any) -> None: ...

    async def read(self, *_: Any, **__: Any) -> str:
        return "OK"


class Slow:
    """As much of `distributed.spill.Slow` as the hooks read."""

    def __init__(self) -> None:
        self.weight_by_key: dict[str, Any] = {}


@dataclass
class Place:
    """A worker of which the calls are, with its recorder, and the annotations that tasks carry."""

    worker: Any
    runtime: Any
    annotations: dict[str, Any]
    number: int = 0
    slow: Slow = field(default_factory=Slow)

    def __post_init__(self) -> None:
        self.recorder = self.runtime.by_worker[id(self.worker)]
        self.runtime.by_slow[id(self.slow)] = self.recorder

    def state(self, prefix: str = "call") -> TaskState:
        self.number += 1
        return TaskState(f"{prefix}-{self.number}", run_id=1, annotations=self.annotations, priority=(0, self.number))

    def task(self) -> Task:
        """The record of a task that executes."""
        state = self.state()
        state.state = "executing"
        self.recorder.moved({state: "ready"}, now())
        record: Task = self.recorder.execute_began(state.key, now())
        return record

    def fetch(self) -> Fetch:
        """The record of a request that has one key."""
        state = self.state()
        state.state, state.coming_from = "flight", PEER
        self.recorder.moved({state: "fetch"}, now())
        record: Fetch = self.recorder.fetch_began(PEER, {state.key}, 100, now())
        return record

    def clear(self) -> None:
        """What is open is given up."""
        CURRENT.set(None)
        STREAM.set(None)
        for held in (self.recorder.tasks, self.recorder.wants, self.recorder.fetches, self.recorder.serves):
            held.clear()


class Case(NamedTuple):
    """`acts` makes that many calls, to be done in order."""

    when: str
    original: Callable[..., Any]
    acts: Callable[[Place, int], list[Act]]


def nothing(*_: Any, **__: Any) -> None:
    pass


async def nothing_async(*_: Any, **__: Any) -> None:
    pass


async def reply(*_: Any, **__: Any) -> dict[str, Any]:
    return {"status": "OK", "data": {}, wire.KEY: dict.fromkeys(wire.TOLD, 1000)}


async def serve(_self: Any, comm: Any, *_: Any, **__: Any) -> str:
    await comm.write({"status": "OK", "data": {}})
    await comm.read()
    return "OK"


async def batch(*_: Any, **__: Any) -> list[dict[str, str]]:
    return [{"op": "compute-task"}]


def drive(coroutine: Any) -> None:
    """Run a coroutine that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("it waits")


def on(record: Any, call: Act) -> Act:
    """`call`, with this record current."""

    def act(function: Any) -> None:
        CURRENT.set(record)
        call(function)

    return act


def within(record: Any, call: Act) -> Act:
    """`call` in a context of its own in which this record is current."""
    context = copy_context()
    context.run(CURRENT.set, record)
    return lambda function: context.run(call, function)


# --- a task ------------------------------------------------------------------------------------------------------------

LIFE = (("released", "ready"), ("ready", "executing"), ("executing", "memory"), ("memory", "released"))


def transitions(place: Place, calls: int) -> list[Act]:
    counter = place.worker.state.task_counter

    def life() -> Iterator[Act]:
        state = place.state()
        for before, after in LIFE:

            def act(function: Any, before: str = before, after: str = after) -> None:
                state.state = after
                function(counter, {state: before})

            yield act

    return [act for _ in range(calls // len(LIFE)) for act in life()]


def holders(place: Place, calls: int) -> list[Act]:
    state, who_has = place.worker.state, {"x": [PEER]}
    return [lambda function: function(state, who_has)] * calls


def execute(place: Place, calls: int) -> list[Act]:
    keys = [place.task().key for _ in range(calls)]
    return [lambda function, key=key: function(place.worker, key, stimulus_id="s") for key in keys]


def run(place: Place, calls: int) -> list[Act]:
    return [within(place.task(), lambda function: function(None, {}, {}, "key")) for _ in range(calls)]


def run_async(place: Place, calls: int) -> list[Act]:
    return [within(place.task(), lambda function: drive(function(None, {}, 0.0))) for _ in range(calls)]


def executor(place: Place, calls: int) -> list[Act]:
    return [on(place.task(), lambda function: function(None, nothing)) for _ in range(calls)]


def finish(place: Place, calls: int) -> list[Act]:
    def act() -> Act:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = place.task()
        event = ExecuteSuccessEvent(
            key=task.key, run_id=1, value=None, start=0.0, stop=0.0, nbytes=0, type=None, stimulus_id="s"
        )
        future.set_result(event)
        return lambda function: function(place.worker, future)

    return [act() for _ in range(calls)]


def arrival(place: Place, calls: int) -> list[Act]:
    def act(function: Any) -> None:
        STREAM.set(place.recorder)
        drive(function([]))

    CURRENT.set(None)
    return [act] * calls


# --- a fetch -----------------------------------------------------------------------------------------------------------


def gather_dep(place: Place, calls: int) -> list[Act]:
    def act() -> Act:
        keys = set(place.fetch().keys)
        return lambda function: function(place.worker, PEER, keys, 100, stimulus_id="s")

    return [act() for _ in range(calls)]


def fetched(place: Place, calls: int) -> list[Act]:
    def act() -> Act:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        fetch = place.fetch()
        future.set_result(GatherDepSuccessEvent(worker=PEER, data={}, total_nbytes=100, stimulus_id="s"))

        def taken(function: Any) -> None:
            place.recorder.fetches[PEER] = fetch
            function(place.worker, future)

        return taken

    return [act() for _ in range(calls)]


def request(place: Place, calls: int) -> list[Act]:
    comm = Comm()
    return [on(place.fetch(), lambda function: drive(function(comm, op="get_data", keys=[]))) for _ in range(calls)]


def first_byte(place: Place, calls: int) -> list[Act]:
    return [on(sent(place.fetch()), lambda function: function(None, 8)) for _ in range(calls)]


def decode(place: Place, calls: int) -> list[Act]:
    return [on(sent(place.fetch()), lambda function: drive(function([]))) for _ in range(calls)]


def sent(fetch: Fetch) -> Fetch:
    fetch.sent = now()
    return fetch


def connection(place: Place, calls: int) -> list[Act]:
    """Its steps are noted in the order in which they come."""

    def act() -> Act:
        fetch = place.fetch()
        fetch.connecting = now()
        return on(fetch, lambda function: drive(function(PEER)))

    return [act() for _ in range(calls)]


def pooled(place: Place, calls: int) -> list[Act]:
    pool = place.worker.rpc
    return [on(place.fetch(), lambda function: drive(function(pool, PEER))) for _ in range(calls)]


def get_data(place: Place, calls: int) -> list[Act]:
    comm = Comm()
    extra = {wire.KEY: {}}

    def act(function: Any) -> None:
        more = extra if function is not serve else {}
        drive(function(place.worker, comm, ["x"], who=PEER, **more))

    CURRENT.set(None)
    return [act] * calls


def passing(*args: Any, **kwargs: Any) -> Callable[[Place, int], list[Act]]:
    """Nobody's work is current: the hook looks, and calls through."""

    def acts(_: Place, calls: int) -> list[Act]:
        CURRENT.set(None)
        STREAM.set(None)

        def act(function: Any) -> None:
            result = function(*args, **kwargs)
            if asyncio.iscoroutine(result):
                drive(result)

        return [act] * calls

    return acts


# --- spilling, the loop, the client ------------------------------------------------------------------------------------------


def write(place: Place, calls: int) -> list[Act]:
    return [on(None, lambda function: function(place.slow, "key", None))] * calls


def read(place: Place, calls: int) -> list[Act]:
    return [on(None, lambda function: function(place.slow, "key"))] * calls


def tick(place: Place, calls: int) -> list[Act]:
    return [lambda function: function(place.worker)] * calls


CASES: dict[str, tuple[Case, ...]] = {
    "transitions": (Case("4 times a no-op task", nothing, transitions),),
    "update_who_has": (Case("a task with dependencies, while no key is wanted", nothing, holders),),
    "finish": (
        Case("a task: its result is taken", nothing, finish),
        Case("a fetch: its values are taken", nothing, fetched),
    ),
    "execute": (Case("a task", nothing, execute),),
    "run_in_executor": (Case("a task", nothing, executor),),
    "run_task": (Case("a task, in its thread", nothing, run),),
    "run_task_async": (Case("a task that is a coroutine", nothing_async, run_async),),
    "from_frames": (
        Case("a batch of tasks from the scheduler", batch, arrival),
        Case("a fetch", nothing_async, decode),
        Case("any other message", nothing_async, passing([])),
    ),
    "gather_dep": (Case("a fetch", nothing, gather_dep),),
    "send_recv": (Case("a fetch", reply, request),),
    "read_bytes": (Case("a fetch: its first byte", nothing, first_byte), Case("any other message", nothing, passing())),
    "pool_connect": (Case("a new connection", nothing_async, pooled),),
    "connect": (Case("a new connection", nothing_async, connection),),
    "dial": (Case("a new connection, another's than a fetch's", nothing_async, passing(None, PEER)),),
    "handshake_info": (Case("a new connection, another's than a fetch's", nothing, passing(None)),),
    "get_data": (Case("a request served", serve, get_data),),
    "offload": (Case("a large message that is no fetch", nothing, passing(nothing)),),
    "call": (Case("any call of a peer or the scheduler", nothing, passing(None)),),
    "spill": (Case("a value spilled", nothing, write),),
    "unspill": (Case("a value unspilled", nothing, read),),
    "disk_write": (Case("a value written that nobody spills", nothing, write),),
    "disk_read": (Case("a value read that nobody unspills", nothing, read),),
    "future_ended": (Case("a future, another's than a submission's", nothing, passing(None)),),
    "tick": (Case("50 times a second", nothing, tick),),
}
