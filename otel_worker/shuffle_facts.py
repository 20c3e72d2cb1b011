"""P2P shuffles and rechunks: what tasks do in them, and what a worker sends, receives, writes and flushes meanwhile.

Times are as in `facts`. Dask meters much of this itself (distributed.metrics.context_meter): what it says is kept as it
came, as (label, value, unit), since threads may append while another thread reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_worker import names
from otel_worker.facts import MAX_PREFIX, Failure, Task, readable

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from otel_worker.facts import Key
    from otel_worker.recorder import Recorder

Metered = tuple["Hashable", float, str]


def activity(label: Hashable) -> str:
    """Dask's label as one of our activities: "p2p-shard-partition-cpu" is "shard_partition_cpu"."""
    words = label if isinstance(label, tuple) else (label,)
    return readable(".".join(map(str, words)).removeprefix("p2p-").replace("-", "_"), MAX_PREFIX)


def metered_sums(metered: Iterable[Metered], unit: str) -> dict[str, int]:
    """What Dask metered in `unit` ("seconds" become ns), by activity."""
    scale = 1e9 if unit == "seconds" else 1
    found: dict[str, int] = {}
    for label, value, its_unit in list(metered):
        if its_unit == unit:
            name = activity(label)
            found[name] = found.get(name, 0) + round(value * scale)
    return found


def within(where: str, parts: Mapping[str, int]) -> dict[str, int]:
    """Activities as the metrics name them: where, and what."""
    return {f"{where}.{name}": value for name, value in parts.items()}


class Shuffle:
    """One run of a shuffle, as one worker knows it."""

    __slots__ = ("annotations", "id", "prefix", "recorder", "run_id", "transfers")

    def __init__(self, shuffle_id: str, run_id: int, recorder: Recorder) -> None:
        self.id = shuffle_id
        self.run_id = run_id
        self.recorder = recorder
        self.annotations: Mapping[str, Any] | None = None  # of its tasks
        self.prefix = ""  # of the first of them that was here
        self.transfers: dict[Any, Key] = {}  # input partition -> the task that brought it in


class Background:
    """The context of one of a shuffle's background tasks."""

    __slots__ = ("shuffle", "where")

    def __init__(self, shuffle: Shuffle, where: str) -> None:
        self.shuffle = shuffle
        self.where = where  # Dask's word: background-comms | background-disk


class Step:
    """What a task does in a shuffle, in its thread: `transfer`, `barrier` or `unpack`."""

    __slots__ = (
        "begun",
        "ended",
        "failure",
        "flush_begun",
        "flush_ended",
        "joined",
        "kind",
        "metered",
        "partition",
        "shuffle",
    )

    def __init__(self, kind: str, shuffle_id: str, partition: Any, now: int) -> None:
        self.kind = kind
        self.shuffle = shuffle_id
        self.partition = partition
        self.begun = now
        self.joined = 0  # this worker knows the run, and the step's own work begins
        self.flush_begun = self.flush_ended = self.ended = 0
        self.metered: list[Metered] = []
        self.failure: Failure | None = None

    def parts(self) -> dict[str, int]:
        """Nanoseconds by activity; they sum to the step. What Dask metered is bounded by what our own marks leave."""
        rest = self.ended - self.begun
        joined = self.joined or self.flush_begun or self.ended
        told = {names.SHUFFLE_JOIN: (self.flush_begun or joined) - self.begun}
        if self.flush_begun:
            told[names.SHUFFLE_FLUSH_DISK] = (self.flush_ended or self.ended) - self.flush_begun
        if self.kind == names.SHUFFLE_BARRIER:
            told[names.SHUFFLE_INPUTS_DONE] = self.ended - joined
        parts: dict[str, int] = {}
        for name, ns in (*told.items(), *metered_sums(self.metered, "seconds").items()):
            if (ns := min(ns, rest)) > 0:
                parts[name] = ns
                rest -= ns
        if rest:
            parts[names.LOOP] = rest
        return parts

    def waits(self) -> dict[str, int]:
        """Those of its parts in which it waited for others: activities of an execution."""
        parts = self.parts()
        return {f"{names.RUN_SHUFFLE}.{name}": parts[name] for name in names.SHUFFLE_WAITS if name in parts}

    @property
    def nbytes(self) -> int:
        """Bytes of its shards, as Dask counts them."""
        return sum(metered_sums(self.metered, "bytes").values())


class Transport:
    """A batch of shards on its way: sent to a peer, received from one, or written to disk; or the flush of all of them."""

    __slots__ = (
        "annotations",
        "begun",
        "ended",
        "failure",
        "kind",
        "loop",
        "metered",
        "nbytes",
        "offset",
        "outcome",
        "partitions",
        "peer",
        "peer_kind",
        "peer_known",
        "recorder",
        "remote",
        "sent",
        "shuffle",
        "shuffle_id",
        "span",
    )

    def __init__(self, kind: str, shuffle_id: str, shuffle: Shuffle | None, recorder: Recorder, now: int) -> None:
        self.kind = kind  # the name of its span
        self.shuffle_id = shuffle_id
        self.shuffle = shuffle
        self.recorder = recorder
        self.offset = recorder.clock.offset
        self.begun = now
        self.sent = self.ended = 0
        self.peer = self.peer_kind = ""
        self.peer_known = False
        self.nbytes = 0
        self.partitions: list[Any] = []  # the input partitions of its shards
        self.loop = 0
        self.metered: list[Metered] = []
        self.outcome = ""
        self.failure: Failure | None = None
        self.remote: Any = None  # the sender's context, for an observer
        self.annotations: Mapping[str, Any] | None = None  # of the sender's tasks
        self.span: Any = None  # an observer's own

    def meter(self, label: Hashable, value: float, unit: str) -> None:
        """Hear what Dask meters."""
        self.metered.append((label, value, unit))

    def parts(self) -> dict[str, int]:
        """Nanoseconds by activity: what Dask metered, and the rest."""
        rest = self.ended - self.begun
        parts: dict[str, int] = {}
        for name, ns in metered_sums(self.metered, "seconds").items():
            if (ns := min(ns, rest)) > 0:
                parts[name] = ns
                rest -= ns
        if rest:
            parts[names.OTHER] = rest
        return parts


def step_now(task: Any) -> Step | None:
    """What a task does in a shuffle now."""
    if type(task) is not Task or not task.steps or task.steps[-1].ended:
        return None
    step: Step = task.steps[-1]
    return step
