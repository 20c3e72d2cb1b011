"""One benchmarked cluster: scheduler, two workers and a client, each a process of its own, and their CPU clocks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tests.processes import environment
from tests.services import ends_with_us

if TYPE_CHECKING:
    from benchmarks.variants import Variant

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
WORKERS = ("alice", "bob")
START = 60.0  # seconds

DASK = {
    # Spill early, by what Dask manages: 16 MB of 400 MB.
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "0.04",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False",
    # Workers stay where they are while others are measured, and are not lost when they are stopped.
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "null",
    "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__LIMIT": "1h",
}


class BenchmarkError(Exception):
    """What went wrong, as one sentence for a person."""


def cpu_seconds(pid: int) -> float:
    """CPU time of a whole process of ours, to the nanosecond: Linux's clock of a process by its id."""
    return time.clock_gettime((~pid << 3) | 2)


class Cluster:
    """Runs one variant; stopped by signals while others are measured, so that it costs them nothing."""

    def __init__(self, variant: Variant, folder: Path, endpoint: str) -> None:
        self.variant = variant
        self._folder = folder
        self._environment = environment(
            PYTHONPATH=os.pathsep.join(str(place) for place in (variant.source, ROOT) if place),
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
            OTEL_LOGS_EXPORTER="none",
            **DASK,
            **variant.environment,
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True)
        self._start()

    def _start(self) -> None:
        port = _free_port()
        address = f"tcp://127.0.0.1:{port}"
        self._process("scheduler", ["dask", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"])
        _wait_for_port(port)
        preload = ["--preload", self.variant.preload] if self.variant.preload else []
        for name in WORKERS:
            self._process(name, ["dask", "worker", address, *self._worker(name), *preload])
        self._process("client", [sys.executable, "-m", "benchmarks.driver", address])

    def _worker(self, name: str) -> list[str]:
        return [
            *("--host", "127.0.0.1", "--name", name, "--nthreads", "1", "--no-nanny", "--no-dashboard"),
            *("--memory-limit", "400MB", "--local-directory", str(self._folder / "scratch")),
        ]

    def _process(self, name: str, command: list[str]) -> None:
        tool = [str(BIN / "opentelemetry-instrument")] if self.variant.instrumented else []
        program = shutil.which(command[0], path=str(BIN)) or command[0]
        with (self._folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*ends_with_us(), *tool, program, *command[1:]],
                env=self._environment,
                stdin=subprocess.PIPE if name == "client" else subprocess.DEVNULL,
                stdout=subprocess.PIPE if name == "client" else log,
                stderr=log,
                cwd=self._folder,
            )

    def ready(self) -> None:
        """Return once the client has its workers."""
        self._answer()
        if self.order("observed") != [self.variant.observes] * len(WORKERS):
            raise BenchmarkError(f"{self.variant.name!r} is not what it says; its logs are in {self._folder}")
        for order in self.variant.orders:
            self.order(order)

    def order(self, what: str, **more: Any) -> Any:
        pipe = self.processes["client"].stdin
        assert pipe is not None
        pipe.write(json.dumps({"do": what, **more}).encode() + b"\n")
        pipe.flush()
        return self._answer()

    def _answer(self) -> Any:
        pipe: IO[bytes] | None = self.processes["client"].stdout
        assert pipe is not None
        line = pipe.readline()
        if not line:
            raise BenchmarkError(f"the client of {self.variant.name!r} ended; its logs are in {self._folder}")
        return json.loads(line)

    def cpu(self) -> dict[str, float]:
        """Seconds so far: of the workers together, the scheduler, the client."""
        spent = {name: cpu_seconds(process.pid) for name, process in self.processes.items()}
        return {
            "workers": sum(spent[name] for name in WORKERS),
            "scheduler": spent["scheduler"],
            "client": spent["client"],
        }

    def pause(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise BenchmarkError(f"a scheduler did not listen on port {port} within {START:.0f} s")
