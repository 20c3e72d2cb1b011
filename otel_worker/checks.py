"""What must hold of every trace that we export; `check` says in sentences where it does not."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from otel_worker import names
from otel_worker.traces import Ref, Span, by_ref, children, number

_ROUNDING = 1_000  # nanoseconds: an exported phase ends 1 us before the next begins
_MAX_LINKS = 20
_GONE = ("cancelled", "released", "stolen", "closed")  # outcomes of a dependent that a fetch may outlive

# Children that follow each other; others of one parent may overlap.
_PHASES = {
    names.TASK: (names.WAITING, names.READY, names.EXECUTE),
    names.EXECUTE: (names.UNSPILL, names.RUN, names.SPILL),
    names.FETCH: (names.FETCH_QUEUED, names.CONNECT, names.REQUEST, names.FETCH_DESERIALIZE, names.SPILL),
    names.CONNECT: (names.CONNECT_POOL, names.CONNECT_DIAL, names.CONNECT_HANDSHAKE),
    names.GET_DATA: (names.UNSPILL, names.GET_DATA_SERIALIZE, names.GET_DATA_SEND),
    names.SPILL: (names.SPILL_SERIALIZE, names.SPILL_WRITE),
    names.UNSPILL: (names.UNSPILL_READ, names.UNSPILL_DESERIALIZE),
}
_PARTS = {
    names.WAITING: names.WAIT_PREFIX,
    names.READY: names.READY_PREFIX,
    names.EXECUTE: names.EXECUTE_PREFIX,
    **dict.fromkeys(
        (
            names.SHUFFLE_TRANSFER,
            names.SHUFFLE_BARRIER,
            names.SHUFFLE_UNPACK,
            names.SHUFFLE_SEND,
            names.SHUFFLE_RECEIVE,
            names.SHUFFLE_WRITE,
            names.SHUFFLE_FLUSH,
        ),
        names.SHUFFLE_TIME_PREFIX,
    ),
}


@dataclass(frozen=True, slots=True)
class _Known:
    spans: dict[Ref, Span]
    children: dict[Ref, list[Span]]

    def parent(self, span: Span) -> Span | None:
        return self.spans.get(span.parent_ref) if span.parent_id else None


def check(spans: Iterable[Span]) -> list[str]:
    """A sentence for each broken rule, none for sound spans."""
    held = list(spans)
    known = _Known(by_ref(held), children(held))
    return [sentence for span in held for rule in _RULES for sentence in rule(span, known)]


def _duration_is_not_negative(span: Span, _: _Known) -> Iterator[str]:
    if span.duration < 0:
        yield f"{_name(span)} ends {-span.duration} ns before it starts."


def _parent_is_there(span: Span, known: _Known) -> Iterator[str]:
    if span.parent_id and known.parent(span) is None:
        yield f"{_name(span)} has the parent {span.parent_id}, which is not there."


def _links_are_there(span: Span, known: _Known) -> Iterator[str]:
    for link in span.links:
        if link.ref not in known.spans:
            yield f"{_name(span)} has a link to {link.span_id}, which is not there."
        if link.ref == span.parent_ref:
            yield f"{_name(span)} has a link to its own parent."
    if len(span.links) > _MAX_LINKS and _is_ours(span):
        yield f"{_name(span)} has {len(span.links)} links, more than {_MAX_LINKS}."


def _lies_inside_its_parent(span: Span, known: _Known) -> Iterator[str]:
    parent = known.parent(span)
    if parent is None or not _is_ours(span) or not _in_one_process(span, parent):
        return
    if span.start < parent.start:
        yield f"{_name(span)} starts {parent.start - span.start} ns before its parent {_name(parent)}."
    if span.end > parent.end and not _may_outlive(span, parent, known):
        yield f"{_name(span)} ends {span.end - parent.end} ns after its parent {_name(parent)}."


def _phases_follow_each_other(span: Span, known: _Known) -> Iterator[str]:
    phases = _PHASES.get(span.operation) if _is_ours(span) else None
    if phases is None:
        return
    siblings = [s for s in known.children.get(span.ref, []) if s.name in phases and _is_ours(s)]
    for one, other in pairwise(siblings):
        if one.end > other.start:
            yield f"{_name(one)} overlaps {_name(other)} by {one.end - other.start} ns."
        elif one.end == other.start and one.duration > 0:
            yield f"{_name(one)} touches {_name(other)}: a microsecond must lie between them."


def _parts_add_up(span: Span, _: _Known) -> Iterator[str]:
    prefix = _PARTS.get(span.name) if _is_ours(span) else None
    if prefix is None:
        return
    parts = {name: number(value) for name, value in span.attributes.items() if name.startswith(prefix)}
    for name, value in parts.items():
        if value < 0:
            yield f"{_name(span)} has a negative {name}: {value} s."
    difference = round(sum(parts.values()) * 1e9) - span.duration
    if parts and abs(difference) > _ROUNDING * (len(parts) + 1):
        yield f"The parts of {_name(span)} sum to {difference / 1e9:+.6f} s more than its duration."


_RULES: tuple[Callable[[Span, _Known], Iterator[str]], ...] = (
    _duration_is_not_negative,
    _parent_is_there,
    _links_are_there,
    _lies_inside_its_parent,
    _phases_follow_each_other,
    _parts_add_up,
)


def _is_ours(span: Span) -> bool:
    return span.scope == names.SCOPE


def _in_one_process(one: Span, other: Span) -> bool:
    """Resources need not tell two workers of one host apart; their addresses do."""
    if one.resource != other.resource:
        return False
    addresses = {str(s.attributes[names.WORKER_ADDRESS]) for s in (one, other) if names.WORKER_ADDRESS in s.attributes}
    return len(addresses) < 2


def _may_outlive(span: Span, parent: Span, known: _Known) -> bool:
    """A fetch runs on when the dependent that it is shown below was cancelled or freed."""
    if span.operation != names.FETCH or parent.name != names.WAITING:
        return False
    task = known.parent(parent)
    return any(s is not None and s.attributes.get(names.OUTCOME) in _GONE for s in (parent, task))


def _name(span: Span) -> str:
    key = span.attributes.get(names.TASK_KEY)
    return f"{span.name} ({key}, {span.span_id})" if key else f"{span.name} ({span.span_id})"
