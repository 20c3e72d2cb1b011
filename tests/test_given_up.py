"""Cancellation in every state, closing in the middle, interrupts: each span ends once, and nothing else is different.

The scenarios are those of tests/dask, which `scripts/dask-suite` runs with us and without us; here their spans are looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from distributed import wait
from distributed.utils import CancelledError
from distributed.utils_test import BlockedGetData, inc
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace import Span as OpenSpan

from otel_worker.checks import check
from tests.dask import test_cancelled_state
from tests.faults.tools import cluster, every, use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Client, Scheduler, Worker
    from opentelemetry.context import Context

    from tests.live import Live


def scenarios(module: Any) -> list[Any]:
    """All of its tests that have no parameters."""
    tests = {name[5:]: test for name, test in vars(module).items() if name.startswith("test_")}
    return [pytest.param(test, id=name) for name, test in tests.items() if not hasattr(test, "pytestmark")]


class Balance(SpanProcessor):
    def __init__(self) -> None:
        self.open: Counter[int] = Counter()

    def on_start(self, span: OpenSpan, parent_context: Context | None = None) -> None:
        self.open[span.get_span_context().span_id] += 1

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        self.open[span.context.span_id] -= 1


@pytest.fixture
def balanced(live: Live, caplog: pytest.LogCaptureFixture) -> Iterator[Live]:
    """Afterwards each span has ended once, nothing of ours failed or is left, and OpenTelemetry has no complaint."""
    balance = Balance()
    live.switch.provider.add_span_processor(balance)
    with caplog.at_level(logging.WARNING, "opentelemetry"):
        yield live
    assert [span for span, n in balance.open.items() if n] == []
    assert check(live.spans()) == []
    assert live.switch.failures() == []
    assert [r.getMessage() for r in caplog.records if r.name.startswith(("opentelemetry", "otel_worker"))] == []
    assert live.runtime.submissions.by_future == {}


@pytest.mark.parametrize("scenario", scenarios(test_cancelled_state))
def test_whatever_happens(balanced: Live, scenario: Any):
    scenario()
    assert [
        s.name for s in balanced.spans() if s.operation in ("task", "fetch") and "dask.outcome" not in s.attributes
    ] == []


def test_a_worker_that_closes_with_twenty_fetches_in_flight(balanced: Live):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(BlockedGetData(s.address, nthreads=1)) for _ in range(20)]
            b.state.transfer_incoming_count_limit = 100
            values = [c.submit(inc, i, key=f"inc-{i}", workers=[peer.address]) for i, peer in enumerate(peers)]
            await wait(values)
            wanted = c.submit(use, *values, key="use-1", workers=[b.address])
            await asyncio.gather(*(peer.in_get_data.wait() for peer in peers))
            assert len(b.state.in_flight_workers) == 20
            await asyncio.wait_for(b.close(), 20)
            for peer in peers:
                peer.block_get_data.set()
            wanted.release()

    scenario()
    (task,) = every(balanced, "task use")
    assert task.attributes["dask.outcome"] == "closed"
    assert [s.attributes["dask.outcome"] for s in balanced.spans() if s.operation == "fetch"] == ["closed"] * 20


# --- exceptions that are no exceptions -----------------------------------------------------------------------------------


def raises(kind: type[BaseException]) -> None:
    raise kind


async def cancelled() -> None:
    raise asyncio.CancelledError


def what_becomes(function: Any, *arguments: Any) -> list[Any]:
    """Of a task, of the worker that ran it, and of what comes after it."""
    seen: list[Any] = []

    @cluster(2)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(function, *arguments, key="x-1", workers=[a.address], retries=0)
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(wait(x), 2)
        seen.append(x.status)
        if x.status == "error":
            seen.append(type(await x.exception()))
        seen.append(a.status.name)
        y = c.submit(use, key="use-1", workers=[b.address])
        seen.append(await y)

    with suppress(KeyboardInterrupt, SystemExit):
        scenario()
    return seen


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(raises, (KeyboardInterrupt,)), (raises, (asyncio.CancelledError,)), (raises, (CancelledError,)), (cancelled, ())],
    ids=["KeyboardInterrupt", "asyncio.CancelledError", "CancelledError", "in an async task"],
)
def test_what_a_task_raises_is_what_it_was(
    live: Live, caplog: pytest.LogCaptureFixture, function: Any, arguments: tuple[Any, ...]
):
    with_us = what_becomes(function, *arguments)
    assert live.switch.failures() == []
    live.switch.off()  # an interrupt ends the loop, and no future of its client ever
    assert check(live.spans()) == []
    assert "Failed to detach context" not in caplog.text
    assert what_becomes(function, *arguments) == with_us
    live.switch.on()
