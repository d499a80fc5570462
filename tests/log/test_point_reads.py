"""`Log.get` gives what a read gives at each offset: in each mode, after each change, and from damaged bytes."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.log.hosted_log import HostedLog
from kstore.log.reading import _point_reads
from kstore.log.segments.segment import Segment

pytestmark = pytest.mark.usefixtures("no_syncs")

SMALL: dict[str, Any] = {"segment_bytes": 3000, "index_interval_bytes": 200, "file_delete_delay_ms": 0}


def filled(path: Path, count: int = 60, **settings: Any) -> kstore.Log:
    """A log of several segments, with batches of one to nine records and of all codecs."""
    rng = random.Random(count)
    log = kstore.Log.open(path, **{**SMALL, **settings})
    while log.log_end_offset < count:
        rows = [
            (b"k", b"%d" % (log.log_end_offset + n), 1000 + n, [("n", b"%d" % n)] * (n % 3))
            for n in range(rng.randint(1, 9))
        ]
        log.append_many(rows, compression=rng.choice(["none", "gzip", "snappy", "lz4", "zstd"]), atomic=True)
    return log


def age(path: Path, at: list[int] = [0]) -> None:  # noqa: B006
    """All was changed long ago, each time at another time, so that a reader trusts the times of modification."""
    at[0] += 1
    for each in (path.parent, path, *path.glob("*.log")):
        os.utime(each, ns=(at[0], at[0]))


def in_order(log: kstore.Log, rng: random.Random) -> dict[int, kstore.Record | None]:
    offsets = list(range(log.log_start_offset, log.log_end_offset))
    rng.shuffle(offsets)
    return {offset: log.get(offset) for offset in offsets}


def agree(log: kstore.Log, rng: random.Random) -> None:
    """Each offset twice, in any order: from the file, and from the batch that is kept."""
    expected = {record.offset: record for record in log.read()}
    for _ in range(2):
        for offset, record in in_order(log, rng).items():
            assert record == expected.get(offset), offset
            assert record == next(log.read(offset, end_offset=offset + 1), None)
    for offset in (log.log_start_offset - 1, log.log_end_offset, log.log_end_offset + 1):
        with pytest.raises(kstore.OffsetOutOfRangeError):
            log.get(offset)


def test_it_gives_what_a_read_gives_at_each_offset_with_each_codec(tmp_path: Path, rng: random.Random) -> None:
    with filled(tmp_path / "t-0", 400) as log, kstore.Log.open(tmp_path / "t-0", "r") as reader:
        assert len(log.segments) > 2
        agree(log, rng)
        agree(reader, rng)
        age(tmp_path / "t-0")
        agree(reader, rng)


@pytest.mark.parametrize("batch_bytes", [100, 1000, 40_000])
def test_batches_small_and_large_between_the_entries_of_an_index(
    tmp_path: Path, rng: random.Random, batch_bytes: int
) -> None:
    with kstore.Log.open(tmp_path / "t-0", index_interval_bytes=4096) as log:
        log.append_many([b"%d" % number * 5 for number in range(2000)], batch_bytes=batch_bytes)
        offsets = [0, 1, 1999, *rng.sample(range(2000), 200)]
        assert [log.get(offset).value for offset in offsets] == [b"%d" % offset * 5 for offset in offsets]  # type: ignore[union-attr]


def test_a_batch_that_is_too_large_to_keep(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "t-0", max_message_bytes=1 << 23) as log:
        log.append_many([bytes(1 << 20), b"1", b"2"], atomic=True, batch_bytes=1 << 22)
        log.append_many([bytes(3 << 20), b"4"], atomic=True, compression="zstd", batch_bytes=1 << 22)
        for _ in range(2):
            assert [len(log.get(offset).value) for offset in range(5)] == [1 << 20, 1, 1, 3 << 20, 1]  # type: ignore[union-attr, arg-type]


def test_gaps_markers_and_aborted_records_are_none(tmp_path: Path, rng: random.Random) -> None:
    with kstore.Log.open(tmp_path / "t-0", cleanup_policy="compact", segment_bytes=400, delete_retention_ms=0) as log:
        for number in range(40):
            log.append(b"%d" % number, b"k%d" % (number % 3))
        log.compact(roll=True)
        producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
        first = log.append_many(
            [(b"k", b"x"), (b"k", b"y")], **producer, base_sequence=0, transactional=True
        ).first_offset
        log.append_marker(**producer, commit=False)
        log.append(b"after", b"k")
        open_at = log.append_many([(b"k", b"z")], **producer, base_sequence=2, transactional=True).first_offset
        log.append(b"undecided", b"k")
        with kstore.Log.open(tmp_path / "t-0", "r") as reader:
            for each in (log, reader, log):
                agree(each, rng)
                assert each.get(5) is None
                assert each.get(first).value == b"x"  # type: ignore[union-attr]
                assert [each.get(first + n, isolation="read_committed") for n in range(3)] == [None] * 3
                assert each.get(first + 3, isolation="read_committed").value == b"after"  # type: ignore[union-attr]
                assert each.get(open_at, isolation="read_committed") is None
                assert each.get(open_at + 1, isolation="read_committed") is None  # not decided yet
                assert each.get(open_at + 1).value == b"undecided"  # type: ignore[union-attr]
                with pytest.raises(kstore.OffsetOutOfRangeError):
                    each.get(open_at + 2, isolation="read_committed")


def test_the_kept_batch_is_dropped_when_its_records_go(tmp_path: Path) -> None:
    with filled(tmp_path / "t-0") as log, kstore.Log.open(tmp_path / "t-0", "r") as reader:
        for each in (log, reader):
            assert each.get(50).value == b"50"  # type: ignore[union-attr]
        log.truncate_to(30)
        for each in (log, reader):
            with pytest.raises(kstore.OffsetOutOfRangeError):
                each.get(50)
        log.append_many([b"new %d" % number for number in range(30, 60)], batch_bytes=300)
        for each in (log, reader):
            assert each.get(50).value == b"new 50"  # type: ignore[union-attr]
        log.delete_records(51)
        for each in (log, reader):
            with pytest.raises(kstore.OffsetOutOfRangeError):
                each.get(50)
            assert each.get(51).value == b"new 51"  # type: ignore[union-attr]
            with pytest.raises(kstore.OffsetOutOfRangeError):
                each.get(50)  # of the same batch, which is kept now


@pytest.mark.parametrize("change", ["truncate", "truncate and write", "roll", "delete", "compact"])
def test_a_reader_that_trusts_old_times_sees_each_change(tmp_path: Path, change: str) -> None:
    """The directories and files are old, the batch is kept, and then the writer changes the log."""
    path = tmp_path / "t-0"
    with kstore.Log.open(path, **SMALL, cleanup_policy="compact,delete") as log, kstore.Log.open(path, "r") as reader:
        for number in range(20):
            log.append_many([(b"k", b"%d" % (3 * number + place)) for place in range(3)], atomic=True)
        log.flush()
        for _ in range(3):
            age(path)
            assert [reader.get(offset).value for offset in (40, 41, 57)] == [b"40", b"41", b"57"]  # type: ignore[union-attr]
        if change.startswith("truncate"):
            log.truncate_to(40)
            if change == "truncate and write":
                log.append_many([(b"k", b"new")] * 25, batch_bytes=200)
        elif change == "roll":
            log.roll()
        elif change == "delete":
            log.delete_records(41)
        else:
            log.compact(roll=True)
        for offset in (40, 41, 57):
            try:
                expected = log.get(offset)
            except kstore.OffsetOutOfRangeError:
                with pytest.raises(kstore.OffsetOutOfRangeError):
                    reader.get(offset)
            else:
                assert reader.get(offset) == expected


def test_a_kept_batch_of_another_process_is_read_again_when_the_file_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with kstore.Log.open(path) as log:
        log.append_many([b"old", b"and"], atomic=True)
    other = tmp_path / "other" / "t-0"
    with kstore.Log.open(other) as log:
        log.append_many([b"new", b"but"], atomic=True)
    name = "00000000000000000000.log"
    with kstore.Log.open(path, "r") as reader:
        for _ in range(3):
            age(path)
            assert reader.get(0).value == b"old"  # type: ignore[union-attr]
        with (path / name).open("r+b") as file:  # in place: the directory does not change
            file.write((other / name).read_bytes())
        assert reader.get(0).value == b"new"  # type: ignore[union-attr]


def test_each_damaged_byte_gives_the_record_or_the_error_that_a_read_gives(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with kstore.Log.open(path, index_interval_bytes=100) as log:
        for batch in range(4):
            rows = [(b"k", b"%d" % (3 * batch + place), 1000, None) for place in range(3)]
            log.append_many(rows, atomic=True, compression=("none", "lz4", "none", "zstd")[batch])
        expected = list(log.read())
        file = path / "00000000000000000000.log"
        sound = file.read_bytes()
        guard = HostedLog(log).view.guard
        for place in range(len(sound)):
            damaged = bytearray(sound)
            damaged[place] ^= 1 << place % 8
            file.write_bytes(damaged)
            for offset in range(12):
                guard.version += 1  # nothing is kept
                try:
                    record = log.get(offset)
                except kstore.CorruptRecordError:
                    with pytest.raises(kstore.CorruptRecordError):
                        next(log.read(offset, end_offset=offset + 1))
                else:
                    assert record == expected[offset], place
        file.write_bytes(sound)


@pytest.mark.parametrize("count", [1, 3])
def test_a_header_with_another_count_gives_the_error_of_a_read(tmp_path: Path, count: int) -> None:
    """The CRC is right, and the header says fewer or more records than there are."""
    path = tmp_path / "t-0"
    with kstore.Log.open(path) as log:
        log.append_many([b"1", b"2"], atomic=True)
        file = path / "00000000000000000000.log"
        data = bytearray(file.read_bytes())
        data[60] = count
        data[17:21] = kstore._core.crc32c(data[21:]).to_bytes(4, "big")
        file.write_bytes(data)
        for offset in (0, 1):
            errors = []
            for read in (log.get, lambda at: next(log.read(at, end_offset=at + 1))):
                try:
                    errors.append(str(read(offset)))
                except kstore.CorruptRecordError as error:
                    errors.append(error.reason)
            assert errors[0] == errors[1]
            assert count == 3 or errors[0] == "bytes are left after the last record"


def test_a_closed_log_and_a_child_answer_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    assert log.get(7) is not None
    child = os.fork()
    if not child:
        try:
            log.get(7)
        except kstore.LogClosedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    log.close()
    with pytest.raises(kstore.LogClosedError):
        log.get(7)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with filled(tmp_path / "t-0") as log:
        for offset in ("1", 1.0, None):
            with pytest.raises(TypeError):
                log.get(offset)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="isolation"):
            log.get(1, isolation="committed")  # type: ignore[arg-type]
        for offset in (-1, 1 << 62, 1 << 63, 1 << 80):
            with pytest.raises((kstore.OffsetOutOfRangeError, ValueError, OverflowError)) as error:
                log.get(offset)
            assert type(error.value) is type(_error(lambda offset=offset: log.read(offset)))
    with kstore.Log.open(tmp_path / "empty-0") as log, pytest.raises(kstore.OffsetOutOfRangeError):
        log.get(0)


def test_a_change_right_after_the_read_of_a_batch_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file changes within one step of its clock after the read, and the reader goes on when the step is over."""
    path = tmp_path / "t-0"
    name = "00000000000000000000.log"
    contents = []
    for directory, records in ((path, [b"old", b"and"]), (tmp_path / "other" / "t-0", [b"new", b"but"])):
        with kstore.Log.open(directory) as log:
            log.append_many(records, atomic=True)
        contents.append((directory / name).read_bytes())

    def changed(segment: Segment) -> str:  # called between the read and the look at the file's name
        if len(contents) == 2:
            (path / name).write_bytes(contents.pop())
            os.utime(path / name, ns=(at_ns, at_ns))
            time.sleep(0.06)
        return str(path / name)

    with kstore.Log.open(path, "r") as reader:
        for _ in range(3):
            age(path)
            assert reader.fetch(0, 1000)
        at_ns = time.time_ns()
        os.utime(path / name, ns=(at_ns, at_ns))
        monkeypatch.setattr(Segment, "path", property(changed))
        reader.get(0)
        assert len(contents) == 1
        assert reader.get(0).value == b"new"  # type: ignore[union-attr]


def test_a_fetch_takes_any_number_and_its_memory_counts(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append(b"record")
        before = _point_reads.kept_bytes()
        assert log.fetch(0, 1 << 70).records == log.fetch(0, 1000).records
        assert _point_reads.kept_bytes() > before
        for offset in (1 << 70, -1 << 70):
            with pytest.raises(kstore.OffsetOutOfRangeError):
                log.fetch(offset, 1000)


def _error(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except BaseException as error:
        return error
    return None


def test_a_get_amid_a_get_takes_no_bytes_from_it(tmp_path: Path) -> None:
    """Making a record with headers may start a garbage collection, and that any code."""
    with filled(tmp_path / "t-0", 200) as log:
        expected = list(log.read())
        inside: list[kstore.Record | None] = []

        def another(phase: str, info: object) -> None:
            if phase == "start":
                inside.append(log.get(len(inside) * 37 % 200))

        threshold = gc.get_threshold()
        gc.callbacks.append(another)
        gc.set_threshold(1)
        try:
            found = [log.get(offset) for offset in range(200)]
        finally:
            gc.set_threshold(*threshold)
            gc.callbacks.remove(another)
        assert found == expected[:200]
        assert inside == [expected[number * 37 % 200] for number in range(len(inside))]
        assert inside


def test_threads_beside_a_writer_get_what_the_offsets_say(tmp_path: Path) -> None:
    """More threads than keep a batch, while records are appended, cut and compacted."""
    wrong: list[object] = []
    over = threading.Event()
    with filled(tmp_path / "t-0", 300, cleanup_policy="compact,delete") as log:

        def get(seed: int) -> None:
            rng = random.Random(seed)
            while not over.is_set():
                offset = rng.randrange(300)
                try:
                    record = log.get(offset)
                except kstore.OffsetOutOfRangeError:
                    continue
                except BaseException as error:
                    wrong.append(error)
                    return
                if record is not None and (record.offset, record.value) != (offset, b"%d" % offset):
                    wrong.append(record)

        threads = [threading.Thread(target=get, args=(seed,)) for seed in range(12)]
        for thread in threads:
            thread.start()
        for turn in range(30):
            log.truncate_to(150 + turn)
            log.append_many(
                [(b"k%d" % offset, b"%d" % offset) for offset in range(150 + turn, 300)], batch_bytes=150 + turn
            )
            log.roll()
        over.set()
        for thread in threads:
            thread.join(60)
    assert wrong == []


def descriptors() -> int:
    """How many this process has open; 0 where the system does not say."""
    told = Path("/proc/self/fd")
    return len(list(told.iterdir())) if told.exists() else 0


def test_memory_and_descriptors_stay_flat(tmp_path: Path, rng: random.Random) -> None:
    logs = [kstore.Log.open(tmp_path / f"t-{number}") for number in range(12)]
    for log in logs:
        log.append_many([rng.randbytes(1000) for _ in range(1500)], batch_bytes=500_000)
        assert log.get(0) is not None
    held = descriptors()
    for _ in range(300):
        assert rng.choice(logs).get(rng.randrange(1500)) is not None
        assert 0 < _point_reads.kept_bytes() <= 4 << 20
    assert descriptors() == held
    for log in logs:
        log.close()
    before = _point_reads.kept_bytes()
    del logs, log
    gc.collect()
    assert _point_reads.kept_bytes() < before


def test_a_coroutine_gets_the_same_from_memory_and_from_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "t-0") as log, kstore.Log.open(tmp_path / "t-0", "r") as reader:

        async def get() -> None:
            for each in (log, reader):
                for offset in (3, 4, 50):
                    assert await each.aget(offset) == log.get(offset)
                    assert await each.aget(offset, isolation="read_committed") == log.get(offset)
                with pytest.raises(kstore.OffsetOutOfRangeError):
                    await each.aget(log.log_end_offset)
                with pytest.raises(ValueError, match="isolation"):
                    await each.aget(3, isolation="other")  # type: ignore[arg-type]

        asyncio.run(get())


def test_a_store_gets_from_its_partitions(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "s", background=False) as store:
        store.create_topic("t", 2)
        store.append("t", b"one", partition=1)
        with kstore.Store.open(tmp_path / "s", mode="r") as reader:
            for each in (store, reader):
                assert each.get("t", 1, 0).value == b"one"  # type: ignore[union-attr]
                assert asyncio.run(each.aget("t", 1, 0)) == each.get("t", 1, 0, isolation="read_committed")
                with pytest.raises(kstore.OffsetOutOfRangeError):
                    each.get("t", 0, 0)
                with pytest.raises(kstore.UnknownTopicOrPartitionError):
                    each.get("t", 2, 0)


def test_a_copied_directory_and_a_lost_index_change_no_answer(tmp_path: Path, rng: random.Random) -> None:
    with filled(tmp_path / "t-0", 100) as log:
        expected = list(log.read())
    shutil.copytree(tmp_path / "t-0", tmp_path / "copy" / "t-0")
    for index in (tmp_path / "copy" / "t-0").glob("*.index"):
        data = bytearray(index.read_bytes())
        data[4:8] = (7).to_bytes(4, "big")  # a position inside of a batch
        index.write_bytes(data)
    with kstore.Log.open(tmp_path / "copy" / "t-0", "r") as log:
        age(tmp_path / "copy" / "t-0")
        assert [log.get(record.offset) for record in expected] == expected


def test_an_offset_below_the_first_segment_is_answered_as_by_a_read(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "data" / "events-0") as log:
        log.truncate_fully_and_start_at(1, log_start_offset=0)
        log.append_as_follower(kstore.encode_batch([b"value"], base_offset=1, partition_leader_epoch=0))
        with pytest.raises(kstore.OffsetOutOfRangeError):  # as in Kafka
            log.fetch(0, 1000)
        assert log.get(0) is None
        assert log.get(1) == next(iter(log.read(0))) == next(iter(log.read(1)))
