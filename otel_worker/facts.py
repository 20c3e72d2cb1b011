"""What can happen on a worker, as typed records of times that were handed in.

All times are integer nanoseconds of one monotonic clock per process; 0 means "did not happen". Nothing here knows Dask
or OpenTelemetry: `recorder.py` fills these records, `waits.py` explains them, `spans.py` and `metrics.py` show them.
"""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from otel_worker.recorder import Recorder

Key = str | int | float | tuple["Key", ...]

DRIFT = 50_000_000  # ns between wall and monotonic clock beyond which the anchor is set anew


MAX_PREFIX = 200  # characters of a prefix or an address: a key without a hyphen is its own prefix


def readable(text: str, limit: int) -> str:
    """`text` cut to `limit` and valid UTF-8, whatever it was: one lone surrogate would lose an exporter's whole batch."""
    if len(text) > limit:
        text = text[:limit] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def hashed(text: str, prefix: str) -> str:
    """What stands for a key that is not to leave: the same wherever it is made, so that spans of one key are found together."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{readable(prefix, MAX_PREFIX)}-{digest}"


def redacted(address: str) -> str:
    """An address without what may stand before an @ in it."""
    scheme, sep, rest = address.rpartition("://")
    return scheme + sep + rest.rpartition("@")[2]


class Clock:
    """One monotonic clock for durations, anchored to the wall clock for display.

    Source: `time.perf_counter_ns` and `time.time_ns`.
    """

    __slots__ = ("_monotonic", "_wall", "offset", "reanchored")

    def __init__(self) -> None:
        self._monotonic = time.perf_counter_ns
        self._wall = time.time_ns
        self.offset = self._measure()
        self.reanchored = 0

    def _measure(self, tries: int = 5) -> int:
        """The wall clock minus the monotonic one, by the reading that was interrupted least."""
        readings = []
        for _ in range(tries):
            before = self._monotonic()
            wall = self._wall()
            after = self._monotonic()
            readings.append((after - before, wall - (before + after) // 2))
        return min(readings)[1]

    def check(self) -> None:
        """Set the anchor anew if wall and monotonic clock drifted apart; open records keep the offset they began with."""
        if abs(self._measure(tries=1) - self.offset) > DRIFT:
            self.offset = self._measure()
            self.reanchored += 1


class TaskView(Protocol):
    """What the recorder reads of Dask's `TaskState`, live."""

    key: Any
    prefix: str
    state: str
    run_id: int
    priority: tuple[int, ...] | None
    annotations: dict[str, Any] | None
    who_has: AbstractSet[str]
    coming_from: str | None
    nbytes: int | None
    exception_text: str

    @property
    def waiting_for_data(self) -> Collection[TaskView]: ...
    @property
    def waiters(self) -> Iterable[TaskView]: ...
    @property
    def dependencies(self) -> Collection[TaskView]: ...


class StateView(Protocol):
    """What the recorder reads of Dask's `WorkerState`, live."""

    running: bool
    nthreads: int
    transfer_incoming_bytes: int
    transfer_incoming_bytes_limit: float

    @property
    def busy_workers(self) -> AbstractSet[str]: ...
    @property
    def in_flight_workers(self) -> Mapping[str, Any]: ...
    @property
    def executing(self) -> Collection[Any]: ...
    @property
    def data_needed(self) -> Mapping[str, Any]: ...
    @property
    def stimulus_log(self) -> Sequence[Any]: ...

    def _should_throttle_incoming_transfers(self) -> bool: ...


class Failure(NamedTuple):
    """How something failed: never more than the setting `capture_exceptions` lets out."""

    type: str
    message: str = ""
    stacktrace: str = ""


class Part(NamedTuple):
    """A stretch of a key's way to this worker. `shares` splits it among activities: ns by activity, the sum is its length."""

    start: int
    end: int
    rank: int
    shares: Mapping[str, int]


class SpillOp:
    """One value written to disk or read back, with what caused it."""

    __slots__ = (
        "begun",
        "cause",
        "ended",
        "failure",
        "io_begun",
        "io_ended",
        "key",
        "nbytes",
        "offset",
        "outcome",
        "reading",
    )

    def __init__(self, key: Key, cause: Cause | None, now: int, offset: int, *, reading: bool) -> None:
        self.key = key
        self.cause = cause
        self.reading = reading
        self.begun = now
        self.io_begun = self.io_ended = self.ended = 0
        self.nbytes = 0
        self.offset = offset
        self.outcome = "success"  # | disk_full | max_spill | not_pickled | failure
        self.failure: Failure | None = None

    @property
    def io(self) -> int:
        """Nanoseconds of disk access."""
        return max(0, self.io_ended - self.io_begun)

    @property
    def total(self) -> int:
        return self.ended - self.begun


class Task:
    """A task to be computed on this worker, from its arrival until it leaves."""

    __slots__ = (
        "annotations",
        "arrival",
        "arrived",
        "blocked_by",
        "cancelled",
        "dependencies",
        "ended",
        "execute_parts",
        "executing",
        "executor",
        "failure",
        "fetches",
        "key",
        "loaded",
        "loading",
        "nbytes",
        "offset",
        "outcome",
        "prefix",
        "priority",
        "ready",
        "ready_marks",
        "ready_parts",
        "recorder",
        "rejoins",
        "rescheduled",
        "resources",
        "run_begun",
        "run_cpu",
        "run_ended",
        "run_id",
        "seceded",
        "span",
        "spills",
        "steps",
        "submitted",
        "taken",
        "thread_id",
        "thread_name",
        "wait_ended",
        "wait_parts",
        "waiting",
        "wants",
    )

    def __init__(self, view: TaskView, recorder: Recorder, now: int) -> None:
        self.recorder = recorder
        self.key: Key = view.key
        self.prefix = readable(view.prefix, MAX_PREFIX)
        self.priority = view.priority
        self.run_id = view.run_id
        self.annotations = view.annotations
        self.offset = recorder.clock.offset
        self.arrived = now
        self.arrival = recorder.arrival  # ns: its share of decoding the batch of messages that it came in
        self.blocked_by: Key | None = None  # the key that blocked the event loop while this task waited
        self.waiting = self.wait_ended = self.ready = self.executing = 0
        self.loading = self.loaded = self.submitted = self.run_begun = self.run_ended = self.run_cpu = 0
        self.seceded = self.taken = self.ended = 0
        self.thread_id = 0
        self.thread_name = ""
        self.executor = ""  # thread | async_task | process: where its function runs
        self.resources = self.cancelled = self.rescheduled = False
        self.outcome = ""
        self.failure: Failure | None = None
        self.dependencies = self.nbytes = 0
        self.wants: list[Want] | None = None
        self.fetches: list[Fetch] | None = None
        self.spills: list[SpillOp] | None = None
        self.steps: list[Any] | None = None  # of P2P shuffles: `shuffle_facts.Step`
        self.rejoins: list[int] | None = None  # when it began to wait to rejoin its pool, and when it had, in turn
        self.wait_parts: dict[str, int] | None = None
        self.ready_marks: tuple[int, int, int] | None = None
        self.ready_parts: dict[str, int] | None = None
        self.execute_parts: dict[str, int] | None = None
        self.span: Any = None  # an observer's own

    def rejoining(self) -> int:
        """Nanoseconds that its thread, which had left the pool, waited to rejoin it."""
        times = self.rejoins or []
        ends = [*times[1::2], self.run_ended or self.taken or self.ended]
        return sum(max(0, end - begin) for begin, end in zip(times[::2], ends, strict=False))

    @property
    def urgency(self) -> tuple[int, ...]:
        """Dask runs the smallest first."""
        return self.priority or ()


class Want:
    """A key that this worker wants from a peer: every stretch of its way, and the tasks that wait for it."""

    __slots__ = (
        "began",
        "ended",
        "fetches",
        "flight",
        "holders",
        "joined",
        "key",
        "marks",
        "parts",
        "queued",
        "state",
        "waiters",
        "wished",
    )

    def __init__(self, key: Key, now: int) -> None:
        self.key = key
        self.began = now
        self.ended = 0
        self.state = ""
        self.wished = now  # since when it was to be requested, for the attempt that is next or under way
        self.flight = 0  # when it last went into flight
        self.queued = 0  # since when in `fetch` or `missing`; 0: in flight
        self.marks: Any = None  # readings of the clocks at `queued`
        self.holders: tuple[str, ...] = ()
        self.parts: list[Part] = []  # queued and missing stretches that are over
        self.fetches: list[Fetch] = []
        self.joined: tuple[int, int, Mapping[str, int]] = (
            0,
            0,
            {},
        )  # `queued` and now of who joined last, and its stretch
        self.waiters: dict[Task, Mapping[str, int]] = {}  # with what the stretch that was open then had gone to before


class Fetch:
    """One `gather_dep` request. Each attempt is a record of its own."""

    __slots__ = (
        "attempts",
        "begun",
        "connecting",
        "deserialized",
        "dialling",
        "failure",
        "finished",
        "first_byte",
        "gather",
        "handshaking",
        "issued",
        "keys",
        "left_over",
        "local_loop",
        "missing_keys",
        "missing_nbytes",
        "nbytes",
        "offloaded",
        "offset",
        "outcome",
        "peer",
        "peer_known",
        "peer_loop",
        "peer_serialize",
        "peer_spill",
        "peer_unspill",
        "peers_busy",
        "peers_in_flight",
        "received",
        "recorder",
        "reused",
        "sent",
        "span",
        "spills",
        "stored",
        "wants",
        "wished",
    )

    def __init__(
        self, peer: str, keys: Collection[Key], nbytes: int, recorder: Recorder, issued: int, now: int
    ) -> None:
        self.recorder = recorder
        self.peer = peer
        self.keys = keys
        self.nbytes = nbytes
        self.offset = recorder.clock.offset
        self.issued = issued  # the transition to flight
        self.begun = now  # gather_dep runs
        self.connecting = self.dialling = self.handshaking = 0
        self.sent = self.first_byte = self.received = self.offloaded = self.deserialized = 0
        self.finished = self.stored = 0  # result taken, values stored
        self.attempts = 0
        self.left_over = False  # the peer has more of what is wanted: bytes ended the bundle
        self.peers_busy = self.peers_in_flight = 0  # peers that were skipped
        self.reused = True
        self.outcome = ""
        self.failure: Failure | None = None
        self.missing_keys = self.missing_nbytes = 0
        self.local_loop = 0
        self.peer_known = False
        self.peer_loop = self.peer_unspill = self.peer_spill = self.peer_serialize = 0
        self.wants: list[Want] = []
        self.wished: list[int] = []  # since when each wanted key was to be requested
        self.gather: Gather | None = None  # what asked for it, if not the state machine
        self.spills: list[SpillOp] | None = None
        self.span: Any = None  # an observer's own


class Serve:
    """One `get_data` request that this worker answers."""

    __slots__ = (
        "acknowledged",
        "begun",
        "drained",
        "ended",
        "failure",
        "keys",
        "loop",
        "nbytes",
        "offloaded",
        "offset",
        "outcome",
        "peer",
        "peer_kind",
        "recorder",
        "remote",
        "serialized",
        "span",
        "spills",
        "writing",
        "written",
    )

    def __init__(self, keys: Collection[Key], who: str | None, recorder: Recorder, loop: int, now: int) -> None:
        self.recorder = recorder
        self.keys = keys
        self.peer = readable(who, MAX_PREFIX) if isinstance(who, str) else ""
        self.peer_kind = "worker" if who else "unknown"  # Dask: only workers say who they are
        self.offset = recorder.clock.offset
        self.loop = loop
        self.begun = now
        self.writing = self.offloaded = self.serialized = self.written = self.drained = 0
        self.acknowledged = self.ended = 0
        self.nbytes = 0
        self.outcome = ""
        self.failure: Failure | None = None
        self.remote: Any = None  # the requester's context, for an observer
        self.spills: list[SpillOp] | None = None
        self.span: Any = None

    def spill_time(self, *, reading: bool) -> int:
        """Nanoseconds that this request spent spilling or unspilling."""
        return sum(op.total for op in self.spills or () if op.reading is reading)


class Gather:
    """One call of `Worker.gather`: the scheduler makes this worker fetch keys, past the state machine."""

    __slots__ = (
        "begun",
        "ended",
        "failure",
        "keys",
        "nbytes",
        "offset",
        "open",
        "outcome",
        "recorder",
        "span",
        "spills",
    )

    def __init__(self, keys: Collection[Key], recorder: Recorder, now: int) -> None:
        self.recorder = recorder
        self.keys = keys
        self.offset = recorder.clock.offset
        self.begun = now
        self.ended = 0
        self.nbytes = 0
        self.outcome = ""
        self.failure: Failure | None = None
        self.open: set[Fetch] = set()  # its requests that are under way
        self.spills: list[SpillOp] | None = None
        self.span: Any = None  # an observer's own


Cause = Task | Fetch | Serve | Gather


class Blocked(NamedTuple):
    """A stretch in which the event loop did not come round, and what is known of why."""

    begun: int
    ended: int
    cause: str  # spill | unspill | deserialize | serialize | arrival | async_task | thread | unknown
    key: Key | None
    offset: int


class Observer(Protocol):
    """Who is told. A record is complete when it is handed over; an observer keeps no reference to it."""

    def task_ended(self, task: Task) -> None: ...
    def fetch_ended(self, fetch: Fetch) -> None: ...
    def serve_ended(self, serve: Serve) -> None: ...
    def gather_ended(self, gather: Gather) -> None: ...
    def spill_ended(self, op: SpillOp) -> None: ...
    def loop_blocked(self, blocked: Blocked) -> None: ...
    def key_released(self, key: Hashable) -> None: ...
