"""OpenTelemetry instrumentation of dask.distributed workers."""

from typing import Any

from otel_worker.version import __version__

__all__ = ["DaskInstrumentor", "__version__"]


def __getattr__(name: str) -> Any:
    """Import on first use: a process that does not need it pays nothing."""
    if name == "DaskInstrumentor":
        from otel_worker.instrumentor import DaskInstrumentor

        return DaskInstrumentor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
