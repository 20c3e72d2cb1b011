"""OpenTelemetry instrumentation of dask.distributed workers."""

from importlib import import_module
from typing import Any

from otel_worker.version import __version__

__all__ = ["DaskInstrumentor", "__version__", "capture", "disable", "enable", "report", "trace_url"]

_HOMES = {
    "DaskInstrumentor": "otel_worker.instrumentor",
    "capture": "otel_worker.captures",
    "disable": "otel_worker.remote",
    "enable": "otel_worker.remote",
    "report": "otel_worker.pages",
    "trace_url": "otel_worker.urls",
}


def __getattr__(name: str) -> Any:
    """Import on first use: a process that does not need it pays nothing."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
