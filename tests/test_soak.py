"""A short soak: random graphs, and what goes wrong among them, on a real cluster. `scripts/soak` runs it for longer."""

from importlib.metadata import version

import pytest

from tests.soak.rounds import run

SEED = 7
OLDEST = "2024.12.0"  # the newest is enough: what differs between versions is tried elsewhere


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(version("distributed") == OLDEST, reason="once is enough")
def test_a_minute_of_everything():
    soak = run(60, SEED, print)
    assert soak.wrong == []
    assert soak.rounds >= 3
    assert soak.moved["bytes fetched"] > 0
