"""`dask worker --preload otel_worker.preload`: for those who can't start workers under `opentelemetry-instrument`."""

from __future__ import annotations

from typing import Any

from otel_worker.dashboard_hooks import add_later
from otel_worker.instrumentor import DaskInstrumentor
from otel_worker.sdk import configure


def switch_on() -> None:
    """Configure the SDK if nobody did, and instrument if nobody did. Idempotent."""
    configure()
    instrumentor = DaskInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument()


switch_on()


def dask_setup(server: Any) -> None:
    """Dask calls it when the worker has started: it was in the middle of being made when this module was imported.

    In a scheduler there is nothing to observe; it gets our page in its dashboard.
    """
    runtime = DaskInstrumentor().runtime
    if runtime is None:
        return
    if hasattr(server, "data"):
        runtime.adopt(server)
    else:
        add_later(server, runtime.guard)
