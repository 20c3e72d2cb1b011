"""Files of OTLP JSON lines, plain, gzip or zstd (also in a Collector's own framing), and directories of them."""

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from otel_worker.traces.collected import Collected, Full, Limits
from otel_worker.traces.otlp import add_cut_document, add_document
from otel_worker.traces.problems import SourceError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_NAMES = (".json", ".jsonl", ".gz", ".zst", ".zstd")
_CHUNK = 1024 * 1024
_MAX_WINDOW = 128 * _CHUNK  # zstd's, the memory that a frame may ask for


class _Bomb(Exception):  # noqa: N818
    """It grows too much when decompressed."""


def add_path(path: Path, into: Collected) -> None:
    """Raise SourceError where nothing can be read at all."""
    files = _files(path)
    with contextlib.suppress(Full):
        for file in files:
            _try_file(file, into, alone=not path.is_dir())


def _try_file(file: Path, into: Collected, *, alone: bool) -> None:
    try:
        _add_file(file, into, alone=alone)
    except OSError as error:
        if alone:
            raise SourceError(f"{file}: {error.strerror or error}.") from None
        into.problems.add(f"{file.name} cannot be read", error.strerror or str(error))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(p for p in path.iterdir() if p.is_file() and p.suffix in _NAMES and not p.name.startswith("."))
    if not files:
        raise SourceError(f"{path} holds no file whose name ends in {', '.join(_NAMES)}.")
    return files


def _add_file(path: Path, into: Collected, *, alone: bool) -> None:
    with path.open("rb") as file:
        try:
            found = _add_lines(_opened(file, path, into.limits), path.name, into)
            if alone and not found:
                into.problems.add(f"{path.name} is empty")
        except _Bomb:
            ratio = into.limits.max_ratio
            into.problems.add(f"{path.name} grows more than {ratio} times when decompressed; the rest was not read")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            into.problems.add(f"{path.name} is damaged or cut off; the rest was not read", str(error))


def _opened(file: BinaryIO, path: Path, limits: Limits) -> io.BufferedReader:
    start = file.read(8)
    file.seek(0)
    size = os.fstat(file.fileno()).st_size
    if start.startswith(_GZIP):
        return _bounded(gzip.GzipFile(fileobj=file), size, limits)
    if start.startswith(_ZSTD):
        return _bounded(_zstd(path).stream_reader(file, read_across_frames=True), size, limits)
    if start[4:8] == _ZSTD:
        return _bounded(_Framed(file, _zstd(path), limits), size, limits)
    return io.BufferedReader(_Plain(file), _CHUNK)


def _zstd(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise SourceError(f"{path} is compressed with zstd: pip install zstandard reads it.") from None
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)


def _bounded(source: Any, size: int, limits: Limits) -> io.BufferedReader:
    return io.BufferedReader(_Bounded(source, max(size * limits.max_ratio, limits.ratio_free_bytes)), _CHUNK)


class _Plain(io.RawIOBase):
    def __init__(self, source: Any) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self._source.readinto(buffer))


class _Bounded(io.RawIOBase):
    """What a decompressor gives, until it has given too much."""

    def __init__(self, source: Any, limit: int) -> None:
        self._source = source
        self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = _read(self._source, len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise _Bomb
        buffer[: len(data)] = data
        return len(data)


def _read(source: Any, size: int) -> bytes:
    try:
        return bytes(getattr(source, "read1", source.read)(size))  # `read` would lose what came before an error
    except (EOFError, zlib.error, OSError, _Bomb):
        raise
    except Exception as error:  # zstandard's own, which we may not be able to import
        raise EOFError(str(error)) from None


class _Framed:
    """A Collector's file exporter with compression: each message has a length of 4 bytes before it."""

    def __init__(self, file: BinaryIO, decompressor: Any, limits: Limits) -> None:
        self._file = file
        self._decompressor = decompressor
        self._limits = limits
        self._rest = b""

    def read(self, size: int) -> bytes:
        if not self._rest:
            self._rest = self._message()
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _message(self) -> bytes:
        head = self._file.read(4)
        if not head:
            return b""
        length = int.from_bytes(head, "big")
        if len(head) < 4 or length > self._limits.max_line_bytes:
            raise EOFError("a frame's length makes no sense")
        data = self._file.read(length)
        if len(data) < length:
            raise EOFError("the last frame is cut off")
        with self._decompressor.stream_reader(data) as reader:
            plain = bytes(reader.read(self._limits.max_line_bytes + 1))
        return plain + b"\n"


def _add_lines(file: io.BufferedReader, name: str, into: Collected) -> int:
    """How many lines it has."""
    first = file.readline(into.limits.max_line_bytes + 1)
    if _is_document(first):
        first += file.read(into.limits.max_document_bytes)
        _add_last_line(first, f"{name} is not a whole JSON document of spans", into, "it")
        return 1
    number = 0
    for number, line in enumerate(_lines(first, file, into), start=1):
        if line.endswith(b"\n"):
            _add_line(line, f"A line of {name} is not OTLP JSON and was left out", into, f"line {number}")
        else:
            _add_last_line(line, f"The last line of {name} is cut off or not OTLP JSON", into, f"line {number}")
    return number


def _is_document(first: bytes) -> bool:
    """Printed for people, over many lines; or saved from a Jaeger, on one that may be long."""
    return first.strip() == b"{" or first.lstrip().startswith((b'{"data"', b'{"result"'))


def _lines(first: bytes, file: io.BufferedReader, into: Collected) -> Iterator[bytes]:
    limit = into.limits.max_line_bytes
    line = first
    while line:
        if len(line) > limit:
            into.problems.add(f"A line of more than {limit:,} bytes was left out")
            while line and not line.endswith(b"\n"):
                line = file.readline(_CHUNK)
        elif not line.isspace():
            yield line
        line = file.readline(limit + 1)


def _add_line(line: bytes, problem: str, into: Collected, where: str = "") -> None:
    try:
        add_document(line, into)
    except ValueError as error:  # msgspec's errors, and Unicode's
        into.problems.add(problem, ": ".join(filter(None, (where, str(error)))))


def _add_last_line(line: bytes, problem: str, into: Collected, where: str) -> None:
    try:
        add_document(line, into)
    except ValueError as error:
        found = add_cut_document(line, into)
        saved = f"; {found:,} of its spans were read" if found else ""
        into.problems.add(problem, f"{where}: {error}{saved}")


def looks_like_address(source: str) -> bool:
    """An address has a scheme, or is host:port and no file."""
    if source.startswith(("http://", "https://")):
        return True
    host, colon, port = source.partition(":")
    with contextlib.suppress(OSError):
        return bool(host and colon) and port.rstrip("/").isdecimal() and not Path(source).exists()
    return False
