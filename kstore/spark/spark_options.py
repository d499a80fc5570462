"""The options of scans and writes, and the ranges of offsets that the tasks of a scan read.

Options, defaults and precedence are those of Spark's Kafka source (SPARK 4), with a few additions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.files.names import INTERNAL_TOPICS
from kstore.spark.option_reader import (
    EARLIEST,
    FROM_EARLIEST,
    LATEST,
    TO_LATEST,
    Bound,
    Isolation,
    OptionReader,
    Partition,
)
from kstore.spark.storage_options import StorageOptions

if TYPE_CHECKING:
    from kstore.spark.partition_marks import Marks
    from kstore.spark.pushdown import Filters

logger = logging.getLogger("kstore")

READ_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "columns",
    "isolation",
    "pushdown",
    "maxLatenessMs",
    "partitionedByKey",
)
OF_PUSHDOWN = ("maxLatenessMs", "partitionedByKey")
WRITE_OPTIONS = (
    "topic",
    "partitions",
    "compression",
    "batchBytes",
    "stagingDir",
    "txnAppId",
    "txnVersion",
    "commitTimeout",
)
COMMIT_TIMEOUT = 60.0  # seconds
DEFAULT_PARTITIONERS = ("DefaultPartitioner", "UniformStickyPartitioner", "BuiltInPartitioner")


class Range(NamedTuple):
    """The offsets `[start, end)` of a partition that one task reads."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a scan. Immutable; can be pickled."""

    strategy: Literal["subscribe", "subscribePattern", "assign"]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[Partition, ...] = ()
    starting: Bound = FROM_EARLIEST
    ending: Bound = TO_LATEST
    late_start_is_latest: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records: int | None = None
    columns: tuple[str, ...] = ()
    isolation: Isolation = "read_uncommitted"
    pushdown: bool = False
    max_lateness_ms: int | None = None
    partitioned_by_key: bool = False
    storage: StorageOptions | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse options as Spark passes them: text, by names in any case.

        Raises `ConfigError` for an unknown name without the prefix `kafka.`, and for an invalid value.
        """
        reader = OptionReader(options, "scan", READ_OPTIONS, WRITE_OPTIONS)
        pushdown = reader.truth("pushdown", default=False)
        for name in OF_PUSHDOWN:
            if not pushdown and reader.text(name) is not None:
                raise ConfigError(f"{name} is {reader.text(name)!r} and has an effect only with pushdown=true")
        return replace(
            cls.of(reader, reader.bound("starting"), reader.bound("ending")),
            pushdown=pushdown,
            max_lateness_ms=reader.number("maxLatenessMs", 0, LONG_MAX),
            partitioned_by_key=reader.truth("partitionedByKey", default=False),
        )

    @classmethod
    def of(cls, reader: OptionReader, starting: Bound, ending: Bound = TO_LATEST) -> Self:
        """Return the options that batch reads and streams have in common, with the given bounds."""
        strategy, chosen = reader.strategy()
        late = reader.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        return cls(
            strategy=strategy,
            **chosen,
            starting=starting,
            ending=ending,
            late_start_is_latest=late == "latest",
            fail_on_data_loss=reader.truth("failOnDataLoss", default=True),
            min_partitions=reader.number("minPartitions", 1, INT_MAX),
            max_records=reader.number("maxRecordsPerPartition", 1, LONG_MAX),
            columns=reader.columns(),
            isolation=reader.isolation(),
            storage=reader.storage(),
        )

    def choose(self, present: Mapping[str, Sequence[int]]) -> list[Partition]:
        """Return the partitions of `present` to read, sorted by topic and number.

        Raises `UnknownTopicOrPartitionError` if one is missing, or logs a warning if `failOnDataLoss` is false. A
        pattern does not match internal topics, as in Kafka's consumers.
        """
        if self.strategy == "subscribePattern":
            matches = re.compile(self.pattern).fullmatch
            named = sorted(topic for topic in present if topic not in INTERNAL_TOPICS and matches(topic))
            return [(topic, number) for topic in named for number in sorted(present[topic])]
        if self.strategy == "subscribe":
            absent_topics = [topic for topic in self.topics if topic not in present]
            if absent_topics:
                what = f"subscribe names {absent_topics[0]!r}, and there {_list(present)}"
                self.lost(UnknownTopicOrPartitionError, what)
            return [(topic, number) for topic in sorted(self.topics) for number in sorted(present.get(topic, ()))]
        absent = [(topic, number) for topic, number in self.assigned if number not in present.get(topic, ())]
        if absent:
            topic, number = absent[0]
            has = f"topic {topic} has {list(present[topic])[:20]}" if topic in present else f"there {_list(present)}"
            self.lost(UnknownTopicOrPartitionError, f"assign names {topic}-{number}, and {has}")
        return sorted(set(self.assigned) - set(absent))

    def plan(
        self,
        chosen: Sequence[Partition],
        marks: Callable[[str, int], Marks],
        *,
        min_partitions: int | None = None,
        filters: Filters | None = None,
    ) -> list[Range]:
        """Return the ranges that tasks read, in the order of topic, partition and offset, without empty ones.

        With `filters` they have only what a query's conditions may select.

        `earliest`, `latest` and times become offsets here, so that a retried task reads the same records. If there are
        fewer ranges than `minPartitions` (the option, else the argument), larger ranges are cut, at a batch boundary if
        one is near. No range is longer than `maxRecordsPerPartition` offsets. Offsets may have gaps, so a range's
        length is not its number of records. Raises `OffsetOutOfRangeError` for offsets that are not in the log, unless
        `failOnDataLoss` is false.
        """
        self.starting.check_names(chosen)
        self.ending.check_names(chosen)
        whole = []
        for topic, number in chosen:
            if filters is not None and not filters.takes(topic, number):
                continue
            mark = marks(topic, number)
            start, end = (self.offset(bound, topic, number, mark) for bound in (self.starting, self.ending))
            is_time = self.starting.is_time or self.ending.is_time
            if end < start and not is_time and self.ending.of((topic, number)) >= 0:
                text = self.ending.text
                raise ConfigError(f"endingOffsets is {end} for {topic}-{number}, below its start {start}: {text}")
            if filters is not None and start < end:
                start, end = filters.within(start, end, mark)
            if start < end:
                whole.append((Range(topic, number, start, end), mark.border))
        wanted = self.min_partitions if self.min_partitions is not None else min_partitions
        return list(split(whole, wanted, self.max_records))

    def offset(self, bound: Bound, topic: str, number: int, mark: Marks) -> int:
        """Return the offset that a bound means in a partition."""
        value = bound.of((topic, number))
        if bound.is_time:
            first = mark.at_time(value)
            if first is None and bound is self.starting and not self.late_start_is_latest:
                raise ConfigError(
                    f"{bound.option} is {value} for {topic}-{number}, which has no record at or after that; "
                    f"startingOffsetsByTimestampStrategy=latest starts at its end instead: {bound.text}"
                )
            return mark.end if first is None else min(first, mark.end)
        if value in (EARLIEST, LATEST):
            return mark.start if value == EARLIEST else mark.end
        if not mark.start <= value <= mark.end:
            span = f"whose offsets are {mark.start} to {mark.end}"
            self.lost(OffsetOutOfRangeError, f"{bound.option} is {value} for {topic}-{number}, {span}")
        return min(max(value, mark.start), mark.end)

    def lost(self, kind: type[Exception], what: str) -> None:
        if self.fail_on_data_loss:
            raise kind(f"{what}; with failOnDataLoss=false that is passed over")
        logger.warning("%s; passed over, since failOnDataLoss is false", what)


def split(
    ranges: Sequence[tuple[Range, Callable[[int], int]]], min_partitions: int | None, max_records: int | None
) -> Iterator[Range]:
    """Cut ranges in proportion to their lengths into `min_partitions` pieces of at most `max_records` offsets."""
    total = sum(part.end - part.start for part, _ in ranges)
    counts = [1] * len(ranges)
    if min_partitions is not None and min_partitions > len(ranges):
        counts = _shares([part.end - part.start for part, _ in ranges], total, min_partitions)
    for (part, border), count in zip(ranges, counts, strict=True):
        for start, end in _pieces(part.start, part.end, count, max_records, border):
            yield part._replace(start=start, end=end)


def _shares(sizes: Sequence[int], total: int, wanted: int) -> list[int]:
    """Return each range's number of pieces, in proportion to its size; the sum is at least `wanted` if possible."""
    counts = [min(max(size * wanted // total, 1), size) for size in sizes]
    # After rounding down, some pieces are left over: the ranges with the longest pieces get them.
    for _ in range(min(wanted, total) - sum(counts)):
        most = max(range(len(sizes)), key=lambda i: (sizes[i] / counts[i], -i))
        counts[most] += 1
    return counts


def _pieces(
    start: int, end: int, count: int, most: int | None, border: Callable[[int], int]
) -> Iterator[tuple[int, int]]:
    """Cut `[start, end)` into at least `count` pieces of at most `most` offsets; the last piece gets the remainder."""
    while True:
        step = (end - start) // max(count, 1)
        step = max(step if most is None else min(step, most), 1)
        if start + step >= end:
            yield start, end
            return
        cut = start + step
        near = border(cut)
        if near - start > step // 2:
            cut = near  # so that no batch is decoded by two tasks
        yield start, cut
        start, count = cut, count - 1


@dataclass(frozen=True)
class WriteOptions:
    """The parsed options of a write. Immutable; can be pickled."""

    topic: str | None = None
    partitions: int | None = None
    compression: str | None = None
    batch_bytes: int | None = None
    config: Mapping[str, str] | None = None
    staging_dir: str | None = None
    txn: tuple[str, int] | None = None
    commit_timeout: float = COMMIT_TIMEOUT
    storage: StorageOptions | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse options as Spark passes them; raise `ConfigError` as `ReadOptions.parse` does.

        A partitioner other than Kafka's default one is refused; a column `partition` can replace it.
        """
        reader = OptionReader(options, "write", WRITE_OPTIONS, READ_OPTIONS)
        app, version = reader.text("txnAppId"), reader.number("txnVersion", 0, LONG_MAX)
        if (app is None) != (version is None) or app == "":
            missing = "txnVersion" if version is None else "txnAppId"
            raise ConfigError(f"a transaction has a txnAppId and a txnVersion, and {missing} is missing")
        timeout = reader.seconds("commitTimeout")
        partitioner = reader.text("kafka.partitioner.class")
        if partitioner is not None and not partitioner.endswith(DEFAULT_PARTITIONERS):
            raise ConfigError(
                f"kafka.partitioner.class is {partitioner!r}; rows go by Kafka's default one or by a column partition"
            )
        return cls(
            topic=reader.text("topic"),
            partitions=reader.number("partitions", 1, INT_MAX),
            compression=reader.text("compression"),
            batch_bytes=reader.number("batchBytes", 1, INT_MAX),
            config=reader.config(),
            staging_dir=reader.text("stagingDir"),
            storage=reader.storage(),
            txn=None if app is None or version is None else (app, version),
            commit_timeout=COMMIT_TIMEOUT if timeout is None else timeout,
        )


def _list(topics: Iterable[str]) -> str:
    names = sorted(topics)
    return f"are {', '.join(names[:5])}{', …' if len(names) > 5 else ''}" if names else "is no topic at all"
