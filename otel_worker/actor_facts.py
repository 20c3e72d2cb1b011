"""Calls of actors' methods, as the actor's worker and who calls it know them. Times are as in `facts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_worker import names

if TYPE_CHECKING:
    from otel_worker.facts import Failure, Key
    from otel_worker.recorder import Recorder


METHOD = {"actor_execute": "function", "actor_attribute": "attribute"}  # Dask's op -> the field that names the method


class ActorCall:
    """One call of a method of an actor, or one look at an attribute of it, on the worker where the actor lives."""

    __slots__ = (
        "begun",
        "blocks",
        "cpu",
        "ended",
        "executor",
        "failure",
        "key",
        "loop",
        "method",
        "offset",
        "outcome",
        "peer",
        "peer_kind",
        "prefix",
        "recorder",
        "remote",
        "run_begun",
        "run_ended",
        "span",
        "thread_id",
        "thread_name",
    )

    def __init__(self, key: Key, prefix: str, method: str, recorder: Recorder, now: int) -> None:
        self.key = key
        self.prefix = prefix
        self.method = method
        self.recorder = recorder
        self.offset = recorder.clock.offset
        self.loop = 0
        self.blocks = False  # the event loop itself runs the method, and nothing else meanwhile
        self.begun = now
        self.run_begun = self.run_ended = self.cpu = self.ended = 0
        self.executor = "event_loop"  # or actor_thread: where the method runs
        self.thread_id = 0
        self.thread_name = ""
        self.peer = self.peer_kind = ""
        self.outcome = ""
        self.failure: Failure | None = None
        self.remote: Any = None  # the caller's context, for an observer
        self.span: Any = None  # an observer's own

    @property
    def name(self) -> str:
        """As Dask names it."""
        return f"{self.prefix}.{self.method}"

    def parts(self) -> dict[str, int]:
        """Nanoseconds by activity; they sum to the call. Of a coroutine CPU time is not known: others run meanwhile."""
        begun = self.run_begun or self.begun
        ended = max(begun, self.run_ended or self.ended)
        cpu = min(self.cpu, ended - begun)
        parts = {
            names.RUN_QUEUE: begun - self.begun,
            names.RUN_CPU: cpu,
            names.RUN_NONCPU: ended - begun - cpu,
            names.LOOP: self.ended - ended,
        }
        return {name: ns for name, ns in parts.items() if ns}
