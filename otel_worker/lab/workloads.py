"""Generated demand: the shapes in which Dask moves data between workers."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from otel_worker.lab.demand import Arrival, Case, LabError, Need, Peer, acquire, address, compute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True)
class Size:
    """How large a workload is."""

    workers: int = 20
    keys: int = 400
    nbytes: int = 1_000_000
    deciding: int = 1
    seed: int = 0


def peer_names(size: Size) -> list[str]:
    """All workers by name: the first `deciding` of them decide, all of them answer."""
    digits = len(str(size.workers - 1))
    return [f"w{i:0{digits}}" for i in range(size.workers)]


def others(names: list[str], me: str) -> list[str]:
    return [name for name in names if name != me]


def at_once(events: Iterable[tuple[str, object]]) -> tuple[Arrival, ...]:
    return tuple(Arrival(at=0.0, worker=address(worker), event=event) for worker, event in events)


def all_to_all(size: Size) -> Case:
    """Output partitions of a shuffle by tasks: each needs one piece from every other worker."""
    names = peer_names(size)
    tasks = max(1, size.keys // (size.workers - 1))
    return Case(
        "all-to-all",
        at_once(
            (
                me,
                compute(
                    f"join-{me}-{t:04}",
                    [Need(f"split-{peer}-{me}-{t:04}", size.nbytes, (peer,)) for peer in others(names, me)],
                    priority=(t,),
                ),
            )
            for me in names[: size.deciding]
            for t in range(tasks)
        ),
    )


def tree_reduction(size: Size) -> Case:
    """Eight partial results to one, level by level; a task comes when its inputs are computed, on one of the deciding workers."""
    names = peer_names(size)
    deciding = names[: size.deciding]
    level = [(f"part-{i:05}", names[i % len(names)]) for i in range(size.keys)]
    arriving: list[Arrival] = []
    results: dict[object, int] = {}
    depth = 0
    made: set[str] = set()
    while len(level) > 1:
        depth += 1
        following = []
        for i in range(0, len(level), 8):
            inputs, me = level[i : i + 8], deciding[i // 8 % len(deciding)]
            key = f"sum-{depth}-{i // 8:05}"
            needs = [Need(name, size.nbytes, (holder,)) for name, holder in inputs if holder != me]
            event = compute(key, needs, priority=(-depth, i))
            after = tuple(name for name, _ in inputs if name in made)
            arriving.append(Arrival(at=0.0, worker=address(me), event=event, after=after))
            results[key] = size.nbytes
            following.append((key, me))
        made.update(key for key, _ in following)
        level = following
    return Case("tree-reduction", tuple(arriving), results=results)


def broadcast(size: Size) -> Case:
    """A few big values on one worker, wanted by tasks everywhere at once, each with a small one from elsewhere."""
    names = peer_names(size)
    source = names[-1]

    def needs(me: str, t: int) -> list[Need]:
        nearby = names[t % (len(names) - 1)]
        table = Need(f"table-{t % 4}", 10 * size.nbytes, (source,))
        return [table, Need(f"row-{t:04}", size.nbytes // 10, (source if nearby == me else nearby,))]

    return Case(
        "broadcast",
        at_once(
            (me, compute(f"use-{me}-{t:04}", needs(me, t), priority=(t,)))
            for me in others(names[: size.deciding], source)
            for t in range(size.keys)
        ),
    )


def skewed_sizes(size: Size) -> Case:
    """Sizes over five orders of magnitude: most keys are small, a few have most of the bytes."""
    names = peer_names(size)
    chance = random.Random(size.seed)  # noqa: S311
    return Case(
        "skewed-sizes",
        at_once(
            (
                me,
                compute(
                    f"use-{me}-{t:05}",
                    [
                        Need(f"x-{me}-{t:05}-{i}", pareto(chance, size.nbytes), (chance.choice(others(names, me)),))
                        for i in range(2)
                    ],
                    priority=(t,),
                ),
            )
            for me in names[: size.deciding]
            for t in range(size.keys // 2)
        ),
    )


def pareto(chance: random.Random, mean: int) -> int:
    """A size with the given mean, at most a thousand times it."""
    return max(1, min(1_000 * mean, round(mean * 0.2 * chance.paretovariate(1.25))))


def one_slow_peer(size: Size) -> Case:
    """As all-to-all, but one worker has a twentieth of the bandwidth and thirty times the latency."""
    case = all_to_all(size)
    slow = address(peer_names(size)[-1])
    peer = Peer()
    crawling = replace(peer, bandwidth=peer.bandwidth / 20, latency=peer.latency * 30)
    return replace(case, name="one-slow-peer", peers={slow: crawling})


def many_tiny_keys(size: Size) -> Case:
    """Ten times as many keys, of a hundred bytes each, and a task for each: one message after the other."""
    names = peer_names(size)
    return Case(
        "many-tiny-keys",
        at_once(
            (
                me,
                compute(
                    f"use-{me}-{t:06}",
                    [Need(f"x-{me}-{t:06}", 100, (others(names, me)[t % (len(names) - 1)],))],
                    priority=(t,),
                ),
            )
            for me in names[: size.deciding]
            for t in range(10 * size.keys)
        ),
    )


def replicas(size: Size) -> Case:
    """Keys with three holders each, half wanted by tasks, half by the Active Memory Manager; a quarter of the peers is loaded.

    A loaded peer serves two others already, and refuses every request in the first 0.2 of each 0.4 seconds.
    """
    names = peer_names(size)
    chance = random.Random(size.seed)  # noqa: S311
    events: list[tuple[str, object]] = []
    for me in names[: size.deciding]:
        pool = others(names, me)
        needs = [
            Need(f"x-{me}-{t:05}", size.nbytes, tuple(chance.sample(pool, min(3, len(pool))))) for t in range(size.keys)
        ]
        half = len(needs) // 2
        events += [(me, compute(f"use-{need.key}", [need], priority=(t,))) for t, need in enumerate(needs[:half])]
        events.append((me, acquire(needs[half:], stimulus=f"acquire-replicas-{me}")))
    loaded = replace(Peer(), load=2, busy_for=0.2, busy_every=0.4)
    return Case("replicas", at_once(events), peers={address(name): loaded for name in names[-(len(names) // 4) :]})


def staggered(size: Size) -> Case:
    """A stream: a task with a small input every half millisecond on average, while earlier requests are under way."""
    names = peer_names(size)
    chance = random.Random(size.seed)  # noqa: S311
    arriving = []
    for me in names[: size.deciding]:
        at = 0.0
        for t in range(size.keys):
            at += chance.expovariate(1 / 0.0005)
            need = Need(f"x-{me}-{t:05}", size.nbytes // 10, (chance.choice(others(names, me)),))
            arriving.append(Arrival(at=at, worker=address(me), event=compute(f"use-{need.key}", [need], priority=(t,))))
    return Case("staggered", tuple(arriving))


WORKLOADS: dict[str, Callable[[Size], Case]] = {
    "all-to-all": all_to_all,
    "tree-reduction": tree_reduction,
    "broadcast": broadcast,
    "skewed-sizes": skewed_sizes,
    "one-slow-peer": one_slow_peer,
    "many-tiny-keys": many_tiny_keys,
    "replicas": replicas,
    "staggered": staggered,
}


def generate(name: str, size: Size) -> Case:
    """The case of that name; raises LabError where the size makes no sense."""
    if name not in WORKLOADS:
        raise LabError(f"There is no workload {name!r}; there are {', '.join(WORKLOADS)}.")
    if not 2 <= size.workers <= 1_000:
        raise LabError(f"A workload has 2 to 1000 workers, not {size.workers}.")
    if not 1 <= size.deciding <= size.workers:
        raise LabError(f"Of {size.workers} workers, 1 to {size.workers} can decide, not {size.deciding}.")
    if size.keys < 2 or size.nbytes < 1:
        raise LabError(f"A workload has at least 2 keys of at least 1 byte, not {size.keys} of {size.nbytes}.")
    return WORKLOADS[name](size)
