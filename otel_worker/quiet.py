"""An exporter that fails says so once, then once a minute with a count: the SDK's own say it once a batch or oftener."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY = 60.0  # seconds

# Where the SDK and its OTLP exporters say that an export failed. A filter holds for the records of its own logger alone.
LOGGERS = (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._logs._internal.export",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.metrics._internal.export",
    "opentelemetry.sdk.trace.export",
)
# How those messages begin; what else these loggers say is let through.
FAILURES = (
    "Transient error",
    "Failed to export",
    "Exception while exporting",
    "Queue full",
    "Shutdown in progress",
    "Timed out while exporting",
)


class Quiet(logging.Filter):
    """One for all loggers of a process, since one endpoint that is gone fails for every signal."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._next = float("-inf")
        self._held_back = 0
        self._on = False

    def install(self) -> None:
        """Idempotent."""
        if not self._on:
            self._on = True
            for name in LOGGERS:
                logging.getLogger(name).addFilter(self)

    def undo(self) -> None:
        self._on = False
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.msg, str) or not record.msg.startswith(FAILURES):
            return True
        with self._lock:
            if self._now() < self._next:
                self._held_back += 1
                return False
            self._next = self._now() + EVERY
            held_back, self._held_back = self._held_back, 0
        note = f"{held_back} more were not logged" if held_back else "more of this is logged once a minute"
        record.msg, record.args = f"{record.getMessage()} (otel_worker: tasks are not affected; {note})", None
        return True
