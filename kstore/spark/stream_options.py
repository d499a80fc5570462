"""The options of a stream out of logs: those of a scan without an end, and what limits its micro-batches.

Names, defaults and meaning are those of Spark's Kafka source; `groupId` and `columns` are kstore's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from kstore.base.numbers import LONG_MAX
from kstore.errors import ConfigError
from kstore.files.stream_positions import check_group
from kstore.spark.option_reader import OF_STREAMS, OptionReader, plain
from kstore.spark.spark_options import OF_PUSHDOWN, READ_OPTIONS, WRITE_OPTIONS, ReadOptions

OF_BATCHES = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushdown", *OF_PUSHDOWN)
"""The options of a batch read that a stream does not have."""

STREAM_OPTIONS = (*(name for name in READ_OPTIONS if name not in OF_BATCHES), *OF_STREAMS)

MAX_DELAY_MS = 15 * 60_000


@dataclass(frozen=True)
class StreamOptions:
    """The parsed options of a stream. Immutable; can be pickled."""

    read: ReadOptions
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_DELAY_MS
    group: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse options as Spark passes them; raise `ConfigError` as `ReadOptions.parse` does."""
        given = {name.lower() for name in plain(options)}
        for name in OF_BATCHES:
            if name.lower() in given:
                raise ConfigError(f"{name} is an option of a batch read: a stream has no end, and no push-down")
        reader = OptionReader(options, "stream", STREAM_OPTIONS, WRITE_OPTIONS)
        most = reader.number("maxOffsetsPerTrigger", 1, LONG_MAX)
        least = reader.number("minOffsetsPerTrigger", 1, LONG_MAX)
        if most is not None and least is not None and least > most:
            raise ConfigError(f"minOffsetsPerTrigger is {least}, above maxOffsetsPerTrigger, which is {most}")
        delay_ms = reader.duration_ms("maxTriggerDelay")
        group = reader.text("groupId")
        if group is not None:
            check_group(group, "groupId")
        return cls(
            ReadOptions.of(reader, reader.bound("starting", of_stream=True)),
            max_offsets=most,
            min_offsets=least,
            max_delay_ms=MAX_DELAY_MS if delay_ms is None else delay_ms,
            group=group,
        )
