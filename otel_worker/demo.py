"""`otel-worker demo`: a small cluster of real processes, started as a user starts one, and an embedded receiver.

No Docker: `opentelemetry-instrument dask scheduler`, four `dask worker`s and a client send OTLP to the receiver, which
writes it to a folder; what is shown afterwards is read from there.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from otel_worker.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WORKERS = ("alice", "bob", "carol", "dave")
START = 30.0  # seconds that the scheduler may take to listen
WORK = 120.0
STOP = 15.0

# Spill early, by what Dask manages: the process's own memory says little in so small a worker.
DASK = {
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "0.05",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False",
}
# Serves one request at once, two on the same host, since Dask doubles it there; Dask means requests that come in.
BUSY = {"DASK_DISTRIBUTED__WORKER__CONNECTIONS__INCOMING": "1"}


class DemoError(Exception):
    """What went wrong, as one sentence for a person."""


def run(folder: Path, delay: float) -> Path:
    """Run the demo's cluster once; return the file of its spans. `delay` (s) is how long a slow value takes to unpickle.

    Raises DemoError if a process does not start, fails, or does not end.
    """
    with Receiver(folder) as receiver, ExitStack() as stack:
        port = _free_port()
        address = f"tcp://127.0.0.1:{port}"
        scheduler = ["dask", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
        _start(stack, folder, "scheduler", scheduler, _environment(receiver, "dask-scheduler"))
        _wait_for_port(port)
        for name in WORKERS:
            environment = _environment(receiver, f"dask-worker-{name}") | (BUSY if name == "bob" else {})
            _start(stack, folder, name, _worker(address, name, folder), environment)
        client = [sys.executable, "-m", "otel_worker.demo_work", address, str(delay), str(len(WORKERS))]
        _work(folder, client, _environment(receiver, "dask-client"))
        stack.close()  # workers flush when they close, so the receiver outlives them
        return receiver.path


def _worker(address: str, name: str, folder: Path) -> list[str]:
    """Without a Nanny, which would only make twice the processes to start."""
    return [
        *("dask", "worker", address, "--host", "127.0.0.1", "--name", name, "--nthreads", "1"),
        *("--no-dashboard", "--no-nanny"),
        *("--memory-limit", "400MB", "--local-directory", str(folder / "scratch")),
    ]


def _environment(receiver: Receiver, service: str) -> dict[str, str]:
    return {
        **os.environ,
        **DASK,
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_SERVICE_NAME": service,
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
        "OTEL_PYTHON_DASK_SPAN_BUDGET": "1000",
    }


def instrumented(command: list[str]) -> list[str]:
    """The command under `opentelemetry-instrument`, both from the environment of this Python."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    tool, program = shutil.which("opentelemetry-instrument", path=places), shutil.which(command[0], path=places)
    if tool is None or program is None:
        missing = "opentelemetry-instrument" if tool is None else command[0]
        raise DemoError(f"{missing} is not installed beside this Python; install otel-worker and distributed there.")
    return [tool, program, *command[1:]]


def _start(stack: ExitStack, folder: Path, name: str, command: list[str], environment: Mapping[str, str]) -> None:
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen(instrumented(command), env=dict(environment), stdout=log, stderr=log)
    stack.callback(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _work(folder: Path, command: list[str], environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            instrumented(command), env=dict(environment), timeout=WORK, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise DemoError(f"The demo's work did not end within {WORK:.0f} s; the logs are in {folder}.") from None
    (folder / "client.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise DemoError(f"The demo's work failed with status {done.returncode}; the logs are in {folder}.")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _attempts(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.1)


def _wait_for_port(port: int) -> None:
    for _ in _attempts(START):
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise DemoError(f"The scheduler did not listen on port {port} within {START:.0f} s.")
