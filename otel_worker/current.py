"""What the code that runs now works for, and how it is awaited with that known."""

from __future__ import annotations

from contextvars import ContextVar
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# A record of `facts`, `shuffle_facts` or `actor_facts`. Set only in contexts that are private to an asyncio task, or reset in
# the same call; every reader checks the record's type and phase, since contexts are copied into whatever is started meanwhile.
CURRENT: ContextVar[Any] = ContextVar("otel_worker_current", default=None)


async def telling(awaitable: Awaitable[Any], ended: Callable[[Any, BaseException | None, int], Any]) -> Any:
    """Await; say then what came of it: the result or the error, and when in ns."""
    result = error = None
    try:
        result = await awaitable
    except BaseException as caught:
        error = caught
        raise
    finally:
        ended(result, error, now())
    return result


async def below(record: Any, awaitable: Awaitable[Any], ended: Callable[[Any, BaseException | None, int], Any]) -> Any:
    """As `telling`, with `record` current meanwhile."""

    async def current() -> Any:
        token = CURRENT.set(record)
        try:
            return await awaitable
        finally:
            CURRENT.reset(token)

    return await telling(current(), ended)
