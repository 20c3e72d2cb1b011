"""Jaeger's query API -> spans: OTLP JSON from `/api/v3/traces`, else the older `/api/traces`."""

import http.client
from dataclasses import dataclass
from datetime import datetime, timezone
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from otel_worker.traces.collected import Collected, Full
from otel_worker.traces.otlp import add_cut_document, add_document
from otel_worker.traces.problems import SourceError, count

_TIMEOUT = 60.0  # seconds without a byte
_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Query:
    """Which traces; `now` and `since` in seconds, since the epoch and before now."""

    now: float
    service: str = ""
    since: float = 3600.0
    trace_id: str = ""
    max_traces: int = 1000


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    whole: bool


def add_jaeger(address: str, query: Query, into: Collected) -> None:
    """Raise SourceError where nothing can be read at all."""
    base = address if "://" in address else f"http://{address}"
    try:
        paths = _paths(base, query, into)
        into.overlaps = len(paths) > 1  # a trace comes with each of the services that take part in it
        for path in paths:
            before = into.trace_count
            _add(base, path, query, into)
            _note_limit(into.trace_count - before, query, into)
    except Full:
        return


def _note_limit(traces: int, query: Query, into: Collected) -> None:
    if not query.trace_id and traces >= query.max_traces:
        into.problems.add(f"Jaeger was asked for {query.max_traces:,} traces and gave as many: there may be more")


def _paths(base: str, query: Query, into: Collected) -> list[str]:
    if query.trace_id:
        return [f"traces/{quote(query.trace_id, safe='')}?{urlencode({'raw_traces': 'true'})}"]
    services = [query.service] if query.service else _services(base, into)
    return [f"traces?{urlencode(_search(service, query))}" for service in services]


def _services(base: str, into: Collected) -> list[str]:
    answer = _get(base, "/api/v3/services", into)
    if answer.status == 404:
        answer = _get(base, "/api/services", into)
    try:
        found = msgspec.json.decode(answer.body)
        services = [str(s) for s in (found.get("services") or found.get("data") or ())]
    except (msgspec.MsgspecError, ValueError, AttributeError, TypeError):
        raise SourceError(f"{base} does not answer as a Jaeger does.") from None
    ours = [s for s in services if s.startswith("dask")]
    if not ours:
        raise SourceError(f"{base} knows no service whose name starts with dask; --service NAME chooses another.")
    return ours


def _search(service: str, query: Query) -> dict[str, str]:
    """Raw traces: otherwise Jaeger moves spans to hide clock skew."""
    return {
        "query.service_name": service,
        "query.start_time_min": _rfc3339(query.now - query.since),
        "query.start_time_max": _rfc3339(query.now + 60),
        "query.num_traces": str(query.max_traces),
        "query.raw_traces": "true",
    }


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def _add(base: str, path: str, query: Query, into: Collected) -> None:
    answer = _get(base, f"/api/v3/{path}", into)
    if answer.status == 404 and not _says_no_traces(answer.body):
        answer = _get(base, f"/api/{_older(path, query)}", into)
    if answer.status == 404:
        return
    if answer.status != 200:
        raise SourceError(f"{base} answers {answer.status}: {_excerpt(answer.body)}")
    if answer.whole:
        _add_answer(answer.body, base, into)
    else:
        _add_cut_answer(answer.body, into)


def _older(path: str, query: Query) -> str:
    if query.trace_id:
        return path.partition("?")[0]
    service = dict(parse_qsl(urlsplit(path).query))["query.service_name"]
    start, end = int((query.now - query.since) * 1e6), int((query.now + 60) * 1e6)
    return f"traces?{urlencode({'service': service, 'start': start, 'end': end, 'limit': query.max_traces})}"


def _add_answer(body: bytes, base: str, into: Collected) -> None:
    """One document, or one a line where it was streamed."""
    for line in body.splitlines() or [b""]:
        _add_line(line, base, into)


def _add_cut_answer(body: bytes, into: Collected) -> None:
    *lines, last = body.splitlines() or [b""]
    for line in lines:
        _add_line(line, "", into)
    found = add_cut_document(last, into)
    saved = f"after {len(body):,} bytes; of its last part came {count(found, 'span')}"
    into.problems.add("Jaeger's answer was cut off", saved)


def _add_line(line: bytes, base: str, into: Collected) -> None:
    try:
        add_document(line, into)
    except ValueError as error:
        into.problems.add(f"An answer of {base or 'Jaeger'} is not JSON of traces", str(error))


def _get(base: str, path: str, into: Collected) -> _Answer:
    parts = urlsplit(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=_TIMEOUT)
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers={"Accept": "application/json"})
        return _answer(connection.getresponse(), into.limits.max_document_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"No Jaeger answers at {base}: {error or type(error).__name__}.") from None
    finally:
        connection.close()


def _answer(response: http.client.HTTPResponse, limit: int) -> _Answer:
    chunks, size = [], 0
    try:
        while size < limit and (chunk := response.read(_CHUNK)):
            chunks.append(chunk)
            size += len(chunk)
    except (OSError, http.client.HTTPException):
        return _Answer(response.status, b"".join(chunks), whole=False)
    return _Answer(response.status, b"".join(chunks), whole=size < limit and not response.length)


def _says_no_traces(body: bytes) -> bool:
    """Jaeger's word for an unknown trace; any other 404 means that it has no api_v3."""
    return (b"trace" in body.lower() and b"not found" in body) or b"No traces found" in body


def _excerpt(body: bytes) -> str:
    return body[:200].decode(errors="replace").strip() or "nothing more"
