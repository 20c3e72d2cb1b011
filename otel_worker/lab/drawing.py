"""Reads a drawn case: a row a peer, a column a key, most urgent first; `|` ends what one task needs.

    byte limit = 100
    backlog = yes

    task:  f1 | f2   | f3
    A:     1  |  .   | 1*5
    C:     .  | 1000 | .

A cell is a size, `.` where this peer does not hold the key; a key in two rows is a replica. `1*5` is five keys. Without
`task:` the tasks are numbered. Each task is a message of its own; `backlog = yes` has them all queued before the worker
decides for the first time. `at 5 ms`, `replicas` (the keys are wanted without a task) and `worker W` begin a new block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_worker.lab import settings
from otel_worker.lab.demand import ME, Arrival, Case, LabError, Need, acquire, arrivals, backlog, compute

if TYPE_CHECKING:
    from distributed.worker_state_machine import StateMachineEvent

ROW = re.compile(r"(?P<name>[^\s:=]+(?::\d+)?):(?:\s+(?P<cells>.*))?$")
MOST_KEYS = 1_000_000


@dataclass
class Block:
    """Rows that are drawn together."""

    at: float = 0.0
    worker: str = ME
    replicas: bool = False
    tasks: list[str] = field(default_factory=list)
    rows: list[tuple[str, list[list[int | None]]]] = field(default_factory=list)


def read(text: str, name: str) -> Case:
    """The case; raises LabError, with the line's number, for what is no drawing."""
    case = Case(name, ())
    block = Block()
    blocks = [block]
    wait_for_all = False
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        try:
            if "=" in words:
                key, _, value = (part.strip() for part in words.partition("="))
                if key == "backlog":
                    wait_for_all = value.lower() in ("yes", "true", "1")
                else:
                    case = settings.apply(case, key, value)
            elif match := ROW.match(words):
                add_row(block, match["name"], match["cells"] or "")
            else:
                block = begin(block, words)
                blocks.append(block)
        except LabError as error:
            raise LabError(f"Line {number} of {name}: {error}") from None
    drawn: list[Arrival] = []
    for index, each in enumerate(blocks):
        try:
            events = events_of(each, index)
        except LabError as error:
            raise LabError(f"{name}: {error}") from None
        drawn += arrivals(backlog(events) if wait_for_all and events else events, at=each.at, worker=each.worker)
    if not drawn:
        raise LabError(f"{name} draws no keys: a row looks like `A: 1 . 1kB`.")
    return Case(name, tuple(drawn), case.limits, case.peer, case.peers, nthreads=case.nthreads)


def begin(before: Block, words: str) -> Block:
    block = Block(at=before.at, worker=before.worker)
    if words.startswith("at "):
        block.at = settings.seconds(words[3:])
    elif words == "replicas":
        block.replicas = True
    elif words.startswith("worker "):
        block.worker = words[7:].strip()
    else:
        raise LabError(
            f"{words!r} is no row (`A: 1 .`), no setting (`byte limit = 100`), no `at`, `replicas` or `worker`."
        )
    return block


def add_row(block: Block, name: str, cells: str) -> None:
    if name == "task":
        block.tasks = [each.strip() for each in cells.split("|")]
    else:
        block.rows.append((name, [cells_of(group) for group in cells.split("|")]))


def cells_of(group: str) -> list[int | None]:
    cells: list[int | None] = []
    for word in group.split():
        text, _, times = word.partition("*")
        repeat = settings.count(times) if times else 1
        if len(cells) + repeat > MOST_KEYS:
            raise LabError(f"A drawing has at most {MOST_KEYS} keys.")
        cells += [None if text == "." else settings.size(text)] * repeat
    return cells


def events_of(block: Block, index: int) -> list[StateMachineEvent]:
    groups = max((len(row) for _, row in block.rows), default=0)
    names = [
        block.tasks[g] if g < len(block.tasks) and block.tasks[g] else f"task{index or ''}-{g + 1}"
        for g in range(groups)
    ]
    if len(set(names)) < len(names):
        raise LabError("two tasks have one name.")
    needs = [needs_of(block, g, names[g]) for g in range(groups)]
    if block.replicas:
        return [acquire([need for group in needs for need in group], stimulus=f"replicas-{index}")] if needs else []
    return [compute(names[g], needs[g], priority=(index, g)) for g in range(groups) if needs[g]]


def needs_of(block: Block, group: int, task: str) -> list[Need]:
    columns = max((len(row[group]) for _, row in block.rows if group < len(row)), default=0)
    width = len(str(columns))
    needs = []
    for column in range(columns):
        sizes = {name: row[group][column] for name, row in block.rows if group < len(row) and column < len(row[group])}
        held = {name: nbytes for name, nbytes in sizes.items() if nbytes is not None}
        if len(set(held.values())) > 1:
            raise LabError(f"key {column + 1} of {task} has a different size on {' and '.join(held)}.")
        if held:
            needs.append(Need(f"{task}.{column + 1:0{width}}", next(iter(held.values())), tuple(held)))
    return needs
