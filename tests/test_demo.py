"""`otel-worker demo` on real processes: what it shows follows what was injected."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from otel_worker import names
from otel_worker.checks import check
from otel_worker.demo_work import ROUNDS
from otel_worker.traces import read

COMMAND = [str(Path(sys.executable).with_name("otel-worker")), "demo"]


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.25, 0.5])
def test_the_printed_seconds_follow_the_injected_delay(tmp_path: Path, delay: float):
    done = subprocess.run(
        [*COMMAND, "--delay", str(delay), "--out", str(tmp_path)], capture_output=True, text=True, check=True
    )
    within = max(0.1 * delay, 0.05)
    spans = read(tmp_path).spans
    assert check(spans) == []
    slow = [s for s in spans if s.name == names.UNSPILL_DESERIALIZE and s.duration > delay * 5e8]
    at = {
        worker: [s.duration / 1e9 for s in slow if s.attributes[names.WORKER_NAME] == worker]
        for worker in ("alice", "carol")
    }
    assert at["carol"] == [pytest.approx(delay, abs=within)] * ROUNDS
    assert at["alice"] == [pytest.approx(delay, abs=within)] * ROUNDS
    [printed] = re.findall(r"^ *reads from its disk +([0-9.]+)", done.stdout, re.MULTILINE)
    assert float(printed) == pytest.approx(delay * ROUNDS, abs=0.25 * delay * ROUNDS + 0.2)
    assert f"take {delay:g} s to unpickle" in done.stdout


def test_a_delay_that_is_no_number_is_one_sentence():
    done = subprocess.run([*COMMAND, "--delay", "soon"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'soon' is not a valid float range" in done.stderr
    assert "Traceback" not in done.stderr
