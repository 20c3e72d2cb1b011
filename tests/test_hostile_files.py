"""A report on a file that somebody made to hurt: bounded memory, measured on the command itself, and a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import pytest
import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.once

MIB = 1024 * 1024
COMMAND = """
import os
from pathlib import Path
from otel_worker.cli import main
try:
    main()
finally:
    status = Path("/proc/self/status").read_text()  # `ru_maxrss` would begin with what the parent had before the exec
    Path(os.environ["PEAK"]).write_text(status.partition("VmHWM:")[2].split()[0])
"""
GIB = 1024 * MIB
SPAN = b'"traceId":"%032d","spanId":"%016d","name":"task x","startTimeUnixNano":"1","endTimeUnixNano":"2"'
HEAD = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{' + SPAN % (1, 1)
TAIL = b"}]}]}]}\n"


def a_string_of_a_gigabyte(path: Path) -> None:
    """Sparse: it takes no room on the disk, and reads as zeros."""
    with path.open("wb") as file:
        file.write(HEAD + b',"attributes":[{"key":"dask.task.key","value":{"stringValue":"')
        file.truncate(GIB)


def nested(path: Path) -> None:
    with path.open("wb") as file:
        file.write(HEAD + b',"attributes":' + b'[{"key":"a","value":{"arrayValue":{"values":' * 500_000 + b"\n")
        file.write(HEAD + b',"attributes":' + b"[" * 10_000_000 + b"\n")


def a_million_attributes(path: Path) -> None:
    one = b'{"key":"a%d","value":{"intValue":"1"}}'
    path.write_bytes(HEAD + b',"attributes":[' + b",".join(one % i for i in range(600_000)) + b"]" + TAIL)


def a_gzip_bomb(path: Path) -> None:
    packer = zlib.compressobj(1, wbits=31)
    with path.open("wb") as file:
        for _ in range(GIB // MIB):
            file.write(packer.compress(bytes(MIB)))
        file.write(packer.flush())


def a_zstd_bomb(path: Path) -> None:
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packer:
        for _ in range(4 * GIB // MIB):
            packer.write(bytes(MIB))


def links_without_end(path: Path) -> None:
    link = b'{"traceId":"%032d","spanId":"%016d"}' % (1, 1)
    path.write_bytes(HEAD + b',"links":[' + b",".join([link] * 300_000) + b"]" + TAIL)


def peak(note: Path, *command: str) -> tuple[int, int, str]:
    """Exit status, the most memory that it had at once in bytes, and what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "200", "PEAK": str(note)},
        check=False,
    )
    return ended.returncode, int(note.read_text()) * 1024, ended.stdout.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("make", "most"),
    [
        (a_string_of_a_gigabyte, 300),
        (nested, 300),
        (a_million_attributes, 700),
        (links_without_end, 500),
        (a_gzip_bomb, 300),
        (a_zstd_bomb, 300),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_memory_is_bounded(tmp_path: Path, make: Callable[[Path], None], most: int):
    path = tmp_path / "traces.jsonl"
    make(path)
    code, memory, printed = peak(tmp_path / "peak", "report", str(path))
    print(f"{make.__name__}: {memory / MIB:.0f} MiB, {code}: {printed[:300]}")
    assert memory < most * MIB
    assert "Traceback" not in printed
    assert code in (0, 1)
    assert len(printed) < 20_000
