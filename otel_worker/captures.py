"""`with otel_worker.capture(client) as c: …` and `c.report()`: where the time of that went, on a cluster that runs."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import uuid
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from otel_worker import tap
from otel_worker.receiver import Receiver
from otel_worker.settings import Settings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from otel_worker.pages import TimeReport

logger = logging.getLogger("otel_worker")

PATIENCE = 15.0  # seconds for all workers to begin, and to end
REACH = 3.0  # seconds in which a worker has to connect
BUDGET = 1000.0  # spans a second and worker: a capture is short, and everything in it is wanted


class CaptureError(Exception):
    """Why nothing can be captured, as one sentence for a person."""


async def reach(url: str) -> bool:
    """Whether this process connects to the receiver that it was told of. Called on workers."""
    import requests

    def post() -> bool:
        try:
            return bool(requests.post(url, json={}, timeout=REACH).status_code == 200)
        except requests.RequestException:
            return False

    return await asyncio.to_thread(post)


@final
class Capture:
    """Spans of what `client`'s cluster does inside of the `with` block, or `async with` for an asynchronous client.

    Parameters
    ----------
    client
        A `distributed.Client`. `otel_worker` has to be installed where its workers run.
    out
        A folder for what is captured. Without it, a temporary one that goes with this object.
    host
        The address of this machine to receive on: one that the workers reach. Whoever reaches it can send spans to it.
    **settings
        As of `DaskInstrumentor.instrument`, for processes in which nobody has switched us on; `span_budget` is 1000.

    Raises
    ------
    CaptureError
        On entering: `host` is no address of this machine, or no worker can connect to it.
    TypeError
        A setting is unknown, or an asynchronous client was given to a plain `with`.

    Workers on which we are on already keep their settings and exporters, and send to the capture as well. `notes` has a sentence for
    what can't be seen, which is logged, too.

    """

    def __init__(
        self, client: Any, *, out: str | os.PathLike[str] | None = None, host: str = "127.0.0.1", **settings: Any
    ) -> None:
        Settings.check(settings)
        self._client = client
        self._settings = {"span_budget": BUDGET, **settings}
        self.source = Path(tempfile.mkdtemp(prefix="otel-worker-capture-") if out is None else out)
        if out is None:
            weakref.finalize(self, shutil.rmtree, self.source, ignore_errors=True)
        self.notes: tuple[str, ...] = ()
        self._host = host
        self._receiver: Receiver | None = None
        self._token = uuid.uuid4().hex

    def report(self, **options: Any) -> TimeReport:
        """Where the time went: what `otel_worker.report` says of all that came so far, with the same `options`.

        Raises SourceError if nothing came.
        """
        from otel_worker.pages import report

        return report(self.source, **options)

    # --- the block -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Capture:
        if self._client.asynchronous:
            raise TypeError("The client is asynchronous: use `async with otel_worker.capture(client)`.")
        self._client.sync(self._begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.sync(self._end)

    async def __aenter__(self) -> Capture:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _begin(self) -> None:
        """Runs on the client's event loop, where its methods return what has to be awaited."""
        try:
            self._receiver = Receiver(self.source, host=self._host).__enter__()
        except (OSError, RuntimeError):
            raise CaptureError(f"{self._host} is no address of this machine to listen on.") from None
        try:
            await self._switch_on()
        except BaseException:
            await self._end()
            raise
        for note in self.notes:
            logger.warning("otel_worker: %s", note)

    async def _switch_on(self) -> None:
        from otel_worker.plugin import TapPlugin

        assert self._receiver is not None
        endpoint = self._receiver.http_endpoint
        workers = await self._workers()
        reached = await self._ask(workers, reach, f"{endpoint}/v1/{self._receiver.token}")
        if workers and True not in reached.values():
            raise CaptureError(self._unreached(workers, reached))
        tap.open_tap(self._token, endpoint, self._settings)
        plugin = TapPlugin(self._token, endpoint, self._settings)
        with suppress(asyncio.TimeoutError, ImportError):  # one that hangs, or has no otel_worker: said below
            await asyncio.wait_for(self._client.register_plugin(plugin, name=self._plugin), PATIENCE)
        hows = await self._ask([w for w in workers if reached[w] is True], tap.how, self._token)
        self.notes = tuple(self._said(workers, reached, hows))

    async def _end(self) -> None:
        try:
            await tap.close_tap(self._token)
            try:
                await asyncio.wait_for(self._client.unregister_worker_plugin(self._plugin), PATIENCE)
            except asyncio.TimeoutError:
                logger.warning("otel_worker: not every worker ended the capture within %.0f s", PATIENCE)
            except (ValueError, KeyError):
                pass  # it was never registered, or not on every worker
            except OSError as error:
                logger.warning("otel_worker: the capture could not be ended on every worker: %s", error)
        finally:
            if self._receiver is not None:
                await asyncio.to_thread(self._receiver.close)  # its last requests come from this process, too
                self._receiver = None

    @property
    def _plugin(self) -> str:
        return f"otel-worker-capture-{self._token}"

    # --- asking workers --------------------------------------------------------------------------------------------------

    async def _workers(self) -> dict[str, str]:
        """Names by address."""
        told = await self._client.scheduler.identity()
        return {address: str(worker["name"]) for address, worker in told["workers"].items()}

    async def _ask(self, workers: Iterable[str], function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Each by itself, so that one that hangs holds up nobody: its answer is an exception."""

        async def ask(worker: str) -> Any:
            try:
                told = await asyncio.wait_for(
                    self._client.run(function, *args, workers=[worker], on_error="return"), PATIENCE
                )
            except Exception as error:
                return error
            return told.get(worker)

        asked = list(workers)
        return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))

    # --- saying ----------------------------------------------------------------------------------------------------------

    def _unreached(self, workers: dict[str, str], reached: dict[str, Any]) -> str:
        if all(isinstance(answer, ImportError) for answer in reached.values()):
            return "otel_worker is not installed on any worker; install it there as it is here."
        return (
            f"None of the {len(workers)} workers can connect to this capture at {self._listens}; give it an address of this "
            "machine that they reach: otel_worker.capture(client, host=…)."
        )

    def _said(self, workers: dict[str, str], reached: dict[str, Any], hows: dict[str, Any]) -> Iterable[str]:
        """A sentence for each thing that a reader of the report has to know."""
        every = len(workers)
        without = [w for w, answer in reached.items() if isinstance(answer, ImportError)]
        silent = [w for w, answer in reached.items() if isinstance(answer, asyncio.TimeoutError)]
        away = [w for w, answer in reached.items() if answer is not True and w not in {*without, *silent}]
        for some, what in (
            (without, "otel_worker is not installed there"),
            (silent, "no answer in time"),
            (
                away,
                f"can't connect to this capture at {self._listens}; otel_worker.capture(client, host=…) sets another address",
            ),
            (_which(hows, tap.WITHOUT_SDK), "otel_worker is on, but without an SDK, so that nothing of it is seen"),
        ):
            if some:
                yield f"{len(some)} of {every} workers are not in this capture ({_list(some, workers)}): {what}."
        if beside := _which(hows, tap.BESIDE):
            yield (
                f"{len(beside)} of {every} workers were switched on already ({_list(beside, workers)}): they keep their settings, "
                "as span_budget, and send to this capture as well as where they sent before."
            )

    @property
    def _listens(self) -> str:
        return self._receiver.http_endpoint.removeprefix("http://") if self._receiver is not None else self._host


def _which(hows: dict[str, Any], how: str) -> list[str]:
    return [worker for worker, answer in hows.items() if answer == how]


def _list(some: list[str], workers: dict[str, str]) -> str:
    more = f" and {len(some) - 5} more" if len(some) > 5 else ""
    return ", ".join(workers[worker] for worker in some[:5]) + more


capture = Capture  # as it is called: `otel_worker.capture(client)`
