"""Metrics of a process, described once: what is exported, what is documented, what is tested.

A process has one catalogue, a tuple of `Metric`. At each scrape its collector fills an
`Exposition` from counters that exist anyway; nothing is counted for the sake of a scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from specsched_protocol.histogram import Histogram

__all__ = ["Exposition", "Metric", "MetricSource", "build_registry"]

_FAMILIES: Mapping[str, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True, slots=True)
class Metric:
    """name: as in queries (counters end in _total). values: of each label, what it can be."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Mapping[str, str] | None = None

    @property
    def family_name(self) -> str:
        """Name without the suffix that the exposition adds to a counter's."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name


class Exposition:
    """One scrape: every metric of a catalogue, with the samples it has now.

    common: labels of every sample. Raises KeyError for a metric outside the catalogue.
    """

    def __init__(self, catalogue: Iterable[Metric], common: Mapping[str, str]) -> None:
        self._common = common
        self._families: dict[str, Family] = {}
        for metric in catalogue:
            names = [*common, *(metric.labels or ())]
            family = _FAMILIES[metric.kind]
            self._families[metric.name] = family(metric.family_name, metric.help, labels=names)

    def add(self, metric: Metric, value: float, *labels: object) -> None:
        """A sample. labels: values in the order of the metric's labels."""
        family = self._families[metric.name]
        values = [*self._common.values(), *map(str, labels)]
        family.add_metric(values, value)  # type: ignore[attr-defined]

    def add_histogram(self, metric: Metric, histogram: Histogram, *labels: object) -> None:
        """The buckets of a histogram."""
        family = self._families[metric.name]
        values = [*self._common.values(), *map(str, labels)]
        family.add_metric(values, histogram.buckets(), histogram.sum)  # type: ignore[attr-defined]

    def families(self) -> Iterator[Family]:
        """In the order of the catalogue."""
        yield from self._families.values()


class MetricSource(Protocol):
    """Whoever fills an exposition; from any thread."""

    def collect(self) -> Iterable[Family]:
        """The families as they are now."""


class _SourceCollector(Collector):
    def __init__(self, source: MetricSource) -> None:
        self._source = source

    def collect(self) -> Iterable[Family]:
        return self._source.collect()

    def describe(self) -> Iterable[Family]:
        return ()  # asking for the values at registration would be too early


def build_registry(source: MetricSource) -> CollectorRegistry:
    """A registry of `source` and of this process's CPU, memory and descriptors."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SourceCollector(source))
    ProcessCollector(registry=registry)
    return registry
