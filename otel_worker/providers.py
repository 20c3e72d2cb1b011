"""Where spans go: the user's providers, a tracer for each role, and a service name where the user set none."""

from __future__ import annotations

import copy
import socket
from typing import Any

from opentelemetry import _logs, metrics, trace

from otel_worker import names
from otel_worker.version import __version__

ROLES = {
    "worker": names.SERVICE_WORKER,
    "client": names.SERVICE_CLIENT,
    "scheduler": names.SERVICE_SCHEDULER,
}


class Providers:
    """The providers that were handed in, else the global ones, asked when they are needed."""

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider

    @property
    def tracer_provider(self) -> Any:
        return self._tracer_provider or trace.get_tracer_provider()

    @property
    def meter_provider(self) -> Any:
        return self._meter_provider or metrics.get_meter_provider()

    def tracer(self, role: str) -> trace.Tracer:
        """A tracer of this role; spans of ours carry the role's service name where the user named none."""
        provider = self.tracer_provider
        _name(provider, ROLES[role])
        tracer: trace.Tracer = provider.get_tracer(names.SCOPE, __version__, schema_url=names.SCHEMA_URL)
        resource = getattr(tracer, "resource", None)
        if resource is not None:
            tracer = copy.copy(tracer)  # the provider gives the same one to every role
            tracer.resource = _named(resource, ROLES[role])  # type: ignore[attr-defined]
        return tracer

    def meter(self) -> Any:
        """A meter; metrics carry the worker's service name where the user named none."""
        provider = self.meter_provider
        config = getattr(provider, "_sdk_config", None)
        if config is not None and _unset(config.resource):
            config.resource = _named(config.resource, ROLES["worker"])
        return provider.get_meter(names.SCOPE, __version__, schema_url=names.SCHEMA_URL)

    def flushable(self) -> list[Any]:
        """The providers of this process that can be flushed."""
        candidates = (self.tracer_provider, self.meter_provider, _logs.get_logger_provider())
        return [provider for provider in candidates if callable(getattr(provider, "force_flush", None))]


def _name(provider: Any, service: str) -> None:
    """Name the process by its first role: the user's own spans, and metrics, come from the same service."""
    resource = getattr(provider, "resource", None)
    if resource is not None and _unset(resource) and hasattr(provider, "_resource"):
        provider._resource = _named(resource, service)


def _unset(resource: Any) -> bool:
    return str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service")


def _named(resource: Any, service: str) -> Any:
    """Where the user named no service, or what we named is shared by several roles, the role's; the host in any case."""
    kind = type(resource)
    named = kind({"host.name": socket.gethostname()}).merge(resource)
    if _unset(resource) or resource.attributes.get("service.name") in ROLES.values():
        named = named.merge(kind({"service.name": service}))
    return named
