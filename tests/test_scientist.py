"""An ordinary script on real worker processes, as Jaeger then has it: every second of each task has a name."""

import sys
import uuid
from collections import Counter

import pytest

from otel_worker.breakdown import Task, grouped, tasks
from otel_worker.breakdown.ours import Ours
from otel_worker.checks import check
from otel_worker.traces import Span, by_ref
from otel_worker.trees import subtree, tree
from tests.jaeger import Jaeger, eventually
from tests.processes import Programs
from tests.services import ROOT

pytestmark = [pytest.mark.services, pytest.mark.slow]

SCRIPT = ROOT / "examples" / "scientist.py"
PRINTED = ["amounts 240011", "mean 1.500", "squares 285", "counted 45"]
SERVICES = ("dask-client", "dask-worker")

LEAST = 5_000_000  # ns of a task that may have no name, whatever share of it that is


@pytest.fixture(scope="module")
def spans(jaeger: Jaeger, tmp_path_factory: pytest.TempPathFactory) -> list[Span]:
    """What Jaeger has of the script, with the settings that everybody has."""
    programs = Programs(tmp_path_factory.mktemp("scientist"))
    try:
        return recorded(programs, jaeger)
    finally:
        programs.end()


def recorded(programs: Programs, jaeger: Jaeger) -> list[Span]:
    mark = uuid.uuid4().hex
    common = {"endpoint": f"http://{jaeger.otlp_grpc}", "OTEL_RESOURCE_ATTRIBUTES": f"test.run={mark}"}
    common |= {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    scheduler = programs.scheduler(**common)
    workers = [programs.worker(scheduler, name, "--no-nanny", "--nthreads", "2", **common) for name in ("a", "b")]
    script = programs.start(sys.executable, str(SCRIPT), scheduler.address, **common)
    assert script.ended(120) == 0, script.logged()[-3000:]
    assert [line for line in script.logged().splitlines() if line in PRINTED] == PRINTED
    for program in (*workers, scheduler.program):
        program.terminate()
        assert program.ended() == 0
        assert "otel_worker" not in program.logged()

    def mine() -> list[Span]:
        found = by_ref(span for service in SERVICES for span in jaeger.spans(service=service))
        return [span for span in found.values() if span.resource.attributes.get("test.run") == mark]

    seen: list[int] = []

    def is_whole(found: list[Span]) -> bool:
        """All were sent before the processes ended; Jaeger has stored them when it has as many as a moment ago."""
        seen.append(len(found))
        return len(seen) > 1 and seen[-1] == seen[-2] > 0 and not check(found)

    return eventually(mine, is_whole, 60)


def named(spans: list[Span], operation: str) -> list[Span]:
    return [span for span in spans if span.operation == operation]


def test_every_second_of_each_task_has_a_name(spans: list[Span]) -> None:
    found = tasks(Ours(spans))
    assert sum(task.count for task in found) > 100
    nameless = {task.key: unnamed(task) for task in found if unnamed(task) > max(LEAST, task.total // 20)}
    assert nameless == {}


def test_what_is_not_explained_is_less_than_a_twentieth(spans: list[Span]) -> None:
    found = tasks(Ours(spans))
    spent = sum(part for task in found for path, part in task.parts.items() if path.startswith(("waiting", "execute")))
    other = sum(map(unnamed, found))
    (group,), _ = grouped(found)
    assert other < spent / 20, "\n".join(f"{node.path} {node.seconds:.3f} s" for node in group.tree.children)


def unnamed(task: Task) -> int:
    """Nanoseconds that no activity accounts for, in a phase or between two."""
    return sum(part for path, part in task.parts.items() if path.rpartition(".")[2] == "other")


def test_each_kind_of_work_is_seen(spans: list[Span]) -> None:
    operations = {span.operation for span in spans}
    shuffled = {"shuffle.transfer", "shuffle.barrier", "shuffle.unpack", "shuffle.send", "shuffle_receive"}
    assert (
        operations
        >= {"compute", "submit", "task", "execute", "run", "fetch", "request", "get_data", "actor"} | shuffled
    )
    ends = Counter(span.attributes["dask.outcome"] for span in named(spans, "compute"))
    assert ends == {"finished": ends["finished"], "cancelled": 1}


def test_futures_in_futures_nest(spans: list[Span]) -> None:
    """What a task submits stands below its `run`, wherever it was computed."""
    (outer,) = (span for span in spans if span.name == "task sum_of_squares")
    below = subtree(spans, outer)
    lines = tree(below)
    assert "  execute" in lines[: lines.index("      compute square")]
    assert lines[lines.index("      compute square") - 1] == "    run"
    squares = [s for s in below if s.name == "task square" and s.attributes["dask.outcome"] == "memory"]
    assert len({span.attributes["dask.task.key"] for span in squares}) == 10


def test_what_was_given_up_says_so(spans: list[Span]) -> None:
    (compute,) = (s for s in named(spans, "compute") if s.attributes["dask.outcome"] == "cancelled")
    lives = [s for s in named(spans, "task") if s.attributes.get("dask.computation") == compute.span_id]
    ends = {str(span.attributes["dask.outcome"]) for span in lives}
    assert ends & {"cancelled", "released"}
    assert ends <= {"cancelled", "released", "memory", "stolen"}
