"""`otel-worker run`: a program of the user's, unchanged; its stdout and status are its own."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

import pyte
import pytest

from otel_worker import names
from otel_worker.traces import read
from tests.processes import Programs, environment
from tests.services import ROOT

COMMAND = [str(Path(sys.executable).with_name("otel-worker")), "run"]

PROGRAM = """
import sys
from distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0") as cluster, Client(cluster) as client:
        a, b = client.scheduler_info(n_workers=-1)["workers"]
        x = client.submit(pow, 2, 10, key="pow-1", workers=[a])
        print(client.submit(str, x, key="str-1", workers=[b]).result(), sys.argv[1:])
    sys.exit(3)
"""


@pytest.mark.slow
def test_a_program_and_where_its_time_went(tmp_path: Path):
    program, out = tmp_path / "program.py", tmp_path / "out"
    program.write_text(PROGRAM)
    command = [*COMMAND, "--out", str(out), "--record", str(program), "--its", "own"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout == "1024 ['--its', 'own']\n"
    assert "2 tasks of 2 computations on 2 workers" in done.stderr
    assert "\x1b" not in done.stderr  # no terminal, no line that tells how it goes
    tasks = {s.attributes[names.TASK_KEY] for s in read(out).spans if s.operation == names.TASK}
    assert tasks == {"pow-1", "str-1"}
    recordings = sorted((out / "fetches").iterdir())
    assert len(recordings) == 2
    lab = [COMMAND[0], "lab", str(out / "fetches"), "--policy", "current"]
    replayed = subprocess.run(lab, capture_output=True, text=True, check=True)
    assert "current" in replayed.stdout


# --- with a terminal -------------------------------------------------------------------------------------------------

SLOW = """
import time
from distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(1, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0") as cluster, Client(cluster) as client:
        client.submit(pow, 2, 10, key="pow-1").result()
        for i in range(30):
            print("line", i, flush=True)
        client.submit(time.sleep, 60, key="sleep-1").result()
"""


class Terminal:
    """What a person sees: 100 columns, 24 rows."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self.screen = pyte.HistoryScreen(100, 24, history=1000)
        self._stream = pyte.ByteStream(self.screen)

    def read(self, until: Callable[[], object], within: float) -> None:
        deadline = time.monotonic() + within
        while not until():
            assert time.monotonic() < deadline, self.screen.display
            if select.select([self._leader], [], [], 0.1)[0]:
                try:
                    self._stream.feed(os.read(self._leader, 65536))
                except OSError:  # its last program has ended
                    return

    def press(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    @property
    def lines(self) -> list[str]:
        above = ["".join(row[x].data for x in range(self.screen.columns)) for row in self.screen.history.top]
        return [line.rstrip() for line in [*above, *self.screen.display]]


@contextmanager
def terminal(*command: str) -> "Iterator[tuple[Terminal, subprocess.Popen[bytes]]]":
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment(TERM="xterm"),
        start_new_session=True,
        preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - so that Ctrl-C reaches it
    )
    os.close(follower)
    try:
        yield Terminal(leader), process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(leader)


@pytest.mark.slow
def test_a_line_tells_how_it_goes_and_ctrl_c_still_gives_the_report(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(SLOW)
    with terminal(*COMMAND, "--out", str(tmp_path / "out"), str(program)) as (seen, process):
        seen.read(lambda: re.search(r"sleep-1 on \d, run", seen.screen.display[-1]), 60)
        row = seen.screen.display[-1]
        assert row.startswith("otel-worker  1 task, ")
        assert "spans; open for " in row
        assert [line for line in seen.lines if line.startswith("line ")] == [f"line {i}" for i in range(30)]
        seen.press(b"\x03")
        seen.read(lambda: process.poll() is not None, 60)
        seen.read(lambda: not select.select([seen._leader], [], [], 0.2)[0], 5)
    assert process.returncode == 130
    text = "\n".join(seen.lines)
    assert "KeyboardInterrupt" in text
    assert "tasks of" in text
    assert "otel-worker  1 task" not in text  # the line is gone
    assert seen.screen.margins is None  # and the whole screen scrolls again


# --- what goes wrong -------------------------------------------------------------------------------------------------

CRASH = """
import os, pathlib, signal, sys
from distributed import Client, LocalCluster

def dies_once(path):
    if not os.path.exists(path):
        pathlib.Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1

if __name__ == "__main__":
    with LocalCluster(1, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0") as cluster, Client(cluster) as client:
        client.submit(pow, 2, 10, key="pow-1").result()
        print(client.submit(dies_once, sys.argv[1], key="dies-1").result())
        raise ValueError("crash")
"""


@pytest.mark.slow
def test_a_killed_worker_and_a_crash_still_give_the_report(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(CRASH)
    command = [*COMMAND, "--out", str(tmp_path / "out"), str(program), str(tmp_path / "died")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=90)
    assert (done.returncode, done.stdout) == (1, "1\n")
    assert "ValueError: crash" in done.stderr
    assert " on 1 worker" in done.stderr
    tasks = {s.attributes[names.TASK_KEY] for s in read(tmp_path / "out").spans if s.operation == names.TASK}
    assert "dies-1" in tasks


def test_sigterm_ends_the_program_too(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text("import time; print('begun', flush=True); time.sleep(600)")
    command = [*COMMAND, "--out", str(tmp_path / "out"), str(program)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert errors.startswith("otel-worker: ")  # it goes on to the report, in which there is nothing


REMOTE = """
import os, sys
from distributed import Client
import otel_worker

if __name__ == "__main__":
    with Client(sys.argv[1]) as client:
        if sys.argv[2:]:
            otel_worker.enable(client, endpoint=os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"])
        print(client.submit(pow, 2, 10, key="pow-1").result())
        import time; time.sleep(1.5)
        if sys.argv[2:]:
            otel_worker.disable(client)
"""


@pytest.mark.slow
def test_a_cluster_that_something_else_started(programs: Programs, tmp_path: Path):
    scheduler = programs.scheduler()
    programs.worker(scheduler, "alice", "--no-nanny", PYTHONPATH=str(ROOT))
    scheduler.has(workers=1)
    (tmp_path / "remote.py").write_text(REMOTE)
    command = [*COMMAND, "--out", str(tmp_path / "out"), "-m", "remote", scheduler.address]

    def run(*more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*command, *more], capture_output=True, text=True, check=False, env=environment(), timeout=90, cwd=tmp_path
        )

    done = run()
    assert (done.returncode, done.stdout) == (0, "1024\n")
    assert done.stderr.startswith("otel-worker: ")  # nothing of ours before the end
    assert f"1 of 1 workers of {scheduler.address} run without otel_worker" in done.stderr
    assert "otel_worker.enable(client, endpoint=os.environ['OTEL_EXPORTER_OTLP_ENDPOINT'])" in done.stderr
    done = run("enable")
    assert (done.returncode, done.stdout) == (0, "1024\n")
    assert "on 1 worker" in done.stderr
    assert "without otel_worker" not in done.stderr


def test_an_address_of_another_machine_is_one_sentence(tmp_path: Path):
    command = [*COMMAND, "--out", str(tmp_path), "--host", "192.0.2.1", "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "otel-worker: 192.0.2.1 is no address of this machine to listen on.\n")


def test_nothing_to_run_is_one_sentence():
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Name a program to run" in done.stderr


def test_a_program_that_is_not_there_has_pythons_own_status():
    done = subprocess.run([*COMMAND, "nowhere.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No span in" in done.stderr or "otel-worker:" in done.stderr
