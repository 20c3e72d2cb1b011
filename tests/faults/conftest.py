"""Each test's faults note their moments anew, and no garbage collection blocks the loop while they act."""

import gc
from collections.abc import Iterator

import pytest

from tests.faults.tools import AFTER, NOTES, OFFLOAD, THREADS


@pytest.fixture(autouse=True)
def _undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("distributed.comm.utils.OFFLOAD_THRESHOLD", OFFLOAD)  # Dask reads its setting when imported
    NOTES.clear()
    THREADS.clear()
    AFTER.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
