"""The one place where workers and clients call others besides `get_data`, and its hook; a part of the table in `hooks.py`.

A message carries our key only towards a peer that announced in the handshake of this very connection that it strips it.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

from otel_worker import wire
from otel_worker.actor_facts import METHOD
from otel_worker.current import CURRENT, telling
from otel_worker.patches import Patch
from otel_worker.shuffle_facts import Transport

if TYPE_CHECKING:
    from otel_worker.actors import Actors
    from otel_worker.guard import Guard
    from otel_worker.shuffles import Shuffles

OPERATIONS = {"shuffle_receive", "proxy", *METHOD}

# Two modules look it up: `PooledRPCCall`, for what workers and clients call, and the scheduler's broadcast.
CALL_TABLE: tuple[Patch, ...] = (
    Patch("distributed.core", "", "send_recv", "call", ("comm",)),
    Patch("distributed.scheduler", "", "send_recv", "relay", ("comm",)),
)


class CallHooks:
    """Makes the replacements."""

    def __init__(self, shuffles: Shuffles, actors: Actors, safe: Guard) -> None:
        self._shuffles = shuffles
        self._actors = actors
        self._safe = safe

    def call(self, original: Any) -> Any:
        sent = self._safe("shuffle_send", self._shuffles.request_sent)

        asks = self._safe("actor_call", self._actors.call_asked)
        answered = self._safe("actor_call_end", self._actors.call_answered)

        async def asking(comm: Any, message: Any, kwargs: Any) -> Any:
            asked = asks(comm, message, now(), direct=message is kwargs)
            if asked is None:
                return await original(comm, **kwargs)
            if asked.extra is not None:
                kwargs[wire.KEY] = asked.extra
            return await telling(original(comm, **kwargs), partial(answered, asked))

        def send_recv(comm: Any, **kwargs: Any) -> Any:
            op = kwargs.get("op")
            if op not in OPERATIONS:
                return original(comm, **kwargs)
            message = (
                kwargs.get("msg") if op == "proxy" else kwargs
            )  # `distributed.actor.ProxyRPC` asks the scheduler to pass it on
            if type(message) is dict and message.get("op") in METHOD:
                return asking(comm, message, kwargs)
            record = CURRENT.get()
            if op == "shuffle_receive" and type(record) is Transport and not record.sent:
                extra = sent(record, comm, now())
                if extra is not None:
                    kwargs[wire.KEY] = extra
            return original(comm, **kwargs)

        return send_recv

    def relay(self, original: Any) -> Any:
        """What the scheduler passes on, it passes on as it is; the row is here so that the name is Dask's own again later."""

        def send_recv(comm: Any, **kwargs: Any) -> Any:
            return original(comm, **kwargs)

        return send_recv
