"""Clusters in which only some processes have us, and workers that are switched off and on while they are connected."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_worker.checks import check
from otel_worker.receiver import Receiver
from otel_worker.traces import Span, read
from tests.processes import Programs, Scheduler

pytestmark = pytest.mark.slow

WORKERS = {"a": False, "b": False, "A": True, "B": True}  # capital: with us
# Dask tells of each shuffle in a warning.
TROUBLE = re.compile(
    r"^(?!.* Shuffle \S+ (?:initialized|deactivated)).*(?:- (?:WARNING|ERROR|CRITICAL) -|Traceback|Error\b|otel_worker).*$",
    re.MULTILINE,
)
ARRIVED = 6  # values in one exchange


class Mixed:
    """Two schedulers, with us and without, each with two workers with us and two without."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        self.programs = Programs(folder)
        self.receiver = receiver
        self.schedulers = {with_us: self._scheduler(with_us) for with_us in (False, True)}
        for scheduler, (name, with_us) in itertools.product(self.schedulers.values(), WORKERS.items()):
            self.programs.worker(scheduler, name, "--no-nanny", endpoint=self.endpoint(with_us))
        for scheduler in self.schedulers.values():
            scheduler.has(4)

    def endpoint(self, with_us: bool) -> str | None:
        return self.receiver.grpc_endpoint if with_us else None

    def _scheduler(self, with_us: bool) -> Scheduler:
        return self.programs.scheduler(self.endpoint(with_us))

    def client(self, scheduler: bool, client: bool, *steps: str) -> int:
        address = self.schedulers[scheduler].address
        program = self.programs.script("exchange.py", address, *steps, endpoint=self.endpoint(client))
        arrived: int = json.loads(program.printed())["arrived"]
        return arrived

    def trouble(self) -> list[str]:
        return [line for program in self.programs.started for line in TROUBLE.findall(program.logged())]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("mixed")
    with Receiver(folder / "otlp") as receiver:
        held = Mixed(folder, receiver)
        yield held
        held.programs.end()


@pytest.mark.parametrize("client", [False, True], ids=["client", "CLIENT"])
@pytest.mark.parametrize("scheduler", [False, True], ids=["scheduler", "SCHEDULER"])
def test_every_pair_of_workers_exchanges_values(mixed: Mixed, scheduler: bool, client: bool) -> None:
    pairs = [f"{one},{other}" for one in "aA" for other in "bB"]
    assert mixed.client(scheduler, client, *pairs) == len(pairs) * ARRIVED
    assert mixed.trouble() == []


def of(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.operation == name]


def test_what_is_seen_of_a_mixed_cluster(tmp_path: Path) -> None:
    """Requests say whether their peer told its half; only such have a `get_data` below them."""
    with Receiver(tmp_path / "otlp") as receiver:
        programs = Programs(tmp_path)
        try:
            endpoint = receiver.grpc_endpoint
            scheduler = programs.scheduler()
            workers = [
                programs.worker(scheduler, name, "--no-nanny", endpoint=endpoint if name.isupper() else None)
                for name in "aAB"
            ]
            scheduler.has(3)
            exchange = programs.script("exchange.py", scheduler.address, "a,B", "A,B", endpoint=endpoint)
            exchange.printed()
            for worker in workers:
                worker.terminate()
            assert [worker.ended() for worker in workers] == [0, 0, 0]
        finally:
            programs.end()
        spans = list(read(receiver.path).spans)
    assert check(spans) == []
    served = {span.parent_id for span in of(spans, "get_data")}
    requests: dict[tuple[str, bool], list[bool]] = {}
    for span in of(spans, "request"):
        key = span.attributes["dask.worker.name"], span.attributes["dask.peer.instrumented"]
        requests.setdefault(key, []).append(span.span_id in served)
    assert set(requests) == {("B", False), ("A", True), ("B", True)}
    assert all(below is instrumented for (_, instrumented), belows in requests.items() for below in belows)


@pytest.mark.parametrize("client", [False, True], ids=["client", "CLIENT"])
def test_every_pair_of_workers_shuffles_and_calls_actors(mixed: Mixed, client: bool) -> None:
    steps = ["p2p", *(f"actor:{home},{other}" for home, other in ("aB", "Ab", "AB"))]
    assert mixed.client(not client, client, *steps) == len(steps)
    assert mixed.trouble() == []


@pytest.mark.parametrize("client", [False, True], ids=["client", "CLIENT"])
def test_switched_off_and_on_while_connections_are_open(programs: Programs, tmp_path: Path, client: bool) -> None:
    with Receiver(tmp_path / "otlp") as receiver:
        endpoint = receiver.grpc_endpoint
        scheduler = programs.scheduler()
        workers = [programs.worker(scheduler, name, "--no-nanny", endpoint=endpoint) for name in "AB"]
        scheduler.has(2)
        steps = ["A,B", "-A", "A,B", "-B", "A,B", "+A", "A,B", "+B", "A,B", "-A", "A,B", "+A", "-B", "A,B"]
        calls = ["p2p", "actor:A,B", "actor:B,A"]
        calls = [*calls, "+B", *calls, "-A", "-B", *calls]
        program = programs.script(
            "exchange.py", scheduler.address, *steps, *calls, endpoint=endpoint if client else None
        )
        assert json.loads(program.printed(90))["arrived"] == steps.count("A,B") * ARRIVED + 9
        for worker in workers:
            worker.terminate()
        assert [worker.ended() for worker in workers] == [0, 0]
        spans = list(read(receiver.path).spans)
    assert check(spans) == []
    assert not any(TROUBLE.search(worker.logged()) for worker in workers)
    keys = [span.attributes["dask.task.key"] for span in of(spans, "task")]
    names = {key: span.attributes["dask.worker.name"] for key, span in zip(keys, of(spans, "task"), strict=True)}
    assert sum(key.startswith("held-0-") for key in names) == 2  # both, in the first exchange
    assert {name for key, name in names.items() if key.split("-")[1] == "2"} == {"B"}  # A is off
    assert not any(key.split("-")[1] == "4" for key in names)  # both are
