"""`otel-worker demo` on real processes: what it shows follows what was injected."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

from otel_worker import names
from otel_worker.checks import check
from otel_worker.demo_work import HELD, ROUNDS
from otel_worker.traces import by_ref, read

pytestmark = pytest.mark.once

COMMAND = [str(Path(sys.executable).with_name("otel-worker")), "demo"]


def printed_seconds(folder: Path, delay: float) -> float:
    """Run the demo, hold its spans against the delay, and return the seconds that it prints for the peer's disk."""
    command = [*COMMAND, "--delay", str(delay), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"take {delay:g} s to unpickle" in done.stdout
    spans = read(folder).spans
    assert check(spans) == []
    known = by_ref(spans)
    slow = [
        s
        for s in spans
        if s.name == names.UNSPILL_DESERIALIZE
        and str(known[s.parent_ref].attributes[names.SPILL_KEY]).startswith("load_slow-")
    ]
    within = max(0.1 * delay, 0.05)
    assert [s.duration / 1e9 for s in slow] == [pytest.approx(delay, abs=within)] * len(slow)
    assert sum(s.attributes[names.WORKER_NAME] == "carol" for s in slow) == ROUNDS
    received = [
        s
        for s in spans
        if s.name == names.FETCH_DESERIALIZE and "load_slow-" in str(known[s.parent_ref].attributes[names.FETCH_KEYS])
    ]
    assert [s.attributes[names.WORKER_NAME] for s in received] == ["alice"] * ROUNDS
    assert min(s.duration for s in received) > delay * 1e9
    check_page(folder / "demo.html", delay)
    [printed] = re.findall(r"^ *reads from its disk +([0-9.]+)", done.stdout, re.MULTILINE)
    return float(printed)


def check_page(page: Path, delay: float) -> None:
    """Who was slow, busy, blocked and overtaken is what the page says first."""
    text = page.read_text()
    said = {name: html.unescape(rest) for name, rest in re.findall(r"<li><b>(\w+) [^<]*</b>(.*?)</li>", text)}
    assert "carol read them back from its disk (unpickling took" in said["carol"]
    assert "bob answered that it was busy" in said["bob"]
    assert "dave's event loop was blocked" in said["dave"]
    [held] = re.findall(r"once for ([0-9.]+) (m?s) by hold-0", said["dave"])
    assert float(held[0]) / (1000 if held[1] == "ms" else 1) == pytest.approx(HELD * delay, abs=0.15)
    assert "produce overtook combine" in text


@pytest.mark.faults
@pytest.mark.slow
def test_double_the_injected_delay_and_the_printed_seconds_double(tmp_path: Path):
    once, twice = printed_seconds(tmp_path / "once", 0.5), printed_seconds(tmp_path / "twice", 1.0)
    # Each also holds the ordinary reads of the other blocks, which are the same work in both.
    assert twice - once == pytest.approx(0.5 * ROUNDS, abs=0.25 * 0.5 * ROUNDS)


def test_a_delay_that_is_no_number_is_one_sentence():
    done = subprocess.run([*COMMAND, "--delay", "soon"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'soon' is not a valid float range" in done.stderr
    assert "Traceback" not in done.stderr
