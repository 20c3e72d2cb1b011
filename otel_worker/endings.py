"""Flushing and ending within a bound, whatever the exporter does: the SDK's own `force_flush` and exit wait longer than asked."""

from __future__ import annotations

import asyncio
import atexit
import logging
import multiprocessing
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger("otel_worker")

LIMIT = 2.0  # seconds that the last flush and the exit may take together: a Nanny waits 4 s for all that a worker ends
AT_EXIT = 0.5  # seconds that the exit has in any case
SAME_ENDING = 1.0  # seconds: an exit that follows a flush so soon is the end of the same worker


class Endings:
    """Takes over the shutdown that the SDK's providers do at the exit of the process, to bound it.

    `close` ends what is still open: nobody closes a worker that got SIGTERM, or a client that was not closed. Make it when
    observing begins: exit handlers run in reverse, so ours then runs after those that Dask registers when it is imported,
    which close clients and clusters.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._pid = os.getpid()
        self._shutdowns: dict[int, _Shutdown] = {}
        self._flushed = (0.0, 0.0)  # when the last flush began and ended
        atexit.register(self._exit)

    def bound(self, providers: Iterable[Any]) -> None:
        """Bound the exit of those providers that would shut themselves down then."""
        for provider in providers:
            handler = _own_handler(provider)
            if handler is not None and id(provider) not in self._shutdowns:
                atexit.unregister(handler)
                self._shutdowns[id(provider)] = _Shutdown(provider)

    def release(self) -> None:
        """Give the providers their own exit back."""
        atexit.unregister(self._exit)
        for shutdown in self._shutdowns.values():
            shutdown.forget()
        self._shutdowns.clear()

    async def flush(self, providers: Iterable[Any], timeout: float) -> None:
        """Call `force_flush` of each provider in a thread of its own; return when all have, or after `timeout` seconds."""
        began = time.monotonic()
        flushes = self.start_flush(providers, timeout)
        try:
            if flushes:
                await asyncio.wait([flush.done for flush in flushes], timeout=timeout)
        finally:
            self._flushed = (began, time.monotonic())

    def start_flush(self, providers: Iterable[Any], timeout: float) -> list[_Flush]:
        loop = asyncio.get_running_loop()
        return [_Flush(provider, int(timeout * 1000), loop) for provider in providers]

    def _exit(self) -> None:
        if os.getpid() == self._pid:  # what is open in a fork is its parent's
            self._close()
        deadline = time.monotonic() + self._left()
        shutdowns = list(self._shutdowns.values())
        for shutdown in shutdowns:
            shutdown.begin()
        for shutdown in shutdowns:
            shutdown.join(max(0.0, deadline - time.monotonic()))

    def _left(self) -> float:
        began, ended = self._flushed
        if time.monotonic() - ended > SAME_ENDING:
            return LIMIT
        return max(AT_EXIT, LIMIT - (ended - began))


def ends_without_exit() -> bool:
    """Whether this is a child that multiprocessing forked: it ends by `os._exit`, so that no `atexit` sends what is left."""
    return getattr(multiprocessing.current_process(), "_start_method", "") in ("fork", "forkserver")


def _own_handler(provider: Any) -> Any:
    """What the SDK's providers registered with `atexit`; None once they are shut down, or if they were told not to."""
    return getattr(provider, "_atexit_handler", None) or getattr(provider, "_at_exit_handler", None)


class _Flush:
    """A daemon thread that sets an asyncio future: asyncio's own executor would be joined when the loop closes."""

    def __init__(self, provider: Any, timeout_millis: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.done: asyncio.Future[None] = loop.create_future()
        call = (provider, timeout_millis)
        try:
            threading.Thread(target=self._run, args=call, name="otel-worker-flush", daemon=True).start()
        except RuntimeError:
            self._set()  # the process exits: what `bound` took over flushes

    def _run(self, provider: Any, timeout_millis: int) -> None:
        try:
            provider.force_flush(timeout_millis)
        except Exception:
            logger.warning("otel_worker: flushing %s failed", type(provider).__name__, exc_info=True)
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Shutdown:
    """A provider's shutdown, in a thread that waits for it from now on: Python 3.12 starts none during the exit."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._due = threading.Event()
        self._forgotten = False
        self._thread = threading.Thread(target=self._wait, name="otel-worker-exit", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        if self._thread.is_alive():
            self._due.set()
        else:
            self._run()  # a fork has no threads but its own

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def forget(self) -> None:
        self._forgotten = True
        self._due.set()
        if (handler := _own_handler(self._provider)) is not None:
            atexit.register(handler)

    def _wait(self) -> None:
        self._due.wait()
        if not self._forgotten:
            self._run()

    def _run(self) -> None:
        if _own_handler(self._provider) is None:
            return  # the user shut it down
        try:
            self._provider.shutdown()
        except Exception:
            logger.warning("otel_worker: shutting down %s failed", type(self._provider).__name__, exc_info=True)
