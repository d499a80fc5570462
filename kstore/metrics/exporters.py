"""The public functions that export metrics; they import the other modules and their libraries when called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client import CollectorRegistry

    from kstore.copies.backups.backup import Backup
    from kstore.copies.replication.replicate import Replication
    from kstore.log.log import Log
    from kstore.store.store import Store


def export_to_prometheus(
    source: Log | Store | Replication | Backup,
    registry: CollectorRegistry | None = None,
    *,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Export the metrics of a source to a registry of `prometheus_client`, which reads them at each scrape.

    docs/metrics.md lists the metrics. The source counts the same numbers if it is not exported. A scrape may run in any
    thread, also at the same time as `close()`.

    Args:
        source: The source. It is held weakly: once it is closed or collected, it has no metrics.
        registry: The registry; `prometheus_client.REGISTRY` if None.
        labels: Labels that are added to those of the metrics. Sources of the same kind in a registry need different
            ones.

    Raises:
        ConfigError: If the library is missing; the text names the extra `prometheus`.
        TypeError: If `source` has another type.
        ValueError: If the registry has a source of the same kind with the same labels.

    Example:
        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> with kstore.Log.open("data/orders-0") as log:
        ...     kstore.export_to_prometheus(log, registry)
        ...     offset = log.append(b"3 apples")
        ...     print(registry.get_sample_value("kstore_log_end_offset", {"topic": "orders", "partition": "0"}))
        1.0
    """
    from kstore.metrics import prometheus

    prometheus.export(source, registry, labels)


def export_to_opentelemetry(
    source: Log | Store | Replication | Backup,
    meter_provider: MeterProvider | None = None,
    *,
    attributes: Mapping[str, str] | None = None,
) -> None:
    """Export the metrics of a source to the meter "kstore" of a provider, whose readers collect them.

    docs/metrics.md lists the metrics. A histogram is exported as counters: its count, its sum, and its buckets with the
    attribute `le`. The source counts the same numbers if it is not exported. A collection may run in any thread, also
    at the same time as `close()`.

    Args:
        source: The source. It is held weakly: once it is closed or collected, it has no metrics.
        meter_provider: The provider; the global one if None.
        attributes: Attributes that are added to those of the metrics. Sources of the same kind in a provider need
            different ones.

    Raises:
        ConfigError: If the library is missing; the text names the extra `opentelemetry`.
        TypeError: If `source` has another type.
        ValueError: If the provider has a source of the same kind with the same attributes.

    Example:
        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        >>> reader = InMemoryMetricReader()
        >>> with kstore.Log.open("data/orders-0") as log:
        ...     kstore.export_to_opentelemetry(log, MeterProvider([reader]))
        ...     offset = log.append(b"3 apples")
        ...     (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
        >>> "kstore.log.end_offset" in [metric.name for metric in scope.metrics]
        True
    """
    from kstore.metrics import opentelemetry

    opentelemetry.export(source, meter_provider, attributes)
