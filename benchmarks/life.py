"""What observing adds to one no-op task's life on a worker that is fed directly, level by level, interleaved.

    python -m benchmarks.life [--rounds N] [--tasks N] [--profile LEVEL]

CPU time of the whole process, so the executor's thread and the exporter's are in it. A level is switched on for a round
and off again; the table has the least and the median of the rounds, and what lies above bare.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
from statistics import median
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, TraceFlags

from benchmarks.fed import Fed
from benchmarks.pinned import pin
from otel_worker import DaskInstrumentor, wire
from otel_worker.metrics import WorkerMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

COMPUTE = SpanContext(0xABCDEF, 0x123456, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
PLENTY = {"span_budget": 1e9, "span_burst": 1e9, "max_trace_spans": 10**9}
OFF = "sampled off"  # on the client, too: as with the same variables everywhere
NOTHING = {"span_budget": 0.0, "span_burst": 0.0}


class Encoded(SpanExporter):
    """Spans are encoded as for OTLP and go nowhere."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def provider(**options: Any) -> TracerProvider:
    made = TracerProvider(shutdown_on_exit=False, **options)
    made.add_span_processor(BatchSpanProcessor(Encoded()))
    return made


def annotations(*, sampled: bool = True) -> dict[str, Any]:
    """What a task of an instrumented client carries."""
    fields = {"traceparent": f"00-{COMPUTE.trace_id:032x}-{COMPUTE.span_id:016x}-0{int(sampled)}"}
    return {wire.KEY: {"carrier": fields, "share": 10**9, "computation": f"{COMPUTE.span_id:016x}"}}


def only(*kinds: type) -> Callable[[Any], None]:
    """Leave the recorders those observers alone."""

    def choose(runtime: Any) -> None:
        for recorder in runtime.by_worker.values():
            recorder.observers[:] = [one for one in recorder.observers if isinstance(one, kinds)]

    return choose


def everything(_: Any) -> None:
    pass


LEVELS: dict[str, tuple[dict[str, Any], Callable[[Any], None]] | None] = {
    "bare": None,
    "facts": (NOTHING, only()),
    "facts, metrics": (NOTHING, only(WorkerMetrics)),
    "facts, metrics, coalescing": (NOTHING, everything),
    OFF: ({**PLENTY, "tracer_provider": provider(sampler=ALWAYS_OFF)}, everything),
    "every task recorded, encoded": ({**PLENTY, "tracer_provider": provider()}, everything),
}


async def switch_on(level: str) -> None:
    chosen = LEVELS[level]
    if chosen is None:
        return
    options, choose = chosen
    DaskInstrumentor().instrument(**options)
    await asyncio.sleep(0.01)  # a running worker is adopted on its loop
    choose(DaskInstrumentor().runtime)


def switch_off() -> None:
    instrumentor = DaskInstrumentor()
    if (runtime := instrumentor.runtime) is not None:
        if runtime.guard.failures:
            raise RuntimeError(f"{runtime.guard.failures[0][0]} failed") from runtime.guard.failures[0][1]
        instrumentor.uninstrument()


async def measure(levels: Sequence[str], rounds: int, tasks: int) -> dict[str, list[float]]:
    """µs of CPU a task, a round each."""
    fed = await Fed.start()
    found: dict[str, list[float]] = {level: [] for level in levels}
    await fed.run(1000, annotations())
    for turn in range(rounds):
        for level in [*levels[turn % len(levels) :], *levels[: turn % len(levels)]]:
            about = annotations(sampled=level != OFF)
            await switch_on(level)
            await fed.run(tasks // 4, about)
            found[level].append(await fed.cpu(tasks, about))
            switch_off()
    fed.close()
    return found


async def profile(level: str, tasks: int) -> None:
    """Where the time of the event loop's thread goes; cProfile makes small functions look dearer than they are."""
    fed = await Fed.start()
    about = annotations(sampled=level != OFF)
    await switch_on(level)
    await fed.run(1000, about)
    profiler = cProfile.Profile()
    profiler.enable()
    await fed.run(tasks, about)
    profiler.disable()
    switch_off()
    fed.close()
    pstats.Stats(profiler).sort_stats("tottime").print_stats("otel_worker|opentelemetry", 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tasks", type=int, default=400, help="tasks a round and level")
    parser.add_argument("--profile", choices=list(LEVELS), help="print a profile of this level instead")
    chosen = parser.parse_args()
    pin()
    if chosen.profile:
        asyncio.run(profile(chosen.profile, chosen.tasks * chosen.rounds))
        return
    found = asyncio.run(measure(list(LEVELS), chosen.rounds, chosen.tasks))
    bare = found["bare"]
    print("| level | µs a task, least | median | beyond bare, least | median |\n|---|---|---|---|---|")
    for level, us in found.items():
        beyond = f"{min(us) - min(bare):.1f} | {median(us) - median(bare):.1f}" if level != "bare" else " | "
        print(f"| {level} | {min(us):.1f} | {median(us):.1f} | {beyond} |")


if __name__ == "__main__":
    main()
