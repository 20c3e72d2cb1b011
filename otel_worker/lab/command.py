"""`otel-worker lab`: connects source, policies and output. No arithmetic in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from distributed.worker_state_machine import InvalidTransition
from rich.console import Console
from rich.table import Table

from otel_worker.lab import settings
from otel_worker.lab.demand import LabError
from otel_worker.lab.html import page
from otel_worker.lab.policies import ALL_POLICIES, POLICIES, overrides, summary
from otel_worker.lab.replay import decisions, nearness
from otel_worker.lab.report import Outcome, Report, to_json, to_text
from otel_worker.lab.results import Result, evaluate
from otel_worker.lab.simulation import Run
from otel_worker.lab.source import load
from otel_worker.lab.workloads import WORKLOADS, Size

if TYPE_CHECKING:
    from otel_worker.lab.demand import Case


@click.command("lab", short_help="Try what a worker asks for from whom, on Dask's real state machine.")
@click.argument("source", required=False)
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Only this policy; may be repeated.")
@click.option("--list", "listing", is_flag=True, help="List the policies, what they override, and the workloads.")
@click.option("--seed", default=0, show_default=True, help="Of choices among equals, and of generated sizes.")
@click.option("--workers", default=20, show_default=True, help="Workload: how many workers, at most 1000.")
@click.option("--deciding", default=1, show_default=True, help="Workload: how many of them fetch; all of them answer.")
@click.option("--keys", default=400, show_default=True, help="Workload: keys for each deciding worker.")
@click.option("--size", default="1 MB", show_default=True, help="Workload: of a key.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="A limit or a peer, as in a drawing.")
@click.option("--vary", metavar="NAME=VALUE,…", help="Run everything once for each value.")
@click.option("--cpu/--no-cpu", default=True, help="Measure CPU; without, the output depends on the seed alone.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write JSON here; - is standard output.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False), help="Write a page with all transfers here.")
def lab(
    source: str | None,
    policies: tuple[str, ...],
    listing: bool,
    seed: int,
    workers: int,
    deciding: int,
    keys: int,
    size: str,
    changes: tuple[str, ...],
    vary: str | None,
    cpu: bool,
    json_file: str | None,
    html_file: str | None,
) -> None:
    """Try what a worker asks for from whom, under each fetch policy, on Dask's real state machine.

    SOURCE is a workload's name (see --list), a drawing, a YAML case, a recording or a folder of them (*.jsonl), or a
    cluster dump (*.msgpack.gz, *.yaml).

    Limits and peers, for --set and --vary: connections, throttle threshold, byte limit, message limit, latency, connect,
    bandwidth, request time, key time, outgoing connections, outgoing bytes, load, busy for, busy every; C.latency is that
    of the peer C alone. `none` is no limit.

    \b
    otel-worker lab --list
    otel-worker lab all-to-all
    otel-worker lab skewed-sizes --vary "message limit=1 MB,5 MB,50 MB" --html page.html
    """  # noqa: D301  click reads \b as a character
    console = Console()
    if listing:
        show_list(console)
        return
    if source is None:
        raise click.UsageError("Give a SOURCE: a file or a workload, such as all-to-all; --list lists them.")
    try:
        report = experiment(
            source,
            policies or tuple(POLICIES),
            Size(workers, keys, settings.size(size), deciding, seed),
            changes,
            vary,
            cpu=cpu,
        )
        if html_file:
            write(html_file, page(report))
        if json_file:
            write(json_file, json.dumps(to_json(report), indent=1) + "\n")
    except LabError as error:
        raise click.ClickException(str(error)) from None
    if json_file != "-":
        for part in to_text(report):
            console.print(part)


def experiment(
    source: str, policies: tuple[str, ...], size: Size, changes: tuple[str, ...], vary: str | None, *, cpu: bool
) -> Report:
    """Every policy on the case, and again for each value that is varied."""
    for policy in policies:
        if policy not in ALL_POLICIES:
            raise LabError(f"There is no policy {policy!r}; there are {', '.join(ALL_POLICIES)}.")
    case, recordings = load(source, size)
    for change in changes:
        case = settings.apply(case, *assignment(change))
    outcomes = [
        Outcome(setting, measure(variant, policy, size.seed, cpu=cpu))
        for setting, variant in variants(case, vary)
        for policy in policies
    ]
    current = [outcome.result for outcome in outcomes if outcome.result.policy == "current"]
    pairs = [decisions(recorded) for recorded in recordings]
    return Report(
        case=case,
        seed=size.seed,
        outcomes=outcomes,
        nearness=nearness(case, current[0]) if current and recordings and not vary else [],
        decisions=(sum(alike for alike, _ in pairs), sum(every for _, every in pairs)) if recordings else None,
    )


def measure(case: Case, policy: str, seed: int, *, cpu: bool) -> Result:
    try:
        return evaluate(policy, Run(case, policy, seed=seed, cpu=cpu).run().facts)
    except (InvalidTransition, AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        if not case.happened:
            raise
        raise LabError(f"{case.name} can't be replayed under {policy}: {error!r}.") from error


def variants(case: Case, vary: str | None) -> list[tuple[str, Case]]:
    if vary is None:
        return [("", case)]
    name, values = assignment(vary)
    return [(f"{name} {value.strip()}", settings.apply(case, name, value.strip())) for value in values.split(",")]


def assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise LabError(f"{text!r} is no NAME=VALUE, such as 'message limit=5 MB'.")
    return name.strip(), value.strip()


def write(path: str, text: str) -> None:
    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LabError(f"{path} can't be written: {error.strerror}.") from None


def show_list(console: Console) -> None:
    table = Table(title="Policies")
    for column in ("policy", "what it does", "overrides of Dask's WorkerState"):
        table.add_column(column)
    for name, policy in ALL_POLICIES.items():
        table.add_row(name, summary(policy), ", ".join(overrides(policy)) or "nothing")
    console.print(table)
    workloads = Table(title="Workloads")
    for column in ("workload", "what it is"):
        workloads.add_column(column)
    for name, make in WORKLOADS.items():
        workloads.add_row(name, (make.__doc__ or "").strip().splitlines()[0])
    console.print(workloads)
