"""`enable(client)` and `disable(client)`: on a cluster that runs, and for workers that join it later."""

from __future__ import annotations

from typing import Any

from otel_worker.settings import Settings

PLUGIN = "otel-worker"


def enable(client: Any, *, endpoint: str | None = None, **settings: Any) -> Any:
    """Switch us on, on every worker of `client`'s cluster and on those that join later.

    Parameters
    ----------
    client
        A `distributed.Client`; with an asynchronous one, await the result.
    endpoint
        Where workers on which no OpenTelemetry SDK is configured send OTLP (gRPC), as http://host:4317; else their own
        `OTEL_*` environment decides.
    **settings
        As of `DaskInstrumentor.instrument`.

    Raises
    ------
    TypeError
        A setting is unknown.

    `otel_worker` has to be installed on the workers. Work that is under way is seen from its next step on.

    """
    Settings.check(settings)
    from otel_worker.plugin import Plugin

    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint} if endpoint else {}
    return client.register_plugin(Plugin(environment, settings), name=PLUGIN)


def disable(client: Any) -> Any:
    """Switch us off again on every worker, and for those that join later. Await it with an asynchronous client."""
    return client.unregister_worker_plugin(PLUGIN)
