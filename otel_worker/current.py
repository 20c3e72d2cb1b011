"""What the code that runs now works for."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

# A record of `facts`, `shuffle_facts` or `actor_facts`. Set only in contexts that are private to an asyncio task, or reset in
# the same call; every reader checks the record's type and phase, since contexts are copied into whatever is started meanwhile.
CURRENT: ContextVar[Any] = ContextVar("otel_worker_current", default=None)
