"""Collects the settings that decide about rolls, deletion and compaction, and what is not known about a broker's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import KAFKA_RETENTION_MS, LogConfig
from kstore.disk import fs
from kstore.log.explaining.check_times import BROKER_FILE

if TYPE_CHECKING:
    from kstore.config.settings import Settings
    from kstore.log.reading.read_only_view import ReadOnlyView
    from kstore.log.writing.retention import Deletion
    from kstore.log.writing.writer import Writer

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


def note_on_broker(
    view: Writer | ReadOnlyView, config: LogConfig, decide: Callable[[LogConfig], list[Deletion]]
) -> str | None:
    """Return that a broker's settings are not known, and what Kafka's defaults would do; None if that does not matter.

    `decide` returns what retention deletes at the explained moment with other settings.
    """
    other = kafka_default(view.root, config)
    return None if other is None else broker_note([view.root], would_delete([decide(other)]))


def kafka_default(root: str, config: LogConfig) -> LogConfig | None:
    """Return the settings with Kafka's default of `retention.ms`; None if kstore's is not used in a broker's place."""
    if not config.deletes or "retention_ms" in config.explicit or not is_of_broker(root):
        return None
    return config.replace(retention_ms=KAFKA_RETENTION_MS)


def is_of_broker(root: str) -> bool:
    """Return whether a broker has written a log directory."""
    return fs.exists(os.path.join(root, BROKER_FILE))


def would_delete(deletions: Iterable[Sequence[Deletion]]) -> str:
    """Return what Kafka's default of `retention.ms` would do; `deletions` has what it deletes of each partition."""
    by_partition = [gone for gone in deletions if gone]
    default = f"Kafka's default of {KAFKA_RETENTION_MS // 86_400_000} days (retention.ms={KAFKA_RETENTION_MS})"
    if not by_partition:
        return f"{default} would delete nothing yet"
    segments = [deletion for gone in by_partition for deletion in gone]
    count = f"{len(segments)} segment{'s' if len(segments) != 1 else ''}"
    where = f"in {len(by_partition)} partitions"
    if len(by_partition) == 1:
        where = f"offsets {segments[0].base_offset} to {segments[-1].next_offset - 1}"
    return f"{default} would delete {count}, {sum(each.size_bytes for each in segments)} bytes, {where}"


def broker_note(roots: Iterable[str], default: str, setting: str = "retention.ms") -> str:
    """Return that the value of a setting is not known, since a broker wrote these directories, and how to give it.

    `default` says what Kafka's default would do, as a sentence without its full stop.
    """
    return (
        f"a broker wrote {', '.join(roots)}, and its settings are not known: they are in its server.properties and, "
        f"for a topic, in the metadata of its cluster. No {setting} is given, so kstore's default counts for topics "
        f"without a record here. {default}. Give the broker's settings with -c server.properties (in Python "
        f'config="server.properties"), or one with -c {setting}=VALUE.'
    )
