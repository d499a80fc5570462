"""The table of batches: what each batch says of itself, for every format, from its header alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kstore import Columns, CorruptRecordError, Log, OffsetOutOfRangeError, RecordBatch
from kstore._core import decode_batches
from kstore.codec.compression import type_id
from kstore.columns._batch_table import BATCH_COLUMNS, BatchTable
from tests.conftest import SEED
from tests.search.test_fuzz import CORPUS, mutate
from tests.support import reference
from tests.support.reference import Rec

T = 1_700_000_000_000
TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def row_of(batch: RecordBatch, segment: int) -> tuple[Any, ...]:
    inside = batch.magic < 2 and batch.compression != "none"
    return (
        -1 if inside else batch.base_offset,
        batch.last_offset,
        -1 if inside else batch.count,
        batch.position,
        batch.size_bytes,
        segment,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.partition_leader_epoch,
        batch.magic,
        batch.attributes & 7,
        TYPES[batch.timestamp_type],
        batch.is_transactional,
        batch.is_control,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        -1 if batch.delete_horizon_ms is None else batch.delete_horizon_ms,
        batch.crc,
    )


def rows_of(table: Columns) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].tolist() for name in BATCH_COLUMNS), strict=True))


@pytest.fixture
def log(partition: Path) -> Iterator[Log]:
    """Batches of one to fifty records with every codec, in several segments."""
    rng = random.Random(3)
    with Log.open(partition, segment_bytes=5000) as log:
        for _ in range(60):
            values = [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 50))]
            log.append_many(values, compression=rng.choice(("none", "gzip", "snappy", "lz4", "zstd")))
        yield log


def test_the_table_has_a_row_for_each_batch_that_read_batches_gives(log: Log) -> None:
    bases = [segment.base_offset for segment in log.segments]
    rng = random.Random(f"{SEED}:4")
    for _ in range(30):
        start = rng.randrange(log.log_end_offset + 1)
        end = rng.choice((None, rng.randrange(log.log_end_offset + 10)))
        batches = list(log.read_batches(start, end_offset=end))
        wanted = [row_of(batch, max(base for base in bases if base <= batch.base_offset)) for batch in batches]
        table = log.batch_table(start, end_offset=end)
        assert rows_of(table) == wanted
        assert table.next_offset >= (batches[-1].next_offset if batches and end is None else start)
    assert table.names == BATCH_COLUMNS
    inside = next(batch.base_offset + 1 for batch in log.read_batches() if batch.count > 2)
    for end in (inside - 1, inside):  # no record is asked for, though one batch holds both offsets
        assert list(log.read_batches(inside, end_offset=end)) == rows_of(log.batch_table(inside, end_offset=end)) == []
    assert len(list(log.read_batches(inside, end_offset=inside + 1))) == 1
    assert log.batch_table(start_timestamp=0)["count"].sum() == log.log_end_offset


def test_the_table_tells_compression_by_kafkas_number(partition: Path) -> None:
    with Log.open(partition) as log:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            log.append_many([b"value"] * 20, compression=codec)
        found = log.batch_table()
        assert found["compression"].tolist() == [type_id(c) for c in ("none", "gzip", "snappy", "lz4", "zstd")]
        assert found.compression.dtype == np.int8
        assert found.crc.dtype == np.uint32


def test_a_log_without_records_has_a_table_without_rows(partition: Path) -> None:
    with Log.open(partition) as log:
        table = log.batch_table()
        assert (len(table), table.next_offset, table.names) == (0, 0, BATCH_COLUMNS)
        with pytest.raises(OffsetOutOfRangeError):
            log.batch_table(1)


def test_a_table_is_a_record_batch(log: Log) -> None:
    pa = pytest.importorskip("pyarrow")
    batch = pa.record_batch(log.batch_table())
    batch.validate(full=True)
    assert batch.column_names == list(BATCH_COLUMNS)
    assert batch["crc"].to_pylist() == [b.crc for b in log.read_batches()]
    assert batch["is_control"].type == pa.bool_()


def outcome(data: bytes, tmp_path: Path, borders: tuple[int, ...] = ()) -> tuple[list[tuple[Any, ...]], bool]:
    """The rows of a file of these bytes, and whether an error ended them; `borders` divide it among threads."""
    path = tmp_path / "segment.log"
    path.write_bytes(data)
    with path.open("rb") as file:
        table = BatchTable(threads=3)
        table.seek(-(2**63), 2**63 - 1)
        table.begin(0, 0)
        table.open(file.fileno(), 0, str(path), 7)
        fault = False
        while not fault and table.position < len(data):
            table.divide(borders)
            if table.read(len(data), len(data), 0) == "alone":
                try:
                    table.read_slowly(data[table.position :])
                except (CorruptRecordError, StopIteration):
                    fault = True
        return rows_of(table.finish()), fault


def batches_of(data: bytes) -> tuple[list[tuple[Any, ...]], bool]:
    rows: list[tuple[Any, ...]] = []
    at = 0
    try:
        for batch in decode_batches(data, False):
            at = batch.position + batch.size_bytes
            # To say more of an old message a batch looks at its fields, which may not be sound.
            rows.append(row_of(batch, 7) if batch.magic == 2 else (batch.position, batch.crc))
    except CorruptRecordError:
        return rows, True
    return rows, at < len(data)


def check(data: bytes, tmp_path: Path) -> None:
    rows, fault = outcome(data, tmp_path)
    wanted, wanted_fault = batches_of(data)
    assert fault == wanted_fault
    assert [row if len(other) > 2 else (row[3], row[-1]) for row, other in zip(rows, wanted, strict=True)] == wanted


def test_messages_of_old_formats_are_rows(tmp_path: Path) -> None:
    items = [Rec(i, T + i, b"k", b"v") for i in range(4)]
    for magic in (0, 1):
        data = b"".join(reference.message(5 + i, b"k", b"v", magic=magic, timestamp=T + i) for i in range(3))
        for codec in (0, 1, 2, 3):
            data += reference.wrapper(items, codec, magic=magic) if codec else b""
        rows, fault = outcome(data, tmp_path)
        assert not fault
        assert rows == [row_of(batch, 7) for batch in decode_batches(data)]


@pytest.mark.parametrize("data", CORPUS)
def test_batches_of_every_kind_are_rows(data: bytes, tmp_path: Path) -> None:
    check(data * 40, tmp_path)
    check(data + reference.encode([Rec(9, T, None, b"v" * 5000)]) * 3 + data, tmp_path)
    for cut in range(len(data)):
        check(data + data[:cut], tmp_path)


def test_threads_that_begin_anywhere_give_the_rows_of_one(tmp_path: Path, rng: random.Random) -> None:
    for _ in range(40):
        parts = [rng.choice(CORPUS) for _ in range(rng.randrange(1, 60))]
        if rng.random() < 0.3:
            parts[rng.randrange(len(parts))] = rng.choice(CORPUS)[: rng.randrange(60)]
        data = b"".join(parts)
        alone = outcome(data, tmp_path)
        starts = [sum(map(len, parts[:i])) for i in range(len(parts))]
        anywhere = [rng.randrange(len(data)) for _ in range(3)]
        some = rng.sample(starts, len(starts) // 2)
        for borders in (starts, some, [*some, *anywhere]):
            assert outcome(data, tmp_path, tuple(borders)) == alone


def test_a_long_table_has_the_rows_of_its_batches(partition: Path) -> None:
    with Log.open(partition) as log:
        for _ in range(20):
            log.append_many([b"value" * 20] * 10_000, batch_bytes=4000)
        table = log.batch_table()
        assert table["crc"].tolist() == [batch.crc for batch in log.read_batches()]
        assert table["position"].tolist() == [batch.position for batch in log.read_batches()]
        middle = log.batch_table(100_000, end_offset=150_000)
        assert middle["count"].sum() >= 50_000
        assert middle.next_offset == 150_000


def test_mutated_batches_are_rows_or_the_error_that_batches_are(
    rng: random.Random, budget: Callable[[float], float], tmp_path: Path
) -> None:
    end = time.monotonic() + budget(1)
    while time.monotonic() < end:
        check(b"".join(mutate(rng, rng.choice(CORPUS)) for _ in range(rng.choice((1, 2, 4)))), tmp_path)


def test_a_frame_that_is_broken_is_an_error_with_its_place(log: Log) -> None:
    place = log.fetch(500, 1)
    path = Path(log.path) / f"{place.segment_base_offset:020}.log"
    data = bytearray(path.read_bytes())
    data[place.position + 16] = 9
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="magic 9") as caught:
        log.batch_table()
    assert (caught.value.path, caught.value.position) == (str(path), place.position)
    start = log.segments[0].base_offset
    with pytest.raises(CorruptRecordError, match="magic 9"):
        list(log.read_batches(start))
