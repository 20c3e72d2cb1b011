"""How a trace context travels: in the comm handshake, in a `get_data` message and its reply, in task annotations.

Nothing that a peer sends is trusted: what is not of the form that we send is as good as absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import context as context_api
from opentelemetry import propagate, trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.context import Context

# The one key of ours, in a handshake dict, a message, a reply and an annotation.
KEY = "otel_worker"
CALLS = 2  # who announces this strips our key from P2P shuffles' and actors' messages, too
GET_DATA = 1  # only from `get_data`
CALLED = ("shuffle_receive", "actor_execute", "actor_attribute")  # the handlers that CALLS stands for
ROLE = "otel_worker_role"  # in a handshake, of who connects
ROLES = ("client", "scheduler")

MAX_FIELDS = 16
MAX_FIELD = 8192  # characters; W3C asks for at least 512 of tracestate and allows 8,192 of baggage
MAX_NS = 10**16  # four months
EMPTY: Context = context_api.Context()

_SPAN_ID = re.compile(r"[0-9a-f]{16}")

TOLD = ("loop", "unspill", "spill", "serialize")


def announcement(version: int = GET_DATA) -> dict[str, Any]:
    """What a listener that strips our key says of itself."""
    return {KEY: version}


def announced(remote_info: Any, version: int = GET_DATA) -> bool:
    told = remote_info.get(KEY) if isinstance(remote_info, Mapping) else None
    return type(told) is int and told >= version  # a bool is none of ours


def carrier(context: Context) -> dict[str, str]:
    """Fill a carrier by the user's own propagators. What no header would hold, such as a baggage of megabytes, stays here."""
    fields: dict[str, str] = {}
    propagate.inject(fields, context)
    return _fields(fields) or {}


def _fields(value: Any) -> dict[str, str] | None:
    if not isinstance(value, Mapping) or len(value) > MAX_FIELDS:
        return None
    return {k: v for k, v in value.items() if _is_word(k) and _is_word(v)}


def _is_word(value: Any) -> bool:
    """What may stand in a header. Propagators percent-encode the rest, and could not pass on what is not ASCII."""
    return isinstance(value, str) and len(value) <= MAX_FIELD and value.isascii()


def extract(value: Any) -> Context | None:
    """Read a carrier; None where it holds no valid span context."""
    fields = _fields(value)
    if not fields:
        return None
    context = propagate.extract(fields, EMPTY)
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def unsampled(context: Context | None) -> bool:
    """Whether a peer's context came along and says that its trace is not recorded."""
    return context is not None and not trace.get_current_span(context).get_span_context().trace_flags.sampled


def role_announcement(role: str) -> dict[str, Any]:
    """What a client or a scheduler says of itself where it connects."""
    return {ROLE: role}


def asker(remote_info: Any, who: Any) -> str:
    """What kind of process asks for data: worker, client, scheduler, or unknown.

    Only workers say `who` they are. An instrumented client or scheduler announces itself. A scheduler without us is known by
    what `Scheduler.__init__` overrides in its handshakes (the common denominator of all that may connect through it).
    """
    if who:
        return "worker"
    told = remote_info if isinstance(remote_info, Mapping) else {}
    if (role := told.get(ROLE)) in ROLES:
        return str(role)
    common = "pickle-protocol" in told and (told["pickle-protocol"], told.get("compression")) == (4, None)
    return "scheduler" if common else "unknown"


# --- annotations -----------------------------------------------------------------------------------------------------


def annotation(context: Context, share: int, computation: str) -> dict[str, Any]:
    """What every task of one submission carries: a context and the worker's share of the trace, in spans."""
    return {"carrier": carrier(context), "share": share, "computation": computation}


def read_annotation(annotations: Any) -> tuple[dict[str, str], int, str] | None:
    """Return (carrier, share, computation) of a task, or None."""
    value = annotations.get(KEY) if isinstance(annotations, Mapping) else None
    if not isinstance(value, Mapping):
        return None
    fields, share, computation = _fields(value.get("carrier")), value.get("share"), value.get("computation")
    if not fields or type(share) is not int or not isinstance(computation, str) or not _SPAN_ID.fullmatch(computation):
        return None
    return fields, max(0, share), computation


# --- requests ----------------------------------------------------------------------------------------------------------


def asked(keys: Any) -> tuple[Any, ...]:
    """The keys that a peer asks for; none where they can't be keys, which Dask refuses by itself."""
    try:
        return tuple(dict.fromkeys(keys))
    except TypeError:
        return ()


def call(context: Context | None, address: str, kind: str, annotations: Any = None) -> dict[str, Any]:
    """What a message carries besides: a context, unless out of budget, who sends it, and to which submission it belongs."""
    told: dict[str, Any] = {"carrier": {} if context is None else carrier(context), "who": address, "kind": kind}
    if isinstance(annotations, Mapping) and KEY in annotations:
        told["annotation"] = annotations[KEY]
    return told


def read_call_annotations(value: Any) -> dict[str, Any] | None:
    """The annotations of the tasks that a message belongs to."""
    told = value.get("annotation") if isinstance(value, Mapping) else None
    return None if told is None else {KEY: told}


def read_call(value: Any) -> tuple[Context | None, str, str]:
    """Return the context, the address, and the kind of who sent a message, as far as it told them."""
    if not isinstance(value, Mapping):
        return None, "", ""
    who, kind = value.get("who"), value.get("kind")
    fields = value.get("carrier")
    return (
        extract(fields) if fields else None,
        str(who) if _is_word(who) else "",
        str(kind) if kind in ("worker", *ROLES) else "",
    )


# --- replies -----------------------------------------------------------------------------------------------------------


class Trailer(dict):  # type: ignore[type-arg]
    """What only the peer knows, read while msgpack packs it: after the data before it was serialized.

    msgpack calls `items()` of a dict's subclass (distributed.protocol.core.dumps packs the message in order).
    """

    def __init__(self, told: Callable[[], Mapping[str, int]]) -> None:
        super().__init__()
        self._told = told

    def items(self) -> Any:
        return self._told().items()

    def __len__(self) -> int:
        return len(TOLD)

    def __iter__(self) -> Iterator[str]:
        return iter(self._told())

    def __reduce__(self) -> Any:
        return dict, (dict(self._told()),)


def is_busy(reply: Any) -> bool:
    """Such a reply says nothing else: the peer has done nothing to tell of."""
    return isinstance(reply, dict) and reply.get("status") == "busy"


def read_trailer(reply: Any) -> dict[str, int] | None:
    """Return ns by name (`TOLD`) from a reply of `get_data`, or None if the peer told nothing that can be believed."""
    value = reply.get(KEY) if isinstance(reply, Mapping) else None
    if isinstance(value, Trailer):
        value = value._told()  # inproc: the object itself arrives
    if not isinstance(value, Mapping):
        return None
    told = {name: value.get(name) for name in TOLD}
    good = all(isinstance(ns, int) and not isinstance(ns, bool) and 0 <= ns < MAX_NS for ns in told.values())
    return told if good else None  # type: ignore[return-value]
