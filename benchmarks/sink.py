"""What the benchmarked processes send to: a real Collector that keeps nothing; where none is built, our own receiver.

Either is a process of its own, so that what it costs is not counted.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.services import Process, ends_with_us

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Sink:
    """`name` is for the table."""

    name: str
    endpoint: str  # for OTEL_EXPORTER_OTLP_ENDPOINT, with gRPC
    kill: Callable[[], None]


def start(folder: Path) -> Sink:
    """Start one; its log and what it stores are in `folder`."""
    command = [sys.executable, str(ROOT / "scripts" / "build-services"), "--cached"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        return _receiver(folder)
    return _collector(Path(answer.stdout.splitlines()[0]), folder)


def _collector(binary: Path, folder: Path) -> Sink:
    variables = ("OTELCOL_GRPC_ENDPOINT", "OTELCOL_METRICS_PORT")
    process = Process(binary, ROOT / "benchmarks" / "collector.yaml", folder / "collector.log", variables)
    process.start()
    return Sink("a real Collector", f"http://{process.endpoints['OTELCOL_GRPC_ENDPOINT']}", process.kill)


def _receiver(folder: Path) -> Sink:
    command = [*ends_with_us(), sys.executable, "-m", "benchmarks.sink", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    return Sink("the embedded receiver: no Collector is built", process.stdout.readline().strip(), process.kill)


def main() -> None:
    """Say where the embedded receiver listens, and serve until stdin ends."""
    from otel_worker.receiver import Receiver

    with Receiver(Path(sys.argv[1])) as receiver:
        print(receiver.grpc_endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
