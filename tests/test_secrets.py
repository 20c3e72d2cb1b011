"""What must not leave does not leave: everything that is exported, and logged, is searched for a secret."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

import dask
import pytest
from distributed import Security, wait
from distributed.core import connect, send_recv
from distributed.utils_test import gen_cluster
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_worker.answers import opened
from otel_worker.facts import hashed, redacted
from otel_worker.testing import Switch
from tests.faults.tools import MEGABYTE, SPILLS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Client, Scheduler, Worker

SECRET = "hunter2"


class Held:
    """A value that holds the secret and is large enough to be spilled."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def __sizeof__(self) -> int:
        return 4 * MEGABYTE

    def __repr__(self) -> str:
        return f"Held({self.secret})"


def make(secret: str, *_: Any, **__: Any) -> Held:
    return Held(secret)


def read(*values: Held, password: str = "") -> int:
    return len(values)


class RefusedError(Exception):
    def __reduce__(self) -> Any:
        return RefusedError, self.args


def refuse(secret: str) -> None:
    raise RefusedError(f"{secret} is wrong")


@pytest.fixture
def switch() -> Iterator[Switch]:
    held = Switch()
    yield held
    failures = held.failures()
    held.off()
    assert failures == []


def work(switch: Switch, caplog: pytest.LogCaptureFixture, name: str = "value", **settings: Any) -> str:
    """Values, arguments, environment, an error, credentials: transferred, spilled, refused. All that left of it."""
    reader = InMemoryMetricReader()
    switch.on(meter_provider=MeterProvider([reader], shutdown_on_exit=False), stuck_after=0.05, **settings)
    opens: list[str] = []
    metrics: list[str] = []

    @gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)] * 2,
        config=SPILLS,
        worker_kwargs={"memory_limit": 10 * MEGABYTE},
        security=Security(require_encryption=False, tls_client_key=f"{SECRET}.pem"),
    )
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        with dask.annotate(password=SECRET):
            values = [
                c.submit(make, SECRET, token=SECRET, key=("make", name, i), workers=[a.address]) for i in (1, 2, 3)
            ]
            await wait(values)
        total = c.submit(read, *values, password=SECRET, key=("read", name, 1), workers=[b.address])
        failed = c.submit(refuse, SECRET, key=("refuse", name))
        await wait([total, failed])
        comm = await connect(a.address)
        await send_recv(comm, op="get_data", keys=[("make", name, 1)], who=f"tcp://user:{SECRET}@127.0.0.1:1")
        await comm.write("OK")
        await comm.close()
        runtime = switch.instrumentor.runtime
        assert runtime is not None
        running = c.submit(asyncio.sleep, 0.3, key=("sleep", name))
        await asyncio.sleep(0.15)
        opens.extend(str(opened(r, r.last, 10, runtime.spans[r].emitter.text)) for r in runtime.by_worker.values())
        await running
        data = reader.get_metrics_data()
        assert data is not None
        metrics.append(data.to_json())

    with caplog.at_level(logging.INFO, "otel_worker"):
        scenario()
    spans = [span.to_json() for span in switch.exported.finished]
    logged = [record.getMessage() for record in caplog.records if record.name == "otel_worker"]
    found = "\n".join((*spans, *metrics, *logged, *opens))
    for part in ("fetch read", "spill", "get_data", "task refuse", "dask.spill.io", "service.name", "sleep"):
        assert part in found, part
    return found


def test_no_argument_value_variable_or_credential_leaves(
    switch: Switch, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DATABASE_PASSWORD", SECRET)
    monkeypatch.setenv("DASK_TOKEN", SECRET)
    found = work(switch, caplog, capture_exceptions="type")
    assert SECRET not in found
    assert "RefusedError" in found


def test_by_default_an_exceptions_message_leaves_and_its_stacktrace_does_not(
    switch: Switch, caplog: pytest.LogCaptureFixture
):
    found = work(switch, caplog)
    lines = [line for line in found.splitlines() if SECRET in line]
    assert lines
    assert all("is wrong" in line for line in lines)
    assert "exception.stacktrace" not in found


# --- keys that are hashed ----------------------------------------------------------------------------------------------


def test_with_hash_keys_no_key_leaves(switch: Switch, caplog: pytest.LogCaptureFixture):
    """Prefixes stay; what is told of one key in several places can still be found together."""
    found = work(switch, caplog, name=SECRET, capture_exceptions="type", hash_keys=True)
    assert SECRET not in found
    spans = switch.exported.finished
    keys = {str(span.attributes["dask.task.key"]) for span in spans if span.name == "task make" and span.attributes}
    assert all(re.fullmatch(r"make-[0-9a-f]{16}", key) for key in keys)
    assert len(keys) == 3
    asked = [span.attributes["dask.fetch.keys"] for span in spans if span.name == "fetch read" and span.attributes]
    assert {key for some in asked for key in some} <= keys  # type: ignore[union-attr]


@given(st.text(st.characters(codec=None), max_size=300), st.text(st.characters(codec=None), max_size=30))
def test_a_hash_is_short_and_the_same_each_time(key: str, prefix: str):
    found = hashed(key, prefix)
    assert found == hashed(key, prefix)
    assert re.fullmatch(r"[0-9a-f]{16}", found[-16:])
    assert found.encode()
    assert len(found) <= len(prefix) + 17


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
        ("tls://user:secret@host:1", "tls://host:1"),
        ("tls://a@b:c@host:1", "tls://host:1"),
        ("user:secret@host", "host"),
        ("", ""),
        ("inproc://1/2/3", "inproc://1/2/3"),
    ],
)
def test_credentials_in_an_address(address: str, expected: str):
    assert redacted(address) == expected
