"""`dask worker --preload otel_worker.preload`: for those who can't start workers under `opentelemetry-instrument`."""

from __future__ import annotations

from typing import Any

from otel_worker.instrumentor import DaskInstrumentor
from otel_worker.sdk import configure


def switch_on() -> None:
    """Configure the SDK if nobody did, and instrument if nobody did. Idempotent."""
    configure()
    instrumentor = DaskInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument()


switch_on()


def dask_setup(worker: Any) -> None:
    """Dask calls it when the worker has started: it was in the middle of being made when this module was imported."""
    runtime = DaskInstrumentor().runtime
    if runtime is not None:
        runtime.adopt(worker)
