"""Shows results: tables for a terminal, JSON for programs. No arithmetic beyond rounding."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from otel_worker.lab.demand import label
from otel_worker.lab.waits import REASONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import RenderableType

    from otel_worker.lab.demand import Case
    from otel_worker.lab.replay import Nearness
    from otel_worker.lab.results import Result

SCHEMA = "otel_worker.lab"
VERSION = 1


@dataclass(frozen=True)
class Outcome:
    """A result, and the setting under which it came about where one is varied."""

    setting: str
    result: Result


@dataclass(frozen=True)
class Report:
    """All that one call of the lab found out."""

    case: Case
    seed: int
    outcomes: list[Outcome]
    nearness: list[Nearness]
    #: recorded decisions that Dask's own state machine makes again, and all of them; None where nothing was recorded
    decisions: tuple[int, int] | None


def number(value: float | None) -> float | None:
    """JSON has no infinity: no limit is null."""
    return None if value is None or math.isinf(value) or math.isnan(value) else value


def to_json(report: Report) -> dict[str, Any]:
    """The documented form (`docs/lab.md`): `version` rises when a name goes or changes its meaning."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "case": {
            "name": report.case.name,
            "workers": [label(worker) for worker in report.case.workers],
            "events": len(report.case.arrivals),
            "limits": {name: number(value) for name, value in asdict(report.case.limits).items()},
            "peer": {name: number(value) for name, value in asdict(report.case.peer).items()},
        },
        "seed": report.seed,
        "results": [{"setting": outcome.setting, **outcome.result.to_dict()} for outcome in report.outcomes],
        "nearness": [{**asdict(each), "ratio": number(each.ratio)} for each in report.nearness],
        "decisions": None
        if report.decisions is None
        else dict(zip(("alike", "recorded"), report.decisions, strict=True)),
    }


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:,.1f}"


def microseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e6:,.0f}"


def size(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if value < 1_000:
            return f"{value:.3g} {unit}"
        value /= 1_000
    return f"{value:.3g} GB"


COLUMNS: dict[str, Callable[[Result], str]] = {
    "requests": lambda result: (
        f"{result.requests:,}" + (f" ({result.busy_replies} busy)" if result.busy_replies else "")
    ),
    "keys each (max)": lambda result: f"{result.keys_a_request:.1f} ({result.keys_a_request_max:,})",
    "size each (max)": lambda result: f"{size(result.bytes_a_request)} ({size(result.bytes_a_request_max)})",
    "parallel (max)": lambda result: f"{result.parallel_mean:.1f} ({result.parallel_max})",
    "first ready ms": lambda result: milliseconds(result.first_ready),
    "last ready ms": lambda result: milliseconds(result.last_ready),
    "last key ms": lambda result: milliseconds(result.last_key),
    "mean wait ms": lambda result: milliseconds(result.mean_wait),
    "decision µs": lambda result: microseconds(result.decision_cpu_a_stimulus),
    "stimulus µs": lambda result: microseconds(result.stimulus_cpu_a_stimulus),
    "heap ops": lambda result: (
        "-" if result.heap_operations_a_stimulus is None else f"{result.heap_operations_a_stimulus:,.1f}"
    ),
}


def to_text(report: Report) -> Iterable[RenderableType]:
    """What a terminal shows."""
    limits = report.case.limits
    yield (
        f"{report.case.name}: {len(report.case.workers):,} deciding worker(s), {len(report.case.arrivals):,} events; "
        f"limits: {limits.incoming_count:,} connections above {size(limits.throttle_threshold)}, "
        f"{limit(limits.incoming_bytes)} in all, {limit(limits.message_bytes)} a request"
    )
    yield comparison(report)
    if any(outcome.result.mean_wait for outcome in report.outcomes):
        yield waiting(report)
    if any(outcome.result.unready for outcome in report.outcomes):
        unready = ", ".join(f"{o.result.unready:,} under {named(o)}" for o in report.outcomes if o.result.unready)
        yield f"Tasks that never got all their data: {unready}."
    if report.decisions is not None:
        alike, recorded = report.decisions
        yield f"Given the recorded events and answers, Dask's state machine decides {alike:,} of {recorded:,} requests as recorded."
    if report.nearness:
        yield nearness(report.nearness)


def limit(value: float) -> str:
    return "no limit" if math.isinf(value) else size(value)


def named(outcome: Outcome) -> str:
    return f"{outcome.result.policy}, {outcome.setting}" if outcome.setting else outcome.result.policy


def comparison(report: Report) -> Table:
    table = Table(title="What each policy asks for, and what it comes to")
    table.add_column("policy", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for outcome in report.outcomes:
        table.add_row(named(outcome), *(show(outcome.result) for show in COLUMNS.values()))
    return table


def waiting(report: Report) -> Table:
    seen = [reason for reason in REASONS if any(outcome.result.wait[reason] > 0 for outcome in report.outcomes)]
    table = Table(title="Where a dependent's waiting went, mean, ms")
    table.add_column("policy", no_wrap=True)
    for reason in seen:
        table.add_column(reason, justify="right")
    for outcome in report.outcomes:
        table.add_row(named(outcome), *(milliseconds(outcome.result.wait[reason]) for reason in seen))
    return table


def nearness(rows: Iterable[Nearness]) -> Table:
    table = Table(title="How near the simulation under `current` comes to what was recorded")
    table.add_column("figure")
    for column in ("recorded", "simulated", "ratio"):
        table.add_column(column, justify="right")
    for each in rows:
        table.add_row(each.figure, f"{each.recorded:,.4g}", f"{each.replayed:,.4g}", f"{each.ratio:.2f}")
    return table
