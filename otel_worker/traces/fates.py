"""How many spans the workers say they recorded, coalesced, dropped: the one metric that a report of spans needs."""

from msgspec import Struct

from otel_worker import names

_CUMULATIVE = 2  # OTLP's AggregationTemporality: each point tells the whole so far
_Series = tuple[str, str]  # who counts, what became of the spans


class _Value(Struct, frozen=True, gc=False, rename="camel"):
    string_value: str = ""


class _Attribute(Struct, frozen=True, gc=False):
    key: str = ""
    value: _Value = _Value()


class _Point(Struct, frozen=True, gc=False, rename="camel"):
    as_int: int = 0
    attributes: list[_Attribute] = []


class _Sum(Struct, frozen=True, gc=False, rename="camel"):
    data_points: list[_Point] = []
    aggregation_temporality: int = 0


class _Metric(Struct, frozen=True, gc=False):
    name: str = ""
    sum: _Sum = _Sum()


class _ScopeMetrics(Struct, frozen=True, gc=False):
    metrics: list[_Metric] = []


class ResourceMetrics(Struct, frozen=True, gc=False, rename="camel"):
    scope_metrics: list[_ScopeMetrics] = []


class Fates:
    """Adds up over workers, and over points where they tell differences."""

    def __init__(self) -> None:
        self._series: dict[_Series, int] = {}

    def add(self, found: ResourceMetrics) -> None:
        for scope in found.scope_metrics:
            for metric in scope.metrics:
                if metric.name == names.METRIC_SPANS:
                    self._add_sum(metric.sum)

    def _add_sum(self, found: _Sum) -> None:
        for point in found.data_points:
            told = {a.key: a.value.string_value for a in point.attributes}
            series = (told.get(names.WORKER_ADDRESS, ""), told.get(names.OUTCOME, ""))
            before = self._series.get(series, 0)
            cumulative = found.aggregation_temporality == _CUMULATIVE
            self._series[series] = max(before, point.as_int) if cumulative else before + point.as_int

    def totals(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for (_, fate), number in self._series.items():
            found[fate] = found.get(fate, 0) + number
        return found
