"""Tasks -> trees of where their time went, for each group of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from otel_worker.breakdown.activities import journey
from otel_worker.breakdown.tasks import BY, Task


class Node(Struct, frozen=True):
    """A part of the time of a group's tasks. Seconds; mean, p50, p95 and max are over the tasks that have this part.

    Coalesced spans tell sums only: they count in `seconds`, `tasks` and `mean`, not in the percentiles.
    """

    name: str  # its own: "dial"
    path: str  # from the phase on: "waiting.connect.dial"; empty for the whole
    seconds: float
    share: float  # of the group's whole
    own: float  # seconds that no child explains
    tasks: int
    mean: float
    p50: float
    p95: float
    max: float
    children: tuple["Node", ...] = ()


class Group(Struct, frozen=True):
    by: dict[str, str]  # what its tasks have in common
    tree: Node


class Left(Struct, frozen=True):
    """The groups that are not shown."""

    groups: int = 0
    tasks: int = 0
    seconds: float = 0.0


class _Sums:
    """Integer nanoseconds of one part."""

    __slots__ = ("count", "each", "total")

    def __init__(self) -> None:
        self.total = 0
        self.count = 0
        self.each: list[int] = []  # of single tasks


def grouped(tasks: Iterable[Task], by: Sequence[str] = (), most: int = 20) -> tuple[list[Group], Left]:
    """The `most` groups with the most seconds, and what the others come to. Without `by` all is one group."""
    keys = [BY[name] for name in by]
    held: dict[tuple[str, ...], list[Task]] = defaultdict(list)
    for task in tasks:
        held[tuple([key(task) for key in keys])].append(task)
    totals = {values: sum(t.total for t in members) for values, members in held.items()}
    order = sorted(held, key=lambda values: (-totals[values], values))
    groups = [Group(dict(zip(by, values, strict=True)), tree(held[values])) for values in order[:most]]
    others = order[most:]
    count = sum(t.count for values in others for t in held[values])
    return groups, Left(len(others), count, sum(totals[values] for values in others) / 1e9)


def tree(tasks: Iterable[Task]) -> Node:
    """One tree for all of the tasks; `self_check` holds."""
    sums: dict[str, _Sums] = defaultdict(_Sums)
    single: dict[tuple[str, ...], list[tuple[int, ...]]] = defaultdict(list)
    for task in tasks:
        if task.count == 1:
            single[tuple(task.parts)].append(tuple(task.parts.values()))
        else:
            _add_coalesced(task, sums)
    for paths, rows in single.items():
        _add_alike(paths, rows, sums)
    below: dict[str, list[str]] = defaultdict(list)
    for path in sums:
        if path:
            below[path.rpartition(".")[0]].append(path)
    return _node("", sums, below)


def _add_alike(paths: Sequence[str], rows: Sequence[tuple[int, ...]], sums: dict[str, _Sums]) -> None:
    """Tasks with the same parts, a column at a time: four times as fast as a task at a time."""
    columns: dict[str, list[Sequence[int]]] = defaultdict(list)
    for path, column in zip(paths, zip(*rows, strict=True), strict=True):
        for above in _ancestors(path):
            columns[above].append(column)
    for path, parts in (columns or {"": [[0] * len(rows)]}).items():
        each = parts[0] if len(parts) == 1 else list(map(sum, zip(*parts, strict=True)))
        held = sums[path]
        held.total += sum(each)
        held.count += len(each)
        held.each.extend(each)


def _add_coalesced(task: Task, sums: dict[str, _Sums]) -> None:
    for path, part in task.parts.items():
        for above in _ancestors(path):
            sums[above].total += part
    for above in {above for path in task.parts for above in _ancestors(path)} or {""}:
        sums[above].count += task.count


def _ancestors(path: str) -> tuple[str, ...]:
    """The path itself, what is above it, and the whole."""
    if path not in _ANCESTORS:
        words = path.split(".")
        _ANCESTORS[path] = ("", *(".".join(words[: i + 1]) for i in range(len(words))))
    return _ANCESTORS[path]


_ANCESTORS: dict[str, tuple[str, ...]] = {}  # a cache: there are few paths


def _node(path: str, sums: Mapping[str, _Sums], below: Mapping[str, list[str]]) -> Node:
    mine = sums.get(path) or _Sums()
    nodes = [_node(p, sums, below) for p in sorted(below.get(path, []), key=journey)]
    explained = sum(sums[p].total for p in below.get(path, []))
    each = sorted(mine.each)
    whole = sums[""].total if "" in sums else 0
    return Node(
        path.rpartition(".")[2],
        path,
        mine.total / 1e9,
        mine.total / whole if whole else 0.0,
        (mine.total - explained) / 1e9,
        mine.count,
        mine.total / mine.count / 1e9 if mine.count else 0.0,
        _quantile(each, 0.5),
        _quantile(each, 0.95),
        _quantile(each, 1.0),
        tuple(nodes),
    )


def _quantile(ordered: Sequence[int], q: float) -> float:
    """Seconds; the nearest rank, so that it is a value that was seen."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))] / 1e9


def self_check(node: Node) -> list[str]:
    """Own time + children = total, everywhere; a sentence for each place where it does not hold."""
    found = [sentence for child in node.children for sentence in self_check(child)]
    difference = node.seconds - node.own - sum(child.seconds for child in node.children)
    if abs(difference) > 1e-6 + 1e-9 * abs(node.seconds):
        found.append(f"{node.path or 'all'} is {difference:+.9f} s more than its parts.")
    if node.own < -1e-9:
        found.append(f"{node.path or 'all'} has less than nothing of its own: {node.own:.9f} s.")
    return found
