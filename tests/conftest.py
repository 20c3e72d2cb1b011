"""Fixtures of more than one test file; each set stands in a module of its own."""

import pytest

pytest_plugins = ["tests.browser", "tests.live", "tests.services", "tests.processes"]

REAL_TIME = ("docker", "faults", "services", "slow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs in real time, beside whatever else a shared machine does, is asked again before it fails; pytest says so."""
    for item in items:
        if "live" in getattr(item, "fixturenames", ()) or any(item.get_closest_marker(m) for m in REAL_TIME):
            item.add_marker(pytest.mark.flaky(reruns=2))
