"""Spans of as many tasks as a test wants, each with a wait, a fetch and what the peer served, as a cluster would export them."""

import random
from collections.abc import Iterator, Mapping

from otel_worker import names
from otel_worker.traces import Resource, Span, Traces

START = 1_700_000_000_000_000_000
MS = 1_000_000
NAMES = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi")


def many(tasks: int, workers: int = 8, threads: int = 4, seed: int = 1) -> Traces:
    """About 9 spans a task; of every three tasks two fetch what they need."""
    chance = random.Random(seed)
    spans: list[Span] = []
    free = [[START] * threads for _ in range(workers)]
    for number in range(tasks):
        worker = number % workers
        thread = min(range(threads), key=free[worker].__getitem__)
        at = free[worker][thread]
        mine = list(_Task(number, worker, thread, workers, chance).spans(at))
        free[worker][thread] = mine[0].end
        spans += mine
    return Traces(tuple(spans))


class _Task:
    def __init__(self, number: int, worker: int, thread: int, workers: int, chance: random.Random) -> None:
        self.number, self.worker, self.thread, self.chance = number, worker, thread, chance
        self.peer = (worker + 1 + number % max(1, workers - 1)) % workers
        self.identity = number * 16
        self.key = f"('sum-aggregate-{number % 40:032x}', {number // 100}, {number % 100})"

    def spans(self, at: int) -> Iterator[Span]:
        waits = self.chance.randrange(1, 40) * MS if self.number % 3 else 0
        runs = self.chance.randrange(1, 30) * MS
        task = self._span("task sum", "", at, at + waits + runs + 2 * MS, {names.OUTCOME: "memory"})
        yield task
        if waits:
            yield from self._wait(task, at, waits)
        begun = at + waits + MS
        parts = {f"{names.EXECUTE_PREFIX}run.cpu": runs / 1e9, f"{names.EXECUTE_PREFIX}other": 0.001}
        execute = self._span("execute", task.span_id, begun, begun + runs + MS, parts)
        yield execute
        yield self._span("run", execute.span_id, begun, begun + runs, {names.THREAD_ID: self.thread})

    def _wait(self, task: Span, at: int, waits: int) -> Iterator[Span]:
        third = waits // 3
        told = {f"{names.WAIT_PREFIX}{a}": third / 1e9 for a in ("queued.count", names.PEER_UNSPILL, names.NETWORK)}
        waiting = self._span("waiting", task.span_id, at, at + 3 * third, told)
        yield waiting
        told_ = {
            names.PEER_ADDRESS: _address(self.peer),
            names.FETCH_KEYS: [f"x-{self.number}"],
            names.OUTCOME: "success",
        }
        fetch = self._span("fetch sum", waiting.span_id, at, at + 3 * third, {**told_, names.FETCH_NBYTES: 1_000_000})
        yield fetch
        yield self._span(
            "fetch.queued", fetch.span_id, at, at + third, {f"{names.FETCH_TIME_PREFIX}queued.count": third / 1e9}
        )
        split = {names.REQUEST_PEER_UNSPILL: third / 1e9, names.REQUEST_NETWORK: third / 1e9}
        request = self._span("request", fetch.span_id, at + third, at + 3 * third, split)
        yield request
        served = {names.PEER_ADDRESS: _address(self.worker), names.FETCH_KEYS: [f"x-{self.number}"]}
        get_data = self._span("get_data", request.span_id, at + third, at + 3 * third, served, self.peer)
        yield get_data
        yield self._span(
            "unspill", get_data.span_id, at + third, at + 2 * third, {names.SPILL_KEY: f"x-{self.number}"}, self.peer
        )

    def _span(
        self, name: str, parent: str, start: int, end: int, attributes: Mapping[str, object], worker: int = -1
    ) -> Span:
        self.identity += 1
        on = self.worker if worker < 0 else worker
        return Span(
            f"{1 + self.number // 1000:032x}",
            f"{self.identity:016x}",
            parent,
            name,
            start,
            end,
            attributes={
                names.WORKER_ADDRESS: _address(on),
                names.WORKER_NAME: NAMES[on] if on < len(NAMES) else f"worker-{on}",
                **({names.TASK_KEY: self.key} if name.startswith(names.TASK) else {}),
                names.TASK_PREFIX: "sum",
                **attributes,
            },
            resource=Resource({"service.name": "dask-worker"}),
            scope=names.SCOPE,
        )


def _address(worker: int) -> str:
    return f"tcp://10.0.0.{worker + 1}:4000"
