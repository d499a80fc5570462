"""A clean shutdown's marker says that no recovery is due, and not that the files are long enough
(SEMANTICS 8.1, 8.13)."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.cli import main
from kstore.files import checkpoint
from kstore.tools.check.verify import verify
from tests.conftest import ManualClock
from tests.support.parking import writer_of

MARKER = checkpoint.CLEAN_MARKER
COUNT = 20
Damage = Callable[[Path], object]


@pytest.fixture(autouse=True)
def fast(no_syncs: None) -> None:
    """Nothing here asks the disk."""


@pytest.fixture
def closed(root: Path, clock: ManualClock) -> Path:
    """A store that was closed: two partitions of three segments, all batches of one size and one timestamp."""
    with kstore.Store.open(root, clock=clock, background=False, segment_bytes=600) as store:
        store.create_topic("events", 2)
        for number in range(COUNT):
            for partition in range(2):
                store.log("events", partition).append(b"%04d" % number)
    assert (root / MARKER).exists()
    return root


def logs(root: Path) -> list[Path]:
    return sorted((root / "events-0").glob("*.log"))


def cut(root: Path, size: int) -> None:
    with logs(root)[-1].open("r+b") as file:
        file.truncate(size)


def lose(root: Path, *kinds: str, count: int = 1) -> None:
    """Take away files of the last segments, `count` of them, or all (-1)."""
    for log in logs(root)[-count:] if count > 0 else logs(root):
        for kind in kinds:
            log.with_suffix(f".{kind}").unlink()


def bytes_of_logs(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in logs(root)}


def point(root: Path) -> int | None:
    return checkpoint.read_offsets(root, checkpoint.RECOVERY_POINTS).get(("events", 0))


def errors(root: Path) -> list[str]:
    return [found.what for found in verify([root]).findings if found.severity == "error"]


def cli(*arguments: str) -> int:
    with contextlib.redirect_stdout(io.StringIO()):
        return main(arguments)


def check_refused(root: Path, clock: ManualClock) -> None:
    """The partition is refused at each opening, alone; reading and `verify` say so too, and `repair` mends it."""
    before, mark = bytes_of_logs(root), point(root)
    reader = kstore.Log.open(root / "events-0", "r", clock=clock)
    for read in (lambda: list(reader.read()), reader.read_columns):
        with pytest.raises(kstore.CorruptRecordError, match="kstore repair"):
            read()
    assert errors(root)
    for _ in range(2):
        with kstore.Store.open(root, clock=clock, background=False) as store:
            assert list(store.stats()["refused"]) == ["events-0"]
            with pytest.raises(kstore.CorruptRecordError, match="kstore repair"):
                store.log("events", 0)
            offset = store.log("events", 1).append(b"more", sync=True)
        assert offset >= COUNT
        assert not (root / MARKER).exists()
        assert bytes_of_logs(root) == before
        assert (point(root) or 0) >= (mark or 0)
        assert errors(root)
    with pytest.raises(kstore.CorruptRecordError, match="kstore repair"):
        kstore.Log.open(root / "events-0", clock=clock)
    assert cli("repair", "--yes", str(root)) == 0
    assert errors(root) == []
    with kstore.Store.open(root, clock=clock, background=False) as store:
        log = store.log("events", 0)
        end = log.log_end_offset
        assert log.append(b"after", sync=True) == end
    assert (root / MARKER).exists()
    with kstore.Store.open(root, clock=clock, background=False) as store:
        log = store.log("events", 0)
        assert log.recovery.clean
        assert [record.value for record in log.read(end)] == [b"after"]
    assert errors(root) == []


@pytest.mark.parametrize("left", [0, 1, 60, 71, 72, 73, 143, 144, 145, 1_000_000])
def test_a_last_segment_that_is_cut_is_refused(closed: Path, clock: ManualClock, left: int) -> None:
    whole = logs(closed)[-1].stat().st_size
    assert whole == 4 * 72  # the borders of batches are tried, with both neighbours
    cut(closed, min(left, whole - 1))
    check_refused(closed, clock)


@pytest.mark.parametrize("kinds", [("log",), ("log", "index", "timeindex")])
@pytest.mark.parametrize("count", [1, 2, -1])
def test_a_log_whose_last_segments_are_gone_is_refused(
    closed: Path, clock: ManualClock, kinds: tuple[str, ...], count: int
) -> None:
    lose(closed, *kinds, count=count)
    check_refused(closed, clock)


def test_a_log_without_any_file_is_refused(closed: Path, clock: ManualClock) -> None:
    for path in (closed / "events-0").iterdir():
        path.unlink()
    check_refused(closed, clock)


@pytest.mark.parametrize("line", [None, 0, COUNT - 5])
def test_a_high_watermark_above_the_end_is_as_much_a_promise(
    closed: Path, clock: ManualClock, line: int | None
) -> None:
    """SEMANTICS 13.5: at an orderly shutdown all below it was flushed; the recovery point need not say so any more."""
    checkpoint.update_offsets(closed, checkpoint.RECOVERY_POINTS, {("events", 0): line})
    cut(closed, 72)
    check_refused(closed, clock)


def test_after_a_crash_a_high_watermark_promises_nothing(closed: Path, clock: ManualClock) -> None:
    """What lay above the recovery point may have been lost with the machine."""
    checkpoint.update_offsets(closed, checkpoint.RECOVERY_POINTS, {("events", 0): COUNT - 4})
    (closed / MARKER).unlink()
    cut(closed, 72)
    with kstore.Store.open(closed, clock=clock, background=False) as store:
        assert store.log("events", 0).log_end_offset == COUNT - 3
    assert (closed / MARKER).exists()
    assert errors(closed) == []


@pytest.mark.parametrize("left", [0, 71, 72])
def test_a_lone_log_beside_the_marker_is_refused(closed: Path, clock: ManualClock, left: int) -> None:
    cut(closed, left)
    before, mark = bytes_of_logs(closed), point(closed)
    for _ in range(2):
        with pytest.raises(kstore.CorruptRecordError, match="kstore repair"):
            kstore.Log.open(closed / "events-0", clock=clock)
        assert (bytes_of_logs(closed), point(closed)) == (before, mark)
        assert not (closed / MARKER).exists()


def test_a_torn_tail_above_the_recovery_point_is_cut_although_the_marker_is_there(
    closed: Path, clock: ManualClock
) -> None:
    """Nothing may be appended behind bytes that are no batch: it could not be read."""
    for name in (checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS):
        checkpoint.update_offsets(closed, name, {("events", 0): COUNT})
    with logs(closed)[-1].open("ab") as file:
        file.write(b"torn")
    with kstore.Store.open(closed, clock=clock, background=False) as store:
        log = store.log("events", 0)
        assert (log.recovery.clean, log.recovery.cut_bytes) == (False, 4)
        assert log.append(b"after", sync=True) == COUNT
    with kstore.Log.open(closed / "events-0", clock=clock) as log:
        assert len(list(log.read())) == COUNT + 1


def test_the_marker_is_believed_where_the_files_agree(closed: Path, clock: ManualClock) -> None:
    with kstore.Store.open(closed, clock=clock, background=False) as store:
        assert store.stats()["open_logs"] == 0
        log = store.log("events", 0)
        assert (log.recovery.clean, log.log_end_offset) == (True, COUNT)


@pytest.mark.parametrize("lone", [False, True])
@pytest.mark.parametrize("to", [2, 3])
def test_a_truncation_inside_a_batch_leaves_a_log_that_opens(
    root: Path, clock: ManualClock, lone: bool, to: int
) -> None:
    """SEMANTICS 11.4, `recovery-point-in-a-gap`: the log ends above its data, and the marks are those of the data."""
    with kstore.Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events")
        store.log("events", 0).append(b"a")
        store.log("events", 0).append_many([b"b", b"c", b"d"], atomic=True)
        if not lone:
            store.log("events", 0).truncate_to(to)
    if lone:
        with kstore.Log.open(root / "events-0", clock=clock) as log:
            log.truncate_to(to)
    for name in (checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS):
        assert checkpoint.read_offsets(root, name) == {("events", 0): 1}
    for _ in range(2):  # once as the log was left, once with a marker, however the log was closed
        with kstore.Store.open(root, clock=clock, background=False) as store:
            assert store.stats()["refused"] == {}
        assert errors(root) == []
    with kstore.Store.open(root, clock=clock, background=False) as store:
        assert store.log("events", 0).append(b"e") == 1


def test_a_gap_as_a_broker_leaves_it_is_refused_and_repaired_without_losing_a_byte(
    root: Path, clock: ManualClock
) -> None:
    """A broker's recovery point is the log end, above the data: nothing tells that from a tail that was lost."""
    with kstore.Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events", 2)
        store.log("events", 0).append(b"a")
        store.log("events", 0).append_many([b"b", b"c", b"d"], atomic=True)
        store.log("events", 0).truncate_to(3)
        for _ in range(COUNT):
            store.log("events", 1).append(b"x")
    for name in (checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS):
        checkpoint.update_offsets(root, name, {("events", 0): 3})
    before = bytes_of_logs(root)
    check_refused(root, clock)
    assert all(path.read_bytes().startswith(before[path.name]) for path in logs(root))


def test_a_lone_log_that_ends_lower_brings_the_high_watermark_of_a_store_down(closed: Path, clock: ManualClock) -> None:
    """SEMANTICS 11.2: else the store would find it above the end of a log that it never opened before it left its
    marker."""
    with kstore.Log.open(closed / "events-0", clock=clock) as log:
        log.truncate_to(7)
    for _ in range(2):
        with kstore.Store.open(closed, clock=clock, background=False) as store:
            assert store.stats()["refused"] == {}
    assert checkpoint.read_offsets(closed, checkpoint.HIGH_WATERMARKS) == {("events", 0): 7, ("events", 1): COUNT}
    assert errors(closed) == []


def test_a_log_that_its_user_closed_lower_does_not_keep_its_old_high_watermark(
    closed: Path, clock: ManualClock
) -> None:
    with kstore.Store.open(closed, clock=clock, background=False) as store:
        log = store.log("events", 0)
        log.truncate_to(7)
        log.close()
    assert checkpoint.read_offsets(closed, checkpoint.HIGH_WATERMARKS)["events", 0] == 7
    with kstore.Store.open(closed, clock=clock, background=False) as store:
        assert store.log("events", 0).log_end_offset == 7


def test_closing_goes_on_where_a_log_fails_in_an_unforeseen_way(
    closed: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other log is closed and every lock given back; the error is one of the store's."""
    store = kstore.Store.open(closed, clock=clock, background=False)
    opened = [store.log("events", number) for number in range(2)]
    opened[1].append(b"more")

    def fail() -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(writer_of(opened[0]), "_close_cleanly", fail)
    with pytest.raises(kstore.StorageError, match="unforeseen"):
        store.close()
    assert all(log.closed for log in opened)
    assert not (closed / MARKER).exists()
    with kstore.Store.open(closed, clock=clock, background=False) as store:
        assert store.log("events", 1).log_end_offset == COUNT + 1
    assert (closed / MARKER).exists()


def test_a_time_index_of_another_log_is_built_anew_and_not_met_at_closing(closed: Path, clock: ManualClock) -> None:
    last = logs(closed)[-1].with_suffix(".timeindex")
    base = int(last.stem)
    last.write_bytes((clock.now).to_bytes(8, "big") + (COUNT + 100 - base).to_bytes(4, "big"))
    with kstore.Store.open(closed, clock=clock, background=False) as store:
        store.log("events", 0).append(b"more")
    assert errors(closed) == []


def test_a_log_that_cannot_be_opened_later_keeps_the_marker_away(closed: Path, clock: ManualClock) -> None:
    with kstore.Store.open(closed, clock=clock, background=False) as store:
        (closed / "events-0" / "leader-epoch-checkpoint").write_text("none\n")
        with pytest.raises(kstore.StorageError, match="malformed"):
            store.log("events", 0)
    assert not (closed / MARKER).exists()


def test_a_refused_partition_keeps_all_its_files(closed: Path, clock: ManualClock) -> None:
    """Indexes without their log and snapshots may tell what was there."""
    lose(closed, "log")
    before = {path.name for path in (closed / "events-0").iterdir()}
    kstore.Store.open(closed, clock=clock, background=False).close()
    assert {path.name for path in (closed / "events-0").iterdir()} == before
    shutil.rmtree(closed)


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("content", [None, b"", b"x" * 5])
def test_indexes_that_are_lost_under_the_marker_are_made_again(
    closed: Path, clock: ManualClock, kind: str, content: bytes | None
) -> None:
    """SEMANTICS 8.8: only the log's own bytes are a promise."""
    path = logs(closed)[-1].with_suffix(f".{kind}")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with kstore.Store.open(closed, clock=clock, background=False) as store:
        assert store.stats()["refused"] == {}
        log = store.log("events", 0)
        assert log.append(b"more") == COUNT
        assert log.offset_for_timestamp(clock.now) is not None
    assert errors(closed) == []


@pytest.fixture
def recorded(root: Path, clock: ManualClock) -> Path:
    """A closed store that has a record of its topic, since that has a setting of its own."""
    with kstore.Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events", 3, config={"segment.bytes": "600"})
        for number in range(COUNT):
            for partition in range(2):
                store.log("events", partition).append(b"%04d" % number)
    return root


@pytest.mark.parametrize("gone", [[0], [1], [0, 1], [0, 1, 2]])
@pytest.mark.parametrize("marker", [True, False])
def test_a_partition_whose_directory_is_missing_is_refused(
    recorded: Path, clock: ManualClock, gone: list[int], marker: bool
) -> None:
    # docs/compatibility.md: `missing-partition`
    """A topic's record and a recovery point know it; its offsets must not be given out a second time."""
    root = recorded
    for partition in gone:
        shutil.rmtree(root / f"events-{partition}")
    if not marker:
        (root / MARKER).unlink()
    lost = [partition for partition in gone if partition < 2]
    assert len([what for what in errors(root) if "missing" in what]) == len(lost)
    with kstore.Store.open(root, "r") as store, pytest.raises(kstore.CorruptRecordError, match="kstore repair"):
        list(store.read("events"))
    for _ in range(2):
        with kstore.Store.open(root, clock=clock, background=False) as store:
            assert list(store.stats()["refused"]) == [f"events-{partition}" for partition in lost]
            with pytest.raises(kstore.CorruptRecordError, match="kstore repair"):
                store.log("events", lost[0])
            store.update_topic_config("events", {"segment.bytes": "700"})
            if 1 not in gone:
                assert store.log("events", 1).append(b"more") >= COUNT
        assert not (root / MARKER).exists()
        assert not (root / f"events-{lost[0]}").exists()
    assert cli("repair", str(root)) == 1
    assert not (root / f"events-{lost[0]}").exists()
    assert cli("repair", "--yes", str(root)) == 0
    assert errors(root) == []
    with kstore.Store.open(root, clock=clock, background=False) as store:
        for partition in lost:
            log = store.log("events", partition)
            assert (log.log_start_offset, log.log_end_offset) == (COUNT, COUNT)
            assert log.append(b"after") == COUNT
    assert (root / MARKER).exists()
    assert errors(root) == []


def test_a_topic_can_be_deleted_although_a_directory_of_it_is_missing(recorded: Path, clock: ManualClock) -> None:
    shutil.rmtree(recorded / "events-0")
    with kstore.Store.open(recorded, clock=clock, background=False) as store:
        store.add_partitions("events", 4)
        store.delete_topic("events")
    for _ in range(2):
        with kstore.Store.open(recorded, clock=clock, background=False) as store:
            assert (store.topics, store.stats()["refused"]) == ((), {})
    assert (recorded / MARKER).exists()


def test_a_topic_that_a_broker_has_deleted_is_not_missed(recorded: Path, clock: ManualClock) -> None:
    """SEMANTICS 13.8: a broker takes the lines away with the directories, and leaves the record, which is no file of
    its own."""
    for partition in range(3):
        shutil.rmtree(recorded / f"events-{partition}")
        checkpoint.forget_partitions(recorded, [("events", partition)])
    with kstore.Store.open(recorded, clock=clock, background=False) as store:
        assert (store.topics, store.stats()["refused"]) == ((), {})
    assert (recorded / MARKER).exists()
    assert errors(recorded) == []


def test_a_reader_sees_a_partition_go_and_come_back(recorded: Path, tmp_path: Path) -> None:
    with kstore.Store.open(recorded, "r") as store:
        assert len(list(store.read("events"))) == 2 * COUNT
        (recorded / "events-1").rename(tmp_path / "away")
        with pytest.raises(kstore.CorruptRecordError, match="missing"):
            list(store.read("events"))
        assert list(store.stats()["refused"]) == ["events-1"]
        (tmp_path / "away").rename(recorded / "events-1")
        assert len(list(store.read("events"))) == 2 * COUNT
        assert store.stats()["refused"] == {}


def test_a_reader_takes_no_topic_that_is_made_or_deleted_for_a_damaged_one(recorded: Path, clock: ManualClock) -> None:
    with kstore.Store.open(recorded, "r") as reader, kstore.Store.open(recorded, clock=clock) as store:
        for number in range(5):
            store.create_topic(f"more-{number}", 2, config={"segment.bytes": "700"})
            store.append(f"more-{number}", b"x", partition=1)
            store.flush()
            assert reader.stats()["refused"] == {}
            assert [record.value for record in reader.read(f"more-{number}")] == [b"x"]
            store.delete_topic(f"more-{number}")
            assert reader.stats()["refused"] == {}
            assert f"more-{number}" not in reader.topics
