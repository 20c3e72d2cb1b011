"""What every task did, as complete sums: plain counters, read when the SDK exports. Spans may be few; these never are."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import CallbackOptions, Observation

from otel_worker import names, waits, wire
from otel_worker.facts import MAX_PREFIX, readable
from otel_worker.shuffle_facts import metered_sums, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from opentelemetry.metrics import Histogram, Meter

    from otel_worker.actor_facts import ActorCall
    from otel_worker.facts import Blocked, Fetch, Gather, Serve, SpillOp, Task
    from otel_worker.recorder import Recorder
    from otel_worker.settings import Settings
    from otel_worker.shuffle_facts import Transport

Sums = dict[str, dict[str, int]]  # prefix, or empty -> activity -> ns or bytes

FOREGROUND, RECEIVE = "foreground", "receive"  # where, in a shuffle: the first is Dask's word

LATENCY = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # s, of fetches
LAG = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # s, of the event loop


class WorkerMetrics:
    """The sums of one worker; an observer of its facts."""

    def __init__(self, recorder: Recorder, settings: Settings, instruments: Instruments) -> None:
        self.recorder = recorder
        self._instruments = instruments
        self._by_prefix = settings.metrics_by_prefix
        self._max_prefixes = settings.max_prefixes
        self._prefixes: set[str] = set()
        self._told: dict[tuple[str, str], int] = {}  # (prefix, state) -> ns
        self.wait: Sums = {}
        self.execute: Sums = {}
        self.fetch: Sums = {}
        self.serve: Sums = {}
        self.spill: Sums = {}
        self.fetch_io = self.arrival = 0
        self.spill_io: Sums = {}
        self.spills: Sums = {}  # by outcome instead of prefix
        self.shuffle: Sums = {}
        self.shuffle_io: Sums = {}
        self.actor: Sums = {}
        self.actor_calls: dict[str, int] = {}  # by outcome
        self.spans: Callable[[], Mapping[str, int]] = dict

    # --- the observer ----------------------------------------------------------------------------------------------------

    def task_ended(self, task: Task) -> None:
        prefix = self.prefix(task.prefix) if self._by_prefix else ""
        self.arrival += task.arrival
        if task.wait_parts:
            _add(self.wait, prefix, task.wait_parts)
        if task.execute_parts:
            _add(self.execute, prefix, task.execute_parts)
        if task.steps is not None:
            for step in task.steps:
                _add(self.shuffle, "", within(FOREGROUND, step.parts()))
                _add(self.shuffle_io, "", within(FOREGROUND, metered_sums(step.metered, "bytes")))

    def fetch_ended(self, fetch: Fetch) -> None:
        prefix = self.prefix(_dependent(fetch)) if self._by_prefix else ""
        _add(self.fetch, prefix, waits.fetch_sums(fetch, fetch.stored))
        if fetch.outcome == "success":
            self.fetch_io += fetch.nbytes - fetch.missing_nbytes
        context = fetch.span.context if fetch.span is not None else wire.EMPTY
        attributes = {**self.worker(), names.OUTCOME: fetch.outcome}
        self._instruments.fetch_duration.record((fetch.stored - fetch.issued) / 1e9, attributes, context)

    def serve_ended(self, serve: Serve) -> None:
        _add(self.serve, "", waits.serve_sums(serve, serve.ended))

    def gather_ended(self, gather: Gather) -> None:
        """Its requests are told as fetches."""

    def spill_ended(self, op: SpillOp) -> None:
        write, code = (
            (names.UNSPILL_READ, names.UNSPILL_DESERIALIZE)
            if op.reading
            else (names.SPILL_WRITE, names.SPILL_SERIALIZE)
        )
        _add(self.spill, "", {write: op.io, code: max(0, op.total - op.io)})
        _add(self.spills, op.outcome, {names.UNSPILL if op.reading else names.SPILL: 1})
        if op.failure is None:
            _add(self.spill_io, "", {write: op.nbytes})

    def shuffle_metered(self, activity: str, value: float, unit: str) -> None:
        """Dask metered this for a shuffle's background tasks."""
        if unit == "seconds":
            _add(self.shuffle, "", {activity: round(value * 1e9)})
        elif unit == "bytes":
            _add(self.shuffle_io, "", {activity: int(value)})

    def transport_ended(self, record: Transport) -> None:
        """What is received: Dask meters nothing of it. Of the rest its own metering tells."""
        if record.kind == names.SHUFFLE_RECEIVE:
            _add(self.shuffle, "", within(RECEIVE, record.parts()))
            _add(self.shuffle_io, "", {RECEIVE: record.nbytes})

    def actor_called(self, call: ActorCall) -> None:
        """Somebody called an actor that lives here."""
        _add(self.actor, self.prefix(call.prefix) if self._by_prefix else "", call.parts())
        self.actor_calls[call.outcome] = self.actor_calls.get(call.outcome, 0) + 1

    def loop_blocked(self, blocked: Blocked) -> None:
        """The histogram of the lag tells it."""

    def key_released(self, key: Any) -> None:
        """Nothing is kept for a key."""

    def lag(self, ns: int) -> None:
        """The event loop was `ns` late for a tick."""
        self._instruments.lag.record(max(0, ns) / 1e9, self.worker(), wire.EMPTY)

    # --- reading -----------------------------------------------------------------------------------------------------------

    def worker(self) -> dict[str, str]:
        return {names.WORKER_ADDRESS: self.recorder.address, names.WORKER_NAME: self.recorder.name}

    def prefix(self, prefix: str) -> str:
        """The prefix, or `other` past the first `max_prefixes` of this worker."""
        prefix = readable(prefix, MAX_PREFIX)
        if prefix not in self._prefixes:
            if len(self._prefixes) >= self._max_prefixes:
                return names.OTHER
            self._prefixes.add(prefix)
        return prefix

    def states(self, now: int) -> Iterator[tuple[str, str, float, int]]:
        """Yield (prefix, state, seconds so far, tasks that entered).

        The event loop goes on meanwhile, in another thread: a task may have moved since `now`. A sum that falls, were it
        by a microsecond, is a restart to Prometheus, which then counts all of it again: it stays at what was told.
        """
        folded: dict[tuple[str, str], list[int]] = {}
        for (prefix, state), (open_now, entered_at, entered) in list(self.recorder.states.items()):
            cell = folded.setdefault((self.prefix(prefix), state), [0, 0])
            cell[0] += open_now * now - entered_at
            cell[1] += entered
        for key, (ns, entered) in folded.items():
            self._told[key] = max(ns, self._told.get(key, 0))
            yield *key, self._told[key] / 1e9, entered

    def oldest(self, now: int) -> dict[str, float]:
        """Age in seconds of the oldest task by state: waiting, ready, executing."""
        ages: dict[str, float] = {}
        for task in list(self.recorder.tasks.values()):
            state, since = _state(task)
            ages[state] = max(ages.get(state, 0.0), (now - since) / 1e9)
        return ages


def _state(task: Task) -> tuple[str, int]:
    if task.executing:
        return "executing", task.executing
    if task.ready:
        return "ready", task.ready
    return "waiting", task.waiting or task.arrived


def _dependent(fetch: Fetch) -> str:
    """The prefix of the most urgent task that this fetch is for."""
    waiting = [task for want in fetch.wants for task in want.waiters]
    return min(waiting, key=attrgetter("urgency")).prefix if waiting else names.REPLICA


def _add(sums: Sums, prefix: str, parts: Mapping[str, int]) -> None:
    waits.add(sums.get(prefix) or sums.setdefault(prefix, {}), parts)


class Instruments:
    """The instruments of one `instrument()`; `workers` are asked at each export."""

    def __init__(self, meter: Meter, now: Callable[[], int]) -> None:
        self.workers: dict[Recorder, WorkerMetrics] = {}
        self._now = now
        self.fetch_duration: Histogram = meter.create_histogram(
            names.METRIC_FETCH_DURATION,
            "s",
            "One request for data, from its issue until its values are stored",
            **_buckets(LATENCY),
        )
        self.lag: Histogram = meter.create_histogram(
            names.METRIC_LOOP_LAG, "s", "How late the worker's event loop ran its tick", **_buckets(LAG)
        )
        for name, unit, about, read in (
            (names.METRIC_STATE_TIME, "s", "Time that tasks spent in a state", self._state_time),
            (names.METRIC_STATE_ENTERED, "{task}", "Tasks that entered a state", self._state_entered),
            (names.METRIC_WAIT_TIME, "s", "Time that tasks waited for data, by what it went to", self._sums("wait")),
            (names.METRIC_EXECUTE_TIME, "s", "Time from executing to stored, by activity", self._sums("execute")),
            (names.METRIC_ARRIVAL_TIME, "s", "Time that decoding tasks took, imports included", self._arrival),
            (names.METRIC_FETCH_TIME, "s", "Time of requests for data, by activity", self._sums("fetch")),
            (names.METRIC_GET_DATA_TIME, "s", "Time of requests served, by activity", self._sums("serve")),
            (names.METRIC_SPILL_TIME, "s", "Time of spilling and unspilling, by activity", self._sums("spill")),
            (names.METRIC_SPILL_IO, "By", "Bytes written to and read from disk", self._sums("spill_io", 1)),
            (names.METRIC_SPILL_OPERATIONS, "{operation}", "Values spilled and read back, by outcome", self._spills),
            (names.METRIC_SHUFFLE_TIME, "s", "Time of P2P shuffles, by where and activity", self._sums("shuffle")),
            (
                names.METRIC_SHUFFLE_IO,
                "By",
                "Bytes of P2P shuffles, by where and activity",
                self._sums("shuffle_io", 1),
            ),
            (names.METRIC_ACTOR_TIME, "s", "Time of calls of actors, by activity", self._sums("actor")),
            (names.METRIC_ACTOR_CALLS, "{call}", "Calls of actors by outcome", self._actor_calls),
            (names.METRIC_FETCH_IO, "By", "Bytes of fetched values, as Dask counts them", self._fetch_io),
            (names.METRIC_SPANS, "{span}", "Spans by what became of them", self._spans),
        ):
            meter.create_observable_counter(name, [read], unit, about)
        meter.create_observable_gauge(
            names.METRIC_TASK_OLDEST, [self._oldest], "s", "Age of the oldest task by state: a stuck one shows"
        )

    def _each(self) -> Iterable[tuple[WorkerMetrics, dict[str, str]]]:
        return [(worker, worker.worker()) for worker in list(self.workers.values())]

    def _state_time(self, _: CallbackOptions) -> Iterator[Observation]:
        now = self._now()
        for worker, about in self._each():
            for prefix, state, seconds, _entered in worker.states(now):
                yield Observation(seconds, {**about, names.TASK_PREFIX: prefix, names.STATE: state})

    def _state_entered(self, _: CallbackOptions) -> Iterator[Observation]:
        now = self._now()
        for worker, about in self._each():
            for prefix, state, _seconds, entered in worker.states(now):
                yield Observation(entered, {**about, names.TASK_PREFIX: prefix, names.STATE: state})

    def _sums(self, name: str, unit: float = 1e9) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def read(_: CallbackOptions) -> Iterator[Observation]:
            for worker, about in self._each():
                for prefix, parts in dict(getattr(worker, name)).items():
                    of = {**about, names.TASK_PREFIX: prefix} if prefix else about
                    for activity, value in dict(parts).items():
                        yield Observation(value / unit, {**of, names.ACTIVITY: activity})

        return read

    def _arrival(self, _: CallbackOptions) -> Iterator[Observation]:
        for worker, about in self._each():
            yield Observation(worker.arrival / 1e9, about)

    def _fetch_io(self, _: CallbackOptions) -> Iterator[Observation]:
        for worker, about in self._each():
            yield Observation(worker.fetch_io, about)

    def _spills(self, _: CallbackOptions) -> Iterator[Observation]:
        for worker, about in self._each():
            for outcome, parts in dict(worker.spills).items():
                for activity, count in dict(parts).items():
                    yield Observation(count, {**about, names.OUTCOME: outcome, names.ACTIVITY: activity})

    def _actor_calls(self, _: CallbackOptions) -> Iterator[Observation]:
        for worker, about in self._each():
            for outcome, count in dict(worker.actor_calls).items():
                yield Observation(count, {**about, names.OUTCOME: outcome})

    def _spans(self, _: CallbackOptions) -> Iterator[Observation]:
        for worker, about in self._each():
            for outcome, count in worker.spans().items():
                yield Observation(count, {**about, names.OUTCOME: outcome})

    def _oldest(self, _: CallbackOptions) -> Iterator[Observation]:
        now = self._now()
        for worker, about in self._each():
            for state, age in worker.oldest(now).items():
                yield Observation(age, {**about, names.STATE: state})


def _buckets(boundaries: tuple[float, ...]) -> dict[str, Any]:
    return {"explicit_bucket_boundaries_advisory": list(boundaries)}
