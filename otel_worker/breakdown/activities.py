"""What the parts are called for people, and the order in which a task meets them."""

from typing import Final

# Path -> (in a table, in a sentence: "2.4 s of it …"). {peer} is who was waited for, where that is known.
WORDS: Final[dict[str, tuple[str, str]]] = {
    "arrival": ("arrival: decode, import", "to decode what the scheduler sent, imports included"),
    "waiting": ("waiting for data", "waiting for data"),
    "waiting.missing": ("no holder known", "for data that nobody was known to hold"),
    "waiting.queued": ("not yet requested", "before the data was requested"),
    "waiting.queued.count": ("limit on the number of fetches", "because as many fetches were going on as are allowed"),
    "waiting.queued.bytes": ("limit on the bytes in flight", "because as many bytes were in flight as are allowed"),
    "waiting.queued.head_of_line": ("next key does not fit", "behind a key that did not fit the limit on bytes"),
    "waiting.queued.busy": ("holders busy", "because {peer} was busy"),
    "waiting.queued.in_flight": ("holders have a request already", "behind another request to {peer}"),
    "waiting.queued.paused": ("this worker paused", "because the worker was paused"),
    "waiting.connect": ("connection", "to connect to {peer}"),
    "waiting.connect.pool": ("pool slot", "for a free slot in the connection pool"),
    "waiting.connect.dial": ("dial", "to reach {peer}"),
    "waiting.connect.handshake": ("handshake", "for the handshake with {peer}"),
    "waiting.peer": ("at the peer", "for {peer}"),
    "waiting.peer.loop": ("its event loop busy", "for {peer} to answer, its event loop was busy"),
    "waiting.peer.unspill": ("reads from its disk", "for {peer} to read from disk"),
    "waiting.peer.spill": ("spills to its disk", "for {peer} to spill other values"),
    "waiting.peer.serialize": ("serializes", "for {peer} to serialize"),
    "waiting.network": ("network", "for the network from {peer}"),
    "waiting.loop": ("event loop busy", "because the worker's own event loop was busy"),
    "waiting.deserialize": ("deserialize", "to deserialize what {peer} sent"),
    "waiting.deserialize.queue": ("queue of the offload thread", "in the queue of the one deserializing thread"),
    "waiting.store": ("store", "to store what came"),
    "waiting.store.spill": ("spill other values", "to spill other values to make room"),
    "waiting.other": ("unexplained", "unexplained"),
    "ready": ("ready", "ready to run"),
    "ready.paused": ("worker paused", "because the worker was paused"),
    "ready.thread_slot": ("thread slot", "for a free thread"),
    "ready.resources": ("resources", "for its resources"),
    "ready.other": ("unexplained", "unexplained"),
    "execute": ("executing", "executing"),
    "execute.load": ("load arguments", "to load its arguments"),
    "execute.load.unspill": ("read from disk", "to read its arguments from disk"),
    "execute.load.spill": ("spill other values", "to spill other values to make room for its arguments"),
    "execute.executor_queue": ("queue of the executor", "in the executor's queue"),
    "execute.run": ("running", "in its own code"),
    "execute.run.cpu": ("on the CPU", "computing"),
    "execute.run.process": ("in a process of a pool", "in its own code, in another process"),
    "execute.run.rejoin": ("wait to rejoin the pool", "for a free thread slot after it had seceded"),
    "execute.run.shuffle": ("P2P shuffle", "in a P2P shuffle"),
    "execute.run.shuffle.join": ("learn of the run", "to learn of its P2P shuffle"),
    "execute.run.shuffle.comms_limiter": (
        "send buffer full",
        "for other workers to take what it sends in a P2P shuffle",
    ),
    "execute.run.shuffle.inputs_done": (
        "all workers send the rest",
        "for every worker to send the rest of a P2P shuffle",
    ),
    "execute.run.shuffle.flush": ("write the rest to disk", "for the rest of a P2P shuffle to be on disk"),
    "execute.run.shuffle.loop": ("event loop busy", "for the event loop in a P2P shuffle"),
    "execute.run.noncpu": ("not on the CPU (GIL, I/O, …)", "in its own code but not on the CPU"),
    "execute.loop": ("event loop busy", "because the event loop was busy"),
    "execute.store": ("store the result", "to store its result"),
    "execute.store.spill": ("spill other values", "to spill other values to make room for its result"),
    "execute.other": ("unexplained", "unexplained"),
    "other": ("short phases and gaps", "between its phases"),
}

_ORDER: Final = {path: number for number, path in enumerate(WORDS)}


def label(path: str) -> str:
    """Unknown paths come from a newer version of us: their own last word is the best there is."""
    known = WORDS.get(path)
    return known[0] if known else path.rpartition(".")[2] or "all tasks"


def journey(path: str) -> tuple[int, str]:
    """Sorts as a task meets them."""
    return _ORDER.get(path, len(_ORDER)), path
