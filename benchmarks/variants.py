"""What is compared: how the processes of a cluster are started in each variant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NOT_OURS = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "dask"}


@dataclass(frozen=True)
class Variant:
    """`instrumented`: started by `opentelemetry-instrument`. `orders`: for the driver, once the cluster is up."""

    name: str
    about: str
    instrumented: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    preload: str = ""  # of the workers
    orders: tuple[str, ...] = ()
    source: Path | None = None  # where `otel_worker` is taken from, else this tree

    @property
    def observes(self) -> bool:
        """Whether ours is at work in its processes."""
        return self.instrumented and self.environment is not NOT_OURS


BARE = Variant("bare", "plain Dask, no OpenTelemetry", instrumented=False)
OURS = Variant("ours", "default settings, spans and metrics exported")
QUICK = ("bare", "bare again", "ours", "facts only", "sampled off")

VARIANTS = (
    BARE,
    Variant("bare again", "the same: what differs is noise", instrumented=False),
    OURS,
    Variant("facts only", "our hooks and facts; no observer, so neither spans nor metrics", orders=("facts only",)),
    Variant(
        "budget 0",
        "facts, metrics, and all tasks coalesced",
        environment={"OTEL_PYTHON_DASK_SPAN_BUDGET": "0", "OTEL_PYTHON_DASK_SPAN_BURST": "0"},
    ),
    Variant("sampled off", "OTEL_TRACES_SAMPLER=always_off", environment={"OTEL_TRACES_SAMPLER": "always_off"}),
    Variant("disabled", "installed, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=dask", environment=NOT_OURS),
    Variant(
        "plain spans",
        "a plugin that makes one SDK span for each phase of each task and fetch",
        environment=NOT_OURS,
        preload="benchmarks.plain_spans",
    ),
    Variant(
        "no Dask metrics",
        "plain Dask without its own fine performance metrics",
        instrumented=False,
        preload="benchmarks.no_fine_metrics",
    ),
)
