"""`Store`: topics in directories, as a caller sees them; what is locked, refused, finished after a crash."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.disk import openfiles
from kstore.files import checkpoint, names
from tests.conftest import ManualClock
from tests.support.faultfs import DATA_LOST, LOST, NAMES_LOST, FaultFS

MARKER = checkpoint.CLEAN_MARKER
MINUTE = 60_000


def names_in(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def fill(log: kstore.Log, count: int, size: int = 100) -> None:
    for number in range(count):
        log.append(b"%0*d" % (size, number))


# Opening and closing


def test_a_new_store_is_an_empty_directory_with_a_lock(root: Path) -> None:
    with kstore.Store.open(root / "new" / "data") as store:
        assert store.topics == ()
        assert names_in(root / "new" / "data") == {".lock"}


def test_closing_leaves_the_marker_and_checkpoints_that_a_broker_leaves(root: Path, clock: ManualClock) -> None:
    """SEMANTICS 13.5: flush, close, checkpoints, then the marker."""
    with kstore.Store.open(root, clock=clock) as store:
        store.create_topic("events", 2)
        fill(store.log("events", 0), 3)
    assert json.loads((root / MARKER).read_text()) == {"version": 0, "brokerEpoch": -1}
    for name in (checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS):
        assert checkpoint.read_offsets(root, name) == {("events", 0): 3}
    assert (root / "events-0" / "00000000000000000003.snapshot").stat().st_size == 10


def test_opening_takes_the_marker_away_at_once(root: Path) -> None:
    """SEMANTICS 8.1: a crash from then on counts."""
    kstore.Store.open(root).close()
    assert (root / MARKER).exists()
    with kstore.Store.open(root):
        assert not (root / MARKER).exists()


def test_close_may_be_repeated_and_everything_else_is_refused_then(root: Path) -> None:
    store = kstore.Store.open(root)
    store.create_topic("events")
    log = store.log("events", 0)
    store.close()
    store.close()
    for use in (
        lambda: store.topics,
        lambda: store.create_topic("more"),
        lambda: store.log("events", 0),
        lambda: log.append(b"x"),
        store.flush,
        store.run_housekeeping,
        store.stats,
    ):
        with pytest.raises(kstore.LogClosedError):
            use()
    assert "closed" in repr(store)


@pytest.mark.parametrize("first", ["store", "log"])
@pytest.mark.parametrize("second", ["store", "log"])
def test_a_directory_has_one_store_or_lone_logs(root: Path, first: str, second: str) -> None:
    """SEMANTICS 13.2; two lone logs of different partitions go together, and nothing else does."""
    openers: dict[str, Callable[[int], kstore.Store | kstore.Log]] = {
        "store": lambda n: kstore.Store.open(root),
        "log": lambda n: kstore.Log.open(root / f"events-{n}"),
    }
    with openers[first](0):
        if first == second == "log":
            openers[second](1).close()
        else:
            with pytest.raises(kstore.LogLockedError, match=str(os.getpid())):
                openers[second](1)
    openers[second](1).close()


def test_one_directory_named_twice_is_refused(root: Path) -> None:
    """SEMANTICS 13.1: whatever the two names."""
    (root.parent / "link").symlink_to(root)
    with pytest.raises(ValueError, match="named twice"):
        kstore.Store.open([root, root.parent / "link"])
    with pytest.raises(ValueError, match="at least one"):
        kstore.Store.open([])


def test_logs_are_opened_when_they_are_needed_and_only_then(root: Path) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("events", 3)
        for number in range(3):
            store.log("events", number).append(b"x")
    with kstore.Store.open(root) as store:
        assert store.stats()["open_logs"] == 0
        assert store.log("events", 1) is store.log("events", 1)
        assert store.stats()["open_logs"] == 1
        assert store.log("events", 1).recovery.clean
    with kstore.Store.open(root) as store:
        assert [store.log("events", number).log_end_offset for number in range(3)] == [1, 1, 1]


def test_a_log_that_its_user_closed_opens_again(root: Path) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("events")
        with store.log("events", 0) as log:
            log.append(b"x")
        with pytest.raises(kstore.LogClosedError):
            log.append(b"y")
        assert store.log("events", 0).append(b"y") == 1


def test_after_a_crash_logs_not_left_in_order_are_recovered_at_the_opening(
    root: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """SEMANTICS 8.2, 8.9; the progress names how many there are, and a log that was closed in order is left alone."""
    image = tmp_path / "image"
    with kstore.Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events", 3)
        for number in range(3):
            fill(store.log("events", number), 5)
        store.log("events", 2).close()
        store.log("events", 1).flush()
        shutil.copytree(root, image)
    seen: list[tuple[int, int]] = []
    with kstore.Store.open(image, progress=lambda done, total: seen.append((done, total))) as store:
        assert seen == [(1, 3), (2, 3), (3, 3)]
        assert store.stats()["open_logs"] == 2
        assert [store.log("events", number).recovery.clean for number in range(3)] == [False, False, True]
        assert [store.log("events", number).log_end_offset for number in range(3)] == [5, 5, 5]


def test_open_files_are_bounded_whatever_the_number_of_partitions(root: Path, no_syncs: None) -> None:
    """Logs that are idle give theirs up, and come back with the next append or read."""
    try:
        with kstore.Store.open(root, max_open_files=30, segment_index_bytes=4096) as store:
            store.create_topic("events", 100)
            before = len(list(Path("/proc/self/fd").iterdir()))
            for round_ in range(2):
                for number in range(100):
                    assert store.log("events", number).append(b"x") == round_
                    assert len(list(Path("/proc/self/fd").iterdir())) < before + 45
            for number in range(100):
                assert [record.offset for record in store.log("events", number).read()] == [0, 1]
            assert store.stats()["open_logs"] == 100
        with pytest.raises(ValueError, match="max_open_files is 7"):
            kstore.Store.open(root, max_open_files=7)
    finally:
        openfiles.set_limit(None)


# Topics


def test_a_topic_is_its_directories_each_with_the_id(root: Path) -> None:
    topic_id = uuid.UUID("6a3b9c1e-0000-4000-8000-000000000001")
    with kstore.Store.open(root) as store:
        assert store.create_topic("events", 3, topic_id=topic_id) == topic_id
        assert store.topic_id("events") == topic_id
        assert store.partitions("events") == (0, 1, 2)
        text = checkpoint.format_topic_id(topic_id)
        assert store.create_topic("others", topic_id=text.replace("a", "b")) != topic_id
    for number in range(3):
        assert (root / f"events-{number}" / "partition.metadata").read_text() == f"version: 0\ntopic_id: {text}"


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250, "a/b", "__cluster_metadata"])
def test_names_that_kafka_forbids_are_refused(root: Path, name: str) -> None:
    with kstore.Store.open(root) as store:
        with pytest.raises(kstore.InvalidTopicError):
            store.create_topic(name)
        assert store.topics == ()


@pytest.mark.parametrize("other", ["a.b", "a_b"])
def test_a_topic_that_is_there_or_collides_is_refused(root: Path, other: str) -> None:
    """FORMAT 1.2: '.' and '_' are one in Kafka's metrics."""
    with kstore.Store.open(root) as store:
        store.create_topic("a.b")
        with pytest.raises(kstore.TopicExistsError):
            store.create_topic(other)
        assert store.topics == ("a.b",)


@pytest.mark.parametrize("partitions", [0, -1, 100_001])
def test_a_number_of_partitions_that_cannot_be_is_refused(root: Path, partitions: int) -> None:
    with kstore.Store.open(root) as store, pytest.raises(ValueError, match="partitions"):
        store.create_topic("events", partitions)


def test_a_partition_that_nobody_has_opened_yet_is_empty_to_a_reader(root: Path) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("events")
        log = kstore.Store.open(root, "r").log("events", 0)
        assert (log.log_start_offset, log.log_end_offset, log.segments, list(log.read())) == (0, 0, (), [])
        store.log("events", 0).append(b"x")
        assert [record.value for record in log.read()] == [b"x"]


def test_an_unknown_topic_or_partition_is_named_with_what_there_is(root: Path) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("events", 2)
        with pytest.raises(kstore.UnknownTopicOrPartitionError, match=r"'other'.*events"):
            store.log("other", 0)
        with pytest.raises(kstore.UnknownTopicOrPartitionError, match="no partition 2; it has 0 to 1"):
            store.log("events", 2)
        for ask in (store.delete_topic, store.topic_config, store.partitions):
            with pytest.raises(LookupError, match="'other'"):
                ask("other")


def test_a_config_of_another_type_is_told_what_it_may_be(root: Path) -> None:
    with kstore.Store.open(root) as store:
        for wrong in (5, [("retention.ms", "1")]):
            with pytest.raises(TypeError, match=f"a mapping of settings, or a path, not {type(wrong).__name__}"):
                store.update_config(wrong)  # type: ignore[arg-type]


def test_partitions_are_added_and_never_taken(root: Path) -> None:
    with kstore.Store.open(root) as store:
        topic_id = store.create_topic("events", 2, config={"segment.bytes": "2000"})
        fill(store.log("events", 1), 3)
        for total in (1, 2):
            with pytest.raises(ValueError, match="has 2 partitions"):
                store.add_partitions("events", total)
        store.add_partitions("events", 4)
        assert store.partitions("events") == (0, 1, 2, 3)
        assert store.log("events", 3).config.segment_bytes == 2000
        assert store.log("events", 1).log_end_offset == 3
    assert checkpoint.read_partition_metadata(root / "events-3").topic_id == topic_id  # type: ignore[union-attr]


def test_a_deleted_topic_goes_at_once_and_its_files_after_the_delay(root: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.16: renamed, the checkpoint lines taken out, removed when file.delete.delay.ms has passed.
    LogManagerTest.testFileReferencesAfterAsyncDelete."""
    with kstore.Store.open(root, clock=clock, background=False, file_delete_delay_ms=MINUTE) as store:
        store.create_topic("events", 2)
        log = store.log("events", 0)
        fill(log, 3)
        log.roll()
        reader = log.read()
        next(reader)
        store.run_housekeeping()
        store.delete_topic("events")
        assert store.topics == ()
        with pytest.raises(kstore.LogClosedError):
            log.append(b"x")
        with pytest.raises(kstore.LogClosedError):
            next(reader)
        gone = sorted(name for name in names_in(root) if name.endswith("-delete"))
        assert [names.parse_partition_name(name)[:2] for name in gone] == [("events", 0), ("events", 1)]
        assert ("events", 0) not in checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS)
        store.create_topic("events", 1)
        assert store.log("events", 0).log_end_offset == 0
        clock.advance(MINUTE - 1)
        store.run_housekeeping()
        assert set(gone) <= names_in(root)
        clock.advance(1)
        store.run_housekeeping()
        assert not set(gone) & names_in(root)


def test_what_a_deletion_left_is_removed_after_a_fresh_delay(root: Path, clock: ManualClock) -> None:
    """SEMANTICS 6.16: found at an opening, queued again."""
    with kstore.Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events")
        store.delete_topic("events")
    with kstore.Store.open(root, clock=clock, background=False) as store:
        assert len(store.stats()["to_be_removed"]) == 1
        clock.advance(59_999)
        store.run_housekeeping()
        assert any(name.endswith("-delete") for name in names_in(root))
        clock.advance(1)
        store.run_housekeeping()
        assert not any(name.endswith("-delete") for name in names_in(root))
        assert store.stats()["to_be_removed"] == []


def test_stale_checkpoint_lines_of_a_name_do_not_count_for_a_new_topic(root: Path) -> None:
    (root / checkpoint.RECOVERY_POINTS).write_text("0\n2\nevents 0 77\nother 0 5\n")
    (root / checkpoint.LOG_STARTS).write_text("0\n1\nevents 0 70\n")
    with kstore.Store.open(root) as store:
        store.create_topic("events")
        assert store.log("events", 0).append(b"x") == 0
    assert checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS) == {("events", 0): 1, ("other", 0): 5}


# Configuration


def test_a_topics_settings_come_before_the_stores_and_outlive_it(root: Path) -> None:
    """SEMANTICS 13.11. A store's configuration is not stored, its topics' overrides are."""
    with kstore.Store.open(root, config={"log.segment.bytes": "5000", "retention.bytes": "9"}) as store:
        store.create_topic("plain")
        store.create_topic("own", config={"segment.bytes": 7000})
        assert store.log("plain", 0).config.segment_bytes == 5000
        assert store.log("own", 0).config.segment_bytes == 7000
        assert store.log("own", 0).config.retention_bytes == 9
    with kstore.Store.open(root) as store:
        assert store.log("plain", 0).config.segment_bytes == 1 << 30
        assert store.log("own", 0).config.segment_bytes == 7000
        assert store.log("own", 0).config.retention_bytes == -1


def test_changed_settings_hold_at_once_and_none_takes_one_back(root: Path) -> None:
    """SEMANTICS 13.13: segment.bytes is looked at by every append."""
    with kstore.Store.open(root, segment_bytes=100_000) as store:
        store.create_topic("events", config={"segment.bytes": "50000", "retention.bytes": "1"})
        log = store.log("events", 0)
        fill(log, 10, 100)
        store.update_topic_config("events", {"segment.bytes": "1000"})
        fill(log, 1, 100)
        assert [segment.base_offset for segment in log.segments] == [0, 10]
        assert log.config.retention_bytes == 1
        store.update_topic_config("events", {"segment.bytes": None})
        assert log.config.segment_bytes == 100_000
    with kstore.Store.open(root) as store:
        assert store.topic_config("events").to_kafka() == {"retention.bytes": "1"}


def test_a_change_of_the_stores_settings_leaves_the_topics_own(root: Path) -> None:
    """SEMANTICS 13.11."""
    with kstore.Store.open(root) as store:
        store.create_topic("plain")
        store.create_topic("own", config={"segment.bytes": 7000})
        logs = store.log("plain", 0), store.log("own", 0)
        store.update_config({"log.segment.bytes": "6000"}, retention_bytes=5)
        assert [(log.config.segment_bytes, log.config.retention_bytes) for log in logs] == [(6000, 5), (7000, 5)]


@pytest.mark.parametrize(
    "config",
    [{"segment.byte": "1"}, {"segment.bytes": "x"}, {"segment.bytes": "13"}, {"log.segment.bytes": "20"}],
)
def test_bad_settings_change_nothing(root: Path, config: dict[str, str]) -> None:
    """SEMANTICS 13.12; a broker's name is none of a topic's."""
    with kstore.Store.open(root) as store:
        store.create_topic("events", config={"segment.bytes": "5000"})
        with pytest.raises(kstore.ConfigError):
            store.update_topic_config("events", config)
        with pytest.raises(kstore.ConfigError):
            store.create_topic("more", config=config)
        assert store.topics == ("events",)
        assert store.topic_config("events").segment_bytes == 5000


def test_settings_of_a_former_topic_of_the_name_do_not_count(root: Path) -> None:
    """A broker that made the topic anew gave it another id."""
    with kstore.Store.open(root) as store:
        store.create_topic("events", config={"segment.bytes": "5000"})
    other = checkpoint.format_topic_id(uuid.uuid4())
    (root / "events-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {other}")
    with kstore.Store.open(root) as store:
        assert store.topic_config("events").segment_bytes == 1 << 30


def test_retention_is_on_only_where_it_was_named(root: Path, tmp_path: Path) -> None:
    """A mapping keeps kstore's default, and a server.properties too."""
    properties = tmp_path / "server.properties"
    properties.write_text(
        "log.segment.bytes=1048576\nlog.retention.hours=168\nlog.dirs=/somewhere/else\nzookeeper.connect=x\n"
    )
    for config, retention in (
        (None, -1),
        ({"log.segment.bytes": "2000000"}, -1),
        ({"log.retention.hours": "2"}, 7_200_000),
        (str(properties), 604_800_000),
        (kstore.LogConfig.from_kafka({}), 604_800_000),
    ):
        with kstore.Store.open(root, config=config) as store:
            assert store.config.retention_ms == retention


# Several directories


def test_new_partitions_go_where_the_fewest_are(tmp_path: Path) -> None:
    """SEMANTICS 13.3."""
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    with kstore.Store.open(
        paths, config={"cordoned.log.dirs": str(paths[1]), "log.dirs": ",".join(map(str, paths))}
    ) as s:
        s.create_topic("one", 3)
        assert [len(list(path.glob("one-[0-9]"))) for path in paths] == [2, 0, 1]
    with kstore.Store.open(paths) as s:
        s.create_topic("two", 3)
        assert [len(list(path.glob("two-[0-9]"))) for path in paths] == [0, 2, 1]
        assert s.partitions("one") == s.partitions("two") == (0, 1, 2)


def test_a_partition_in_two_directories_is_refused_alone(tmp_path: Path) -> None:
    # docs/compatibility.md: `two-of-one-partition`
    """SEMANTICS 8.2: which of the two is the true one is unknown; then no marker is written."""
    for side in ("a", "b"):
        with kstore.Log.open(tmp_path / side / "events-0") as log:
            log.append(side.encode())
    with kstore.Store.open([tmp_path / "a", tmp_path / "b"]) as store:
        store.create_topic("fine")
        assert store.log("fine", 0).append(b"x") == 0
        with pytest.raises(kstore.StorageError, match="more than one log directory"):
            store.log("events", 0)
        assert "events-0" in store.stats()["refused"]
    assert not (tmp_path / "a" / MARKER).exists()


def test_a_directory_that_cannot_be_used_is_offline_and_the_others_work(tmp_path: Path) -> None:
    """SEMANTICS 13.1. LogManagerTest.testCreateLogWithInvalidLogDir."""
    (tmp_path / "b").write_text("a file")
    with kstore.Store.open([tmp_path / "a", tmp_path / "b"]) as store:
        assert list(store.stats()["offline"]) == [str(tmp_path / "b")]
        store.create_topic("events", 2)
        assert store.log("events", 1).append(b"x") == 0
    with pytest.raises(kstore.StorageError):
        kstore.Store.open([tmp_path / "b"])


def test_a_malformed_checkpoint_keeps_its_directory_from_being_opened(root: Path) -> None:
    # docs/compatibility.md: `malformed-checkpoint`
    """SEMANTICS 8.1 [Q], 13.6: Kafka goes on without; we do not guess what was flushed."""
    (root / checkpoint.RECOVERY_POINTS).write_text("0\n2\nevents 0 77\n")
    (root / MARKER).write_text("{}")
    with pytest.raises(kstore.StorageError, match="2 entries are announced"):
        kstore.Store.open(root)
    assert (root / MARKER).exists()


# A broker's directories


@pytest.mark.parametrize("name", ["lost+found", "no-partition", "-1", "events-0.0123-future", "events-01", "a b-0"])
def test_what_is_no_partition_is_passed_over_and_kept(root: Path, name: str) -> None:
    """docs/compatibility.md: `no-partition`."""
    (root / name).mkdir()
    (root / "a-file-0").write_text("x")
    with kstore.Store.open(root) as store:
        assert store.topics == ()
        assert store.stats()["passed_over"] == [str(root / name)]
    assert (root / name).is_dir()
    assert (root / MARKER).exists()


def test_the_metadata_log_is_the_brokers(root: Path) -> None:
    """SEMANTICS 8.2."""
    (root / "__cluster_metadata-0").mkdir()
    with kstore.Store.open(root) as store:
        assert store.topics == ()
        assert store.stats()["passed_over"] == []


def test_a_brokers_log_dirs_open_as_they_are(golden: Callable[[str], Path]) -> None:
    """The marker is there: nothing is scanned, and every log is where the broker left it."""
    path = golden("delete-records") / "dir"
    starts = checkpoint.read_offsets(path, checkpoint.LOG_STARTS)
    ends = checkpoint.read_offsets(path, checkpoint.RECOVERY_POINTS)
    with kstore.Store.open(path, "r") as store:
        assert ("__consumer_offsets" in store.topics) == (path / "__consumer_offsets-0").exists()
        marks = {
            (topic, number): (store.log(topic, number).log_start_offset, store.log(topic, number).log_end_offset)
            for topic in store.topics
            for number in store.partitions(topic)
        }
    with kstore.Store.open(path) as store:
        for (topic, number), (start, end) in marks.items():
            log = store.log(topic, number)
            assert log.recovery.clean
            assert (log.log_start_offset, log.log_end_offset) == (start, end)
            assert end == ends[topic, number]
            assert start == starts.get((topic, number), log.segments[0].base_offset)
            assert log.append(b"more", b"key") == end


# Damage


def test_one_rotten_partition_is_refused_alone_and_keeps_the_marker_away(root: Path) -> None:
    """docs/compatibility.md: `unopenable-log`."""
    with kstore.Store.open(root) as store:
        store.create_topic("events", 2)
        fill(store.log("events", 0), 10)
        fill(store.log("events", 1), 10)
    (root / MARKER).unlink()
    path = root / "events-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 10 * 5 + 75] ^= 1
    path.write_bytes(data)
    with kstore.Store.open(root) as store:
        with pytest.raises(kstore.CorruptRecordError, match="kstore repair"):
            store.log("events", 0)
        assert list(store.stats()["refused"]) == ["events-0"]
        assert store.log("events", 1).append(b"x") == 10
    assert not (root / MARKER).exists()
    assert path.read_bytes() == data


def test_a_damaged_file_of_topics_is_no_empty_one(root: Path) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("events", config={"segment.bytes": "5000"})
    (root / "kstore-topics.json").write_text("{")
    with pytest.raises(kstore.StorageError, match=r"kstore-topics\.json"):
        kstore.Store.open(root)


# Crashes


def test_making_and_deleting_topics_is_finished_after_a_crash_at_any_write(
    root: Path, tmp_path: Path, clock: ManualClock, request: pytest.FixtureRequest
) -> None:
    """A topic is there whole, with its id and settings, or not at all; what was deleted does not come back."""
    with FaultFS(root) as disk:
        store = kstore.Store.open(root, clock=clock, background=False, segment_index_bytes=4096)
        store.create_topic("kept", config={"segment.bytes": "5000"})
        begun = disk.step
        topic_id = store.create_topic("events", 3, config={"segment.bytes": "2000"})
        made = disk.step
        store.log("events", 2).append(b"x", sync=True)
        store.add_partitions("events", 5)
        added = disk.step
        store.update_topic_config("events", {"segment.bytes": "3000"})
        changed = disk.step
        store.delete_topic("events")
        deleted = disk.step
        store.close()
    into = tmp_path / "images"
    into.mkdir()
    request.getfixturevalue("no_syncs")
    for step, _, image in disk.crash_images(into, LOST, DATA_LOST, NAMES_LOST, since=begun):
        with kstore.Store.open(image, clock=clock, background=False, segment_index_bytes=4096) as store:
            assert store.topic_config("kept").segment_bytes == 5000, step
            if step >= deleted:
                assert store.topics == ("kept",), step
            if step >= made and step < changed:
                assert "events" in store.topics, step
            if "events" not in store.topics:
                continue
            partitions = store.partitions("events")
            assert partitions in ((0, 1, 2), (0, 1, 2, 3, 4)), step
            if added <= step:
                assert len(partitions) == 5, step
            assert store.topic_id("events") == topic_id, step
            assert store.topic_config("events").segment_bytes in (2000, 3000), step
            for number in partitions:
                assert store.log("events", number).append(b"y") in (0, 1), step


# Forks and pickles


def test_in_a_forked_child_the_store_is_closed(root: Path) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("events")
        log = store.log("events", 0)
        child = os.fork()
        if child == 0:  # pragma: no cover - the child
            try:
                for use in (lambda: store.topics, lambda: log.append(b"x"), lambda: store.create_topic("more")):
                    with pytest.raises(kstore.LogClosedError):
                        use()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert log.append(b"x") == 0
