"""A JSON document of spans that was cut off -> the same document up to its last whole span."""

import re
from typing import Final

# How many brackets are open around a span, itself included, by how the document begins.
_DEPTHS: Final = ((b'{"data"', 5), (b'{"result"', 8), (b"{", 7))
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}"]', re.DOTALL)
_CLOSING: Final = {b"{": b"}", b"[": b"]"}


def salvage(text: bytes) -> bytes | None:
    """None where no span is whole."""
    start = text.lstrip()
    depth = next((depth for begin, depth in _DEPTHS if start.startswith(begin)), 0)
    cut, rest = _last_closed(text, depth) if depth else (0, b"")
    return text[:cut] + rest if cut else None


def _last_closed(text: bytes, depth: int) -> tuple[int, bytes]:
    """Where a bracket of that depth was closed for the last time, and what is then missing at the end."""
    open_: list[bytes] = []
    cut, rest = 0, b""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in _CLOSING:
            open_.append(_CLOSING[token])
        elif token in b"]}":
            if not open_ or open_.pop() != token:
                break
            if len(open_) == depth - 1:
                cut, rest = match.end(), b"".join(reversed(open_))
        elif token == b'"':  # a string without an end
            break
    return cut, rest
