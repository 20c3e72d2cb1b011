"""`otel-worker run`: a program of the user's, unchanged; its stdout and status are its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from otel_worker import names
from otel_worker.traces import read

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
    tasks = {s.attributes[names.TASK_KEY] for s in read(out).spans if s.operation == names.TASK}
    assert tasks == {"pow-1", "str-1"}
    recordings = sorted((out / "fetches").iterdir())
    assert len(recordings) == 2
    lab = [COMMAND[0], "lab", str(out / "fetches"), "--policy", "current"]
    replayed = subprocess.run(lab, capture_output=True, text=True, check=True)
    assert "current" in replayed.stdout


def test_nothing_to_run_is_one_sentence():
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Name a program to run" in done.stderr


def test_a_program_that_is_not_there_has_pythons_own_status():
    done = subprocess.run([*COMMAND, "nowhere.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No span in" in done.stderr or "otel-worker:" in done.stderr
