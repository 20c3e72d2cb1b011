"""The JSON Schema of `otel-worker report --json`: python -m otel_worker.reports.schema > docs/report.schema.json"""

import sys
from inspect import cleandoc
from typing import Any

import msgspec

from otel_worker.reports.model import SCHEMA, Report


def schema() -> dict[str, Any]:
    found = _clean(msgspec.json.schema(Report))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **found}


def _clean(found: Any) -> Any:
    """Docstrings without their indentation, which not every msgspec takes away."""
    if isinstance(found, dict):
        return {k: cleandoc(v) if k == "description" and isinstance(v, str) else _clean(v) for k, v in found.items()}
    return [_clean(item) for item in found] if isinstance(found, list) else found


def text() -> bytes:
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2) + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(text())
