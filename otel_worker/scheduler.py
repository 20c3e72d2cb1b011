"""A scheduler, asked from outside: who its workers are, and what they answer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from otel_worker.survey import Survey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class SchedulerError(Exception):
    """Why a scheduler can't be asked, as one sentence for a person."""


class AddressError(SchedulerError):
    """What was given is no address."""


class Scheduler:
    """A connection to it, and a survey of its workers."""

    def __init__(self, address: str, remote: Any, timeout: float) -> None:
        self.address = address
        self._remote = remote
        self._timeout = timeout
        self.survey = Survey(remote.broadcast, timeout)

    async def workers(self) -> dict[str, dict[str, Any]]:
        """What the scheduler knows of its workers, by address: `name`, `metrics`, `status`, …

        Raises
        ------
        SchedulerError
            It does not answer.

        """
        try:
            told = await asyncio.wait_for(self._remote.identity(), self._timeout)
        except (asyncio.TimeoutError, TimeoutError):
            raise SchedulerError(f"The scheduler {self.address} did not answer within {self._timeout:g} s.") from None
        except Exception as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise SchedulerError(f"The scheduler {self.address} can't be asked: {why.rstrip('.')}.") from None
        if not isinstance(told, dict) or told.get("type") != "Scheduler":
            what = told.get("type", "something else") if isinstance(told, dict) else "something else"
            raise AddressError(f"{self.address} is the address of a {what}, not of a scheduler.")
        workers: dict[str, dict[str, Any]] = told["workers"]
        return workers


@asynccontextmanager
async def connected(
    address: str, timeout: float, *, ca_file: str | None = None, cert: str | None = None, key: str | None = None
) -> AsyncIterator[Scheduler]:
    """A scheduler at `address`; what is not given of TLS is read from Dask's configuration, as a client does.

    Raises
    ------
    AddressError
        The address or the TLS files are not what they should be.

    """
    from distributed.comm import normalize_address, parse_address, resolve_address
    from distributed.core import rpc
    from distributed.security import Security

    given = {"tls_ca_file": ca_file, "tls_client_cert": cert, "tls_client_key": key}
    try:
        whole = normalize_address(address)
        scheme, rest = parse_address(whole)
        if not rest.rpartition(":")[2].isdecimal():
            raise ValueError("it has no port")  # noqa: TRY301  one sentence for all of them
        resolve_address(whole)
        security = Security(**{name: value for name, value in given.items() if value})
        arguments = security.get_connection_args("client")
        if scheme in ("tls", "wss") and arguments.get("ssl_context") is None:
            raise ValueError("TLS needs --tls-ca-file, --tls-cert and --tls-key, or the same in Dask's configuration")  # noqa: TRY301
    except Exception as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise AddressError(f"{address!r} can't be used as a scheduler's address: {why}.") from None
    remote = rpc(whole, timeout=timeout, connection_args=arguments)
    held = Scheduler(whole, remote, timeout)
    try:
        yield held
    finally:
        held.survey.close()
        await remote.close_rpc()
