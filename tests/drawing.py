"""Draw the case; the drawing is the input: an ASCII waterfall becomes spans.

One line a span, `name | bar | attributes`: indentation says what is below what, a character of the bar is 0.1 s unless
`unit` says otherwise, and every character that is not a space is time in the span. Attributes are `name=value` pairs
(`key`, `worker`, `peer`, … stand for our usual ones), `-> name` links to the span of that name or key drawn anywhere,
`!` marks an error.

    task sum             |==========| key=x worker=a
      waiting            |======    | wait.network=0.6
        fetch sum        |======    | peer=b
      execute            |       ===|
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from otel_worker import names
from otel_worker.traces import Link, Resource, Span

START = 1_700_000_000_000_000_000
TRACE = f"{1:032x}"

SHORT = {
    "key": names.TASK_KEY,
    "prefix": names.TASK_PREFIX,
    "group": names.TASK_GROUP,
    "worker": names.WORKER_ADDRESS,
    "peer": names.PEER_ADDRESS,
    "outcome": names.OUTCOME,
    "computation": names.COMPUTATION,
    "nbytes": names.TASK_NBYTES,
    "fetched": names.FETCH_NBYTES,
    "count": names.TASKS_COUNT,
}


@dataclass
class _Line:
    depth: int
    name: str
    first: int
    last: int
    attributes: dict[str, Any]
    links: list[str]
    error: bool
    number: int = 0
    parent: int = 0
    found: list[Link] = field(default_factory=list)


def draw(text: str, *, unit: float = 0.1, trace_id: str = TRACE, scope: str = names.SCOPE) -> list[Span]:
    drawn = [_line(line) for line in text.splitlines() if "|" in line]
    shallowest = min(line.depth for line in drawn)
    stack: list[_Line] = []
    for number, line in enumerate(drawn, start=1):
        line.number, line.depth = number, line.depth - shallowest
        while stack and stack[-1].depth >= line.depth:
            stack.pop()
        line.parent = stack[-1].number if stack else 0
        line.attributes = {**_inherited(stack), **line.attributes}
        stack.append(line)
    return [_span(line, drawn, unit, trace_id, scope) for line in drawn]


def _inherited(stack: list[_Line]) -> dict[str, Any]:
    """A phase is on its task's worker."""
    mine = stack[-1].attributes if stack else {}
    return {name: mine[name] for name in (names.WORKER_ADDRESS,) if name in mine}


def _line(line: str) -> _Line:
    name, bar, rest = line.split("|", 2)
    filled = [i for i, character in enumerate(bar) if character != " "]
    first, last = (filled[0], filled[-1] + 1) if filled else (len(bar), len(bar))
    words = list(_words(rest))
    return _Line(
        len(name) - len(name.lstrip()),
        name.strip(),
        first,
        last,
        {_long(k): _value(v) for w in words if "=" in w and not w.startswith("->") for k, _, v in [w.partition("=")]},
        [w[2:].strip() for w in words if w.startswith("->")],
        "!" in words,
    )


def _words(rest: str) -> Iterator[str]:
    words = iter(shlex.split(rest))
    for word in words:
        yield f"->{next(words)}" if word == "->" else word


def _long(name: str) -> str:
    return SHORT.get(name, name if "." in name and name.startswith("dask.") else f"dask.{name}")


def _value(text: str) -> Any:
    return float(text) if re.fullmatch(r"-?\d*\.\d+", text) else int(text) if re.fullmatch(r"-?\d+", text) else text


def _span(line: _Line, drawn: list[_Line], unit: float, trace_id: str, scope: str) -> Span:
    nanoseconds = round(unit * 1e9)
    start = START + line.first * nanoseconds
    # Exported phases end 1 us before the next begins.
    end = max(start, START + line.last * nanoseconds - (1_000 if line.parent else 0))
    worker = str(line.attributes.get(names.WORKER_ADDRESS, "client"))
    return Span(
        trace_id,
        f"{line.number:016x}",
        f"{line.parent:016x}" if line.parent else "",
        line.name,
        start,
        end,
        attributes=line.attributes,
        resource=Resource({"service.name": f"dask-worker-{worker}"}),
        scope=scope,
        links=tuple(Link(trace_id, f"{_find(target, drawn):016x}") for target in line.links),
        status="error" if line.error else "unset",
    )


def _find(target: str, drawn: list[_Line]) -> int:
    for line in drawn:
        if target in (line.name, line.attributes.get(names.TASK_KEY)):
            return line.number
    return 0xDEAD
