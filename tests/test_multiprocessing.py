"""However Dask makes a worker's process, and however often we are switched on in it: each operation is one span, and none is lost."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_worker.checks import check
from otel_worker.receiver import Receiver
from otel_worker.traces import Span, read
from tests.processes import Programs

pytestmark = pytest.mark.slow

METHOD = "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"
TRACES = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path / "otlp") as held:
        yield held


def recorded(receiver: Receiver) -> list[Span]:
    spans = list(read(receiver.path).spans)
    assert check(spans) == []
    return spans


@pytest.mark.parametrize(
    ("method", "protocol"), [("spawn", "http/protobuf"), ("fork", "grpc"), ("forkserver", "http/protobuf")]
)
def test_each_way_to_make_a_process(programs: Programs, receiver: Receiver, method: str, protocol: str):
    """A fork runs no `atexit`: what its worker recorded has to leave before the worker has finished."""
    endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
    variables = {METHOD: method, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, **TRACES}
    program = programs.script(
        "work.py", "processes", "wait:2", "work:a", "pids", "close", endpoint=endpoint, **variables
    )
    pids = json.loads(program.printed())["pids"]
    assert "otel_worker" not in program.logged()
    spans = recorded(receiver)
    tasks = [span for span in spans if span.operation == "task"]
    assert sorted(span.attributes["dask.task.key"] for span in tasks) == [f"a-{i}" for i in range(10)]
    assert {span.attributes["dask.worker.name"] for span in tasks} == {"0", "1"}
    assert {span.service for span in tasks} == {"dask-worker"}
    assert len(set(pids.values())) == 3


THRICE = """
import logging
from distributed import Client, LocalCluster
from otel_worker import DaskInstrumentor
if __name__ == "__main__":
    DaskInstrumentor().instrument()
    options = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": ":0"}
    with LocalCluster(preload=["otel_worker.preload"], processes=False, protocol="tcp", **options) as cluster:
        with Client(cluster) as client:
            a, b = client.scheduler_info(n_workers=-1)["workers"]
            x = client.submit(int, 1, key="x-1", workers=[a])
            assert client.submit(float, x, key="y-1", workers=[b]).result() == 1.0
"""


def test_switched_on_three_times(programs: Programs, receiver: Receiver, tmp_path: Path):
    """By `opentelemetry-instrument`, in code, and by a preload of each worker."""
    script = tmp_path / "thrice.py"
    script.write_text(THRICE)
    program = programs.start(sys.executable, str(script), endpoint=receiver.grpc_endpoint, **TRACES)
    assert program.ended() == 0, program.logged()[-3000:]
    assert program.logged().count("already instrumented") == 1  # said to the code; a preload asks first
    spans = recorded(receiver)
    found = Counter(span.name for span in spans if span.operation in ("compute", "task", "fetch", "request", "run"))
    assert found == {
        "compute x": 1,
        "compute y": 1,
        "task x": 1,
        "task y": 1,
        "run": 2,
        "fetch y": 1,
        "request": 1,
    }
