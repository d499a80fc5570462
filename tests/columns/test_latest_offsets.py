"""`LatestOffsets`: the offset of each key's newest record, as a dictionary has it; also where hashes are weak."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from kstore import Columns, Log, Record, decode_columns, encode_batch
from kstore.columns._latest_offsets import COLUMNS, SECRET_BYTES, LatestOffsets, new_secret, share_keys

END = 1 << 20
ENDS = (END, (1 << 32) - 2, (1 << 32) - 1, 1 << 40)  # from 2^32 - 1 on, keys are numbered
Rows = list[tuple[bytes | None, bytes | None]]


def columns_of(rows: Rows, first: int = 0, layout: str = "binary") -> Columns:
    records = [Record(0, 0, key, value) for key, value in rows]
    if not records:
        return decode_columns(b"", columns=COLUMNS, layout=layout)
    return decode_columns(encode_batch(records, base_offset=first), columns=COLUMNS, layout=layout)


def newest(rows: Rows) -> dict[bytes, int]:
    table: dict[bytes, int] = {}
    for offset, (key, value) in enumerate(rows):
        if key is not None:
            table.pop(key, None)
            if value is not None:
                table[key] = offset
    return table


def random_rows(rng: random.Random, count: int, keys: int) -> Rows:
    chosen = [rng.choice((b"%d" % number, rng.randbytes(rng.randrange(40)))) for number in range(keys)]
    return [(rng.choice((None, *[rng.choice(chosen)] * 9)), rng.choice((None, b"", b"v"))) for _ in range(count)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("keys", [1, 2, 31, 33, 1000, 20_000])
def test_offsets_are_those_of_a_dictionary(keys: int, end: int, rng: random.Random) -> None:
    rows = random_rows(rng, 20_000, keys)
    table = LatestOffsets(new_secret(), 0, end)
    at = 0
    while at < len(rows):
        count = rng.choice((0, 1, 31, 32, 33, 2000))
        table.add(columns_of(rows[at : at + count], at))
        at += count
        if rng.random() < 0.1 or at >= len(rows):
            expected = newest(rows[:at])
            assert table.offsets().tolist() == sorted(expected.values())
            assert len(table) == len(expected)
    for key in {key for key, _ in rows if key is not None} | {b"no such key"}:
        assert table.find(key) == expected.get(key, -1)
    assert table.memory_bytes < 60 * keys + 100_000


def test_two_tables_overlap_if_they_share_a_key_that_lives(rng: random.Random) -> None:
    for _ in range(300):
        secret, bits = new_secret(), rng.choice((96, 96, 70))
        sides = [random_rows(rng, rng.randrange(40), rng.choice((1, 5, 30))) for _ in range(2)]
        tables = [LatestOffsets(secret, 0, rng.choice(ENDS), _hash_bits=bits) for _ in sides]
        for table, rows in zip(tables, sides, strict=True):
            table.add(columns_of(rows))
        shared = bool(newest(sides[0]).keys() & newest(sides[1]).keys())
        assert share_keys(tables) == share_keys(tables[::-1]) == shared
        assert share_keys([tables[0], tables[0]]) == bool(newest(sides[0]))
        assert not share_keys(tables[:1])


def test_two_large_tables_without_a_common_key_share_none() -> None:
    tables = []
    secret = new_secret()
    for side in range(2):
        table = LatestOffsets(secret, 0, END)
        table.add(columns_of([(b"%d %d" % (side, number), b"v") for number in range(100_000)]))
        tables.append(table)
    assert not share_keys(tables)
    tables[1].add(columns_of([(b"0 7", b"v")], 100_000))
    assert share_keys(tables)


def test_equal_hashes_may_overlap_but_no_overlap_is_missed(rng: random.Random) -> None:
    """With 8 bits of hash nearly all keys share theirs with others: an overlap is then a false alarm, never missed."""
    for _ in range(100):
        secret = new_secret()
        sides = [random_rows(rng, 20, 10) for _ in range(2)]
        tables = [LatestOffsets(secret, 0, rng.choice(ENDS), _hash_bits=8) for _ in sides]
        for table, rows in zip(tables, sides, strict=True):
            table.add(columns_of(rows))
        if len({key for rows in sides for key, _ in rows}) == 1:
            assert share_keys(tables) == bool(newest(sides[0]).keys() & newest(sides[1]).keys())


def test_offsets_near_the_greatest_are_told_apart() -> None:
    first = (1 << 63) - (1 << 32)
    for end, expected in ((first + (1 << 32) - 2, (1 << 32) - 3), ((1 << 63) - 1, (1 << 32) - 2)):
        table = LatestOffsets(new_secret(), first, end)
        for offset in (0, 5, expected):
            table.add(columns_of([(b"key %d" % offset, b"v")], first + offset))
        assert [offset - first for offset in table.offsets().tolist()] == [0, 5, expected]
        assert table.find(b"key 5") == first + 5
        table.add(columns_of([(b"key 0", None)], end - 1))
        assert table.find(b"key 0") == -1
        with pytest.raises(ValueError, match="are taken"):
            table.add(columns_of([(b"key", b"v")], first - 1))


def test_columns_of_another_kind_are_refused() -> None:
    table = LatestOffsets(new_secret(), 0, END)
    with pytest.raises(ValueError, match="layout 'binary'"):
        table.add(columns_of([(b"k", b"v")], layout="view"))
    with pytest.raises(KeyError):
        table.add(decode_columns(encode_batch([Record(0, 0, b"k", b"v")])))
    with pytest.raises(ValueError, match=f"{SECRET_BYTES} are wanted"):
        LatestOffsets(b"short", 0, 1)
    assert table.offsets().tolist() == []
    assert table.offsets().dtype == np.int64


def test_the_column_is_tombstone_says_whether_the_value_is_null(partition: Path, rng: random.Random) -> None:
    with Log.open(partition) as log:
        rows = random_rows(rng, 3000, 50)
        for first in range(0, 3000, 100):
            log.append_many(rows[first : first + 100], compression=rng.choice(("none", "lz4", "zstd", "gzip")))
        expected = [value is None for _, value in rows]
        assert log.read_columns(columns=["is_tombstone"])["is_tombstone"].tolist() == expected
        everything = log.read_columns(columns=["is_tombstone", "value", "offset", "headers"], max_records=50, offset=17)
        assert everything["is_tombstone"].tolist() == expected[17:67]
        assert everything["is_tombstone"].tolist() == [value is None for value in everything.values]
