"""Says what is not known about the settings of a directory that a broker or a store writes, and what would follow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kstore.base import times
from kstore.config.log_config import KAFKA_RETENTION_MS
from kstore.disk import fs
from kstore.files import topic_files
from kstore.files.broker_directory import is_of_broker, of_brokers
from kstore.log.writing.retention import Marks, decide, outlooks
from kstore.log.writing.writer import Writer

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.explained.explanation import CheckTimes
    from kstore.log.reading.read_only_view import ReadOnlyView
    from kstore.log.writing.retention import Deletion, Facts

_DEFAULT = f"Kafka's default of retention.ms = {times.span(KAFKA_RETENTION_MS)}"


def note(
    view: Writer | ReadOnlyView,
    config: LogConfig,
    facts: Sequence[Facts],
    marks: Marks,
    checks: CheckTimes,
    at_ms: int,
    *,
    knows_topics: bool,
) -> str | None:
    """Return what is not known about the settings, as sentences; None if everything that matters is known.

    `knows_topics` says that the settings come from a store, which has read those of its topics.
    """
    sentences: list[str] = []
    other = kafka_default(view.root, config)
    if other is not None:
        sentences.append(of_brokers([view.root], _of_default(facts, other, marks, at_ms)))
    elif knows_topics and checks.by == "broker" and is_of_store(view.root, config):
        sentences.append(of_store(view.root))
    elif not knows_topics and is_of_store(view.root, config):
        sentences.append(
            f"A store wrote {view.root}: the settings that it was opened with are not in the directory, and those of "
            f"its topics are in {topic_files.TOPICS_FILE}, which only a store reads. Open the log with Store.open."
        )
    if not isinstance(view, Writer) and checks.by != "caller" and not fs.is_locked(view.root):
        sentences.append(unchecked(view.root))
    return " ".join(sentences) or None


def unchecked(root: str) -> str:
    """Return that nothing checks the logs of a directory, as a sentence."""
    if fs.is_mounted(root):
        return f"No check deletes from {root}: the times are those of a store that has these files on its disk."
    return f"No process has {root} open for writing now, so nothing checks it."


def is_of_store(root: str, config: LogConfig) -> bool:
    """Return whether a store has written a log directory, and `retention.ms` of a log in it counts and is not given."""
    if not config.deletes or "retention_ms" in config.explicit:
        return False
    return fs.exists(os.path.join(root, topic_files.TOPICS_FILE))


def of_store(root: str) -> str:
    """Return that the settings that a store was opened with are not known, and how to give them, as sentences."""
    return (
        f"A store wrote {root}: the settings that it was opened with are not in the directory. Give them as to "
        "Store.open, on the command line with -c NAME=VALUE."
    )


def kafka_default(root: str, config: LogConfig) -> LogConfig | None:
    """Return the settings of a log in `root` with Kafka's default of `retention.ms`.

    None if its age does not count, if the setting is given, or if no broker wrote the directory.
    """
    if not config.deletes or "retention_ms" in config.explicit or not is_of_broker(root):
        return None
    return config.replace(retention_ms=KAFKA_RETENTION_MS)


def would_delete(deletions: Iterable[Sequence[Deletion]]) -> str:
    """Return what a check would delete with Kafka's default of `retention.ms`, of each of several partitions.

    The text is a part of a sentence.
    """
    by_partition = [gone for gone in deletions if gone]
    if not by_partition:
        return f"with {_DEFAULT} a check would delete nothing yet"
    segments = [deletion for gone in by_partition for deletion in gone]
    count = f"{len(segments)} segment{'s' if len(segments) != 1 else ''}"
    where = f"in {len(by_partition)} partitions" if len(by_partition) > 1 else _offsets(segments)
    return f"with {_DEFAULT} a check would delete {count}, {sum(each.size_bytes for each in segments)} bytes, {where}"


def _offsets(gone: Sequence[Deletion]) -> str:
    return f"offsets {gone[0].base_offset} to {gone[-1].next_offset - 1}"


def _of_default(facts: Sequence[Facts], default: LogConfig, marks: Marks, at_ms: int) -> str:
    """Return what retention would do with Kafka's defaults, now and later, as a sentence; empty for nothing."""
    gone = decide(facts, default, marks, at_ms)
    stays = list(outlooks(facts, default, marks, at_ms, gone))[len(gone) :]
    later = [(each.base_offset, each.due_ms) for each in stays if each.due_ms is not None]
    effects = []
    if gone:
        effects.append(f"the next check would delete {_offsets(gone)}, in {len(gone)} of {len(facts)} segments")
    if later:
        (first, first_ms), (last, last_ms) = later[0], later[-1]
        and_last = f" and segment {last}, the last, from {times.show(last_ms)} on" if len(later) > 1 else ""
        effects.append(f"segment {first} would be deleted from {times.show(first_ms)} on{and_last}")
    return f"With {_DEFAULT}, {', and '.join(effects)}, if nothing more is appended." if effects else ""
