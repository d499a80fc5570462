"""A store's settings and its topics': precedence, what is kept, what is refused, and who is warned
(SEMANTICS 13.11 to 13.13)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import ConfigError, ConfigWarning
from tests.conftest import ManualClock

pytestmark = pytest.mark.usefixtures("no_syncs")


@pytest.fixture
def opened(root: Path, clock: ManualClock) -> Callable[..., kstore.Store]:
    """`opened(config=...)`: the store, under the clock, with nothing in the background."""
    return lambda **how: kstore.Store.open(root, clock=clock, background=False, **how)


@pytest.fixture
def warned() -> Iterator[Callable[[], list[str]]]:
    """`warned()`: the warnings since it was last called."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "unclosed", ResourceWarning)  # of what earlier tests left open

        def take() -> list[str]:
            assert {Path(each.filename).name for each in caught} <= {"test_store_config.py"}
            assert all(each.category is ConfigWarning for each in caught)
            found = [str(each.message) for each in caught]
            caught.clear()
            return found

        yield take


# Precedence and what is kept


def test_a_topics_setting_wins_over_the_stores_and_that_over_the_default(opened: Callable[..., kstore.Store]) -> None:
    """SEMANTICS 13.11."""
    given = {"log.segment.bytes": "2000", "log.retention.minutes": "5", "log.retention.hours": "9"}
    with opened(config=given, segment_jitter_ms=7) as store:
        store.create_topic("orders", config={"segment.bytes": 1000})
        store.create_topic("plain")
        found = store.topic_config("orders")
        assert (found.segment_bytes, found.retention_ms, found.segment_jitter_ms) == (1000, 300_000, 7)
        assert store.topic_config("plain").segment_bytes == 2000
        assert store.log("orders", 0).config.segment_bytes == 1000
        store.update_config(segment_bytes=3000, retention_ms=9)
        found = store.topic_config("orders")
        assert (found.segment_bytes, found.retention_ms, found.segment_jitter_ms) == (1000, 9, 7)
        assert store.log("orders", 0).config == found
        assert store.log("plain", 0).config.segment_bytes == 3000


def test_topics_keep_their_settings_and_the_store_does_not(opened: Callable[..., kstore.Store]) -> None:
    with opened(segment_ms=11) as store:
        store.create_topic("orders", config={"segment.bytes": 1000, "cleanup.policy": "delete"})
        store.update_topic_config("orders", {"segment.bytes": None, "max.message.bytes": "500"})
    with opened() as store:
        found = store.topic_config("orders")
        assert found.explicit == {"cleanup_policy", "max_message_bytes"}
        assert (found.segment_bytes, found.max_message_bytes, found.segment_ms) == (1 << 30, 500, 604_800_000)
        with pytest.raises(kstore.RecordTooLargeError):
            store.log("orders", 0).append(bytes(600))


def test_retention_is_there_only_where_it_was_named(opened: Callable[..., kstore.Store], tmp_path: Path) -> None:
    """Elsewhere retention is off."""
    properties = tmp_path / "server.properties"
    properties.write_text("node.id=1\nlog.segment.bytes=5000\nlog.retention.hours=168\n")
    for config, retention in [
        (None, -1),
        ({"log.segment.bytes": "5000"}, -1),
        ({"log.retention.hours": "1"}, 3_600_000),
        (kstore.LogConfig(), -1),
        (kstore.LogConfig.from_kafka({}), 604_800_000),
        (properties, 604_800_000),
        (str(properties), 604_800_000),
    ]:
        with opened(config=config) as store:
            assert store.config.retention_ms == retention


# What is refused


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"segment.byts": 1}, "did you mean 'segment.bytes'"),
        ({"log.segment.bytes": 99}, "did you mean 'segment.bytes'"),
        ({"segment_bytes": 99}, "did you mean 'segment.bytes'"),
        ({"log.cleaner.threads": 1}, "unknown setting"),
        ({"segment.bytes": 13}, "at least 14"),
        ({"segment.index.bytes": 8}, "at least 12"),
        ({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4}, "is more than"),
        ({"max.compaction.lag.ms": 9}, "is more than"),
        ({"message.format.version": "2.8"}, "unknown setting"),
    ],
)
def test_a_topics_settings_are_refused_before_anything_is_made(
    opened: Callable[..., kstore.Store], root: Path, config: dict[str, Any], told: str
) -> None:
    """SEMANTICS 13.12; the last but one only together with the store's."""
    with opened(min_compaction_lag_ms=10) as store:
        store.create_topic("there", config={"min.compaction.lag.ms": 0})
        before = sorted(path.name for path in root.iterdir())
        config = config if "min.compaction.lag.ms" in config else {"min.compaction.lag.ms": 10, **config}
        with pytest.raises(ConfigError, match=told):
            store.create_topic("orders", config=config)
        with pytest.raises(ConfigError, match=told):
            store.update_topic_config("there", config)
        assert store.topics == ("there",)
        assert sorted(path.name for path in root.iterdir()) == before
        assert store.topic_config("there").explicit == {"min_compaction_lag_ms"}


def test_a_stores_change_that_does_not_go_with_a_topics_settings_changes_nothing(
    opened: Callable[..., kstore.Store],
) -> None:
    with opened() as store:
        store.create_topic("a")
        store.create_topic("z", config={"max.compaction.lag.ms": 10})
        log = store.log("a", 0)
        for wrong in ({"min_compaction_lag_ms": 11}, {"segment_index_bytes": 8}, {"segment_bytes": 13}):
            with pytest.raises(ConfigError):
                store.update_config(segment_ms=5, **wrong)
            assert store.config.explicit == frozenset()
            assert log.config.explicit == frozenset()
        store.update_config(min_compaction_lag_ms=10)
        assert log.config.min_compaction_lag_ms == 10


# Who is warned


def test_each_caution_is_given_once_to_whoever_brings_it_on(
    opened: Callable[..., kstore.Store], warned: Callable[[], list[str]]
) -> None:
    with opened(retention_ms=60_000, log_cleaner_threads=0) as store:
        assert [each.split(" ", 1)[0] for each in warned()] == ["log.cleaner.threads", "retention.ms"]
        store.create_topic("plain")
        store.log("plain", 0).append(b"x")
        assert warned() == []
        store.create_topic("compacted", config={"cleanup.policy": "compact"})
        found = warned()
        assert [each.startswith("topic compacted: ") for each in found] == [True, True]
        assert "deletes nothing" in found[0]
        assert "but log.cleaner.threads = 0, so that no housekeeping compacts the log" in found[1]
        store.update_topic_config("compacted", {"cleanup.policy": "delete"})
        assert warned() == []
        store.update_topic_config("plain", {"retention.bytes": 1000})
        assert ["retention.bytes = 1000" in each for each in warned()] == [True]
        store.update_topic_config("plain", {"flush.messages": 1})
        assert warned() == []
        store.update_config(retention_bytes=0)
        assert ["retention.bytes = 0" in each for each in warned()] == [True]
        store.update_config(flush_ms=5)
        assert warned() == []
    with opened() as store:  # what a topic's settings do was told when they were given
        assert warned() == []


def test_the_stores_own_periods_are_in_the_numbers(
    opened: Callable[..., kstore.Store], warned: Callable[[], list[str]]
) -> None:
    with opened(config={"log.retention.check.interval.ms": "1000", "retention.ms": "5", "segment.ms": "10"}):
        assert "for 61015 ms" in warned()[0]


def test_reading_gives_no_warning(
    opened: Callable[..., kstore.Store], root: Path, warned: Callable[[], list[str]]
) -> None:
    opened().close()
    kstore.Store.open(root, "r", retention_ms=5).close()
    assert warned() == []


def test_warnings_that_are_made_errors_leave_all_as_it_was(opened: Callable[..., kstore.Store], root: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "unclosed", ResourceWarning)  # of what earlier tests left open
        with pytest.raises(ConfigWarning):
            opened(retention_ms=5)
        with opened() as store:  # which is not locked
            with pytest.raises(ConfigWarning):
                store.create_topic("orders", config={"retention.ms": "5"})
            assert store.topics == ()
            assert not (root / "orders-0").exists()
            store.create_topic("orders")
            with pytest.raises(ConfigWarning):
                store.update_topic_config("orders", {"retention.ms": "5"})
            with pytest.raises(ConfigWarning):
                store.update_config(retention_ms=5)
            assert store.topic_config("orders") == kstore.LogConfig()


def test_the_directory_of_a_partition_is_refused_as_a_store_and_stays_as_it_is(root: Path) -> None:
    with kstore.Log.open(root / "events-0") as log:
        log.append(b"value")
    before = sorted((root / "events-0").iterdir())
    for mode in ("a", "r"):
        with pytest.raises(kstore.ConfigError, match=f"opened at the log directory that holds it: {root}$"):
            kstore.Store.open(root / "events-0", mode)
    assert sorted((root / "events-0").iterdir()) == before
    with kstore.Store.open(root) as store:
        assert store.topics == ("events",)


def test_a_log_directory_may_be_named_like_a_partition(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data-1") as store:
        store.create_topic("events")
    with kstore.Store.open(tmp_path / "data-1") as store:
        assert store.topics == ("events",)


def test_the_constructors_say_how_logs_and_stores_are_opened(root: Path) -> None:
    with pytest.raises(TypeError, match=r"Store\.open\(path\)"):
        kstore.Store(root)
    with pytest.raises(TypeError, match=r"Log\.open\(path\)"):
        kstore.Log(root / "events-0", mode="r")
