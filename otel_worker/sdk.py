"""Configure OpenTelemetry's SDK as `opentelemetry-instrument` does, in a process that nobody configured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opentelemetry import trace

if TYPE_CHECKING:
    from collections.abc import Mapping


def configure(environment: Mapping[str, str] | None = None) -> bool:
    """Set up providers and exporters from `OTEL_*`; `environment` fills in what is not set. True if it was needed.

    Source: the distro's own configuration, which `opentelemetry-instrument` runs.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return False
    from opentelemetry.distro import OpenTelemetryConfigurator, OpenTelemetryDistro

    for name, value in (environment or {}).items():
        os.environ.setdefault(name, value)
    OpenTelemetryDistro().configure()
    OpenTelemetryConfigurator().configure()  # type: ignore[no-untyped-call]
    return True
