"""Where Dask makes a dashboard, ours is added; a part of the table in `hooks.py`. Nobody calls it where Bokeh is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_worker.patches import Patch

if TYPE_CHECKING:
    from otel_worker.guard import Guard

DASHBOARD_TABLE: tuple[Patch, ...] = (
    Patch("distributed.dashboard.worker", "", "connect", "worker_dashboard", ("application", "http_server", "worker")),
    Patch(
        "distributed.dashboard.scheduler",
        "",
        "connect",
        "scheduler_dashboard",
        ("application", "http_server", "scheduler"),
    ),
)


class DashboardHooks:
    """Makes the replacements."""

    _safe: Guard

    def worker_dashboard(self, original: Any) -> Any:
        added = self._safe("worker_dashboard", _add_to_worker)

        def connect(application: Any, http_server: Any, worker: Any, prefix: Any = "") -> None:
            original(application, http_server, worker, prefix=prefix)
            added(application, worker, prefix or "")

        return connect

    def scheduler_dashboard(self, original: Any) -> Any:
        added = self._safe("scheduler_dashboard", _add_to_scheduler)

        def connect(application: Any, http_server: Any, scheduler: Any, prefix: Any = "") -> None:
            original(application, http_server, scheduler, prefix=prefix)
            added(application, scheduler, prefix or "")

        return connect


def _add_to_worker(application: Any, worker: Any, prefix: str) -> None:
    from otel_worker.dashboard import add_to_worker

    add_to_worker(application, worker, prefix)


def _add_to_scheduler(application: Any, scheduler: Any, prefix: str) -> None:
    from otel_worker.dashboard import add_to_scheduler

    add_to_scheduler(application, scheduler, prefix)


def add_later(server: Any, guard: Guard) -> None:
    """The page of a worker or scheduler that runs already, where Dask has made a dashboard. Call it on its event loop."""
    application = getattr(server, "http_application", None)
    dasks = next((app for app in getattr(application, "applications", ()) if hasattr(app, "app_paths")), None)
    if dasks is not None:
        add = _add_to_worker if hasattr(server, "data") else _add_to_scheduler
        guard("dashboard", add)(application, server, dasks.prefix)
