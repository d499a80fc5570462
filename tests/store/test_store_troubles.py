"""A store where several things happen at once, or where something is in the way (SEMANTICS 6.16, 13.7, 13.9)."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import Store, TopicExistsError
from kstore.disk import fs, handles, locks
from kstore.errors import StorageError
from kstore.files import checkpoint
from kstore.log.hosted_log import HostedLog
from kstore.log.segments.segment import Segment


def test_a_file_with_a_partitions_name_refuses_that_topic_alone(tmp_path: Path) -> None:
    (tmp_path / "t-1").write_bytes(b"")
    with Store.open(tmp_path, background=False) as store:
        store.create_topic("u")
        with pytest.raises(StorageError, match="t-1"):
            store.create_topic("t", 2)
        store.create_topic("t")
        with pytest.raises(StorageError, match="t-1"):
            store.add_partitions("t", 2)
        assert store.stats()["offline"] == {}
        assert store.append("u", b"x").offset == 0
    with Store.open(tmp_path, background=False) as store:
        assert store.topics == ("t", "u")
        assert store.partitions("t") == (0,)
    assert (tmp_path / "t-1").is_file()


def test_a_topic_in_a_directory_that_is_offline_is_not_made_a_second_time(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with Store.open(roots, background=False) as store:
        store.create_topic("t", config={"segment.bytes": 20_000})
        store.append("t", b"kept")
    root = next(root for root in roots if (root / "t-0").exists())
    away = root.rename(tmp_path / "away")
    root.write_bytes(b"")
    with Store.open(roots, background=False) as store, pytest.raises(TopicExistsError, match="offline"):
        store.create_topic("t")
    root.unlink()
    away.rename(root)
    with Store.open(roots, background=False) as store:
        assert [record.value for record in store.read("t")] == [b"kept"]


def test_a_deleted_partition_that_cannot_be_removed_keeps_no_other_from_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10**12
    with Store.open(tmp_path, background=False, clock=lambda: now, file_delete_delay_ms=0) as store:
        for topic in ("a", "b"):
            store.create_topic(topic)
            store.delete_topic(topic)
        remove_tree = fs.remove_tree

        def refuse(path: Any) -> None:
            if "/a-0." in str(path):
                raise StorageError(13, "denied", path)
            remove_tree(path)

        monkeypatch.setattr(fs, "remove_tree", refuse)
        now += 60_000
        store.run_housekeeping()
        assert [path.name[:3] for path in tmp_path.glob("*-delete")] == ["a-0"]
        monkeypatch.undo()
        now += 60_000
        store.run_housekeeping()
        assert not list(tmp_path.glob("*-delete"))


def test_a_reader_sees_settings_that_a_writer_changes_or_gives_to_later_topics(tmp_path: Path) -> None:
    with Store.open(tmp_path, background=False) as store:
        store.create_topic("t", config={"segment.bytes": 15_000})
        with Store.open(tmp_path, "r") as reader:
            assert reader.topic_config("t").segment_bytes == 15_000
            store.update_topic_config("t", {"segment.bytes": 30_000})
            assert reader.topic_config("t").segment_bytes == 30_000
            store.delete_topic("t")
            store.create_topic("t", config={"segment.bytes": 40_000})
            store.create_topic("u", config={"segment.bytes": 50_000})
            assert reader.topic_config("t").segment_bytes == 40_000
            assert reader.topic_config("u").segment_bytes == 50_000


def test_a_path_that_is_empty_is_not_taken_for_the_current_directory() -> None:
    for paths in ("", ["a", ""]):
        with pytest.raises(ValueError, match="empty"):
            Store.open(paths)


def test_arguments_of_a_wrong_type_are_named(tmp_path: Path) -> None:
    wrong: Any = "wrong"
    with pytest.raises(TypeError, match="paths"):
        Store.open(None)  # type: ignore[arg-type]
    with Store.open(tmp_path, background=False) as store:
        with pytest.raises(TypeError, match="config"):
            store.create_topic("t", config=wrong)
        store.create_topic("t")
        with pytest.raises(TypeError, match="config"):
            store.update_topic_config("t", wrong)
        with pytest.raises(TypeError, match="offsets"):
            store.read("t", offsets=wrong)


def test_nothing_is_kept_for_appending_to_a_topic_that_was_deleted(tmp_path: Path) -> None:
    with Store.open(tmp_path, background=False) as store:
        store.create_topic("t")
        store.append("t", b"x")
        log = weakref.ref(store.log("t", 0))
        store.delete_topic("t")
        gc.collect()
        assert log() is None


# What an interrupt or an absent disk leaves half done


def test_an_interrupted_deletion_can_be_repeated(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("events", 4)
        rename = fs.rename

        def interrupted(source: str, target: str) -> None:
            if str(source).endswith("events-1"):
                raise KeyboardInterrupt
            rename(source, target)

        monkeypatch.setattr(fs, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.delete_topic("events")
        monkeypatch.undo()
        store.delete_topic("events")
        store.create_topic("events", 2)
        assert store.partitions("events") == (0, 1)
        assert len(list(root.glob("*-delete"))) == 4


@pytest.fixture
def two(tmp_path: Path) -> tuple[list[Path], Callable[[bool], None]]:
    """Two directories with partition 0 of `events` in one and 1 in the other; and a way to take the second away."""
    paths = [tmp_path / "a", tmp_path / "b"]
    with kstore.Store.open(paths, background=False) as store:
        store.create_topic("events", 2)
        for number in (0, 1):
            store.log("events", number).append(b"x")

    def is_there(there: bool) -> None:
        if there:
            paths[1].unlink()
            (tmp_path / "away").rename(paths[1])
        else:
            paths[1].rename(tmp_path / "away")
            paths[1].write_text("no directory")

    return paths, is_there


def test_what_is_deleted_while_a_directory_is_offline_does_not_come_back(
    two: tuple[list[Path], Callable[[bool], None]],
) -> None:
    paths, is_there = two
    is_there(False)
    with kstore.Store.open(paths, background=False) as store:
        store.delete_topic("events")
        assert store.topics == ()
        with pytest.raises(kstore.TopicExistsError, match="not wholly deleted"):
            store.create_topic("events")
    is_there(True)
    with kstore.Store.open(paths, background=False) as store:
        assert store.topics == ()
        store.create_topic("events")
        assert store.log("events", 0).log_end_offset == 0


def test_partitions_added_while_a_directory_is_offline_leave_its_own_alone(
    two: tuple[list[Path], Callable[[bool], None]],
) -> None:
    paths, is_there = two
    is_there(False)
    with kstore.Store.open(paths, background=False) as store:
        with pytest.raises(ValueError, match="has 2 partitions"):
            store.add_partitions("events", 2)
        store.add_partitions("events", 4)
        assert store.partitions("events") == (0, 2, 3)
    is_there(True)
    with kstore.Store.open(paths, background=False) as store:
        assert store.stats()["refused"] == {}
        assert store.partitions("events") == (0, 1, 2, 3)
        assert store.log("events", 1).log_end_offset == 1


def test_an_interrupt_in_the_middle_of_locking_gives_the_lock_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_at = locks._is_at

    def interrupted(fd: int, path: str) -> bool:
        monkeypatch.setattr(locks, "_is_at", is_at)
        raise KeyboardInterrupt

    monkeypatch.setattr(locks, "_is_at", interrupted)
    with pytest.raises(KeyboardInterrupt):
        locks.checkpoint_lock(root)
    locks.checkpoint_lock(root).release()


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_topics_id_is_read_from_a_partition_whose_metadata_is_sound(tmp_path: Path, damaged: int) -> None:
    with Store.open(tmp_path, background=False) as store:
        topic_id = store.create_topic("t", 2, config={"segment.bytes": 20_000})
        store.append("t", b"kept", partition=0)
    (tmp_path / f"t-{damaged}" / "partition.metadata").write_text("garbage")
    with Store.open(tmp_path, background=False) as store:
        assert store.topic_id("t") == topic_id
        assert store.topic_config("t").segment_bytes == 20_000
        assert [record.value for record in store.read("t")] == [b"kept"]


def test_a_topic_whose_id_cannot_be_read_is_refused_and_the_other_topics_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # docs/compatibility.md: `unopenable-log`
    with Store.open(tmp_path, background=False) as store:
        topic_id = store.create_topic("t", 2, config={"cleanup.policy": "compact", "segment.bytes": 20_000})
        store.create_topic("u", config={"cleanup.policy": "compact"})
        for topic in ("t", "u"):
            store.append(topic, b"kept", key=b"k", partition=0)
    for number in (0, 1):
        (tmp_path / f"t-{number}" / "partition.metadata").write_text("garbage")
    with Store.open(tmp_path, background=False) as store:
        assert {name: "kstore repair" in why for name, why in store.stats()["refused"].items()} == {
            "t-0": True,
            "t-1": True,
        }
        assert [message for message in caplog.messages if "t-1: refused: " in message]
        uses: list[Callable[[], object]] = [
            lambda: store.log("t", 0),
            lambda: store.append("t", b"v"),
            lambda: store.topic_config("t"),
            lambda: store.topic_id("t"),
            lambda: store.delete_topic("t"),
        ]
        for use in uses:
            with pytest.raises(StorageError, match=r"t-0/partition.metadata"):
                use()
        assert store.append("u", b"more", key=b"k").offset == 1
        store.update_config(segment_ms=60_000)
        store.create_topic("v")
        with pytest.raises(StorageError, match=r"t-0/partition.metadata"):
            store.compact(roll=True)
        assert [record.offset for record in store.read("u")] == [1]  # it was compacted all the same
        store.run_housekeeping()
    assert not (tmp_path / checkpoint.CLEAN_MARKER).exists()
    for number in (0, 1):
        (tmp_path / f"t-{number}" / "partition.metadata").unlink()  # as `kstore repair` does
    with Store.open(tmp_path, background=False) as store:
        assert [record.value for record in store.read("t")] == [b"kept"]
        assert store.topic_config("t").segment_bytes == 20_000
        store.update_topic_config("t", {"segment.bytes": 30_000})
        assert store.topic_id("t") == topic_id


def test_a_group_keeps_its_positions_of_a_topic_whose_id_cannot_be_read_any_more(tmp_path: Path) -> None:
    with Store.open(tmp_path, background=False) as store:
        for topic in ("t", "u"):
            store.create_topic(topic, config={"segment.bytes": 20_000})
        store.commit_offsets("g", {("t", 0): 0, ("u", 0): 0})
        positions = store.committed_offsets("g")
    (tmp_path / "t-0" / "partition.metadata").write_text("garbage")
    with Store.open(tmp_path, background=False) as store:
        assert store.committed_offsets("g") == positions
        store.commit_offsets("g", {("u", 0): 0})
        assert set(store.committed_offsets("g")) == {("t", 0), ("u", 0)}


def test_changed_settings_reach_other_topics_when_an_open_ones_id_is_unreadable(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path, background=False) as store:
        for topic in ("t", "u"):
            store.create_topic(topic, config={"segment.bytes": 20_000})
        logs = [store.log(topic, 0) for topic in ("t", "u")]
        (tmp_path / "t-0" / "partition.metadata").write_text("garbage")
        store.update_config(segment_ms=60_000)
        assert [log.config.segment_ms == 60_000 for log in logs] == [False, True]


def test_a_missing_partition_of_a_topic_with_unreadable_id_stops_no_other_topic(tmp_path: Path) -> None:
    with Store.open(tmp_path, background=False) as store:
        store.create_topic("t", 2, config={"segment.bytes": 20_000})
        store.append("t", b"kept", partition=1)
        store.create_topic("u")
    shutil.rmtree(tmp_path / "t-1")
    (tmp_path / "t-0" / "partition.metadata").write_text("garbage")
    for mode in ("r", "a"):
        with Store.open(tmp_path, mode, background=False) as store:  # type: ignore[arg-type]
            assert list(store.read("u")) == []
            with pytest.raises(StorageError, match=r"t-0/partition.metadata"):
                store.log("t", 0)


def test_an_opening_after_a_crash_opens_no_file_more_often_than_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 partitions are 10,000 times this. No file is made."""
    crashed = Store.open(tmp_path / "crashed", background=False)
    crashed.create_topic("events", 3)
    for number in range(3):
        crashed.log("events", number).append(b"v" * 100)
    shutil.copytree(tmp_path / "crashed", tmp_path / "left")
    crashed.close()
    opened: list[str] = []

    def counted(path: Any, *how: Any, real: Callable[..., int] = handles.open_regular, **more: Any) -> int:
        opened.append(str(path))
        return real(path, *how, **more)

    monkeypatch.setattr(fs, "open_regular", counted)
    with Store.open(tmp_path / "left", background=False) as store:
        for number in range(3):
            log = store.log("events", number)
            directory = Path(log.path)
            counts = {path.name: opened.count(str(path)) for path in directory.iterdir()}
            assert counts.pop("partition.metadata") <= 1
            assert counts == {
                "00000000000000000000.log": 1,
                "00000000000000000000.index": 1,
                "00000000000000000000.timeindex": 1,
                "leader-epoch-checkpoint": 1,
            }
            assert not [path for path in opened if path.endswith(".txnindex")]
            sizes = [(directory / f"{0:020d}.{kind}").stat().st_size for kind in ("index", "timeindex")]
            assert sizes == [10 << 20, (10 << 20) // 12 * 12]
            assert not list(directory.glob("*.snapshot"))
            assert [record.value for record in log.read(0)] == [b"v" * 100]
            log.append(b"v")
            assert (directory / f"{1:020d}.snapshot").stat().st_size == 10


def test_a_crash_before_an_index_has_its_full_size_leaves_it_to_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = Store.open(tmp_path / "crashed", background=False)
    crashed.create_topic("events", 1)
    for _ in range(200):
        crashed.log("events", 0).append(b"v" * 100)
    shutil.copytree(tmp_path / "crashed", tmp_path / "left")
    crashed.close()

    class KilledError(BaseException):
        """The death of the process."""

    def killed(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "activate", killed)
        with pytest.raises(KilledError):
            Store.open(tmp_path / "left", background=False)
    with Store.open(tmp_path / "left", background=False) as store:
        log = store.log("events", 0)
        assert (log.log_end_offset, log.recovery.clean) == (200, False)
        assert log.offset_for_timestamp(0) is not None
        log.append(b"w")
    with Store.open(tmp_path / "left", "r") as store:
        assert [record.value for record in store.log("events", 0).read(199)] == [b"v" * 100, b"w"]


def test_the_close_of_a_store_says_which_interrupt_a_log_failed_of(tmp_path: Path) -> None:
    store = Store.open(tmp_path, background=False)
    store.create_topic("t")
    HostedLog(store.log("t", 0)).writer.fail(KeyboardInterrupt())
    with pytest.raises(StorageError, match=r"interrupted by KeyboardInterrupt.*t-0") as caught:
        store.close()
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)
