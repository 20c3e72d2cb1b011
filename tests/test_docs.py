"""Every command in docs/ is run, as it stands there; what a page calls by an example's name is put in its place."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from otel_worker.receiver import Receiver
from tests import docs
from tests.docs import Block
from tests.drawing import draw
from tests.lines import otlp_lines
from tests.processes import BIN, Programs, environment
from tests.services import ROOT, ends_with_us
from tests.test_production import certify
from tests.test_report import CASE

pytestmark = pytest.mark.slow

COMMANDS = {"sh", "python"}
RUN = [block for block in docs.every() if block.language in COMMANDS and block.how in {"run", "run until"}]


@dataclass
class Desk:
    """A folder with what the pages' commands name."""

    folder: Path
    places: dict[str, str] = field(default_factory=dict)  # an example's name -> what stands for it here

    def start(self, block: Block) -> "subprocess.Popen[str]":
        text = block.text
        for name, place in self.places.items():
            text = text.replace(name, place)
        script = self.folder / f"block.{block.language}"
        script.write_text(text if block.language == "python" else f"set -euo pipefail\n{text}")
        command = [str(BIN / "python")] if block.language == "python" else ["bash"]
        return subprocess.Popen(
            [*ends_with_us(), *command, str(script)],
            cwd=self.folder,
            env=environment(PATH=f"{BIN}:{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


@pytest.fixture
def desk(tmp_path: Path, programs: Programs, request: pytest.FixtureRequest) -> Iterator[Desk]:
    block: Block = request.getfixturevalue("block")
    made = Desk(tmp_path)
    for name in ("collector", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "bin").mkdir()
    if "otelcol-contrib" in block.text:
        (tmp_path / "bin" / "otelcol-contrib").symlink_to(request.getfixturevalue("service_binaries")[0])
    if "/etc/otelcol" in block.text:
        certify(tmp_path)
        (tmp_path / "ca.pem").symlink_to(tmp_path / "cert.pem")
        (tmp_path / "queue").mkdir()
        made.places["/etc/otelcol"] = str(tmp_path)
    if "traces.jsonl" in block.text:
        (tmp_path / "traces.jsonl").write_bytes(otlp_lines(draw(CASE)))
        made.places["('sum-aggregate-1f2e', 0)"] = "x"
    if "tcp://scheduler:8786" not in block.text:
        yield made
        return
    scheduler = programs.scheduler()
    if block.language == "python":  # a client needs somebody who works
        programs.worker(scheduler, "alice", "--no-nanny")
        scheduler.has(workers=1)
    with Receiver(tmp_path) as receiver:
        made.places |= {"tcp://scheduler:8786": scheduler.address, "http://collector:4317": receiver.grpc_endpoint}
        yield made
        programs.end()  # before who receives from them


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, marks=[pytest.mark.services] if "otelcol" in block.text else []) for block in RUN],
    ids=map(str, RUN),
)
def test_commands_do_what_the_page_says(block: Block, desk: Desk) -> None:
    process = desk.start(block)
    try:
        if block.how == "run until":
            seen = until(process, block.what)
            assert block.what in seen, seen
        else:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
    finally:
        end(process)


def end(process: "subprocess.Popen[str]") -> None:
    """All of it, as Ctrl-C would."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.communicate(timeout=30)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def until(process: "subprocess.Popen[str]", text: str, within: float = 60.0) -> str:
    """What it printed until it printed `text`, or ended."""
    seen, deadline = "", time.monotonic() + within
    assert process.stdout is not None
    for line in process.stdout:
        seen += line
        if text in seen or time.monotonic() > deadline:
            break
    return seen


def test_every_block_says_how_it_is_run() -> None:
    for block in docs.every():
        assert block.language in {*COMMANDS, "text", "json", "yaml", "promql"}, block
        assert block.how in {"run", "run until", "run by", "not run"}, block
        assert (block.how == "run") == (block.what == ""), block
        assert block.how != "run by" or (ROOT / block.what).exists(), block


def test_no_command_hides_outside_a_block() -> None:
    for page in docs.pages():
        outside = docs.BLOCK.sub("", page.read_text())
        assert not re.findall(r"^ {4,}(otel-worker|docker|dask|python|pip|scripts/)\b.*", outside, re.MULTILINE), page
