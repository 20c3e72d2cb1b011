"""The fixture `programs`: processes of their own, with and without us, each with its log; none outlives its test."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.services import ends_with_us

BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).parent / "programs"
INSTRUMENT = str(BIN / "opentelemetry-instrument")
BESIDE = "asyncio,logging,requests,threading,tornado"  # of tests/test_beside.py
OURS = ("OTEL_", "DASK_", "PYTHON", "COVERAGE")  # of pytest's environment, what must not reach a program


def environment(**more: str) -> dict[str, str]:
    """Pytest's, without what steers OpenTelemetry, Dask and Python; commands of this venv are found, other
    instrumentations that it has are off.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    off = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": BESIDE}
    return {**kept, **off, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}", **more}


@dataclass
class Program:
    popen: "subprocess.Popen[bytes]"
    log: Path

    def logged(self) -> str:
        return self.log.read_text(errors="replace")

    def terminate(self) -> None:
        """SIGTERM to the process that the command line started, and to no child of it."""
        self.popen.send_signal(signal.SIGTERM)

    def ended(self, within: float = 60.0) -> int:
        """Its exit code, once it has ended by itself."""
        try:
            return self.popen.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {within} s: …{self.logged()[-3000:]}") from None

    def printed(self, within: float = 60.0) -> str:
        """The line of JSON that it printed last; it has to end well."""
        assert self.ended(within) == 0, self.logged()[-3000:]
        return [line for line in self.logged().splitlines() if line.startswith("{")][-1]

    def left(self) -> list[int]:
        """Processes of its group that still run."""
        return [pid for pid in processes_of(self.popen.pid) if pid != self.popen.pid or self.popen.poll() is None]

    def kill(self) -> None:
        if self.left():
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


def processes_of(group: int) -> list[int]:
    """Those that run; a zombie has ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, pgrp = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue  # it ended meanwhile
            if int(pgrp) == group and state != "Z":
                found.append(int(entry.name))
    return found


@dataclass
class Scheduler:
    program: Program
    address: str

    def has(self, workers: int, within: float = 60.0) -> None:
        """Returns once so many workers have come."""
        marker = "Register worker addr"
        eventually(lambda: self.program.logged().count(marker) == workers, f"not {workers} workers", within)


@dataclass
class Programs:
    """Starts programs; `endpoint` is where those with us send what they trace."""

    folder: Path
    started: list[Program] = field(default_factory=list)

    def start(self, *command: str, endpoint: str | None = None, **variables: str) -> Program:
        """With an `endpoint` under `opentelemetry-instrument`, else as it is."""
        if endpoint is not None:
            command = (INSTRUMENT, *command)
            variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **variables}
        folder = self.folder / f"program-{len(self.started)}"
        folder.mkdir()
        path = folder / "log"
        with path.open("wb") as log:
            popen = subprocess.Popen(
                [*ends_with_us(), *command],
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )
        self.started.append(Program(popen, path))
        return self.started[-1]

    def script(self, name: str, *arguments: str, endpoint: str | None = None, **variables: str) -> Program:
        """One of tests/programs."""
        return self.start(sys.executable, str(SCRIPTS / name), *arguments, endpoint=endpoint, **variables)

    def scheduler(self, endpoint: str | None = None, **variables: str) -> Scheduler:
        file = self.folder / f"scheduler-{len(self.started)}.json"
        options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        program = self.start("dask", "scheduler", *options, endpoint=endpoint, **variables)
        marker = "Scheduler at:"
        eventually(lambda: marker in program.logged(), f"no scheduler: {program.log}")
        line = next(line for line in program.logged().splitlines() if marker in line)
        return Scheduler(program, line.rpartition(" ")[2])

    def worker(
        self, scheduler: Scheduler, name: str, *options: str, endpoint: str | None = None, **variables: str
    ) -> Program:
        """Of one thread; with a Nanny unless `--no-nanny` is among the options."""
        common = ("--host", "127.0.0.1", "--no-dashboard", "--nthreads", "1", "--name", name)
        return self.start("dask", "worker", scheduler.address, *common, *options, endpoint=endpoint, **variables)

    def end(self) -> None:
        for program in self.started:
            program.kill()


def eventually(true: Callable[[], object], otherwise: str, within: float = 30.0) -> None:
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def _has_left_nothing(program: Program) -> bool:
    return not program.left()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    held = Programs(tmp_path)
    try:
        yield held
        ended = [program for program in held.started if program.popen.poll() is not None]
        for program in ended:  # what has ended has left no child behind
            eventually(partial(_has_left_nothing, program), f"{program.log} left processes", 5)
    finally:
        held.end()
