"""However a process ends: no span is lost, and a Collector that does not answer holds nobody up."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_worker.checks import check
from otel_worker.receiver import Receiver
from otel_worker.traces import Span, read
from tests.collectors import closed, exhausted, mute, silent, slow_http, unavailable
from tests.processes import Program, Programs

pytestmark = pytest.mark.slow

KILL = "still alive"  # what a Nanny logs before it kills
# By how much two runs of the same may differ on a machine that does other things too.
LOAD = 1.5  # seconds
LOADED = 1.5  # times


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path / "otlp") as held:
        yield held


def keys(prefix: str, count: int = 10) -> set[str]:
    return {f"{prefix}-{i}" for i in range(count)}


def sound(receiver: Receiver) -> list[Span]:
    spans = list(read(receiver.path).spans)
    assert check(spans) == []
    return spans


def tasks(spans: list[Span]) -> dict[str, str]:
    """Outcomes by key."""
    return {s.attributes["dask.task.key"]: s.attributes["dask.outcome"] for s in spans if s.operation == "task"}


@pytest.mark.parametrize(
    ("where", "steps", "expected"),
    [
        ("processes", ["work:a", "restart", "work:b", "close"], keys("a") | keys("b")),
        ("processes", ["work:a"], keys("a")),  # Dask closes client and cluster at the exit
        ("threads", ["work:a"], keys("a")),
        ("threads", ["work:a", "hold:0"], keys("a") | {"0-0"}),
        (
            "processes",
            ["work:a", "hold:0", "close"],
            keys("a") | {"0-0"},
        ),  # the Nanny kills that one, with us or without
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else None,
)
def test_a_local_cluster_loses_no_span(
    programs: Programs, receiver: Receiver, where: str, steps: list[str], expected: set[str]
) -> None:
    program = programs.script("work.py", where, *steps, endpoint=receiver.grpc_endpoint)
    program.printed()
    outcomes = tasks(sound(receiver))
    assert set(outcomes) == expected
    assert outcomes.pop("0-0", "closed") == "closed"
    assert set(outcomes.values()) == {"memory"}
    assert "otel_worker" not in program.logged()


def test_workers_of_the_command_line_lose_no_span(programs: Programs, receiver: Receiver) -> None:
    endpoint = receiver.grpc_endpoint
    scheduler = programs.scheduler(endpoint)
    alone = programs.worker(scheduler, "alone", "--no-nanny", endpoint=endpoint)
    guarded = programs.worker(scheduler, "guarded", endpoint=endpoint)
    retired = programs.worker(scheduler, "retired", endpoint=endpoint)
    steps = ("wait:3", "work:a", "retire:retired", "work:b", "hold:alone")
    programs.script("work.py", scheduler.address, *steps, endpoint=endpoint).printed()
    alone.terminate()
    guarded.terminate()
    assert [worker.ended() for worker in (alone, guarded, retired)] == [0, 0, 0]
    outcomes = tasks(sound(receiver))
    assert set(outcomes) == keys("a") | keys("b") | {"alone-0"}


# --- a Collector that does not answer ----------------------------------------------------------------------------------


def dead(*endpoints: tuple[Any, str]) -> pytest.MarkDecorator:
    ids = [f"{protocol[:4]}-{endpoint.__name__}" for endpoint, protocol in endpoints]
    return pytest.mark.parametrize(("endpoint", "protocol"), endpoints, ids=ids)


def seconds(program: Program) -> dict[str, float]:
    """Of its steps, and from their end to the process's."""
    told = json.loads(program.printed())
    return {**told, "exit": time.time() - told["done"]}


@dead((mute, "grpc"), (silent, "http/protobuf"), (closed, "grpc"))
def test_a_dead_collector_holds_up_no_restart_close_or_exit(programs: Programs, endpoint, protocol: str) -> None:
    steps = ("processes", "work:a", "restart", "work:b", "close")
    without = seconds(programs.script("work.py", *steps))
    with endpoint() as url:
        ours = programs.script("work.py", *steps, endpoint=url, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        with_us = seconds(ours)
    print({step: (without[step], with_us[step]) for step in without if step != "done"})
    if without["close"] < 1:  # else the machine is too busy to close even plain workers in time
        assert KILL not in ours.logged(), ours.logged()
    for step in ("restart", "close", "exit"):
        assert with_us[step] < LOADED * without[step] + 3 + LOAD, step
    assert with_us["work:b"] < without["work:b"] + LOAD


@dead((exhausted, "grpc"), (unavailable, "http/protobuf"), (slow_http, "http/protobuf"))
def test_a_collector_that_refuses_holds_up_no_exit(programs: Programs, endpoint, protocol: str) -> None:
    with endpoint() as url:
        ours = programs.script("work.py", "threads", "work:a", endpoint=url, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        took = seconds(ours)
    print(took)
    assert took["exit"] < 3 + 2 * LOAD  # Dask closes client and cluster meanwhile
    assert ours.logged().count("otel_worker: tasks are not affected") <= 1, ours.logged()


@dead((silent, "grpc"), (closed, "http/protobuf"))
def test_a_dead_collector_holds_up_no_worker_that_gets_sigterm(programs: Programs, endpoint, protocol: str) -> None:
    scheduler = programs.scheduler()
    plain = [programs.worker(scheduler, "0", "--no-nanny"), programs.worker(scheduler, "1")]
    with endpoint() as url:
        variables = {"endpoint": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        ours = [
            programs.worker(scheduler, "2", "--no-nanny", **variables),
            programs.worker(scheduler, "3", **variables),
        ]
        programs.script("work.py", scheduler.address, "wait:4", "work:a").printed()
        without, with_us = until_ended(plain), until_ended(ours)
    print(without, with_us)
    assert not any(KILL in worker.logged() for worker in ours) or without > 1
    assert with_us < LOADED * without + 3 + LOAD


def until_ended(workers: list[Program]) -> float:
    began = time.monotonic()
    for worker in workers:
        worker.terminate()
    assert [worker.ended() for worker in workers] == [0, 0]
    return time.monotonic() - began
