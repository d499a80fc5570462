"""Every byte of a small log is damaged once, and every reader is asked: the true records, or an error.

A log of three segments, closed, is copied; one byte of a `.log`, `.index` or `.timeindex` file is another then. What no
CRC covers counts most: a batch's base offset, length and format, and all of an index.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kstore
from kstore import cli
from kstore.errors import CorruptRecordError, InvalidRecordError, KStoreError
from kstore.spark.scanning import Scan, plan
from kstore.spark.spark_options import ReadOptions
from tests.conftest import ManualClock
from tests.support import reference
from tests.support.reference import Rec

pytestmark = pytest.mark.usefixtures("no_syncs")

T = 1_700_000_000_000
Answer = list[tuple[int, int, bytes | None]]
MASKS = (0x01, 0x80)
BASE_OFFSET_BYTES, EPOCH_BYTES = range(8), range(12, 16)


def stamp(offset: int) -> int:
    """Timestamps that go up and down, with one value many times."""
    return T + offset // 4 * 3 + (7 if offset % 6 == 1 else 0)


def truth(start: int = 0, end: int = 60) -> Answer:
    return [(offset, stamp(offset), b"value %d" % offset) for offset in range(start, end)]


def batches(path: Path) -> list[tuple[int, int]]:
    """(position, size) of each batch of a file."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        found.append((at, size))
        at += size
    return found


def make_log(directory: Path, *, close: bool = True) -> None:
    """60 records in batches of 4 and 5, in three segments, two index entries in each and more."""
    log = kstore.Log.open(directory, clock=ManualClock(T), index_interval_bytes=100, segment_bytes=10_000)
    offset = 0
    for number, count in enumerate([4, 5, 4, 5, 2] * 3):
        if number in (5, 10):
            log.roll()
        codec = "gzip" if number % 4 == 3 else "none"
        log.append_many(
            ((None, b"value %d" % at, stamp(at), None) for at in range(offset, offset + count)), compression=codec
        )
        offset += count
    assert log.log_end_offset == 60
    assert [segment.base_offset for segment in log.segments] == [0, 20, 40]
    assert all(segment.offset_index_entries >= 2 for segment in log.segments)
    assert all(segment.time_index_entries >= 2 for segment in log.segments)
    log.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    make_log(root / "events-0")
    return root


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Callable[[], Path]:
    """`copy()`: the directory of a partition of its own, as it was before any damage."""

    def again() -> Path:
        root = tmp_path / "copy"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(sound, root)
        return root / "events-0"

    return again


def rows(records: Iterator[Any]) -> Answer:
    return [(record.offset, record.timestamp, record.value) for record in records]


def column_rows(columns: kstore.Columns) -> Answer:
    return list(zip(columns.offsets.tolist(), columns.timestamps.tolist(), columns.values, strict=True))


def by_batches(log: kstore.Log, start: int, end: int) -> Answer:
    found = [row for batch in log.read_batches(start, end_offset=end) for row in rows(iter(batch))]
    return [row for row in found if start <= row[0] < end]


def by_fetch(log: kstore.Log, start: int, end: int) -> Answer:
    found: Answer = []
    while start < end:
        data = log.fetch(start, 400).records
        got = [row for batch in kstore.decode_batches(data) for row in rows(iter(batch)) if start <= row[0] < end]
        if not got:
            raise AssertionError(f"a fetch at {start} gives nothing below {end}")
        found += got
        start = found[-1][0] + 1
    return found


def by_table(log: kstore.Log, start: int, end: int) -> Answer:
    """The records of the batches that a table names, where it names them."""
    found: Answer = []
    table = log.batch_table(start, end_offset=end)
    for number in range(len(table)):
        [batch] = log.read_batches(int(table.base_offset[number]), end_offset=int(table.last_offset[number]) + 1)
        named = [int(table[name][number]) for name in ("base_offset", "last_offset", "size_bytes", "magic")]
        assert named == [batch.base_offset, batch.last_offset, batch.size_bytes, batch.magic]
        found += [row for row in rows(iter(batch)) if start <= row[0] < end]
    return found


READERS: dict[str, Callable[[kstore.Log, int, int], Answer]] = {
    "read": lambda log, start, end: rows(log.read(start, end_offset=end)),
    "read_batches": by_batches,
    "read_columns": lambda log, start, end: column_rows(log.read_columns(start, end_offset=end)),
    "read_columns threads": lambda log, start, end: column_rows(log.read_columns(start, end_offset=end, threads=4)),
    "iter_columns": lambda log, start, end: [
        row for chunk in log.iter_columns(start, end_offset=end) for row in column_rows(chunk)
    ],
    "fetch": by_fetch,
    "batch_table": by_table,
}


def ask(log: kstore.Log, name: str, start: int, end: int) -> str:
    """What a reader does: "true", "error", or an assertion that names what is wrong."""
    try:
        found = READERS[name](log, start, end)
    except KStoreError:
        return "error"
    assert found == truth(start, end), f"{name} of [{start}, {end})"
    return "true"


def damage(path: Path, at: int, mask: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


RANGES = [(0, 60), (7, 31), (19, 21), (41, 59), (58, 60)]


def ask_everything(directory: Path, mode: Any, where: str) -> set[str]:
    """Ask every reader of a damaged log; what they did."""
    outcomes = set()
    try:
        log = kstore.Log.open(directory, mode, clock=ManualClock(T))
    except KStoreError:
        return {"refused"}
    with log:
        try:
            end = log.log_end_offset
        except KStoreError:
            return {"refused"}
        for start, stop in RANGES:
            for name in READERS:
                try:
                    outcomes.add(ask(log, name, start, stop))
                except AssertionError as error:
                    raise AssertionError(f"{where}, mode {mode!r}, log end {end}: {error}") from error
        for start in range(0, 60, 7):
            try:
                found = next(log.read(start), None)
                assert found is not None, f"{where}: read({start}) gives nothing"
                assert found.offset == start, f"{where}: read({start}) gives {found}"
            except KStoreError:
                outcomes.add("error")
    return outcomes


def lowest_at(timestamp: int) -> tuple[int, int] | None:
    return next(((at, offset) for offset, at in ((o, stamp(o)) for o in range(60)) if at >= timestamp), None)


TIMES = sorted({stamp(offset) + more for offset in range(60) for more in (-1, 0, 1)})
GREATEST = max((stamp(offset), -offset) for offset in range(60))


def ask_times(directory: Path, mode: Any, where: str) -> set[str]:
    """Search by every time there is, and for the greatest."""
    outcomes = set()
    try:
        log = kstore.Log.open(directory, mode, clock=ManualClock(T))
    except KStoreError:
        return {"refused"}
    with log:
        for timestamp in TIMES:
            try:
                found = log.offset_for_timestamp(timestamp)
                assert found == lowest_at(timestamp), f"{where}, mode {mode!r}: {timestamp - T} ms gives {found}"
                outcomes.add("true")
            except KStoreError:
                outcomes.add("error")
        try:
            assert log.max_timestamp() == (GREATEST[0], -GREATEST[1]), f"{where}, mode {mode!r}: max_timestamp"
            start = next(log.read(start_timestamp=TIMES[-1] - 9)).offset
            assert start == lowest_at(TIMES[-1] - 9)[1], f"{where}, mode {mode!r}: start_timestamp"  # type: ignore[index]
        except KStoreError:
            outcomes.add("error")
    return outcomes


def segment_files(directory: Path, suffix: str) -> list[Path]:
    return sorted(directory.glob(f"*{suffix}"))


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_flipped_byte_that_no_crc_covers_gives_the_true_records_or_an_error(
    copy: Callable[[], Path], mode: Any, number: int
) -> None:
    """FORMAT 2.1: the CRC begins behind base offset, length, leader epoch and format."""
    directory = copy()
    path = segment_files(directory, ".log")[number]
    outcomes = set()
    for position, _ in batches(path):
        for byte in range(17):
            for mask in MASKS:
                directory = copy()
                damage(path, position + byte, mask)
                where = f"{path.name} byte {position + byte} ({byte} of a batch) ^ {mask:#x}"
                found = ask_everything(directory, mode, where)
                if byte not in EPOCH_BYTES:
                    assert found != {"true"}, f"{where}: no reader says a word"
                outcomes |= found
    assert "error" in outcomes


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_flipped_byte_of_a_log_gives_the_true_times_or_an_error(
    copy: Callable[[], Path], mode: Any, number: int
) -> None:
    """SEMANTICS 5: timestamps in a header are what a search passes batches over by."""
    directory = copy()
    path = segment_files(directory, ".log")[number]
    for position, size in batches(path)[1:4]:
        for byte in (*range(61), *range(61, size, 11)):
            directory = copy()
            damage(path, position + byte, 0x01 if byte % 2 else 0x80)
            ask_times(directory, mode, f"{path.name} byte {position + byte} ({byte} of a batch)")


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_flipped_byte_of_an_index_changes_no_answer(
    copy: Callable[[], Path], mode: Any, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    # docs/compatibility.md: `doubtful-index`
    """SEMANTICS 3.10, 3.13: an entry is believed as far as the log bears it out, and else passed over and told."""
    directory = copy()
    told = flips = 0
    for path in segment_files(directory, suffix):
        for at in range(path.stat().st_size):
            for mask in (0x01, 0x80):
                directory = copy()
                damage(path, at, mask)
                where = f"{path.name} byte {at} ^ {mask:#x}"
                caplog.clear()
                assert ask_times(directory, mode, where) == {"true"}, where
                if suffix == ".index":
                    assert ask_everything(directory, mode, where) == {"true"}, where
                flips += 1
                told += any(path.name in record.message for record in caplog.records)
    assert flips > 100
    # A writer builds the last segment's anew; a fault that no reader reaches is not reported.
    assert told > flips // 4, f"{told} of {flips} were told"


# ---- one damaged batch, every way to read


def damaged_store(root: Path, position: int, to: int) -> Path:
    """A store with 60 records in three batches of one partition, of which one batch's base offset is another."""
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("t", partitions=1)
        for start in (0, 20, 40):
            store.log("t", 0).append_many((None, b"value %d" % at, stamp(at), None) for at in range(start, start + 20))
    [path] = root.glob("t-0/*.log")
    at = batches(path)[position][0]
    data = bytearray(path.read_bytes())
    assert int.from_bytes(data[at : at + 8], "big") == 20 * position
    data[at : at + 8] = to.to_bytes(8, "big", signed=True)
    path.write_bytes(data)
    return root


def through_arrow(log: kstore.Log) -> Any:
    try:
        return pa.RecordBatchReader.from_stream(log).read_all()
    except pa.ArrowInvalid as error:  # a text is all that an Arrow stream has for an error
        if "CorruptRecordError" not in str(error):
            raise
        raise CorruptRecordError(str(error)) from error


def drain(iterator: Any) -> list[Any]:
    return list(iterator)


def consume(store: kstore.Store) -> list[Any]:
    with store.consumer("group", ["t"]) as consumer:
        return list(consumer)


def fetch_all(log: kstore.Log) -> Answer:
    return by_fetch(log, 0, 60)


LOG_READERS: dict[str, Callable[[kstore.Log], Any]] = {
    "read": lambda log: drain(log.read()),
    "read follow": lambda log: drain(log.read(follow=True)),  # without a timeout: it would wait for ever
    "read durable": lambda log: drain(log.read(durable=True)),
    "read committed": lambda log: drain(log.read(isolation="read_committed")),
    "read_batches": lambda log: drain(log.read_batches()),
    "read_batches follow": lambda log: drain(log.read_batches(follow=True)),
    "read_columns": lambda log: log.read_columns(),
    "read_columns views": lambda log: log.read_columns(layout="view"),
    "read_columns headers": lambda log: log.read_columns(columns=["headers"]),
    "iter_columns": lambda log: drain(log.iter_columns()),
    "batch_table": lambda log: log.batch_table(),
    "arrow": lambda log: through_arrow(log),
    "fetch": fetch_all,
    "fetch committed": lambda log: [log.fetch(at, 1, isolation="read_committed") for at in (0, 20, 40)],
}
STORE_READERS: dict[str, Callable[[kstore.Store], Any]] = {
    "Store.read": lambda store: drain(store.read("t")),
    "Store.read by time": lambda store: drain(store.read("t", merge="timestamp")),
    "Store.read follow": lambda store: drain(store.read("t", follow=True)),
    "Store.read_columns": lambda store: drain(store.read_columns("t")),
    "consumer": consume,
}
# Raised and lowered; onto the next batch, into the one before, to the log end and beyond, below zero.
MOVES = [(1, 1044), (1, 28), (1, 19), (1, 0), (1, 60), (0, 5), (0, -1), (2, 41), (2, 60), (2, 39), (2, 20)]


@pytest.mark.parametrize("name", LOG_READERS)
@pytest.mark.parametrize(("position", "to"), MOVES)
def test_a_moved_base_offset_is_an_error_in_every_reader_of_a_log(
    tmp_path: Path, name: str, position: int, to: int
) -> None:
    # docs/compatibility.md: `misplaced-batch`
    log = kstore.Log.open(damaged_store(tmp_path, position, to) / "t-0", "r")
    with log, pytest.raises(CorruptRecordError, match="offset"):
        LOG_READERS[name](log)


@pytest.mark.parametrize("name", STORE_READERS)
@pytest.mark.parametrize(("position", "to"), [(1, 1044), (1, 19), (2, 20), (0, 5)])
def test_a_moved_base_offset_is_an_error_in_every_reader_of_a_store(
    tmp_path: Path, name: str, position: int, to: int
) -> None:
    damaged_store(tmp_path, position, to)
    for mode in ("r", "a"):
        if mode == "r" and name == "consumer":
            continue
        store = kstore.Store.open(tmp_path, mode=mode, background=False)  # type: ignore[call-overload]
        with store, pytest.raises(CorruptRecordError, match="offset"):
            STORE_READERS[name](store)


@pytest.mark.parametrize("command", ["cat", "tail", "tail -f", "export", "verify"])
def test_a_moved_base_offset_is_an_error_on_the_command_line(
    tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    root = damaged_store(tmp_path / "store", 1, 1044)
    given = [*command.split(), str(root / "t-0")]
    given += ["--last", "60"] if "tail" in command else []
    given += ["--to", str(tmp_path / "out.jsonl")] if command == "export" else []
    assert cli.main(given) == 1
    told = capfd.readouterr()
    assert ("1044" if command != "verify" else "error: offsets") in told.err + told.out


def test_a_moved_base_offset_is_an_error_in_a_scan_of_spark(tmp_path: Path) -> None:
    options = ReadOptions.parse({"subscribe": "t"})
    scan = Scan(options.columns, options.isolation, options.fail_on_data_loss)
    [piece] = plan(damaged_store(tmp_path, 1, 28), options)
    with pytest.raises(CorruptRecordError, match="offset"):
        drain(scan.batches(piece))


def test_the_records_before_a_moved_base_offset_come_first(tmp_path: Path) -> None:
    with kstore.Log.open(damaged_store(tmp_path, 2, 39) / "t-0", "r") as log:
        found: list[int] = []
        with pytest.raises(CorruptRecordError, match="offsets 39 to 58, which do not lie between") as caught:
            found.extend(record.offset for record in log.read())
        assert caught.value.position == batches(Path(caught.value.path))[2][0]
        assert found == [*range(40)]
        assert [record.offset for record in log.read(end_offset=39)] == [*range(39)]


# ---- records outside of their batch


def outside(delta: int, last_delta: int = 0, base_offset: int = 0) -> bytes:
    """A batch of one record whose own offset delta is this."""
    section = reference.record(0, delta, None, b"x")
    return reference.batch(section, 1, base_offset=base_offset, last_offset_delta=last_delta, leader_epoch=0)


@pytest.mark.parametrize("delta", [1000, -5, 1])
def test_a_record_outside_of_its_batch_is_refused_by_a_leader(tmp_path: Path, delta: int) -> None:
    """SEMANTICS 1.13, otherwise than Kafka (`record-outside-its-batch`)."""
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append(b"before")
        with pytest.raises(InvalidRecordError, match=f"offset delta {delta} in a batch whose last offset delta is 0"):
            log.append_batch(outside(delta))
        assert log.append(b"after") == 1
        assert [record.value for record in log.read()] == [b"before", b"after"]


DECODING = [name for name in LOG_READERS if not any(raw in name for raw in ("fetch", "batch", "durable"))]


@pytest.mark.parametrize("name", DECODING)
@pytest.mark.parametrize(("delta", "last_delta"), [(1000, 0), (-5, 0), (1, 0), (3, 2)])
def test_a_record_outside_of_its_batch_is_an_error_in_every_reader(
    tmp_path: Path, name: str, delta: int, last_delta: int
) -> None:
    """A follower stores it as it is (SEMANTICS 1.25), and so does recovery (SEMANTICS 8.16): their checks are of
    batches."""
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append_many([b"%d" % at for at in range(20)], batch_bytes=100)
        log.append_as_follower(outside(delta, last_delta, base_offset=20), leader_epoch=0)
        log.append_as_follower(reference.encode([Rec(25, T, None, b"y")], leader_epoch=0), leader_epoch=0)
        for each in (log, kstore.Log.open(tmp_path / "t-0", "r")):
            with pytest.raises(CorruptRecordError, match=f"offset {20 + delta}, outside of its batch"):
                LOG_READERS[name](each)
            assert [record.offset for record in each.read(21 + last_delta)] == [25]
    assert [record.offset for record in kstore.Log.open(tmp_path / "t-0").read(21 + last_delta)] == [25]


@pytest.mark.parametrize(("delta", "last_delta"), [(1000, 0), (-5, 0), (1, 0), (0, -1)])
def test_a_record_outside_of_its_batch_is_an_error_for_batches_in_memory(delta: int, last_delta: int) -> None:
    [batch] = kstore.decode_batches(outside(delta, last_delta))
    with pytest.raises(CorruptRecordError, match=r"outside of its batch|last offset delta of -1"):
        list(batch)


def test_batches_in_memory_need_not_follow_one_another() -> None:
    """Each of a producer's batches counts from 0 (FORMAT 2.1)."""
    data = kstore.encode_batch([b"a", b"b"])
    assert [record.offset for batch in kstore.decode_batches(data * 3) for record in batch] == [0, 1] * 3


# ---- gaps are no damage


def test_gaps_between_batches_are_read_over_by_every_reader(tmp_path: Path) -> None:
    """SEMANTICS 1.23, 3.18a: what a follower is given may leave offsets out, as compaction does."""
    offsets = [0, 1, 7, 8, 20, 33, 34, 50]
    with kstore.Log.open(tmp_path / "t-0", index_interval_bytes=80) as log:
        for offset in offsets:
            batch = reference.encode([Rec(offset, T + offset, None, b"v")], leader_epoch=0)
            log.append_as_follower(batch, leader_epoch=0)
            if offset in (8, 34):
                log.roll()
        reader = kstore.Log.open(tmp_path / "t-0", "r")
        for each in (log, reader):
            for start in range(52):
                wanted = [offset for offset in offsets if offset >= start]
                assert [record.offset for record in each.read(start)] == wanted
                assert each.read_columns(start).offsets.tolist() == wanted
                assert [at for chunk in each.iter_columns(start) for at in chunk.offsets.tolist()] == wanted
                assert each.batch_table(start)["base_offset"].tolist() == wanted
                for end in range(start, 52, 5):
                    wanted = [offset for offset in offsets if start <= offset < end]
                    assert [record.offset for record in each.read(start, end_offset=end)] == wanted
                    assert each.read_columns(start, end_offset=end).offsets.tolist() == wanted


def test_a_truncation_inside_a_batch_leaves_a_gap_that_is_no_damage(tmp_path: Path) -> None:
    """SEMANTICS 11.4"""
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append_many([b"a", b"b", b"c"])
        log.append_many([b"d", b"e", b"f"])
        log.truncate_to(5)
        assert log.log_end_offset == 5
        for each in (log, kstore.Log.open(tmp_path / "t-0", "r")):
            for name, reader in LOG_READERS.items():
                if "follow" not in name and "fetch" not in name:
                    reader(each)
            assert [record.offset for record in each.read()] == [0, 1, 2]
        assert log.append(b"g") == 5
        for each in (log, kstore.Log.open(tmp_path / "t-0", "r")):
            assert [record.offset for record in each.read()] == [0, 1, 2, 5]


# ---- the old formats


@pytest.mark.parametrize("name", ["read", "read_batches", "read_columns"])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_moved_offset_of_an_old_message_is_an_error(tmp_path: Path, name: str, magic: int) -> None:
    """FORMAT 5: the offset of a wrapper is that of its last message; no CRC covers it or that of a message alone."""
    with kstore.Log.open(tmp_path / "t-0") as log:
        for start in range(0, 24, 3):
            three = [Rec(at, stamp(at) if magic else -1, None, b"value %d" % at) for at in range(start, start + 3)]
            if start % 2:
                log.append_as_follower(reference.wrapper(three, 1, magic=magic))
            else:
                for at, *_ in three:
                    log.append_as_follower(
                        reference.message(at, None, b"value %d" % at, magic=magic, timestamp=stamp(at))
                    )
    [path] = (tmp_path / "t-0").glob("*.log")
    data = path.read_bytes()
    for position, _ in batches(path):
        for mask in (0x01, 0x02, 0x08, 0x40):
            damaged = bytearray(data)
            damaged[position + 7] ^= mask
            path.write_bytes(damaged)
            reader = kstore.Log.open(tmp_path / "t-0", "r")
            with reader, pytest.raises(CorruptRecordError):
                READERS[name](reader, 0, 24)
