"""The waterfall as Bokeh draws it. What is drawn at which zoom is decided in the browser, by page.js."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any, Final

from otel_worker.breakdown.activities import label
from otel_worker.pages.bars import WHATS, Picture
from otel_worker.pages.colors import KINDS
from otel_worker.trees import clean

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Mapping

    from otel_worker.pages.bokeh import Bokeh

_LANE: Final = 21  # pixels
_BAR: Final = 0.45  # of a lane
_BARS: Final = ("lane", "start", "end", "kind", "path", "item")
_ITEMS: Final = ("what", "lane", "name", "key", "peer", "nbytes", "start", "end")
_TOOLTIP: Final = [("", "@title"), ("", "@part @whole"), ("", "@times")]


def figure(bokeh: Bokeh, picture: Picture, workers: Mapping[str, str]) -> Any:
    extent = (picture.end - picture.start) / 1e9 or 1.0
    lanes = picture.lanes
    plot = bokeh.plotting.figure(
        name="waterfall",
        x_range=bokeh.models.Range1d(-0.01 * extent, 1.01 * extent, min_interval=1e-6),
        y_range=bokeh.models.Range1d(len(lanes) - 0.4, -0.7),
        height=_LANE * (len(lanes) + 1) + 60,
        sizing_mode="stretch_width",
        x_axis_label="seconds",
        x_axis_location="above",
        tools="",
        background_fill_color="#ffffff",
    )
    _axis(bokeh, plot, picture, workers)
    bars = bokeh.models.ColumnDataSource(
        {c: [] for c in ("y", "left", "right", "color", "alpha", "title", "part", "whole", "times")}, name="bars"
    )
    shown = plot.hbar(
        y="y",
        left="left",
        right="right",
        height=_BAR,
        fill_color="color",
        fill_alpha="alpha",
        line_color=None,
        source=bars,
    )
    texts = bokeh.models.ColumnDataSource({c: [] for c in ("x", "y", "text", "left", "right", "line")}, name="names")
    plot.hbar(
        y="line",
        left="left",
        right="right",
        height=_BAR,
        fill_color=None,
        line_color="#333333",
        line_width=0.7,
        source=texts,
    )
    plot.text(x="x", y="y", text="text", text_font_size="10px", text_baseline="top", source=texts)
    _tools(bokeh, plot, shown)
    return plot


def _axis(bokeh: Bokeh, plot: Any, picture: Picture, workers: Mapping[str, str]) -> None:
    labels = dict(_labels(picture, workers))
    plot.yaxis.ticker = bokeh.models.FixedTicker(ticks=list(labels))
    plot.yaxis.major_label_overrides = labels
    plot.yaxis.major_label_text_font_size = "11px"
    plot.ygrid.grid_line_color = None
    firsts = [i for i, lane in enumerate(picture.lanes) if not i or picture.lanes[i - 1].worker != lane.worker]
    ends = [*firsts[1:], len(picture.lanes)] if firsts else []
    for number, (top, bottom) in enumerate(zip(firsts, ends, strict=True)):
        fill = "#f2f2f2" if number % 2 == 0 else "#ffffff"
        plot.add_layout(
            bokeh.models.BoxAnnotation(top=bottom - 0.52, bottom=top - 0.52, fill_color=fill, level="image")
        )


def _labels(picture: Picture, workers: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """A lane's name where it begins, after its worker's; threads are counted."""
    before, thread = None, 0
    for i, lane in enumerate(picture.lanes):
        thread = thread + 1 if lane.name == "thread" and before and before.worker == lane.worker and thread else 1
        if lane != before or lane.name == "thread":
            number = f" {thread}" if lane.name == "thread" else ""
            yield i, clean(f"{workers.get(lane.worker) or lane.worker} {lane.name}{number}")
        if lane.name != "thread":
            thread = 0
        before = lane


def _tools(bokeh: Bokeh, plot: Any, shown: Any) -> None:
    models = bokeh.models
    box = models.BoxZoomTool(dimensions="width")
    plot.add_tools(
        box, models.PanTool(dimensions="width"), models.WheelZoomTool(dimensions="width"), models.ResetTool()
    )
    plot.add_tools(models.HoverTool(renderers=[shown], tooltips=_TOOLTIP))
    plot.toolbar.active_drag = box
    plot.toolbar.logo = None


def data(picture: Picture, workers: Mapping[str, str]) -> dict[str, Any]:
    """What page.js reads."""
    texts = picture.strings.texts
    used = set(picture.bars[4])
    return {
        "bars": {name: _encoded(column) for name, column in zip(_BARS, picture.bars, strict=True)},
        "items": {name: _encoded(column) for name, column in zip(_ITEMS, picture.items, strict=True)},
        "strings": texts,
        "labels": {int(number): _activity(texts[int(number)]) for number in used},
        "kinds": [[kind.color, kind.label] for kind in KINDS],
        "lanes": [[lane.worker, lane.name] for lane in picture.lanes],
        "workers": dict(workers),
        "whats": list(WHATS),
        "keys": picture.keys,
        "seconds": (picture.end - picture.start) / 1e9 or 1.0,
    }


def _activity(path: str) -> str:
    return "running, among others" if path == "others" else label(path)


def _encoded(column: array[float]) -> tuple[str, str]:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.typecode, base64.b64encode(column.tobytes()).decode("ascii")
