"""The settings, each from a keyword, else the environment, else Dask's configuration, else its default."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger("otel_worker")

ENVIRONMENT_PREFIX = "OTEL_PYTHON_DASK_"
CONFIG_SECTION = "otel-worker"
CAPTURES = ("type", "message", "stacktrace")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user can set. The README's table says the same.

    Attributes
    ----------
    span_budget: spans a second that one worker (or client) may start, on average.
    span_burst: spans that may be started at once after a quiet time.
    min_phase: seconds; a shorter phase is an attribute, not a span.
    max_trace_spans: spans of one computation in one trace; each worker has an equal share of it, never less than 100.
    coalesce_interval: seconds; tasks without spans of their own are shown as one span a prefix and interval.
    trace_per_task: every task is its own trace, linked to its `compute`.
    capture_exceptions: what leaves of an exception: type, message, or stacktrace (each includes the ones before).
    max_links: links on one span.
    max_keys: keys in a list that is an attribute.
    max_key_length: characters of a key.
    hash_keys: instead of a key or group, its prefix and a hash of it leave.
    metrics_by_prefix: activities are also told by the prefix of the dependent.
    max_prefixes: prefixes that one worker tells apart in its metrics; the rest counts as `other`.
    flush_timeout: seconds that closing a worker may wait for the exporter.
    stuck_after: seconds without computing after which a task is told as stuck; 0 turns it off.

    """

    span_budget: float = 50.0
    span_burst: float = 1000.0
    min_phase: float = 0.001
    max_trace_spans: int = 10_000
    coalesce_interval: float = 5.0
    trace_per_task: bool = False
    capture_exceptions: str = "message"
    max_links: int = 20
    max_keys: int = 20
    max_key_length: int = 512
    hash_keys: bool = False
    metrics_by_prefix: bool = False
    max_prefixes: int = 50
    flush_timeout: float = 2.0
    stuck_after: float = 60.0

    @property
    def min_phase_ns(self) -> int:
        return int(self.min_phase * 1e9)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    @classmethod
    def check(cls, keywords: Mapping[str, Any]) -> None:
        """Raise TypeError if a keyword is not a setting."""
        if unknown := sorted(set(keywords) - set(cls.names())):
            raise TypeError(f"unknown setting {', '.join(unknown)}; the settings are {', '.join(cls.names())}")

    @classmethod
    def load(cls, keywords: Mapping[str, Any], environ: Mapping[str, str], config: Mapping[str, Any]) -> Settings:
        """Read all sources. A bad value is named with its source in one warning and its default is taken.

        Raises
        ------
        TypeError: a keyword is not a setting.

        """
        cls.check(keywords)
        values = {}
        for field in fields(cls):
            for source, value in _sources(field.name, keywords, environ, config):
                try:
                    values[field.name] = _read(field.name, field.default, value)
                except ValueError as error:
                    logger.warning("otel_worker: %s is %r, but %s; taking %r", source, value, error, field.default)
                break
        return cls(**values)


def _sources(name: str, keywords: Mapping[str, Any], environ: Mapping[str, str], config: Mapping[str, Any]) -> Any:
    variable, option = ENVIRONMENT_PREFIX + name.upper(), name.replace("_", "-")
    if name in keywords:
        yield f"the keyword {name}", keywords[name]
    if environ.get(variable, "").strip():  # OpenTelemetry: an empty variable is as good as none
        yield f"the environment variable {variable}", environ[variable]
    for spelling in (option, name):
        if spelling in config:
            yield f"Dask's configuration {CONFIG_SECTION}.{option}", config[spelling]


def _read(name: str, default: Any, value: Any) -> Any:
    if name == "capture_exceptions":
        if value not in CAPTURES:
            raise ValueError(f"it has to be one of {', '.join(CAPTURES)}")
        return value
    return _READERS[type(default)](value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).strip().lower() in ("true", "false"):
        return str(value).strip().lower() == "true"
    raise ValueError("it has to be true or false")


def _number(kind: type[int | float], what: str) -> Callable[[Any], int | float]:
    def read(value: Any) -> int | float:
        try:
            number, same = kind(value), kind(value) == float(value)
        except (TypeError, ValueError, OverflowError):
            number, same = kind(-1), False
        if isinstance(value, bool) or not 0 <= number < float("inf") or not same:
            raise ValueError(f"it has to be {what} of zero or more")
        return number

    return read


_READERS: dict[type, Callable[[Any], Any]] = {
    bool: _boolean,
    int: _number(int, "a whole number"),
    float: _number(float, "a number"),
}
