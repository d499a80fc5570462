"""Parses the options of scans and writes in Spark's spelling, and plans the ranges of offsets that tasks read.

Options, defaults and precedence are those of Spark's Kafka source (SPARK 4), with a few additions. Invariant: the
error for a bad option is raised here, on the driver, with the option's name and value.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.files.names import INTERNAL_TOPICS

logger = logging.getLogger("kstore")

EARLIEST, LATEST = -2, -1

COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The columns of a scan, with Spark's names of their types, in the order of Spark's Kafka source."""

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
)
# Options that have an effect only with a broker: accepted and ignored.
IGNORED = (
    "path",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
# Spark adds these options to those of a table in SQL. It passes the table's own options with a prefix, and in some
# calls also without the prefix.
OF_TABLES = ("location", "provider", "owner", "comment", "external", "is_managed_location", "collation")
TABLE_PREFIX = "option."
OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
KAFKA_PREFIX = "kafka."

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
CONFIG_PREFIX = "config."  # Kafka's settings for a topic that a write creates: config.segment.bytes
DEFAULT_PARTITIONERS = ("DefaultPartitioner", "UniformStickyPartitioner", "BuiltInPartitioner")

Isolation = Literal["read_uncommitted", "read_committed"]
Partition = tuple[str, int]


class Marks(Protocol):
    """The offsets of one partition at the time of planning; they do not change."""

    @property
    def start(self) -> int:
        """The log start offset."""

    @property
    def end(self) -> int:
        """The offset after the last record that the isolation level makes visible."""

    def at_time(self, timestamp: int) -> int | None:
        """Return the lowest offset whose timestamp is at or after `timestamp`."""

    def border(self, offset: int) -> int:
        """Return the base offset of the batch that contains `offset`, or `offset` if the batch is not known."""


class Range(NamedTuple):
    """The offsets `[start, end)` of a partition that one task reads."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Bound:
    """The start or end of a scan: earliest or latest, offsets or times, for each partition or for all."""

    option: str
    text: str
    everywhere: int | None = None
    by_partition: Mapping[Partition, int] = field(default_factory=dict)
    is_time: bool = False

    def of(self, partition: Partition) -> int:
        """Return the bound of a partition: an offset, `EARLIEST`, `LATEST` or a timestamp."""
        return self.by_partition[partition] if self.everywhere is None else self.everywhere

    def check_names(self, chosen: Iterable[Partition]) -> None:
        """Raise `ConfigError` if bounds by partition do not name exactly the partitions that are read."""
        if self.everywhere is not None:
            return
        wanted = set(chosen)
        missing, beyond = sorted(wanted - self.by_partition.keys()), sorted(self.by_partition.keys() - wanted)
        if missing or beyond:
            wrong = f"does not name {_shown(missing)}" if missing else f"names {_shown(beyond)}, not read here"
            hint = "; name every partition: -2 is its earliest offset, -1 its latest"
            raise ConfigError(f"{self.option} {wrong}{'' if self.is_time else hint}: {self.text}")


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a scan. Immutable; can be pickled."""

    strategy: Literal["subscribe", "subscribePattern", "assign"]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[Partition, ...] = ()
    starting: Bound = Bound("startingOffsets", "earliest", EARLIEST)
    ending: Bound = Bound("endingOffsets", "latest", LATEST)
    late_start_is_latest: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records: int | None = None
    columns: tuple[str, ...] = ()
    isolation: Isolation = "read_uncommitted"
    pushdown: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parse options as Spark passes them: text, by names in any case.

        Raises `ConfigError` for an unknown name without the prefix `kafka.`, and for an invalid value.
        """
        reader = _OptionReader(options, "scan", READ_OPTIONS, WRITE_OPTIONS)
        strategy, chosen = reader.strategy()
        starting, ending = reader.bound("starting"), reader.bound("ending")
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
            pushdown=reader.truth("pushdown", default=False),
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
                self._lost(UnknownTopicOrPartitionError, what)
            return [(topic, number) for topic in sorted(self.topics) for number in sorted(present.get(topic, ()))]
        absent = [(topic, number) for topic, number in self.assigned if number not in present.get(topic, ())]
        if absent:
            topic, number = absent[0]
            has = f"topic {topic} has {list(present[topic])[:20]}" if topic in present else f"there {_list(present)}"
            self._lost(UnknownTopicOrPartitionError, f"assign names {topic}-{number}, and {has}")
        return sorted(set(self.assigned) - set(absent))

    def plan(
        self, chosen: Sequence[Partition], marks: Callable[[str, int], Marks], *, min_partitions: int | None = None
    ) -> list[Range]:
        """Return the ranges that tasks read, in the order of topic, partition and offset, without empty ones.

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
            mark = marks(topic, number)
            start, end = (self._offset(bound, topic, number, mark) for bound in (self.starting, self.ending))
            is_time = self.starting.is_time or self.ending.is_time
            if end < start and not is_time and self.ending.of((topic, number)) >= 0:
                text = self.ending.text
                raise ConfigError(f"endingOffsets is {end} for {topic}-{number}, below its start {start}: {text}")
            if start < end:
                whole.append((Range(topic, number, start, end), mark.border))
        wanted = self.min_partitions if self.min_partitions is not None else min_partitions
        return list(split(whole, wanted, self.max_records))

    def _offset(self, bound: Bound, topic: str, number: int, mark: Marks) -> int:
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
        if value == (EARLIEST if bound is self.starting else LATEST):
            return mark.start if bound is self.starting else mark.end
        if not mark.start <= value <= mark.end:
            span = f"whose offsets are {mark.start} to {mark.end}"
            self._lost(OffsetOutOfRangeError, f"{bound.option} is {value} for {topic}-{number}, {span}")
        return min(max(value, mark.start), mark.end)

    def _lost(self, kind: type[Exception], what: str) -> None:
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


def plain(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without the prefix that Spark adds to the options of a table in SQL."""
    bare = {name: value for name, value in options.items() if not name.lower().startswith(TABLE_PREFIX)}
    bare_names = {name.lower() for name in bare}
    for name, value in options.items():
        without_prefix = name[len(TABLE_PREFIX) :]
        if name.lower().startswith(TABLE_PREFIX) and without_prefix.lower() not in bare_names:
            bare[without_prefix] = value
    return bare


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
    commit_timeout: float | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse options as Spark passes them; raise `ConfigError` as `ReadOptions.parse` does.

        A partitioner other than Kafka's default one is refused; a column `partition` can replace it.
        """
        reader = _OptionReader(options, "write", WRITE_OPTIONS, READ_OPTIONS)
        app, version = reader.text("txnAppId"), reader.number("txnVersion", 0, LONG_MAX)
        if (app is None) != (version is None) or app == "":
            missing = "txnVersion" if version is None else "txnAppId"
            raise ConfigError(f"a transaction has a txnAppId and a txnVersion, and {missing} is missing")
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
            txn=None if app is None or version is None else (app, version),
            commit_timeout=reader.seconds("commitTimeout"),
        )


class _OptionReader:
    """Reads options by name in any case; refuses unknown names, and ignores options of the other direction."""

    def __init__(self, options: Mapping[str, str], direction: str, own: Sequence[str], other: Sequence[str]) -> None:
        self._values: dict[str, str] = {}
        taken = {name.lower() for name in (*own, *other, *IGNORED, *OF_TABLES, *OF_STREAMS)}
        for name, value in plain(options).items():
            low = name.lower()
            if low not in taken and not low.startswith((KAFKA_PREFIX, CONFIG_PREFIX)):
                hint = next((one for one in own if _alike(one.lower(), low)), None)
                raise ConfigError(
                    f"{name} is no option of a {direction}{f'; {hint} is' if hint else ''}: {value!r} "
                    f"({', '.join(own)} are known; names that start with 'kafka.' are ignored)"
                )
            if value is None:
                raise ConfigError(f"{name} has no value")
            self._values[low] = str(value)
        for name in OF_STREAMS:
            if name.lower() in self._values:
                logger.warning("%s is for streams, and passed over in a batch %s", name, direction)

    def config(self) -> dict[str, str] | None:
        named = [name for name in self._values if name.startswith(CONFIG_PREFIX)]
        return {name.removeprefix(CONFIG_PREFIX): self._values[name] for name in named} or None

    def seconds(self, name: str) -> float | None:
        """Return a number of seconds; the text may end with an "s"."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?s?", text):
            raise ConfigError(f"{name} is {text!r}; a number of seconds is wanted")
        return float(text.removesuffix("s"))

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return None if value is None else value.strip()

    def strategy(self) -> tuple[Any, dict[str, Any]]:
        names = ("subscribe", "subscribePattern", "assign")
        set_names = [name for name in names if self.text(name) is not None]
        if len(set_names) != 1:
            what = " and ".join(f"{name}={self.text(name)!r}" for name in set_names) or "none"
            raise ConfigError(f"exactly one of {', '.join(names)} is wanted, not {what}")
        (name,) = set_names
        value = self.text(name) or ""
        if name == "subscribe":
            topics = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
            if not topics:
                raise ConfigError(f"subscribe names no topic: {value!r}")
            return name, {"topics": topics}
        if name == "subscribePattern":
            try:
                re.compile(value)
            except re.error as error:
                raise ConfigError(f"subscribePattern is no regular expression ({error}): {value!r}") from None
            if not value:
                raise ConfigError("subscribePattern is empty; '.*' means every topic")
            return name, {"pattern": value}
        return name, {"assigned": _assigned(value)}

    def bound(self, side: Literal["starting", "ending"]) -> Bound:
        """Return the first of Timestamp, OffsetsByTimestamp and Offsets that is set; the others are not parsed."""
        marks = (("earliest", EARLIEST), ("latest", LATEST))
        (default, mark), (wrong, wrong_mark) = marks if side == "starting" else reversed(marks)
        option = f"{side}Timestamp"
        if (text := self.text(option)) is not None:
            return Bound(option, text, _whole(option, text, 0, LONG_MAX), is_time=True)
        option = f"{side}OffsetsByTimestamp"
        if (text := self.text(option)) is not None:
            return Bound(option, text, by_partition=_by_partition(option, text, low=0), is_time=True)
        option = f"{side}Offsets"
        text = self.text(option)
        if text is None or text.lower() == default:
            return Bound(option, default, mark)
        if text.lower() == wrong:
            raise ConfigError(
                f"{option} is {text!r}, which a batch read cannot have; {default!r} or offsets as JSON can"
            )
        offsets = _by_partition(option, text, low=EARLIEST)
        for (topic, number), offset in offsets.items():
            if offset == wrong_mark:
                where = f"for {topic}-{number}, which a batch read cannot have"
                raise ConfigError(f"{option} is {offset} ({wrong}) {where}")
        return Bound(option, text, by_partition=offsets)

    def truth(self, name: str, *, default: bool) -> bool:
        return self.one_of(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, low: int, high: int) -> int | None:
        text = self.text(name)
        return None if text is None else _whole(name, text, low, high)

    def one_of(self, name: str, allowed: Sequence[str], default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in allowed:
            raise ConfigError(f"{name} is {text!r}; {' and '.join(allowed)} are allowed")
        return text.lower()

    def isolation(self) -> Any:
        allowed = ("read_uncommitted", "read_committed")
        theirs = self.one_of("kafka.isolation.level", allowed, allowed[0])
        ours = self.one_of("isolation", allowed, theirs)
        if self.text("kafka.isolation.level") is not None and ours != theirs:
            raise ConfigError(f"isolation is {ours!r} and kafka.isolation.level is {theirs!r}; one of them is enough")
        return ours

    def columns(self) -> tuple[str, ...]:
        with_headers = self.truth("includeHeaders", default=False)
        text = self.text("columns")
        if text is None:
            return tuple(name for name in COLUMN_TYPES if with_headers or name != "headers")
        canonical = {name.lower(): name for name in COLUMN_TYPES}
        names = [part.strip() for part in text.split(",")]
        for name in names:
            if name.lower() not in canonical or [one.lower() for one in names].count(name.lower()) > 1:
                raise ConfigError(f"columns has {name!r}; {', '.join(COLUMN_TYPES)} are known, each once: {text!r}")
        return tuple(canonical[name.lower()] for name in names)


def _assigned(text: str) -> tuple[Partition, ...]:
    by_topic = _json("assign", text, '{"topic": [0, 1]}')
    chosen = []
    for topic, numbers in by_topic.items():
        if not isinstance(numbers, list):
            raise ConfigError(f'assign wants a list of partitions for {topic!r}, as in {{"topic": [0, 1]}}: {text}')
        for number in numbers:
            if type(number) is not int or not 0 <= number <= INT_MAX:
                raise ConfigError(f"assign has {number!r} for {topic!r}, which is no partition's number: {text}")
            chosen.append((topic, number))
    if not chosen:
        raise ConfigError(f"assign names no partition: {text!r}")
    return tuple(chosen)


def _by_partition(option: str, text: str, *, low: int) -> dict[Partition, int]:
    example = '{"topic": {"0": 23, "1": 42}}'
    offsets = {}
    for topic, numbers in _json(option, text, example).items():
        if not isinstance(numbers, dict):
            raise ConfigError(f"{option} wants numbers by partition for {topic!r}, as in {example}: {text}")
        for number, value in numbers.items():
            if not re.fullmatch(r"[0-9]{1,10}", number) or int(number) > INT_MAX:
                raise ConfigError(f"{option} has {number!r} for {topic!r}, which is no partition's number: {text}")
            if type(value) is not int or not low <= value <= LONG_MAX:
                raise ConfigError(
                    f"{option} is {value!r} for {topic}-{number}; whole numbers from {low} on are allowed: {text}"
                )
            offsets[topic, int(number)] = value
    return offsets


def _json(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option} is no JSON like {example} ({error}): {text[:1000]!r}") from None
    if not isinstance(parsed, dict):
        raise ConfigError(f"{option} is no JSON object like {example}: {text[:1000]!r}")
    return parsed


def _whole(option: str, text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text) or not low <= int(text) <= high:
        raise ConfigError(f"{option} is {text!r}; whole numbers from {low} to {high} are allowed")
    return int(text)


def _alike(option: str, name: str) -> bool:
    """Return whether a name may be a misspelt option: an extra or missing "s", or other separators."""
    plain = re.sub(r"[^a-z]", "", name)
    return option == plain or option.rstrip("s") == plain.rstrip("s") or (len(plain) > 5 and option.startswith(plain))


def _list(topics: Iterable[str]) -> str:
    names = sorted(topics)
    return f"are {', '.join(names[:5])}{', …' if len(names) > 5 else ''}" if names else "is no topic at all"


def _shown(partitions: Sequence[Partition]) -> str:
    shown = ", ".join(f"{topic}-{number}" for topic, number in partitions[:5])
    return shown + (", …" if len(partitions) > 5 else "")
