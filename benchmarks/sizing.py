"""Bytes that a span takes on the way, and from them what a cluster sends and stores by its budget.

    python -m benchmarks.sizing [--stored BYTES]

Spans are those of no-op tasks that a fed worker recorded, encoded for OTLP as the exporter does, in batches of 512, plain
and gzipped. What one takes on Jaeger's disk was measured with the shipped docker-compose (docs/sizes.md).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.fed import Fed
from benchmarks.life import PLENTY, annotations, switch_off
from otel_worker import DaskInstrumentor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

STORED = 830  # bytes on Jaeger's disk (Badger)
DAY = 86_400


class Weighing(SpanExporter):
    """Encodes and weighs."""

    def __init__(self) -> None:
        self.spans = self.plain = self.gzipped = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        message = encode_spans(spans).SerializeToString()
        self.spans += len(spans)
        self.plain += len(message)
        self.gzipped += len(gzip.compress(message))
        return SpanExportResult.SUCCESS


async def weigh(tasks: int) -> Weighing:
    fed, weighing, provider = await Fed.start(), Weighing(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(weighing))
    DaskInstrumentor().instrument(tracer_provider=provider, **PLENTY)
    await asyncio.sleep(0.01)
    for _ in range(tasks // 200):
        await fed.run(200, annotations())
    provider.force_flush()
    switch_off()
    fed.close()
    return weighing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--stored", type=int, default=STORED, help="bytes of a span in the store")
    chosen = parser.parse_args()
    found = asyncio.run(weigh(chosen.tasks))
    plain, gzipped = found.plain / found.spans, found.gzipped / found.spans
    print(f"{found.spans:,} spans: {plain:.0f} bytes a span as OTLP, {gzipped:.0f} gzipped, {chosen.stored} stored\n")
    print(
        "| workers | budget, spans/s each | spans/s | OTLP, MB/s | gzipped | stored a day, GB |\n|---|---|---|---|---|---|"
    )
    for workers in (10, 100, 1000):
        for budget in (5, 50, 1000):
            rate = workers * budget
            stored = rate * chosen.stored * DAY / 1e9
            print(
                f"| {workers:,} | {budget:,} | {rate:,} | {rate * plain / 1e6:,.2f} | {rate * gzipped / 1e6:,.2f} | {stored:,.1f} |"
            )


if __name__ == "__main__":
    main()
