"""The worker plugin behind `enable` and `disable`. It is sent to workers by its import path."""

from __future__ import annotations

from typing import Any

from distributed import WorkerPlugin

from otel_worker import tap
from otel_worker.instrumentor import DaskInstrumentor
from otel_worker.sdk import configure


class Plugin(WorkerPlugin):  # type: ignore[misc]  # Dask is not typed for us
    """Switches us on where it is set up, and off where it is taken away, if it was this that switched us on."""

    def __init__(self, environment: dict[str, str], settings: dict[str, Any]) -> None:
        self.environment = environment
        self.settings = settings
        self.switched_on = False

    def setup(self, worker: Any) -> None:
        configure(self.environment)
        instrumentor = DaskInstrumentor()
        if not instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.instrument(**self.settings)
            self.switched_on = True
        if instrumentor.runtime is not None:
            instrumentor.runtime.adopt(worker)

    async def teardown(self, worker: Any) -> None:
        """What was recorded is sent. Closing the worker calls it too: then its own `close` does that."""
        instrumentor = DaskInstrumentor()
        runtime = instrumentor.runtime
        if self.switched_on and worker.status.name == "running" and runtime is not None:
            instrumentor.uninstrument()
            await runtime.flush()


class TapPlugin(WorkerPlugin):  # type: ignore[misc]
    """The worker's part of a capture."""

    def __init__(self, token: str, endpoint: str, settings: dict[str, Any]) -> None:
        self.token = token
        self.endpoint = endpoint
        self.settings = settings

    def setup(self, worker: Any) -> None:
        tap.open_tap(self.token, self.endpoint, self.settings)
        runtime = DaskInstrumentor().runtime
        if runtime is not None:
            runtime.adopt(worker)

    async def teardown(self, worker: Any) -> None:  # noqa: ARG002 - Dask names it
        """Also when the worker closes: its own `close` ends what is open, and this sends it."""
        await tap.close_tap(self.token)
