"""An observer does no harm: the one place where an exception of ours is caught.

A function of ours that fails is logged once with its traceback, switched off, and counted; what it observed goes on.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("otel_worker")

P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """Wraps our functions. `failures` holds what was caught, for tests; `count` how often."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, BaseException]] = []
        self.off: set[str] = set()

    @property
    def count(self) -> int:
        return len(self.failures)

    def __call__(self, name: str, function: Callable[P, T]) -> Callable[P, T | None]:
        """Return `function` with a net under it: once it has failed it answers None and does nothing."""
        off = self.off

        @functools.wraps(function)
        def safe(*args: P.args, **kwargs: P.kwargs) -> T | None:
            if name in off:
                return None
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self.failed(name, error)
                return None

        return safe

    def failed(self, name: str, error: BaseException) -> None:
        self.off.add(name)
        self.failures.append((name, error))
        logger.error("otel_worker: %s failed and is switched off; Dask is not affected", name, exc_info=error)

    def skipped(self, target: str, why: Any) -> None:
        """Say that a patch has no place in this version of Dask."""
        logger.warning("otel_worker: %s is not traced: %s", target, why)
