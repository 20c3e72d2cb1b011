"""Spans as the lines of a tree: children below their parents by start, links where asked for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from otel_worker import names
from otel_worker.traces import Link, Ref, Span, by_ref, children, number

_INDENT = "  "
_ORPHAN = " (parent not in the data)"


@dataclass(frozen=True, slots=True)
class _Known:
    """The spans that are shown, who is below whom, and every span that a line may have to name."""

    spans: dict[Ref, Span]
    children: dict[Ref, list[Span]]
    all: dict[Ref, Span]


def tree(
    spans: Iterable[Span],
    *,
    links: bool = False,
    seconds: bool = False,
    details: bool = False,
    among: Iterable[Span] = (),
) -> list[str]:
    """One line a span: its name, indented; `seconds` and `details` (worker, key, outcome, peer, bytes) follow it.

    With `links`, `-> name (key)` lines stand below a span for what it links to. What is linked to, or is a root's parent,
    may be `among` spans that have no lines themselves.
    """
    held = list(spans)
    shown = by_ref(held)
    known = _Known(shown, children(held), {**by_ref(among), **shown})
    return [line for depth, span in _walk(known) for line in _lines(span, depth, known, links, seconds, details)]


def subtree(spans: Iterable[Span], top: Span) -> list[Span]:
    """The span and all that is below it, parents first."""
    below, found, left = children(spans), [], [top]
    seen: set[Ref] = set()
    while left:
        span = left.pop()
        if span.ref not in seen:
            seen.add(span.ref)
            found.append(span)
            left.extend(reversed(below.get(span.ref, [])))
    return found


def _walk(known: _Known) -> Iterator[tuple[int, Span]]:
    """Depth first, without recursion: traces can be deeper than Python's stack. What only cycles reach comes last."""
    seen: set[Ref] = set()
    roots = [s for s in known.spans.values() if s.parent_ref not in known.spans]
    for top in (*sorted(roots, key=_order), *sorted(known.spans.values(), key=_order)):
        left = [(0, top)]
        while left:
            depth, span = left.pop()
            if span.ref not in seen:
                seen.add(span.ref)
                yield depth, span
                left.extend((depth + 1, child) for child in reversed(known.children.get(span.ref, [])))


def _order(span: Span) -> tuple[int, int, str]:
    return span.start, span.end, span.name


def _lines(span: Span, depth: int, known: _Known, links: bool, seconds: bool, details: bool) -> Iterator[str]:
    indent = _INDENT * depth
    orphan = _ORPHAN if span.parent_id and span.parent_ref not in known.all else ""
    extras = [format_seconds(span.duration)] * seconds + _details(span) * details
    yield _INDENT.join([f"{indent}{span.name}{orphan}", *extras])
    if links:
        yield from (f"{indent}{_INDENT}-> {_target(link, known)}" for link in span.links)


def _target(link: Link, known: _Known) -> str:
    target = known.all.get(link.ref)
    if target is None:
        return f"{link.span_id} (not in the data)"
    key = label(target)
    return f"{target.name} ({key})" if key else target.name


def label(span: Span) -> str:
    """The key, or keys, that a span is about."""
    attributes = span.attributes
    for name in (names.TASK_KEY, names.SPILL_KEY):
        if name in attributes:
            return str(attributes[name])
    keys = attributes.get(names.FETCH_KEYS)
    keys = keys if isinstance(keys, list) else []
    count = int(number(attributes.get(names.FETCH_KEY_COUNT))) or len(keys)
    first = str(keys[0]) if keys else ""
    return f"{first} and {count - 1} more" if first and count > 1 else first


def _details(span: Span) -> list[str]:
    attributes = span.attributes
    peer = attributes.get(names.PEER_ADDRESS)
    found = [
        str(attributes.get(names.WORKER_NAME) or span.service),
        label(span),
        str(attributes.get(names.OUTCOME, "")),
        f"<- {peer}" if peer else "",
        _bytes(span),
        "ERROR" if span.status == "error" else "",
        str(attributes.get(names.ERROR_TYPE, "")),
    ]
    return [text for text in found if text]


def _bytes(span: Span) -> str:
    for name in (names.FETCH_NBYTES, names.SPILL_NBYTES, names.TASK_NBYTES):
        if name in span.attributes:
            return format_bytes(number(span.attributes[name]))
    return ""


def format_seconds(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    if abs(seconds) >= 1:
        return f"{seconds:,.2f} s"
    return f"{seconds * 1e3:.1f} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.0f} us"


def format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def clean(text: str) -> str:
    """Keys come from strangers: what would move the cursor or ring the bell is shown in words."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    )
