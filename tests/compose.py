"""docker-compose.yml, run as it is shipped: a project of its own on free ports, so that it disturbs nobody."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import requests

from tests.jaeger import Jaeger
from tests.services import free_endpoints

ROOT = Path(__file__).resolve().parent.parent
PROMETHEUS_IMAGE = "prom/prometheus:v2.42.0"
LABEL = "com.docker.compose.project"
PATIENCE = 600.0  # seconds for one command: the first build installs Dask


def cannot(reason: str) -> None:
    """Skips, or fails where nothing may be skipped."""
    required = os.environ.get("OTEL_WORKER_REQUIRE", "") not in ("", "0")
    (pytest.fail if required else pytest.skip)(reason)


def compose_command() -> list[str]:
    """Compose v2 where it is, else docker-compose 1.29."""
    if shutil.which("docker") and not run("docker", "compose", "version", check=False).returncode:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    cannot("docker-compose is missing: scripts/install-docker")
    raise AssertionError


def run(
    *command: str, check: bool = True, environment: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert not (check and done.returncode), f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def start_daemon() -> int | None:
    """The process id of the daemon that had to be started; None where one answers."""
    if shutil.which("docker") is None:
        cannot("docker is missing: scripts/install-docker")
    if not run("docker", "info", check=False).returncode:
        return None
    started = run(str(ROOT / "scripts" / "docker-daemon"), check=False)
    if started.returncode:
        cannot(f"no Docker daemon answers, and none could be started: {started.stderr[-1000:]}")
    return int(started.stdout)


def images() -> None:
    """Those that the compose file names: here, pulled, or made."""
    done = run(sys.executable, str(ROOT / "scripts" / "docker-images"), check=False)
    if done.returncode:
        cannot(f"no images: {done.stderr[-1000:]}")


@dataclass
class Project:
    command: list[str]
    name: str = field(default_factory=lambda: f"otel-worker-{uuid.uuid4().hex[:8]}")
    ports: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = ("JAEGER_PORT", "PROMETHEUS_PORT", "SCHEDULER_PORT")
        endpoints = free_endpoints(len(names))
        self.ports = {name: at.rpartition(":")[2] for name, at in zip(names, endpoints, strict=True)}

    def __call__(self, *arguments: str) -> str:
        return run(*self.command, "--project-name", self.name, *arguments, environment=self.ports).stdout

    @property
    def jaeger(self) -> Jaeger:
        return Jaeger(f"http://127.0.0.1:{self.ports['JAEGER_PORT']}", "", "")

    def prometheus(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.ports['PROMETHEUS_PORT']}/api/v1/{path}"
        answer = requests.get(url, params=query, timeout=30)
        answer.raise_for_status()
        return answer.json()["data"]

    def value(self, query: str) -> float:
        """Of a query with one result; 0 for none."""
        result = self.prometheus("query", query=query)["result"]
        return float(result[0]["value"][1]) if result else 0.0

    def left(self, kind: str) -> list[str]:
        """What Docker has of this project: `container`, `network`, `volume`."""
        every = ("--all",) if kind == "container" else ()
        return run("docker", kind, "ls", *every, "--quiet", "--filter", f"label={LABEL}={self.name}").stdout.split()

    def containers(self) -> dict[str, list[dict[str, Any]]]:
        """By service, as `docker inspect` tells."""
        found: dict[str, list[dict[str, Any]]] = {}
        for container in json.loads(run("docker", "inspect", *self.left("container")).stdout):
            found.setdefault(container["Config"]["Labels"]["com.docker.compose.service"], []).append(container)
        return found
