"""What if a part were zero: a computation's critical path without it."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from otel_worker import names
from otel_worker.breakdown.apportion import add
from otel_worker.breakdown.critical import critical_parts, fetches
from otel_worker.breakdown.ours import Ours
from otel_worker.breakdown.tasks import ARRIVAL, Task
from otel_worker.traces import Span

# What could be made to vanish -> the paths that it is made of.
PARTS: dict[str, tuple[str, ...]] = {
    "connections": ("waiting.connect",),
    "remote event loops": ("waiting.peer.loop",),
    "unspill": ("waiting.peer.unspill", "execute.load.unspill"),
    "serialization": ("waiting.peer.serialize",),
    "deserialization": ("waiting.deserialize",),
    "spill": ("waiting.store.spill", "waiting.peer.spill", "execute.store.spill", "execute.load.spill"),
    "network": ("waiting.network",),
    "queues before requests": ("waiting.queued",),
    "local event loop": ("waiting.loop", "execute.loop"),
    "thread slots": ("ready.thread_slot",),
    "arrival": ("arrival",),
}

_WORTH = 0.005  # of the path; less is noise


class WhatIf(Struct, frozen=True):
    """A computation would take at least `seconds` less `saved` if `part` took no time.

    At most that much is saved: another path may take its place.
    """

    computation: str
    name: str
    part: str
    seconds: float  # of the critical path as it was
    saved: float


def what_if(tasks: Iterable[Task], ours: Ours, most: int = 3) -> list[WhatIf]:
    """For the `most` longest computations, every part that is on its critical path, most seconds first."""
    computes = {s.span_id: s for s in ours[names.COMPUTE]}
    members: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        if task.count == 1:
            members[task.computation].append(task)
    longest = sorted(members, key=lambda name: -_extent(members[name]))[:most]
    found = []
    for name in longest:
        path = critical_path(members[name], computes.get(name), ours)
        found += _without(name, computes.get(name), path)
    return found


def _extent(tasks: Sequence[Task]) -> int:
    return max(t.span.end for t in tasks) - min(t.span.start for t in tasks)


def _without(computation: str, compute: Span | None, path: Mapping[str, int]) -> list[WhatIf]:
    total = sum(path.values()) / 1e9
    found = [
        WhatIf(computation, compute.name if compute else "", part, total, _below(path, prefixes) / 1e9)
        for part, prefixes in PARTS.items()
    ]
    return sorted((w for w in found if w.saved > total * _WORTH), key=lambda w: -w.saved)


def _below(path: Mapping[str, int], prefixes: Sequence[str]) -> int:
    return sum(part for name, part in path.items() if any(f"{name}.".startswith(f"{p}.") for p in prefixes))


def critical_path(tasks: Sequence[Task], compute: Span | None, ours: Ours) -> dict[str, int]:
    """Nanoseconds by path, back from the task that ended last; before each, the task that ended last before it came.

    The spans do not tell all dependencies: that the last to end is what a task was sent for is a guess, a good one
    while the scheduler sends a task as soon as it can run. What lies between the two is `scheduler`.
    """
    ordered = sorted(tasks, key=lambda t: (t.span.end, t.span.start))
    ends = [t.span.end for t in ordered]
    begin = compute.start if compute else min(t.span.start for t in ordered)
    on_path, scheduler = [], 0
    at, i = ends[-1], len(ordered) - 1
    while i >= 0 and at > begin:
        task = ordered[i]
        on_path.append(task)
        arrived = min(task.span.start - task.parts.get(ARRIVAL, 0), at)
        i = min(bisect_right(ends, arrived), i) - 1
        at = ends[i] if i >= 0 else begin
        scheduler += max(0, arrived - at)
    path = {"scheduler": scheduler}
    held = fetches(ours, on_path)
    for task in on_path:
        add(path, critical_parts(task, held))
    return path
