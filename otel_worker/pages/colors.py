"""One colour for each kind of activity, on every picture: the palette of Okabe and Ito, which colour-blind people can tell apart."""

from typing import Final, NamedTuple


class Kind(NamedTuple):
    name: str
    color: str
    label: str


KINDS: Final = (
    Kind("run", "#009E73", "running its own code"),
    Kind("thread", "#666666", "ready, but no thread is free"),
    Kind("queue", "#F0E442", "not yet requested"),
    Kind("connect", "#000000", "connecting"),
    Kind("loop", "#D55E00", "event loop blocked"),
    Kind("disk", "#E69F00", "read back from disk"),
    Kind("spill", "#CC79A7", "stored, others spilled to disk"),
    Kind("pickle", "#0072B2", "pickled, unpickled"),
    Kind("network", "#56B4E9", "network"),
    Kind("other", "#DDDDDD", "unexplained"),
)
OTHER: Final = len(KINDS) - 1

# Paths of the breakdown, each with all below it; the longest that fits counts.
_OF: Final = {
    "arrival": "pickle",
    "waiting.missing": "queue",
    "waiting.queued": "queue",
    "waiting.connect": "connect",
    "waiting.peer.loop": "loop",
    "waiting.peer.unspill": "disk",
    "waiting.peer.spill": "spill",
    "waiting.peer.serialize": "pickle",
    "waiting.network": "network",
    "waiting.loop": "loop",
    "waiting.deserialize": "pickle",
    "waiting.store": "spill",
    "ready": "thread",
    "execute.load": "disk",
    "execute.load.spill": "spill",
    "execute.executor_queue": "thread",
    "execute.run": "run",
    "execute.run.rejoin": "thread",
    "execute.run.shuffle": "network",
    "execute.run.shuffle.flush": "spill",
    "execute.run.shuffle.loop": "loop",
    "execute.loop": "loop",
    "execute.store": "spill",
}
_NUMBERS: Final = {kind.name: number for number, kind in enumerate(KINDS)}


def kind_of(path: str) -> int:
    """The number, in KINDS, of what a path as "waiting.connect.dial" is drawn as."""
    while path:
        if path in _OF:
            return _NUMBERS[_OF[path]]
        path = path.rpartition(".")[0]
    return OTHER
