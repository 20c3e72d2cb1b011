"""A cluster of real processes that faults act on, and an embedded receiver that stores what its workers tell.

near     where the tasks that wait are; one thread, slow to import, paused by its own memory
narrow   as near, with a connection pool of one
far      reached through a proxy only; serves two requests at once
side     a peer like any other
twin     two threads and one resource R
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distributed import Client, wait

from otel_worker import names
from otel_worker.checks import check
from otel_worker.receiver import Receiver
from otel_worker.reports import Options, Report, build
from otel_worker.traces import Span, Traces, read
from tests.faults.proxy import HOST, Proxy
from tests.faults.tools import NOTES, OFFLOAD, noting, recall
from tests.processes import Programs, eventually
from tests.programs import inside
from tests.services import ROOT, free_endpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from otel_worker.reports import Method

MEMORY = 1_000_000_000  # bytes that a worker may use; values claim parts of it
WORKER = {
    "PYTHONPATH": str(ROOT),
    "OTEL_PYTHON_DASK_SPAN_BUDGET": "1000",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "DASK_DISTRIBUTED__COMM__OFFLOAD": str(OFFLOAD),
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "0.5",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False",
}
# Dask names it from the asker's side, and doubles it on the same host.
ONE_AT_A_TIME = {"DASK_DISTRIBUTED__WORKER__CONNECTIONS__INCOMING": "1"}
PAUSES = {"DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "0.4"}


class Bench:
    def __init__(self, programs: Programs, receiver: Receiver, proxy: Proxy) -> None:
        self.folder = programs.folder
        self.proxy = proxy
        self.receiver = receiver
        self.programs = programs
        self.scheduler = programs.scheduler(DASK_DISTRIBUTED__SCHEDULER__ACTIVE_MEMORY_MANAGER__START="False")
        self.pids: dict[str, int] = {}
        (listens,) = free_endpoints(1)
        proxy.target = (HOST, int(listens.rpartition(":")[2]))
        self._start("near", "--host", HOST, IMPORT_TAKES="1", **PAUSES)
        self._start("narrow", "--host", HOST, "--worker-class", "tests.programs.inside.Narrow")
        self._start("far", "--listen-address", f"tcp://{listens}", "--contact-address", proxy.address, **ONE_AT_A_TIME)
        self._start("side", "--host", HOST)
        self._start("twin", "--host", HOST, "--resources", "R=1", "--nthreads", "2")
        self.client = Client(self.scheduler.address)
        self.client.wait_for_workers(len(self.pids), timeout=60)
        told = self.client.scheduler_info(n_workers=-1)["workers"]
        self.at = {str(worker["name"]): address for address, worker in told.items()}

    def _start(self, name: str, *options: str, **variables: str) -> None:
        command = ["dask", "worker", self.scheduler.address, "--no-nanny", "--no-dashboard", "--name", name]
        command += ["--nthreads", "1", "--memory-limit", str(MEMORY), "--local-directory", str(self.folder)]
        endpoint = self.receiver.grpc_endpoint
        program = self.programs.start(*command, *options, endpoint=endpoint, **{**WORKER, **variables})
        self.pids[name] = program.popen.pid

    # --- work ----------------------------------------------------------------------------------------------------------

    def submit(self, where: str, function: Callable[..., Any], *args: Any, key: str, **options: Any) -> Any:
        return self.client.submit(function, *args, key=key, workers=[self.at[where]], pure=False, **options)

    def made(self, where: str, function: Callable[..., Any], *args: Any, key: str, **options: Any) -> Any:
        future = self.submit(where, function, *args, key=key, **options)
        wait(future, timeout=30)
        return future

    def run(self, where: str, function: Callable[..., Any], *args: Any) -> Any:
        return self.client.run(function, *args, workers=[self.at[where]])[self.at[where]]

    def until_known(self, where: str, key: str) -> None:
        eventually(lambda: self.run(where, inside.knows, key), f"{key} did not come to {where}")

    def until_asked(self) -> None:
        """Every fault of the proxy acts by now."""
        eventually(lambda: not self.proxy.faults, "nobody asked")

    def disconnect(self, where: str, peer: str) -> None:
        self.run(where, inside.disconnect, self.at[peer])

    def recall(self, where: str, name: str, to: str = "") -> None:
        """What a fault noted in a worker is noted here too."""
        NOTES[to or name] = self.run(where, recall, name)

    @contextmanager
    def stopped(self, pid: int, name: str) -> Iterator[None]:
        """The whole process does nothing meanwhile."""
        os.kill(pid, signal.SIGSTOP)
        try:
            with noting(name):
                yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def clean(self) -> None:
        """Of notes; and of values, once their futures are gone."""
        for where in self.at:
            self.run(where, inside.forget_notes)
        eventually(lambda: not any(self.client.has_what().values()), "values of another test are kept")

    # --- reading ---------------------------------------------------------------------------------------------------------

    def traces(self, key: str) -> Traces:
        """What the receiver stored, once the task with that key is in it."""
        held: list[Traces] = []

        def told() -> bool:
            held[:] = [read(self.receiver.path)] if self.receiver.path.exists() else []
            return bool(held) and any(
                s.operation == names.TASK and s.attributes[names.TASK_KEY] == key for s in held[0].spans
            )

        eventually(told, f"no span of {key}")
        time.sleep(0.3)  # the peers' halves come from other processes
        return read(self.receiver.path)


def report(traces: Traces, key: str, method: Method) -> Report:
    return build(traces, "receiver", Options(method=method, only={"key": key}))


def task_span(traces: Traces, key: str) -> Span:
    """Of a task that was given up and assigned anew, the attempt that gave the result."""
    found = [s for s in traces.spans if s.operation == names.TASK and s.attributes[names.TASK_KEY] == key]
    if len(found) > 1:
        found = [span for span in found if span.attributes[names.OUTCOME] == "memory"]
    (span,) = found
    return span


def phase_span(traces: Traces, key: str, name: str) -> Span:
    top = task_span(traces, key)
    (found,) = [s for s in traces.spans if s.name == name and s.parent_ref == top.ref]
    return found


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    programs = Programs(folder)
    with Receiver(folder / "otlp") as receiver, Proxy() as proxy:
        try:
            held = Bench(programs, receiver, proxy)
            yield held
            held.client.close()
            assert check(read(receiver.path).spans) == []
        finally:
            programs.end()
