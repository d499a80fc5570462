"""Long stretches read by several threads: the same rows in the same order, the same ends, the same faults."""

from __future__ import annotations

import os
import random
import struct
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import crc32c as second_opinion
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kstore import CorruptRecordError, Log, OffsetOutOfRangeError, Record
from kstore._core import RecordIterator
from kstore.columns._column_reader import Reader, decode_columns
from kstore.columns._columns import LAYOUTS, Columns
from tests.conftest import SEED
from tests.support import reference
from tests.support.reference import Rec

T = 1_700_000_000_000
CELL = 512 << 10  # twice what one thread takes at once (cells.c)
FIVE = ("offset", "timestamp", "key", "value", "headers")
FOUR = FIVE[:4]  # threads share the rows of one chunk where no headers are asked for
WANTED = pytest.mark.parametrize("columns", [FOUR, FIVE], ids=["no headers", "headers"])


# The types of columns, whatever their layout. Arrow compares tables without an object for each value.
TYPES = {
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "sequence": pa.int32(),
}


def rows_of(chunks: list[Columns]) -> pa.Table:
    """The rows of all chunks."""
    parts = [pa.table({name: pa.array(chunk[name]).cast(TYPES[name]) for name in chunk.names}) for chunk in chunks]
    return pa.concat_tables(parts).combine_chunks()


def between(rows: pa.Table, start: int, end: int) -> pa.Table:
    """The rows whose offsets lie in [start, end)."""
    return rows.filter((pc.field("offset") >= start) & (pc.field("offset") < end)).combine_chunks()


def _list(column: object) -> list[object]:
    return column.tolist() if hasattr(column, "tolist") else list(column)  # type: ignore[no-any-return,call-overload]


class Segment:
    """A file of batches, read as a log's reader does it, and by the record reader."""

    def __init__(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self.path, self.data = path, data

    def read(
        self,
        layout: str = "binary",
        *,
        threads: int = 3,
        start: int = 0,
        end: int = 2**62,
        rows: int = 2**62,
        size: int = 2**62,
        columns: tuple[str, ...] = FIVE,
        borders: Sequence[int] | None = None,
    ) -> tuple[list[Columns], CorruptRecordError | None]:
        """All chunks, and the fault that ended them; with `borders`, several at a time, as `iter_columns` reads."""
        reader = Reader(columns, layout, threads=threads, in_chunks=borders is not None)
        chunks: list[Columns] = []
        with self.path.open("rb") as file:
            reader.seek(start, end)
            reader.open(file.fileno(), 0, str(self.path))
            while True:
                reader.begin(rows, size)
                if borders is not None:
                    reader.sample(len(self.data), len(self.data))
                if borders is not None and reader.chunk_spacing:
                    reader.divide([reader.position, *(one for one in borders if one > reader.position)])
                try:
                    stop = self._fill(reader)
                except CorruptRecordError as fault:
                    chunks.append(reader.finish())
                    return chunks, fault
                chunks.append(reader.finish())
                if stop != "full":
                    return chunks, None
                assert len(chunks[-1]) > 0

    def _fill(self, reader: Reader) -> str:
        size = len(self.data)
        while reader.position < size or reader.is_amid:
            stop = reader.read(size, size, size - reader.position)
            if stop == "alone":
                stop = reader.read_slowly(None if reader.is_amid else self._batch_at(reader.position))
            if stop != "end":
                return stop
        return "end"

    def _batch_at(self, at: int) -> bytes:
        return self.data[at : at + 12 + struct.unpack_from(">i", self.data, at + 8)[0]]

    @cached_property
    def records(self) -> tuple[pa.Table, CorruptRecordError | None]:
        """The rows that the record reader gives, and the fault that ends them."""
        records: list[Record] = []
        fault = None
        try:
            for record in RecordIterator(((self.data, str(self.path), 0),), 0, 2**62):
                records.append(record)
        except CorruptRecordError as error:
            fault = error
        cells = {name: [getattr(record, name) for record in records] for name in FOUR}
        cells["headers"] = [[{"key": key, "value": value} for key, value in record.headers] for record in records]
        return pa.table({name: pa.array(cells[name], TYPES[name]) for name in FIVE}), fault


def batches(rng: random.Random, total: int, records: int, codecs: tuple[int, ...] = (0,)) -> list[bytes]:
    """About `total` bytes of batches with up to so many records of up to 300 bytes."""
    out: list[bytes] = []
    offset = size = 0
    while size < total:
        items = [
            Rec(
                offset + i,
                T + offset + i,
                None if rng.random() < 0.3 else rng.randbytes(rng.randrange(20)),
                None if rng.random() < 0.1 else rng.randbytes(10) * rng.randrange(30),
                ((b"h", b"x" * rng.randrange(9)),) if rng.random() < 0.1 else (),
            )
            for i in range(rng.randrange(1, records + 1))
        ]
        out.append(reference.encode(items, codec=rng.choice(codecs)))
        offset += len(items) + rng.choice((0, 0, 0, 3))  # gaps, as compaction leaves them
        size += len(out[-1])
    return out


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    """Six cells of uncompressed batches of some kilobytes."""
    return Segment(tmp_path_factory.mktemp("plain") / "0.log", b"".join(batches(random.Random(1), 6 * CELL, 60)))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    """Three cells of batches of every codec."""
    parts = batches(random.Random(2), 3 * CELL, 150, (0, 1, 2, 3, 4))
    return Segment(tmp_path_factory.mktemp("packed") / "0.log", b"".join(parts))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["plain", "packed"])
@WANTED
def test_several_threads_give_the_rows_of_one(
    name: str, layout: str, columns: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    segment: Segment = request.getfixturevalue(name)
    wanted = segment.records[0].select(columns)
    for threads in (1, 2, 5):
        chunks, fault = segment.read(layout, threads=threads, columns=columns)
        assert fault is None
        assert rows_of(chunks) == wanted
        assert chunks[-1].next_offset == wanted["offset"][-1].as_py() + 1


@pytest.mark.parametrize("layout", LAYOUTS)
@WANTED
def test_limits_hold_to_the_row_with_several_threads(
    plain: Segment, packed: Segment, layout: str, columns: tuple[str, ...]
) -> None:
    rng = random.Random(f"{SEED}:5")
    for segment in (plain, packed):
        wanted = segment.records[0].select(columns)
        for rows, size in (
            (7_001, 2**62),
            (2**62, 3 * CELL),
            (rng.randrange(3000, 20_000), rng.randrange(CELL, 5 * CELL)),
        ):
            chunks, _ = segment.read(layout, rows=rows, size=size, columns=columns)
            alone, _ = segment.read(layout, rows=rows, size=size, threads=1, columns=columns)
            assert [len(chunk) for chunk in chunks] == [len(chunk) for chunk in alone]
            assert [chunk.next_offset for chunk in chunks] == [chunk.next_offset for chunk in alone]
            assert rows_of(chunks) == wanted


@WANTED
def test_a_start_and_an_end_inside_of_batches_hold_with_several_threads(
    plain: Segment, columns: tuple[str, ...]
) -> None:
    rng = random.Random(f"{SEED}:6")
    everything = plain.records[0].select(columns)
    for _ in range(8):
        start, end = sorted(rng.randrange(everything["offset"][-1].as_py()) for _ in range(2))
        chunks, fault = plain.read(start=start, end=end, columns=columns)
        assert fault is None
        assert rows_of(chunks) == between(everything, start, end)


def test_threads_share_what_follows_a_batch_of_which_only_a_part_is_wanted(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parts = [
        reference.encode([Rec(offset + i, T, None, bytes(8000), ()) for i in range(8)]) for offset in range(0, 3000, 8)
    ]
    segment = Segment(tmp_path / "0.log", b"".join(parts))

    def buffers(start: int, threads: int) -> int:
        """How many pieces of memory the values lie in: a thread that reads all takes larger ones."""
        [chunk], fault = segment.read("view", start=start, threads=threads, columns=("value",))
        assert (fault, len(chunk)) == (None, 3000 - start)
        return len(pyarrow.array(chunk.values).buffers())

    assert buffers(3, threads=3) == buffers(8, threads=3) > buffers(3, threads=1) == buffers(8, threads=1)


@pytest.mark.parametrize("kind", ["crc", "size", "magic", "offsets", "records", "packed"])
@WANTED
def test_a_fault_anywhere_ends_the_rows_where_it_does_for_one_thread(
    kind: str, columns: tuple[str, ...], plain: Segment, tmp_path: Path
) -> None:
    rng = random.Random(f"{SEED}:{kind}")
    parts = batches(random.Random(1), 6 * CELL, 60)
    for number in (1, len(parts) // 2, rng.randrange(len(parts)), len(parts) - 1):
        spoiled = [*parts[:number], spoil(parts[number], kind), *parts[number + 1 :]]
        segment = Segment(tmp_path / "spoiled.log", b"".join(spoiled))
        records, wanted_fault = segment.records
        wanted = records.select(columns)
        alone, _ = segment.read(threads=1, columns=columns)
        assert rows_of(alone) == wanted
        chunks, fault = segment.read(columns=columns)
        assert rows_of(chunks) == wanted
        assert (fault is None) == (wanted_fault is None) == (kind == "offsets")
        if fault is not None and wanted_fault is not None:
            assert (fault.reason, fault.position) == (wanted_fault.reason, wanted_fault.position)


def spoil(batch: bytes, kind: str) -> bytes:
    out = bytearray(batch)
    if kind == "crc":
        out[-1] ^= 1
    elif kind == "size":
        struct.pack_into(">i", out, 8, 20)
    elif kind == "magic":
        out[16] = 7
    elif kind == "offsets":  # sound, but in no order: for the record reader
        section = b"".join(reference.record(0, delta, None, b"v") for delta in (1, 0, 2))
        base = struct.unpack_from(">q", batch)[0]
        return reference.batch(section, 3, base_offset=base)
    elif kind == "records":
        return reference.batch(b"\xff\xff", 2, base_offset=struct.unpack_from(">q", batch)[0])
    elif kind == "packed":
        out[22] = out[22] & ~7 | 4
        struct.pack_into(">I", out, 17, second_opinion.crc32c(bytes(out[21:])))
    return bytes(out)


@pytest.mark.parametrize("records", [1, 4000, 30_000])
def test_batches_of_any_size_are_divided_among_threads(records: int, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED}:{records}")
    parts = batches(rng, 4 * CELL if records < 30_000 else 16 * CELL, records)
    segment = Segment(tmp_path / "0.log", b"".join(parts))
    wanted, _ = segment.read(threads=1, columns=("offset", "value"))
    chunks, fault = segment.read(threads=3, columns=("offset", "value"))
    assert fault is None
    assert chunks[0].offsets.tolist() == wanted[0].offsets.tolist()
    assert chunks[0].values == wanted[0].values


def test_many_readers_share_the_helpers(plain: Segment) -> None:
    wanted, _ = plain.read(threads=1)
    faults: list[BaseException] = []

    def read() -> None:
        try:
            for layout in LAYOUTS:
                chunks, _ = plain.read(layout, threads=4)
                assert chunks[0].values.to_pylist() == wanted[0].values.to_pylist()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_a_forked_child_reads_with_helpers_of_its_own(plain: Segment) -> None:
    plain.read(threads=4)
    pid = os.fork()
    if pid == 0:
        chunks, fault = plain.read(threads=4)
        os._exit(0 if fault is None and len(chunks[0]) > 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_log_reads_with_as_many_threads_as_asked(partition: Path) -> None:
    with Log.open(partition, segment_bytes=5 * CELL) as log:
        for first in range(0, 60_000, 2000):
            log.append_many([Record(0, T, None, b"%06d" % i * 12) for i in range(first, first + 2000)])
        for threads in (None, 1, 3, 100):
            found = log.read_columns(threads=threads)
            assert found.offsets.tolist() == list(range(60_000))
            assert found.values[-1] == b"059999" * 12
            assert sum(len(chunk) for chunk in log.iter_columns(threads=threads, max_bytes=3 * CELL)) == 60_000
        with pytest.raises(ValueError, match="threads is 0"):
            log.read_columns(threads=0)


def test_rows_of_a_log_that_is_being_cut_are_all_of_one_state(partition: Path) -> None:
    """The cuts come to an end: a read begins again as long as a log is cut faster than one batch of it is read."""
    first = [b"%06d" % i * 12 for i in range(20_000)]
    with Log.open(partition, segment_bytes=40 * CELL) as log:
        log.append_many(first, batch_bytes=16 << 10)

        def cut() -> None:
            for number in range(40):
                log.truncate_to(20_000)
                log.append_many([Record(0, T + number, None, b"again" * 12)] * 20_000, batch_bytes=16 << 10)

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            reads = 0
            while reads < 25 or thread.is_alive():
                reads += 1
                try:
                    found = log.read_columns(threads=3)
                except OffsetOutOfRangeError:
                    continue
                assert found.values[:20_000] == first
                assert found.offsets.tolist() == list(range(len(found)))
                assert len(set(found.timestamps[20_000:].tolist())) <= 1
        finally:
            thread.join()


def test_chunks_iterate_in_order_over_segments_with_threads(partition: Path) -> None:
    def rows(log: Log) -> Iterator[int]:
        for chunk in log.iter_columns(max_bytes=4 * CELL, threads=4, columns=("offset",)):
            yield from chunk.offsets.tolist()

    with Log.open(partition, segment_bytes=3 * CELL) as log:
        log.append_many([b"v" * 50] * 100_000)
        assert len(log.segments) > 3
        assert list(rows(log)) == list(range(100_000))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_too_large_for_caches_are_those_of_one_thread(layout: str) -> None:
    rng = random.Random(13)
    some = reference.encode(
        [
            Rec(
                i, T + i, None if i % 7 == 0 else rng.randbytes(i % 40), None if i % 11 == 0 else rng.randbytes(i % 301)
            )
            for i in range(1000)
        ]
    )
    data = b"".join(struct.pack(">q", 1000 * number) + some[8:] for number in range(200))  # 34 MB
    columns = ("offset", "timestamp", "key", "value", "base_sequence", "compression")
    alone = decode_columns(data, columns=columns, layout=layout, threads=1)
    assert len(alone) == 200_000
    for threads in (2, 3):
        found = decode_columns(data, columns=columns, layout=layout, threads=threads)
        for name in columns:
            if name not in ("key", "value"):
                assert (found[name] == alone[name]).all()
                continue
            assert (found[name].validity == alone[name].validity).all()
            assert (found[name].lengths == alone[name].lengths).all()
            if layout == "view":
                assert found[name][::37] == alone[name][::37]
            else:
                assert found[name].data == alone[name].data
                assert (found[name].offsets == alone[name].offsets).all()


# --- chunks that are read at the same time, each by one thread -------------------------------------------------------


def borders_of(data: bytes) -> list[int]:
    """Where the batches begin, and the last one ends."""
    out = [0]
    while out[-1] < len(data):
        out.append(out[-1] + 12 + struct.unpack_from(">i", data, out[-1] + 8)[0])
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["plain", "packed"])
def test_chunks_read_at_once_are_the_rows_of_one_thread_in_order(
    name: str, layout: str, request: pytest.FixtureRequest
) -> None:
    segment: Segment = request.getfixturevalue(name)
    wanted, _ = segment.records
    everywhere = borders_of(segment.data)
    for threads, step in ((2, 1), (3, 9), (5, 40), (1, 5)):
        chunks, fault = segment.read(layout, threads=threads, size=CELL // 2, borders=everywhere[step::step])
        assert fault is None
        assert rows_of(chunks) == wanted
        assert list(accumulate(len(chunk) for chunk in chunks))[-1] == len(wanted)
        ends = [chunk.next_offset for chunk in chunks]
        assert ends == sorted(ends)
        assert ends[-1] == wanted["offset"][-1].as_py() + 1


def test_chunks_read_at_once_hold_whole_batches_and_no_more_than_fits(plain: Segment) -> None:
    ends = {offset + 1 for offset in plain.records[0]["offset"].to_pylist()}
    chunks, _ = plain.read(size=CELL // 4, borders=borders_of(plain.data)[20::20])
    assert len(chunks) > 12
    for chunk in chunks:
        assert chunk.values.data.nbytes <= CELL // 4
        assert chunk.next_offset in ends
    alone, _ = plain.read(size=CELL // 4, threads=1, borders=())
    assert rows_of(chunks) == rows_of(alone)


def test_borders_that_are_not_those_of_batches_change_nothing(plain: Segment, packed: Segment) -> None:
    rng = random.Random(f"{SEED}:8")
    for segment in (plain, packed):
        wanted, _ = segment.records
        right = borders_of(segment.data)
        for kind in range(4):
            wrong = sorted(rng.sample(range(len(segment.data) + 1), 30))
            if kind == 1:
                wrong = sorted({*wrong[::3], *rng.sample(right, 30)})
            elif kind == 2:
                wrong = [one + 61 for one in right[3::7]]
            elif kind == 3:
                wrong = [len(segment.data) // 2, len(segment.data), len(segment.data) + 100, 2**62]
            chunks, fault = segment.read(size=CELL // 2, borders=wrong)
            assert fault is None
            assert rows_of(chunks) == wanted


def test_a_start_and_an_end_inside_of_batches_hold_for_chunks_read_at_once(plain: Segment) -> None:
    rng = random.Random(f"{SEED}:9")
    everything, _ = plain.records
    for _ in range(6):
        start, end = sorted(rng.randrange(everything["offset"][-1].as_py()) for _ in range(2))
        chunks, fault = plain.read(start=start, end=end, size=CELL // 3, borders=borders_of(plain.data)[::12])
        assert fault is None
        assert rows_of(chunks) == between(everything, start, end)


@pytest.mark.parametrize("kind", ["crc", "size", "magic", "offsets", "records", "packed"])
def test_a_fault_anywhere_ends_chunks_read_at_once_where_it_ends_one_thread(kind: str, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED}:{kind}")
    parts = batches(random.Random(1), 4 * CELL, 60)
    for number in (1, len(parts) // 2, rng.randrange(len(parts)), len(parts) - 1):
        spoiled = [*parts[:number], spoil(parts[number], kind), *parts[number + 1 :]]
        segment = Segment(tmp_path / "spoiled.log", b"".join(spoiled))
        wanted, wanted_fault = segment.records
        borders = list(accumulate(map(len, spoiled)))
        chunks, fault = segment.read(threads=4, size=CELL // 2, borders=borders[9::9])
        assert rows_of(chunks) == wanted
        assert (fault is None) == (wanted_fault is None) == (kind == "offsets")
        if fault is not None and wanted_fault is not None:
            assert (fault.reason, fault.position) == (wanted_fault.reason, wanted_fault.position)


def test_a_batch_larger_than_a_chunk_is_given_in_parts(tmp_path: Path) -> None:
    parts = batches(random.Random(11), 4 * CELL, 40) + batches(random.Random(12), 4 * CELL, 3000)
    offset = 0
    for number, part in enumerate(parts):
        parts[number] = struct.pack(">q", offset) + part[8:]
        offset += struct.unpack_from(">i", part, 23)[0] + 1
    segment = Segment(tmp_path / "0.log", b"".join(parts))
    wanted, _ = segment.records
    chunks, fault = segment.read(size=CELL // 4, borders=list(accumulate(map(len, parts))))
    assert fault is None
    assert rows_of(chunks) == wanted


# --- large batches, decoded piece by piece ---------------------------------------------------------------------------

PIECE = 64 << 10  # of a large batch, as much as is checked and decoded in one go (reader.h)


def spoil_large(batch: bytes, kind: str, rng: random.Random) -> bytes:
    """A batch that is wrong somewhere inside, with a checksum that is right but for "crc"."""
    out = bytearray(batch)
    count = struct.unpack_from(">i", batch, 57)[0]
    if kind == "crc":
        out[rng.randrange(70, len(out))] ^= 1
        return bytes(out)
    if kind == "byte":
        out[rng.choice([rng.randrange(70, len(out)), *range(61 + PIECE - 6, 61 + PIECE + 6)])] ^= rng.choice(
            (1, 128, 255)
        )
    elif kind == "fewer":
        struct.pack_into(">i", out, 57, count - 1)
    elif kind == "more":
        struct.pack_into(">i", out, 57, count + 1)
    elif kind == "last delta":
        struct.pack_into(">i", out, 23, count - 2)
    elif kind == "cut":
        del out[-rng.randrange(1, 300) :]
        struct.pack_into(">i", out, 8, len(out) - 12)
    elif kind == "longer":
        out += b"\0" * rng.choice((1, PIECE, 2 * PIECE))
        struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, second_opinion.crc32c(bytes(out[21:])))
    return bytes(out)


@pytest.mark.parametrize("kind", ["crc", "byte", "fewer", "more", "last delta", "cut", "longer"])
def test_a_large_batch_that_is_wrong_anywhere_gives_what_the_record_reader_gives(kind: str, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED}:{kind}")
    for _ in range(4):
        items = [Rec(i, T + i, None, rng.randbytes(rng.randrange(60, 300))) for i in range(rng.randrange(2000, 5000))]
        large = reference.encode(items)
        after = reference.encode([Rec(len(items) + 5, T, None, b"after")])
        segment = Segment(tmp_path / "0.log", spoil_large(large, kind, rng) + after)
        wanted, wanted_fault = segment.records
        for layout, threads in (("binary", 1), ("large_binary", 3), ("view", 1)):
            chunks, fault = segment.read(layout, threads=threads)
            assert rows_of(chunks) == wanted
            assert (fault is None) == (wanted_fault is None)
            if fault is not None and wanted_fault is not None:
                assert (fault.reason, fault.position) == (wanted_fault.reason, wanted_fault.position)


def test_batches_around_the_size_of_pieces_and_windows_give_all_rows(tmp_path: Path) -> None:
    rng = random.Random(f"{SEED}:12")
    parts, offset = [], 0
    for border in (2 * PIECE, 3 * PIECE, 8 * PIECE, 9 * PIECE):
        for more in (-1, 0, 1):
            items, size = [], 61
            while size < border + more - 400:
                value = rng.randbytes(rng.randrange(300))
                items.append(Rec(offset + len(items), T + offset, None if len(value) % 3 else b"key", value))
                size = len(reference.encode(items)) if len(items) % 100 == 0 else size + len(value) + 12
            size = len(reference.encode(items))
            items.append(Rec(offset + len(items), T, None, b"v" * max(border + more - size - 13, 0)))
            parts.append(reference.encode(items))
            offset += len(items)
    segment = Segment(tmp_path / "0.log", b"".join(parts))
    wanted, _ = segment.records
    for columns in (FIVE, ("value",), ("offset", "timestamp"), ("offset", "timestamp", "key", "value", "sequence")):
        chunks, fault = segment.read(threads=1, columns=columns)
        assert fault is None
        if columns == FIVE:
            assert rows_of(chunks) == wanted
        for name in columns:
            if name == "sequence":
                assert set(chunks[0][name].tolist()) == {-1}
            else:
                assert rows_of(chunks)[name] == wanted[name]
    for size in (PIECE, 5 * PIECE, 40 * PIECE):
        assert rows_of(segment.read(threads=1, size=size)[0]) == wanted
    start, end = (wanted["offset"][len(wanted) // part].as_py() for part in (3, 2))
    assert rows_of(segment.read(threads=1, start=start, end=end)[0]) == between(wanted, start, end)


@pytest.fixture
def long_log(partition: Path) -> Iterator[Log]:
    """Two segments of 12 MiB, of 16 KiB batches."""
    with Log.open(partition, segment_bytes=12 << 20) as log:
        log.append_many([b"%06d" % i * 20 for i in range(180_000)], batch_bytes=16 << 10)
        yield log


def test_a_log_iterates_in_chunks_that_were_read_together(long_log: Log) -> None:
    assert len(long_log.segments) == 2
    for layout in LAYOUTS:
        for threads in (None, 1, 2, 4):
            at = 0
            for chunk in long_log.iter_columns(layout=layout, threads=threads):
                assert chunk.offsets.tolist() == list(range(at, at + len(chunk)))
                assert chunk.values[-1] == b"%06d" % (at + len(chunk) - 1) * 20
                assert chunk.values[:1] == [b"%06d" % at * 20]
                at += len(chunk)
            assert at == 180_000


def test_chunks_that_were_read_before_the_log_was_cut_are_not_handed_out(long_log: Log) -> None:
    chunks = long_log.iter_columns(threads=4)
    for _ in range(2):  # the first alone, the second with those behind it
        last = next(chunks)
    long_log.truncate_to(last.next_offset)
    long_log.append_many([b"new"] * 10)
    rest = list(chunks)
    assert [value for chunk in rest for value in chunk.values] == [b"new"] * 10
    assert rest[0].offsets[0] == last.next_offset
    chunks = long_log.iter_columns(threads=4)
    long_log.truncate_to(next(chunks).next_offset - 1)
    with pytest.raises(OffsetOutOfRangeError):
        next(chunks)
    assert next(chunks, None) is None


def test_a_sample_says_how_far_chunks_are_apart_before_there_are_rows(packed: Segment) -> None:
    size = len(packed.data)
    with packed.path.open("rb") as file:
        reader = Reader(FIVE, "binary", threads=2, in_chunks=True)
        reader.seek(0, 2**62)
        reader.open(file.fileno(), 0, str(packed.path))
        reader.begin(2**62, CELL)
        assert reader.chunk_spacing == 0
        reader.sample(size, size)
        assert 0 < reader.chunk_spacing <= CELL
        assert (reader.rows, reader.position, reader.next_offset) == (0, 0, 0)


def test_no_chunks_begin_amid_a_batch_or_where_there_is_none(packed: Segment) -> None:
    size = len(packed.data)
    assert struct.unpack_from(">i", packed.data, 57)[0] > 1
    with packed.path.open("rb") as file:
        for start, end in ((1, size), (0, 0), (0, 60)):
            reader = Reader(FIVE, "binary", threads=2, in_chunks=True)
            reader.seek(start, 2**62)
            reader.open(file.fileno(), 0, str(packed.path))
            reader.begin(2**62, CELL)
            reader.sample(end, end)
            assert reader.chunk_spacing == 0


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("batch_bytes", [16 << 10, 1 << 20])
def test_chunks_of_a_log_are_as_many_for_each_thread_and_fit(partition: Path, batch_bytes: int, threads: int) -> None:
    with Log.open(partition) as log:
        log.append_many([b"%07d" % i * 14 for i in range(100_000)], compression="lz4", batch_bytes=batch_bytes)
        chunks = list(log.iter_columns(columns=("offset", "value"), threads=threads))
        assert [i for chunk in chunks for i in chunk.offsets.tolist()] == list(range(100_000))
        sizes = [len(chunk) for chunk in chunks]
        assert len(sizes) % threads == 0
        assert max(sizes) * 98 <= 4 << 20
        # Two batches; what lies between two entries of the index.
        assert max(sizes) - min(sizes) <= (20_000 if batch_bytes == 1 << 20 else 1_000)
