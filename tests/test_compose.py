"""docker-compose.yml in a real Docker, unchanged: the example's traces in Jaeger, its rates in the Monitor tab, what stays."""

import os
import shlex
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from otel_worker.traces import Span
from tests import docs
from tests.compose import PROMETHEUS_IMAGE, ROOT, Project, compose_command, images, run, start_daemon
from tests.jaeger import by_trace, eventually
from tests.processes import BIN

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1500)]

WORKERS = ("dask-worker-1", "dask-worker-2", "dask-worker-3")
ONE_SHOT = {"traces-owner", "stack"}
LONG_RUNNING = {"scheduler", "worker", "collector", "jaeger", "prometheus"}


@dataclass(frozen=True)
class Stack:
    project: Project
    # As they were before a test touched them, whatever a test does later.
    containers: dict[str, list[dict[str, Any]]]
    targets: dict[str, str]  # Prometheus' jobs and their health
    rules: list[dict[str, Any]]


@pytest.fixture(scope="module")
def daemon() -> Iterator[None]:
    """A Docker daemon; one that had to be started ends with these tests."""
    started = start_daemon()
    yield
    if started is not None:
        os.kill(started, signal.SIGTERM)


@pytest.fixture(scope="module")
def official_images(daemon: None) -> None:
    images()


@pytest.fixture(scope="module")
def stack(official_images: None) -> Iterator[Stack]:
    """Up, and the example has run: what docs/compose.md says."""
    project = Project(compose_command())
    up, example, _ = lines("compose.md")
    try:
        project(*compose(up))
        containers = project.containers()
        assert "mean 1.000" in project(*compose(example))
        healthy = eventually(lambda: targets(project), lambda found: set(found.values()) == {"up"}, within=60)
        rules = eventually(
            lambda: loaded(project), lambda found: {rule["health"] for rule in found} == {"ok"}, within=60
        )
        yield Stack(project, containers, healthy, rules)
    finally:
        project("down", "--volumes", "--timeout", "10")
    assert [project.left(kind) for kind in ("container", "network", "volume")] == [[], [], []]


def lines(page: str) -> list[str]:
    """The commands of a page that are run here."""
    mine = [block for block in docs.every() if block.page == page and block.what == "tests/test_compose.py"]
    return [line for block in mine for line in block.text.splitlines()]


def compose(line: str) -> list[str]:
    program, *arguments = shlex.split(line)
    assert program == "docker-compose"
    return arguments


def targets(project: Project) -> dict[str, str]:
    return {target["labels"]["job"]: target["health"] for target in project.prometheus("targets")["activeTargets"]}


def loaded(project: Project) -> list[dict[str, Any]]:
    return [rule for group in project.prometheus("rules")["groups"] for rule in group["rules"]]


def test_config_is_valid_and_careful() -> None:
    project = Project(compose_command())
    services = yaml.safe_load(project("--profile", "client", "config"))["services"]

    assert set(services) == ONE_SHOT | LONG_RUNNING | {"client"}
    for name, service in services.items():
        assert service["mem_limit"], name
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["image"].rpartition(":")[2] not in {"", "latest", service["image"]}, name


def test_everything_runs_as_somebody_and_is_published_on_loopback_alone(stack: Stack) -> None:
    assert set(stack.containers) == ONE_SHOT | LONG_RUNNING
    assert len(stack.containers["worker"]) == len(WORKERS)
    for name, of_service in stack.containers.items():
        for container in of_service:
            state, user = container["State"], container["Config"]["User"].partition(":")[0]
            assert (state["Status"], state["ExitCode"]) == ("exited" if name in ONE_SHOT else "running", 0), name
            assert container["RestartCount"] == 0, name
            assert (user in {"", "0", "root"}) == (name == "traces-owner"), name
            published = [at["HostIp"] for ports in container["HostConfig"]["PortBindings"].values() for at in ports]
            assert set(published) <= {"127.0.0.1"}, name
            assert container["HostConfig"]["Memory"] > 0, name


def test_others_wait_until_a_service_answers(stack: Stack) -> None:
    def times(service: str, what: str) -> list[str]:
        return [container["State"][what] for container in stack.containers[service]]

    assert max(times("traces-owner", "FinishedAt")) <= min(times("jaeger", "StartedAt"))
    assert max(times("stack", "StartedAt")) <= max(times("stack", "FinishedAt"))
    assert max(times("collector", "StartedAt") + times("jaeger", "StartedAt")) <= min(times("stack", "StartedAt"))
    assert max(times("scheduler", "StartedAt")) <= min(times("worker", "StartedAt"))


def test_a_fetch_is_a_tree_across_two_containers(stack: Stack) -> None:
    traces = eventually(
        lambda: by_trace(stack.project.jaeger.spans(service=WORKERS[0])),
        lambda found: sum(map(len, map(served_elsewhere, found.values()))) > 1,
        within=30,
    )

    chains = [chain for spans in traces.values() for chain in served_elsewhere(spans)]
    assert {chain[0].service for chain in chains} == set(WORKERS)
    for get_data, request, fetch, *above in chains:
        assert (get_data.name, get_data.kind) == ("get_data", "server")
        assert (request.name, request.kind, request.service) == ("request", "client", fetch.service)
        assert fetch.name.startswith("fetch ")
        assert get_data.service != fetch.service
        assert get_data.resource.host != fetch.resource.host
        assert [span.name.partition(" ")[0] for span in above] in (["waiting", "task", "compute"], [])


def served_elsewhere(spans: list[Span]) -> list[list[Span]]:
    """For each get_data, itself and what it is below, up to the root; of those whose requester is in the trace."""
    by_id = {span.span_id: span for span in spans}
    chains = [list(upwards(span, by_id)) for span in spans if span.name == "get_data"]
    return [chain for chain in chains if len(chain) > 2]


def upwards(span: Span, by_id: dict[str, Span]) -> Iterator[Span]:
    yield span
    if span.parent_id in by_id:
        yield from upwards(by_id[span.parent_id], by_id)


@pytest.mark.parametrize(
    ("kind", "operation"), [("internal", "fetch mean_chunk"), ("server", "get_data"), ("client", "request")]
)
def test_the_monitor_tab_has_rates_and_durations(stack: Stack, kind: str, operation: str) -> None:
    query = {"service": WORKERS[0], "spanKind": kind, "groupByOperation": "true", "step": "5000", "ratePer": "60000"}

    def highest(what: str, **more: str) -> float:
        until = {"endTs": str(int(time.time() * 1000)), "lookback": "1800000"}
        answer = stack.project.jaeger.get(f"/api/metrics/{what}", **query, **until, **more)
        points = [
            point["gaugeValue"]["doubleValue"]
            for metric in answer["metrics"]
            if {"name": "operation", "value": operation} in metric["labels"]
            for point in metric["metricPoints"]
        ]
        return max((value for value in points if isinstance(value, float)), default=0.0)

    assert eventually(lambda: highest("calls"), bool, within=60) > 0
    assert 0 < eventually(lambda: highest("latencies", quantile="0.95"), bool, within=60) < 60_000


def test_prometheus_has_the_workers_metrics_and_its_rules(stack: Stack) -> None:
    project = stack.project
    assert stack.targets == {"dask": "up", "collector": "up"}
    assert {rule["state"] for rule in stack.rules if rule["type"] == "alerting"} == {"inactive"}

    fetched = "sum(max_over_time(dask_fetch_duration_seconds_count[30m]))"
    assert eventually(lambda: project.value(fetched), bool, within=60) > 0
    workers = project.prometheus("series", **{"match[]": "dask_task_state_time_seconds_total"})
    assert {f"dask-{series['dask_worker_name']}" for series in workers} == set(WORKERS)
    share = "max_over_time(dask:waiting:share_5m[30m])"
    assert 0 <= eventually(lambda: project.value(share), lambda value: value == value, within=60) <= 1


def test_traces_and_metrics_survive_down(stack: Stack) -> None:
    project = stack.project
    (compute, *_) = (span for span in project.jaeger.spans(service="dask-client") if span.name.startswith("compute "))
    before = project.jaeger.spans(trace_id=compute.trace_id)

    project(*compose(lines("compose.md")[2]))
    assert (project.left("container"), project.left("network")) == ([], [])
    assert len(project.left("volume")) == 3
    project("up", "--detach", "jaeger", "prometheus")

    eventually(lambda: answers(project), bool, within=60)
    assert project.jaeger.spans(trace_id=compute.trace_id) == before
    assert project.value("sum(max_over_time(dask_fetch_duration_seconds_count[30m]))") > 0


@pytest.mark.parametrize("page", ["jaeger.md", "report.md"])
def test_the_report_reads_this_jaeger(stack: Stack, page: str) -> None:
    here = {"localhost:16686": stack.project.jaeger.query_url.removeprefix("http://"), "dask-worker": WORKERS[0]}
    for line in lines(page):
        tool, *arguments = (here.get(word, word) for word in shlex.split(line))
        assert tool == "otel-worker"
        assert "wait" in run(str(BIN / tool), *arguments).stdout


def answers(project: Project) -> bool:
    try:
        project.jaeger.get("/api/v3/services")
        project.prometheus("status/runtimeinfo")
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "--syntax-only", "/rules/prometheus.yml"),
        ("check", "rules", "/rules/rules.yml"),
        ("test", "rules", "/rules/rules_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_agrees(official_images: None, arguments: tuple[str, ...]) -> None:
    mount = f"{ROOT / 'collector' / 'prometheus'}:/rules:ro"
    tool = (
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--tmpfs",
        "/tmp",
        "--volume",
        mount,
        "--entrypoint",
        "/bin/promtool",
    )
    run(*tool, PROMETHEUS_IMAGE, *arguments)
