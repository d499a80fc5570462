"""Says what is not known about the settings of a directory that a broker or a store writes, and what would follow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kstore.base import times
from kstore.config.log_config import KAFKA_RETENTION_MS
from kstore.disk import fs
from kstore.files import topic_files
from kstore.log.explaining.check_times import BROKER_FILE
from kstore.log.writing.retention import Marks, decide, outlooks
from kstore.log.writing.writer import Writer

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.explained.explanation import CheckTimes
    from kstore.log.reading.read_only_view import ReadOnlyView
    from kstore.log.writing.retention import Deletion, Facts


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
    is_given = "retention_ms" in config.explicit or not config.deletes
    if is_of_broker(view.root):
        if not is_given:
            sentences += _of_broker(view.root, config, facts, marks, at_ms)
    elif not is_given and not knows_topics and fs.exists(os.path.join(view.root, topic_files.TOPICS_FILE)):
        sentences.append(
            f"A store wrote {view.root}: the settings that it was opened with are not in the directory, and those of "
            f"its topics are in {topic_files.TOPICS_FILE}, which only a store reads. Open the log with Store.open."
        )
    if not isinstance(view, Writer) and checks.by != "caller" and not fs.is_locked(view.root):
        sentences.append(f"No process has {view.root} open for writing now, so nothing checks it.")
    return " ".join(sentences) or None


def _of_broker(root: str, config: LogConfig, facts: Sequence[Facts], marks: Marks, at_ms: int) -> Iterator[str]:
    yield (
        f"A broker wrote {root}, and its settings are not in the directory: they are in its server.properties, and "
        "those of a topic in the metadata of its cluster."
    )
    default = config.replace(retention_ms=KAFKA_RETENTION_MS)
    gone = decide(facts, default, marks, at_ms)
    stays = list(outlooks(facts, default, marks, at_ms, gone))[len(gone) :]
    later = [(each.base_offset, each.due_ms) for each in stays if each.due_ms is not None]
    effects = []
    if gone:
        offsets = f"offsets {gone[0].base_offset} to {gone[-1].next_offset - 1}"
        effects.append(f"the next check would delete {offsets}, in {len(gone)} of {len(facts)} segments")
    if later:
        (first, first_ms), (last, last_ms) = later[0], later[-1]
        and_last = f" and segment {last}, the last, from {times.show(last_ms)} on" if len(later) > 1 else ""
        effects.append(f"segment {first} would be deleted from {times.show(first_ms)} on{and_last}")
    if effects:
        yield (
            f"With Kafka's default of retention.ms = {times.span(KAFKA_RETENTION_MS)}, {', and '.join(effects)}, "
            "if nothing more is appended."
        )
    yield 'Give the settings with config="server.properties", on the command line with -c server.properties.'


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
