"""Nothing that a peer or a user sends as ours is trusted: garbage loses its own span, and changes no result."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import dask
import msgpack  # type: ignore[import-untyped,unused-ignore]
import pytest
from dask.utils import key_split
from distributed import Client, Scheduler, Worker, wait
from distributed.core import connect, send_recv
from distributed.protocol.core import dumps, loads
from distributed.utils_test import gen_cluster, inc
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry import context as context_api
from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_worker import wire
from otel_worker.comm_proxy import CommProxy
from otel_worker.facts import MAX_PREFIX, readable
from otel_worker.runtime import _message
from tests.live import Live, assert_dask_is_its_own_again

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COMPUTATION = "b7ad6b7169203331"

fuzz = settings(deadline=None, max_examples=150)
text = st.text(st.characters(codec=None), max_size=60)  # surrogates too
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary(max_size=40)
garbage = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text | st.integers(), inner, max_size=4),
    max_leaves=12,
)
HEADERS = ("traceparent", "tracestate", "baggage")
carriers = garbage | st.dictionaries(st.sampled_from(HEADERS) | text, text | garbage, max_size=5)


# --- the handshake -----------------------------------------------------------------------------------------------------


@fuzz
@given(garbage | st.dictionaries(st.just(wire.KEY), garbage))
@example({wire.KEY: True})
@example({wire.KEY: math.nan})
@example({wire.KEY: "1"})
@example({wire.KEY: -1})
def test_only_a_version_announces(info: Any):
    """Who is wrongly believed to know our key would be sent it, and the task would hang."""
    version = info.get(wire.KEY) if isinstance(info, dict) else None
    assert wire.announced(info) is (type(version) is int and version >= 1)


def test_we_announce_ourselves():
    assert wire.announced({"compression": None, **wire.announcement()})


# --- carriers ----------------------------------------------------------------------------------------------------------


@fuzz
@given(carriers)
@example({"traceparent": TRACEPARENT, "baggage": "a=\ud800", "tracestate": "\x00=\n"})
def test_a_carrier_is_read_or_is_nothing(value: Any):
    context = wire.extract(value)
    if context is not None:
        assert trace.get_current_span(context).get_span_context().is_valid
        assert all(len(name) + len(field) < 20_000 for name, field in wire.carrier(context).items())


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00",
        TRACEPARENT[:-1],
        TRACEPARENT.upper().replace("0", "g"),
        "ff" + TRACEPARENT[2:],
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        TRACEPARENT * 100_000,
        "00-" + "a" * 10_000_000,
        "\x00",
        TRACEPARENT + "\n",
    ],
    ids=range(11),
)
def test_a_malformed_traceparent_is_nothing(traceparent: str):
    context = wire.extract({"traceparent": traceparent})
    assert context is None or trace.get_current_span(context).get_span_context().is_valid
    assert context is None or traceparent.strip() == TRACEPARENT


def test_megabytes_of_baggage_do_not_travel():
    """And lose nothing but themselves."""
    span = trace.NonRecordingSpan(_span_context())
    context = baggage.set_baggage("large", "x" * 3_000_000, trace.set_span_in_context(span, wire.EMPTY))
    fields = wire.carrier(context)
    assert sum(map(len, fields.values())) < 1000
    assert fields["traceparent"] == TRACEPARENT
    read = wire.extract({"traceparent": TRACEPARENT, "baggage": "a=" + "x" * 3_000_000})
    assert read is not None
    assert baggage.get_all(read) == {}


def test_small_baggage_travels():
    span = trace.NonRecordingSpan(_span_context())
    context = baggage.set_baggage("user", "ünï", trace.set_span_in_context(span, wire.EMPTY))
    read = wire.extract(wire.carrier(context))
    assert read is not None
    assert baggage.get_all(read) == {"user": "ünï"}


def _span_context() -> trace.SpanContext:
    read = wire.extract({"traceparent": TRACEPARENT})
    assert read is not None
    return trace.get_current_span(read).get_span_context()


# --- annotations -------------------------------------------------------------------------------------------------------

GOOD = {"carrier": {"traceparent": TRACEPARENT}, "share": 100, "computation": COMPUTATION}


@fuzz
@given(garbage | st.fixed_dictionaries({"carrier": carriers, "share": garbage, "computation": garbage}))
@example({**GOOD, "share": -5})
@example({**GOOD, "share": True})
@example({**GOOD, "share": 10**30})
@example({**GOOD, "computation": "\ud800"})
@example({**GOOD, "computation": "x" * 10_000})
def test_an_annotation_is_read_or_is_nothing(value: Any):
    read = wire.read_annotation({"priority": 1, wire.KEY: value})
    if read is not None:
        fields, share, computation = read
        assert all(isinstance(word, str) for pair in fields.items() for word in pair)
        assert type(share) is int
        assert share >= 0
        assert int(computation, 16) >= 0
        assert len(computation) == 16


@pytest.mark.parametrize("annotations", [None, {}, [], "otel_worker", {wire.KEY: None}, {"otel": 1}])
def test_annotations_of_others_are_nothing(annotations: Any):
    assert wire.read_annotation(annotations) is None


def test_what_we_annotate_is_read():
    context = wire.extract({"traceparent": TRACEPARENT})
    assert context is not None
    read = wire.read_annotation({wire.KEY: wire.annotation(context, 7, COMPUTATION)})
    assert read == ({"traceparent": TRACEPARENT}, 7, COMPUTATION)


# --- calls -------------------------------------------------------------------------------------------------------------

calls = garbage | st.dictionaries(st.sampled_from(("carrier", "who", "kind", "annotation")), carriers | garbage)


@fuzz
@given(calls)
@example({"carrier": {}, "who": "tcp://\ud800", "kind": "king", "annotation": []})
def test_a_call_that_pretends_to_be_ours(told: Any):
    context, who, kind = wire.read_call(told)
    assert context is None or trace.get_current_span(context).get_span_context().is_valid
    assert who.isascii()
    assert len(who) <= wire.MAX_FIELD
    assert kind in ("", "worker", "client", "scheduler")
    assert wire.read_annotation(wire.read_call_annotations(told)) is None or told["annotation"]


def test_a_call_is_read_as_it_was_sent():
    annotation = {wire.KEY: {"carrier": {}, "share": 1, "computation": "0" * 16}}
    told = wire.call(None, "tcp://a:1", "worker", annotation)
    assert wire.read_call(told) == (None, "tcp://a:1", "worker")
    assert wire.read_call_annotations(told) == annotation


# --- replies -------------------------------------------------------------------------------------------------------------

TOLD = {"loop": 1, "unspill": 2, "spill": 3, "serialize": 4}


@fuzz
@given(garbage | st.fixed_dictionaries(dict.fromkeys(wire.TOLD, garbage)))
@example({**TOLD, "loop": -1})
@example({**TOLD, "loop": math.nan})
@example({**TOLD, "loop": math.inf})
@example({**TOLD, "loop": "5"})
@example({**TOLD, "loop": True})
@example({**TOLD, "loop": 2**63})
@example(dict.fromkeys(wire.TOLD, 1.5))
def test_a_trailer_is_believed_or_is_nothing(value: Any):
    told = wire.read_trailer({"status": "OK", wire.KEY: value})
    if told is not None:
        assert set(told) == set(wire.TOLD)
        assert all(type(ns) is int and 0 <= ns < wire.MAX_NS for ns in told.values())


@pytest.mark.parametrize("reply", [None, [], "busy", {"status": "busy"}, {wire.KEY: None}])
def test_a_reply_without_a_trailer(reply: Any):
    assert wire.read_trailer(reply) is None


def test_a_trailer_is_packed_after_the_data():
    """So it can tell how long serializing took."""
    order = []

    class Data(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            order.append("data")
            return super().items()

    def tell() -> dict[str, int]:
        order.append("trailer")
        return TOLD

    packed = msgpack.packb({"status": "OK", "data": Data(x=1), wire.KEY: wire.Trailer(tell)})
    assert order == ["data", "trailer"]
    assert msgpack.unpackb(packed) == {"status": "OK", "data": {"x": 1}, wire.KEY: TOLD}


def test_a_trailer_passes_through_dasks_protocol():
    frames = [bytes(frame) for frame in dumps({"status": "OK", wire.KEY: wire.Trailer(lambda: TOLD)})]
    reply = loads(frames)
    assert type(reply[wire.KEY]) is dict
    assert wire.read_trailer(reply) == TOLD


def test_a_trailer_that_was_not_packed():
    """Over inproc the object itself arrives."""
    assert wire.read_trailer({wire.KEY: wire.Trailer(lambda: TOLD)}) == TOLD


# --- on a real cluster -----------------------------------------------------------------------------------------------------

cluster = gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)

TRAILERS: list[Any] = [
    None,
    "seconds",
    -1,
    {"loop": -1, "unspill": 0, "spill": 0, "serialize": 0},
    {"loop": math.nan, "unspill": math.inf, "spill": "3", "serialize": None},
    {"loop": 2**63, "unspill": 0, "spill": 0, "serialize": 0},
    {"loop": True, "unspill": 1},
    {f"field-{i}": i for i in range(10_000)},
    [[[]]],
]


def test_peers_that_reply_garbage(live: Live, monkeypatch: pytest.MonkeyPatch):
    left = iter(TRAILERS)
    write = CommProxy.write

    async def write_garbage(self: CommProxy, msg: Any, *args: Any, **kwargs: Any) -> Any:
        if self._asked:
            msg[wire.KEY] = next(left)
        return await write(self, msg, *args, **kwargs)

    monkeypatch.setattr(CommProxy, "write", write_garbage)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        for i in range(len(TRAILERS)):
            x = c.submit(inc, i, key=f"x-{i}", workers=[a.address])
            assert await c.submit(inc, x, key=f"y-{i}", workers=[b.address]) == i + 2

    scenario()
    live.check()
    requests = [span for span in live.spans() if span.name == "request"]
    assert [span.attributes["dask.peer.instrumented"] for span in requests] == [False] * len(TRAILERS)


ANNOTATIONS = [
    None,
    "garbage",
    5,
    [1, 2],
    {"carrier": None, "share": None, "computation": None},
    {"carrier": {"traceparent": "nonsense"}, "share": 5, "computation": "x"},
    {"carrier": {"traceparent": TRACEPARENT, "baggage": "a=é"}, "share": -1, "computation": COMPUTATION},
    {"carrier": {"traceparent": TRACEPARENT}, "share": 5, "computation": "é" * 16},
    {"carrier": {"traceparent": TRACEPARENT, "baggage": "x" * 2_000_000}, "share": 5, "computation": COMPUTATION},
    {"carrier": {f"field-{i}": "x" for i in range(10_000)}, "share": 2**62, "computation": COMPUTATION},
]


def test_garbage_annotations(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        for i, value in enumerate(ANNOTATIONS):
            with suppress_instrumentation(), dask.annotate(otel_worker=value):
                x = c.submit(inc, i, key=f"x-{i}", workers=[a.address])
                y = c.submit(nested, x, key=f"y-{i}", workers=[b.address])
            assert await y == i + 2

    scenario()
    assert live.switch.failures() == []
    for i in range(len(ANNOTATIONS)):
        assert live.find("task y", f"y-{i}").attributes["dask.outcome"] == "memory"


def nested(x: int) -> int:
    """A task that asks for the current context, as a user's own instrumentation would."""
    wire.carrier(context_api.get_current())
    return x + 1


KEYS = [
    "line\nbreak-1",
    "nul\x00-\x00",
    "k" * 1_000_000,
    "p-" + "k" * 1_000_000,
    ("tuple", 0, ("deep", 1.5)),
    ("t" * 100_000, 1),
    "<script>alert(1)</script>",
    "ünï-cødé-😀",
    5,
    1.5,
    b"bytes",
    "",
    (("nested", 1), 2),
]


async def _result(c: Client, a: Worker, b: Worker, key: Any) -> Any:
    """What becomes of a key: a result, or the kind of error."""
    try:
        x = c.submit(inc, 1, key=key, workers=[a.address])
        return await asyncio.wait_for(c.submit(inc, x, key="y", workers=[b.address]), 20)
    except Exception as error:
        return type(error)


def test_odd_keys(live: Live):
    """What Dask makes of a key is the same with us, and what is exported is sound."""
    results = []

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        results.extend([await _result(c, a, b, key) for key in KEYS])

    scenario()
    live.check()
    _assert_bounded(live)
    live.switch.off()
    assert_dask_is_its_own_again()
    scenario()
    assert results[: len(KEYS)] == results[len(KEYS) :]


@pytest.mark.parametrize("key", ["lone \ud800 surrogate-1", "\ud800", ("\ud800", 1)], ids=range(3))
def test_surrogates_in_keys(key: Any):
    """Dask's protocol refuses them, so none comes from a peer; a worker's own state machine knows no such limit."""
    with pytest.raises(UnicodeEncodeError):
        dumps({"key": key})
    assert readable(key_split(key), MAX_PREFIX).encode()
    assert readable(str(key), 10).encode()


def _assert_bounded(live: Live):
    """All text is valid UTF-8 (`spans()` has encoded it) and short."""
    texts = [text for span in live.spans() for text in (span.name, *span.attributes.values())]
    assert texts
    assert max(len(text) for text in map(str, texts)) < 12_000


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def raises(kind: Any, *args: Any) -> None:
    raise kind(*args)


@pytest.mark.parametrize(
    "args", [(ValueError, "\udcff from a file's name"), (SilentError,), (ValueError, "x" * 3_000_000)], ids=range(3)
)
def test_odd_exceptions(live: Live, args: Any):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(raises, *args, key="x", workers=[a.address])
        await wait(x)
        assert x.status == "error"

    scenario()
    live.check()
    _assert_bounded(live)
    assert live.find("task x").status == "error"


def test_an_error_without_words():
    assert _message(SilentError()) == ""
    assert _message(ValueError("\udcff")) == "?"


MESSAGES: list[dict[str, Any]] = [
    {"who": 12345},
    {"who": ["a", "list"]},
    {"who": "no address at all"},
    {"who": "tcp://user:secret@127.0.0.1:1"},
    {"keys": "x"},
    {"keys": [{"un": "hashable"}]},
    {"keys": 5},
    {"keys": []},
    {"otel_worker": "garbage"},
    {"otel_worker": {"traceparent": TRACEPARENT + "é"}},
    {"otel_worker": {"traceparent": "x" * 1_000_000}},
    {"otel_worker": {}},
]


def test_requests_that_pretend_to_be_ours(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(inc, 1, key="x", workers=[a.address])
        await wait(x)
        for message in MESSAGES:
            comm = await connect(a.address)
            with contextlib.suppress(TypeError):
                await send_recv(comm, op="get_data", **{"keys": ["x"], "who": b.address, **message})
                await comm.write("OK")
            await comm.close()
        assert await c.submit(inc, x, key="y", workers=[b.address]) == 3

    scenario()
    live.check()
    _assert_bounded(live)
    assert "secret" not in str([span.attributes for span in live.spans()])
    assert sum(span.name == "get_data" for span in live.spans()) >= len(MESSAGES)
