"""What a page and a notebook show alike, as HTML that needs no script: answer, breakdown, transfers, tables.

Keys, names and messages come from strangers: every text goes through `text`.
"""

from __future__ import annotations

import html
from collections import defaultdict
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from otel_worker import names
from otel_worker.breakdown.activities import journey, label
from otel_worker.breakdown.apportion import add
from otel_worker.pages.colors import KINDS, kind_of
from otel_worker.traces import count, number
from otel_worker.trees import clean, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_worker.breakdown import Reason, Task
    from otel_worker.breakdown.answer import Answer
    from otel_worker.breakdown.peers import Peer
    from otel_worker.traces import Span

MOST_PREFIXES: Final = 15
MOST_WORKERS: Final = 16  # of a matrix that can be read


def style(within: str) -> str:
    """The rules of these pieces, for what stands in an element that `within` selects."""
    rules = files("otel_worker.pages").joinpath("pieces.css").read_text("utf-8")
    return "\n".join(f"{within} {rule}" for rule in rules.splitlines() if rule)


def text(value: str) -> str:
    return html.escape(clean(value))


def seconds(value: float) -> str:
    if value >= 0.9995:
        return f"{value:,.2f} s"
    return f"{value * 1e3:.0f} ms" if value >= 0.0005 else "0"


def answer(found: Answer) -> str:
    verdicts = "".join(
        f"<li><b>{text(verdict.verdict)}.</b> {text(verdict.sentence)}</li>" for verdict in found.verdicts
    )
    remarks = "".join(f"<li>{text(remark)}</li>" for remark in found.remarks)
    return f'<p class="headline">{text(found.headline)}</p><ul class="answer">{verdicts}{remarks}</ul>'


def legend() -> str:
    entries = "".join(f"<span><i style='background:{kind.color}'></i>{text(kind.label)}</span>" for kind in KINDS)
    return f'<p class="legend">{entries}</p>'


def breakdown(tasks: Iterable[Task]) -> str:
    """A bar a prefix, as long as its seconds, in the colours of its activities."""
    sums: dict[str, dict[str, int]] = defaultdict(dict)
    counts: dict[str, int] = defaultdict(int)
    for task in tasks:
        add(sums[task.prefix], task.parts)
        counts[task.prefix] += task.count
    order = sorted(sums, key=lambda prefix: (-sum(sums[prefix].values()), prefix))
    rows = [(prefix, counts[prefix], sums[prefix]) for prefix in order[:MOST_PREFIXES]]
    if rest := order[MOST_PREFIXES:]:
        together: dict[str, int] = {}
        for prefix in rest:
            add(together, sums[prefix])
        rows.append((count(len(rest), "other prefix").replace("xs", "xes"), sum(counts[p] for p in rest), together))
    most = max((sum(parts.values()) for _, _, parts in rows), default=0) or 1
    return f'<table class="breakdown">{"".join(_bar(*row, most) for row in rows)}</table>'


def _bar(prefix: str, tasks: int, parts: Mapping[str, int], most: int) -> str:
    total = sum(parts.values())
    segments = "".join(
        f'<i style="width:{ns / most:.4%};background:{KINDS[kind].color}" title="{text(told)}"></i>'
        for kind, ns, told in _segments(prefix, parts)
    )
    return (
        f"<tr><th>{text(prefix)}</th><td>{text(count(tasks, 'task'))}</td>"
        f'<td class="number">{seconds(total / 1e9)}</td><td class="bar"><div>{segments}</div></td></tr>'
    )


def _segments(prefix: str, parts: Mapping[str, int]) -> Iterator[tuple[int, int, str]]:
    """In the order of the legend; what a person who points at one is told: its parts."""
    by_kind: dict[int, dict[str, int]] = defaultdict(dict)
    for path, ns in parts.items():
        by_kind[kind_of(path)][path] = ns
    total = sum(parts.values()) or 1
    for kind in sorted(by_kind):
        mine = by_kind[kind]
        whole = sum(mine.values())
        lines = [f"{_path_label(path)}: {seconds(mine[path] / 1e9)}" for path in sorted(mine, key=journey)]
        told = f"{prefix}: {KINDS[kind].label} {seconds(whole / 1e9)} ({whole / total:.0%})"
        yield kind, whole, "\n".join([told, *lines])


def _path_label(path: str) -> str:
    phase, _, rest = path.partition(".")
    return f"{label(phase)}: {label(path)}" if rest else label(phase)


def transfers(fetches: Sequence[Span], workers: Mapping[str, str]) -> str:
    """Who sent to whom: bytes, and the seconds of the requests."""
    cells: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0])
    for fetch in fetches:
        sender, receiver = (str(fetch.attributes.get(n, "")) for n in (names.PEER_ADDRESS, names.WORKER_ADDRESS))
        cell = cells[sender, receiver]
        cell[0] += number(fetch.attributes.get(names.FETCH_NBYTES))
        cell[1] += fetch.duration / 1e9
        cell[2] += 1
    if not cells:
        return "<p>Nothing was fetched from another worker.</p>"
    senders, receivers = ({pair[i] for pair in cells} for i in (0, 1))
    rows, columns = _most(senders, 0, cells, workers), _most(receivers, 1, cells, workers)
    most = max(cell[1] for cell in cells.values()) or 1
    head = "".join(f"<th>{text(workers.get(to) or to)}</th>" for to in columns)
    body = "".join(
        f"<tr><th>{text(workers.get(of) or of)}</th>{''.join(_cell(cells.get((of, to)), most) for to in columns)}</tr>"
        for of in rows
    )
    left = len(senders) + len(receivers) - len(rows) - len(columns)
    note = f"<p>{text(count(left, 'row'))} or columns with less are left out.</p>" if left else ""
    return (
        f'<table class="matrix"><tr class="heads"><th>from \\ to</th>{head}</tr>{body}</table>{note}'
        "<p>Bytes, fetches, and their seconds from the first wish to the last value; the darker, the more seconds.</p>"
    )


def _most(
    names_: Iterable[str], place: int, cells: Mapping[tuple[str, str], Sequence[float]], workers: Mapping[str, str]
) -> list[str]:
    total: dict[str, float] = dict.fromkeys(names_, 0.0)
    for pair, cell in cells.items():
        total[pair[place]] += cell[1]
    held = sorted(total, key=lambda name: -total[name])[:MOST_WORKERS]
    return sorted(held, key=lambda name: workers.get(name) or name)


def _cell(cell: Sequence[float] | None, most: float) -> str:
    if cell is None:
        return "<td></td>"
    shade = f"background:rgba(213,94,0,{0.6 * cell[1] / most:.2f})"
    return f'<td style="{shade}">{format_bytes(cell[0])}<br>{cell[2]:,.0f} {"fetch" if cell[2] == 1 else "fetches"}<br>{seconds(cell[1])}</td>'


_SHOWN: Final = 0.0005  # seconds; less would read 0
_PEER_COLUMNS: Final = ("queue", "connect", "loop", "disk", "spill", "pickle", "network", "other")


def peers(found: Sequence[Peer], workers: Mapping[str, str]) -> str:
    """For whom tasks waited, by kind of activity; the largest of each peer stands out."""
    if not found:
        return ""
    kinds = [number_ for number_, kind in enumerate(KINDS) if kind.name in _PEER_COLUMNS]
    head = "".join(f"<th><i style='background:{KINDS[k].color}'></i>{text(KINDS[k].label)}</th>" for k in kinds)
    body = "".join(_peer(peer, kinds, workers) for peer in found[:MOST_WORKERS])
    left = len(found) - MOST_WORKERS
    note = f"<p>{text(count(left, 'peer'))} with less are left out.</p>" if left > 0 else ""
    return f'<table><tr class="heads"><th>peer</th><th>tasks waited</th><th>fetches</th><th>bytes</th>{head}</tr>{body}</table>{note}'


def _peer(peer: Peer, kinds: Sequence[int], workers: Mapping[str, str]) -> str:
    sums: dict[int, float] = defaultdict(float)
    for activity, value in peer.parts.items():
        sums[kind_of(f"{names.WAITING}.{activity}")] += value
    largest = max(sums.values(), default=0)
    cells = "".join(
        f'<td class="number">{"<b>" * (sums[k] == largest > 0)}{seconds(sums[k]) if sums[k] >= _SHOWN else ""}'
        f"{'</b>' * (sums[k] == largest > 0)}</td>"
        for k in kinds
    )
    busy = f" ({peer.busy} busy)" if peer.busy else ""
    return (
        f'<tr><th class="name" title="{text(peer.address)}">{text(workers.get(peer.address) or peer.address)}</th><td class="number">{seconds(peer.seconds)}</td>'
        f'<td class="number">{peer.fetches:,}{busy}</td><td class="number">{format_bytes(peer.nbytes)}</td>{cells}</tr>'
    )


def slowest(found: Sequence[Reason], workers: Mapping[str, str], starts: Mapping[str, tuple[float, float]]) -> str:
    """`starts` is where a task's bars are, by its span's id; without it there is nothing to go to."""
    return f"<table>{''.join(_slow(reason, workers, starts.get(reason.span_id)) for reason in found)}</table>"


def _slow(reason: Reason, workers: Mapping[str, str], place: tuple[float, float] | None) -> str:
    short = {address: name for address, name in workers.items() if name}
    sentence = reason.sentence
    for address, name in short.items():
        sentence = sentence.replace(f"{name} ({address})", name)
    failed = f" ({reason.outcome})" if reason.outcome not in ("", "memory") else ""
    show = f'<button data-start="{place[0]:.6f}" data-end="{place[1]:.6f}">show</button>' if place else ""
    return (
        f'<tr><td>{show}</td><td class="number">{seconds(reason.seconds)}</td><th>{text(reason.key or reason.name)}{text(failed)}</th>'
        f"<td>{text(workers.get(reason.worker) or reason.worker)} {text(sentence)}.</td></tr>"
    )
