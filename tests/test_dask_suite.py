"""Dask behaves the same with us switched on: `scripts/dask-suite` on what tells most, and what the comparison itself notices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "scripts" / "dask-suite"
# Every state and every phase; what starts processes of its own or needs a real memory limit is for the whole suite.
TELLING = ("worker_state_machine", "spill", "worker_metrics", "cancelled_state", "failed_workers", "gather")
SLOW = "not process and not killed and not kills and not p2p_shuffle and not closed_worker"


def run(*command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**environment, **(env or {})}
    )


def suite(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    done = run(sys.executable, str(SUITE), *arguments, env=env)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_results_with_us_and_without_us():
    files = [str(ROOT / "tests" / "dask" / f"test_{name}.py") for name in TELLING]
    code, told = suite(*files, "-k", SLOW, "--forgive")
    assert code == 0, told
    assert "verdict: the same" in told
    compared = int(told.rpartition("; ")[2].split()[0])
    assert compared >= 200, told


# --- what the comparison notices -----------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "test_written.py"


def test_a_difference_is_noticed(written: Path):
    written.write_text(
        "from distributed import Worker\n"
        "def test_plain():\n    assert not hasattr(Worker.get_data, '_otel_worker')\n"
        "def test_same():\n    pass\n"
        "def test_fails_anyway():\n    assert False\n"
    )
    code, told = suite(str(written), "--retries", "1")
    assert code == 1
    assert "verdict: DIFFERENT" in told
    assert "plain:   2 passed, 1 failed" in told
    assert "with us: 1 passed, 2 failed" in told
    assert "test_plain (plain: passed, passed; with us: failure, failure)" in told
    assert "test_fails_anyway" not in told


def test_a_test_that_is_flaky_by_itself_is_said_to_be(written: Path, tmp_path: Path):
    """It fails in each second run, whoever runs it."""
    count = tmp_path / "count"
    written.write_text(
        "from pathlib import Path\n"
        f"count = Path({str(count)!r})\n"
        "def test_flaky():\n"
        "    n = int(count.read_text()) if count.exists() else 0\n"
        "    count.write_text(str(n + 1))\n"
        "    assert n not in (1, 2)\n"
    )
    code, told = suite(str(written), "--retries", "1")
    assert code == 0, told
    assert "1 flaky, without us as well:" in told
    assert "(plain: passed, failure; with us: failure, passed)" in told


@pytest.mark.parametrize("forgive", [False, True])
def test_what_differed_once_is_told(written: Path, tmp_path: Path, forgive: bool):
    count = tmp_path / "count"
    written.write_text(
        "from pathlib import Path\n"
        f"count = Path({str(count)!r})\n"
        "def test_once():\n"
        "    n = int(count.read_text()) if count.exists() else 0\n"
        "    count.write_text(str(n + 1))\n"
        "    assert n != 1\n"
    )
    code, told = suite(str(written), "--retries", "1", *(["--forgive"] if forgive else []))
    assert "1 differed once, with us, and never again:" in told
    assert code == (0 if forgive else 1)


def test_a_run_that_tells_of_no_test_is_no_success(tmp_path: Path):
    (tmp_path / "test_empty.py").write_text("")
    code, told = suite(str(tmp_path / "test_empty.py"))
    assert code == 1
    assert "no comparison" in told


# --- the plugin ------------------------------------------------------------------------------------------------------------

CLUSTER_TEST = """
from distributed.utils_test import gen_cluster, inc

@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_fetch(c, s, a, b):
    x = c.submit(inc, 1, key="x", workers=[a.address])
    assert await c.submit(inc, x, key="y", workers=[b.address]) == 3

@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_again(c, s, a):
    assert await c.submit(inc, 1, key="x") == 2
"""


@pytest.mark.parametrize(
    ("owner", "method", "hook"),
    [
        ("recorder.Recorder", "moved", "transitions"),
        ("runtime.Runtime", "request_sent", "send_recv"),
        ("runtime.Runtime", "run_began", "run"),
        ("spans.Emitter", "start", "submit"),
    ],
)
def test_a_failure_of_ours_fails_the_teardown_and_nothing_else(written: Path, owner: str, method: str, hook: str):
    """What Dask's test found is the same: its body passes."""
    written.write_text(CLUSTER_TEST)
    module, _, name = owner.partition(".")
    (written.parent / "breaks_us.py").write_text(
        f"from otel_worker.{module} import {name}\n"
        f"def fails(*args, **kwargs):\n    raise RuntimeError('a failure of ours')\n"
        f"{name}.{method} = fails\n"
    )
    code, told = suite(str(written), "--retries", "0", "--plugin", "breaks_us", env={"PYTHONPATH": str(written.parent)})
    assert code == 1
    assert "plain:   2 passed, 0 failed, 0 errors" in told
    assert ", 0 failed" in told.partition("with us: ")[2].splitlines()[0], told  # no body fails: only teardowns
    assert "test_fetch (plain: passed; with us: error)" in told
    folder = Path(told.rpartition(" is in ")[2].strip())
    output = (folder / "with-us.txt").read_text()
    assert f"AssertionError: otel_worker: {hook}" in output
    assert "a failure of ours" in output
    assert "2 passed" in output
