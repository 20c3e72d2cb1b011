"""`otel-worker run`: a program of the user's under `opentelemetry-instrument`, and an embedded receiver beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from otel_worker import names
from otel_worker.demo import DemoError, instrumented
from otel_worker.receiver import Receiver
from otel_worker.watching import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    Beside = Callable[[Receiver, Watcher], AbstractContextManager[object]]

WORKER_PRELOAD = "DASK_DISTRIBUTED__WORKER__PRELOAD"
ELSEWHERE = ("OTEL_EXPORTER_", "OTEL_SDK_DISABLED")  # what would keep spans from our receiver


def run(
    arguments: Sequence[str], folder: Path, *, record: bool, beside: Beside, host: str = "127.0.0.1"
) -> tuple[int, Watcher]:
    """Run `python arguments…`, with its Nanny children, to its end; return its status and what was seen of its clusters.

    Its stdout, stderr and exit status are its own. Ctrl-C goes to it too, as in a shell, and so does SIGTERM; what was
    received by then stays. `beside` is entered while it runs.

    Raises
    ------
    DemoError
        `host` is no address to listen on, or nothing can be started.

    """
    notes = folder / "schedulers.jsonl"
    notes.unlink(missing_ok=True)
    try:
        receiver = Receiver(folder, host=host).__enter__()
    except (OSError, RuntimeError):
        raise DemoError(f"{host} is no address of this machine to listen on.") from None
    with receiver, Watcher(notes) as watcher:
        command = instrumented([sys.executable, *arguments])
        environment = _environment(receiver, notes)
        if record:
            environment[names.RECORD_VARIABLE] = str(folder.absolute() / "fetches")
            environment |= _preloading(WORKER_PRELOAD, "otel_worker.lab.preload", environment)
        with beside(receiver, watcher):
            return _run(command, environment), watcher


def _environment(receiver: Receiver, notes: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ELSEWHERE)}
    return {
        **kept,
        names.RUN_VARIABLE: str(notes.absolute()),
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": kept.get("OTEL_BSP_SCHEDULE_DELAY", "500"),
        "OTEL_PYTHON_DASK_SPAN_BUDGET": kept.get("OTEL_PYTHON_DASK_SPAN_BUDGET", "1000"),
    }


def _preloading(variable: str, module: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Add a preload of ours to the user's own, as Dask reads them from the environment."""
    preloads = [*_listed(environment.get(variable, "")), module]
    arguments = [*_listed(environment.get(f"{variable}_ARGV", "")), *[[]] * len(preloads)][: len(preloads)]
    return {variable: json.dumps(preloads), f"{variable}_ARGV": json.dumps(arguments)}


def _listed(text: str) -> list[object]:
    try:
        value = json.loads(text) if text else []
    except ValueError:
        return [text]
    return value if isinstance(value, list) else [value]


def _run(command: list[str], environment: Mapping[str, str]) -> int:
    process = subprocess.Popen(command, env=dict(environment))
    with _passed_on(process):
        status = process.wait()
    return 128 - status if status < 0 else status  # as a shell says that a signal ended it


@contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The terminal sends Ctrl-C to the program as well; SIGTERM comes to us alone."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
