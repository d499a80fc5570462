"""Says what is not known about the settings of a directory that a broker or a store writes, and what would follow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
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
    from kstore.log.writing.retention import Facts


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
    if fs.exists(os.path.join(view.root, BROKER_FILE)):
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
