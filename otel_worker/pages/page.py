"""The whole page: first the answer in words, then the pictures and tables that it comes from. It needs no network."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from otel_worker import names
from otel_worker.pages import pieces, waterfall
from otel_worker.pages.bokeh import Bokeh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_worker.pages.found import Found

_LAST: Final = 253_402_300_799  # seconds since the epoch, of the last year that has four digits

_CONTROLS: Final = """<div id="controls"><label>Key: <input id="search" type="search" placeholder="part of a key"></label>
<span><button id="zoom-whole">whole</button> <button id="zoom-in">zoom in</button> <button id="zoom-out">zoom out</button>
<button id="zoom-left">&larr;</button> <button id="zoom-right">&rarr;</button></span></div>
<ul id="results"></ul><p class="note" id="detail"></p>"""


def page(found: Found) -> str:
    """Raises PageError where Bokeh is not installed."""
    bokeh = Bokeh()
    plot = waterfall.figure(bokeh, found.picture, found.workers)
    script, div = bokeh.embed.components(plot)
    library = bokeh.resources.Resources(mode="inline", components=["bokeh"]).render()
    title = f"Where the time went: {found.source}"
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{pieces.text(title)}</title><style>{_file('page.css')}{pieces.style('body')}</style>",
            f"{library}</head><body>",
            *_body(found, div),
            f'<script type="application/json" id="otel-worker-data">{_data(found)}</script>',
            f"{script}<script>{_file('page.js')}</script></body></html>\n",
        )
    )


def _body(found: Found, waterfall_: str) -> Iterator[str]:
    yield f'<h1>Where the time went</h1><p class="source">{pieces.text(_about(found))}</p>'
    yield pieces.answer(found.answer)
    yield "<h2>By task prefix: seconds of all tasks, added up</h2>" + pieces.legend() + pieces.breakdown(found.tasks)
    yield "<h2>Whom tasks waited for</h2>" + _scroll(pieces.peers(found.peers, found.workers))
    yield '<h2 id="waterfall">Waterfall by worker and thread</h2>'
    yield '<p class="note">Drag over the time to zoom in; point at a bar to read what it is. A fetch and a wait have the colours of their parts, as long as these took.</p>'
    yield "".join(f'<p class="note">{pieces.text(sentence)}</p>' for sentence in found.picture.left_out)
    yield _CONTROLS + pieces.legend() + waterfall_
    yield "<h2>Slowest tasks</h2>" + pieces.slowest(found.report.slowest, found.workers, found.places)
    yield "<h2>Transfers</h2>" + _scroll(pieces.transfers(found.ours[names.FETCH], found.workers))
    missing = (*found.report.missing, *found.report.problems)
    if missing:
        yield (
            "<h2>What the data does not hold</h2><ul>"
            + "".join(f"<li>{pieces.text(s)}</li>" for s in missing)
            + "</ul>"
        )


def _scroll(table: str) -> str:
    return f'<div class="scroll">{table}</div>'


def _about(found: Found) -> str:
    extent = found.report.extent
    start = datetime.fromtimestamp(min(max(extent.start, 0), _LAST), timezone.utc)
    return f"{found.source}, from {start:%Y-%m-%d %H:%M:%S} UTC over {extent.end - extent.start:,.1f} s"


def _data(found: Found) -> str:
    """JSON that can stand in HTML: no key can end the element that it is in."""
    text = json.dumps(waterfall.data(found.picture, found.workers), separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _file(name: str) -> str:
    return files("otel_worker.pages").joinpath(name).read_text("utf-8")
