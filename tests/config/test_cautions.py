"""cautions.py: dangerous combinations of settings are reported with numbers, and those numbers are what happens
(SEMANTICS 13B)."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.base.numbers import LONG_MAX
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import LogConfig
from kstore.config.settings import Setting
from kstore.errors import ConfigError, ConfigWarning
from tests.conftest import ManualClock

MINUTES = 60_000
DAYS = 24 * 60 * MINUTES


def only(config: LogConfig, broker: BrokerConfig | None = None) -> str:
    (message,) = config.warnings(broker)
    return message


# Silence


def test_defaults_are_no_reason_to_warn() -> None:
    assert LogConfig().warnings() == ()
    assert LogConfig.from_kafka({}).warnings() == ()
    assert BrokerConfig().warnings() == ()


@pytest.mark.parametrize(
    "settings",
    [
        {"segment_bytes": 14},
        {"segment_bytes": 16384, "index_interval_bytes": 100},
        {"max_message_bytes": 1 << 20},
        {"index_interval_bytes": 4096},
        {"segment_index_bytes": 10 << 20, "segment_bytes": 2**31 - 1},
        {"retention_ms": 7 * DAYS},
        {"retention_ms": 60 * MINUTES, "segment_ms": 60 * MINUTES},
        {"retention_bytes": 1 << 30},
        {"retention_bytes": -1, "retention_ms": -1, "segment_ms": 1},
        {"cleanup_policy": ""},
        {"cleanup_policy": "delete"},
        {"segment_jitter_ms": 5, "segment_ms": 6},
        {"message_timestamp_after_max_ms": LONG_MAX},
        {"flush_messages": 1, "flush_ms": 0, "file_delete_delay_ms": 0},
    ],
    ids=str,
)
def test_harmless_settings_give_no_warning(settings: dict[str, Any]) -> None:
    assert LogConfig(**settings).warnings() == ()


@given(
    st.dictionaries(
        st.sampled_from([row.attribute for row in LogConfig.settings if row.kind in ("int", "long")]),
        st.integers(-2, 2**31 - 1) | st.just(LONG_MAX),
        max_size=6,
    ),
    st.sampled_from(["", "delete", "compact", "compact,delete"]),
)
def test_any_configuration_has_whole_sentences_about_what_was_named(settings: dict[str, int], policy: str) -> None:
    try:
        config = LogConfig(cleanup_policy=policy, **settings)
    except ConfigError:
        return
    messages = config.warnings()
    assert set(config.warnings(housekeeping=False)) <= set(messages)
    names = {row.name for row in LogConfig.settings if row.attribute in config.explicit}
    for message in messages:
        assert any(name in message for name in names)
        assert "None" not in message
        assert "  " not in message


# Indexes that fill (SEMANTICS 2.2, 3.1, 3.3, 3.7)


@pytest.mark.parametrize(
    ("index_bytes", "interval", "entries", "spacing"),
    [(24, 0, 1, 68), (36, 0, 2, 68), (100, 0, 7, 68), (100, 67, 7, 68), (100, 68, 7, 69), (300, 499, 24, 500)],
)
def test_an_index_that_fills_before_the_segment_is_told_by_entries_times_interval(
    index_bytes: int, interval: int, entries: int, spacing: int
) -> None:
    message = only(LogConfig(segment_index_bytes=index_bytes, index_interval_bytes=interval))
    assert f"holds {entries} entries of a time index and {index_bytes // 8} of an offset index" in message
    assert f"at {entries * spacing} bytes ({entries} x {spacing})" in message
    assert "where timestamps rise" not in message


@pytest.mark.parametrize(
    ("segment_bytes", "bites"), [(24 * 101, False), (24 * 101 + 1, True), (37 * 101, True), (37 * 101 + 1, True)]
)
def test_a_segment_that_the_indexes_just_hold_is_no_reason_to_warn(segment_bytes: int, bites: bool) -> None:
    config = LogConfig(segment_bytes=segment_bytes, segment_index_bytes=300, index_interval_bytes=100)
    assert bool(config.warnings()) == bites
    if bites:  # the offset index would have held it
        assert ("where timestamps rise" in only(config)) == (segment_bytes <= 37 * 101)


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.parametrize(("index_bytes", "interval"), [(24, 0), (100, 0), (100, 500), (300, 99)])
@pytest.mark.parametrize("value_bytes", [0, 50, 700])
@pytest.mark.parametrize("rising", [True, False])
def test_segments_are_left_where_the_warning_says(
    partition: Path, clock: ManualClock, index_bytes: int, interval: int, value_bytes: int, rising: bool
) -> None:
    config = LogConfig(segment_index_bytes=index_bytes, index_interval_bytes=interval)
    told = re.search(r"left at (\d+) bytes \((\d+) x", only(config))
    assert told is not None
    log = kstore.Log.open(partition, config=config, clock=clock)
    while log.append(bytes(value_bytes), timestamp=clock.advance(1) if rising else clock.now) < 400:
        if log.log_end_offset % 10 == 0 and len(log.segments) > 1:
            break
    size, end = log.segments[0].size_bytes, len(log.segments) > 1
    log.close()
    assert size >= int(told[1])
    batch = 69 + 1 + value_bytes
    if rising:  # an entry takes what the interval asks for, made up to whole batches, and the first batch has none
        assert end
        assert size <= int(told[2]) * (interval + batch) + 2 * batch
    else:
        assert size > int(told[1])


def test_an_index_for_the_closing_entry_alone_starts_a_segment_with_every_append(partition: Path) -> None:
    config = LogConfig(segment_index_bytes=23)
    assert "every append starts a new segment" in only(config)
    with pytest.warns(ConfigWarning, match="every append"):
        log = kstore.Log.open(partition, config=config)
    with log:
        for _ in range(3):
            log.append(b"x")
        assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


@pytest.mark.parametrize("index_bytes", [4, 8, 11])
def test_an_index_without_room_for_an_entry_opens_no_log_and_leaves_nothing_behind(
    partition: Path, index_bytes: int
) -> None:
    """SEMANTICS 3.1: Kafka's range allows it."""
    config = LogConfig(segment_index_bytes=index_bytes)
    assert "no log can be opened" in only(config)
    with pytest.raises(ConfigError, match=rf"segment\.index\.bytes = {index_bytes} .*12"):
        kstore.Log.open(partition, config=config)
    assert not partition.exists()
    with kstore.Log.open(partition) as log:
        with pytest.raises(ConfigError, match="12"):
            log.update_config(segment_index_bytes=index_bytes)
        assert log.config.segment_index_bytes == 10 << 20
        log.roll()
    with kstore.Log.open(partition, "r", config=config) as log:
        assert log.log_end_offset == 0


def test_an_interval_that_no_segment_reaches_leaves_it_without_entries(partition: Path) -> None:
    assert "without an index entry" in only(LogConfig(segment_bytes=500, index_interval_bytes=500))
    assert LogConfig(segment_bytes=500, index_interval_bytes=499).warnings() == ()
    assert LogConfig(segment_bytes=500).warnings() == ()  # the interval was not given
    with kstore.Log.open(partition, segment_bytes=500, index_interval_bytes=500) as log:
        for _ in range(30):
            log.append(b"x")
        assert {segment.offset_index_entries for segment in log.segments} == {0}


# Sizes


def test_a_batch_limit_above_the_segments_size_is_told(partition: Path) -> None:
    assert "larger than segment.bytes = 1000 is refused" in only(LogConfig(segment_bytes=1000, max_message_bytes=1001))
    assert LogConfig(segment_bytes=1000, max_message_bytes=1000).warnings() == ()
    assert "internal.segment.bytes = 999" in only(LogConfig(internal_segment_bytes=999, max_message_bytes=1000))


def test_a_jitter_that_takes_the_whole_time_away_is_told() -> None:
    assert "1 ms after" in only(LogConfig(segment_jitter_ms=10, segment_ms=10))


# Retention (SEMANTICS 6.1 to 6.9, 6.17, 6.19)


def test_retention_shorter_than_a_segment_fills_tells_how_long_records_live() -> None:
    """SEMANTICS 6.19: 540 s to fill, 10 minutes of retention, 5 between checks, 1 until the files go: 25 minutes."""
    config = LogConfig(retention_ms=539_999, segment_ms=540_000)
    assert f"for {540_000 + 539_999 + 300_000 + 60_000} ms (24 minutes)" in only(config)
    assert "540000 ms (9 minutes)" in only(config)
    assert LogConfig(retention_ms=540_000, segment_ms=540_000).warnings() == ()


def test_the_stores_own_periods_count(partition: Path) -> None:
    broker = BrokerConfig(log_retention_check_interval_ms=1_000)
    config = LogConfig(retention_ms=10 * MINUTES, file_delete_delay_ms=0)
    assert f"for {7 * DAYS + 10 * MINUTES + 1_000} ms (7.01 days)" in only(config, broker)
    assert "1000 ms (1 second) between checks, 0 ms of file.delete.delay.ms" in only(config, broker)


def test_segments_that_time_does_not_end_keep_records_without_a_bound() -> None:
    assert "without a bound" in only(LogConfig(retention_ms=1, segment_ms=LONG_MAX))


def test_a_retention_that_was_not_named_is_not_warned_about() -> None:
    assert LogConfig.from_kafka({"log.roll.ms": 30 * DAYS}).warnings() == ()
    assert len(LogConfig.from_kafka({"log.roll.ms": 30 * DAYS, "log.retention.hours": 168}).warnings()) == 1


def test_no_retention_at_all_is_told() -> None:
    assert "every 300000 ms (5 minutes)) deletes all records that are older" in only(LogConfig(retention_ms=0))
    assert "the active segment included" in only(LogConfig(retention_bytes=0))


def test_a_size_below_a_segments_tells_what_a_partition_may_have() -> None:
    config = LogConfig(retention_bytes=1000, segment_bytes=1001)
    assert "up to 2001 bytes" in only(config)
    assert LogConfig(retention_bytes=1001, segment_bytes=1001).warnings() == ()
    assert LogConfig.from_kafka({"log.retention.bytes": "1000"}).warnings() != ()


@pytest.mark.parametrize("policy", ["", "compact"])
def test_retention_that_does_not_act_is_told(policy: str) -> None:
    named = policy or "an empty list"
    messages = LogConfig(cleanup_policy=policy, retention_ms=5, retention_bytes=7).warnings()
    assert f"retention.ms = 5 ms deletes nothing: cleanup.policy = {named} has no delete" in messages
    assert f"retention.bytes = 7 deletes nothing: cleanup.policy = {named} has no delete" in messages
    assert LogConfig.from_kafka({"cleanup.policy": ""}).warnings() == ()


def test_a_future_that_outlasts_retention_is_told_where_producers_stamp() -> None:
    far = {"message_timestamp_after_max_ms": 30 * DAYS, "retention_ms": 7 * DAYS}
    assert "until retention.ms = 604800000 ms (7 days) after that time" in only(LogConfig(**far))
    assert LogConfig(**far, message_timestamp_type="LogAppendTime").warnings() == ()
    assert "unlimited" in only(LogConfig(message_timestamp_after_max_ms=LONG_MAX, retention_ms=7 * DAYS))


# Compaction


POLICIES = [("compact", "grows for ever"), ("compact,delete", "go by retention alone")]


@pytest.mark.parametrize(("policy", "then"), POLICIES)
@pytest.mark.parametrize("off", [{"log_cleaner_enable": False}, {"log_cleaner_threads": 0}])
def test_a_compacted_topic_is_told_that_a_store_has_no_cleaner(policy: str, then: str, off: dict[str, Any]) -> None:
    (message,) = LogConfig(cleanup_policy=policy).warnings(BrokerConfig(**off))
    assert message.startswith(f"cleanup.policy = {policy}, but log.cleaner.")
    assert then in message
    assert LogConfig(cleanup_policy=policy).warnings(BrokerConfig()) == ()


@pytest.mark.parametrize(("policy", "then"), POLICIES)
def test_a_ratio_that_nothing_exceeds_is_told_unless_a_lag_forces_the_log(policy: str, then: str) -> None:
    message = only(LogConfig(cleanup_policy=policy, min_cleanable_dirty_ratio=1))
    assert message.startswith("min.cleanable.dirty.ratio = 1 is never exceeded")
    assert then in message
    for harmless in (
        {"min_cleanable_dirty_ratio": 0.999},
        {"min_cleanable_dirty_ratio": 1, "max_compaction_lag_ms": 9},
    ):
        assert LogConfig(cleanup_policy=policy, **harmless).warnings() == ()
    assert LogConfig(min_cleanable_dirty_ratio=1).warnings() == ()


# A store's own settings


def test_a_store_tells_when_nothing_compacts_and_when_nothing_may_be_placed() -> None:
    assert ["nothing is compacted" in each for each in BrokerConfig(log_cleaner_threads=0).warnings()] == [True]
    assert ["nothing is compacted" in each for each in BrokerConfig(log_cleaner_enable=False).warnings()] == [True]
    assert BrokerConfig(log_dirs="/a,/b", cordoned_log_dirs="/a").warnings() == ()
    for cordoned in ("*", "/b,/a"):
        (message,) = BrokerConfig(log_dirs="/a,/b", cordoned_log_dirs=cordoned).warnings()
        assert "the first" in message


# Who is warned, and when


def test_opening_for_writing_warns_once_at_the_callers_line(partition: Path) -> None:
    with pytest.warns(ConfigWarning) as caught:
        log = kstore.Log.open(partition, segment_index_bytes=24)
    with log:
        log.append(b"x")
        log.roll()
    assert [Path(each.filename).name for each in caught] == ["test_cautions.py"]
    assert issubclass(kstore.ConfigWarning, UserWarning)


def test_a_lone_log_says_nothing_of_housekeeping_that_it_does_not_do(partition: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "unclosed", ResourceWarning)  # of what earlier tests left open
        with kstore.Log.open(partition, retention_ms=5, cleanup_policy="compact,delete", retention_bytes=5):
            pass


def test_reading_gives_no_warning(partition: Path) -> None:
    kstore.Log.open(partition).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "unclosed", ResourceWarning)  # of what earlier tests left open
        kstore.Log.open(partition, "r", segment_index_bytes=24).close()


def test_a_change_warns_of_what_is_new_alone(partition: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "unclosed", ResourceWarning)  # of what earlier tests left open
        with kstore.Log.open(partition, segment_index_bytes=24) as log:
            assert len(caught) == 1
            log.update_config(flush_messages=5)
            assert len(caught) == 1
            log.update_config(segment_index_bytes=36)
            assert len(caught) == 2
            assert Path(caught[1].filename).name == "test_cautions.py"


def test_a_warning_that_is_made_an_error_leaves_the_log_as_it_was(partition: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "unclosed", ResourceWarning)  # of what earlier tests left open
        with pytest.raises(ConfigWarning):
            kstore.Log.open(partition, segment_index_bytes=24)
        assert not partition.exists()
        with kstore.Log.open(partition) as log:
            with pytest.raises(ConfigWarning):
                log.update_config(segment_index_bytes=24)
            assert log.config.segment_index_bytes == 10 << 20


IDLE = [(table, each) for table in (LogConfig, BrokerConfig) for each in table.settings if each.idle]
PACKAGE = Path(kstore.__file__).parent


@pytest.mark.parametrize(("table", "setting"), IDLE, ids=[each.name for _, each in IDLE])
def test_a_given_setting_that_does_nothing_is_warned_about_with_the_reason(table: Any, setting: Setting) -> None:
    """docs/compatibility.md: `idle-settings`."""
    value = setting.default if setting.default != -2 else 1
    told = [each for each in table(**{setting.attribute: value}).warnings() if each.startswith(f"{setting.name} = ")]
    assert [each.partition(" does nothing: ")[2] for each in told] == [setting.idle]
    assert not [each for each in table().warnings() if "does nothing" in each]


def test_a_setting_that_no_code_reads_is_said_to_do_nothing_and_no_other_is() -> None:
    read = set()
    for path in PACKAGE.rglob("*.py*"):
        if path.suffix in (".py", ".pyx") and PACKAGE / "config" not in path.parents:
            read |= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    by_a_property = {"internal_segment_bytes", "compression_gzip_level", "compression_lz4_level",
                     "compression_zstd_level", "log_dir", "log_dirs", "log_flush_scheduler_interval_ms"}  # fmt: skip
    unread = {each.attribute for table in (LogConfig, BrokerConfig) for each in table.settings} - read - by_a_property
    assert {each.attribute for _, each in IDLE} == unread
