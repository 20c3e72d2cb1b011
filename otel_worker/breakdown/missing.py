"""What the spans can't show, in sentences: a report that is silent about it would lie."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from otel_worker import names
from otel_worker.breakdown.ours import Ours
from otel_worker.breakdown.tasks import Task
from otel_worker.checks import check
from otel_worker.traces import Span, count

_CHECKED = 50_000  # spans; checking costs as much as reading them


def missing(ours: Ours, tasks: Sequence[Task], fates: Mapping[str, int]) -> list[str]:
    """`fates` is how many spans became what, by the workers' own count; empty where that is not known."""
    return [
        *_foreign(ours),
        *_unrecorded(fates),
        *_coalesced(tasks),
        *_unfinished(ours),
        *_remote_halves(ours[names.REQUEST], "request", "what happened there counts as network"),
        *_remote_halves(ours[names.SHUFFLE_SEND], "shuffle send", "what happened there is not seen"),
        *_nobodys(ours),
        *_clocks(ours),
        *_broken(ours.spans),
    ]


def _foreign(ours: Ours) -> Iterator[str]:
    if ours.spans and not len(ours):
        services = sorted({s.service for s in ours.spans})
        yield f"None of the {count(len(ours.spans), 'span')} is from otel_worker; they are from {', '.join(services[:5])}."


def _coalesced(tasks: Sequence[Task]) -> Iterator[str]:
    held = [t for t in tasks if t.span.operation == names.TASKS]
    if held:
        tasks_ = count(sum(t.count for t in held), "task")
        yield f"Sums only of {tasks_}: over the span budget they were coalesced into {count(len(held), 'span')}."


def _unrecorded(fates: Mapping[str, int]) -> Iterator[str]:
    lost = {fate: number for fate, number in fates.items() if number and fate != "recorded"}
    if lost:
        told = ", ".join(f"{number:,} {fate}" for fate, number in sorted(lost.items()))
        yield f"By the workers' own count {count(fates.get('recorded', 0), 'span')} were recorded, others not: {told}."


def _unfinished(ours: Ours) -> Iterator[str]:
    """A phase came, its task did not: still running, lost with its process, or dropped on the way."""
    held = {s.span_id for s in ours[names.TASK]}
    phases = ours.of(names.WAITING, names.READY, names.EXECUTE)
    orphans = {s.parent_ref for s in phases if s.parent_id not in held}
    if orphans:
        yield f"Of {count(len(orphans), 'task')} only some phases came: unfinished, or the rest was lost."


def _remote_halves(requests: Sequence[Span], what: str, then: str) -> Iterator[str]:
    unseen = [s for s in requests if s.attributes.get(names.PEER_INSTRUMENTED) is False]
    if unseen:
        peers = sorted({str(s.attributes.get(names.PEER_ADDRESS, "?")) for s in unseen})
        yield (
            f"{len(unseen):,} of {count(len(requests), what)} went to peers without otel_worker ({', '.join(peers[:3])}"
            f"{', …' if len(peers) > 3 else ''}): {then}."
        )


def _nobodys(ours: Ours) -> Iterator[str]:
    """What a worker did for no task of its own."""
    spills = [s for s in ours[names.SPILL] if not s.parent_id]
    replicas = [s for s in ours[names.FETCH] if s.attributes.get(names.FETCH_REASON) == "replica"]
    for spans, what in (
        (spills, "spilling by memory monitors"),
        (replicas, "fetching replicas that no task asked for"),
    ):
        if spans:
            total = sum(s.duration for s in spans) / 1e9
            yield f"{total:.1f} s of {what} ({count(len(spans), 'span')}) stand under no task."


def _clocks(ours: Ours) -> Iterator[str]:
    """On one clock serving begins while the request is out. Its end tells nothing: the peer's event loop notes it late."""
    skews: dict[tuple[str, str], int] = defaultdict(int)
    for request, served in _pairs(ours):
        apart = max(request.start - served.start, served.start - request.end)
        host = request.resource.host
        if apart > 1_000_000 and request.resource != served.resource and not (host and host == served.resource.host):
            hosts = (request.resource.host or request.service, served.resource.host or served.service)
            skews[hosts] = max(skews[hosts], apart)
    for (one, other), apart in sorted(skews.items(), key=lambda item: -item[1])[:5]:
        yield f"The clocks of {one} and {other} differ by {apart / 1e6:.1f} ms or more; their times are not compared."


def _pairs(ours: Ours) -> Iterator[tuple[Span, Span]]:
    requests = {s.span_id: s for s in ours[names.REQUEST]}
    for span in ours[names.GET_DATA]:
        request = requests.get(span.parent_id)
        if request is not None and request.trace_id == span.trace_id:
            yield request, span


def _broken(spans: Iterable[Span]) -> Iterator[str]:
    """`check` needs whole traces: only sources of a size that it can look at as a whole."""
    held = list(spans)
    if len(held) <= _CHECKED:
        found = [s for s in check(held) if "which is not there" not in s]  # told elsewhere
        if found:
            yield f"{count(len(found), 'time')} a span breaks a rule that ours keep, first: {found[0]}"
