"""Where the readers put what they find: spans without duplicates, bounded in number, equal strings kept once."""

from collections.abc import Callable
from dataclasses import dataclass

from otel_worker.traces.data import Resource, Span, Traces
from otel_worker.traces.fates import Fates
from otel_worker.traces.problems import Problems, count

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What a source may make us hold; past a limit reading stops, and says so."""

    max_spans: int = 3_000_000
    max_line_bytes: int = 32 * _MIB  # a Collector's batch of 8,192 spans has about 8 MiB
    max_document_bytes: int = 256 * _MIB  # one JSON document: what a Jaeger answers
    max_ratio: int = 200  # plain to compressed bytes, where more than `ratio_free_bytes`; spans reach about 40
    ratio_free_bytes: int = 64 * _MIB


class Full(Exception):  # noqa: N818  it is no error of ours
    """The limit on spans is reached."""


class Collected:
    """The spans of one source while it is being read."""

    def __init__(self, limits: Limits, progress: Callable[[int], None] | None = None) -> None:
        self.limits = limits
        self._progress = progress
        self.problems = Problems()
        self.fates = Fates()
        self.share = _sharer()
        self._traces: dict[str, dict[str, Span]] = {}
        self._count = 0
        self._resources: dict[str, Resource] = {}
        self._duplicates = 0
        self.overlaps = False  # the source itself gives a span more than once, and no word is lost on it

    def __len__(self) -> int:
        return self._count

    @property
    def trace_count(self) -> int:
        return len(self._traces)

    def new_document(self) -> None:
        """Equal strings are shared within a document: there they repeat, and its dictionary stays in the CPU's cache."""
        self.share = _sharer()
        if self._progress is not None:
            self._progress(self._count)

    def add(self, span: Span) -> None:
        """A span that came before is counted and left out; raise Full past the limit."""
        trace = self._traces.get(span.trace_id)
        if trace is None:
            trace = self._traces[span.trace_id] = {}
        if span.span_id in trace:
            self._duplicates += not self.overlaps
        elif self._count < self.limits.max_spans:
            trace[span.span_id] = span
            self._count += 1
        else:
            self.problems.add(f"Only the first {self.limits.max_spans:,} spans were read")
            raise Full

    def resource(self, attributes: dict[str, object]) -> Resource:
        return self._resources.setdefault(repr(attributes), Resource(attributes))

    def traces(self) -> Traces:
        if self._duplicates:
            self.problems.add(f"{count(self._duplicates, 'span')} came more than once and count once")
        self._note_orphans()
        spans = tuple(span for trace in self._traces.values() for span in trace.values())
        return Traces(spans, self.problems.sentences(), self.fates.totals())

    def _note_orphans(self) -> None:
        orphans = [s for t in self._traces.values() for s in t.values() if s.parent_id and s.parent_id not in t]
        if orphans:
            first = orphans[0]
            example = f"{first.name} of {first.service}, parent {first.parent_id}"
            self.problems.add(
                f"{count(len(orphans), 'span')} with a parent that is not in the data", f"for example {example}"
            )


def _sharer() -> Callable[[str, str], str]:
    """share(text, text) is the first of equal texts."""
    strings: dict[str, str] = {}
    return strings.setdefault
