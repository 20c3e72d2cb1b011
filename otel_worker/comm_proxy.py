"""The comm that `Worker.get_data` is handed: it notes when the reply is serialized, sent, and acknowledged."""

from __future__ import annotations

from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

from otel_worker import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_worker.facts import Serve


class CommProxy:
    """Passes everything on to `comm`.

    `Worker.get_data` writes once and reads once: what is before `write` is looking the values up (unspilling), the write
    itself is serializing (TCP only enqueues), and the read ends with the requester's OK.
    """

    def __init__(self, comm: Any, serve: Serve, watch: Callable[[CommProxy], None], *, asked: bool) -> None:
        """`watch` is `watch_buffer` under the guard, which is made once and not for each request."""
        self._comm = comm
        self._serve = serve
        self._asked = asked
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def write(self, msg: Any, *args: Any, **kwargs: Any) -> Any:
        serve = self._serve
        serve.writing = now()
        if self._asked and type(msg) is dict and wire.KEY not in msg:
            msg[wire.KEY] = wire.Trailer(self._tell)
        try:
            return await self._comm.write(msg, *args, **kwargs)
        finally:
            serve.written = now()
            self._watch(self)

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        reply = await self._comm.read(*args, **kwargs)
        self._serve.acknowledged = now()
        return reply

    def _tell(self) -> Mapping[str, int]:
        """Called while the reply is packed, after the data: serializing ends here."""
        serve = self._serve
        if not serve.serialized:
            serve.serialized = serve.written or now()
        return {
            "loop": serve.loop,
            "unspill": serve.spill_time(reading=True),
            "spill": serve.spill_time(reading=False),
            "serialize": max(0, serve.serialized - serve.writing),
        }

    def watch_buffer(self) -> None:
        """Note when the kernel has taken the whole reply (tornado's `IOStream.write` resolves then)."""
        stream = getattr(self._comm, "stream", None)
        if stream is None or not stream.writing():
            self._serve.drained = self._serve.written
            return
        stream.write(b"").add_done_callback(self._drained)

    def _drained(self, _future: Any) -> None:
        self._serve.drained = now()
