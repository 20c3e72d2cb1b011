"""A real Collector and a real Jaeger for tests, as processes on free loopback ports.

`jaeger` and `collector` serve the whole session, the Collector sends to that Jaeger; `services` starts others, for a test
that kills and restarts them. The binaries come from scripts/build-services; where they are missing a test is skipped, or
fails with OTEL_WORKER_REQUIRE=1.
"""

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from tests.jaeger import Jaeger

ROOT = Path(__file__).resolve().parent.parent
COLLECTOR_CONFIG = ROOT / "collector" / "config.yaml"
JAEGER_CONFIG = ROOT / "collector" / "jaeger" / "config.yaml"

READY = "Everything is ready"  # Jaeger is a Collector at heart: both log this once every port is open
TAKEN = "address already in use"


@dataclass
class Process:
    """A service that keeps its ports when it is started again, so that whoever sends to it finds it."""

    binary: Path
    config: Path
    log: Path
    variables: tuple[str, ...]  # of the configuration: each gets an endpoint of its own
    environment: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()  # for --config: a file, or one value as yaml:a::b: value
    endpoints: dict[str, str] = field(default_factory=dict)
    popen: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Returns once it serves. The first start goes to other ports should somebody have taken one meanwhile."""
        assert not self.running
        for _ in range(1 if self.endpoints else 5):
            endpoints = self.endpoints or dict(zip(self.variables, free_endpoints(len(self.variables)), strict=True))
            self._launch(endpoints)
            if self._serves():
                self.endpoints = endpoints
                return
            if TAKEN not in self.logged():
                break
        raise AssertionError(f"{self.binary.name} did not start: …{self.logged()[-3000:]}")

    def _launch(self, endpoints: dict[str, str]) -> None:
        ports = {name: at.rpartition(":")[2] if name.endswith("_PORT") else at for name, at in endpoints.items()}
        configs = [f"--config={source}" for source in (self.config, *self.overrides)]
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                [*ends_with_us(), str(self.binary), *configs],
                env={**os.environ, **self.environment, **ports},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
            )

    def _serves(self, within: float = 30.0) -> bool:
        deadline = time.monotonic() + within
        while self.running and time.monotonic() < deadline:
            if READY in self.logged():
                return True
            time.sleep(0.05)
        self.kill()
        return False

    def logged(self) -> str:
        """Since its last start."""
        return self.log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def kill(self) -> None:
        """As a crash: nothing is flushed."""
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()

    def stop(self, within: float = 10.0) -> None:
        """As a person would: it may still send what it has."""
        if self.popen is None:
            return
        self.popen.terminate()
        try:
            self.popen.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()


def ends_with_us() -> list[str]:
    """The kernel ends the service should pytest itself be killed; where this tool is missing, nobody does."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def free_endpoints(count: int) -> list[str]:
    """Below the ports that the kernel gives to outgoing connections: one that is free for the time of a restart is not
    lost to a passer-by. Not `random` itself, which pytest-randomly seeds alike for every test.
    """
    found: list[str] = []
    for port in random.SystemRandom().sample(range(20_000, 30_000), 1_000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(f"127.0.0.1:{port}")
        if len(found) == count:
            break
    return found


@dataclass(frozen=True)
class RunningJaeger(Jaeger):
    process: Process = field(repr=False)


@dataclass(frozen=True)
class Collector:
    """Takes OTLP and sends the traces on."""

    grpc: str  # host:port, no TLS
    http: str  # URL without /v1/traces
    prometheus_url: str  # the page with the workers' metrics
    metrics_url: str  # the page with the Collector's own
    process: Process = field(repr=False)

    def own_metric(self, name: str) -> float:
        """The sum over its attributes; 0 while the Collector does not report it."""
        page = requests.get(self.metrics_url, timeout=10).text
        lines = (line for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@dataclass
class Services:
    """Starts services; whoever made it calls `stop`."""

    collector_binary: Path
    jaeger_binary: Path
    directory: Path
    processes: list[Process] = field(default_factory=list)

    def start_jaeger(self) -> RunningJaeger:
        names = ("OTLP_GRPC", "OTLP_HTTP", "QUERY_HTTP", "QUERY_GRPC")
        variables = tuple(f"JAEGER_{name}_ENDPOINT" for name in names)
        process = self._start(Process(self.jaeger_binary, JAEGER_CONFIG, self._log("jaeger"), variables))
        grpc, http, query, _ = process.endpoints.values()
        return RunningJaeger(f"http://{query}", grpc, f"http://{http}", process)

    def start_collector(self, to: str, *overrides: str) -> Collector:
        """`to`: host:port of what takes the traces, OTLP over gRPC. `overrides`: for --config, after our own."""
        names = ("GRPC_ENDPOINT", "HTTP_ENDPOINT", "PROMETHEUS_ENDPOINT", "METRICS_PORT", "HEALTH_ENDPOINT")
        process = self._start(
            Process(
                self.collector_binary,
                COLLECTOR_CONFIG,
                self._log("collector"),
                tuple(f"OTELCOL_{name}" for name in names),
                environment={"JAEGER_ENDPOINT": to},
                overrides=overrides,
            )
        )
        grpc, http, prometheus, own, _ = process.endpoints.values()
        return Collector(grpc, f"http://{http}", f"http://{prometheus}/metrics", f"http://{own}/metrics", process)

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}-{len(self.processes)}.log"

    def _start(self, process: Process) -> Process:
        self.processes.append(process)
        process.start()
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()


@pytest.fixture(scope="session")
def service_binaries() -> tuple[Path, Path]:
    """Of the Collector and of Jaeger."""
    command = [sys.executable, str(ROOT / "scripts" / "build-services"), "--cached"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        required = os.environ.get("OTEL_WORKER_REQUIRE", "") not in ("", "0")
        (pytest.fail if required else pytest.skip)(answer.stderr.strip())
    collector, jaeger = answer.stdout.splitlines()
    return Path(collector), Path(jaeger)


@pytest.fixture(scope="session")
def session_services(
    service_binaries: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Services]:
    started = Services(*service_binaries, tmp_path_factory.mktemp("services"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def jaeger(session_services: Services) -> Jaeger:
    """Shared by all tests: tell your traces apart by their ids or by the name of the service."""
    return session_services.start_jaeger()


@pytest.fixture(scope="session")
def collector(session_services: Services, jaeger: Jaeger) -> Collector:
    """Sends to `jaeger`. A test that kills or restarts it takes one of its own from `services`."""
    return session_services.start_collector(jaeger.otlp_grpc)


@pytest.fixture
def services(service_binaries: tuple[Path, Path], tmp_path: Path) -> Iterator[Services]:
    """For a test's own Collector and Jaeger: `kill`, `stop` and `start` their `process`, the ports stay."""
    started = Services(*service_binaries, tmp_path)
    yield started
    started.stop()
