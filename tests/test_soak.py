"""A short soak: random graphs, and what goes wrong among them, on a real cluster. `scripts/soak` runs it for longer."""

import pytest

from tests.soak.rounds import run

SEED = 7


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_minute_of_everything():
    soak = run(60, SEED, print)
    assert soak.wrong == []
    assert soak.rounds >= 3
    assert soak.moved["bytes fetched"] > 0
