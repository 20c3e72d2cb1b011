"""Switching on and off, in a process and under `opentelemetry-instrument`; with every SDK, or none."""

import importlib.metadata
import logging
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_cluster
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler

from otel_worker import DaskInstrumentor, hooks, patches, wire
from tests.live import assert_dask_is_its_own_again
from tests.processes import BIN, INSTRUMENT, environment

cluster = gen_cluster(client=True, nthreads=[("127.0.0.1", 1), ("127.0.0.1", 1)])


@pytest.fixture
def instrumentor(caplog: pytest.LogCaptureFixture) -> Iterator[DaskInstrumentor]:
    assert_dask_is_its_own_again()
    held = DaskInstrumentor()
    yield held
    failures = held.runtime.guard.failures if held.runtime is not None else []
    if held.is_instrumented_by_opentelemetry:
        held.uninstrument()
    assert_dask_is_its_own_again()
    assert failures == []


def in_memory(sampler: Sampler | None = None) -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = TracerProvider(sampler=sampler, shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def names(exporter: InMemorySpanExporter) -> Counter[str]:
    return Counter(span.name.partition(" ")[0] for span in exporter.get_finished_spans())


async def exchange(c: Client, a: Worker, b: Worker, mark: str) -> None:
    """Three tasks, with a fetch each way."""
    x = c.submit(int, 1, key=f"x-{mark}", workers=[a.address])
    y = c.submit(float, x, key=f"y-{mark}", workers=[b.address])
    assert await c.submit(str, y, key=f"z-{mark}", workers=[a.address]) == "1.0"


def exchanged(mark: str) -> None:
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await exchange(c, a, b, mark)

    scenario()


# --- what the auto-loader reads --------------------------------------------------------------------------------------


def test_entry_point_and_extra():
    distribution = importlib.metadata.distribution("otel-worker")
    (entry,) = distribution.entry_points.select(group="opentelemetry_instrumentor")
    assert (entry.name, entry.load()) == ("dask", DaskInstrumentor)
    required = [r for r in distribution.requires or () if re.search(r"extra == .instruments.", r)]
    extra = [re.sub(r"\s", "", requirement.partition(";")[0]) for requirement in required]
    assert extra == [re.sub(r"\s", "", dependency) for dependency in DaskInstrumentor().instrumentation_dependencies()]


# --- on and off ------------------------------------------------------------------------------------------------------


def test_off_silences_workers_that_run_and_on_again_works(instrumentor: DaskInstrumentor):
    provider, exporter = in_memory()
    instrumentor.instrument(tracer_provider=provider, min_phase=0)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await exchange(c, a, b, "on")
        assert names(exporter)["compute"] == 3
        instrumentor.uninstrument()
        assert_dask_is_its_own_again()
        exporter.clear()
        await exchange(c, a, b, "off")
        assert names(exporter) == {}
        instrumentor.instrument(tracer_provider=provider, min_phase=0)
        await exchange(c, a, b, "again")
        assert names(exporter)["compute"] == 3

    scenario()
    exporter.clear()
    exchanged("new")
    assert names(exporter)["task"] == 3
    assert names(exporter)["get_data"] >= 2


def test_on_twice_is_on_once(instrumentor: DaskInstrumentor, caplog: pytest.LogCaptureFixture):
    provider, exporter = in_memory()
    instrumentor.instrument(tracer_provider=provider)
    with caplog.at_level(logging.WARNING, "opentelemetry"):
        DaskInstrumentor().instrument()
        assert "already instrumented" in caplog.text
    exchanged("twice")
    assert (names(exporter)["compute"], names(exporter)["task"]) == (3, 3)
    instrumentor.uninstrument()
    assert_dask_is_its_own_again()
    instrumentor.uninstrument()
    assert "already uninstrumented" in caplog.text


def test_an_unknown_keyword_is_an_error_and_leaves_nothing(instrumentor: DaskInstrumentor):
    with pytest.raises(TypeError, match=r"unknown setting min_fase; the settings are span_budget, "):
        instrumentor.instrument(min_fase=1)
    assert_dask_is_its_own_again()
    assert not instrumentor.is_instrumented_by_opentelemetry


# --- an observer does no harm ----------------------------------------------------------------------------------------


def test_a_hook_that_cannot_be_made_costs_no_other(
    instrumentor: DaskInstrumentor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(_self: hooks.Hooks, _original: object) -> None:
        raise RuntimeError("cannot be made")

    monkeypatch.setattr(hooks.Hooks, "tick", broken)
    provider, exporter = in_memory()
    instrumentor.instrument(tracer_provider=provider)
    assert [name for name, _ in instrumentor.runtime.guard.failures] == ["patch distributed.core.Server._measure_tick"]
    instrumentor.runtime.guard.failures.clear()
    exchanged("broken")
    assert names(exporter)["task"] == 3
    assert caplog.text.count("Dask is not affected") == 1


def test_an_install_that_fails_is_logged_and_undone(
    instrumentor: DaskInstrumentor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Under `opentelemetry-instrument` an exception would stop every other instrumentation of the process."""
    install = patches.Patches.install

    def broken(self: patches.Patches) -> None:
        install(self)
        raise RuntimeError("half installed")

    monkeypatch.setattr(patches.Patches, "install", broken)
    instrumentor.instrument()
    assert "half installed" in caplog.text
    assert_dask_is_its_own_again()


BREAKING = """
def break_us():
    from otel_worker import guard
    def broken(*args):
        raise RuntimeError("ours is broken")
    guard.Guard = broken

def after():
    print("all instrumentors were loaded")
"""


@pytest.mark.parametrize("when", ["after", "before"])
def test_ours_broken_stops_no_other_instrumentor_and_no_import(tmp_path: Path, when: str):
    (tmp_path / "breaking.py").write_text(BREAKING)
    info = tmp_path / "breaking-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: breaking\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[opentelemetry_pre_instrument]\nbreak = breaking:break_us\n[opentelemetry_post_instrument]\nafter = breaking:after\n"
    )
    if when == "before":  # Dask was there when we were switched on
        (tmp_path / "breaking.py").write_text(f"import distributed\n{BREAKING}")
    answer = under_opentelemetry("import distributed; print('runs')", PYTHONPATH=str(tmp_path))
    assert answer.stdout.splitlines() == ["all instrumentors were loaded", "runs"]
    assert "ours is broken" in answer.stderr
    assert "Failed to auto initialize" not in answer.stderr


# --- under opentelemetry-instrument ----------------------------------------------------------------------------------


def under_opentelemetry(code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    nowhere = dict.fromkeys(("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"), "none")
    command = [INSTRUMENT, str(BIN / "python"), "-c", code]
    env = environment(**nowhere, **variables)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_program_that_does_not_use_dask_imports_neither_it_nor_most_of_ours():
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith(('dask', 'distributed', 'tornado', 'otel_worker'))))"
    answer = under_opentelemetry(code)
    assert (answer.stdout, answer.stderr) == (
        "['otel_worker', 'otel_worker.instrumentor', 'otel_worker.version']\n",
        "",
    )


def test_switched_off_before_dask_is_imported():
    code = "from otel_worker import DaskInstrumentor; DaskInstrumentor().uninstrument(); import distributed as d; print(hasattr(d.Worker.get_data, '_otel_worker'))"
    answer = under_opentelemetry(code)
    assert (answer.stdout, answer.stderr) == ("False\n", "")


def test_dask_imported_later_is_patched():
    code = "from distributed import Worker; print(Worker.get_data._otel_worker)"
    answer = under_opentelemetry(code)
    assert (answer.stdout, answer.stderr) == ("True\n", "")


def test_it_can_be_disabled_as_every_instrumentation():
    code = "from distributed import Worker; print(hasattr(Worker.get_data, '_otel_worker'))"
    answer = under_opentelemetry(code, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="dask")
    assert (answer.stdout, answer.stderr) == ("False\n", "")


# --- with every SDK, or none -----------------------------------------------------------------------------------------


def annotated(s: Scheduler) -> list[str]:
    return [ts.key for ts in s.tasks.values() if wire.KEY in (ts.annotations or {})]


def test_without_an_sdk_nothing_is_sent_along(instrumentor: DaskInstrumentor):
    assert not isinstance(trace.get_tracer_provider(), TracerProvider)
    instrumentor.instrument()

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(int, 1, key="x", workers=[a.address])
        y = c.submit(float, x, key="y", workers=[b.address])
        assert await y == 1.0
        assert annotated(s) == []

    threads = {thread.name for thread in threading.enumerate()}
    scenario()
    assert "otel-worker-exit" not in {thread.name for thread in threading.enumerate()} - threads


class Off(Sampler):
    """Refuses all, and notes whom it was asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def should_sample(self, parent_context, trace_id, name, *args, **kwargs):
        self.asked[name] += 1
        return ALWAYS_OFF.should_sample(parent_context, trace_id, name)

    def get_description(self) -> str:
        return "off"


def test_what_the_sampler_refuses_is_asked_for_once(instrumentor: DaskInstrumentor):
    sampler = Off()
    provider, exporter = in_memory(sampler)
    instrumentor.instrument(tracer_provider=provider, min_phase=0)
    exchanged("off")
    assert names(exporter) == {}
    once = {f"{operation} {name}-off" for operation in ("compute", "task") for name in "xyz"}
    assert sampler.asked == Counter([*once, "fetch y-off", "fetch z-off", "get_data"])  # the last one for the client


def test_what_the_sampler_refused_takes_nothing_of_the_budget(instrumentor: DaskInstrumentor):
    """A computation that is not sampled leaves the tokens to those that are, and is in no `tasks` span."""
    provider, exporter = in_memory(Off())
    instrumentor.instrument(tracer_provider=provider, span_budget=0, span_burst=40)
    became: Counter[str] = Counter()

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await c.gather(c.map(abs, range(200)))
        for spans in instrumentor.runtime.spans.values():
            became.update(spans.emitter.budget.spans)

    scenario()
    assert names(exporter) == {}
    assert {outcome: n for outcome, n in became.items() if n and outcome != "unsampled"} == {}
    assert became["unsampled"] >= 200


def test_suppression_is_honoured(instrumentor: DaskInstrumentor):
    provider, exporter = in_memory()
    instrumentor.instrument(tracer_provider=provider)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        with suppress_instrumentation():
            await exchange(c, a, b, "suppressed")
        assert annotated(s) == []

    scenario()
    assert names(exporter)["compute"] == 0
