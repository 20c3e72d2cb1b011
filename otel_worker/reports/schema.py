"""The JSON Schema of `otel-worker report --json`: python -m otel_worker.reports.schema > docs/report.schema.json"""

import sys
from typing import Any

import msgspec

from otel_worker.reports.model import SCHEMA, Report


def schema() -> dict[str, Any]:
    found = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **found}


def text() -> bytes:
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2) + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(text())
