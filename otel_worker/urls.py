"""`trace_url(future_or_key)`: where a Jaeger shows what became of it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode, urlsplit

from otel_worker import names
from otel_worker.instrumentor import DaskInstrumentor

LOOKBACK = "2d"  # of Jaeger's search page, which looks back an hour by default


def trace_url(
    future_or_key: Any,
    jaeger: str = "http://127.0.0.1:16686",
    *,
    service: str = names.SERVICE_WORKER,
    client: Any = None,
) -> str:
    """Return the URL of the page on which a Jaeger shows this task.

    That is its computation's trace, with the task marked, as long as this process's client remembers the submission: until
    the last future of it is released. Where each task is a trace of its own (`trace_per_task`, or more wanted keys than
    `max_trace_spans` has room for), and where the submission is not known here, it is a search for the task's key.

    Parameters
    ----------
    future_or_key
        A `distributed.Future`, or a task's key: a string, a number, or a tuple of them.
    jaeger
        Where Jaeger's pages are; a path in front of them, as of a proxy, may follow the host.
    service
        The workers' service name, which a search has to say.
    client
        Whose futures a key is looked up in; the current client by default.

    Raises
    ------
    TypeError
        It is neither a future nor a key.
    ValueError
        `jaeger` is no http or https address.

    Nothing is asked of Jaeger: the spans may still be on their way, and a sampler may have refused them.

    """
    base = _base(jaeger)
    state, key = _found(future_or_key, client)
    runtime = DaskInstrumentor().runtime
    place = runtime.submissions.place(state) if runtime is not None and state is not None else None
    text = runtime.submissions.text(key) if runtime is not None else str(key)
    if place is not None and not place.apart:
        return f"{base}/trace/{place.trace_id}?{urlencode({'uiFind': text})}"
    tags = {names.TASK_KEY: text}
    if place is not None:
        tags[names.COMPUTATION] = place.computation
    query = {"service": service, "tags": json.dumps(tags), "lookback": LOOKBACK}
    return f"{base}/search?{urlencode(query)}"


def _base(jaeger: str) -> str:
    parts = urlsplit(jaeger) if isinstance(jaeger, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{jaeger!r} is not where Jaeger's pages are; give an address such as http://127.0.0.1:16686")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _found(what: Any, client: Any) -> tuple[Any, Any]:
    """What the client holds of it, if anything, and its key."""
    from distributed import Future

    if isinstance(what, Future):
        return what._state, what.key
    if not _is_key(what):
        raise TypeError(f"trace_url wants a Future or a task's key, not {type(what).__name__}")
    return _futures(client).get(what), what


def _is_key(what: Any) -> bool:
    if isinstance(what, tuple):
        return bool(what) and all(map(_is_key, what))
    return isinstance(what, str | int | float) and not isinstance(what, bool)


def _futures(client: Any) -> dict[Any, Any]:
    from distributed import default_client

    if client is None:
        try:
            client = default_client()
        except ValueError:  # there is none
            return {}
    futures: dict[Any, Any] = client.futures
    return futures
