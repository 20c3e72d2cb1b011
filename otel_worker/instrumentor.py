"""`DaskInstrumentor`: switches us on and off. The only file that reads the environment."""

from __future__ import annotations

import logging
import os
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import wrapt
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_worker.patches import Patches
    from otel_worker.runtime import Runtime

logger = logging.getLogger("otel_worker")

INSTRUMENTS = ("distributed >= 2024.12.0",)


class DaskInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """OpenTelemetry instrumentation of dask.distributed: workers, and clients.

    `instrument(tracer_provider=None, meter_provider=None, **settings)` patches Dask where it is imported already and
    waits where it is not. Providers default to the global ones; the settings are the fields of `Settings`, and each
    that is not given is read from `OTEL_PYTHON_DASK_<NAME>`, else from Dask's configuration (`otel-worker.<name>`).
    Raises TypeError for a keyword that is not a setting. `uninstrument()` restores the identical objects; workers that
    already run are silent from then on.
    """

    _runtime: Runtime | None = None
    _patches: Patches | None = None
    _asked: dict[str, Any] | None = None  # the settings of the `instrument()` that holds

    def instrumentation_dependencies(self) -> Collection[str]:
        return INSTRUMENTS

    @property
    def runtime(self) -> Runtime | None:
        """What is installed now, for tests and for `otel_worker`'s own commands."""
        return self._runtime

    def _instrument(self, **kwargs: Any) -> None:
        providers = kwargs.pop("tracer_provider", None), kwargs.pop("meter_provider", None)
        if kwargs:
            from otel_worker.settings import Settings

            Settings.check(kwargs)
        self._asked = kwargs
        if "distributed" in sys.modules:
            self._switch_on(kwargs, *providers)
        else:  # most of ours is imported with Dask: a program that does not use it pays for none of that
            wrapt.register_post_import_hook(lambda _: self._switch_on(kwargs, *providers), "distributed")

    def _switch_on(self, kwargs: dict[str, Any], tracer_provider: Any, meter_provider: Any) -> None:
        if self._asked is not kwargs:  # switched off before Dask was imported
            return
        try:
            from otel_worker.guard import Guard
            from otel_worker.hooks import TABLE, Hooks
            from otel_worker.names import RUN_VARIABLE
            from otel_worker.patches import Patches
            from otel_worker.providers import Providers
            from otel_worker.run_notes import noting
            from otel_worker.runtime import Runtime
            from otel_worker.settings import Settings

            providers = Providers(tracer_provider, meter_provider)
            guard = Guard()
            self._runtime = Runtime(lambda: Settings.load(kwargs, os.environ, _dask_config()), providers, guard)
            if notes := os.environ.get(RUN_VARIABLE):
                self._runtime.on_client = noting(notes)
            self._patches = Patches(TABLE, Hooks(self._runtime).make, guard)
            self._patches.install()
            self._runtime.adopt_running()
        except BaseException as error:
            self._undo()
            if not isinstance(error, Exception):
                raise
            # Raised to the auto-loader, it would stop every other instrumentation of the process.
            logger.exception("otel_worker: could not be switched on; Dask is not affected")

    def _uninstrument(self, **_kwargs: Any) -> None:
        self._undo()

    def _undo(self) -> None:
        if self._patches is not None:
            self._patches.undo()
        if self._runtime is not None:
            self._runtime.close(perf_counter_ns())
        self._patches = self._runtime = self._asked = None


def _dask_config() -> dict[str, Any]:
    """Dask's configuration if Dask is imported; else it can't be read without charging programs that don't use it."""
    from otel_worker.settings import CONFIG_SECTION

    config = sys.modules.get("dask.config")
    section = config.get(CONFIG_SECTION, None) if config is not None else None
    if section is not None and not isinstance(section, dict):
        logger.warning(
            "otel_worker: Dask's configuration %s is %r, but it has to be a mapping", CONFIG_SECTION, section
        )
    return section if isinstance(section, dict) else {}
