"""A process that stays on one core: threads that hand over to each other are not moved meanwhile."""

from __future__ import annotations

import os


def pin() -> None:
    """Stay on the last core that this process may use, where the system can be told so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
