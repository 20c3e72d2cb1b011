"""The page `/otel` in the dashboards of a worker and a scheduler: where the time of tasks goes now, and what is open.

A worker reads its own sums; a scheduler asks its workers, and only while somebody has the page open. Imported only where Dask
itself has imported Bokeh.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from bokeh.layouts import column
from bokeh.models import ColumnDataSource, DataRange1d, FactorRange
from bokeh.models.widgets import DataTable, Div, NumberFormatter, StringFormatter, TableColumn
from bokeh.plotting import figure
from distributed.dashboard.components.worker import BOKEH_THEME, env
from distributed.dashboard.core import BokehApplication
from tornado.ioloop import IOLoop

from otel_worker import names
from otel_worker.survey import Survey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

logger = logging.getLogger("otel_worker")

PAGE = "otel"
EVERY = 1.0  # seconds between two looks
REFRESH = 200  # milliseconds between two attempts to show one
WINDOW = 60.0  # seconds that count as now
PATIENCE = 2.0  # seconds that a scheduler waits for answers
OPEN = 20  # of what is open, the longest
BARS = 16  # activities with a bar

# What the workers' sums are called, what a person reads, and a colour that colour-blind people can tell from the others.
GROUPS = {
    "wait": ("waiting", "#56B4E9"),
    "ready": ("ready", "#999999"),
    "execute": ("execute", "#009E73"),
}


class Look(NamedTuple):
    """What tasks do now and did, by (group, activity): how many do it, and seconds since the workers were switched on."""

    at: float
    now: dict[tuple[str, str], float]
    sums: dict[tuple[str, str], float]
    open: list[dict[str, Any]]
    sentence: str


# --- where it comes from -------------------------------------------------------------------------------------------


def summed(answers: Mapping[str, Mapping[str, Any]], called: Mapping[str, str], sentence: str) -> Look:
    """Add up what workers answered; `called` has their names by address."""
    sums: dict[tuple[str, str], float] = {}
    now: dict[tuple[str, str], float] = {}
    rows: list[dict[str, Any]] = []
    for address, answer in answers.items():
        for group in ("wait", "execute"):
            for activity, seconds in answer.get(group, {}).items():
                sums[group, activity] = sums.get((group, activity), 0.0) + seconds
        for group, activity, tasks in answer.get("now", ()):
            now[group, activity] = now.get((group, activity), 0.0) + tasks
        for _, state, _, seconds, _ in answer.get("states", ()):
            if state in ("ready", "constrained"):
                sums["ready", state] = sums.get(("ready", state), 0.0) + seconds
        rows += [{**opening, "worker": called.get(address, address)} for opening in answer.get("open", ())]
    rows.sort(key=lambda row: -float(row["seconds"]))
    return Look(time.monotonic(), now, sums, rows[:OPEN], sentence)


async def look_at_worker(worker: Any) -> Look:
    answer = worker.handlers[names.OPERATION](what="all", most=OPEN)
    if not answer["on"]:
        return summed({}, {}, "otel_worker is switched off on this worker.")
    count, of = answer["count"], answer["spans"]
    spans = ", ".join(f"{n:,} {what}" for what, n in of.items() if n)
    return summed({"": answer}, {"": answer["name"]}, f"{count:,} open now; spans: {spans or 'none'}.")


class Cluster:
    """Asks a scheduler's workers for all who look at it."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = weakref.ref(scheduler)
        self._survey = Survey(scheduler.broadcast, PATIENCE)
        self._last = Look(0.0, {}, {}, [], "Asking the workers …")
        self._asking = asyncio.Lock()

    async def look(self) -> Look:
        scheduler = self._scheduler()
        if scheduler is None or self._asking.locked():
            return self._last
        async with self._asking:
            pause = max(EVERY, len(scheduler.workers) / 100)  # of many workers not all of them every second
            if time.monotonic() - self._last.at >= 0.9 * pause:
                self._last = await self._ask(scheduler)
            return self._last

    async def _ask(self, scheduler: Any) -> Look:
        workers = {address: state.metrics for address, state in scheduler.workers.items()}
        called = {address: str(state.name) for address, state in scheduler.workers.items()}
        told = await self._survey.round(workers, what="all", most=OPEN)
        missing = [
            f"{len(which):,} {what}"
            for what, which in (
                ("without otel_worker", told.without),
                ("silent", told.silent),
                ("can't be asked", told.failed),
            )
            if which
        ]
        sentence = f"{len(told.answers):,} of {len(workers):,} workers answered"
        return summed(told.answers, called, f"{sentence}{'; ' + ', '.join(missing) if missing else ''}.")


_clusters: weakref.WeakKeyDictionary[Any, Cluster] = weakref.WeakKeyDictionary()


def cluster(scheduler: Any) -> Cluster:
    if scheduler not in _clusters:
        _clusters[scheduler] = Cluster(scheduler)
    return _clusters[scheduler]


# --- what is shown ---------------------------------------------------------------------------------------------------


class Breakdown:
    """One visitor's view: bars of what tasks did in the last minute, and tables."""

    def __init__(self, look: Callable[[], Awaitable[Look]]) -> None:
        self._look = look
        self._looks: deque[Look] = deque()
        self._failed = False
        self._asked: asyncio.Future[Look] | None = None
        self._due = 0.0
        self.bars = ColumnDataSource({name: [] for name in ("name", "tasks", "color")}, name="bars")
        self.sums = ColumnDataSource({name: [] for name in ("name", "recent", "total")})
        self.open = ColumnDataSource(
            {name: [] for name in ("worker", "key", "state", "seconds", "phase", "since", "peer")}
        )
        self.sentence = Div(text="Asking …", name="sentence")
        self._names = FactorRange()
        self.figure = figure(
            title=f"Tasks at a time by what they do, on average over the last {WINDOW:.0f} s",
            y_range=self._names,
            height=124,
            sizing_mode="stretch_width",
            x_range=DataRange1d(start=0),
            tools="hover",
            tooltips=[("", "@name"), ("tasks at a time", "@tasks{0,0.00}")],
            toolbar_location=None,
        )
        self.figure.hbar(y="name", right="tasks", height=0.8, color="color", source=self.bars)
        self.root = column(
            self.sentence, self.figure, _sums_table(self.sums), _open_table(self.open), sizing_mode="stretch_width"
        )

    def update(self) -> None:
        """Show what was asked for before, and ask again when it is time: nobody waits, least of all with the document locked."""
        if self._failed or (self._asked is not None and not self._asked.done()):
            return
        try:
            if self._asked is not None:
                look, self._asked = self._asked.result(), None
                if look.at > (self._looks[-1].at if self._looks else 0.0):
                    self._show(look)
            if (now := time.monotonic()) >= self._due:
                self._due = now + EVERY
                self._asked = asyncio.ensure_future(self._look())
        except Exception:
            self._failed = True
            self.sentence.text = "The page failed; the log says why."
            logger.exception("otel_worker: the dashboard's page failed; Dask is not affected")

    def _show(self, look: Look) -> None:
        self._looks.append(look)
        while len(self._looks) > 2 and look.at - self._looks[1].at > WINDOW:
            self._looks.popleft()
        bars = means([held.now for held in self._looks])[:BARS]
        self.figure.height = 100 + 24 * max(1, len(bars))
        self._names.factors = [row["name"] for row in reversed(bars)]
        self.bars.data = {name: [row[name] for row in bars] for name in self.bars.data}
        sums = recent(self._looks[0], look)
        self.sums.data = {name: [row[name] for row in sums] for name in self.sums.data}
        self.open.data = {name: [_cell(row, name) for row in look.open] for name in self.open.data}
        self.sentence.text = look.sentence


def means(samples: Sequence[Mapping[tuple[str, str], float]]) -> list[dict[str, Any]]:
    """How many tasks at a time did what, over some looks: the most first."""
    found: dict[tuple[str, str], float] = {}
    for sample in samples:
        for key, tasks in sample.items():
            found[key] = found.get(key, 0.0) + tasks / len(samples)
    rows = [
        {"name": f"{GROUPS[group][0]}: {activity}", "tasks": tasks, "color": GROUPS[group][1]}
        for (group, activity), tasks in found.items()
    ]
    return sorted(rows, key=lambda row: (-float(row["tasks"]), row["name"]))


def recent(before: Look, after: Look) -> list[dict[str, Any]]:
    """Seconds of phases that ended between two looks, and of all; what fell (a worker left) counts as nothing."""
    rows = []
    for (group, activity), total in after.sums.items():
        seconds = max(0.0, total - before.sums.get((group, activity), 0.0))
        rows.append({"name": f"{GROUPS[group][0]}: {activity}", "recent": seconds, "total": total})
    return sorted(rows, key=lambda row: (-row["recent"], -row["total"], row["name"]))


def _cell(row: Mapping[str, Any], name: str) -> Any:
    if name == "since":
        return row["phase_seconds"]
    if name == "key" and row["keys"] > 1:
        return f"{row['key']} and {row['keys'] - 1:,} more"
    return row[name]


def _table(source: ColumnDataSource, columns: Sequence[tuple[str, str, bool]], height: int, name: str) -> DataTable:
    """Cells are text to the browser, whatever a key is called."""
    shown = [
        TableColumn(
            field=field, title=title, formatter=NumberFormatter(format="0,0.00") if number else StringFormatter()
        )
        for field, title, number in columns
    ]
    return DataTable(
        source=source, columns=shown, height=height, index_position=None, sizing_mode="stretch_width", name=name
    )


def _sums_table(source: ColumnDataSource) -> DataTable:
    columns = (
        ("name", "what ended phases of tasks went to", False),
        ("recent", "seconds, last minute", True),
        ("total", "seconds, in all", True),
    )
    return _table(source, columns, 260, "sums")


def _open_table(source: ColumnDataSource) -> DataTable:
    columns = (
        ("worker", "worker", False),
        ("key", "open for longest", False),
        ("state", "state", False),
        ("seconds", "seconds", True),
        ("phase", "phase", False),
        ("since", "seconds", True),
        ("peer", "peer", False),
    )
    return _table(source, columns, 300, "open")


# --- where it appears ------------------------------------------------------------------------------------------------


def _document(extra: Mapping[str, Any], doc: Any, look: Callable[[], Awaitable[Look]]) -> None:
    doc.title = "Dask: where the time goes"
    doc.template = env.get_template("simple.html")
    doc.template_variables.update({"active_page": PAGE, **extra})
    doc.theme = BOKEH_THEME
    view = Breakdown(look)
    doc.add_root(view.root)
    doc.add_periodic_callback(view.update, REFRESH)


def worker_page(worker: Any, extra: Mapping[str, Any], doc: Any) -> None:
    _document(extra, doc, partial(look_at_worker, worker))


def scheduler_page(scheduler: Any, extra: Mapping[str, Any], doc: Any) -> None:
    _document(extra, doc, cluster(scheduler).look)


def add_to_worker(application: Any, worker: Any, prefix: str) -> None:
    import distributed.dashboard.worker as pages

    listed = pages.template_variables
    _add(application, worker, prefix, worker_page, {**listed, "pages": [*listed["pages"], PAGE]})


def add_to_scheduler(application: Any, scheduler: Any, prefix: str) -> None:
    """Dask's own pages list it, too."""
    import distributed.dashboard.scheduler as pages

    variables = pages.template_variables(scheduler)
    if PAGE not in variables["pages"]:
        variables["pages"].append(PAGE)
    _add(application, scheduler, prefix, scheduler_page, variables)


def _add(application: Any, server: Any, prefix: str, page: Any, variables: Mapping[str, Any]) -> None:
    """As Dask adds its own pages; once."""
    if any(f"/{PAGE}" in path for app in application.applications for path in getattr(app, "app_paths", ())):
        return
    bokeh = BokehApplication({f"/{PAGE}": page}, server, prefix=prefix, template_variables=dict(variables))
    application.add_application(bokeh)
    bokeh.initialize(IOLoop.current())
    bokeh.start()
