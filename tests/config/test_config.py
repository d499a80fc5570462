"""config_command.py, brokerconfig.py, settings.py: names, defaults, ranges, parsing and precedence (SEMANTICS 13B)."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import pickle
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.base.numbers import LONG_MAX
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import KAFKA_RETENTION_MS, LogConfig, of_properties
from kstore.config.settings import Setting, parse_properties, read_properties, readable
from kstore.errors import ConfigError, ConfigWarning, StorageError

ROWS = {row.name: row for row in LogConfig.settings}
BROKER_ROWS = {row.name: row for row in BrokerConfig.settings}
EVERY_ROW = [*ROWS.values(), *BROKER_ROWS.values()]

# SEMANTICS 13.14 as it is printed there: Kafka's default, two values just inside the range, two just outside.
TABLE = {
    "segment.bytes": (1073741824, ["14", 2**31 - 1], ["13", 2**31]),  # the minimum is kstore's
    "internal.segment.bytes": (None, ["1", 2**31 - 1], [2**31, "x"]),
    "segment.ms": (604800000, ["1", LONG_MAX], ["0", LONG_MAX + 1]),
    "segment.jitter.ms": (0, ["0", LONG_MAX], ["-1", 2**63]),
    "segment.index.bytes": (10485760, ["4", 2**31 - 1], ["3", 2**31]),
    "index.interval.bytes": (4096, ["0", 2**31 - 1], ["-1", 2**31]),
    "preallocate": (False, ["true", "FALSE "], ["yes", 1]),
    "flush.messages": (LONG_MAX, ["1", LONG_MAX], ["0", 1.5]),
    "flush.ms": (LONG_MAX, ["0", LONG_MAX], ["-1", ""]),
    "retention.bytes": (-1, [-(2**63), LONG_MAX], [-(2**63) - 1, LONG_MAX + 1]),
    "retention.ms": (604800000, ["-1", LONG_MAX], ["-2", None]),
    "file.delete.delay.ms": (60000, ["0", LONG_MAX], ["-1", True]),
    "cleanup.policy": (("delete",), ["compact", ""], ["gzip", "compact,,delete"]),
    "delete.retention.ms": (86400000, ["0", LONG_MAX], ["-1", "1 0"]),
    "min.compaction.lag.ms": (0, ["0", LONG_MAX], ["-1", "0x1"]),
    "max.compaction.lag.ms": (LONG_MAX, ["1", LONG_MAX], ["0", "1_000"]),
    "min.cleanable.dirty.ratio": (0.5, ["0", 1], ["-0.01", "1.01"]),
    "max.message.bytes": (1048588, ["0", 2**31 - 1], ["-1", 2**31]),
    "compression.type": ("producer", ["uncompressed", "zstd"], ["none", "ZSTD"]),
    "compression.gzip.level": (-1, ["-1", 9], ["0", 10]),
    "compression.lz4.level": (9, ["1", 17], ["0", 18]),
    "compression.zstd.level": (3, [-131072, 22], [-131073, 23]),
    "message.timestamp.type": ("CreateTime", ["CreateTime", "LogAppendTime"], ["createtime", ""]),
    "message.timestamp.before.max.ms": (LONG_MAX, ["0", LONG_MAX], ["-1", b"1"]),
    "message.timestamp.after.max.ms": (3600000, ["0", LONG_MAX], ["-1", []]),
    "min.insync.replicas": (1, ["1", 5], ["0", "one"]),
    "unclean.leader.election.enable": (False, [True, " true"], ["1", None]),
    "local.retention.ms": (-2, ["-2", 0], ["-3", "nan"]),
    "local.retention.bytes": (-2, ["-2", 0], ["-3", "inf"]),
    "remote.storage.enable": (False, [False, "false"], ["off", 0]),
    "remote.log.copy.disable": (False, [True, "true"], ["on", 1]),
    "remote.log.delete.on.disable": (False, [True, "true"], ["on", 1]),
}


def test_the_table_has_every_topic_setting_and_no_other() -> None:
    assert set(ROWS) == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_settings_default_and_the_edges_of_its_range_are_kafkas(name: str) -> None:
    default, inside, outside = TABLE[name]
    row = ROWS[name]
    assert getattr(LogConfig.from_kafka({}), row.attribute) == default
    for value in inside:
        config = LogConfig.from_kafka({name: value})
        assert config == LogConfig(**{row.attribute: value}, **({} if name == "retention.ms" else KAFKA_RETENTION))
        assert config.explicit == {row.attribute}
    for value in outside:
        for make in (lambda: LogConfig.from_kafka({name: value}), lambda: LogConfig(**{row.attribute: value})):  # noqa: B023
            with pytest.raises(ConfigError) as caught:
                make()
            assert name in str(caught.value) or row.attribute in str(caught.value)
            assert repr(value) in str(caught.value)
            assert row.range in str(caught.value)


KAFKA_RETENTION = {"retention_ms": KAFKA_RETENTION_MS}

BROKER_DEFAULTS = {
    "log.dirs": None,
    "cordoned.log.dirs": (),
    "log.retention.check.interval.ms": 300000,
    "log.flush.scheduler.interval.ms": LONG_MAX,
    "log.flush.offset.checkpoint.interval.ms": 60000,
    "log.flush.start.offset.checkpoint.interval.ms": 60000,
    "log.initial.task.delay.ms": 30000,
    "num.recovery.threads.per.data.dir": 2,
    "log.dir.failure.timeout.ms": 30000,
    "replica.high.watermark.checkpoint.interval.ms": 5000,
    "log.cleaner.enable": True,
    "log.cleaner.threads": 1,
    "log.cleaner.dedupe.buffer.size": 134217728,
    "log.cleaner.io.buffer.size": 524288,
    "log.cleaner.io.buffer.load.factor": 0.9,
    "log.cleaner.io.max.bytes.per.second": 1.7976931348623157e308,
    "log.cleaner.backoff.ms": 15000,
    "producer.id.expiration.ms": 86400000,
    "producer.id.expiration.check.interval.ms": 600000,
    "transaction.partition.verification.enable": True,
    "transaction.max.timeout.ms": 900000,
    "offsets.topic.num.partitions": 50,
    "offsets.topic.segment.bytes": 104857600,
    "offsets.retention.minutes": 10080,
    "offsets.retention.check.interval.ms": 600000,
    "offset.metadata.max.bytes": 4096,
    "transaction.state.log.num.partitions": 50,
    "transaction.state.log.segment.bytes": 104857600,
    "transactional.id.expiration.ms": 604800000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 3600000,
}


def test_the_brokers_own_settings_have_kafkas_defaults() -> None:
    """SEMANTICS 13.15."""
    assert set(BROKER_ROWS) == {"log.dir", *BROKER_DEFAULTS}
    assert {name: row.default for name, row in BROKER_ROWS.items() if name != "log.dir"} == BROKER_DEFAULTS
    assert BrokerConfig().directories == ("/tmp/kafka-logs",)


# SEMANTICS 13.15: two values just inside the range, two just outside.
BROKER_EDGES = [
    ("log.dir", ["/a", ["/a", "/b"]], ["", "/a,,/b"]),
    ("log.dirs", ["/a", None], ["", ",/a"]),
    ("cordoned.log.dirs", ["", "*", "/a"], ["/a,,/b"]),
    ("log.retention.check.interval.ms", ["1", LONG_MAX], ["0", 2**63]),
    ("log.flush.scheduler.interval.ms", [-(2**63), LONG_MAX], [2**63, "x"]),
    ("log.flush.offset.checkpoint.interval.ms", ["0", 2**31 - 1], ["-1", 2**31]),
    ("log.flush.start.offset.checkpoint.interval.ms", ["0", 2**31 - 1], ["-1", 2**31]),
    ("log.initial.task.delay.ms", ["0", LONG_MAX], ["-1", 2**63]),
    ("num.recovery.threads.per.data.dir", ["1", 2**31 - 1], ["0", 2**31]),
    ("log.dir.failure.timeout.ms", ["1", LONG_MAX], ["0", 2**63]),
    ("replica.high.watermark.checkpoint.interval.ms", [-(2**63), LONG_MAX], [2**63, "x"]),
    ("log.cleaner.enable", ["true", False], ["yes", 1]),
    ("log.cleaner.threads", ["0", 127], ["-1", 2**31]),
    ("log.cleaner.dedupe.buffer.size", ["1048577", LONG_MAX], ["1048576", 2**63]),
    ("log.cleaner.io.buffer.size", ["0", 2**31 - 1], ["-1", 2**31]),
    ("log.cleaner.io.buffer.load.factor", ["-1", 2.5], ["x", "nan"]),
    ("log.cleaner.io.max.bytes.per.second", ["0", 1e308], ["x", None]),
    ("log.cleaner.backoff.ms", ["0", LONG_MAX], ["-1", 2**63]),
    ("producer.id.expiration.ms", ["1", 2**31 - 1], ["0", 2**31]),
    ("producer.id.expiration.check.interval.ms", ["1", 2**31 - 1], ["0", 2**31]),
    ("transaction.partition.verification.enable", ["TRUE", True], ["on", 0]),
    ("transaction.max.timeout.ms", [-(2**31), 2**31 - 1], [2**31, "1.5"]),
    ("offsets.topic.num.partitions", ["1", 2**31 - 1], ["0", 2**31]),
    ("offsets.topic.segment.bytes", ["1", 2**31 - 1], ["0", 2**31]),
    ("offsets.retention.minutes", ["1", 2**31 - 1], ["0", 2**31]),
    ("offsets.retention.check.interval.ms", ["1", LONG_MAX], ["0", 2**63]),
    ("offset.metadata.max.bytes", [-(2**31), 2**31 - 1], [2**31, "1.5"]),
    ("transaction.state.log.num.partitions", ["1", 2**31 - 1], ["0", 2**31]),
    ("transaction.state.log.segment.bytes", ["1", 2**31 - 1], ["0", 2**31]),
    ("transactional.id.expiration.ms", ["1", 2**31 - 1], ["0", 2**31]),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", ["1", 2**31 - 1], ["0", 2**31]),
    ("transaction.remove.expired.transaction.cleanup.interval.ms", ["1", 2**31 - 1], ["0", 2**31]),
]


@pytest.mark.parametrize(("name", "inside", "outside"), BROKER_EDGES)
def test_the_edges_of_a_stores_setting_are_kafkas(name: str, inside: list[object], outside: list[object]) -> None:
    row = BROKER_ROWS[name]
    for value in inside:
        config = BrokerConfig.resolve({name: value})
        assert config.explicit == {row.attribute}
        assert config == BrokerConfig(**{row.attribute: value})
    for value in outside:
        with pytest.raises(ConfigError) as caught:
            BrokerConfig.resolve({name: value})
        assert name in str(caught.value) or row.attribute in str(caught.value)


def test_no_setting_of_a_store_is_without_its_edges() -> None:
    assert [name for name, _, _ in BROKER_EDGES] == list(BROKER_ROWS)


@pytest.mark.parametrize("row", EVERY_ROW, ids=lambda row: row.name)
def test_every_row_says_what_it_does_what_is_dangerous_and_in_which_unit(row: Setting) -> None:
    assert row.doc.endswith(".")
    assert row.danger.endswith(".")
    assert row.range
    assert row.unit or row.kind not in ("int", "long") or "level" in row.name
    if row.unit == "milliseconds":
        assert row.name.endswith("ms")


@pytest.mark.parametrize("kind", [LogConfig, BrokerConfig])
def test_every_attribute_is_annotated_with_the_type_of_its_row(kind: type[LogConfig | BrokerConfig]) -> None:
    types = {"bool": bool, "int": int, "long": int, "double": float, "string": str, "list": tuple[str, ...]}
    hints = typing.get_type_hints(kind)
    for row in kind.settings:
        assert hints[row.attribute] == (types[row.kind] | None if row.nullable else types[row.kind])


@pytest.mark.parametrize("row", EVERY_ROW, ids=lambda row: row.name)
def test_a_rows_help_goes_into_argparse_and_says_its_range_unit_and_default(row: Setting) -> None:
    parser = argparse.ArgumentParser(formatter_class=lambda prog: argparse.HelpFormatter(prog, width=10_000))
    parser.add_argument(f"--{row.attribute.replace('_', '-')}", help=row.help)
    (line,) = [line for line in parser.format_help().splitlines() if row.doc.replace("`", "")[:20] in line]
    assert row.range in line
    assert row.unit in line
    assert f"default {row.shown_default}" in line


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0, "bytes", "0"),
        (1023, "bytes", "1023"),
        (1024, "bytes", "1024 (1 KiB)"),
        (1025, "bytes", "1025"),
        (3 << 30, "bytes", "3221225472 (3 GiB)"),
        (3_600_000, "milliseconds", "3600000 (1 hour)"),
        (5_400_000, "milliseconds", "5400000 (90 minutes)"),
        (-1, "milliseconds", "-1"),
        (3_600_000, "records", "3600000"),
        (LONG_MAX, "records", "unlimited"),
        (None, "", "none"),
        ((), "", "empty"),
        (("compact", "delete"), "", "compact,delete"),
        (True, "", "true"),
    ],
)
def test_values_are_shown_in_the_largest_unit_that_they_are_a_whole_number_of(
    value: object, unit: str, shown: str
) -> None:
    assert readable(value, unit) == shown


# The two defaults that are not Kafka's


def test_retention_is_for_ever_unless_named_or_kafkas_is_asked_for(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("log.segment.bytes=16384\nlog.retention.hours=168\n")
    assert LogConfig().retention_ms == -1
    assert LogConfig.resolve().retention_ms == -1
    assert LogConfig.resolve({"segment.bytes": "16384"}).retention_ms == -1
    assert LogConfig.resolve({"log.retention.hours": "1"}).retention_ms == 3_600_000
    assert LogConfig.resolve({}, {"retention_ms": 5}).retention_ms == 5
    assert LogConfig.from_kafka({}).retention_ms == KAFKA_RETENTION_MS
    assert LogConfig.resolve(LogConfig.from_kafka({}), {"segment_bytes": 99}).retention_ms == KAFKA_RETENTION_MS
    assert LogConfig.resolve(properties).retention_ms == KAFKA_RETENTION_MS
    assert LogConfig.resolve(str(properties)).segment_bytes == 16384
    assert "retention_ms" not in LogConfig.from_kafka({}).explicit


def test_the_internal_segment_size_replaces_the_other_when_it_is_set() -> None:
    """SEMANTICS 13.14a."""
    assert LogConfig(segment_bytes=14).effective_segment_bytes == 14
    assert LogConfig(segment_bytes=99, internal_segment_bytes=20).effective_segment_bytes == 20
    assert LogConfig(internal_segment_bytes=None).effective_segment_bytes == 1 << 30


# Precedence of names (SEMANTICS 13.11, 13.14)


@pytest.mark.parametrize(
    ("given", "attribute", "expected"),
    [
        ({"log.retention.hours": "2"}, "retention_ms", 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "retention_ms", 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, "retention_ms", 4),
        ({"log.retention.ms": "4", "retention.ms": "5"}, "retention_ms", 5),
        ({"log.retention.ms": "-1"}, "retention_ms", -1),
        ({"log.retention.hours": "-5"}, "retention_ms", -1),
        ({"log.retention.hours": "0", "log.retention.ms": "4"}, "retention_ms", 4),
        ({"retention.ms": "0"}, "retention_ms", 0),
        ({"log.roll.hours": "1"}, "segment_ms", 3_600_000),
        ({"log.roll.hours": "1", "log.roll.ms": "7"}, "segment_ms", 7),
        ({"log.roll.jitter.hours": "1"}, "segment_jitter_ms", 3_600_000),
        ({"log.flush.scheduler.interval.ms": "1000"}, "flush_ms", 1000),
        ({"log.flush.scheduler.interval.ms": "1000", "log.flush.interval.ms": "5"}, "flush_ms", 5),
        ({"log.flush.scheduler.interval.ms": "-1", "log.flush.interval.ms": "5"}, "flush_ms", 5),
        ({"log.segment.bytes": "20"}, "segment_bytes", 20),
        ({"log.segment.bytes": "20", "segment.bytes": "30"}, "segment_bytes", 30),
        ({"message.max.bytes": "20"}, "max_message_bytes", 20),
        ({"log.cleaner.min.cleanable.ratio": "1e-1"}, "min_cleanable_dirty_ratio", 0.1),
        ({"log.cleanup.policy": "compact,delete"}, "cleanup_policy", ("compact", "delete")),
        ({"log.index.size.max.bytes": " 42 "}, "segment_index_bytes", 42),
        ({"log.segment.delete.delay.ms": "+7"}, "file_delete_delay_ms", 7),
        ({"compression.type": "zstd"}, "compression_type", "zstd"),
    ],
)
def test_a_topics_name_wins_over_the_brokers_and_those_over_each_other(
    given: dict[str, str], attribute: str, expected: object
) -> None:
    config = LogConfig.from_kafka(given)
    assert getattr(config, attribute) == expected
    assert config.explicit == {attribute}


@pytest.mark.parametrize(
    "given",
    [
        {"log.retention.ms": "0"},
        {"log.retention.hours": "0"},
        {"log.roll.hours": "0"},
        {"log.roll.ms": "0"},
        {"log.roll.jitter.hours": "-1"},
        {"log.roll.hours": "0", "log.roll.ms": "5"},
        {"log.retention.minutes": "2147483648"},
        {"log.retention.hours": "1.5"},
        {"log.flush.scheduler.interval.ms": "-1"},
        {"log.retention.hours": "x", "retention.ms": "5"},
    ],
)
def test_what_a_broker_refuses_at_its_start_is_refused(given: dict[str, str]) -> None:
    """SEMANTICS 13.16; a name that is overruled must parse all the same."""
    with pytest.raises(ConfigError) as caught:
        LogConfig.from_kafka(given)
    assert next(iter(given)) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("log.retention.hours", "x", "-1 or at least 1 is allowed (unit: hours)"),
        ("log.retention.minutes", "0", "-1 or at least 1 is allowed (unit: minutes)"),
        ("log.retention.ms", 2**63, "-1 or at least 1 is allowed (unit: milliseconds)"),
        ("log.roll.hours", "0", "at least 1 is allowed (unit: hours)"),
        ("log.roll.ms", "0", "at least 1 is allowed (unit: milliseconds)"),
        ("log.cleanup.policy", "compress", "is not a list out of compact, delete; did you mean 'compact'?"),
        ("message.max.bytes", "-1", "at least 0 is allowed (unit: bytes)"),
    ],
)
def test_an_error_tells_the_range_and_the_unit_of_the_name_that_was_used(
    name: str, value: object, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        LogConfig.from_kafka({name: value})
    assert str(caught.value).startswith(f"{name} = {value!r} ")
    assert str(caught.value).endswith(allowed)


# Parsing


@pytest.mark.parametrize(("given", "expected"), [("  42 ", 42), ("+42", 42), ("042", 42), (42, 42), ("-0", 0)])
def test_integers_parse_as_in_a_properties_file(given: object, expected: int) -> None:
    assert LogConfig(index_interval_bytes=given).index_interval_bytes == expected


@pytest.mark.parametrize(
    "given", ["", " ", "4 2", "4.0", "1e3", "0x10", "\uff14\uff12", "9" * 5000, 4.0, True, None, b"42", "--1"]
)
def test_what_is_no_integer_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="index_interval_bytes"):
        LogConfig(index_interval_bytes=given)


@pytest.mark.parametrize(
    ("given", "expected"), [("0.5", 0.5), (" 1 ", 1), (".5", 0.5), ("1.", 1), ("5e-1d", 0.5), (1, 1)]
)
def test_doubles_parse_as_in_a_properties_file(given: object, expected: float) -> None:
    assert LogConfig(min_cleanable_dirty_ratio=given).min_cleanable_dirty_ratio == expected


@pytest.mark.parametrize(
    "given", ["", "nan", "NaN", "inf", "1e999999999", "0,5", "1_0", "d", float("nan"), float("inf"), False]
)
def test_what_is_no_ratio_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="min_cleanable_dirty_ratio"):
        LogConfig(min_cleanable_dirty_ratio=given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("compact", ("compact",)),
        (" compact , delete ", ("compact", "delete")),
        ("delete,compact,delete", ("delete", "compact")),
        ("", ()),
        ([], ()),
        (["compact"], ("compact",)),
        (("delete", "compact"), ("delete", "compact")),
    ],
)
def test_lists_are_separated_by_commas_and_name_each_element_once(given: object, expected: tuple[str, ...]) -> None:
    """SEMANTICS 13.12."""
    config = LogConfig(cleanup_policy=given)
    assert config.cleanup_policy == expected
    assert (config.compacts, config.deletes) == ("compact" in expected, "delete" in expected)


@pytest.mark.parametrize("given", [",", "compact,", "compact delete", ["compact", ""], b"compact", 5, ["compact", 5]])
def test_a_list_with_an_empty_or_strange_element_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="cleanup_policy"):
        LogConfig(cleanup_policy=given)


@given(st.sampled_from(EVERY_ROW), st.one_of(st.text(), st.integers(), st.floats(), st.binary(), st.lists(st.text())))
def test_any_value_is_taken_or_refused_with_a_config_error(row: Setting, value: object) -> None:
    refused = ""
    try:
        parsed = row.parse(value)
    except ConfigError as error:
        refused = str(error)
    if refused:
        assert row.attribute in refused
        assert len(refused) < 1000
    else:
        assert row.parse(parsed) == parsed


# Errors


@pytest.mark.parametrize(
    ("make", "near"),
    [
        (lambda: LogConfig(segment_byte=1), "segment_bytes"),
        (lambda: LogConfig().replace(retention=1), "retention_ms"),
        (lambda: LogConfig.from_kafka({"log.segmnt.bytes": "1"}), "log.segment.bytes"),
        (lambda: LogConfig.resolve({"segment_bytes": "1"}), "segment.bytes"),
        (lambda: LogConfig().for_topic({"log.retention.ms": "1"}), "retention.ms"),
        (lambda: LogConfig().for_topic({"log.retention.bytes": "1"}), "retention.bytes"),
        (lambda: LogConfig(log_retention_hours=1), "retention_ms"),
        (lambda: LogConfig(compression_type="zst"), "zstd"),
        (lambda: BrokerConfig(log_cleaner_thread=1), "log_cleaner_threads"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_that_is_known(
    make: typing.Callable[[], object], near: str
) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        make()


def test_a_name_like_no_other_is_refused_without_a_guess() -> None:
    for make in (lambda: LogConfig.from_kafka({"zzz": 1}), lambda: LogConfig(zzz=1), lambda: BrokerConfig(zzz=1)):
        with pytest.raises(ConfigError, match=r"unknown setting 'zzz' = 1$"):
            make()


@pytest.mark.parametrize(
    "name", ["message.format.version", "message.timestamp.difference.max.ms", "message.downconversion.enable"]
)
def test_settings_that_kafka_has_dropped_are_unknown(name: str) -> None:
    """SEMANTICS 13.12; LogConfigTest.testTimestampBeforeMaxMsUsesDeprecatedConfig."""
    with pytest.raises(ConfigError, match="unknown"):
        LogConfig.from_kafka({name: "1"})


def test_the_least_compaction_lag_may_equal_the_greatest_and_not_exceed_it() -> None:
    """LogConfigTest.testInvalidCompactionLagConfig."""
    LogConfig(min_compaction_lag_ms=100, max_compaction_lag_ms=100)
    with pytest.raises(ConfigError, match=r"200.*100"):
        LogConfig(min_compaction_lag_ms=200, max_compaction_lag_ms=100)
    with pytest.raises(ConfigError, match=r"101.*100"):
        LogConfig(max_compaction_lag_ms=100).replace(min_compaction_lag_ms=101)


@pytest.mark.parametrize(
    ("policy", "allowed"), [("delete", True), ("", True), ("compact", False), ("compact,delete", False)]
)
def test_a_tiered_topic_is_deleted_or_kept_and_never_compacted(policy: str, allowed: bool) -> None:
    """SEMANTICS 13.12a."""
    if allowed:
        LogConfig(remote_storage_enable=True, cleanup_policy=policy)
    else:
        with pytest.raises(ConfigError, match=r"remote\.storage\.enable"):
            LogConfig(remote_storage_enable=True, cleanup_policy=policy)


def test_replica_throttles_are_known_and_do_nothing() -> None:
    assert LogConfig.from_kafka({"leader.replication.throttled.replicas": "*"}) == LogConfig.from_kafka({})


# The objects


def test_a_config_is_frozen_compared_by_value_hashable_and_survives_copying() -> None:
    config = LogConfig(segment_bytes=100, cleanup_policy="compact")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.segment_bytes = 5  # type: ignore[misc]
    assert not hasattr(config, "__dict__")
    for again in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), copy.copy(config)):
        assert (again, hash(again), again.explicit) == (config, hash(config), config.explicit)
    assert repr(config) == "LogConfig(cleanup_policy=('compact',), segment_bytes=100)"
    assert config != LogConfig(segment_bytes=101, cleanup_policy="compact")


def test_replacing_keeps_what_was_set_and_adds_to_what_is_explicit() -> None:
    config = LogConfig(segment_bytes=100)
    changed = config.replace(retention_ms="5")
    assert (config.retention_ms, changed.retention_ms, changed.segment_bytes) == (-1, 5, 100)
    assert changed.explicit == {"segment_bytes", "retention_ms"}
    assert config.replace() is config


def test_a_topics_settings_come_over_the_stores_and_stay_when_the_stores_change() -> None:
    """SEMANTICS 13.11."""
    topic = {"segment.bytes": "100", "cleanup.policy": "compact"}
    store = LogConfig.from_kafka({"log.segment.bytes": "200", "log.roll.ms": "5"})
    config = store.for_topic(topic)
    assert (config.segment_bytes, config.segment_ms, config.compacts) == (100, 5, True)
    later = store.replace(segment_bytes=300, segment_ms=6).for_topic(topic)
    assert (later.segment_bytes, later.segment_ms) == (100, 6)


def test_explicit_settings_go_back_to_kafkas_names_and_text() -> None:
    config = LogConfig(
        segment_bytes=100, cleanup_policy="compact,delete", preallocate=True, min_cleanable_dirty_ratio=0.25
    )
    text = config.to_kafka()
    assert text == {
        "segment.bytes": "100",
        "preallocate": "true",
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.25",
    }
    assert LogConfig.resolve(text) == config


@pytest.mark.parametrize(
    ("type_", "level"),
    [("gzip", 5), ("lz4", 9), ("zstd", 3), ("snappy", None), ("producer", None), ("uncompressed", None)],
)
def test_a_level_goes_with_its_codec_alone(type_: str, level: int | None) -> None:
    assert LogConfig(compression_type=type_, compression_gzip_level=5).compression_level == level


# A store's settings, and files


def test_a_stores_mapping_serves_both_tables_and_unknown_names_are_refused() -> None:
    given = {"log.retention.ms": "5", "log.cleaner.threads": "2", "segment.bytes": "100"}
    assert LogConfig.resolve(given).explicit == {"retention_ms", "segment_bytes"}
    assert BrokerConfig.resolve(given).explicit == {"log_cleaner_threads"}
    assert BrokerConfig.resolve(LogConfig()) == BrokerConfig.resolve() == BrokerConfig()


def test_directories_are_one_list_and_cordoned_ones_are_among_them() -> None:
    """SEMANTICS 13.1, 13.15."""
    config = BrokerConfig.resolve({"log.dirs": "/a, /b", "log.dir": "/c", "cordoned.log.dirs": "/b"})
    assert config.directories == ("/a", "/b")
    assert BrokerConfig.resolve({"log.dir": "/c", "cordoned.log.dirs": "*"}).directories == ("/c",)
    for wrong in (
        {"log.dirs": "/a,,/b"},
        {"log.dirs": ""},
        {"log.dirs": "/a", "cordoned.log.dirs": "/b"},
        {"log.dirs": "/a", "cordoned.log.dirs": "*,/a"},
    ):
        with pytest.raises(ConfigError):
            BrokerConfig.resolve(wrong)


def test_without_named_directories_cordoned_ones_are_compared_with_the_opened() -> None:
    config = BrokerConfig.resolve({"cordoned.log.dirs": "/a"})
    config.check_cordoned(["/a", "/b"])
    with pytest.raises(ConfigError, match=r"cordoned\.log\.dirs = '/a': '/a' is not one"):
        config.check_cordoned(["/b"])
    BrokerConfig(cordoned_log_dirs="*").check_cordoned(["/b"])


@pytest.mark.parametrize(
    ("threads", "size", "allowed"), [(1, 1048577, True), (1, 1048576, False), (2, 2097154, True), (2, 2097153, False)]
)
def test_each_cleaner_thread_has_more_than_a_mebibyte(threads: int, size: int, allowed: bool) -> None:
    given = {"log.cleaner.threads": threads, "log.cleaner.dedupe.buffer.size": size}
    if allowed:
        BrokerConfig.resolve(given)
    else:
        with pytest.raises(ConfigError, match="1048576"):
            BrokerConfig.resolve(given)


def test_a_servers_properties_are_read_for_the_brokers_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "# a broker\nnode.id=1\nlisteners=PLAINTEXT://:9092\nlog.dirs=/a,/b\n"
        "log.segment.bytes = 16384 \nsegment.bytes=99\nlog.retention.hours:1\ncompression.type=zstd\n"
    )
    config = LogConfig.from_kafka(path)
    assert (config.segment_bytes, config.retention_ms, config.compression_type) == (16384, 3_600_000, "zstd")
    assert BrokerConfig.resolve(path).directories == ("/a", "/b")
    path.write_text("log.segment.bytes=x\n")
    with pytest.raises(ConfigError, match=r"log\.segment\.bytes"):
        LogConfig.from_kafka(path)


def test_a_misspelt_line_of_a_servers_properties_is_a_warning_with_its_number(
    tmp_path: Path,
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "# retention\nlog.retention.ms=-1\n\nretention.ms=-1\nlog.retention.huors=1\nLog.Segment_Bytes \\\n = 5\n"
        "remote.storage.enable=false\nnode.id=1\nlog.retention.ms=-1\n"
    )
    with pytest.warns(ConfigWarning) as caught:
        config = LogConfig.from_kafka(path)
    assert (config.retention_ms, config.segment_bytes) == (-1, LogConfig().segment_bytes)
    assert [str(warning.message) for warning in caught] == [
        f"{path}, line 4: retention.ms is a topic's setting and is passed over; the broker's name is log.retention.ms",
        f"{path}, line 5: 'log.retention.huors' is no setting and is passed over; did you mean 'log.retention.hours'?",
        f"{path}, line 6: 'Log.Segment_Bytes' is no setting and is passed over; did you mean 'log.segment.bytes'?",
        f"{path}, line 8: remote.storage.enable is a topic's setting and is passed over",
    ]
    assert {warning.filename for warning in caught} == {__file__}


def test_a_servers_properties_without_a_retention_deletes_nothing_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    for named in ("", "retention.ms=5\n", "log.retention.huors=1\n"):
        path.write_text(f"log.segment.bytes=16384\n{named}")
        with pytest.warns(ConfigWarning, match="names no retention: a broker would delete records after 168 hours"):
            assert LogConfig.resolve(path).retention_ms == -1
    for named, retention_ms in (("ms=7", 7), ("minutes=1", 60_000), ("hours=168", KAFKA_RETENTION_MS), ("ms=-1", -1)):
        path.write_text(f"log.retention.{named}\n")
        assert LogConfig.resolve(path).retention_ms == retention_ms  # and no warning


def test_none_of_kafkas_own_names_is_taken_for_a_slip(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    names = (Path(__file__).parent / "kafka_broker_names.txt").read_text().split()
    assert len(names) == 360
    path.write_text("".join(f"{name}=\n" for name in names if "." in name))
    lines = {name: line for name, (_, line) in read_properties(path).items()}
    assert list(of_properties(str(path), lines)) == []


def test_a_properties_file_that_cannot_be_read_keeps_its_errno(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        LogConfig.from_kafka(tmp_path / "missing")
    assert caught.value.filename == os.fspath(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("  a  =  1  ", {"a": "1  "}),
        ("a:1\nb 2\nc\t=3\rd\r\ne==5", {"a": "1", "b": "2", "c": "3", "d": "", "e": "=5"}),
        ("# no\n! no\n\n \na=1 # yes", {"a": "1 # yes"}),
        ("a=1,\\\n   2,\\\n   3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("# no \\\na=1", {"a": "1"}),
        ("a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        ("a=\\u00e9\\t\\n\\q", {"a": "é\t\nq"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
        ("=1", {"": "1"}),
        ("", {}),
    ],
)
def test_properties_parse_as_javas(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@given(st.text(alphabet="ab=: \\\n\r#!u0é"))
def test_any_text_is_properties(text: str) -> None:
    parse_properties(text)
