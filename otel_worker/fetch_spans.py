"""The spans of a fetch, seen from both ends: `fetch` with its parts here, `get_data` with its parts at the peer."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind

from otel_worker import names, waits, wire
from otel_worker.budget import DROPPED, UNSAMPLED
from otel_worker.facts import redacted
from otel_worker.gather_spans import GatherSpans
from otel_worker.spans import GAP, in_seconds, seconds

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

    from otel_worker.facts import Blocked, Fetch, Serve, SpillOp, Task
    from otel_worker.spans import Attributes, Emitter
    from otel_worker.task_spans import TaskSpans

MAX_DEPENDENTS = 1000  # how many are looked at to find the most urgent


class FetchHeld:
    """The spans of one fetch that are real already, and the task below which they stand."""

    __slots__ = ("context", "fetch", "parent", "prefix", "request")

    def __init__(self, fetch: Span, parent: Task | None, prefix: str) -> None:
        self.fetch = fetch
        self.context = trace.set_span_in_context(fetch, wire.EMPTY)
        self.parent = parent
        self.prefix = prefix
        self.request: Span | None = None


class FetchSpans:
    """Observes fetches and what this worker serves to others."""

    def __init__(self, emitter: Emitter, tasks: TaskSpans) -> None:
        self._emit = emitter
        self._tasks = tasks
        self.gathers = GatherSpans(emitter)

    # --- a fetch: decided when its request is sent -------------------------------------------------------------------------

    def request_context(self, fetch: Fetch) -> Context | None:
        """Start `fetch` and `request`; the context for the peer, or None out of budget."""
        held = self._start_fetch(fetch)
        if held is None:
            return None
        context = held.context
        if not held.fetch.is_recording():
            return context  # the sampler refused it: the peer's half is not to be recorded either
        attributes = {**self._about(fetch), **_address(fetch.peer)}
        held.request = self._emit.start(
            names.REQUEST, context, fetch.sent + fetch.offset, attributes, kind=SpanKind.CLIENT
        )
        return trace.set_span_in_context(held.request, wire.EMPTY)

    def _about(self, fetch: Fetch) -> Attributes:
        return {names.TASK_PREFIX: self._prefix(fetch), names.PEER_ADDRESS: redacted(fetch.peer)}

    @staticmethod
    def _waiting(fetch: Fetch) -> list[Task]:
        """The tasks that wait for what this request brings, each once."""
        seen: dict[Task, None] = {}
        for want in fetch.wants:
            for task in want.waiters:
                if not task.wait_ended or (fetch.finished and task.wait_ended >= fetch.finished):
                    seen[task] = None
                if len(seen) >= MAX_DEPENDENTS:
                    return list(seen)
        return list(seen)

    def _prefix(self, fetch: Fetch) -> str:
        if fetch.span is not None:
            held: FetchHeld = fetch.span
            return held.prefix
        waiting = self._waiting(fetch)
        return min(waiting, key=attrgetter("urgency")).prefix if waiting else names.REPLICA

    def _start_fetch(self, fetch: Fetch) -> FetchHeld | None:
        waiting = self._waiting(fetch)
        # Who joined while it connected can't enclose it: it is linked at the end.
        parent = min(
            (task for task in waiting if task.waiting <= fetch.issued), key=attrgetter("urgency"), default=None
        )
        if parent is not None and (refused := self._tasks.refused(parent)) is not None:
            self._emit.budget.count(UNSAMPLED)
            fetch.span = unsampled = FetchHeld(refused, parent, parent.prefix)
            return unsampled
        if not self._emit.afford(2):
            self._emit.budget.count(DROPPED, 2)
            return None
        above = self._tasks.waiting_span(parent) if parent is not None else None
        context = wire.EMPTY if above is None else trace.set_span_in_context(above, wire.EMPTY)
        if fetch.gather is not None:
            context = self.gathers.context(fetch.gather)
        begin = min(fetch.wished, default=fetch.issued) or fetch.issued
        if parent is not None and above is not None:
            begin = max(begin, parent.waiting)
            fetch.offset = parent.offset
        prefix = parent.prefix if parent is not None else self._prefix(fetch)
        attributes = self._describe(fetch, waiting, prefix)
        span = self._emit.start(f"{names.FETCH} {prefix}", context, begin + fetch.offset, attributes)
        fetch.span = FetchHeld(span, parent if above is not None else None, prefix)
        held: FetchHeld = fetch.span
        return held

    def _describe(self, fetch: Fetch, waiting: list[Task], prefix: str) -> Attributes:
        keys = self._emit.texts(fetch.keys)
        reason = names.REASON_GATHER if fetch.gather is not None else "dependency" if waiting else "replica"
        return {
            names.TASK_PREFIX: prefix,
            names.PEER_ADDRESS: redacted(fetch.peer),
            names.FETCH_KEYS: keys,
            names.FETCH_KEY_COUNT: len(fetch.keys),
            names.FETCH_NBYTES: fetch.nbytes,
            names.FETCH_REASON: reason,
        }

    # --- a fetch: its end ----------------------------------------------------------------------------------------------------

    def fetch_ended(self, fetch: Fetch) -> None:
        if fetch.span is None and not fetch.sent:
            self._start_fetch(fetch)  # it failed before there was a request
        held: FetchHeld | None = fetch.span
        if held is None:
            return
        span = held.fetch
        if span.is_recording():
            context = trace.set_span_in_context(span, wire.EMPTY)
            self._queued(fetch, held, context)
            self._connection(fetch, context)
            self._end_request(fetch, held)
            self._deserialize(fetch, context)
            self._spills(fetch, context)
            self._conclude(fetch, held)
        span.end(max(fetch.issued, fetch.stored - GAP) + fetch.offset)

    def _phase(self, fetch: Fetch, name: str, context: Context, begin: int, end: int, extra: Attributes) -> None:
        if self._emit.long_enough(begin, end) and self._emit.afford(1):
            attributes = {names.TASK_PREFIX: self._prefix(fetch), **extra}
            self._emit.phase(name, context, begin + fetch.offset, end + fetch.offset, attributes)

    def _queued(self, fetch: Fetch, held: FetchHeld, context: Context) -> None:
        begin = min(fetch.wished, default=0)
        if held.parent is not None:
            begin = max(begin, held.parent.waiting)
        self._phase(fetch, names.FETCH_QUEUED, context, begin, fetch.issued, self._reasons(fetch))

    @staticmethod
    def _reasons(fetch: Fetch) -> Attributes:
        """Why the keys of this attempt were not requested earlier, seconds summed over its keys."""
        sums = waits.total(
            part.shares
            for want, wished in zip(fetch.wants, fetch.wished, strict=True)
            for part in want.parts
            if part.start >= wished and part.end <= fetch.issued
        )
        return in_seconds(names.FETCH_TIME_PREFIX, sums)

    def _connection(self, fetch: Fetch, context: Context) -> None:
        if fetch.reused or not fetch.connecting:
            return
        end = fetch.sent or fetch.finished
        if not self._emit.long_enough(fetch.connecting, end) or not self._emit.afford(1):
            return
        about = {**self._about(fetch), **_address(fetch.peer), names.CONNECT_ATTEMPTS: fetch.attempts}
        span = self._emit.start(names.CONNECT, context, fetch.connecting + fetch.offset, about)
        if not fetch.sent:
            self._emit.fail(span, fetch.failure)
        below = trace.set_span_in_context(span, wire.EMPTY)
        for name, begin, until in (
            (names.CONNECT_POOL, fetch.connecting, fetch.dialling or end),
            (names.CONNECT_DIAL, fetch.dialling, fetch.handshaking or end),
            (names.CONNECT_HANDSHAKE, fetch.handshaking, end),
        ):
            self._phase(fetch, name, below, begin, until, {})
        span.end(max(fetch.connecting, end - GAP) + fetch.offset)

    def _end_request(self, fetch: Fetch, held: FetchHeld) -> None:
        if (request := held.request) is None:
            return
        end = fetch.received or fetch.finished
        parts = waits.split_request(fetch, end - fetch.sent)
        attributes: Attributes = {
            names.PEER_INSTRUMENTED: fetch.peer_known,
            names.REQUEST_NETWORK: seconds(parts.get(names.NETWORK, 0)),
            names.REQUEST_LOCAL_LOOP: seconds(parts.get(names.LOOP, 0)),
        }
        if fetch.first_byte:
            attributes[names.REQUEST_FIRST_BYTE] = seconds(fetch.first_byte - fetch.sent)
            attributes[names.REQUEST_BODY] = seconds(end - fetch.first_byte)
        if fetch.peer_known:
            for name, activity in PEER_PARTS.items():
                attributes[name] = seconds(parts.get(activity, 0))
        request.set_attributes(attributes)
        if not fetch.received and fetch.failure is not None:
            self._emit.fail(request, fetch.failure)
        request.end(max(fetch.sent, end - GAP) + fetch.offset)

    def _deserialize(self, fetch: Fetch, context: Context) -> None:
        queue = fetch.offloaded - fetch.received if fetch.offloaded else 0
        end = fetch.deserialized or fetch.finished
        if fetch.received:
            extra = {names.OFFLOAD_QUEUE: seconds(queue)}
            self._phase(fetch, names.FETCH_DESERIALIZE, context, fetch.received, end, extra)

    def _spills(self, fetch: Fetch, context: Context) -> None:
        attributes = {
            names.TASK_PREFIX: self._prefix(fetch),
            names.SPILL_TRIGGER_KEY: ", ".join(self._emit.texts(fetch.keys)),
            names.SPILL_CAUSE: "store",
        }
        self._emit.spill_spans(fetch.spills or (), context, attributes)

    def _conclude(self, fetch: Fetch, held: FetchHeld) -> None:
        span, waiting = held.fetch, self._waiting(fetch)
        wished = [max(0, fetch.issued - at) for at in fetch.wished]
        attributes: Attributes = {
            names.OUTCOME: fetch.outcome,
            names.FETCH_MISSING_KEYS: fetch.missing_keys,
            names.FETCH_BUNDLE_END: "bytes" if fetch.left_over else "all_keys",
            names.FETCH_PEERS_BUSY: fetch.peers_busy,
            names.FETCH_PEERS_IN_FLIGHT: fetch.peers_in_flight,
            names.CONNECT_REUSED: fetch.reused,
            names.FETCH_DEPENDENTS: self._emit.texts(task.key for task in waiting),
            names.FETCH_DEPENDENT_COUNT: len(waiting),
            **in_seconds(names.FETCH_TIME_PREFIX, waits.fetch_sums(fetch, fetch.stored)),
        }
        if wished:
            attributes[names.FETCH_QUEUED_MIN] = seconds(min(wished))
            attributes[names.FETCH_QUEUED_MEAN] = seconds(sum(wished)) / len(wished)
            attributes[names.FETCH_QUEUED_MAX] = seconds(max(wished))
        span.set_attributes(attributes)
        for context in self._dependents(waiting, held.parent):
            span.add_link(context)
        if fetch.failure is not None:
            self._emit.fail(span, fetch.failure)

    def _dependents(self, waiting: list[Task], parent: Task | None) -> list[SpanContext]:
        """The tasks to link to: every other one that waited when the data arrived, the longest wait first."""
        others = sorted((task for task in waiting if task is not parent), key=lambda task: task.waiting)
        spans = (self._tasks.task_span(task) for task in others[: self._emit.settings.max_links])
        return [span.get_span_context() for span in spans if span is not None and span.is_recording()]

    # --- serving ---------------------------------------------------------------------------------------------------------------

    def serve_ended(self, serve: Serve) -> None:
        remote: Context | None = serve.remote
        if wire.unsampled(remote):
            self._emit.budget.count(UNSAMPLED)
            return
        if not self._emit.afford(1, urgent=serve.failure is not None):
            self._emit.budget.count(DROPPED)
            return
        links = [Link(self._tasks.produced[key]) for key in serve.keys if key in self._tasks.produced]
        span = self._emit.start(
            names.GET_DATA,
            remote or wire.EMPTY,
            serve.begun + serve.offset,
            self._describe_serve(serve),
            kind=SpanKind.SERVER,
            links=links[: self._emit.settings.max_links],
        )
        if span.is_recording():
            self._serve_parts(serve, span)
        end = serve.drained or serve.written or serve.ended
        span.end(end + serve.offset)

    def _describe_serve(self, serve: Serve) -> Attributes:
        replied = serve.drained or serve.written
        attributes: Attributes = {
            names.PEER_ADDRESS: redacted(serve.peer),
            names.PEER_KIND: serve.peer_kind,
            names.OUTCOME: serve.outcome,
            names.FETCH_KEYS: self._emit.texts(serve.keys),
            names.FETCH_KEY_COUNT: len(serve.keys),
            names.FETCH_NBYTES: serve.nbytes,
            names.LOOP_DELAY: seconds(serve.loop),
        }
        if serve.acknowledged and replied:
            attributes[names.GET_DATA_ACK] = seconds(serve.acknowledged - replied)
        return attributes

    def _serve_parts(self, serve: Serve, span: Span) -> None:
        context = trace.set_span_in_context(span, wire.EMPTY)
        for op in serve.spills or ():
            self._emit.spill_spans((op,), context, self._serve_cause(serve, op))
        queue = seconds(serve.offloaded - serve.writing) if serve.offloaded else 0.0
        serialized = serve.serialized or serve.written
        for name, begin, end, extra in (
            (names.GET_DATA_SERIALIZE, serve.writing, serialized, {names.OFFLOAD_QUEUE: queue}),
            (names.GET_DATA_SEND, serialized, serve.drained or serve.written, {}),
        ):
            # Sending has no length where the end of serializing is unknown; Jaeger would make it 1 ns longer than its parent.
            if end > begin and self._emit.long_enough(begin, end) and self._emit.afford(1):
                self._emit.phase(name, context, begin + serve.offset, end + serve.offset, extra)
        if serve.failure is not None:
            self._emit.fail(span, serve.failure)

    def _serve_cause(self, serve: Serve, op: SpillOp) -> Attributes:
        trigger = self._emit.text(op.key) if op.reading else ", ".join(self._emit.texts(serve.keys))
        return {names.SPILL_TRIGGER_KEY: trigger, names.SPILL_CAUSE: "get_data"}

    # --- the event loop ----------------------------------------------------------------------------------------------------------

    def loop_blocked(self, blocked: Blocked) -> None:
        """A root: whatever waited meanwhile says so in its own parts."""
        if not self._emit.afford(1):
            self._emit.budget.count(DROPPED)
            return
        attributes: Attributes = {names.LOOP_CAUSE: blocked.cause}
        if blocked.key is not None:
            attributes[names.LOOP_BLOCKED_BY] = self._emit.text(blocked.key)
        span = self._emit.start(names.LOOP_BLOCKED, wire.EMPTY, blocked.begun + blocked.offset, attributes)
        span.end(blocked.ended + blocked.offset)

    # --- the memory monitor ------------------------------------------------------------------------------------------------------

    def spill_ended(self, op: SpillOp) -> None:
        """A spill that no task, fetch or request caused is a root: the memory monitor's."""
        if op.cause is None:
            self._emit.spill_spans((op,), wire.EMPTY, {names.SPILL_CAUSE: "monitor"})


PEER_PARTS = {
    names.REQUEST_PEER_LOOP: names.PEER_LOOP,
    names.REQUEST_PEER_UNSPILL: names.PEER_UNSPILL,
    names.REQUEST_PEER_SPILL: names.PEER_SPILL,
    names.REQUEST_PEER_SERIALIZE: names.PEER_SERIALIZE,
}


def _address(peer: str) -> Attributes:
    """`server.*` and `network.peer.*` of a peer's address such as tcp://10.0.0.1:40331."""
    host, _, port = redacted(peer).rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        return {}
    host = host.strip("[]")
    return {
        names.SERVER_ADDRESS: host,
        names.SERVER_PORT: int(port),
        names.NETWORK_PEER_ADDRESS: host,
        names.NETWORK_PEER_PORT: int(port),
    }
