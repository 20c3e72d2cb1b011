"""Our page in Dask's own dashboards: over real HTTP, as Bokeh gives it to a client, and as a browser draws it."""

import asyncio
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError

import pytest
from bokeh.client import pull_session
from distributed import Client

import otel_worker
from otel_worker.dashboard import Look, means, recent
from tests.faults.tools import plain
from tests.processes import Programs, environment, eventually
from tests.services import ROOT


class Dashboards(NamedTuple):
    scheduler: str
    alice: str
    plain: str  # a worker without us
    client: Client


@pytest.fixture(scope="module")
def dashboards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboards]:
    programs = Programs(tmp_path_factory.mktemp("dashboard"))
    variables = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    try:
        options = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        program = programs.start("dask", "scheduler", *options, "--preload", "otel_worker.preload", **variables)
        eventually(lambda: "dashboard at:" in program.logged(), "no scheduler")
        address = next(line for line in program.logged().splitlines() if "Scheduler at:" in line).split()[-1]
        for name in ("alice", "bob", "plain"):
            programs.start(
                *(() if name == "plain" else ("opentelemetry-instrument",)),
                *("dask", "worker", address, "--host", "127.0.0.1", "--name", name),
                *("--nthreads", "1", "--no-nanny", "--dashboard-address", "127.0.0.1:0"),
                PYTHONPATH=str(ROOT),
                **variables,
            )
        with Client(address) as client:
            client.wait_for_workers(3, timeout=60)
            told = client.scheduler_info(n_workers=-1)
            at = {str(w["name"]): (a, w["services"]["dashboard"]) for a, w in told["workers"].items()}
            x = client.submit(plain, 1000, key="plain-1", workers=[at["alice"][0]])
            client.submit(len, x, key="len-1", workers=[at["bob"][0]]).result(30)
            held = client.submit(time.sleep, 600, key="sleep-1", workers=[at["alice"][0]])
            pages = [
                f"http://127.0.0.1:{port}/otel"
                for port in (told["services"]["dashboard"], at["alice"][1], at["plain"][1])
            ]
            yield Dashboards(pages[0], pages[1], pages[2], client)
            del held
    finally:
        programs.end()


def get(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.status, answer.read().decode()


@contextmanager
def opened(url: str) -> Iterator[Callable[[str], Any]]:
    """The page without a browser: finds a model by its name, as it is now."""
    session = pull_session(url=url)

    def find(name: str) -> Any:
        time.sleep(0.5)  # a document that is pulled without a pause has none for its own callbacks
        session.pull()  # patches that come in between are not applied
        return session.document.get_model_by_name(name)

    try:
        yield find
    finally:
        session.close()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["scheduler", "alice"])
def test_the_page_is_there_and_has_what_is_open(dashboards: Dashboards, where: str):
    url = getattr(dashboards, where)
    status, text = get(url)
    assert status == 200
    assert '<a href="otel">Otel</a>' in text
    with opened(url) as find:
        eventually(lambda: "sleep-1" in find("open").source.data["key"], "it does not show what is open")
        rows, bars, sums = find("open").source.data, find("bars").data, find("sums").source.data
        row = rows["key"].index("sleep-1")
        assert (rows["worker"][row], rows["state"][row], rows["phase"][row]) == ("alice", "executing", "run")
        assert dict(zip(bars["name"], bars["tasks"], strict=True))["execute: run"] == pytest.approx(1.0, abs=0.5)
        total = dict(zip(sums["name"], sums["total"], strict=True))
        assert total["execute: run.noncpu"] >= 0
        if where == "scheduler":  # bob waited for what alice had
            assert any(name.startswith("waiting: ") and seconds > 0 for name, seconds in total.items())
            assert find("sentence").text == "2 of 3 workers answered; 1 without otel_worker."


@pytest.mark.slow
def test_dasks_own_pages_are_there_and_the_schedulers_name_ours(dashboards: Dashboards):
    for url in (dashboards.scheduler, dashboards.alice):
        status, text = get(url.replace("/otel", "/status"))
        assert status == 200
        assert ('<a href="otel">Otel</a>' in text) == (url == dashboards.scheduler)
    with pytest.raises(HTTPError):
        get(dashboards.alice.replace("/otel", "/otels"))


@pytest.mark.slow
def test_workers_that_run_get_the_page_when_they_are_switched_on(dashboards: Dashboards):
    with pytest.raises(HTTPError):
        get(dashboards.plain)
    otel_worker.enable(dashboards.client)
    assert get(dashboards.plain)[0] == 200
    otel_worker.disable(dashboards.client)
    assert get(dashboards.plain)[0] == 200
    with opened(dashboards.plain) as find:
        eventually(lambda: "switched off" in find("sentence").text, "it does not say that it is off")


WITHOUT_BOKEH = """
import sys
sys.modules["bokeh"] = None
from distributed import Client, LocalCluster
from otel_worker import DaskInstrumentor

if __name__ == "__main__":
    DaskInstrumentor().instrument()
    with LocalCluster(1, processes=False, dashboard_address="127.0.0.1:0", worker_dashboard_address="127.0.0.1:0") as cluster:
        with Client(cluster) as client:
            print(client.submit(pow, 2, 3).result())
"""


def test_without_bokeh_there_is_no_page_and_no_harm():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BOKEH],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr
    assert "otel_worker" not in done.stderr


@pytest.mark.slow
@pytest.mark.browser
def test_a_browser_draws_it(dashboards: Dashboards, chromium: Any, tmp_path: Path):
    chromium.set_window_size(1200, 1100)
    chromium.get(dashboards.scheduler)
    script = "return document.body.innerText.length && Bokeh.documents[0]?.get_model_by_name('open')?.source.data.key"
    eventually(lambda: "sleep-1" in (chromium.execute_script(script) or []), "the table stays empty")
    time.sleep(1.0)
    chromium.save_screenshot(str(tmp_path / "dashboard.png"))
    severe = [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
    assert [entry for entry in severe if "favicon" not in entry["message"]] == []


def test_what_went_on_lately():
    before = Look(0.0, {}, {("wait", "network"): 1.0, ("execute", "run.cpu"): 9.0}, [], "")
    after = Look(10.0, {}, {("wait", "network"): 6.0, ("execute", "run.cpu"): 4.0, ("ready", "ready"): 2.0}, [], "")
    assert [(row["name"], row["recent"], row["total"]) for row in recent(before, after)] == [
        ("waiting: network", 5.0, 6.0),
        ("ready: ready", 2.0, 2.0),
        ("execute: run.cpu", 0.0, 4.0),  # a worker left
    ]
    samples = [{("execute", "run"): 4.0}, {("execute", "run"): 2.0, ("wait", "request"): 10.0}]
    assert [(row["name"], row["tasks"]) for row in means(samples)] == [("waiting: request", 5.0), ("execute: run", 3.0)]


def test_a_page_that_fails_says_so_once(caplog: pytest.LogCaptureFixture):
    from otel_worker.dashboard import Breakdown

    async def fails() -> Look:
        raise ValueError("no")

    async def look_again() -> Breakdown:
        view = Breakdown(fails)
        for _ in range(5):
            view.update()
            await asyncio.sleep(0)
        return view

    view = asyncio.run(look_again())
    assert view.sentence.text == "The page failed; the log says why."
    assert len(caplog.records) == 1
