"""Under `opentelemetry-instrument`, in each way in which Dask starts processes: who is traced, and who is silent."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_worker.checks import check
from otel_worker.receiver import Receiver
from otel_worker.traces import Span, read
from tests.processes import Programs

pytestmark = pytest.mark.slow


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path / "otlp") as held:
        yield held


def by_process(receiver: Receiver) -> dict[tuple[str, int], list[Span]]:
    """By the process that made them: its service and its pid."""
    spans = list(read(receiver.path).spans)
    assert check(spans) == []
    found: dict[tuple[str, int], list[Span]] = {}
    for span in spans:
        assert span.resource.attributes["host.name"]
        found.setdefault((span.service, int(span.resource.attributes["process.pid"])), []).append(span)
    return found


def pids(programs: Programs, where: str, receiver: Receiver, **variables: str) -> dict[str, int]:
    """Work there; the pids of the client and of the workers by name."""
    program = programs.script(
        "work.py", where, "wait:2", "work:a", "pids", "close", endpoint=receiver.grpc_endpoint, **variables
    )
    found: dict[str, int] = json.loads(program.printed())["pids"]
    assert "otel_worker" not in program.logged()
    return found


# The SDK's own detectors of what a process is; `opentelemetry-instrument` users set the same.
PROCESS = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "otel,process"}


def test_the_command_line_with_and_without_nanny(programs: Programs, receiver: Receiver) -> None:
    endpoint = receiver.grpc_endpoint
    scheduler = programs.scheduler(endpoint, **PROCESS)
    nanny = programs.worker(scheduler, "nanny", endpoint=endpoint, **PROCESS)
    alone = programs.worker(scheduler, "alone", "--no-nanny", endpoint=endpoint, **PROCESS)
    found = pids(programs, scheduler.address, receiver, **PROCESS)
    for worker in (nanny, alone):
        worker.terminate()
        assert worker.ended() == 0
    scheduler.program.terminate()
    assert scheduler.program.ended() == 0

    assert found["nanny"] != nanny.popen.pid  # its child
    assert found["alone"] == alone.popen.pid
    spans = by_process(receiver)
    expected = {("dask-client", found["client"]), ("dask-worker", found["nanny"]), ("dask-worker", found["alone"])}
    assert set(spans) == expected  # neither the Nanny nor the scheduler
    names = [{span.operation for span in spans["dask-worker", found[name]]} for name in ("nanny", "alone")]
    assert names[0] & names[1] >= {"task", "execute", "run"}
    assert names[0] | names[1] >= {"waiting", "fetch", "request", "get_data"}


def test_a_local_cluster_of_processes(programs: Programs, receiver: Receiver) -> None:
    found = pids(programs, "processes", receiver, **PROCESS)
    assert len(set(found.values())) == 3
    services = {("dask-client" if name == "client" else "dask-worker", pid) for name, pid in found.items()}
    assert set(by_process(receiver)) == services


def test_a_local_cluster_of_threads(programs: Programs, receiver: Receiver) -> None:
    found = pids(programs, "threads", receiver, **PROCESS)
    spans = by_process(receiver)
    assert set(spans) == {("dask-client", found["client"]), ("dask-worker", found["client"])}
    assert {s.operation for s in spans["dask-client", found["client"]]} == {"compute", "submit"}


def test_the_users_service_name_is_respected(programs: Programs, receiver: Receiver) -> None:
    found = pids(programs, "threads", receiver, OTEL_SERVICE_NAME="mine", **PROCESS)
    assert set(by_process(receiver)) == {("mine", found["client"])}
