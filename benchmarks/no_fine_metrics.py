"""A preload that switches Dask's own fine performance metrics off; Dask has no setting for it."""

from __future__ import annotations

from typing import Any

from distributed.core import Server
from distributed.metrics import ContextMeter


def dask_setup(_: Any) -> None:
    """Dask's workers meter through these two."""

    def ignore(*_args: Any, **_more: Any) -> None:
        pass

    ContextMeter.digest_metric = ignore
    Server.digest_metric = ignore
