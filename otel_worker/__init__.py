"""OpenTelemetry instrumentation of dask.distributed workers."""

from otel_worker.version import __version__

__all__ = ["__version__"]
