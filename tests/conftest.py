"""Fixtures of more than one test file; each set stands in a module of its own."""

pytest_plugins = ["tests.live", "tests.services", "tests.processes"]
