"""Limits and peers by the names a person writes: in drawings, in YAML, on the command line."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dask.utils import parse_bytes, parse_timedelta

from otel_worker.lab.demand import Case, LabError, Limits, Peer, address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: words for no limit at all
NONE = frozenset({"none", "no", "inf", "off", "unlimited"})


def size(text: object) -> int:
    """Bytes: 5, 1kB, 50 MB."""
    try:
        number = parse_bytes(text if isinstance(text, (int, float)) else str(text).strip())
    except (ValueError, KeyError):
        raise LabError(f"{text!r} is no size: write 100, 5 kB or 50 MB.") from None
    if number < 0:
        raise LabError(f"{text!r} is no size: it is negative.")
    return int(number)


def seconds(text: object) -> float:
    """Seconds: 0.5, 5 ms, 2 s."""
    try:
        number = float(parse_timedelta(text if isinstance(text, (int, float)) else str(text).strip()))
    except (ValueError, KeyError, TypeError):
        raise LabError(f"{text!r} is no time: write 0.5, 5 ms or 2 s.") from None
    if not 0 <= number < math.inf:
        raise LabError(f"{text!r} is no time: it is negative or endless.")
    return number


def size_limit(text: object) -> float:
    """Bytes, or `none`."""
    return math.inf if unlimited(text) else size(text)


def count(text: object) -> int:
    try:
        number = int(str(text))
    except ValueError:
        raise LabError(f"{text!r} is no whole number.") from None
    if number < 0:
        raise LabError(f"{text!r} is no number of things: it is negative.")
    return number


def count_limit(text: object) -> float:
    return math.inf if unlimited(text) else count(text)


def connections(text: object) -> int:
    """Dask wants a whole number here: a million stands for no limit."""
    return 1_000_000 if unlimited(text) else count(text)


def rate(text: object) -> float:
    """Bytes a second: 100 MB/s."""
    number = size(str(text).strip().removesuffix("/s"))
    if not number:
        raise LabError("A bandwidth of 0 would never deliver anything.")
    return float(number)


def unlimited(text: object) -> bool:
    return text is None or text is False or str(text).strip().lower() in NONE | {str(math.inf)}


LIMITS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "connections": ("incoming_count", connections),
    "throttle threshold": ("throttle_threshold", size),
    "byte limit": ("incoming_bytes", size_limit),
    "message limit": ("message_bytes", size_limit),
}
PEER: dict[str, tuple[str, Callable[[object], Any]]] = {
    "latency": ("latency", seconds),
    "connect": ("connect", seconds),
    "bandwidth": ("bandwidth", rate),
    "request time": ("request_seconds", seconds),
    "key time": ("key_seconds", seconds),
    "outgoing connections": ("outgoing_count", count_limit),
    "outgoing bytes": ("outgoing_bytes", size_limit),
    "load": ("load", count),
    "busy for": ("busy_for", seconds),
    "busy every": ("busy_every", seconds),
}


def limits(values: Mapping[str, object], base: Limits) -> Limits:
    return replace(base, **read(values, LIMITS, "limit"))


def peer(values: Mapping[str, object], base: Peer) -> Peer:
    changed = replace(base, **read(values, PEER, "property of peers"))
    if changed.outgoing_count < 1:
        raise LabError("A peer with no outgoing connections would refuse everything for ever.")
    if changed.busy_every <= 0 or changed.busy_for >= changed.busy_every:
        raise LabError("A peer must be free for some part of each `busy every`.")
    return changed


def read(
    values: Mapping[str, object], known: Mapping[str, tuple[str, Callable[[object], Any]]], kind: str
) -> dict[str, Any]:
    result = {}
    for name, value in values.items():
        if name not in known:
            raise LabError(f"{name!r} is no {kind}; there are: {', '.join(known)}.")
        field, parse = known[name]
        result[field] = parse(value)
    return result


def apply(case: Case, name: str, value: object) -> Case:
    """A case with one setting more: `byte limit`, `latency`, or `C.latency` for the peer C alone."""
    worker, _, prop = name.rpartition(".")
    if worker:
        whose = address(worker)
        return replace(case, peers={**case.peers, whose: peer({prop: value}, case.of(whose))})
    if name in LIMITS:
        return replace(case, limits=limits({name: value}, case.limits))
    if name in PEER:
        return replace(
            case,
            peer=peer({name: value}, case.peer),
            peers={whose: peer({name: value}, other) for whose, other in case.peers.items()},
        )
    if name == "threads":
        return replace(case, nthreads=max(1, count(value)))
    raise LabError(f"{name!r} is no setting; there are: threads, {', '.join((*LIMITS, *PEER))}.")
