"""The spans of what tasks do in P2P shuffles and rechunks, below their `run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace

from otel_worker import names, wire
from otel_worker.spans import GAP, in_seconds

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from otel_worker.facts import Task
    from otel_worker.shuffle_facts import Step
    from otel_worker.spans import Attributes, Emitter


def step_spans(emit: Emitter, task: Task, run: Span) -> None:
    """What a recorded task did in shuffles, below its `run`; what is too short for a span stands on `run`."""
    context = trace.set_span_in_context(run, wire.EMPTY)
    for step in task.steps or ():
        if step.failure is None and not (emit.long_enough(step.begun, step.ended) and emit.afford(1)):
            run.set_attributes(_about_step(step))
            continue
        attributes = {names.TASK_PREFIX: task.prefix, **_about_step(step)}
        span = emit.start(step.kind, context, step.begun + task.offset, attributes)
        if step.failure is not None:
            emit.fail(span, step.failure)
        span.end(max(step.begun, (step.ended or task.ended) - GAP) + task.offset)


def _about_step(step: Step) -> Attributes:
    attributes: Attributes = {
        names.SHUFFLE_ID: step.shuffle,
        **in_seconds(names.SHUFFLE_TIME_PREFIX, step.parts()),
    }
    if step.partition is not None:
        attributes[names.SHUFFLE_PARTITION] = str(step.partition)
    if nbytes := step.nbytes:
        attributes[names.SHUFFLE_NBYTES] = nbytes
    return attributes
