"""Collects the settings that decide about rolls, deletion and compaction, under Kafka's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kstore.config.broker_config import BrokerConfig
    from kstore.config.log_config import LogConfig
    from kstore.config.settings import Settings

_OF_LOG = (
    "cleanup_policy",
    "retention_ms",
    "retention_bytes",
    "segment_bytes",
    "segment_ms",
    "segment_jitter_ms",
    "segment_index_bytes",
    "index_interval_bytes",
    "file_delete_delay_ms",
)
_OF_COMPACTION = (
    "delete_retention_ms",
    "min_cleanable_dirty_ratio",
    "min_compaction_lag_ms",
    "max_compaction_lag_ms",
)


class Deciding(NamedTuple):
    """The deciding settings under Kafka's names, and the names of those that were given."""

    settings: dict[str, Any]
    given: frozenset[str]


def deciding(config: LogConfig, broker: BrokerConfig, interval_ms: int | None) -> Deciding:
    """Return the deciding settings of a log; with `interval_ms`, the period of the retention task, too."""
    names = _OF_LOG if config.internal_segment_bytes is None else (*_OF_LOG, "internal_segment_bytes")
    names = (*names, *_OF_COMPACTION) if config.compacts else names
    found = _named(config, names)
    if interval_ms is not None:
        task = "log_cleaner_backoff_ms" if config.compacts else "log_retention_check_interval_ms"
        of_task = _named(broker, (task,))
        found = Deciding(found.settings | dict.fromkeys(of_task.settings, interval_ms), found.given | of_task.given)
    return found


def _named(config: Settings, names: tuple[str, ...]) -> Deciding:
    rows = [row for row in config.settings if row.attribute in names]
    settings = {row.name: _plain(getattr(config, row.attribute)) for row in rows}
    return Deciding(settings, frozenset(row.name for row in rows if row.attribute in config.explicit))


def _plain(value: Any) -> Any:
    return ",".join(value) if isinstance(value, tuple) else value
