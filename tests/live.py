"""The fixture `live`: us, switched on strictly, around real clusters of the test's own; spans read as the report reads them."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from otel_worker.checks import check
from otel_worker.hooks import TABLE
from otel_worker.otlp_json import traces_to_json
from otel_worker.testing import Switch
from otel_worker.traces import Span, read
from otel_worker.trees import subtree, tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def targets() -> list[Any]:
    """What stands now in each place that the table names."""
    held = []
    for row in TABLE:
        module = importlib.import_module(row.module)
        held.append(vars(row.holder(module)).get(row.name))
    return held


ORIGINALS: list[Any] = []


def assert_dask_is_its_own_again() -> None:
    if not ORIGINALS:
        ORIGINALS.extend(targets())
    for row, before, now in zip(TABLE, ORIGINALS, targets(), strict=True):
        assert now is before, f"{row.target} is still patched"
        assert not hasattr(now, "_otel_worker"), row.target


class Live:
    """Us, switched on, and what was recorded."""

    def __init__(self, folder: Path) -> None:
        self.switch = Switch()
        self._folder = folder
        self.others: list[Path] = []  # what workers in processes of their own left

    @property
    def runtime(self) -> Any:
        return self.switch.instrumentor.runtime

    def again(self, **settings: Any) -> None:
        """Switch off and on with other settings."""
        self.switch.off()
        self.switch.exported.clear()
        self.switch.on(**settings)

    def spans(self) -> list[Span]:
        """What was exported so far, through OTLP's own encoding."""
        if not self.switch.exported.finished:
            return []
        path = self._folder / "spans.jsonl"
        path.write_text(json.dumps(traces_to_json(encode_spans(self.switch.exported.finished))) + "\n")
        return [span for one in (path, *self.others) for span in read(one).spans]

    def find(self, name: str, key: Any = None) -> Span:
        """The one span of this name (and key)."""
        found = [
            s for s in self.spans() if s.name == name and (key is None or s.attributes["dask.task.key"] == str(key))
        ]
        assert len(found) == 1, f"{len(found)} spans {name!r} {key or ''}"
        return found[0]

    def tree(self, name: str, key: Any = None, **options: Any) -> list[str]:
        """The tree below that span as text."""
        return tree(subtree(self.spans(), self.find(name, key)), **options)

    def check(self) -> None:
        """Every rule of sound traces holds, nothing of ours failed, and every map of ours is empty."""
        assert check(self.spans()) == []
        assert self.switch.failures() == []

    def sizes(self) -> list[dict[str, int]]:
        return [recorder.sizes() for recorder in self.runtime.by_worker.values()]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    assert_dask_is_its_own_again()
    held = Live(tmp_path)
    held.switch.on()
    try:
        yield held
        failures = held.switch.failures()
    finally:
        held.switch.off()
    assert_dask_is_its_own_again()
    assert failures == []
