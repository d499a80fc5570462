"""`log.latest()`: the newest record of each key, as a dictionary over the same history says it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore import Log, LogClosedError, LogTable, OffsetOutOfRangeError, Record
from kstore.columns import _column_reader, _joined_columns
from kstore.columns.keyed_rows import ROW_COLUMNS
from kstore.log.column_reads import read_kept
from tests.conftest import ManualClock

T = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def at(milliseconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def newest_of(log: Log, end_offset: int | None = None) -> dict[bytes, Record]:
    """The model: a dictionary, filled record by record."""
    table: dict[bytes, Record] = {}
    for record in log.read(end_offset=end_offset, isolation="read_committed"):
        if record.key is None:
            continue
        table.pop(record.key, None)
        if record.value is not None:
            table[record.key] = record
    return table


def check(table: LogTable, expected: dict[bytes, Record]) -> None:
    """Every way to look at a table says the same."""
    rows = sorted(expected.values(), key=lambda record: record.offset)
    assert list(table) == rows
    assert len(table) == len(expected)
    assert dict(table.items()) == expected
    assert list(table.keys()) == [row.key for row in rows]
    for key in [*expected, b"no such key"]:
        assert (key in table) == (key in expected)
        assert table.get(key) == expected.get(key)
    columns = table.columns(ROW_COLUMNS)
    assert [Record(*row) for row in zip(*(list(columns[name]) for name in ROW_COLUMNS), strict=True)] == rows
    assert columns.next_offset == table.end_offset
    assert sum(map(len, table.iter_columns(["key"]))) == len(expected)


@pytest.fixture
def log(partition: Path, clock: ManualClock) -> Iterator[Log]:
    with Log.open(partition, clock=clock, segment_bytes=4096, index_interval_bytes=100) as log:
        yield log


def fill(log: Log, rng: random.Random, records: int, keys: int = 30, *, null_keys: bool = True) -> None:
    """Append records with and without keys, tombstones, headers, batches of every codec, and transactions."""
    end = log.log_end_offset + records
    while log.log_end_offset < end:
        batch = [
            Record(
                0,
                T + rng.randrange(2000),
                rng.choice((None if null_keys else b"", b"", *(b"key %d" % rng.randrange(keys) for _ in range(6)))),
                rng.choice((None, b"", rng.randbytes(rng.randrange(60)))),
                (("trace", b"%d" % rng.randrange(9)), ("empty", None)) if rng.random() < 0.2 else (),
            )
            for _ in range(rng.randrange(1, 20))
        ]
        codec = rng.choice(CODECS)
        if rng.random() < 0.3:
            producer = rng.randrange(1, 4)
            known = [
                state.batches[-1] for state in log.producer_states() if state.producer_id == producer and state.batches
            ]
            sequence = known[0].last_sequence + 1 if known else 0
            numbered: Any = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            log.append_many(batch, compression=codec, **numbered, transactional=True)
            if rng.random() < 0.7:
                log.append_marker(producer, 0, commit=rng.random() < 0.5)
        else:
            log.append_many(batch, compression=codec)


def test_a_table_is_what_a_dictionary_over_the_records_is(log: Log, rng: random.Random) -> None:
    for _ in range(12):
        fill(log, rng, 80)
        check(log.latest(), newest_of(log))
        if rng.random() < 0.3:
            log.truncate_to(rng.randrange(log.log_start_offset, log.log_end_offset))
            check(log.latest(), newest_of(log))
        if rng.random() < 0.3:
            log.delete_records(rng.randrange(log.log_start_offset, log.last_stable_offset + 1))
            check(log.latest(), newest_of(log))


@pytest.mark.filterwarnings("ignore::kstore.ConfigWarning")
def test_compaction_changes_no_table(partition: Path, clock: ManualClock, rng: random.Random) -> None:
    """By the model before it: of now, of the offsets from the first dirty one on; for readers beside it, too."""
    settings: Any = {"segment_bytes": 2048, "index_interval_bytes": 100, "delete_retention_ms": 1000}
    with (
        Log.open(partition, clock=clock, cleanup_policy="compact", **settings) as log,
        Log.open(partition, "r") as reader,
    ):
        for _ in range(8):
            fill(log, rng, 100, null_keys=False)
            newest = newest_of(log)
            check(log.latest(), newest)
            stats = log.compact(roll=rng.random() < 0.3)
            for each in (log, reader):
                check(each.latest(), newest)
            for _ in range(5):
                offset = rng.randrange(stats.first_dirty_offset, log.log_end_offset + 1)
                check(log.latest(as_of=offset), newest_of(log, offset))
            clock.advance(rng.choice((0, 600, 2000)))
            if rng.random() < 0.3:
                log.truncate_to(rng.randrange(stats.first_dirty_offset, log.log_end_offset + 1))


@pytest.mark.filterwarnings("ignore::kstore.ConfigWarning")
@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_table_beside_a_writer_and_compactions_misses_no_key(partition: Path, mode: str) -> None:
    """Each key is written again and again with rising numbers: every table has all keys, and numbers never fall."""
    keys = [b"key %d" % number for number in range(20)]
    settings: Any = {"segment_bytes": 4096, "cleanup_policy": "compact", "file_delete_delay_ms": 0}
    with Log.open(partition, **settings) as writer, Log.open(partition, "r") as beside:
        log = writer if mode == "a" else beside
        writer.append_many((key, b"0") for key in keys)
        failures: list[BaseException] = []
        done = threading.Event()

        def write() -> None:
            number = 0
            try:
                while not done.is_set():
                    number += 1
                    writer.append_many((key, b"%d" % number) for key in keys)
                    if number % 20 == 0:
                        writer.compact()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        last = dict.fromkeys(keys, 0)
        try:
            tables = 0
            while tables < 60 or (last[keys[0]] == 0 and not failures):  # until the writer has come to something, too
                tables += 1
                table = {record.key: int(record.value or b"-1") for record in log.latest()}
                assert table.keys() == last.keys()
                assert all(table[key] >= last[key] for key in keys)
                last = table
        finally:
            done.set()
            thread.join()
        assert failures == []


def test_a_table_as_of_an_offset_is_of_the_records_below_it(log: Log, rng: random.Random) -> None:
    fill(log, rng, 150)
    for offset in range(log.log_end_offset + 1):
        table = log.latest(as_of=offset)
        assert table.end_offset == min(offset, log.last_stable_offset)
        check(table, newest_of(log, offset))


def test_a_table_as_of_a_time_is_of_the_records_below_the_first_later_one(log: Log, rng: random.Random) -> None:
    fill(log, rng, 150)
    times = {record.timestamp for record in log.read()}
    for time in {T - 1, *times, *(time - 1 for time in times), T + 2000}:
        later = [record.offset for record in log.read() if record.timestamp > time]
        expected = newest_of(log, min(later, default=log.log_end_offset))
        for zone in (UTC, timezone(timedelta(hours=5, minutes=30))):
            check(log.latest(as_of=at(time + 0.9).astimezone(zone)), expected)


def test_a_record_behind_a_later_one_does_not_count_whatever_its_own_time(log: Log) -> None:
    log.append(b"1", b"a", timestamp=T)
    log.append(b"2", b"b", timestamp=T + 10)
    log.append(b"3", b"a", timestamp=T + 5)
    assert [record.value for record in log.latest(as_of=at(T + 9))] == [b"1"]
    assert [record.value for record in log.latest(as_of=at(T + 10))] == [b"2", b"3"]


def test_a_record_without_a_timestamp_is_never_later(partition: Path, clock: ManualClock) -> None:
    batch = kstore.encode_batch([Record(0, -1, b"k", b"v")], timestamp_type="CreateTime")
    with Log.open(partition, clock=clock) as log:
        log.append_batch(batch)
        log.append(b"later", b"l", timestamp=0)
        assert list(log.latest(as_of=datetime(1950, 1, 1, tzinfo=UTC)).keys()) == [b"k"]
        assert list(log.latest(as_of=at(-1)).keys()) == [b"k"]
        assert list(log.latest(as_of=at(0)).keys()) == [b"k", b"l"]


def test_an_open_transaction_ends_the_table_and_an_aborted_one_is_left_out(log: Log) -> None:
    log.append(b"old", b"a")
    log.append_many([(b"a", b"open")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(b"behind", b"b")
    assert [(record.key, record.value) for record in log.latest()] == [(b"a", b"old")]
    assert log.latest().end_offset == 1
    assert log.latest(as_of=3).end_offset == 1
    log.append_marker(1, 0, commit=False)
    assert [(record.key, record.value) for record in log.latest()] == [(b"a", b"old"), (b"b", b"behind")]
    log.append_many([(b"a", b"kept")], producer_id=1, producer_epoch=0, base_sequence=1, transactional=True)
    log.append_marker(1, 0, commit=True)
    assert [(record.key, record.value) for record in log.latest()] == [(b"b", b"behind"), (b"a", b"kept")]


def test_an_empty_key_is_a_key_and_a_null_key_is_none(log: Log) -> None:
    log.append_many([(b"", b"1"), (None, b"2"), (b"", b"3"), (b"k", b"")])
    table = log.latest()
    assert [(record.key, record.value) for record in table] == [(b"", b"3"), (b"k", b"")]
    assert table[b""].offset == 2
    assert table.columns().keys.null_count == 0


def test_a_tombstone_deletes_its_key_until_it_comes_again(log: Log) -> None:
    log.append_many([(b"k", b"1"), (b"k", None), (b"never", None), (b"other", b"x")])
    assert list(log.latest().keys()) == [b"other"]
    log.append(b"2", b"k")
    assert log.latest()[b"k"].value == b"2"


def test_tables_of_empty_logs_and_of_logs_without_keys_have_no_rows(partition: Path, log: Log) -> None:
    for _ in range(2):
        table = log.latest()
        check(table, {})
        assert table.columns().names == ("offset", "timestamp", "key", "value")
        with pytest.raises(KeyError):
            table[b"k"]
        log.append_many([b"no key"] * 3)
    with Log.open(partition, "r") as reader:
        check(reader.latest(), {})
    assert log.latest(as_of=0).end_offset == 0


def test_a_reader_beside_the_writer_has_the_same_table(log: Log, partition: Path, rng: random.Random) -> None:
    with Log.open(partition, "r") as reader:
        for _ in range(5):
            fill(log, rng, 60)
            check(reader.latest(), newest_of(log))
            log.truncate_to(max(log.log_start_offset, log.log_end_offset - rng.randrange(50)))
            check(reader.latest(), newest_of(log))


def test_a_table_stays_as_it_is_when_the_log_goes_on(log: Log, rng: random.Random) -> None:
    fill(log, rng, 100)
    table, expected = log.latest(), newest_of(log)
    columns = table.columns()
    fill(log, rng, 100)
    log.truncate_to(10)
    log.close()
    check(table, expected)
    assert len(columns) == len(expected)
    with pytest.raises(LogClosedError):
        log.latest()


@pytest.mark.parametrize("name", ["legacy", "compaction", "transactions", "codecs"])
def test_logs_that_brokers_wrote_have_tables(golden: Any, name: str) -> None:
    partitions = [path.parent for path in sorted(golden(name).rglob("00000000000000000000.log"))]
    assert partitions
    for partition in partitions:
        with Log.open(partition, "r") as log:
            check(log.latest(), newest_of(log))


def test_a_table_of_many_chunks_is_as_one_of_one(log: Log, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk ends below 2 GiB; here below 500 bytes, headers included, and at one record that is larger."""
    for number in range(20):
        batch = [
            Record(0, T, b"key %d" % rng.randrange(40), rng.randbytes(rng.randrange(60)), (("trace", bytes(number)),))
            for _ in range(10)
        ]
        log.append_many(batch, compression=rng.choice(CODECS))
        if number == 10:
            log.append(bytes(700), b"large", headers=[("h" * 400, b"x" * 400)])
    monkeypatch.setattr(_column_reader, "MAX_HEADER_BYTES", 500)
    table = log.latest()
    check(table, newest_of(log))
    chunks = list(table.iter_columns(ROW_COLUMNS))
    assert len(chunks) > 2
    for chunk in chunks:
        size = chunk.keys.lengths.sum() + chunk.values.lengths.sum()
        size += chunk.headers.keys.lengths.sum() + chunk.headers.values.lengths.sum()
        assert size < 500 or len(chunk) == 1


def test_damage_is_an_error_and_no_missing_key(partition: Path, rng: random.Random) -> None:
    """Every byte of a small log is changed in turn: the table is as it was, or an error names the file."""
    with Log.open(partition) as log:
        for number in range(6):
            log.append_many([(b"key %d" % (number % 4), b"value %d" % number)] * 2, compression=rng.choice(CODECS))
        expected = newest_of(log)
    [path] = partition.glob("*.log")
    sound = path.read_bytes()
    errors = []
    for place in range(0, len(sound), 3):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ (1 << rng.randrange(8))]) + sound[place + 1 :])
        try:
            with Log.open(partition, "r") as log:
                table = log.latest()
        except kstore.CorruptRecordError as error:
            errors.append(str(error))
        else:  # leader epochs are under no CRC
            assert dict(table.items()) == expected
    assert errors
    assert all(path.name in error for error in errors)


def test_a_log_that_begins_anew_between_the_two_passes_has_its_new_table(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kstore.log import log_table

    log.append_many([(b"k%d" % number, b"old") for number in range(100)])
    log.truncate_fully_and_start_at(500)
    log.append_many([(b"k%d" % number, b"old") for number in range(10)])

    def ends_once(*arguments: Any) -> int:
        monkeypatch.undo()
        end = log_table._end_offset(*arguments)
        log.truncate_fully_and_start_at(3)
        log.append_many([(b"k%d" % number, b"new") for number in range(1000)])
        return end

    monkeypatch.setattr(log_table, "_end_offset", ends_once)
    check(log.latest(), newest_of(log))
    assert len(log.latest()) == 1000


def test_a_truncation_between_the_two_passes_makes_them_begin_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append_many([(b"k%d" % (number % 10), b"%d" % number) for number in range(100)])
    log.append_many([(b"k3", b"gone")], batch_bytes=1)
    from kstore.log import log_table

    looks = []

    def read(*arguments: Any) -> Any:
        looks.append(1)
        if len(looks) == 1:
            log.truncate_to(100)
        return read_kept(*arguments)

    monkeypatch.setattr(log_table, "read_kept", read)
    check(log.latest(), newest_of(log))
    assert len(looks) == 2
    assert log.latest()[b"k3"].value == b"93"


@pytest.mark.parametrize("bad", ["2020-01-01", 1.5, True, b"1", [1]])
def test_an_as_of_of_another_type_is_refused(log: Log, bad: Any) -> None:
    with pytest.raises(TypeError, match="as_of must be an offset"):
        log.latest(as_of=bad)


def test_an_as_of_outside_of_the_log_or_without_a_zone_is_refused(log: Log) -> None:
    log.append_many([(b"k", b"v")] * 10)
    log.roll()
    log.append_many([(b"k", b"v")] * 10)
    log.delete_records(5)
    for bad in (-1, 4, 21):
        with pytest.raises(OffsetOutOfRangeError):
            log.latest(as_of=bad)
    assert [record.offset for record in log.latest(as_of=6)] == [5]
    assert len(log.latest(as_of=5)) == 0
    with pytest.raises(ValueError, match="without a time zone"):
        log.latest(as_of=datetime(2020, 1, 1))


def test_keys_and_columns_of_other_kinds_are_refused(log: Log) -> None:
    log.append(b"v", b"k")
    table = log.latest()
    key: Any
    for key in ("k", 1, None, bytearray(b"k")):
        with pytest.raises(TypeError, match="a key is bytes"):
            table[key]
        with pytest.raises(TypeError, match="a key is bytes"):
            table.get(key)
    with pytest.raises(ValueError, match="partition"):
        table.columns(["partition"])
    with pytest.raises(ValueError, match="each column once"):
        table.columns(["key", "key"])
    with pytest.raises(TypeError, match="is a str"):
        table.iter_columns("key")


def test_engines_take_the_table_itself(log: Log, rng: random.Random) -> None:
    pa = pytest.importorskip("pyarrow")
    pl = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    fill(log, rng, 200)
    newest = table = log.latest()
    rows = [(row.offset, row.timestamp, row.key, row.value) for row in table]
    assert [tuple(row.values()) for row in pa.table(table).to_pylist()] == rows
    assert pl.DataFrame(newest).rows() == rows
    assert duckdb.sql('select "offset", "timestamp", key, value from newest order by 1').fetchall() == rows
    with_headers = pa.schema([("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))])
    wanted = [[{"key": name, "value": value} for name, value in row.headers] for row in table]
    assert pa.table(table, schema=with_headers).column("headers").to_pylist() == wanted
    strings = pa.schema([("key", pa.string()), ("offset", pa.int64())])
    assert pa.table(table, schema=strings).schema.names == ["key", "offset"]


# What the table is made with.


@given(data=st.data())
def test_the_records_at_some_offsets_are_those(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    path = tmp_path_factory.mktemp("kept") / "t-0"
    with Log.open(path, segment_bytes=2000, index_interval_bytes=200) as log:
        fill(log, rng, 120)
        records = {record.offset: record for record in log.read()}
        share = data.draw(st.sampled_from((0, 0.01, 0.2, 0.5, 0.9, 0.99, 1)))
        wanted = sorted(offset for offset in records if rng.random() < share)
        chunks = read_kept(log._view, np.array(wanted, np.int64), log.log_end_offset, ROW_COLUMNS)
        columns = _joined_columns.joined(chunks, ROW_COLUMNS)
        rows = [Record(*row) for row in zip(*(list(columns[name]) for name in ROW_COLUMNS), strict=True)]
        assert rows == [records[offset] for offset in wanted]
        some = sorted(rng.sample(range(len(rows)), rng.randrange(len(rows) + 1)))
        picked = _joined_columns.selected(columns, np.array(some, np.int64))
        assert [Record(*row) for row in zip(*(list(picked[name]) for name in ROW_COLUMNS), strict=True)] == [
            rows[number] for number in some
        ]
        parts = [_joined_columns.selected(columns, np.array(part, np.int64)) for part in (some[:3], [], some[3:])]
        again = _joined_columns.joined(parts, ("partition", *ROW_COLUMNS), partitions=[4, 5, 6])
        assert again["partition"].tolist() == [4] * len(some[:3]) + [6] * len(some[3:])
        for name in ROW_COLUMNS:
            assert list(again[name]) == list(picked[name])
