"""A task's spans: `task` with `waiting`, `ready`, `execute` and `run`, made when somebody needs them or at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind

from otel_worker import names, waits, wire
from otel_worker.budget import DROPPED
from otel_worker.spans import GAP, in_seconds, seconds
from otel_worker.standin import StandIn

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

    from otel_worker.facts import Fetch, Key, SpillOp, Task
    from otel_worker.spans import Attributes, Computation, Emitter


class Held:
    """The spans of one task that are real already, and its stand-in."""

    __slots__ = ("execute", "run", "standin", "task", "waiting")

    def __init__(self) -> None:
        self.task: Span | None = None
        self.waiting: Span | None = None
        self.execute: Span | None = None
        self.run: Span | None = None
        self.standin: StandIn | None = None


class TaskSpans:
    """Observes tasks. `produced` names the spans of the tasks whose values are in memory here."""

    def __init__(self, emitter: Emitter) -> None:
        self._emit = emitter
        self.produced: dict[Key, SpanContext] = {}

    # --- what is current in the user's function ------------------------------------------------------------------------

    def run_context(self, task: Task) -> Context:
        """The context for the user's function: its stand-in, and what else its submission's context carried."""
        held = self._held(task)
        computation = self._emit.computation(task.annotations)
        held.standin = StandIn(lambda: self.run_span(task), lambda: self._ancestor(task))
        return trace.set_span_in_context(held.standin, computation.context if computation else wire.EMPTY)

    def _ancestor(self, task: Task) -> SpanContext:
        held = self._held(task)
        for span in (held.execute, held.task):
            if span is not None:
                return span.get_span_context()
        computation = self._emit.computation(task.annotations)
        return computation.parent() if computation else trace.INVALID_SPAN_CONTEXT

    # --- making spans real -----------------------------------------------------------------------------------------------

    @staticmethod
    def _held(task: Task) -> Held:
        if task.span is None:
            task.span = Held()
        held: Held = task.span
        return held

    def task_span(self, task: Task, *, urgent: bool = False) -> Span | None:
        """The real `task` span, started now if need be; None out of budget."""
        with self._emit.lock:
            held = self._held(task)
            if held.task is None and not task.ended and self._emit.afford(1, urgent=urgent):
                held.task = self._start_task(task)
            return held.task

    def waiting_span(self, task: Task) -> Span | None:
        """The real `waiting` span of a task that waits."""
        with self._emit.lock:
            held = self._held(task)
            if held.waiting is None and task.waiting and self._emit.afford(2):
                if held.task is None:
                    held.task = self._start_task(task)
                held.waiting = self._start(task, names.WAITING, held.task, task.waiting)
            return held.waiting

    def run_span(self, task: Task) -> Span | None:
        """The real `run` span, with what encloses it."""
        with self._emit.lock:
            held = self._held(task)
            if held.run is None and not task.ended and self._emit.afford(3):
                if held.task is None:
                    held.task = self._start_task(task)
                if held.execute is None:
                    held.execute = self._start(task, names.EXECUTE, held.task, task.executing)
                held.run = self._start(task, names.RUN, held.execute, task.run_begun)
            return held.run

    def _start(self, task: Task, name: str, parent: Span, at: int) -> Span:
        context = trace.set_span_in_context(parent, wire.EMPTY)
        return self._emit.start(name, context, at + task.offset, {names.TASK_PREFIX: task.prefix})

    def _start_task(self, task: Task) -> Span:
        computation = self._emit.computation(task.annotations)
        attributes: Attributes = {
            names.TASK_KEY: self._emit.text(task.key),
            names.TASK_PREFIX: task.prefix,
            names.TASK_GROUP: self._emit.text(self._emit.group(task.key)),
            names.TASK_RUN_ID: task.run_id,
            names.TASK_DEPENDENCIES: task.dependencies,
        }
        kind, context = SpanKind.INTERNAL, wire.EMPTY
        links: list[Link] = []
        if computation is not None:
            attributes[names.COMPUTATION] = computation.id
            context, kind, links = self._place(computation)
        at = task.arrived + task.offset
        return self._emit.start(f"{names.TASK} {task.prefix}", context, at, attributes, kind=kind, links=links)

    def _place(self, computation: Computation) -> tuple[Context, SpanKind, list[Link]]:
        """Below `compute` while the trace has room for it, else a trace of its own that links to it."""
        computation.used += TYPICAL_SPANS
        parent = computation.parent()
        apart = self._emit.settings.trace_per_task or computation.used > computation.share
        if apart and parent.trace_flags.sampled:
            return wire.EMPTY, SpanKind.CONSUMER, [Link(parent)]
        return computation.context, SpanKind.INTERNAL, []

    # --- the end -----------------------------------------------------------------------------------------------------------

    def task_ended(self, task: Task) -> None:
        with self._emit.lock:
            held = self._held(task)
            self._finish(task, held)
            if held.standin is not None:
                held.standin.real()  # a span that exists already, or none for ever: the task has ended
                held.standin.close()
            task.span = None if held.standin is None else held

    def _finish(self, task: Task, held: Held) -> None:
        phases = self._phases(task, held)
        failed = task.outcome == "error"
        wanted = len(phases) + (held.task is None)
        if not self._emit.afford(wanted, urgent=failed):
            self._emit.budget.count(DROPPED, wanted)
            phases = []
        elif held.task is None:
            held.task = self._start_task(task)
        if (span := held.task) is None:
            return
        if span.is_recording():
            for name, begin in phases:
                self._ensure(task, held, name, begin)
            self._end_phases(task, held)
            self._describe(task, span)
            if task.outcome == "memory":
                self.produced[task.key] = span.get_span_context()
        span.end(task.ended + task.offset)

    def _phases(self, task: Task, held: Held) -> list[tuple[str, int]]:
        """The phases that deserve a span and have none yet, parents first."""
        run_ended = task.run_ended or task.taken or task.ended
        wanted = (
            (names.WAITING, held.waiting, task.waiting, task.wait_ended),
            (names.READY, None, task.ready, task.executing or task.ended),
            (names.EXECUTE, held.execute, task.executing, task.ended),
            (names.RUN, held.run, task.run_begun, run_ended),
        )
        return [(name, begin) for name, span, begin, end in wanted if span is None and self._deserves(begin, end, name)]

    def _deserves(self, begin: int, end: int, name: str) -> bool:
        """`execute` and `run` always are spans where they happened: a task that ran shows that it ran."""
        return bool(begin) if name in (names.EXECUTE, names.RUN) else self._emit.long_enough(begin, end)

    def _ensure(self, task: Task, held: Held, name: str, begin: int) -> None:
        assert held.task is not None
        if name == names.WAITING:
            held.waiting = self._start(task, name, held.task, begin)
        elif name == names.EXECUTE:
            held.execute = self._start(task, name, held.task, begin)
        elif name == names.RUN and held.execute is not None:
            held.run = self._start(task, name, held.execute, begin)
        elif name == names.READY:
            ready = self._start(task, name, held.task, begin)
            ready.set_attributes(in_seconds(names.READY_PREFIX, task.ready_parts))
            self._end(task, ready, begin, task.executing or task.ended)

    def _end_phases(self, task: Task, held: Held) -> None:
        if held.waiting is not None:
            held.waiting.set_attributes(in_seconds(names.WAIT_PREFIX, task.wait_parts))
            self._end(task, held.waiting, task.waiting, task.wait_ended or task.ended)
        if held.run is not None:
            self._describe_run(task, held.run)
            self._end(task, held.run, task.run_begun, task.run_ended or task.taken or task.ended)
        if held.execute is not None:
            self._spills(task, held.execute)
            held.execute.set_attributes(in_seconds(names.EXECUTE_PREFIX, waits.execute_sums(task, task.ended)))
            self._end(task, held.execute, task.executing, task.ended)

    @staticmethod
    def _end(task: Task, span: Span, begin: int, end: int) -> None:
        span.end(max(begin, end - GAP) + task.offset)

    def _describe_run(self, task: Task, run: Span) -> None:
        run.set_attributes(
            {
                names.RUN_THREAD_CPU: seconds(task.run_cpu),
                names.RUN_THREAD_NONCPU: seconds(
                    max(0, (task.run_ended or task.ended) - task.run_begun - task.run_cpu)
                ),
                names.EXECUTOR_QUEUE: seconds(max(0, task.run_begun - task.submitted)) if task.submitted else 0.0,
                names.EXECUTOR: task.executor,
            }
        )
        if task.thread_id:
            run.set_attributes({names.THREAD_ID: task.thread_id, names.THREAD_NAME: task.thread_name})
        if task.seceded:
            run.set_attribute(names.RUN_SECEDED, seconds((task.run_ended or task.ended) - task.seceded))
        if task.failure is not None:
            self._emit.exception_event(run, task.failure, (task.run_ended or task.ended) + task.offset)
            self._emit.fail(run, task.failure)

    def _spills(self, task: Task, execute: Span) -> None:
        context = trace.set_span_in_context(execute, wire.EMPTY)
        for op in task.spills or ():
            self._emit.spill_spans((op,), context, _spill_cause(task, op, self._emit))

    def _describe(self, task: Task, span: Span) -> None:
        attributes: Attributes = {names.OUTCOME: task.outcome, names.TASK_NBYTES: task.nbytes}
        if not task.waiting:
            attributes[names.TASK_WAITED] = False
        span.set_attributes(attributes)
        if task.outcome == "error":
            self._emit.fail(span, task.failure)
        for context in self._served_elsewhere(task):
            span.add_link(context)

    def _served_elsewhere(self, task: Task) -> list[SpanContext]:
        """The recorded fetches that brought data for this task and stand below another's `waiting`: slowest first."""
        fetches: list[Fetch] = [f for f in task.fetches or () if f.span is not None and f.span.parent is not task]
        fetches.sort(key=lambda f: f.issued - (f.stored or f.finished or task.ended))
        contexts = (f.span.fetch.get_span_context() for f in fetches if f.span.fetch.is_recording() or f.stored)
        return [context for context in contexts if context.trace_flags.sampled][: self._emit.settings.max_links]

    # --- memory --------------------------------------------------------------------------------------------------------------

    def key_released(self, key: Any) -> None:
        self.produced.pop(key, None)


TYPICAL_SPANS = 9  # of one task, with its fetches and their peers' halves


def _spill_cause(task: Task, op: SpillOp, emitter: Emitter) -> Attributes:
    storing = bool(task.taken) and op.begun >= task.taken
    return {
        names.TASK_PREFIX: task.prefix,
        names.SPILL_TRIGGER_KEY: emitter.text(task.key),
        names.SPILL_CAUSE: "store" if storing else "load",
    }
