"""Columns out of a log: the rows that `read` gives, byte by byte, whatever the layout, the limits and the segments."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore import CorruptRecordError, Log, LogClosedError, OffsetOutOfRangeError, Record, encode_batch
from kstore.columns._column_reader import decode_columns
from kstore.columns._columns import (
    COLUMN_NAMES,
    LAYOUTS,
    BinaryColumn,
    Columns,
    HeadersColumn,
    give_back_memory,
    memory_in_use,
)
from kstore.disk import fs
from tests.conftest import ManualClock, sanitized
from tests.support import reference
from tests.support.reference import Rec

T = 1_700_000_000_000
LAYOUTS_BY_TURNS: tuple[Literal["binary", "large_binary", "view"], ...] = ("binary", "large_binary", "view")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

fields = st.none() | st.binary(max_size=40) | st.builds(bytes, st.integers(0, 3000))
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3).map(tuple)
records = st.builds(Record, st.just(0), st.integers(0, T), fields, fields, headers)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def rows_of(columns: Columns) -> list[Record]:
    """The rows as records, from columns that have the five."""
    names = columns.headers if "headers" in columns.names else ((),) * len(columns)
    five = zip(columns.offsets.tolist(), columns.timestamps.tolist(), columns.keys, columns.values, names, strict=True)
    return [Record(*row) for row in five]


ALL_FIVE = ("offset", "timestamp", "key", "value", "headers")


@pytest.fixture
def log(partition: Path) -> Iterator[Log]:
    """A log of five segments: 500 records of many sizes, in batches of every codec, with nulls and headers."""
    rng = random.Random(1)
    with Log.open(partition, segment_bytes=12_000, index_interval_bytes=1000) as log:
        while log.log_end_offset < 500:
            batch = [
                Record(
                    0,
                    T + log.log_end_offset + i,
                    rng.choice((None, b"", b"key %d" % i)),
                    rng.choice((None, b"", rng.randbytes(12), rng.randbytes(13), rng.randbytes(rng.randrange(400)))),
                    (("trace", b"%d" % i), ("empty", None)) if rng.random() < 0.2 else (),
                )
                for i in range(min(rng.randrange(1, 60), 500 - log.log_end_offset))
            ]
            log.append_many(batch, compression=rng.choice(CODECS))
        yield log


@pytest.fixture
def values(partition: Path) -> Iterator[Log]:
    """A log of one hundred records in ten batches; each value names its offset."""
    with Log.open(partition) as log:
        for first in range(0, 100, 10):
            log.append_many([Record(0, T + i, None, b"%02d" % i) for i in range(first, first + 10)])
        yield log


# ---- the same rows as `read`


@given(st.lists(st.tuples(st.lists(records, min_size=1, max_size=30), st.sampled_from(CODECS)), max_size=8), st.data())
def test_every_layout_has_the_rows_that_read_gives(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[list[Record], str]], data: st.DataObject
) -> None:
    # The largest record takes a segment.
    with Log.open(tmp_path_factory.mktemp("log") / "events-0", segment_bytes=6200) as log:
        for batch, codec in batches:
            log.append_many(batch, compression=codec)
        start = data.draw(st.integers(0, log.log_end_offset))
        end = data.draw(st.none() | st.integers(0, log.log_end_offset + 3))
        most_records = data.draw(st.none() | st.integers(1, 40))
        most_bytes = data.draw(st.none() | st.integers(1, 5000))
        wanted = list(log.read(start, end_offset=end))
        for layout in LAYOUTS:
            whole = log.read_columns(start, end_offset=end, columns=ALL_FIVE, layout=layout)
            assert rows_of(whole) == wanted
            rows: list[Record] = []
            limits = {"max_records": most_records, "max_bytes": most_bytes}
            for chunk in log.iter_columns(start, end_offset=end, columns=ALL_FIVE, layout=layout, **limits):
                assert 0 < len(chunk) <= (most_records or len(chunk))
                rows += rows_of(chunk)
                assert chunk.next_offset > chunk.offsets[-1]
            assert rows == wanted


def test_reading_on_from_next_offset_gives_every_row_once(log: Log) -> None:
    wanted = list(log.read())
    for most in (1, 7, 64, 499, 500, 501):
        offset, rows = 0, []
        while offset < log.log_end_offset:
            part = log.read_columns(offset, max_records=most, columns=ALL_FIVE)
            rows += rows_of(part)
            offset = part.next_offset
        assert rows == wanted
        assert len(log.read_columns(offset)) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_chunk_ends_at_most_records_wherever_batches_do(values: Log, layout: str) -> None:
    for most in (1, 9, 10, 11, 63, 64, 65, 99, 100, 101):
        chunks = list(values.iter_columns(max_records=most, layout=layout))
        assert [len(chunk) for chunk in chunks] == [most] * (100 // most) + [100 % most] * (100 % most > 0)
        assert chunks[-1].next_offset == 100
        assert b"".join(v for chunk in chunks for v in chunk.values) == b"".join(b"%02d" % i for i in range(100))


def test_a_chunk_has_at_most_its_bytes_and_one_row_at_least(values: Log) -> None:
    size = len(reference.record(0, 0, None, b"00"))  # as they stand in a batch
    for rows in (1, 2, 9, 10, 11, 19, 20, 21):
        assert len(values.read_columns(max_bytes=rows * size - 1)) == max(rows - 1, 1)
        assert len(values.read_columns(max_bytes=rows * size)) == rows
        assert len(values.read_columns(max_bytes=rows * size + 1)) == rows
    assert len(values.read_columns(max_bytes=1)) == 1


def test_start_and_end_lie_inside_of_batches(values: Log) -> None:
    for start in (0, 1, 9, 10, 11, 55, 99, 100):
        for end in (0, 1, 10, 11, 55, 56, 60, 99, 100, 2**62, None):
            found = values.read_columns(start, end_offset=end)
            stop = 100 if end is None else min(end, 100)
            assert found.offsets.tolist() == list(range(start, stop))
            assert found.next_offset == max(start, stop)


def test_a_start_timestamp_is_the_start_that_read_has(values: Log) -> None:
    for timestamp in (0, T, T + 1, T + 55, T + 99, T + 100):
        wanted = [r.offset for r in values.read(start_timestamp=timestamp)]
        assert values.read_columns(start_timestamp=timestamp).offsets.tolist() == wanted


def test_a_log_without_records_has_columns_of_no_rows(partition: Path) -> None:
    with Log.open(partition) as log:
        for layout in LAYOUTS:
            empty = log.read_columns(layout=layout, columns=COLUMN_NAMES)
            assert (len(empty), empty.next_offset) == (0, 0)
            assert empty.values.to_pylist() == empty.headers.to_pylist() == []
            assert all(len(empty[name]) == 0 for name in COLUMN_NAMES)
        assert list(log.iter_columns()) == []


def test_batches_outside_of_the_range_are_passed_over_without_their_records(partition: Path) -> None:
    """What damage in their records does not tell: ranges come from the indexes and the headers of batches."""
    with Log.open(partition) as log:
        for first in range(0, 1000, 100):
            log.append_many([Record(0, T + i, None, b"%03d" % i * 20) for i in range(first, first + 100)])
        log.roll()
        places = log.batch_table()
        with open(log.segments[0].path, "r+b") as file:
            for number in (0, 1, 2, 3, 4, 7, 8, 9):
                file.seek(int(places.position[number] + places.size_bytes[number]) - 20)
                file.write(bytes(20))
        for start, end in ((500, 700), (510, 690), (500, 501), (699, 700)):
            assert log.read_columns(start, end_offset=end).offsets.tolist() == list(range(start, end))
            assert [*log.iter_columns(start, end_offset=end)][-1].next_offset == end
        found = log.read_columns(start_timestamp=T + 555, end_offset=600, columns=("timestamp",))
        assert found.timestamps.tolist() == list(range(T + 555, T + 600))
        assert log.batch_table().crc.tolist() == places.crc.tolist()
        for start, end in ((499, 700), (500, 701)):
            with pytest.raises(CorruptRecordError):
                log.read_columns(start, end_offset=end)


# ---- what is asked for


def test_only_what_is_asked_for_is_built(values: Log) -> None:
    found = values.read_columns(columns=["value", "offset"])
    assert found.names == ("value", "offset")
    for name in ("timestamps", "keys", "headers", "producer_id"):
        with pytest.raises(AttributeError, match="was not requested; there are value, offset"):
            getattr(found, name)
    with pytest.raises(KeyError, match="no column 'key'"):
        found["key"]
    assert found.values[99] == b"99"


@pytest.mark.parametrize("name", COLUMN_NAMES)
def test_a_column_alone_is_the_column_among_all(log: Log, name: str) -> None:
    everything = log.read_columns(columns=COLUMN_NAMES)
    alone = log.read_columns(columns=[name])
    assert list(alone[name]) == list(everything[name])
    assert list(log.read_columns(columns=[name], layout="view")[name]) == list(everything[name])


def test_columns_of_batches_say_what_their_batches_say(partition: Path) -> None:
    with Log.open(partition) as log:
        log.append_many([b"a", b"b"])
        batch = reference.encode(
            [Rec(2, T, None, b"c"), Rec(3, T, None, b"d"), Rec(4, T + 1, None, b"e")],
            producer_id=77,
            producer_epoch=3,
            base_sequence=2**31 - 2,
            leader_epoch=5,
            attributes=0x10,
            codec=reference.LZ4,
        )
        log.append_as_follower(batch)
        found = log.read_columns(columns=COLUMN_NAMES)
        assert found["partition_leader_epoch"].tolist() == [0, 0, 5, 5, 5]
        assert found.partition_leader_epoch.dtype == np.int32
        assert found.producer_id.tolist() == [-1, -1, 77, 77, 77]
        assert found["producer_epoch"].tolist() == [-1, -1, 3, 3, 3]
        assert found["base_sequence"].tolist() == [-1, -1, *[2**31 - 2] * 3]
        assert found["sequence"].tolist() == [-1, -1, 2**31 - 2, 2**31 - 1, 0]
        assert found["base_offset"].tolist() == [0, 0, 2, 2, 2]
        assert found["timestamp_type"].tolist() == [0] * 5
        assert found["compression"].tolist() == [0, 0, 3, 3, 3]
        assert found["is_transactional"].tolist() == [False, False, True, True, True]


def test_the_logs_own_time_is_every_records_timestamp(partition: Path, clock: ManualClock) -> None:
    with Log.open(partition, clock=clock, message_timestamp_type="LogAppendTime") as log:
        log.append_many([Record(0, T - 50 * i, None, b"v") for i in range(3)])
        found = log.read_columns(columns=["timestamp", "timestamp_type"])
        assert found.timestamps.tolist() == [clock()] * 3
        assert found["timestamp_type"].tolist() == [1] * 3


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_old_formats_are_the_rows_that_the_record_reader_gives(codec: int, magic: int) -> None:
    items = [Rec(i, T + i, b"k%d" % i, None if i == 1 else b"v" * i) for i in range(5)]
    parts = (
        [reference.wrapper(items, codec, magic=magic)]
        if codec
        else [reference.message(r.offset, r.key, r.value, magic=magic, timestamp=r.timestamp) for r in items]
    )
    newer = reference.encode([Rec(5, T, None, b"new")])
    for layout in LAYOUTS:
        found = decode_columns(b"".join([*parts, newer]), columns=COLUMN_NAMES, layout=layout)
        assert found.offsets.tolist() == [0, 1, 2, 3, 4, 5]
        assert found.keys.to_pylist() == [*(r.key for r in items), None]
        assert found.values.to_pylist() == [*(r.value for r in items), b"new"]
        assert found.timestamps.tolist() == [*(r.timestamp if magic else -1 for r in items), T]
        assert found["timestamp_type"].tolist() == [*[0 if magic else -1] * 5, 0]
        assert found["compression"].tolist() == [*[codec] * 5, 0]
        assert found["base_offset"].tolist() == [*([0] * 5 if codec else range(5)), 5]
        assert found.producer_id.tolist() == [-1] * 6


def test_control_batches_are_passed_over_and_next_offset_is_behind_them(partition: Path) -> None:
    control = reference.encode(
        [Rec(3, T, b"\0\0\0\1", b"\0" * 6)], attributes=0x30, producer_id=9, producer_epoch=0, leader_epoch=0
    )
    with Log.open(partition) as log:
        log.append_many([b"a", b"b", b"c"])
        log.append_as_follower(control)
        found = log.read_columns()
        assert (found.offsets.tolist(), found.next_offset) == ([0, 1, 2], 4)
        assert len(log.read_columns(3)) == 0


def test_wrong_arguments_are_refused_by_name(values: Log) -> None:
    for wrong, error, text in (
        ({"columns": "value"}, TypeError, "columns is a str"),
        ({"columns": ["values"]}, ValueError, "columns has 'values'; offset, timestamp"),
        ({"columns": []}, ValueError, "at least one"),
        ({"columns": ["key", "key"]}, ValueError, "each column once"),
        ({"layout": "arrow"}, ValueError, "layout is 'arrow'"),
        ({"max_records": 0}, ValueError, "max_records is 0"),
        ({"max_bytes": 0}, ValueError, "max_bytes is 0"),
        ({"max_records": 1.5}, TypeError, "max_records must be an int"),
        ({"offset": 1, "start_timestamp": 1}, ValueError, "not both"),
        ({"isolation": "dirty"}, ValueError, "isolation"),
    ):
        for method in (values.read_columns, values.iter_columns):
            with pytest.raises(error, match=text):
                method(**wrong)  # type: ignore[arg-type]


def test_decoding_names_an_unknown_column_or_layout() -> None:
    batch = encode_batch([b"value"])
    with pytest.raises(ValueError, match="columns has 'values'; offset, timestamp"):
        decode_columns(batch, columns=["values"])
    with pytest.raises(ValueError, match="layout is 'arrow'"):
        decode_columns(batch, layout="arrow")


# ---- a column by itself


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_column_is_a_sequence_of_bytes_and_none(log: Log, layout: str) -> None:
    wanted = [r.value for r in log.read()]
    column = log.read_columns(layout=layout).values
    assert len(column) == 500
    assert list(column) == column.to_pylist() == wanted
    assert [column[0], column[-1], column[-500], column[499]] == [wanted[0], wanted[-1], wanted[0], wanted[-1]]
    assert column[10:400:7] == wanted[10:400:7]
    assert column.null_count == wanted.count(None)
    assert column.validity is not None
    assert column.validity.tolist() == [value is not None for value in wanted]
    assert column.lengths.tolist() == [len(value or b"") for value in wanted]
    assert np.asarray(column).tolist() == wanted
    for index in (500, -501):
        with pytest.raises(IndexError):
            column[index]
    if layout != "view":
        assert bytes(column.data) == b"".join(value or b"" for value in wanted)
        assert column.offsets.tolist()[-1] == len(column.data)


def test_a_column_without_nulls_has_no_validity(values: Log) -> None:
    found = values.read_columns()
    assert found.values.validity is None
    assert found.keys.null_count == 100
    assert found.keys.validity is not None
    assert not found.keys.validity.any()


def test_what_columns_hold_cannot_be_changed(values: Log) -> None:
    found = values.read_columns()
    for array in (found.offsets, found.timestamps, found.values.offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert found.values.data.readonly
    for kind in (Columns, BinaryColumn, HeadersColumn):
        with pytest.raises(TypeError):
            kind()


# ---- faults and changes


def damaged(log: Log, offset: int) -> Path:
    """Flip a bit in the batch that holds `offset`; the file."""
    place = log.fetch(offset, 1)
    path = Path(log.path) / f"{place.segment_base_offset:020}.log"
    data = bytearray(path.read_bytes())
    data[place.position + 70] ^= 1
    path.write_bytes(data)
    return path


def test_a_broken_batch_is_an_error_and_the_rows_before_it_come_first(values: Log) -> None:
    damaged(values, 40)
    with pytest.raises(CorruptRecordError, match="CRC") as by_row:
        list(values.read())
    with pytest.raises(CorruptRecordError, match="CRC") as whole:
        values.read_columns()
    assert (whole.value.path, whole.value.position) == (by_row.value.path, by_row.value.position)
    assert values.read_columns(end_offset=40).offsets.tolist() == list(range(40))
    assert len(values.read_columns(max_records=40)) == 40
    chunks = values.iter_columns(max_records=15)
    assert [len(next(chunks)) for _ in range(3)] == [15, 15, 10]
    with pytest.raises(CorruptRecordError, match="CRC"):
        next(chunks)
    assert next(chunks, None) is None


def test_reading_outside_of_the_log_is_refused_at_once(values: Log) -> None:
    values.delete_records(20)
    for offset in (0, 19, 101):
        for method in (values.read_columns, values.iter_columns):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                method(offset)
            assert (caught.value.log_start_offset, caught.value.log_end_offset) == (20, 100)
    assert values.read_columns().offsets[0] == 20


def test_an_iterator_that_deletion_overtakes_says_so(log: Log) -> None:
    chunks = log.iter_columns(max_records=10)
    next(chunks)
    log.delete_records(5)
    assert next(chunks).offsets[0] == 10
    log.delete_records(300)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        next(chunks)
    assert caught.value.log_start_offset == 300
    assert next(chunks, None) is None


def test_an_iterator_that_truncation_overtakes_says_so_and_one_below_it_just_ends(values: Log) -> None:
    far, near = values.iter_columns(max_records=35), values.iter_columns(max_records=5)
    next(far), next(near)
    values.truncate_to(30)
    values.append_many([b"new"] * 10)
    with pytest.raises(OffsetOutOfRangeError):
        next(far)
    rest = list(near)
    assert sum(len(chunk) for chunk in rest) == 35
    assert rest[-1].values[-1] == b"new"


@pytest.mark.parametrize("times", [1, 2, 5])
def test_rows_that_were_read_while_the_guard_moved_are_read_again(
    log: Log, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, left = log._view, [times]
    look = view.check_piece

    def moving(*pieces: Any) -> None:
        look(*pieces)
        if left[0] > 0:
            left[0] -= 1
            view.guard.version += 1

    wanted = list(log.read())
    table = log.batch_table()
    monkeypatch.setattr(view, "check_piece", moving)
    for method in (log.read_columns, lambda **options: next(log.iter_columns(**options))):
        left[0] = times
        found = method(columns=ALL_FIVE)
        assert rows_of(found) == wanted
        assert found.next_offset == 500
        assert left[0] == 0
    left[0] = times
    assert log.batch_table()["crc"].tolist() == table["crc"].tolist()


def test_an_iterator_of_a_log_that_is_closed_says_so(values: Log) -> None:
    chunks = values.iter_columns(max_records=5)
    next(chunks)
    values.close()
    with pytest.raises(LogClosedError):
        next(chunks)
    with pytest.raises(LogClosedError):
        values.read_columns()


def test_columns_stay_as_they_are_when_the_log_has_gone(partition: Path) -> None:
    kept = []
    with Log.open(partition, segment_bytes=3000) as log:
        log.append_many([b"%04d" % i * 10 for i in range(500)])
        for layout in LAYOUTS:
            kept += list(log.iter_columns(layout=layout, max_records=60))
            kept.append(log.read_columns(layout=layout))
        log.delete_records(490)
        log.truncate_fully_and_start_at(0)
        log.append_many([b"other"] * 500)
    fs.remove_tree(partition)
    parts = [(chunk.values, chunk.offsets, chunk.values.to_pylist()) for chunk in kept]
    del kept, log
    gc.collect()
    give_back_memory()
    for values, offsets, wanted in parts:
        assert wanted == [b"%04d" % i * 10 for i in offsets.tolist()]
        assert values.to_pylist() == wanted


def test_memory_goes_back_when_the_columns_that_own_it_die(log: Log) -> None:
    gc.collect()
    before, _ = memory_in_use()
    kept = [log.read_columns(layout=layout) for layout in LAYOUTS]
    views = [columns.offsets for columns in kept]
    assert memory_in_use()[0] > before
    del kept
    gc.collect()
    assert memory_in_use()[0] >= before + len(views)
    del views
    gc.collect()
    assert memory_in_use()[0] == before


@pytest.mark.parametrize("calls", [700, pytest.param(200_000, marks=pytest.mark.slow)])
def test_many_small_calls_leave_the_process_at_its_size(log: Log, calls: int) -> None:
    """Each round makes five answers and an error: the slow one a million answers."""
    if sanitized():
        pytest.skip("the sanitizer keeps what was freed")

    def call(number: int) -> None:
        layout = LAYOUTS_BY_TURNS[number % len(LAYOUTS_BY_TURNS)]
        found = log.read_columns(number % 490, max_records=7, columns=ALL_FIVE, layout=layout)
        assert found.values[0] is None or found["offset"][0] == number % 490
        next(log.iter_columns(number % 490, max_records=3, layout=layout))
        assert len(log.batch_table(480))
        log.__arrow_c_stream__()
        found.__arrow_c_array__()
        with pytest.raises(ValueError, match="layout"):
            log.read_columns(layout="other")  # type: ignore[arg-type]

    for number in range(300):
        call(number)
    gc.collect()
    live, grown = memory_in_use()[0], []
    for _ in range(4):  # what a call keeps, it keeps in each round; what others take, they take in some
        before = resident_bytes()
        for number in range(calls):
            call(number)
        gc.collect()
        assert memory_in_use()[0] == live
        grown.append(resident_bytes() - before)
        if grown[-1] < 2 << 20:
            return
    pytest.fail(f"each round left more bytes: {grown}")


def test_many_threads_read_columns_while_one_appends(partition: Path) -> None:
    with Log.open(partition, segment_bytes=40_000) as log:
        done = threading.Event()
        faults: list[BaseException] = []

        def append() -> None:
            try:
                for first in range(0, 6000, 40):
                    by = log.append_columns if first % 80 else log.append_many
                    by([b"%06d" % i for i in range(first, first + 40)])
            finally:
                done.set()

        def tabulate() -> None:
            try:
                while not done.is_set():
                    table = log.batch_table()
                    assert table.base_offset.tolist() == list(range(0, 40 * len(table), 40))
                    assert table.next_offset == table["count"].sum()
            except BaseException as error:
                faults.append(error)

        def read(layout: str) -> None:
            try:
                rounds = 0
                while not done.is_set() or rounds == 0:
                    rounds += 1
                    last = -1
                    for chunk in log.iter_columns(layout=layout, max_records=97):
                        assert chunk.offsets.tolist() == list(range(last + 1, last + 1 + len(chunk)))
                        assert chunk.values.to_pylist() == [b"%06d" % i for i in chunk.offsets.tolist()]
                        last = int(chunk.offsets[-1])
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=read, args=(layout,)) for layout in LAYOUTS]
        threads += [threading.Thread(target=tabulate), threading.Thread(target=append)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert log.read_columns().offsets.tolist() == list(range(6000))


def test_a_reader_of_another_process_sees_the_same_columns(log: Log) -> None:
    log.flush()
    with Log.open(log.path, mode="r") as reader:
        wanted = list(log.read())
        assert rows_of(reader.read_columns(columns=ALL_FIVE)) == wanted
        chunks = reader.iter_columns(columns=ALL_FIVE, max_records=33)
        assert [r for chunk in chunks for r in rows_of(chunk)] == wanted
        log.append_many([b"more"])
        assert reader.read_columns(500).values.to_pylist() == [b"more"]
