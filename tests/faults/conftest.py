"""Each test's faults note their moments anew, and no garbage collection blocks the loop while they act."""

import gc
from collections.abc import Iterator

import pytest

from tests.faults.tools import AFTER, NOTES, THREADS


@pytest.fixture(autouse=True)
def _undisturbed() -> Iterator[None]:
    NOTES.clear()
    THREADS.clear()
    AFTER.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
