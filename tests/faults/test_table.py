"""The fault table: on a cluster of real processes a fault acts below Dask, and the report names it under the right task.

What is expected stands in TABLE beforehand, in seconds; what a part is held against is what the fault itself measured,
within max(10 %, 50 ms). And the parts of each wait add up to its wall time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from otel_worker.breakdown import self_check
from otel_worker.reports import METHODS, Report
from tests.faults import acts
from tests.faults.bench import Bench, bench, phase_span, report, task_span
from tests.faults.tools import NOTES, near

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from otel_worker.breakdown import Node
    from otel_worker.reports import Method
    from otel_worker.traces import Span, Traces

pytestmark = [pytest.mark.faults, pytest.mark.slow]

RETRY = 0.15  # seconds after which Dask asks a peer again that was busy
Parts = dict[str, tuple[float, str]]  # path -> (seconds expected, the fault that measures them)


@dataclass(frozen=True)
class Row:
    act: Callable[[Bench], None]
    shares: Parts
    critical_path: Parts | None = None  # None: the same
    late: float = 0.0  # seconds by which Dask itself may be late to see that the fault is over
    besides: tuple[str, ...] = ()  # parts that are there for another reason

    @property
    def key(self) -> str:
        return f"use-{self.act.__name__}"

    def parts(self, method: Method) -> Parts:
        return self.shares if method == "shares" or self.critical_path is None else self.critical_path


TABLE: Mapping[str, Row] = {
    "a handshake of 1 s": Row(acts.handshake, {"waiting.connect.handshake": (1.0, "handshake")}),
    "pool limit 1": Row(acts.pool, {"waiting.connect.pool": (1.0, "pool")}),
    "two refused dials": Row(acts.dials, {"waiting.connect.dial": (0.0, "refused")}),
    "dials refused for 1 s": Row(acts.refused, {"waiting.connect.dial": (1.0, "refused")}),
    "a peer busy for 1.2 s": Row(acts.busy, {"waiting.queued.busy": (1.2, "busy")}, late=RETRY),
    "its disk read and unpickling 0.3 s": Row(
        acts.disk, {"waiting.peer.unspill": (0.3, "read"), "waiting.deserialize": (0.3, "received")}
    ),
    "its loop stopped for 1.5 s": Row(acts.stopped, {"waiting.peer.loop": (1.5, "stopped")}),
    "three deserialisations, one thread": Row(
        acts.offload,
        {"waiting.deserialize": (1.2, "all")},
        {"waiting.deserialize": (0.4, "last"), "waiting.deserialize.queue": (0.8, "before")},
    ),
    "spilling 2 s": Row(acts.spilling, {"waiting.store.spill": (2.0, "hog.pickling")}),
    "paused 2 s": Row(acts.paused, {"ready.paused": (2.0, "paused")}, besides=("ready.thread_slot",)),
    "one thread held 2 s": Row(acts.thread, {"ready.thread_slot": (2.0, "hold")}),
    "a resource taken 2 s": Row(acts.resource, {"ready.resources": (2.0, "taken")}),
    "a module of 1 s to import": Row(acts.module, {"arrival": (1.0, "import")}),
    "a local loop blocked 1.5 s": Row(acts.loop, {"waiting.loop": (1.5, "block")}),
    "a key without holder 2 s": Row(acts.missing, {"waiting.missing": (2.0, "missing")}),
}


@dataclass
class Seen:
    """What a fault left behind."""

    traces: Traces
    measured: dict[str, float] = field(default_factory=dict)  # seconds by fault, as far as the task was there


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("table")) as held:
        yield held


@pytest.fixture(scope="module")
def seen(cluster: Bench) -> Callable[[str], Seen]:
    """Each fault acts once, for both methods."""
    held: dict[str, Seen] = {}

    def look(fault: str) -> Seen:
        if fault not in held:
            row = TABLE[fault]
            cluster.clean()
            row.act(cluster)
            traces = cluster.traces(row.key)
            held[fault] = Seen(traces, {name: while_there(name, task_span(traces, row.key)) for name in NOTES})
        return held[fault]

    return look


def while_there(name: str, task: Span) -> float:
    """Seconds of the fault from the task's arrival, its decoding included, until its end."""
    arrival = float(task.attributes.get("dask.task.arrival", 0))
    begun = task.start - round(arrival * 1e9)
    return sum(max(0, min(end, task.end) - max(start, begun)) for start, end in NOTES[name]) / 1e9


def between(seen: float, least: float, most: float) -> bool:
    return least <= seen <= most or near(seen, least) or near(seen, most)


def flat(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from flat(child)


def told(found: Report) -> dict[str, float]:
    """Seconds by path, without what a part of it explains."""
    (group,) = found.groups
    return {node.path: node.own for node in flat(group.tree)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", TABLE)
def test_the_report_names_the_fault(seen: Callable[[str], Seen], fault: str, method: Method):
    row, acted = TABLE[fault], seen(fault)
    found = report(acted.traces, row.key, method)
    parts = told(found)
    expected = {path: acted.measured[name] for path, (_, name) in row.parts(method).items()}
    for path, (seconds, name) in row.parts(method).items():
        told_ = f"{path} {seconds} s expected, {expected[path]:.3f} measured, {parts.get(path, 0.0):.3f} reported"
        print(f"{fault}, {method}: {told_}")
        assert expected[path] > 0.75 * seconds, f"{name} did not act as planned: {told_}"
        assert between(parts.get(path, 0.0), expected[path], expected[path] + row.late), f"{told_}: {parts}"
    phase = next(iter(expected)).partition(".")[0]
    rest = {p: s for p, s in parts.items() if p.partition(".")[0] == phase and p not in (*expected, *row.besides)}
    assert sum(rest.values()) <= max(0.1 * sum(expected.values()), 0.05) + row.late, rest
    (slowest,) = found.slowest
    assert slowest.key == row.key


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", TABLE)
def test_the_parts_add_up_to_the_wall_time(seen: Callable[[str], Seen], fault: str, method: Method):
    row, acted = TABLE[fault], seen(fault)
    (group,) = report(acted.traces, row.key, method).groups
    assert self_check(group.tree) == []
    phase = next(iter(row.shares)).partition(".")[0]
    if phase == "arrival":
        return  # comes before the task's span: it has no parts
    wait = phase_span(acted.traces, row.key, phase)
    (node,) = [n for n in flat(group.tree) if n.path == phase]
    assert node.seconds == pytest.approx(wait.duration / 1e9, abs=2e-6)  # exported phases end 1 us early
    assert sum(part.own for part in flat(node)) == pytest.approx(node.seconds, abs=1e-8)


def test_two_refused_dials_are_counted(seen: Callable[[str], Seen]):
    traces = seen("two refused dials").traces
    waiting = phase_span(traces, "use-dials", "waiting")
    (fetch,) = [s for s in traces.spans if s.operation == "fetch" and s.parent_ref == waiting.ref]
    (connect,) = [s for s in traces.spans if s.name == "connect" and s.parent_ref == fetch.ref]
    assert connect.attributes["dask.connect.attempts"] == 3


@pytest.mark.parametrize("method", METHODS)
def test_what_is_imported_once_is_paid_once_and_never_counts_as_ready(seen: Callable[[str], Seen], method: Method):
    traces = seen("a module of 1 s to import").traces
    first, second = (told(report(traces, key, method)) for key in ("use-module", "use-module-again"))
    assert second.get("arrival", 0.0) < 0.05
    for parts in (first, second):
        assert sum(s for path, s in parts.items() if path.partition(".")[0] == "ready") < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_the_sentence_names_the_key_that_blocked_the_loop(seen: Callable[[str], Seen], method: Method):
    found = report(seen("a local loop blocked 1.5 s").traces, "use-loop", method)
    (slowest,) = found.slowest
    assert slowest.part == "waiting.loop"
    assert slowest.sentence.endswith("because the worker's own event loop was busy, blocked by culprit-1")
