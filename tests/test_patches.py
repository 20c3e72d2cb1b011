"""The table of patches: each target is there as the hooks read it, and undoing leaves no mark, whatever happened between."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, Scheduler, Worker
from distributed.spill import AnyKeyFile
from distributed.utils_test import gen_cluster, inc

from otel_worker import hooks
from otel_worker import instrumentor as instrumentor_module
from otel_worker.guard import Guard
from otel_worker.hooks import TABLE, Hooks
from otel_worker.patches import Patch, Patches
from otel_worker.testing import Switch
from tests.live import assert_dask_is_its_own_again, targets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.target)


@pytest.fixture
def switch() -> Iterator[Switch]:
    assert_dask_is_its_own_again()
    held = Switch()
    try:
        yield held
    finally:
        held.off()
    assert_dask_is_its_own_again()


SPILL = {f"distributed.worker.memory.{name}": at for name, at in (("target", 0.6), ("spill", False), ("pause", False))}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, worker_kwargs={"memory_limit": 20_000}, config=SPILL)
async def small_work(c: Client, s: Scheduler, a: Worker, b: Worker):
    """A fetch, a spill and an error: every hook that is there is called."""
    xs = [c.submit(bytes, 4000, key=f"x-{i}", pure=False, workers=[a.address]) for i in range(4)]
    assert await c.submit(total, xs, key="total", workers=[b.address]) == 16_000
    with pytest.raises(TypeError):
        await c.submit(len, 5, key="fails")
    assert await c.submit(inc, 1, key="y") == 2


def total(values: list[bytes]) -> int:
    return sum(map(len, values))


# --- drift -------------------------------------------------------------------------------------------------------------


@ROWS
def test_each_target_has_the_parameters_that_its_hook_reads(row: Patch):
    target = getattr(row.holder(importlib.import_module(row.module)), row.name)
    parameters = inspect.signature(target).parameters
    assert [name for name in row.parameters if name not in parameters and name != "_"] == []
    positional = [p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    wanted = [name for name in row.parameters if name in positional or name == "_"]
    assert [name for name, there in zip(wanted, positional, strict=False) if name not in ("_", there)] == []


@ROWS
def test_each_row_has_its_hook(row: Patch):
    assert callable(getattr(Hooks, row.hook))


def test_no_target_is_named_twice():
    assert len({row.target for row in TABLE}) == len(TABLE)


def test_every_row_is_installed(switch: Switch, caplog: pytest.LogCaptureFixture):
    before = targets()
    switch.on()
    assert [row.target for row, was, now in zip(TABLE, before, targets(), strict=True) if now is was] == []
    assert caplog.records == []


# --- undoing -----------------------------------------------------------------------------------------------------------


def test_undo_restores_the_identical_objects(switch: Switch):
    before = targets()
    for _ in range(3):
        switch.on()
        switch.off()
    assert [now is was for now, was in zip(targets(), before, strict=True)] == [True] * len(TABLE)


def test_an_inherited_method_is_inherited_again(switch: Switch):
    assert "__setitem__" not in vars(AnyKeyFile)
    switch.on()
    assert "__setitem__" in vars(AnyKeyFile)
    switch.off()
    assert "__setitem__" not in vars(AnyKeyFile)


def test_who_wraps_the_base_class_later_is_heard(switch: Switch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    switch.on()
    base = AnyKeyFile.__mro__[1]
    calls: list[str] = []
    monkeypatch.setattr(base, "__setitem__", wrapped(base.__setitem__, calls))
    AnyKeyFile(str(tmp_path))["key"] = b"value"
    assert calls == ["theirs"]


def wrapped(original: Any, calls: list[str]) -> Any:
    @functools.wraps(original)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append("theirs")
        return original(*args, **kwargs)

    return theirs


def test_another_tool_on_top(switch: Switch):
    """Its wrapper stays when we go, and ours below it is silent from then on, also when we come back."""
    calls: list[str] = []
    own = Worker.execute
    switch.on()
    theirs = wrapped(Worker.execute, calls)
    Worker.execute = theirs
    try:
        switch.off()
        assert Worker.execute is theirs
        small_work()
        assert calls
        assert switch.exported.finished == []
        switch.on()
        small_work()
        assert sum(span.name == "task total" for span in switch.exported.finished) == 1
        assert switch.failures() == []
        switch.off()
        assert Worker.execute is theirs
    finally:
        Worker.execute = own


def test_another_tool_below(switch: Switch):
    calls: list[str] = []
    own = Worker.execute
    theirs = wrapped(Worker.execute, calls)
    Worker.execute = theirs
    try:
        switch.on()
        small_work()
        switch.off()
        assert calls
        assert Worker.execute is theirs
    finally:
        Worker.execute = own


def test_switched_off_while_workers_run(switch: Switch):
    switch.on()

    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(inc, 1, key="x", workers=[a.address])
        assert await c.submit(inc, x, key="y", workers=[b.address]) == 3
        switch.off()
        before = len(switch.exported.finished)
        x = c.submit(inc, 10, key="x2", workers=[a.address])
        assert await c.submit(inc, x, key="y2", workers=[b.address]) == 12
        assert len(switch.exported.finished) == before

    scenario()


# --- installing --------------------------------------------------------------------------------------------------------


def test_instrumenting_twice(switch: Switch):
    switch.on()
    once = targets()
    switch.on()
    assert [now is was for now, was in zip(targets(), once, strict=True)] == [True] * len(TABLE)


INTERRUPTED = pytest.mark.parametrize("hook", ["transitions", "spill", "future_ended"])


class InterruptError(BaseException):
    """As Ctrl-C: nothing catches it."""


@INTERRUPTED
def test_an_install_that_is_interrupted_undoes_itself(switch: Switch, monkeypatch: pytest.MonkeyPatch, hook: str):
    def interrupts(*_args: Any) -> Any:
        raise InterruptError

    with monkeypatch.context() as patch:
        patch.setattr(Hooks, hook, interrupts)
        with pytest.raises(InterruptError):
            switch.on()
    assert_dask_is_its_own_again()
    assert not switch.instrumentor.is_instrumented_by_opentelemetry
    switch.on()
    assert switch.failures() == []


@INTERRUPTED
def test_a_hook_that_can_not_be_made_is_left_out(switch: Switch, monkeypatch: pytest.MonkeyPatch, hook: str):
    def fails(*_args: Any) -> Any:
        raise RuntimeError("ours, not Dask's")

    monkeypatch.setattr(Hooks, hook, fails)
    switch.on()
    small_work()
    assert {name for name, _ in switch.failures()} == {f"patch {row.target}" for row in TABLE if row.hook == hook}


MODULE = "imported_later_by_somebody"


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / f"{MODULE}.py").write_text("class Owner:\n    def method(self):\n        return 'dask'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield MODULE
    sys.modules.pop(MODULE, None)


ROW = Patch(MODULE, "Owner", "method", "hook", ("self",))


def ours(_hook: str, original: Any) -> Any:
    return lambda self: f"ours({original(self)})"


def test_a_module_that_is_imported_later(later: str):
    patches = Patches([ROW], ours, Guard())
    patches.install()
    assert later not in sys.modules
    owner = importlib.import_module(later).Owner
    assert owner().method() == "ours(dask)"
    patches.undo()
    assert owner().method() == "dask"


def test_a_module_that_is_imported_after_the_undo(later: str):
    patches = Patches([ROW], ours, Guard())
    patches.install()
    patches.undo()
    assert importlib.import_module(later).Owner().method() == "dask"


def test_a_hook_that_fails_in_somebody_elses_import(later: str):
    def fails(_hook: str, _original: Any) -> Any:
        raise RuntimeError("ours, not theirs")

    guard = Guard()
    Patches([ROW], fails, guard).install()
    assert importlib.import_module(later).Owner().method() == "dask"
    assert [name for name, _ in guard.failures] == [f"patch {ROW.target}"]


# --- degrading ---------------------------------------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, *gone: Patch, instead: tuple[Patch, ...] = ()):
    table = tuple(row for row in TABLE if row not in gone) + instead
    monkeypatch.setattr(hooks, "TABLE", table)
    assert not hasattr(instrumentor_module, "TABLE")  # it is imported when it is needed


@pytest.mark.parametrize(
    "row",
    [
        Patch("distributed.worker", "Worker", "moved_in_a_newer_dask", "execute", ("self",)),
        Patch("distributed.worker", "NoSuchClass", "execute", "execute", ("self",)),
        Patch("distributed.spill", "", "no_such_function", "offload", ("fn",)),
    ],
    ids=lambda row: row.target,
)
def test_a_target_that_is_not_there(
    switch: Switch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, row: Patch
):
    without(monkeypatch, instead=(row,))
    with caplog.at_level(logging.WARNING, logger="otel_worker"):
        switch.on()
    (record,) = caplog.records
    assert row.target in record.getMessage()
    small_work()
    assert switch.failures() == []
    assert sum(span.name == "task total" for span in switch.exported.finished) == 1


@ROWS
def test_dask_without_one_target(
    switch: Switch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, row: Patch
):
    """As if a newer Dask had renamed it: one warning, no failure, the same results."""
    without(monkeypatch, row, instead=(row._replace(name=f"{row.name}_is_gone"),))
    with caplog.at_level(logging.WARNING, logger="otel_worker"):
        switch.on()
        small_work()
    ours = [record.getMessage() for record in caplog.records if record.name == "otel_worker"]
    assert len(ours) == 1
    assert f"{row.target}_is_gone" in ours[0]
    assert switch.failures() == []
