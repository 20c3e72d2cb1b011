"""What a capture does in one process, a worker's or a client's: spans go to the capture's receiver until it ends.

Where nobody switched us on, the capture does, with a tracer provider of its own: nothing global is touched, and the next capture
finds the process as it was. Where we are on already, the spans go to the capture as well as where they went before.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_worker.instrumentor import DaskInstrumentor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span

logger = logging.getLogger("otel_worker")

NEW, BESIDE, WITHOUT_SDK = "new", "beside", "without SDK"
DELAY = 200  # milliseconds between two exports
PATIENCE = 2.0  # seconds for what is still to be sent at the end


class Tee(SpanProcessor):
    """Hands spans to processors that come and go; an SDK's provider can't take one away."""

    def __init__(self) -> None:
        self.processors: tuple[SpanProcessor, ...] = ()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        for processor in self.processors:
            processor.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        for processor in self.processors:
            processor.on_end(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return all([processor.force_flush(timeout_millis) for processor in self.processors])  # noqa: C419 - each of them

    def shutdown(self) -> None:
        for processor in self.processors:
            processor.shutdown()


class _Tap:
    """One capture in this process; `users` are the workers in it, and its client."""

    def __init__(self, how: str, processor: SpanProcessor | None, tee: Tee | None) -> None:
        self.how = how
        self.processor = processor
        self.tee = tee
        self.users = 0


_taps: dict[str, _Tap] = {}
_tees: weakref.WeakKeyDictionary[Any, Tee] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def open_tap(token: str, endpoint: str, settings: Mapping[str, Any]) -> str:
    """Begin, or join what began in this process; return how: new, beside what was there, or not at all without an SDK."""
    with _lock:
        tap = _taps.get(token)
        if tap is None:
            tap = _taps[token] = _begin(endpoint, settings)
        tap.users += 1
        return tap.how


def how(token: str) -> str | None:
    """As `open_tap` said it in this process; None if it never did."""
    tap = _taps.get(token)
    return tap.how if tap is not None else None


def _begin(endpoint: str, settings: Mapping[str, Any]) -> _Tap:
    instrumentor = DaskInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        processor = _processor(endpoint)
        provider = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
        provider.add_span_processor(processor)
        instrumentor.instrument(tracer_provider=provider, **settings)
        return _Tap(NEW, processor, None)
    runtime = instrumentor.runtime
    theirs: Any = runtime.providers.tracer_provider if runtime is not None else None
    if not callable(getattr(theirs, "add_span_processor", None)):
        return _Tap(WITHOUT_SDK, None, None)
    tee = _tees.get(theirs)
    if tee is None:
        tee = _tees[theirs] = Tee()
        theirs.add_span_processor(tee)
    processor = _processor(endpoint)
    tee.processors = (*tee.processors, processor)
    return _Tap(BESIDE, processor, tee)


def _processor(endpoint: str) -> SpanProcessor:
    exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", headers={}, timeout=PATIENCE)
    return BatchSpanProcessor(exporter, max_queue_size=20_000, schedule_delay_millis=DELAY)


async def close_tap(token: str) -> None:
    """The last one that closes it ends the capture in this process: what was recorded is sent, for at most `PATIENCE`."""
    with _lock:
        tap = _taps.get(token)
        if tap is None:
            return
        tap.users -= 1
        if tap.users > 0:
            return
        del _taps[token]
        if tap.how == NEW:
            DaskInstrumentor().uninstrument()  # what is open ends now
        if tap.tee is not None:
            tap.tee.processors = tuple(p for p in tap.tee.processors if p is not tap.processor)
    if tap.processor is not None:
        await _finish(tap.processor)


async def _finish(processor: SpanProcessor) -> None:
    """Shutting it down sends what it holds; in a thread that nobody has to wait for."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def finish() -> None:
        processor.shutdown()
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=finish, name="otel-worker-tap", daemon=True).start()
    try:
        await asyncio.wait_for(done.wait(), PATIENCE)
    except asyncio.TimeoutError:
        logger.warning("otel_worker: the capture's last spans could not be sent within %.0f s", PATIENCE)
