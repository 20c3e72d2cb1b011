"""The patches of actors, where they live, and their hooks; a part of the table in `hooks.py`."""

from __future__ import annotations

from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

from otel_worker import wire
from otel_worker.patches import Patch

if TYPE_CHECKING:
    from otel_worker.actor_facts import ActorCall
    from otel_worker.actors import Actors
    from otel_worker.guard import Guard

WORKER = "distributed.worker"

ACTOR_TABLE: tuple[Patch, ...] = (
    Patch(WORKER, "Worker", "actor_execute", "actor_execute", ("self", "actor", "function", "args", "kwargs")),
    Patch(WORKER, "Worker", "actor_attribute", "actor_attribute", ("self", "actor", "attribute")),
    Patch(WORKER, "", "_run_actor", "run_actor", ("func", "args", "kwargs")),
)


class Keywords(dict):  # type: ignore[type-arg]
    """A method's keyword arguments, as `Worker.actor_execute` hands them to the actors' thread: they bring the record along.

    That thread gets no copy of the context: tornado's `run_in_executor` makes none.
    """

    def __init__(self, record: ActorCall, kwargs: Any) -> None:
        super().__init__(kwargs or {})
        self.record = record

    def __bool__(self) -> bool:
        return True  # `kwargs or {}` keeps it


class ActorHooks:
    """Makes the replacements; `actors` states the facts."""

    def __init__(self, actors: Actors, safe: Guard) -> None:
        self._actors = actors
        self._safe = safe

    def actor_execute(self, original: Any) -> Any:
        """Bound into the handlers of each worker that is made while this is installed: it strips our key for ever."""
        began = self._safe("actor", self._actors.call_served)
        entered = self._safe("actor_context", self._actors.entered)
        left = self._safe("actor_context_end", self._actors.left_loop)
        ended = self._safe("actor_end", self._actors.call_ended)

        async def actor_execute(
            self: Any, actor: Any = None, function: Any = None, args: Any = (), kwargs: Any = None, **extra: Any
        ) -> Any:
            record = began(self, actor, function, extra.pop(wire.KEY, None), now(), kwargs or {})
            if record is None:
                return await original(self, actor=actor, function=function, args=args, kwargs=kwargs, **extra)
            before = entered(record)
            result = error = None
            try:
                told = Keywords(record, kwargs)
                result = await original(self, actor=actor, function=function, args=args, kwargs=told, **extra)
            except BaseException as caught:
                error = caught
                raise
            finally:
                left(record, before)
                ended(record, result, error, now())
            return result

        actor_execute._otel_worker = True  # type: ignore[attr-defined]
        return actor_execute

    def actor_attribute(self, original: Any) -> Any:
        """As `actor_execute`."""
        began = self._safe("actor", self._actors.call_served)
        ended = self._safe("actor_end", self._actors.call_ended)

        def actor_attribute(self: Any, actor: Any = None, attribute: Any = None, **extra: Any) -> Any:
            record = began(self, actor, attribute, extra.pop(wire.KEY, None), now())
            result = error = None
            try:
                result = original(self, actor=actor, attribute=attribute, **extra)
            except BaseException as caught:
                error = caught
                raise
            finally:
                if record is not None:
                    ended(record, result, error, now())
            return result

        actor_attribute._otel_worker = True  # type: ignore[attr-defined]
        return actor_attribute

    def run_actor(self, original: Any) -> Any:
        """In the actors' thread."""
        began = self._safe("actor_run", self._actors.run_began)
        ended = self._safe("actor_run_end", self._actors.run_ended)

        def _run_actor(func: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> Any:
            record = getattr(kwargs, "record", None)
            if record is None:
                return original(func, args, kwargs, *rest, **more)
            before = began(record)
            try:
                return original(func, args, kwargs, *rest, **more)
            finally:
                ended(record, before)

        return _run_actor
