"""Spans -> one record a task: what its time is made of, method `shares` (what the worker itself worked out)."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from otel_worker import names
from otel_worker.breakdown.ours import Ours
from otel_worker.traces import Ref, Span, number

# A part is named by its path, phase first: "waiting.connect.dial". What no phase covers is "other".
Parts = Mapping[str, int]

OTHER: Final = "other"
ARRIVAL: Final = "arrival"
_MOST_SECONDS: Final = 1e9
_PHASES: Final = (names.WAITING, names.READY, names.EXECUTE)
_PREFIXES: Final = {
    names.WAIT_PREFIX: names.WAITING,
    names.READY_PREFIX: names.READY,
    names.EXECUTE_PREFIX: names.EXECUTE,
}


class Task(Struct, frozen=True, gc=False):
    """A `task` span with its phases, or a `tasks` span that stands for `count` of them."""

    span: Span
    parts: Parts  # nanoseconds by path
    count: int = 1
    waiting: Span | None = None
    ready: Span | None = None
    execute: Span | None = None

    @property
    def total(self) -> int:
        """Nanoseconds from the decoding of its message to its end, of all that it stands for."""
        return sum(self.parts.values())

    @property
    def key(self) -> str:
        return str(self.span.attributes.get(names.TASK_KEY, ""))

    @property
    def prefix(self) -> str:
        return str(self.span.attributes.get(names.TASK_PREFIX) or self.span.name.partition(" ")[2])

    @property
    def group(self) -> str:
        return str(self.span.attributes.get(names.TASK_GROUP, ""))

    @property
    def worker(self) -> str:
        """Its address, which every link and peer names; else its service."""
        return str(self.span.attributes.get(names.WORKER_ADDRESS) or self.span.service)

    @property
    def computation(self) -> str:
        return str(self.span.attributes.get(names.COMPUTATION) or self.span.trace_id)


BY: Final[dict[str, Callable[[Task], str]]] = {
    "key": lambda task: task.key,
    "prefix": lambda task: task.prefix,
    "group": lambda task: task.group,
    "worker": lambda task: task.worker,
    "computation": lambda task: task.computation,
}


def worker_names(found: Iterable[Task]) -> dict[str, str]:
    """By address, of the workers whose names say more than that."""
    named = {task.worker: str(task.span.attributes.get(names.WORKER_NAME) or "") for task in found}
    return {address: name for address, name in sorted(named.items()) if name and name != address}


def tasks(ours: Ours) -> list[Task]:
    """Every task among the spans, by start."""
    phases: dict[Ref, dict[str, Span]] = defaultdict(dict)
    for name in _PHASES:
        for span in ours[name]:
            phases[span.trace_id, span.parent_id][name] = span
    found = [_task(top, phases.get((top.trace_id, top.span_id), {})) for top in ours[names.TASK]]
    found += [_coalesced(top) for top in ours[names.TASKS]]
    return sorted(found, key=_by_start)


def _by_start(task: Task) -> int:
    return task.span.start


def _coalesced(top: Span) -> Task:
    arrival = arrival_of(top)
    count = max(1, int(number(top.attributes.get(names.TASKS_COUNT))))
    return Task(top, told(top) | ({ARRIVAL: arrival} if arrival else {}), count)


def _task(top: Span, phases: Mapping[str, Span]) -> Task:
    parts = told(top)  # of phases too short for a span of their own
    for phase in phases.values():
        parts.update(phase_parts(phase))
    rest = top.duration - sum(parts.values())
    if arrival := arrival_of(top):
        parts[ARRIVAL] = arrival
    if rest > 0:
        parts[OTHER] = rest
    get = phases.get
    return Task(top, parts, 1, get(names.WAITING), get(names.READY), get(names.EXECUTE))


def arrival_of(top: Span) -> int:
    """Nanoseconds before the span begins: the task's share of decoding the message that brought it."""
    return max(0, int(number(top.attributes.get(names.ARRIVAL)) * 1e9 + 0.5))


def phase_parts(phase: Span) -> dict[str, int]:
    """What its attributes tell, which is exact; else its length, unexplained."""
    return told(phase) or {f"{phase.name}.{OTHER}": max(0, phase.duration)}


def told(span: Span) -> dict[str, int]:
    """Nanoseconds by path out of `dask.wait.*`, `dask.ready.*` and `dask.execute.*`."""
    found = {}
    paths = _PATHS
    for name, value in span.attributes.items():
        path = paths.get(name)
        if path is None:
            path = _remember_path(name)
        if path and isinstance(value, (float, int)) and 0 < value < _MOST_SECONDS:
            found[path] = int(value * 1e9 + 0.5)
    return found


_PATHS: dict[str, str] = {}  # attribute -> path, "" where it is none; a cache: a million spans have few names
_MAX_PATHS = 10_000


def _remember_path(name: str) -> str:
    for prefix, phase in _PREFIXES.items():
        if name.startswith(prefix):
            path = f"{phase}.{name[len(prefix) :]}"
            break
    else:
        path = ""
    if len(_PATHS) < _MAX_PATHS:
        _PATHS[name] = path
    return path
