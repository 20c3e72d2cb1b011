"""Flushing within a bound, whatever the exporter does: the SDK's own `force_flush` and exit wait longer than asked."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger("otel_worker")

AT_EXIT = 0.9  # seconds that the exit of the process may take for providers that could not be flushed in time

_bounded: dict[int, Any] = {}


async def flush_providers(providers: Iterable[Any], timeout: float) -> None:
    """Call `force_flush` of each provider in a thread of its own; return when all have, or after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    threads = [_Thread(partial(provider.force_flush, int(timeout * 1000)), loop) for provider in providers]
    if threads:
        await asyncio.wait([thread.done for thread in threads], timeout=timeout)


class _Thread:
    """A daemon thread that sets an asyncio future: asyncio's own executor would be joined when the loop closes."""

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.done: asyncio.Future[None] = loop.create_future()
        threading.Thread(target=self._run, args=(call,), name="otel-worker-flush", daemon=True).start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception:
            logger.warning("otel_worker: flushing failed", exc_info=True)
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


def bound_exit(providers: Iterable[Any]) -> None:
    """Take over the providers' own `atexit` shutdown, which waits for a hanging endpoint, and bound it."""
    fresh = [p for p in providers if id(p) not in _bounded and callable(getattr(p, "shutdown", None))]
    for provider in fresh:
        _bounded[id(provider)] = provider
        atexit.unregister(provider.shutdown)
    if fresh:
        atexit.register(_shut_down, fresh)


def _shut_down(providers: list[Any]) -> None:
    deadline = time.monotonic() + AT_EXIT
    threads = [threading.Thread(target=provider.shutdown, daemon=True) for provider in providers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
