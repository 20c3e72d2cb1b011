"""Settings: the keyword, else the environment, else Dask's configuration, else the default; what is bad is named once."""

import dataclasses
from typing import Any

import dask
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_worker.instrumentor import _dask_config
from otel_worker.settings import Settings

DEFAULTS = Settings()
SOURCES: dict[str, Any] = {"keyword": "2", "environment": "3", "configuration": "4"}


def load(
    keyword: Any = None, environment: str | None = None, configuration: Any = None, name: str = "max_links"
) -> Any:
    """The value of one setting; None: not set there."""
    keywords = {} if keyword is None else {name: keyword}
    environ = {} if environment is None else {f"OTEL_PYTHON_DASK_{name.upper()}": environment}
    config = {} if configuration is None else {name.replace("_", "-"): configuration}
    return getattr(Settings.load(keywords, environ, config), name)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("keyword", "environment", "configuration"), 2),
        (("environment", "configuration"), 3),
        (("configuration",), 4),
        ((), DEFAULTS.max_links),
    ],
)
def test_the_nearest_source_wins(given: tuple[str, ...], expected: int, caplog: pytest.LogCaptureFixture):
    assert load(**{source: SOURCES[source] for source in given}) == expected
    assert caplog.records == []


def test_an_empty_variable_is_none(caplog: pytest.LogCaptureFixture):
    assert load(environment=" ", configuration=4) == 4
    assert caplog.records == []


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("keyword", "the keyword max_links"),
        ("environment", "the environment variable OTEL_PYTHON_DASK_MAX_LINKS"),
        ("configuration", "Dask's configuration otel-worker.max-links"),
    ],
)
def test_a_bad_value_is_named_with_its_source_and_the_default_taken(
    source: str, named: str, caplog: pytest.LogCaptureFixture
):
    """Not the next source: a user who set it there meant it."""
    values: dict[str, Any] = {"configuration": 4} if source != "configuration" else {}
    values[source] = "many"
    assert load(**values) == DEFAULTS.max_links
    (record,) = caplog.records
    assert record.getMessage() == (
        f"otel_worker: {named} is 'many', but it has to be a whole number of zero or more; taking {DEFAULTS.max_links}"
    )
    assert record.levelname == "WARNING"


GOOD: dict[str, list[tuple[Any, Any]]] = {
    "min_phase": [("0", 0.0), (0.5, 0.5), ("1e-3", 0.001), (2, 2.0)],
    "max_links": [("7", 7), (7, 7), (7.0, 7)],
    "trace_per_task": [("true", True), ("FALSE", False), (True, True)],
    "capture_exceptions": [("type", "type"), ("stacktrace", "stacktrace")],
}
BAD: dict[str, list[Any]] = {
    "min_phase": ["-1", "nan", "inf", "soon", True, None, [], 10**400],
    "max_links": ["1.5", 1.5, "-1", "many", True, 10**400, {}],
    "trace_per_task": ["1", "yes", 1, None],
    "capture_exceptions": ["all", "", True, [], {}],
}


@pytest.mark.parametrize(("name", "value", "expected"), [(n, v, e) for n, pairs in GOOD.items() for v, e in pairs])
def test_good_values(name: str, value: Any, expected: Any, caplog: pytest.LogCaptureFixture):
    found = getattr(Settings.load({name: value}, {}, {}), name)
    assert (found, type(found)) == (expected, type(getattr(DEFAULTS, name)))
    assert caplog.records == []


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD.items() for v in values])
def test_bad_values(name: str, value: Any, caplog: pytest.LogCaptureFixture):
    assert getattr(Settings.load({name: value}, {}, {}), name) == getattr(DEFAULTS, name)
    assert len(caplog.records) == 1


ANYTHING = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3)


@given(st.sampled_from(Settings.names()), ANYTHING)
def test_no_value_is_an_error(name: str, value: Any):
    found = Settings.load({name: value}, {f"OTEL_PYTHON_DASK_{name.upper()}": str(value)}, {name: value})
    assert type(getattr(found, name)) is type(getattr(DEFAULTS, name))


def test_dasks_configuration_in_both_spellings():
    with dask.config.set({"otel-worker.max-links": 5, "otel-worker": {"max_keys": 6}}):
        assert Settings.load({}, {}, _dask_config()).max_keys == 6
    with dask.config.set({"otel-worker.max-links": 5}):
        assert Settings.load({}, {}, _dask_config()) == dataclasses.replace(DEFAULTS, max_links=5)
    collected = dask.config.collect_env({"DASK_OTEL_WORKER__MAX_LINKS": "9"})
    with dask.config.set(collected):
        assert Settings.load({}, {}, _dask_config()).max_links == 9


@pytest.mark.parametrize("section", ["on", 5, ["max-links"]])
def test_a_configuration_that_is_no_mapping_is_named(section: Any, caplog: pytest.LogCaptureFixture):
    with dask.config.set({"otel-worker": section}):
        assert Settings.load({}, {}, _dask_config()) == DEFAULTS
    assert [record.getMessage() for record in caplog.records] == [
        f"otel_worker: Dask's configuration otel-worker is {section!r}, but it has to be a mapping"
    ]
