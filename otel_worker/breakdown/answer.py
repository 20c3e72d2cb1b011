"""The answer in plain words: where the time went, which peer was slow, and why."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from otel_worker import names
from otel_worker.breakdown.activities import label
from otel_worker.breakdown.apportion import add
from otel_worker.breakdown.overtaking import Overtaking
from otel_worker.breakdown.peers import Evidence, Peer
from otel_worker.breakdown.tasks import Task
from otel_worker.breakdown.why import seconds_text
from otel_worker.traces import count

_MOST_PEERS = 4
_WORTH = 0.1  # of all waiting; a peer with less is not named
_STANDS_OUT = 1.5  # times the mean of all peers; where none does, none is called slow
_PART = 0.12  # of what was waited for a peer; a part with less is not named
_MOST_PARTS = 3
_SHARE = 0.005  # of all seconds; a phase with less is not named


class Verdict(Struct, frozen=True):
    """Of one peer: "carol was slow" and why."""

    address: str
    verdict: str
    sentence: str


class Answer(Struct, frozen=True):
    headline: str
    verdicts: tuple[Verdict, ...]
    remarks: tuple[str, ...]


class _Cause(NamedTuple):
    """What a peer was, where this cost most; and the words for its seconds."""

    activities: tuple[str, ...]
    verdict: str
    words: str


_CAUSES: Final = (
    _Cause((names.PEER_UNSPILL,), "was slow", "while {peer} read them back from its disk"),
    _Cause((names.DESERIALIZE, names.DESERIALIZE_QUEUE), "was slow", "while they were unpickled where they arrived"),
    _Cause((names.PEER_LOOP,), "did not answer", "because {peer}'s event loop was blocked"),
    _Cause((names.QUEUED_BUSY,), "was busy", "because {peer} answered that it was busy"),
    _Cause((names.QUEUED_IN_FLIGHT,), "was asked for much", "behind other requests to {peer}"),
    _Cause((names.PEER_SERIALIZE,), "was slow", "while {peer} pickled them"),
    _Cause((names.PEER_SPILL,), "was slow", "while {peer} spilled other values to its disk"),
    _Cause(("connect",), "was hard to reach", "to connect to {peer}"),
    _Cause((names.NETWORK,), "sent for long", "on the network"),
    _Cause((names.LOOP,), "", "because the event loop of the worker that waited was busy"),
    _Cause((names.STORE,), "", "to store what came, spilling included"),
    _Cause(("queued",), "", "before {peer} was asked, by the limits of the worker that waited"),
    _Cause((names.MISSING,), "", "while nobody was known to hold them"),
)


def answer(
    tasks: Sequence[Task], peers: Sequence[Peer], overtook: Sequence[Overtaking], workers: Mapping[str, str]
) -> Answer:
    """`workers` are names by address."""
    waited = sum(p.seconds for p in peers)
    slow = [p for p in peers if p.seconds > max(_WORTH * waited, _SHARE * _total(tasks))][:_MOST_PEERS]
    verdicts = [_together(peers)] if _alike(peers, slow) else [_verdict(peer, workers) for peer in slow]
    return Answer(_headline(tasks), tuple(verdicts), tuple(_remarks(tasks, slow, overtook)))


def _total(tasks: Sequence[Task]) -> float:
    return sum(t.total for t in tasks) / 1e9


def _headline(tasks: Sequence[Task]) -> str:
    phases: dict[str, int] = {}
    for task in tasks:
        add(phases, _by_phase(task.parts))
    total = sum(phases.values())
    if not total:
        return f"{count(sum(t.count for t in tasks), 'task')} took no time."
    told = (
        f"{part / total:.0%} {_PHASES.get(phase, label(phase))} ({_seconds(part / 1e9)})"
        for phase, part in sorted(phases.items(), key=lambda item: -item[1])
        if part > _SHARE * total
    )
    workers = count(len({t.worker for t in tasks}), "worker")
    tasks_ = count(sum(t.count for t in tasks), "task")
    return f"{tasks_} on {workers} took {_seconds(total / 1e9)}, added up: {_listed(list(told))}."


_PHASES: Final = {
    names.EXECUTE: "executing",
    names.WAITING: "waiting for data",
    names.READY: "ready to run, but without a free thread",
    "arrival": "being unpacked on arrival",
    "other": "between their phases",
}


def _by_phase(parts: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for path, part in parts.items():
        add(found, {path.partition(".")[0]: part})
    return found


def _verdict(peer: Peer, workers: Mapping[str, str]) -> Verdict:
    name = workers.get(peer.address) or peer.address
    was, whys = _whys(peer, name, workers)
    waited = f"{count(peer.tasks, 'task')} waited {_seconds(peer.seconds)} for values from {name}"
    return Verdict(peer.address, f"{name} {was}" if was else name, f"{waited}: {whys}.")


def _alike(peers: Sequence[Peer], slow: Sequence[Peer]) -> bool:
    """Several, for the same reason, and none of them much more than the others."""
    mean = sum(p.seconds for p in peers) / max(1, len(peers))
    return len(slow) > 2 and len({_main(p) for p in slow}) == 1 and slow[0].seconds < _STANDS_OUT * mean


def _main(peer: Peer) -> _Cause:
    return max(_CAUSES, key=lambda cause: _of(peer, cause))


def _together(peers: Sequence[Peer]) -> Verdict:
    """Of peers that are alike."""
    parts: dict[str, float] = {}
    for peer in peers:
        for activity, seconds in peer.parts.items():
            parts[activity] = parts.get(activity, 0.0) + seconds
    total = Peer("", sum(p.seconds for p in peers), 0, 0, sum(p.busy for p in peers), 0, parts, {})
    _, whys = _whys(total, "the peer", {})
    waited = (
        f"Tasks waited {_seconds(total.seconds)} for values from {count(len(peers), 'peer')}, for each about as long"
    )
    return Verdict("", "No peer stood out", f"{waited}: {whys}.")


def _whys(peer: Peer, name: str, workers: Mapping[str, str]) -> tuple[str, str]:
    """What it was, and the causes with their seconds."""
    seconds = {cause: _of(peer, cause) for cause in _CAUSES}
    order = sorted(seconds, key=lambda cause: -seconds[cause])
    worth = [c for c in order if seconds[c] >= _PART * peer.seconds][:_MOST_PARTS]
    was = next((c.verdict for c in worth if c.verdict), "")
    whys = [
        f"{_seconds(seconds[c])} {c.words.format(peer=name)}{_evidence(peer, c.activities[0], workers)}" for c in worth
    ]
    return was, _listed(whys) or "for many small reasons"


def _of(peer: Peer, cause: _Cause) -> float:
    """A cause that comes before in the list has what it names; later ones have the rest below theirs."""
    found = 0.0
    for activity, seconds in peer.parts.items():
        mine = next((c for c in _CAUSES if any(f"{activity}.".startswith(f"{a}.") for a in c.activities)), None)
        if mine is cause:
            found += seconds
    return found


def _evidence(peer: Peer, activity: str, workers: Mapping[str, str]) -> str:
    if activity == names.QUEUED_BUSY and peer.busy:
        return f" ({count(peer.busy, 'time')})"
    told = peer.evidence.get(activity)
    if told is None:
        return ""
    if activity == names.PEER_LOOP:
        return f" ({_blocked(told)})"
    where = f" on {workers.get(told.worker) or told.worker}" if told.worker else ""
    example = f"{_seconds(told.longest)} for {told.key}{where}" if told.key else ""
    whole = "" if activity == names.DESERIALIZE else f"{told.what} took {_seconds(told.seconds)}"
    text = ", ".join(words for words in (whole, example) if words)
    return f" ({text})" if text else ""


def _blocked(told: Evidence) -> str:
    by = f" by {told.key}" if told.key else f": {told.what}" if told.what else ""
    return f"once for {_seconds(told.longest)}{by}"


def _remarks(tasks: Sequence[Task], slow: Sequence[Peer], overtook: Sequence[Overtaking]) -> Iterator[str]:
    waited = sum(part for t in tasks for path, part in t.parts.items() if path.startswith(names.WAITING)) / 1e9
    if not slow:
        yield (
            f"No peer was slow: tasks waited {_seconds(waited)} for data in all."
            if waited
            else "No task waited for data."
        )
    for pair in overtook[:1]:
        if pair.share > _WORTH:
            yield (
                f"{pair.producer} overtook {pair.waiting}: while {count(pair.waited_tasks, 'task')} of {pair.waiting} waited for "
                f"data, {_seconds(pair.seconds)} in all, the same worker ran {pair.produced_tasks:,} of {pair.producer}, which "
                "need none."
            )


def _seconds(value: float) -> str:
    return seconds_text(round(value * 1e9))


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
