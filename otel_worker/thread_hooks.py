"""Threads that left their pool and wait to rejoin it, and the hook; a part of the table in `hooks.py`.

`distributed.rejoin` itself stays Dask's own: it is imported by name into users' functions, which are pickled by that name.
It puts itself on its executor's list and waits for an event; so that list is ours.
"""

from __future__ import annotations

from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

from otel_worker.current import CURRENT
from otel_worker.facts import Task
from otel_worker.patches import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_worker.guard import Guard

THREAD_TABLE: tuple[Patch, ...] = (
    Patch("distributed.threadpoolexecutor", "ThreadPoolExecutor", "__init__", "executor_init", ("self",)),
)


class Waiting:
    """The event that a thread waits for which rejoins; it notes when it is set."""

    __slots__ = ("_ended", "_event", "_task")

    def __init__(self, event: Any, task: Task, ended: Callable[[Task, int], None]) -> None:
        self._event = event
        self._task = task
        self._ended = ended

    def set(self) -> None:
        self._ended(self._task, now())
        self._event.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)


class Rejoining(list):  # type: ignore[type-arg]
    """An executor's list of threads that rejoin: (thread, event)."""

    def __init__(self, entries: Any, safe: Guard) -> None:
        super().__init__(entries)
        self._noted = safe("rejoin", _noted)
        self._ended = safe("rejoin_end", _rejoined)

    def append(self, entry: Any) -> None:
        super().append(self._noted(entry, self._ended, now()) or entry)


def _noted(entry: Any, ended: Any, at: int) -> Any:
    """What stands for an entry while its task waits."""
    task = CURRENT.get()
    if type(task) is not Task or not task.run_begun or task.run_ended:
        return None
    thread, event = entry
    if task.rejoins is None:
        task.rejoins = []
    task.rejoins.append(at)
    return thread, Waiting(event, task, ended)


def _rejoined(task: Task, at: int) -> None:
    if task.rejoins is not None and len(task.rejoins) % 2:
        task.rejoins.append(at)


class ThreadHooks:
    """Makes the replacement."""

    def __init__(self, safe: Guard) -> None:
        self._safe = safe

    def executor_init(self, original: Any) -> Any:
        watch = self._safe("executor", lambda executor: watched(executor, self._safe))

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            watch(self)

        return init


def watched(executor: Any, safe: Guard) -> None:
    """See from now on who rejoins `executor`. One that was made before us may be in use."""
    lock = getattr(executor, "_rejoin_lock", None)
    if lock is not None:
        with lock:
            executor._rejoin_list = Rejoining(executor._rejoin_list, safe)
