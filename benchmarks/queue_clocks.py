"""What a transition costs while many keys sit in `fetch`, and what a wait costs to split: flat, however many there are.

    python -m benchmarks.queue_clocks [MOST]

Measured here (2 cores shared with others, CPython 3.11), microseconds, what the desk does included:

    keys in fetch                               100    1,000   10,000  100,000
    a key comes and goes to flight              8.6      8.7      8.0     10.5
    holders of one key change                  14.9     14.4     16.0      7.7
    a fetch begins and ends                    15.2     15.1     16.8     21.5
    a task's wait is split, a dependency       22.9     33.2     33.5     23.6
    a task waits for a queued key              48.8     40.1     42.0     53.7
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator

from otel_worker import waits
from tests.desk import Desk

TIMES = 2_000  # of each measure


def queued(count: int) -> Desk:
    """So many keys in `fetch` that three peers hold, and tasks that wait for ten each."""
    desk = Desk()
    for i in range(count):
        desk.held(f"k-{i}", f"peer-{i % 3}")
    for i in range(0, count, 10):
        keys = [f"k-{j}" for j in range(i, min(i + 10, count))]
        desk.wait(0, f"t-{i}", " ".join(keys), **dict.fromkeys(keys, "fetch"))
    return desk


def each(steps: Iterator[None], times: int = TIMES) -> float:
    """Microseconds a step."""
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    for _ in steps:
        pass
    gc.enable()
    return (time.perf_counter() - began) / times * 1e6


def a_key_comes_and_goes(count: int) -> float:
    desk = queued(count)

    def steps() -> Iterator[None]:
        for i in range(TIMES):
            desk.held("new-1", "peer-1")
            desk.move(1 + i, **{"new-1": "fetch"})
            yield desk.move(1.5 + i, **{"new-1": "flight"})

    return each(steps()) / 2


def holders_change(count: int) -> float:
    desk = queued(count)
    peers = [{"peer-0"}, {"peer-0", "peer-1"}]

    def steps() -> Iterator[None]:
        for i in range(TIMES):
            desk.views["k-0"].who_has = peers[i % 2]
            yield desk.recorder.holders_changed(["k-0"], desk.views, i + 2_000_000_000)  # type: ignore[arg-type]

    return each(steps())


def a_fetch_begins_and_ends(count: int) -> float:
    desk = queued(count)

    def steps() -> Iterator[None]:
        for i in range(TIMES):
            fetch = desk.fetch(1 + i, "peer-0", "k-0")
            yield desk.end(1.5 + i, fetch, "busy", **{"k-0": "fetch"})

    return each(steps()) / 2


def a_wait_is_split(count: int) -> float:
    """One task that waits for all of the keys, each of which leaves `fetch` at a time of its own."""
    desk = Desk()
    keys = [f"k-{i}" for i in range(count)]
    for key in keys:
        desk.held(key, "peer")
    desk.wait(0, "sum", " ".join(keys), **dict.fromkeys(keys, "fetch"))
    for i, key in enumerate(keys):
        desk.end(i + 1, desk.fetch(i + 0.5, "peer", key), **{key: "memory"})
    task = desk.recorder.tasks["sum"]

    def steps() -> Iterator[None]:
        assert sum(waits.shares(task, desk.recorder.last).values()) == desk.recorder.last - task.waiting
        yield

    return each(steps(), count)


def a_task_joins_a_queued_key(count: int) -> float:
    """So many tasks come one by one while the one key that all of them lack sits in `fetch`."""
    desk = Desk()
    desk.held("k", "peer")

    def steps() -> Iterator[None]:
        for i in range(count):
            yield desk.wait(i, f"t-{i}", "k", **({} if i else {"k": "fetch"}))
        tasks = {f"t-{i}": "ready" for i in range(count)}
        desk.end(count + 1, desk.fetch(count, "peer", "k"), k="memory", **tasks)

    return each(steps(), count)


MEASURES: dict[str, Callable[[int], float]] = {
    "a key comes and goes to flight": a_key_comes_and_goes,
    "holders of one key change": holders_change,
    "a fetch begins and ends": a_fetch_begins_and_ends,
    "a task's wait is split, a dependency": a_wait_is_split,
    "a task waits for a queued key": a_task_joins_a_queued_key,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("most", nargs="?", type=int, default=100_000)
    most = parser.parse_args().most
    counts = [count for count in (100, 1_000, 10_000, 100_000) if count <= most]
    print(f"{'keys in fetch':<38}" + "".join(f"{count:>9,}" for count in counts))
    for name, measure in MEASURES.items():
        print(f"{name:<38}" + "".join(f"{measure(count):>9.1f}" for count in counts), flush=True)


if __name__ == "__main__":
    main()
