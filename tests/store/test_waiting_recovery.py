"""Which logs of a store a crash leaves to be recovered at the opening, and which wait until they are first needed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ManualClock

import kstore
from kstore.disk import fs, handles
from kstore.errors import CorruptRecordError, StorageError
from kstore.files import checkpoint, names
from kstore.log.log import writer_of
from kstore.log.segments import look
from kstore.log.segments._producers import ProducerTable
from kstore.log.segments.look import Seen

BASE = f"{0:020d}"
RECORDS = 5


def batch(base: int = 0, **producer: int) -> bytes:
    return kstore.encode_batch([b"v" * 20] * RECORDS, base_offset=base, now_ms=1000, **producer)


@pytest.fixture
def crashed(tmp_path: Path, no_syncs: None) -> Path:
    """The directory of a store that was killed: three partitions of five records, of which nothing was flushed."""
    root = tmp_path / "life"
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("events", 3)
        for number in range(3):
            for _ in range(RECORDS):
                store.log("events", number).append(b"v" * 20)
        shutil.copytree(root, tmp_path / "crashed")
    return tmp_path / "crashed"


def open_logs(store: kstore.Store) -> int:
    return store.stats()["open_logs"]


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*-[0-9]/*"))}


# What a look says of one directory


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A partition's directory as a crash leaves it: a record batch, indexes at full size."""
    path = tmp_path / "events-0"
    path.mkdir()
    (path / f"{BASE}.log").write_bytes(batch())
    for kind in ("index", "timeindex"):
        (path / f"{BASE}.{kind}").write_bytes(bytes(1200))
    return path


def seen(path: Path, recovery_point: int = 0, log_start_offset: int = 0) -> Seen:
    return look.look(str(path), recovery_point, log_start_offset)


def waits(path: Path, recovery_point: int = 0, log_start_offset: int = 0) -> int | None:
    found = seen(path, recovery_point, log_start_offset)
    assert not (found.needs_nothing and found.sound_end is not None)
    return found.sound_end


@pytest.mark.parametrize(("more", "end"), [(-1, None), (0, RECORDS), (1, RECORDS)])
def test_a_recovery_waits_where_the_last_segment_is_little(
    left: Path, monkeypatch: pytest.MonkeyPatch, more: int, end: int | None
) -> None:
    monkeypatch.setattr(look, "LITTLE_BYTES", len(batch()) + more)
    assert waits(left) == end


def test_an_empty_segment_waits(left: Path) -> None:
    (left / f"{BASE}.log").write_bytes(b"")
    assert waits(left) == 0


@pytest.mark.parametrize(
    "second",
    [
        batch(RECORDS)[:-1],
        batch(RECORDS)[:70] + b"\xff" + batch(RECORDS)[71:],
        batch(RECORDS) + b"\0",
        batch(RECORDS - 1),
    ],
    ids=["torn", "checksum", "a zero behind it", "offsets"],
)
def test_a_recovery_that_cuts_does_not_wait(left: Path, second: bytes) -> None:
    (left / f"{BASE}.log").write_bytes(batch() + second)
    assert waits(left) is None


@pytest.mark.parametrize(("recovery_point", "end"), [(RECORDS - 1, RECORDS), (RECORDS, RECORDS), (RECORDS + 1, None)])
def test_a_log_below_its_recovery_point_does_not_wait(left: Path, recovery_point: int, end: int | None) -> None:
    assert waits(left, recovery_point) == end


@pytest.mark.parametrize(("start", "end"), [(RECORDS, RECORDS), (RECORDS + 1, None)])
def test_a_log_below_its_log_start_does_not_wait(left: Path, start: int, end: int | None) -> None:
    assert waits(left, start, start) == end


@pytest.mark.parametrize("name", [f"{BASE}.index", f"{BASE}.timeindex"])
def test_a_recovery_that_makes_an_index_does_not_wait(left: Path, name: str) -> None:
    (left / name).unlink()
    assert waits(left) is None


@pytest.mark.parametrize(
    "name", [f"{BASE}.txnindex", f"{BASE}.txnindex.tmp", f"{7:020d}.index", f"{7:020d}.log.deleted"]
)
def test_a_recovery_that_finds_more_files_does_not_wait(left: Path, name: str) -> None:
    (left / name).write_bytes(b"")
    assert waits(left) is None


def test_a_batch_of_a_producer_does_not_wait(left: Path) -> None:
    """The coordinator of transactions asks the logs for their producers at an opening."""
    (left / f"{BASE}.log").write_bytes(batch() + batch(RECORDS, producer_id=7, producer_epoch=0, base_sequence=0))
    assert waits(left) is None


def test_the_snapshot_behind_the_segment_is_made_anew_and_says_nothing(left: Path) -> None:
    (left / f"{RECORDS:020d}.snapshot").write_bytes(b"torn")
    assert waits(left) == RECORDS


@pytest.fixture
def two(left: Path) -> Path:
    """A log of two segments, the second from offset 5 on, with the empty snapshot of the roll."""
    base = f"{RECORDS:020d}"
    for kind in ("index", "timeindex"):
        (left / f"{base}.{kind}").write_bytes(bytes(1200))
        (left / f"{BASE}.{kind}").write_bytes(b"")
    (left / f"{base}.log").write_bytes(batch(RECORDS))
    (left / f"{base}.snapshot").write_bytes(ProducerTable().snapshot())
    return left


def test_the_last_of_two_segments_waits_where_what_was_flushed_ends_in_it(two: Path) -> None:
    """Where it ends at its base, the segment before it may have to be recovered, too."""
    assert waits(two, RECORDS - 1) is None
    assert waits(two, RECORDS) is None
    assert waits(two, RECORDS + 1) == 2 * RECORDS


def test_a_snapshot_of_producers_does_not_wait(two: Path) -> None:
    """Nor does the search for producers where there is no snapshot at the segment's base."""
    path = two / f"{RECORDS:020d}.snapshot"
    with kstore.Log.open(two.parent / "other-0") as log:
        log.append_many([b"v"], producer_id=7, producer_epoch=0, base_sequence=0)
    shutil.copyfile(two.parent / "other-0" / f"{1:020d}.snapshot", path)
    assert waits(two, RECORDS + 1) is None
    path.write_bytes(ProducerTable().snapshot())
    path.rename(two / f"{RECORDS - 1:020d}.snapshot")
    assert waits(two, RECORDS + 1) is None
    (two / f"{RECORDS - 1:020d}.snapshot").unlink()
    assert waits(two, RECORDS + 1) is None


@pytest.mark.parametrize(
    ("text", "end"),
    [("0\n1\n0 0\n", RECORDS), ("0\n0\n", RECORDS), ("", RECORDS), ("0\n2\n0 0\n", None), ("1\n", None)],
)
def test_leader_epochs_that_are_malformed_do_not_wait(left: Path, text: str, end: int | None) -> None:
    (left / names.LEADER_EPOCH_CHECKPOINT).write_text(text)
    assert waits(left) == end


def test_leader_epochs_that_begin_below_the_first_segment_do_not_wait(two: Path) -> None:
    """The opening warns that a segment is missing."""
    for kind in ("log", "index", "timeindex"):
        (two / f"{BASE}.{kind}").unlink()
    (two / names.LEADER_EPOCH_CHECKPOINT).write_text(f"0\n1\n0 {RECORDS}\n")
    assert waits(two, RECORDS) == 2 * RECORDS
    (two / names.LEADER_EPOCH_CHECKPOINT).write_text(f"0\n1\n0 {RECORDS - 1}\n")
    assert waits(two, RECORDS) is None


# A little log that was closed


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A partition's directory as a close leaves it, without the mark: eight batches, entries in both indexes."""
    with kstore.Log.open(tmp_path / "life" / "events-0", index_interval_bytes=100, segment_index_bytes=1200) as log:
        for number in range(8):
            log.append_many([(None, b"v" * 20, 1000 + number, ())] * 2)
    shutil.copytree(tmp_path / "life" / "events-0", tmp_path / "events-0")
    return tmp_path / "events-0"


def test_a_little_log_that_was_closed_needs_nothing(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a look at a larger one finds."""
    assert (closed / f"{BASE}.index").stat().st_size > 8
    assert seen(closed, 16)[:2] == (True, False)
    assert seen(closed, 15)[:2] == (False, True)
    monkeypatch.setattr(look, "LITTLE_BYTES", -1)
    assert seen(closed, 16)[:2] == (True, False)
    assert seen(closed, 15)[:2] == (False, True)


@pytest.mark.parametrize("offset", [13, 14, 15, 16])
def test_the_closing_entry_of_a_little_log_may_name_what_that_of_a_larger_one_may(
    closed: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """Older brokers named the record in the last batch, here of the offsets 14 and 15."""
    path = closed / f"{BASE}.timeindex"
    path.write_bytes(path.read_bytes()[:-4] + offset.to_bytes(4, "big"))
    found = seen(closed, 16)
    monkeypatch.setattr(look, "LITTLE_BYTES", -1)
    assert found[:2] == seen(closed, 16)[:2] == (offset in (14, 15), offset not in (14, 15))


@pytest.mark.parametrize("little", [True, False])
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("index", lambda data: data + bytes(1200)),
        ("index", lambda data: data + b"\0"),
        ("index", lambda data: data[:-8] + data[-16:-8]),
        ("index", lambda data: data[:-4] + (1 << 20).to_bytes(4, "big")),
        ("timeindex", lambda data: data + bytes(1200)),
        ("timeindex", lambda data: data + b"\0"),
        ("timeindex", lambda data: data[:-12]),
        ("timeindex", lambda _: b""),
        ("timeindex", lambda data: data[:-4] + (99).to_bytes(4, "big")),
    ],
)
def test_a_little_log_with_another_index_than_a_close_leaves_is_recovered(
    closed: Path, monkeypatch: pytest.MonkeyPatch, little: bool, kind: str, change: Callable[[bytes], bytes]
) -> None:
    path = closed / f"{BASE}.{kind}"
    path.write_bytes(change(path.read_bytes()))
    if not little:
        monkeypatch.setattr(look, "LITTLE_BYTES", -1)
    assert seen(closed, 16)[:2] == (False, True)
    assert seen(closed, 16).sound_end == (16 if little else None)


# What a store does with a log that waits


def test_a_log_that_waits_is_not_opened_and_keeps_its_files(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`recovery-when-needed`. Each of the two files that are read is opened once."""
    before = files_in(crashed)
    opened: list[str] = []

    def counted(path: Any, *how: Any, real: Callable[..., int] = handles.open_regular, **more: Any) -> int:
        opened.append(str(path))
        return real(path, *how, **more)

    monkeypatch.setattr(fs, "open_regular", counted)
    told: list[tuple[int, int]] = []
    with kstore.Store.open(crashed, background=False, progress=lambda *counts: told.append(counts)) as store:
        assert told == [(1, 3), (2, 3), (3, 3)]
        assert open_logs(store) == 0
        inside = sorted(path for path in opened if "events-" in path and not path.endswith(names.PARTITION_METADATA))
        expected = [
            f"{crashed}/events-{n}/{name}" for n in range(3) for name in (f"{BASE}.log", "leader-epoch-checkpoint")
        ]
        assert inside == expected
        assert files_in(crashed) == before


def test_a_log_that_waits_is_recovered_when_it_is_needed(crashed: Path) -> None:
    with kstore.Store.open(crashed, background=False) as store:
        log = store.log("events", 1)
        assert (log.log_end_offset, log.recovery.clean, log.recovery.cut_bytes) == (RECORDS, False, 0)
        assert log.append(b"w") == RECORDS
        assert open_logs(store) == 1
        assert [record.value for record in store.read("events", partitions=[2])] == [b"v" * 20] * RECORDS


def test_a_log_that_waits_is_closed_in_order(crashed: Path) -> None:
    kstore.Store.open(crashed, background=False).close()
    assert (crashed / checkpoint.CLEAN_MARKER).exists()
    lines = {("events", number): RECORDS for number in range(3)}
    assert checkpoint.read_offsets(crashed, checkpoint.RECOVERY_POINTS) == lines
    assert checkpoint.read_offsets(crashed, checkpoint.HIGH_WATERMARKS) == lines
    assert (crashed / "events-0" / f"{BASE}.index").stat().st_size == 0
    with kstore.Store.open(crashed, background=False) as store:
        assert store.log("events", 0).recovery.clean


def test_a_flush_covers_a_log_that_waits(crashed: Path) -> None:
    with kstore.Store.open(crashed, background=False) as store:
        store.flush()
        assert [writer_of(store.log("events", n)).housekeeping.recovery_point for n in range(3)] == [RECORDS] * 3


def test_a_crash_while_a_log_waits_leaves_it_as_it_was(crashed: Path, tmp_path: Path) -> None:
    with kstore.Store.open(crashed, background=False):
        shutil.copytree(crashed, tmp_path / "again")
    with kstore.Store.open(tmp_path / "again", background=False) as store:
        assert open_logs(store) == 0
        assert [store.log("events", n).log_end_offset for n in range(3)] == [RECORDS] * 3


def test_damage_in_a_little_log_is_found_at_the_opening(crashed: Path) -> None:
    """Above the recovery point it is cut, below it is refused."""
    checkpoint.update_offsets(crashed, checkpoint.RECOVERY_POINTS, {("events", 1): RECORDS})
    for number in (0, 1):
        path = crashed / f"events-{number}" / f"{BASE}.log"
        data = path.read_bytes()
        path.write_bytes(data[:-1])
    with kstore.Store.open(crashed, background=False) as store:
        assert open_logs(store) == 1
        assert list(store.stats()["refused"]) == ["events-1"]
        assert store.log("events", 0).recovery.cut_from_offset == RECORDS - 1
        with pytest.raises(CorruptRecordError):
            store.log("events", 1)
    assert not (crashed / checkpoint.CLEAN_MARKER).exists()


def test_damage_that_comes_while_a_log_waits_is_met_by_its_first_use(crashed: Path) -> None:
    checkpoint.update_offsets(crashed, checkpoint.RECOVERY_POINTS, {("events", 1): RECORDS})
    store = kstore.Store.open(crashed, background=False)
    path = crashed / "events-1" / f"{BASE}.log"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError):
        store.flush()
    assert list(store.stats()["refused"]) == ["events-1"]
    store.flush()
    store.close()
    assert not (crashed / checkpoint.CLEAN_MARKER).exists()


def test_a_log_that_cannot_be_opened_at_the_close_is_reported_and_keeps_the_marker_away(
    crashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kstore.Store.open(crashed, background=False)
    (crashed / "events-1" / f"{BASE}.index").unlink()
    (crashed / "events-1" / f"{BASE}.index").mkdir()
    with pytest.raises(StorageError, match="directory"):
        store.close()
    assert not (crashed / checkpoint.CLEAN_MARKER).exists()
    assert (crashed / "events-0" / f"{BASE}.index").stat().st_size == 0


def test_the_high_watermark_of_a_log_that_waits_is_no_higher_than_its_end(crashed: Path) -> None:
    checkpoint.update_offsets(crashed, checkpoint.HIGH_WATERMARKS, {("events", 0): 9, ("events", 1): 3})
    with kstore.Store.open(crashed, background=False) as store:
        directory = store._logs.disks.directories[str(crashed)]
        marks = [directory.mark(checkpoint.HIGH_WATERMARKS, ("events", number)) for number in range(3)]
        assert marks == [RECORDS, 3, None]


def test_a_topic_with_timed_flushes_does_not_wait(crashed: Path, clock: ManualClock) -> None:
    """Else what a crash left of it would be flushed no sooner than it is needed."""
    with kstore.Store.open(crashed, background=False, flush_ms=1000, clock=clock) as store:
        assert open_logs(store) == 3
        clock.advance(1000)
        store.run_housekeeping()
        assert not any(writer_of(store.log("events", n)).housekeeping.owes_anything for n in range(3))


def test_timed_flushes_that_are_asked_for_later_begin_then(crashed: Path, clock: ManualClock) -> None:
    with kstore.Store.open(crashed, background=False, clock=clock) as store:
        store.update_topic_config("events", {"retention.ms": "100000"})
        assert open_logs(store) == 0
        store.update_topic_config("events", {"flush.ms": "1000"})
        assert open_logs(store) == 3
        clock.advance(1000)
        store.run_housekeeping()
        assert not any(writer_of(store.log("events", n)).housekeeping.owes_anything for n in range(3))


def test_a_topic_that_is_deleted_while_its_logs_wait_leaves_the_marker(crashed: Path) -> None:
    with kstore.Store.open(crashed, background=False) as store:
        store.delete_topic("events")
    assert (crashed / checkpoint.CLEAN_MARKER).exists()


def test_an_open_transaction_is_ended_beside_a_log_that_waits(crashed: Path, tmp_path: Path) -> None:
    with kstore.Store.open(crashed, background=False) as store, store.producer(transactional_id="mover") as producer:
        transaction = producer.transaction()
        transaction.append("events", b"open", partition=0)
        shutil.copytree(crashed, tmp_path / "again")
        transaction.abort()
    shutil.rmtree(next((tmp_path / "again").glob("__transaction_state-*")))
    with kstore.Store.open(tmp_path / "again", background=False) as store:
        assert store.log("events", 0).last_stable_offset == store.log("events", 0).log_end_offset
        assert store.log("events", 1).log_end_offset == RECORDS


def test_a_flush_passes_over_a_topic_that_is_deleted_meanwhile(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kstore.Store.open(crashed, background=False) as store:
        manager = store._logs
        opened = manager.log

        def deleted_first(entry: Any, *seen: Any) -> kstore.Log:
            if "events" in store.topics:
                store.delete_topic("events")
            return opened(entry, *seen)

        monkeypatch.setattr(manager, "log", deleted_first)
        store.flush()
        assert store.topics == ()
