"""In a program that `otel-worker run` started, each client that submits something says once who its scheduler is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def noting(path: str) -> Callable[[Any], None]:
    """What to call with a client: it appends a line of JSON to the file at `path`."""
    known: set[str] = set()

    def note(client: Any) -> None:
        address = client.scheduler.address
        if address not in known:
            known.add(address)
            with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123  several processes append whole lines
                file.write(json.dumps({"scheduler": address}) + "\n")

    return note
