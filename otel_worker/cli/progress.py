"""One line at the bottom of the terminal while a program runs above it.

The program writes to the same terminal. So the last row is taken out of what scrolls (as apt does), and nothing that is written
above it meets it.
"""

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.text import Text

_EVERY = 0.25  # seconds
_SAVE, _RESTORE = "\x1b7", "\x1b8"


@contextmanager
def progress(stream: TextIO, tell: Callable[[], Text]) -> Iterator[None]:
    """Show what `tell` says while the block runs, where `stream` is a terminal that can; else nothing at all."""
    if not _can(stream):
        yield
        return
    line = _Line(stream)
    stop = threading.Event()

    def draw() -> None:
        while not stop.wait(_EVERY):
            line.draw(tell())

    thread = threading.Thread(target=draw, name="otel-worker-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        line.end()


def _can(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb") and _size(stream)[1] > 3


def _size(stream: TextIO) -> tuple[int, int]:
    """Columns, rows."""
    try:
        return os.get_terminal_size(stream.fileno())
    except OSError:
        return 80, 0


class _Line:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows = 0

    def draw(self, text: Text) -> None:
        columns, rows = _size(self._stream)
        held = io.StringIO()
        Console(file=held, force_terminal=True, width=columns, highlight=False).print(
            text, end="", no_wrap=True, overflow="ellipsis", crop=True
        )
        self._write(self._reserved(rows) + f"{_SAVE}\x1b[{rows};1H\x1b[2K{held.getvalue()}{_RESTORE}")

    def _reserved(self, rows: int) -> str:
        """The first time, or when the window's height changed: what is on the last row moves up, and the row stays ours."""
        if rows == self._rows:
            return ""
        first = "" if self._rows else "\n\x1b[A"
        self._rows = rows
        return f"{first}{_SAVE}\x1b[1;{rows - 1}r{_RESTORE}"

    def end(self) -> None:
        if self._rows:
            self._write(f"{_SAVE}\x1b[r\x1b[{self._rows};1H\x1b[2K{_RESTORE}")

    def _write(self, text: str) -> None:
        """At once: nothing of the program's comes between."""
        self._stream.write(text)
        self._stream.flush()
