"""The calls that export metrics. The other modules are imported on use, with the library that it needs."""

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
    """Have a registry of `prometheus_client` (None: `prometheus_client.REGISTRY`) collect metrics at each scrape.

    docs/metrics.md has their names. Nothing is counted for it beside what is counted anyway. `source` is held weakly:
    once it is closed or collected, its metrics are gone. Two sources of one kind in a registry need `labels` that
    differ, which are added to those of their metrics. A scrape may come from any thread, also beside `close()`.

    Raises `ConfigError` that names the extra `prometheus` where the library is missing, and `ValueError` for a source
    of the same kind with the same labels.
    """
    from kstore.metrics import prometheus

    prometheus.export(source, registry, labels)


def export_to_opentelemetry(
    source: Log | Store | Replication | Backup,
    meter_provider: MeterProvider | None = None,
    *,
    attributes: Mapping[str, str] | None = None,
) -> None:
    """Have the meter "kstore" of a provider (None: the global one) observe metrics whenever its reader collects.

    Otherwise as `export_to_prometheus`; the extra is `opentelemetry`. Histograms are exported as counters: count, sum,
    and buckets by the attribute `le`.
    """
    from kstore.metrics import opentelemetry

    opentelemetry.export(source, meter_provider, attributes)
