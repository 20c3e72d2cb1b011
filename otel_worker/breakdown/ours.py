"""The spans of ours among those of a source, by operation: every step starts from the few that it needs."""

from collections import defaultdict
from collections.abc import Iterable

from otel_worker import names
from otel_worker.traces import Span


class Ours:
    """One pass over all spans, so that no step needs another."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = tuple(spans)
        self._held: dict[str, list[Span]] = defaultdict(list)
        operations: dict[str, str] = {}  # there are few names
        for span in self.spans:
            if span.scope == names.SCOPE:
                name = span.name
                operation = operations.get(name)
                if operation is None:
                    operation = operations[name] = span.operation
                self._held[operation].append(span)

    def __getitem__(self, operation: str) -> list[Span]:
        return self._held.get(operation, [])

    def of(self, *operations: str) -> list[Span]:
        return [span for operation in operations for span in self[operation]]

    def __len__(self) -> int:
        return sum(len(spans) for spans in self._held.values())
