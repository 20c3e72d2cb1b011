"""A pytest plugin that switches us on, strictly: `pytest -p otel_worker.testing` runs any Dask test suite under us.

A failure of ours is recorded where it happens (raised inside Dask it would close the worker) and fails the test at its
teardown. The fixture `spans` gives what the test's clusters recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from otel_worker.instrumentor import DaskInstrumentor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

MAX_SPANS = 200_000

# Every phase a span, and nothing out of budget: a test sees all that happened.
EVERYTHING: dict[str, Any] = {"min_phase": 0.0, "span_budget": 1e6, "span_burst": 1e6, "max_trace_spans": 1_000_000}


class Spans(SpanExporter):
    """Keeps what was exported, the newest `MAX_SPANS`."""

    def __init__(self) -> None:
        self.finished: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.finished.extend(spans)
        del self.finished[:-MAX_SPANS]
        return SpanExportResult.SUCCESS

    def clear(self) -> None:
        self.finished.clear()


class Switch:
    """Us, on or off, with a tracer provider of our own."""

    def __init__(self) -> None:
        self.exported = Spans()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exported))
        self.instrumentor = DaskInstrumentor()

    def on(self, **settings: Any) -> None:
        self.instrumentor.instrument(tracer_provider=self.provider, **{**EVERYTHING, **settings})

    def off(self) -> None:
        if self.instrumentor.is_instrumented_by_opentelemetry:
            self.instrumentor.uninstrument()

    def failures(self) -> list[tuple[str, BaseException]]:
        """What of ours failed since the last call; it is switched on again."""
        runtime = self.instrumentor.runtime
        if runtime is None:
            return []
        failures = list(runtime.guard.failures)
        runtime.guard.failures.clear()
        runtime.guard.off.clear()
        return failures


_switch: Switch | None = None


def pytest_configure(config: pytest.Config) -> None:
    """Switch on before Dask's modules are imported by the tests."""
    global _switch  # noqa: PLW0603 - one switch for the process, as the instrumentor is one
    if config.pluginmanager.hasplugin("otel_worker.testing"):
        _switch = Switch()
        _switch.on()


def pytest_unconfigure() -> None:
    if _switch is not None:
        _switch.off()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Fail the test in which something of ours failed."""
    if _switch is None:
        return
    failures = _switch.failures()
    _switch.exported.clear()
    if failures:
        name, error = failures[0]
        raise AssertionError(f"otel_worker: {name} failed during {item.nodeid}: {error!r}") from error


@pytest.fixture
def spans() -> list[ReadableSpan]:
    """What was recorded since the test began."""
    assert _switch is not None, "run pytest with -p otel_worker.testing"
    return _switch.exported.finished
