"""What a worker with us tells those who ask it: a handler beside Dask's own, called by nobody otherwise.

`otel-worker open` asks for what is open, a dashboard for sums. All that goes out is plain numbers and texts.
"""

from __future__ import annotations

import weakref
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from otel_worker import names, waits
from otel_worker.facts import redacted
from otel_worker.openings import longest, tally
from otel_worker.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_worker.metrics import Sums, WorkerMetrics
    from otel_worker.openings import Opening, Phase
    from otel_worker.recorder import Recorder
    from otel_worker.runtime import Runtime

MAX_OPENINGS = 10_000  # in one answer


def bind(runtime: Runtime, worker: Any) -> None:
    """From now on `worker` answers. It holds no runtime: once that is gone, it says that we are off."""
    held, identity = weakref.ref(runtime), id(worker)

    def otel_worker(what: str = "open", most: int = 100) -> dict[str, Any]:
        asked = held()
        recorder = asked.by_worker.get(identity) if asked is not None else None
        if asked is None or recorder is None:
            return {"version": __version__, "on": False}
        now = perf_counter_ns()
        metrics = asked.instruments.workers.get(recorder)
        spans = dict(metrics.spans()) if metrics is not None else {}
        about = {"version": __version__, "on": True, "name": recorder.name, "spans": spans}
        if what == "sums":
            return about | sums(recorder, metrics, now)
        if what == "all":
            about |= sums(recorder, metrics, now)
            about["now"] = [[*key, tasks] for key, tasks in tally(recorder, now).items()]
        return about | opened(recorder, now, min(max(0, most), MAX_OPENINGS), asked.spans[recorder].emitter.text)

    worker.handlers[names.OPERATION] = otel_worker
    # Told with each heartbeat, so that nobody asks a worker without us; no number, which would be a column of Dask's table.
    worker.metrics[names.OPERATION] = lambda _: {"version": __version__}


def opened(recorder: Recorder, now: int, most: int, text: Callable[[Any], str]) -> dict[str, Any]:
    """The `most` that are open for longest, the longest first; seconds. `text` says a key."""
    found, count = longest(recorder, now, most)
    return {"open": [_told(opening, phase, now, text) for opening, phase in found], "count": count}


def _told(opening: Opening, phase: Phase, now: int, text: Callable[[Any], str]) -> dict[str, Any]:
    return {
        "kind": opening.kind,
        "key": text(opening.key),
        "keys": opening.keys,
        "state": opening.state,
        "seconds": (now - opening.since) / 1e9,
        "phase": phase.name,
        "phase_seconds": (now - phase.since) / 1e9,
        "peer": redacted(phase.peer),
    }


def sums(recorder: Recorder, metrics: WorkerMetrics | None, now: int) -> dict[str, Any]:
    """Seconds by activity since the worker was switched on, tasks by prefix and state, and the oldest by state."""
    cells = list(recorder.states.items())
    about: dict[str, Any] = {
        "states": [
            [prefix, state, cell[0], (cell[0] * now - cell[1]) / 1e9, cell[2]] for (prefix, state), cell in cells
        ]
    }
    if metrics is not None:
        for name in ("wait", "execute", "fetch", "serve", "spill"):
            about[name] = _by_activity(getattr(metrics, name))
        about["oldest"] = metrics.oldest(now)
    return about


def _by_activity(held: Sums) -> dict[str, float]:
    return {activity: ns / 1e9 for activity, ns in waits.total(held.values()).items()}
