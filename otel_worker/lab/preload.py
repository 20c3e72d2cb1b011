"""A preload of Dask's that records what each worker was told and what it asked for (`otel-worker run --record`)."""

from __future__ import annotations

import os
from typing import Any

from otel_worker import names
from otel_worker.lab.recording import RecordFetches

_recorders: dict[int, RecordFetches] = {}


def dask_setup(worker: Any) -> None:
    directory = os.environ.get(names.RECORD_VARIABLE)
    if directory:
        _recorders[id(worker)] = recorder = RecordFetches(directory)
        recorder.setup(worker)


def dask_teardown(worker: Any) -> None:
    recorder = _recorders.pop(id(worker), None)
    if recorder is not None:
        recorder.teardown(worker)
