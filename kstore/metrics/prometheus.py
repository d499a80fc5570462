"""Exports to Prometheus with a collector in a registry of `prometheus_client`, which calls it at each scrape."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from kstore.base import optional
from kstore.metrics.exported_sources import Exported
from kstore.metrics.metric_families import FAMILIES, Family

if TYPE_CHECKING:
    from kstore.base.stats import HistogramStats
    from kstore.metrics.metric_samples import Source

_collectors: weakref.WeakKeyDictionary[Any, Collector] = weakref.WeakKeyDictionary()


class Collector:
    """Collects the metrics of all sources that are exported to one registry."""

    def __init__(self, library: Any) -> None:
        self.exported = Exported()
        self._library = library

    def describe(self) -> Iterator[Any]:
        """Yield the families without values, from which the registry gets their names."""
        for family in FAMILIES:
            yield self._made(family)

    def collect(self) -> Iterator[Any]:
        """Yield the families that have values now."""
        made: dict[Family, Any] = {}
        for (family, _, value), labels in self.exported.samples():
            metric = made.get(family)
            if metric is None:
                metric = made[family] = self._made(family)
            if family.kind == "histogram":
                _add_histogram(metric, labels, cast("HistogramStats", value))
            else:
                name = metric.name + ("_total" if family.kind == "counter" else "")
                metric.add_sample(name, labels, float(cast("float", value)))
        yield from made.values()

    def _made(self, family: Family) -> Any:
        return self._library.metrics_core.Metric(family.prometheus, family.text, family.kind)


def _add_histogram(metric: Any, labels: dict[str, str], stats: HistogramStats) -> None:
    for bound, count in stats["buckets"]:
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": str(bound)}, count)
    metric.add_sample(f"{metric.name}_bucket", {**labels, "le": "+Inf"}, stats["count"])
    metric.add_sample(f"{metric.name}_count", labels, stats["count"])
    metric.add_sample(f"{metric.name}_sum", labels, stats["sum"])


def export(source: Source, registry: Any, labels: Mapping[str, str] | None) -> None:
    """See `kstore.export_to_prometheus`."""
    library = optional.prometheus_client("export_to_prometheus")
    registry = library.REGISTRY if registry is None else registry
    collector = _collectors.get(registry) or Collector(library)
    collector.exported.add(source, labels)
    if registry not in _collectors:
        registry.register(collector)
        _collectors[registry] = collector
