"""The transfers of each policy on one time axis, as a page that needs no network. Bokeh draws it."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from otel_worker.lab.demand import LabError
from otel_worker.lab.report import COLUMNS, named
from otel_worker.pages.bokeh import Bokeh, PageError
from otel_worker.pages.colors import KINDS

if TYPE_CHECKING:
    from otel_worker.lab.report import Outcome, Report

#: rows and bars that a browser still shows well; the page says what it leaves out
MOST_ROWS = 80
MOST_BARS = 4_000

_COLORS = {kind.name: kind.color for kind in KINDS}


def page(report: Report) -> str:
    """The whole page; raises LabError where Bokeh is not installed."""
    try:
        bokeh = Bokeh()
    except PageError as error:
        raise LabError(str(error)) from None
    title = f"Fetch policies: {report.case.name}"
    parts: list[Any] = [bokeh.models.Div(text=f"<h1>{html.escape(title)}</h1>{table(report)}")]
    x_range = None
    for outcome in report.outcomes:
        plot = timeline(bokeh, outcome, x_range)
        x_range = plot.x_range
        parts.append(plot)
    layout = bokeh.layouts.column(parts, sizing_mode="stretch_width")
    return str(bokeh.embed.file_html(layout, bokeh.resources.INLINE, title))


def table(report: Report) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("policy", *COLUMNS))
    rows = "".join(
        f"<tr><td>{html.escape(named(outcome))}</td>"
        + "".join(f"<td style='text-align:right'>{html.escape(show(outcome.result))}</td>" for show in COLUMNS.values())
        + "</tr>"
        for outcome in report.outcomes
    )
    return f"<table cellpadding='4'><tr>{head}</tr>{rows}</table>"


def timeline(bokeh: Bokeh, outcome: Outcome, x_range: Any) -> Any:
    """A row a pair of workers, a bar a request: in the colour of a queue until it is sent or where it was in vain, then of the network."""
    every = outcome.result.transfers
    single = len({transfer.worker for transfer in every}) < 2
    names = {transfer: transfer.peer if single else f"{transfer.worker} < {transfer.peer}" for transfer in every}
    rows = sorted(set(names.values()))[:MOST_ROWS]
    shown = [transfer for transfer in every if names[transfer] in set(rows)][:MOST_BARS]
    left_out = f" ({len(every) - len(shown):,} of {len(every):,} requests not shown)" if len(shown) < len(every) else ""
    options = {} if x_range is None else {"x_range": x_range}
    plot = bokeh.plotting.figure(
        title=f"{named(outcome)}: {outcome.result.requests:,} requests{left_out}",
        y_range=list(reversed(rows)) or ["nothing was asked for"],
        height=120 + 14 * max(1, len(rows)),
        sizing_mode="stretch_width",
        x_axis_label="ms",
        **options,
    )
    data = {
        "row": [names[transfer] for transfer in shown],
        "start": [transfer.start * 1e3 for transfer in shown],
        "sent": [transfer.sent * 1e3 for transfer in shown],
        "stop": [transfer.stop * 1e3 for transfer in shown],
        "keys": [transfer.keys for transfer in shown],
        "nbytes": [transfer.nbytes for transfer in shown],
        "outcome": [transfer.outcome for transfer in shown],
        "color": [_COLORS["queue" if transfer.outcome == "busy" else "network"] for transfer in shown],
    }
    source = bokeh.models.ColumnDataSource(data)
    plot.hbar(y="row", left="start", right="sent", height=0.7, color=_COLORS["queue"], source=source)
    bars = plot.hbar(y="row", left="sent", right="stop", height=0.7, color="color", line_color="white", source=source)
    tips = [
        ("peer", "@row"),
        ("keys", "@keys"),
        ("bytes", "@nbytes"),
        ("from, to", "@sent ms, @stop ms"),
        ("outcome", "@outcome"),
    ]
    plot.add_tools(bokeh.models.HoverTool(renderers=[bars], tooltips=tips))
    return plot
