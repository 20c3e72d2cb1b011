"""A task's spans: `task` with `waiting`, `ready`, `execute` and `run`, made when somebody needs them or at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind

from otel_worker import names, wire
from otel_worker.budget import COALESCED, DROPPED, UNSAMPLED
from otel_worker.coalesce import Coalesced, Slow, own_time
from otel_worker.shuffle_steps import step_spans
from otel_worker.spans import GAP, in_seconds, seconds
from otel_worker.standin import StandIn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

    from otel_worker.coalesce import Group
    from otel_worker.facts import Failure, Fetch, Key, SpillOp, Task
    from otel_worker.spans import Attributes, Emitter


class Held:
    """The spans of one task that are real already, and its stand-in."""

    __slots__ = ("execute", "ready", "run", "standin", "task", "waiting")

    def __init__(self) -> None:
        self.task: Span | None = None
        self.waiting: Span | None = None
        self.ready = False
        self.execute: Span | None = None
        self.run: Span | None = None
        self.standin: StandIn | None = None


class TaskSpans:
    """Observes tasks. `produced` names the spans of the tasks whose values are in memory here."""

    def __init__(self, emitter: Emitter) -> None:
        self._emit = emitter
        self._coalesced = Coalesced(emitter.settings.max_prefixes)
        self._slow = Slow()
        self.produced: dict[Key, SpanContext] = {}

    # --- what is current in the user's function ------------------------------------------------------------------------

    def run_context(self, task: Task) -> Context:
        """The context for the user's function: its stand-in, and what else its submission's context carried."""
        computation = self._emit.computation(task.annotations)
        if computation is not None and computation.refused is not None:
            return computation.context
        held = self._held(task)
        held.standin = StandIn(self, task)
        return trace.set_span_in_context(held.standin, computation.context if computation else wire.EMPTY)

    def ancestor(self, task: Task) -> SpanContext:
        """The context of the nearest real span around the user's function, which may be invalid."""
        held = self._held(task)
        for span in (held.execute, held.task):
            if span is not None:
                return span.get_span_context()
        computation = self._emit.computation(task.annotations)
        return computation.parent() if computation else trace.INVALID_SPAN_CONTEXT

    def refused(self, task: Task) -> Span | None:
        """What stands for all spans of a task the computation of which the sampler did not want."""
        computation = self._emit.computation(task.annotations)
        return computation.refused if computation is not None else None

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
            if (refused := self.refused(task)) is not None:
                return refused
            held = self._held(task)
            if held.task is None and not task.ended and self._emit.afford(1, urgent=urgent):
                held.task = self._start_task(task)
            return held.task

    def waiting_span(self, task: Task) -> Span | None:
        """The real `waiting` span of a task that waits."""
        with self._emit.lock:
            if (refused := self.refused(task)) is not None:
                return refused
            held = self._held(task)
            if held.waiting is None and task.waiting and self._emit.afford(2):
                if held.task is None:
                    held.task = self._start_task(task)
                if not held.task.is_recording():
                    return held.task  # the sampler refused it, with all its parts
                held.waiting = self._start(task, names.WAITING, held.task, task.waiting)
            return held.waiting

    def run_span(self, task: Task) -> Span | None:
        """The real `run` span, with what encloses it."""
        with self._emit.lock:
            if (refused := self.refused(task)) is not None:
                return refused
            held = self._held(task)
            if held.run is None and not task.ended and self._emit.afford(3):
                if held.task is None:
                    held.task = self._start_task(task)
                if not held.task.is_recording():
                    return held.task
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
        if task.key in self._emit.actors:
            attributes[names.TASK_ACTOR] = True
        context = wire.EMPTY
        links: list[Link] = []
        if computation is not None:
            attributes[names.COMPUTATION] = computation.id
            context, links = self._emit.place(computation, TYPICAL_SPANS)
        kind = SpanKind.CONSUMER if links else SpanKind.INTERNAL
        at = task.arrived + task.offset
        span = self._emit.start(f"{names.TASK} {task.prefix}", context, at, attributes, kind=kind, links=links)
        if computation is not None and not span.is_recording() and not computation.parent().trace_flags.sampled:
            # Asked once: a sampler that refuses a task below an unsampled parent refuses its siblings too.
            computation.refused = trace.NonRecordingSpan(computation.parent())
        return span

    # --- the end -----------------------------------------------------------------------------------------------------------

    def task_ended(self, task: Task) -> None:
        if task.span is None and self.refused(task) is not None:
            self._emit.budget.count(UNSAMPLED)
            return
        with self._emit.lock:
            held = self._held(task)
            self._finish(task, held)
            if held.standin is not None:
                held.standin.close(held.run)
            task.span = None if held.standin is None else held

    def _finish(self, task: Task, held: Held) -> None:
        own = own_time(task)
        urgent = self._slow.is_slow(task.prefix, own) or task.outcome == "error"
        if held.task is None and not self._emit.could(LEAST_SPANS, urgent=urgent):
            self._coalesce(task, own)
            return
        phases = self._phases(task, held)
        if not self._emit.afford(len(phases) + (held.task is None), urgent=urgent):
            if held.task is None:
                self._coalesce(task, own)
                return
            self._emit.budget.count(DROPPED, len(phases))
            phases = []
        if held.task is None:
            held.task = self._start_task(task)
        span = held.task
        if span.is_recording():
            for name, begin in phases:
                self._ensure(task, held, name, begin)
            self._end_phases(task, held)
            self._describe(task, held, span)
            if task.outcome == "memory":
                self.produced[task.key] = span.get_span_context()
        span.end(task.ended + task.offset)

    # --- tasks without spans of their own ------------------------------------------------------------------------------------

    def _coalesce(self, task: Task, own: int) -> None:
        self._emit.budget.count(COALESCED)
        computation = self._emit.computation(task.annotations)
        self._coalesced.add(task, own, computation.id if computation else "")

    def end_interval(self) -> None:
        """One span for each prefix stands for its tasks that have none; without a token they wait for the next interval."""
        with self._emit.lock:
            self._slow.next_interval()
            for prefix in list(self._coalesced.groups):
                if self._emit.afford(1, urgent=True):
                    self._show_group(prefix, self._coalesced.groups.pop(prefix))

    def close(self) -> None:
        """The last interval ends, and its spans are not refused."""
        with self._emit.lock:
            for prefix, group in self._coalesced.groups.items():
                self._show_group(prefix, group)
            self._coalesced.groups.clear()
            self.produced.clear()

    def _show_group(self, prefix: str, group: Group) -> None:
        contexts = (self._emit.known_computation(computation) for computation in group.computations)
        links = [Link(context) for context in contexts if context is not None and context.trace_flags.sampled]
        attributes: Attributes = {
            names.TASK_PREFIX: prefix,
            names.TASK_KEY: self._emit.text(group.example),
            names.TASKS_COUNT: group.count,
            names.TASKS_MIN: seconds(group.shortest),
            names.TASKS_MAX: seconds(group.slowest),
            names.TASKS_OUTCOMES: [f"{outcome}: {n}" for outcome, n in group.outcomes.items()],
            **in_seconds(names.WAIT_PREFIX, group.wait),
            **in_seconds(names.READY_PREFIX, group.ready),
            **in_seconds(names.EXECUTE_PREFIX, group.execute),
        }
        if group.arrival:
            attributes[names.ARRIVAL] = seconds(group.arrival)
        if group.errors:
            attributes[names.TASKS_ERRORS] = [f"{kind}: {n}" for kind, n in group.errors.most_common(20)]
        links = links[: self._emit.settings.max_links]
        span = self._emit.start(
            f"{names.TASKS} {prefix}", wire.EMPTY, group.began + group.offset, attributes, links=links
        )
        span.end(group.ended + group.offset)

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
            held.ready = True

    def _end_phases(self, task: Task, held: Held) -> None:
        if held.waiting is not None:
            held.waiting.set_attributes(in_seconds(names.WAIT_PREFIX, task.wait_parts))
            if task.blocked_by is not None:
                held.waiting.set_attribute(names.LOOP_BLOCKED_BY, self._emit.text(task.blocked_by))
            self._end(task, held.waiting, task.waiting, task.wait_ended or task.ended)
        if held.run is not None:
            self._describe_run(task, held.run)
            if task.steps:
                step_spans(self._emit, task, held.run)
            self._spills(task, held.run, (op for op in task.spills or () if _in_run(task, op)))
            self._end(task, held.run, task.run_begun, task.run_ended or task.taken or task.ended)
        if held.execute is not None:
            self._spills(task, held.execute, (op for op in task.spills or () if not _while_running(task, op)))
            held.execute.set_attributes(in_seconds(names.EXECUTE_PREFIX, task.execute_parts))
            self._end(task, held.execute, task.executing, task.ended)

    @staticmethod
    def _end(task: Task, span: Span, begin: int, end: int) -> None:
        span.end(max(begin, end - GAP) + task.offset)

    def _describe_run(self, task: Task, run: Span) -> None:
        attributes: Attributes = {
            names.RUN_KIND: task.executor,
            names.EXECUTOR: str((task.annotations or {}).get("executor", "default")),
            names.EXECUTOR_QUEUE: seconds(max(0, task.run_begun - task.submitted)) if task.submitted else 0.0,
        }
        if task.executor == "thread":
            wall = (task.run_ended or task.ended) - task.run_begun
            attributes[names.RUN_THREAD_CPU] = seconds(task.run_cpu)
            attributes[names.RUN_THREAD_NONCPU] = seconds(max(0, wall - task.run_cpu))
        run.set_attributes(attributes)
        if task.thread_id:
            run.set_attributes({names.THREAD_ID: task.thread_id, names.THREAD_NAME: task.thread_name})
        if task.seceded:
            back = task.rejoins[1] if task.rejoins and len(task.rejoins) > 1 else task.run_ended or task.ended
            run.set_attribute(names.RUN_SECEDED, seconds(max(0, back - task.seceded)))
        if task.rejoins:
            run.set_attribute(names.RUN_REJOINING, seconds(task.rejoining()))
        if task.failure is not None:
            self._emit.exception_event(run, task.failure, (task.run_ended or task.ended) + task.offset)
            self._emit.fail(run, task.failure)

    def _spills(self, task: Task, parent: Span, ops: Iterable[SpillOp]) -> None:
        context = trace.set_span_in_context(parent, wire.EMPTY)
        for op in ops:
            self._emit.spill_spans((op,), context, _spill_cause(task, op, self._emit))

    def _describe(self, task: Task, held: Held, span: Span) -> None:
        """What is too short, or too much, for a span of its own stands on the task."""
        attributes: Attributes = {names.OUTCOME: task.outcome, names.TASK_NBYTES: task.nbytes}
        if held.waiting is None:
            attributes |= in_seconds(names.WAIT_PREFIX, task.wait_parts)
        if not held.ready:
            attributes |= in_seconds(names.READY_PREFIX, task.ready_parts)
        if held.execute is None:
            attributes |= in_seconds(names.EXECUTE_PREFIX, task.execute_parts)
        if not task.waiting:
            attributes[names.TASK_WAITED] = False
        if task.arrival:
            attributes[names.ARRIVAL] = seconds(task.arrival)
        span.set_attributes(attributes)
        if task.outcome == "error":
            self._emit.fail(span, task.failure or _not_stored(task))
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


LEAST_SPANS = 3  # of a recorded task: itself, execute, run
TYPICAL_SPANS = 9  # of one task, with its fetches and their peers' halves


def _not_stored(task: Task) -> Failure | None:
    """Its own result was too large for memory, and could not be written either: then Dask fails the task."""
    return next((op.failure for op in task.spills or () if op.key == task.key and op.failure is not None), None)


def _while_running(task: Task, op: SpillOp) -> bool:
    """The function itself asked for a value: a client in it gathers what this worker holds."""
    return (
        bool(task.run_begun) and op.ended > task.run_begun and op.begun < (task.run_ended or task.taken or task.ended)
    )


def _in_run(task: Task, op: SpillOp) -> bool:
    """What the function asked for and did not wait for ends after it, and is part of neither."""
    return _while_running(task, op) and op.begun >= task.run_begun and op.ended <= (task.run_ended or task.taken)


def _spill_cause(task: Task, op: SpillOp, emitter: Emitter) -> Attributes:
    storing = bool(task.taken) and op.begun >= task.taken
    return {
        names.TASK_PREFIX: task.prefix,
        names.SPILL_TRIGGER_KEY: emitter.text(task.key),
        names.SPILL_CAUSE: "store" if storing else "run" if _while_running(task, op) else "load",
    }
