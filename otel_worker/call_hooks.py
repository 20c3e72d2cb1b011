"""The one place where workers and clients call others besides `get_data`, and its hook; a part of the table in `hooks.py`.

A message carries our key only towards a peer that announced in the handshake of this very connection that it strips it.
"""

from __future__ import annotations

from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

from otel_worker import wire
from otel_worker.current import CURRENT
from otel_worker.patches import Patch
from otel_worker.shuffle_facts import Transport

if TYPE_CHECKING:
    from otel_worker.guard import Guard
    from otel_worker.shuffles import Shuffles

# Two modules look it up: `PooledRPCCall`, for what workers and clients call, and the scheduler's broadcast.
CALL_TABLE: tuple[Patch, ...] = (
    Patch("distributed.core", "", "send_recv", "call", ("comm",)),
    Patch("distributed.scheduler", "", "send_recv", "call", ("comm",)),
)


class CallHooks:
    """Makes the replacement."""

    def __init__(self, shuffles: Shuffles, safe: Guard) -> None:
        self._shuffles = shuffles
        self._safe = safe

    def call(self, original: Any) -> Any:
        sent = self._safe("shuffle_send", self._shuffles.request_sent)

        def send_recv(comm: Any, **kwargs: Any) -> Any:
            record = CURRENT.get()
            if type(record) is Transport and not record.sent and kwargs.get("op") == "shuffle_receive":
                extra = sent(record, comm, now())
                if extra is not None:
                    kwargs[wire.KEY] = extra
            return original(comm, **kwargs)

        return send_recv
