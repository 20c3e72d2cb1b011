"""A fetch and the spans below it -> stretches of time, one after the other, each with its activities."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_worker import names
from otel_worker.breakdown.apportion import add, apportion
from otel_worker.traces import Ref, Span, number

_CONNECT: Final = {
    names.CONNECT_POOL: names.FETCH_CONNECT_POOL,
    names.CONNECT_DIAL: names.FETCH_CONNECT_DIAL,
    names.CONNECT_HANDSHAKE: names.FETCH_CONNECT_HANDSHAKE,
}
_REQUEST: Final = {
    names.REQUEST_PEER_LOOP: names.PEER_LOOP,
    names.REQUEST_PEER_UNSPILL: names.PEER_UNSPILL,
    names.REQUEST_PEER_SPILL: names.PEER_SPILL,
    names.REQUEST_PEER_SERIALIZE: names.PEER_SERIALIZE,
    names.REQUEST_LOCAL_LOOP: names.LOOP,
    names.REQUEST_NETWORK: names.NETWORK,
}
_SERVED: Final = {
    names.UNSPILL: names.PEER_UNSPILL,
    names.SPILL: names.PEER_SPILL,
    names.GET_DATA_SERIALIZE: names.PEER_SERIALIZE,
}
_GAP: Final = 1_000  # nanoseconds: exported phases end 1 us early


@dataclass(frozen=True, slots=True)
class Stretch:
    start: int
    end: int
    shares: Mapping[str, float]  # weights of its activities

    def within(self, start: int, end: int) -> dict[str, int]:
        """Nanoseconds by activity of what lies between."""
        length = min(self.end, end) - max(self.start, start)
        return apportion(length, self.shares) if length > 0 else {}


def timeline(fetch: Span, below: Mapping[Ref, list[Span]]) -> list[Stretch]:
    """The whole fetch, without gaps: what stands between its phases bears what its sums still lack."""
    phases = [s for child in below.get(fetch.ref, []) for s in _stretches(child, below)]
    phases = list(_clipped(sorted(phases, key=lambda s: s.start), fetch))
    lacking = _lacking(fetch, phases) or {names.OTHER: 1.0}
    return list(_filled(phases, fetch.start, fetch.end, lacking))


def _stretches(child: Span, below: Mapping[Ref, list[Span]]) -> Iterator[Stretch]:
    if child.name == names.FETCH_QUEUED:
        yield Stretch(child.start, child.end, fetch_times(child) or {"queued": 1.0})
    elif child.name == names.CONNECT:
        yield from _connect(child, below)
    elif child.name == names.REQUEST:
        yield Stretch(child.start, child.end, _request_shares(child, below))
    elif child.name == names.FETCH_DESERIALIZE:
        yield from _deserialize(child)
    elif child.name == names.SPILL:
        yield Stretch(child.start, child.end, {names.STORE_SPILL: 1.0})


def _connect(span: Span, below: Mapping[Ref, list[Span]]) -> Iterator[Stretch]:
    """What no child covers is `connect` itself."""
    parts = [Stretch(s.start, s.end, {_CONNECT[s.name]: 1.0}) for s in below.get(span.ref, []) if s.name in _CONNECT]
    yield from _filled(list(_clipped(parts, span)), span.start, span.end, {names.CONNECT: 1.0})


def _deserialize(span: Span) -> Iterator[Stretch]:
    queued = max(0, round(number(span.attributes.get(names.OFFLOAD_QUEUE)) * 1e9))
    begun = min(span.end, span.start + queued)
    yield Stretch(span.start, begun, {names.DESERIALIZE_QUEUE: 1.0})
    yield Stretch(begun, span.end, {names.DESERIALIZE: 1.0})


def _request_shares(request: Span, below: Mapping[Ref, list[Span]]) -> dict[str, float]:
    """What the requester worked out; else what the peer's own spans tell; the rest is network."""
    known = {_REQUEST[n]: number(v) for n, v in request.attributes.items() if n in _REQUEST and number(v) > 0}
    if known:
        return known
    for served in below.get(request.ref, []):
        for part in below.get(served.ref, []):
            if part.name in _SERVED:
                known[_SERVED[part.name]] = known.get(_SERVED[part.name], 0.0) + part.duration
    known[names.NETWORK] = max(0.0, request.duration - sum(known.values()))
    return known


def execution(execute: Span, below: Mapping[Ref, list[Span]]) -> list[Stretch]:
    """The whole of an `execute`: what stands before its run bears what loading takes, what stands after it the rest."""
    children = [s for s in below.get(execute.ref, []) if s.name in (names.RUN, names.UNSPILL, names.SPILL)]
    run = next((s for s in children if s.name == names.RUN), None)
    begun = run.start if run else execute.end
    lacking = _execute_times(execute)
    phases = list(_clipped((_executed(s, begun, lacking) for s in children), execute))
    if run is None:
        return list(_filled(phases, execute.start, execute.end, _rest(lacking, lacking)))
    before = [phase for phase in phases if phase.start < begun]
    after = [phase for phase in phases if phase.start >= begun]
    return [
        *_filled(before, execute.start, min(begun, execute.end), _rest(lacking, _BEFORE_RUN)),
        *_filled(after, min(begun, execute.end), execute.end, _rest(lacking, _AFTER_RUN)),
    ]


_BEFORE_RUN: Final = (names.LOAD, names.RUN_QUEUE)
_AFTER_RUN: Final = (names.LOOP, "store")


def _executed(span: Span, begun: int, times: Mapping[str, float]) -> Stretch:
    if span.name == names.RUN:
        inside = {activity: value for activity, value in times.items() if activity.startswith(f"{names.RUN}.")}
        return Stretch(span.start, span.end, inside or {names.RUN: 1.0})
    if span.name == names.UNSPILL:
        activity = names.LOAD_UNSPILL
    else:
        activity = names.LOAD_SPILL if span.start < begun else names.STORE_SPILL
    return Stretch(span.start, span.end, {activity: 1.0})


def _execute_times(execute: Span) -> dict[str, float]:
    prefix = names.EXECUTE_PREFIX
    told = {n[len(prefix) :]: number(v) for n, v in execute.attributes.items() if n.startswith(prefix)}
    return {activity: value for activity, value in told.items() if value > 0}


def _rest(times: Mapping[str, float], wanted: Iterable[str]) -> dict[str, float]:
    return {activity: times[activity] for activity in wanted if activity in times} or {names.OTHER: 1.0}


def serving(get_data: Span, below: Mapping[Ref, list[Span]]) -> list[Stretch]:
    """The whole of a `get_data`, in activities as its requester tells them."""
    told = {**_SERVED, names.GET_DATA_SEND: names.NETWORK}
    parts = [Stretch(s.start, s.end, {told[s.name]: 1.0}) for s in below.get(get_data.ref, []) if s.name in told]
    return list(_filled(list(_clipped(parts, get_data)), get_data.start, get_data.end, {names.OTHER: 1.0}))


def fetch_times(span: Span) -> dict[str, float]:
    """Seconds by activity out of `dask.fetch.time.*`."""
    prefix = names.FETCH_TIME_PREFIX
    return {n[len(prefix) :]: number(v) for n, v in span.attributes.items() if n.startswith(prefix) and number(v) > 0}


def _lacking(fetch: Span, phases: Iterable[Stretch]) -> dict[str, float]:
    """What the fetch's own sums say beyond its phases: those too short for a span of their own."""
    covered: dict[str, int] = {}
    for phase in phases:
        add(covered, phase.within(phase.start, phase.end))
    lacking = {name: value * 1e9 - covered.get(name, 0) for name, value in fetch_times(fetch).items()}
    return {name: value for name, value in lacking.items() if value > _GAP}


def _clipped(stretches: Iterable[Stretch], inside: Span) -> Iterator[Stretch]:
    """Within the span and one after the other, whatever the clocks say."""
    at = inside.start
    for stretch in stretches:
        start, end = max(at, stretch.start), min(inside.end, stretch.end)
        if end > start:
            yield Stretch(start, end, stretch.shares)
            at = end


def _filled(stretches: Sequence[Stretch], start: int, end: int, shares: Mapping[str, float]) -> Iterator[Stretch]:
    """A gap of a microsecond is no gap: it belongs to the phase before it."""
    at = start
    for i, stretch in enumerate(stretches):
        if stretch.start > at:
            yield Stretch(at, stretch.start, shares)
        following = stretches[i + 1].start if i + 1 < len(stretches) else end
        at = following if 0 < following - stretch.end <= _GAP else stretch.end
        yield Stretch(stretch.start, at, stretch.shares)
    if end > at:
        yield Stretch(at, end, shares)
