"""A task that has not been computing for `stuck_after`: one warning, and one span that is exported at once.

A span of the task itself would be exported when the task ends, and a stuck one does not. A task that computes for long, or
waits for a thread behind others, is not stuck.
"""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import TYPE_CHECKING

from opentelemetry.trace import Link

from otel_worker import names, wire
from otel_worker.facts import redacted
from otel_worker.openings import task_phase

if TYPE_CHECKING:
    from otel_worker.facts import Task
    from otel_worker.openings import Phase
    from otel_worker.recorder import Recorder
    from otel_worker.spans import Emitter

logger = logging.getLogger("otel_worker")

MOST = 10  # tasks that one look tells one by one: a peer that is gone makes thousands wait
OFTEN, SELDOM = 250_000_000, 5_000_000_000  # ns between two looks
TO_BE_EXPECTED = frozenset((names.RUN, names.READY_THREAD_SLOT, names.READY_RESOURCES))


class Stuck:
    """Looks through one worker's tasks from time to time; `due` is when next, in ns."""

    def __init__(self, recorder: Recorder, emitter: Emitter, now: int) -> None:
        self._recorder = recorder
        self._emit = emitter
        self._after = int(emitter.settings.stuck_after * 1e9)
        self._told: set[Task] = set()
        self._every = min(SELDOM, max(OFTEN, self._after // 4))
        self.due = now + self._every if self._after else 1 << 62

    def look(self, now: int) -> None:
        """Tell the tasks that are stuck now and were not told yet, the oldest first."""
        self.due = now + self._every
        tasks = self._recorder.tasks
        self._told = {task for task in self._told if tasks.get(task.key) is task}
        new = []
        for task in takewhile(lambda task: now - task.arrived >= self._after, tasks.values()):  # as they arrived
            if task not in self._told and now - _idle_since(task) >= self._after:
                phase = task_phase(self._recorder, task, now)
                if phase.name not in TO_BE_EXPECTED:
                    new.append((task, phase))
        self._told.update(task for task, _ in new)
        for task, phase in new[:MOST]:
            self._tell(task, phase, now)
        if len(new) > MOST:
            logger.warning("otel_worker: %d more tasks are stuck on %s", len(new) - MOST, self._recorder.name)

    def _tell(self, task: Task, phase: Phase, now: int) -> None:
        since = _idle_since(task)
        state = "executing" if task.executing else "ready" if task.ready else "waiting"
        logger.warning(
            "otel_worker: task %s is stuck on %s: %s for %.1f s, in %s for %.1f s%s",
            self._emit.text(task.key),
            self._recorder.name,
            state,
            (now - since) / 1e9,
            phase.name,
            (now - phase.since) / 1e9,
            f" with {redacted(phase.peer)}" if phase.peer else "",
        )
        with self._emit.lock:
            if self._emit.afford(1, urgent=True):
                self._show(task, state, phase, since, now)

    def _show(self, task: Task, state: str, phase: Phase, since: int, now: int) -> None:
        """A root: who is stuck for ever is no parent that is exported."""
        attributes = {
            names.TASK_KEY: self._emit.text(task.key),
            names.TASK_PREFIX: task.prefix,
            names.STUCK_STATE: state,
            names.STUCK_PHASE: phase.name,
        }
        if phase.peer:
            attributes[names.PEER_ADDRESS] = redacted(phase.peer)
        links = []
        if (computation := self._emit.computation(task.annotations)) is not None:
            attributes[names.COMPUTATION] = computation.id
            links = [Link(computation.parent())] if computation.parent().trace_flags.sampled else []
        span = self._emit.start(names.TASK_STUCK, wire.EMPTY, since + task.offset, attributes, links=links)
        span.add_event(names.TASK_STUCK, timestamp=now + task.offset)
        span.end(now + task.offset)


def _idle_since(task: Task) -> int:
    """Since when it is where it is, in ns: a function that ran and ended begins a new wait, for its result to be taken."""
    if task.executing:
        return task.taken or task.run_ended or task.executing
    return task.ready or task.waiting or task.arrived
