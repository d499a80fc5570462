"""Reads options of scans, streams and writes in Spark's spelling: by name in any case, each value checked.

Invariant: the error for a bad option is raised here, on the driver, with the option's name and value.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.errors import ConfigError
from kstore.spark.storage_options import STORAGE_PREFIX, StorageOptions, shown_value, storage_of

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

# Options of Spark itself, and options that have an effect only with a broker: accepted and ignored.
IGNORED = (
    "path",
    "checkpointLocation",
    "queryName",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
# Spark adds these options to those of a table in SQL. It passes the table's own options with a prefix, and in some
# calls also without the prefix.
OF_TABLES = ("location", "provider", "owner", "comment", "external", "is_managed_location", "collation")
TABLE_PREFIX = "option."
OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId")
KAFKA_PREFIX = "kafka."
CONFIG_PREFIX = "config."  # Kafka's settings for a topic that a write creates: config.segment.bytes

_MILLISECONDS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

Isolation = Literal["read_uncommitted", "read_committed"]
Partition = tuple[str, int]


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


FROM_EARLIEST = Bound("startingOffsets", "earliest", EARLIEST)
TO_LATEST = Bound("endingOffsets", "latest", LATEST)


def plain(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without the prefix that Spark adds to the options of a table in SQL."""
    bare = {name: value for name, value in options.items() if not name.lower().startswith(TABLE_PREFIX)}
    bare_names = {name.lower() for name in bare}
    for name, value in options.items():
        without_prefix = name[len(TABLE_PREFIX) :]
        if name.lower().startswith(TABLE_PREFIX) and without_prefix.lower() not in bare_names:
            bare[without_prefix] = value
    return bare


class OptionReader:
    """Reads options by name in any case; refuses unknown names, and ignores options of the other direction."""

    def __init__(self, options: Mapping[str, str], direction: str, own: Sequence[str], other: Sequence[str]) -> None:
        self._values: dict[str, str] = {}
        taken = {name.lower() for name in (*own, *other, *IGNORED, *OF_TABLES, *OF_STREAMS)}
        for name, value in plain(options).items():
            low = name.lower()
            if low not in taken and not low.startswith((KAFKA_PREFIX, CONFIG_PREFIX, STORAGE_PREFIX)):
                hint = next((one for one in own if _alike(one.lower(), low)), None)
                raise ConfigError(
                    f"{name} is no option of a {direction}{f'; {hint} is' if hint else ''}: {shown_value(name, value)} "
                    f"({', '.join(own)} are known; names that start with 'kafka.' are ignored)"
                )
            if value is None:
                raise ConfigError(f"{name} has no value")
            self._values[low] = str(value)
        for name in OF_STREAMS:
            if name not in own and name.lower() in self._values:
                logger.warning("%s is for the source of a stream, and passed over in a %s", name, direction)

    def config(self) -> dict[str, str] | None:
        named = [name for name in self._values if name.startswith(CONFIG_PREFIX)]
        return {name.removeprefix(CONFIG_PREFIX): self._values[name] for name in named} or None

    def storage(self) -> StorageOptions | None:
        """Return the options of an object store, None if there are none."""
        return storage_of(self._values) or None

    def seconds(self, name: str) -> float | None:
        """Return a number of seconds; the text may end with an "s"."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?s?", text):
            raise ConfigError(f"{name} is {text!r}; a number of seconds is wanted")
        return float(text.removesuffix("s"))

    def duration_ms(self, name: str) -> int | None:
        """Return a duration such as "15m" in milliseconds; without a unit they are milliseconds."""
        text = self.text(name)
        if text is None:
            return None
        found = re.fullmatch(r"([0-9]{1,12}) ?([a-z]*)", text.lower())
        if found is None or found[2] not in _MILLISECONDS:
            raise ConfigError(f"{name} is {text!r}; a duration such as '500ms', '30s', '15m', '1h' or '1d' is wanted")
        return int(found[1]) * _MILLISECONDS[found[2]]

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

    def bound(self, side: Literal["starting", "ending"], *, of_stream: bool = False) -> Bound:
        """Return the first of Timestamp, OffsetsByTimestamp and Offsets that is set; the others are not parsed.

        A batch read starts at the earliest offset and cannot start at the latest; a stream starts at the latest.
        """
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
        if of_stream and (text is None or text.lower() == wrong):
            return Bound(option, wrong, wrong_mark)
        if text is None or text.lower() == default:
            return Bound(option, default, mark)
        if text.lower() == wrong:
            raise ConfigError(
                f"{option} is {text!r}, which a batch read cannot have; {default!r} or offsets as JSON can"
            )
        offsets = _by_partition(option, text, low=EARLIEST)
        for (topic, number), offset in offsets.items():
            if offset == wrong_mark and not of_stream:
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


def _shown(partitions: Sequence[Partition]) -> str:
    shown = ", ".join(f"{topic}-{number}" for topic, number in partitions[:5])
    return shown + (", …" if len(partitions) > 5 else "")
