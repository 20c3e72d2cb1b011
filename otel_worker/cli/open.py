"""`otel-worker open`: what is open right now on every worker."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from otel_worker.cli.report import console
from otel_worker.scheduler import AddressError, Scheduler, SchedulerError, connected
from otel_worker.survey import Round
from otel_worker.trees import clean

_FILE = click.Path(exists=True, dir_okay=False)
_MOST = 10  # workers that are named for one reason
_HOW = "Start workers under opentelemetry-instrument, or switch them on with otel_worker.enable(client)."


@dataclass
class Seen:
    """One look at a cluster."""

    scheduler: str
    at: float
    names: dict[str, str]
    round: Round
    open: list[dict[str, Any]] = field(default_factory=list)  # the longest first, each with its worker
    count: int = 0


@click.command("open")
@click.argument("scheduler")
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option("--every", default=2.0, show_default=True, type=click.FloatRange(0.1), help="Seconds between two looks.")
@click.option("--top", default=20, show_default=True, type=click.IntRange(1), help="How many of the longest to show.")
@click.option(
    "--timeout", default=3.0, show_default=True, type=click.FloatRange(0.1), help="Seconds to wait for answers."
)
@click.option("--json", "as_json", is_flag=True, help="For programs; with --watch a line for each look.")
@click.option("--tls-ca-file", type=_FILE, help="CA certificates in PEM, else as Dask is configured.")
@click.option("--tls-cert", type=_FILE, help="Certificate in PEM.")
@click.option("--tls-key", type=_FILE, help="Private key in PEM.")
def open_(
    scheduler: str,
    watch: bool,
    every: float,
    top: int,
    timeout: float,
    as_json: bool,
    tls_ca_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Show what is open right now on every worker of the cluster at SCHEDULER, the longest first.

    Tasks that wait, are ready or execute; requests for data and keys that wait to be requested; requests that are served:
    each with what it does or waits for, since when, and which peer it depends on. Workers without otel_worker, and workers that do
    not answer in time, are listed as such.

    \b
    otel-worker open tcp://127.0.0.1:8786
    otel-worker open tcp://127.0.0.1:8786 --watch --top 40
    otel-worker open tls://scheduler:8786 --tls-ca-file ca.pem --tls-cert me.pem --tls-key me.key --json
    """  # noqa: D301  click reads \b as a character
    looks = _looks(scheduler, every if watch else 0.0, top, timeout, ca_file=tls_ca_file, cert=tls_cert, key=tls_key)
    try:
        found = asyncio.run(_show(looks, as_json=as_json, live=watch and not as_json and sys.stdout.isatty()))
    except AddressError as error:
        raise SystemExit(_say(str(error), 2)) from None
    except SchedulerError as error:
        raise SystemExit(_say(str(error), 1)) from None
    except KeyboardInterrupt:
        return
    if not found.names:
        raise SystemExit(_say(f"The scheduler {found.scheduler} has no workers.", 1))


def _say(sentence: str, status: int) -> int:
    click.echo(f"otel-worker: {clean(sentence)}", err=True)
    return status


# --- looking ---------------------------------------------------------------------------------------------------------


async def _looks(scheduler: str, every: float, top: int, timeout: float, **tls: str | None) -> AsyncIterator[Seen]:
    """One look, or one look `every` so many seconds."""
    async with connected(scheduler, timeout, **tls) as held:
        while True:
            begun = time.monotonic()
            yield await _look(held, top)
            if not every:
                return
            await asyncio.sleep(max(0.0, begun + every - time.monotonic()))


async def _look(held: Scheduler, top: int) -> Seen:
    workers = await held.workers()
    asked = await held.survey.round({address: w.get("metrics") or {} for address, w in workers.items()}, most=top)
    seen = Seen(held.address, time.time(), {address: str(w.get("name")) for address, w in workers.items()}, asked)
    for address, answer in asked.answers.items():
        seen.count += answer["count"]
        seen.open += [{"worker": address, "name": seen.names[address], **opening} for opening in answer["open"]]
    seen.open.sort(key=lambda opening: -opening["seconds"])
    del seen.open[top:]
    return seen


# --- showing -----------------------------------------------------------------------------------------------------------


async def _show(looks: AsyncIterator[Seen], *, as_json: bool, live: bool) -> Seen:
    out = console(sys.stdout)
    screen = Live(console=out, screen=True, auto_refresh=False) if live else None
    seen = None
    with screen or nullcontext():
        async for seen in looks:
            if as_json:
                click.echo(json.dumps(_as_json(seen)))
            elif screen is not None:
                screen.update(_as_table(seen), refresh=True)
            else:
                out.print(_as_table(seen))
    assert seen is not None  # the first look is there, or it raised
    return seen


def _as_json(seen: Seen) -> dict[str, Any]:
    asked = seen.round
    states = {
        **dict.fromkeys(asked.answers, "answered"),
        **dict.fromkeys(asked.without, "without"),
        **dict.fromkeys(asked.silent, "silent"),
        **dict.fromkeys(asked.failed, "failed"),
    }
    workers = [
        {
            "address": address,
            "name": name,
            "state": states[address],
            "open": asked.answers.get(address, {}).get("count"),
            "why": asked.failed.get(address, ""),
        }
        for address, name in seen.names.items()
    ]
    return {"scheduler": seen.scheduler, "at": seen.at, "count": seen.count, "workers": workers, "open": seen.open}


def _as_table(seen: Seen) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("worker", "key", "state"):
        table.add_column(title, overflow="fold" if title == "key" else "ellipsis")
    table.add_column("for", justify="right", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    table.add_column("for", justify="right", no_wrap=True)
    table.add_column("peer", overflow="fold")
    for opening in seen.open:
        table.add_row(*(Text(cell) for cell in _row(opening, seen.names)))
    lines = [Text(clean(line)) for line in _sentences(seen)]
    return Group(table, *lines) if seen.open else Group(*lines)


def _row(opening: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, ...]:
    more = f" and {opening['keys'] - 1:,} more" if opening["keys"] > 1 else ""
    peer = opening["peer"]
    return (
        clean(opening["name"]),
        clean(opening["key"]) + more,
        clean(opening["state"]),
        _seconds(opening["seconds"]),
        clean(opening["phase"]),
        _seconds(opening["phase_seconds"]),
        clean(f"{names[peer]} {peer}" if peer in names and names[peer] != peer else peer),
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s"


def _sentences(seen: Seen) -> list[str]:
    """What the table does not say."""
    asked = seen.round
    answered = f"{len(asked.answers)} of {len(seen.names)} workers answered"
    lines = [f"{answered}; {seen.count:,} open." if seen.count else f"{answered}; nothing is open on them."]
    if seen.count > len(seen.open):
        lines[0] = f"{answered}; the longest {len(seen.open):,} of {seen.count:,} that are open."
    told = (
        ("no answer in time", dict.fromkeys(asked.silent, "")),
        ("without otel_worker", dict.fromkeys(asked.without, "")),
        ("can't be asked", asked.failed),
    )
    for what, which in told:
        for address, why in list(which.items())[:_MOST]:
            lines.append(f"{seen.names[address]} {address}: {what}{why and f': {why}'}")
        if len(which) > _MOST:
            lines.append(f"{len(which) - _MOST:,} more: {what}")
    return lines + ([_HOW] if asked.without else [])
