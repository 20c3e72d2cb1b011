"""A report as text for a terminal or a pipe, and as JSON. No arithmetic: what is shown was worked out before."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from otel_worker import breakdown
from otel_worker.breakdown.activities import label
from otel_worker.reports.model import Report
from otel_worker.traces import count
from otel_worker.trees import clean, format_bytes

_PHASE_STYLE = {"waiting": "bright_magenta", "ready": "yellow", "execute": "green"}
_BAR = 12  # characters for 100 %
_SENTENCES = 8  # lines of a section
_SHOWN = 0.0005  # seconds; less would read 0.000
_LAST = 253_402_300_799  # seconds since the epoch, of the last year that has four digits
_PARTS = 4  # of a computation, that might take no time


def to_json(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2)


def render(report: Report, console: Console) -> None:
    """Tables fit the console's width; sentences are not broken, so that a pipe can search them."""
    for part in _parts(report, console.width):
        console.print(part, soft_wrap=isinstance(part, Text))


def _parts(report: Report, width: int) -> Iterator[RenderableType]:
    yield _headline(report)
    for group in report.groups:
        yield Text()
        yield from _group(group, report, width)
    if report.left_out.groups:
        left = report.left_out
        rest = f"{count(left.groups, 'more group')}: {count(left.tasks, 'task')}, {left.seconds:,.3f} s"
        yield Text(f"… and {rest}.", "dim")
    for title, lines in _sections(report):
        if lines:
            yield Text(f"\n{title}", "bold")
            yield from (Text(f"  {line}") for line in lines)


def _headline(report: Report) -> Text:
    extent = report.extent
    start = datetime.fromtimestamp(min(max(extent.start, 0), _LAST), timezone.utc)
    text = Text(count(extent.tasks, "task"), "bold")
    text.append(
        f" of {count(extent.computations, 'computation')} on {count(extent.workers, 'worker')},"
        f" from {start:%Y-%m-%d %H:%M:%S} UTC over {extent.end - extent.start:,.1f} s, method {report.method}",
        "not bold",
    )
    return text


def _group(group: breakdown.Group, report: Report, width: int) -> Iterator[RenderableType]:
    if group.by:
        shown = (f"{name} {breakdown.named(value, report.workers) or '?'}" for name, value in group.by.items())
        yield Text(clean(", ".join(shown)), "bold")
    yield _table(group.tree, width)


def _columns(width: int) -> list[str]:
    """The narrower, the fewer."""
    for least, columns in ((100, "bar tasks mean p50 p95 max"), (84, "tasks mean p50 p95 max"), (64, "tasks mean max")):
        if width >= least:
            return columns.split()
    return []


def _table(tree: breakdown.Node, width: int) -> RenderableType:
    columns = _columns(width)
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("", no_wrap=True, overflow="ellipsis")
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for column in columns:
        table.add_column(
            "" if column == "bar" else column, justify="left" if column == "bar" else "right", no_wrap=True
        )
    for depth, node in _flat(tree):
        table.add_row(*_row(node, depth, columns), style=_style(node))
    return table


def _flat(node: breakdown.Node, depth: int = 0) -> Iterator[tuple[int, breakdown.Node]]:
    yield depth, node
    for child in node.children:
        if child.seconds >= _SHOWN:
            yield from _flat(child, depth + 1)


def _row(node: breakdown.Node, depth: int, columns: Sequence[str]) -> list[str]:
    values = {
        "bar": "█" * round(node.share * _BAR) or "▏",
        "tasks": f"{node.tasks:,}",
        "mean": _seconds(node.mean),
        "p50": _seconds(node.p50),
        "p95": _seconds(node.p95),
        "max": _seconds(node.max),
    }
    return [
        "  " * depth + label(node.path),
        _seconds(node.seconds),
        f"{node.share:.1%}",
        *(values[column] for column in columns),
    ]


def _style(node: breakdown.Node) -> str:
    return _PHASE_STYLE.get(node.path, "bold" if not node.path else "")


def _seconds(value: float) -> str:
    return f"{value:,.1f}" if value >= 1000 else f"{value:.3f}"


def _sections(report: Report) -> Iterator[tuple[str, list[str]]]:
    yield "Slowest tasks", [_slow(reason, report) for reason in report.slowest]
    yield "Producers overtaking", [_overtook(pair) for pair in report.overtaking[:_SENTENCES]]
    yield "What if a part took no time", list(_without(report.what_if))
    yield "What is missing", [clean(sentence) for sentence in report.missing]
    yield "Problems of the source", [clean(sentence) for sentence in report.problems]


def _slow(reason: breakdown.Reason, report: Report) -> str:
    failed = f" ({reason.outcome})" if reason.outcome not in ("", "memory") else ""
    task = f"{reason.key or reason.name}{failed} on {breakdown.named(reason.worker, report.workers)}"
    return clean(f"{reason.seconds:8.3f} s  {task} {reason.sentence}.")


def _overtook(pair: breakdown.Overtaking) -> str:
    return clean(
        f"{pair.seconds:8.3f} s  {count(pair.waited_tasks, 'task')} of {pair.waiting} waited for data while their worker ran "
        f"{pair.produced_tasks:,} of {pair.producer}, which made {format_bytes(pair.produced_bytes)}"
        f" ({pair.share:.0%} of all their waiting)."
    )


def _without(cases: Sequence[breakdown.WhatIf]) -> Iterator[str]:
    """A line a computation, a few parts each."""
    for computation in dict.fromkeys(case.computation for case in cases):
        mine = [case for case in cases if case.computation == computation]
        first = mine[0]
        told = (f"without {c.part} {c.seconds - c.saved:.3f} s ({c.saved / c.seconds:.0%} less)" for c in mine[:_PARTS])
        name = first.name or f"computation {computation}"
        yield clean(f"{first.seconds:8.3f} s  {name}: {', '.join(told)}, at best.")
