"""What was found in the spans of a source, worked out once for every way to show it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from otel_worker.breakdown import Task, tasks, worker_names
from otel_worker.breakdown.answer import Answer, answer
from otel_worker.breakdown.ours import Ours
from otel_worker.breakdown.peers import Peer, peers
from otel_worker.pages.bars import Picture, picture
from otel_worker.reports import Options, Report, build

if TYPE_CHECKING:
    from otel_worker.traces import Traces


@dataclass(frozen=True)
class Found:
    traces: Traces
    source: str
    options: Options

    @cached_property
    def report(self) -> Report:
        return build(self.traces, self.source, self.options)

    @cached_property
    def ours(self) -> Ours:
        return Ours(self.traces.spans)

    @cached_property
    def tasks(self) -> list[Task]:
        return tasks(self.ours)

    @cached_property
    def workers(self) -> dict[str, str]:
        """Names by address."""
        return worker_names(self.tasks)

    @cached_property
    def peers(self) -> list[Peer]:
        return peers(self.tasks, self.ours)

    @cached_property
    def answer(self) -> Answer:
        return answer(self.tasks, self.peers, self.report.overtaking, self.workers)

    @cached_property
    def picture(self) -> Picture:
        return picture(self.tasks, self.ours, self.workers)

    @cached_property
    def places(self) -> dict[str, tuple[float, float]]:
        """From when to when a slowest task is drawn, by its span's id; seconds since the picture's start."""
        wanted = {reason.span_id for reason in self.report.slowest}
        return {
            t.span.span_id: ((t.span.start - self.picture.start) / 1e9, (t.span.end - self.picture.start) / 1e9)
            for t in self.tasks
            if t.span.span_id in wanted
        }
