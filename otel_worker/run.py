"""`otel-worker run`: a program of the user's under `opentelemetry-instrument`, and an embedded receiver beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from otel_worker import names
from otel_worker.demo import instrumented
from otel_worker.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PRELOAD = "DASK_DISTRIBUTED__WORKER__PRELOAD"
PRELOAD_ARGV = "DASK_DISTRIBUTED__WORKER__PRELOAD_ARGV"


def run(arguments: Sequence[str], folder: Path, *, record: bool) -> tuple[int, Path]:
    """Run `python arguments…`, with its Nanny children, to its end; return its status and the file of its spans.

    Its stdout, stderr and exit status are its own. Ctrl-C goes to it too, as in a shell; what was received by then stays.
    """
    with Receiver(folder) as receiver:
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": os.environ.get("OTEL_BSP_SCHEDULE_DELAY", "500"),
            "OTEL_PYTHON_DASK_SPAN_BUDGET": os.environ.get("OTEL_PYTHON_DASK_SPAN_BUDGET", "1000"),
        }
        if record:
            environment |= _recording(folder, environment)
        status = _run(instrumented([sys.executable, *arguments]), environment)
        return status, receiver.path


def _recording(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Add our preload to the user's own, as Dask reads them from the environment."""
    preloads = [*_listed(environment.get(PRELOAD, "")), "otel_worker.lab.preload"]
    arguments = [*_listed(environment.get(PRELOAD_ARGV, "")), *[[]] * len(preloads)][: len(preloads)]
    return {
        names.RECORD_VARIABLE: str(folder.absolute() / "fetches"),
        PRELOAD: json.dumps(preloads),
        PRELOAD_ARGV: json.dumps(arguments),
    }


def _listed(text: str) -> list[object]:
    try:
        value = json.loads(text) if text else []
    except ValueError:
        return [text]
    return value if isinstance(value, list) else [value]


def _run(command: list[str], environment: Mapping[str, str]) -> int:
    process = subprocess.Popen(command, env=dict(environment))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the program as well
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - status if status < 0 else status  # as a shell says that a signal ended it
