"""`kstore ingest`: rows of files become records of a topic, and what cannot is named with its file and line."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

import kstore
from kstore.cli.sources import row_source, text_files
from kstore.codec._compression import ZSTD_VERSION
from kstore.store.topics._partitioner import partition_of
from tests.support.ingesting import File, Ingest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.usefixtures("no_syncs")

CUT = "it ends within a frame" if ZSTD_VERSION else "incomplete frame"  # of zstd
NOON = 1_370_088_000_000  # 2013-06-01T12:00Z


# CSV


CSV = b"""n,text,zip,when
1,x,01234,2013-06-01T12:00
2.50,"a ""q""
line",5,2013-06-01 12:00:00.001
,,7,2013-06-01T14:00+02:00
"""


def test_a_csv_row_is_a_json_object_whose_number_columns_are_numbers(ingest: Ingest, file: File) -> None:
    assert ingest(file("a.csv", CSV), "--timestamp-column", "when") == (
        "t-0: offsets 0 to 2\ntimestamps 2013-06-01T12:00:00.000Z to 2013-06-01T12:00:00.001Z\n"
    )
    assert ingest.rows == [
        {"n": 1, "text": "x", "zip": "01234", "when": "2013-06-01T12:00"},
        {"n": 2.5, "text": 'a "q"\nline', "zip": "5", "when": "2013-06-01 12:00:00.001"},
        {"n": None, "text": None, "zip": "7", "when": "2013-06-01T14:00+02:00"},
    ]
    assert [record.timestamp for record in ingest.records()] == [NOON, NOON + 1, NOON]
    assert ingest.values[1] == b'{"n":2.50,"text":"a \\"q\\"\\nline","zip":"5","when":"2013-06-01 12:00:00.001"}'


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bz2.compress, zstandard.compress, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])],
)  # fmt: skip
def test_packed_files_are_unpacked_whatever_their_name(
    ingest: Ingest, file: File, pack: Callable[[bytes], bytes]
) -> None:
    ingest(file("a.csv", pack(CSV)), "--value-column", "zip")
    assert ingest.values == [b"01234", b"5", b"7"]


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.tsv", b"k\tv\n1\t2\n", []),
        ("a.csv", b"k;v\n1;2\n", ["--delimiter", ";"]),
        ("a.csv", b"1,2\n", ["--columns", "k,v"]),
        ("a.csv", b"\xef\xbb\xbfk,v\r\n1,2\r\n\r\n", []),
        ("a.csv", b"\nk,v\n1,2", []),
        ("a.dat", b"k,v\n1,2", ["--format", "csv"]),
    ],
)
def test_csv_files_come_in_many_forms(
    ingest: Ingest, file: File, name: str, content: bytes, options: list[str]
) -> None:
    ingest(file(name, content), "--key-column", "k", "--value-column", "v", *options)
    assert [(record.key, record.value) for record in ingest.records()] == [(b"1", b"2")]


def test_a_check_and_a_file_for_rejected_rows_exclude_each_other(tmp_path: Path, ingest: Ingest) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    words = ("--check", "--rejects", tmp_path / "rejects.jsonl")
    assert "give one of them" in ingest(tmp_path / "a.csv", *words, code=1)


def test_empty_cells_and_those_named_are_null_and_quoted_ones_are_not(ingest: Ingest, file: File) -> None:
    ingest(file("a.csv", b'k,v\n,NA\n"",""\nx,"NA"\n'), "--key-column", "k", "--value-column", "v", "--null", "NA")
    assert [(record.key, record.value) for record in ingest.records()] == [(None, None), (b"", b""), (b"x", b"NA")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'v\n5" disk\n', [b'5" disk']),
        (b'v\n"a"b"\nc\n', [b'ab"', b"c"]),
        (b'v\n5"\n"6\n7"\n', [b'5"', b"6\n7"]),
        (b'\xef\xbb\xbf"v"\n5" disk\n', [b'5" disk']),
    ],
)
def test_a_quote_within_a_cell_is_a_sign_like_others(
    ingest: Ingest, file: File, content: bytes, expected: list[bytes]
) -> None:
    ingest(file("a.csv", content), "--value-column", "v")
    assert ingest.values == expected


@given(st.text('",\n\rx').map(str.encode))
@example(b'a,"x\ny"\n"z\n')
@example(b'x"\n"\n')
@example(b'"x"y"\n')
@example(b'x"')
@example(b'x"\ny,""')
def test_rows_end_where_no_quote_that_opens_a_cell_is_open(piece: bytes) -> None:
    state, end = "start", 0
    for number, sign in enumerate(piece.decode(), 1):
        if sign == '"' and state in ("start", "ended"):
            state = "quoted"
        elif state == "quoted":
            state = "ended" if sign == '"' else "quoted"
        else:
            state = "start" if sign in ",\n\r" else "cell"
            end = number if sign in "\n\r" else end
    quotes = text_files.Quotes(",")
    assert quotes.end_of_rows(piece) == end
    assert quotes.are_open(piece[end:]) == (state == "quoted")


def test_bytes_that_are_no_utf8_come_through_a_csv_file(ingest: Ingest, file: File) -> None:
    path = file("a.csv", b"k,v\n\xff,\xfe\n")
    ingest(path, "--value-column", "v")
    ingest(path)
    assert ingest.values == [b"\xfe", b'{"k_base64":"/w==","v_base64":"/g=="}']


# JSON lines


def test_a_json_line_is_the_value_as_it_stands(ingest: Ingest, file: File) -> None:
    ingest(file("a.jsonl", b' {"b": 1.0, "a":"\xc5\xbc"} \r\n\n{}'))
    assert ingest.values == ['{"b": 1.0, "a":"ż"}'.encode(), b"{}"]


def test_fields_of_json_lines_are_text_base64_or_json(ingest: Ingest, file: File) -> None:
    path = file(
        "a.ndjson",
        b'{"k":"x","v":{"a":[1,null]},"h":{"n":"1"}}\n{"v_base64":"/w==","k":1}\n{"v":null,"h":[{"key":"a","value_base64":"/w=="}]}',
    )
    ingest(path, "--key-column", "k", "--value-column", "v", "--headers-column", "h")
    assert [(record.key, record.value, record.headers) for record in ingest.records()] == [
        (b"x", b'{"a":[1,null]}', (("n", b"1"),)),
        (b"1", b"\xff", ()),
        (None, None, (("a", b"\xff"),)),
    ]


@pytest.mark.parametrize("has_orjson", [True, False])
def test_json_is_checked_with_and_without_orjson(
    ingest: Ingest, file: File, monkeypatch: pytest.MonkeyPatch, has_orjson: bool
) -> None:
    if has_orjson:
        pytest.importorskip("orjson")
    else:
        monkeypatch.setitem(sys.modules, "orjson", None)
    for number, line in enumerate((b'{"a":NaN}', b"{", b"[]", b'"x"', b'{"a":"\xff"}', b"[" * 100_000)):
        assert f"x{number}.jsonl, line 2" in ingest(file(f"x{number}.jsonl", b"{}\n" + line), code=1)
    assert not ingest.has_topic


@pytest.mark.parametrize("has_orjson", [True, False])
def test_whole_numbers_of_any_size_stay_as_they_are(
    ingest: Ingest, file: File, monkeypatch: pytest.MonkeyPatch, has_orjson: bool
) -> None:
    if not has_orjson:
        monkeypatch.setitem(sys.modules, "orjson", None)
    keys = [2**53 + 1, 2**64 - 1, 2**64, -(2**63) - 1, 10**30, 1.5, [2**64], {"a": 2**70}]
    content = b"".join(json.dumps({"k": key, "v": 1}).encode() + b"\n" for key in keys)
    ingest(file("a.jsonl", content), "--key-column", "k", "--value-column", "v")
    assert [json.loads(record.key or b"") for record in ingest.records()] == keys


def test_json_lines_need_no_pyarrow(ingest: Ingest, file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ingest(file("a.jsonl", b'{"a":1}\n'))
    assert ingest.values == [b'{"a":1}']
    for name in ("a.csv", "a.parquet", "a.arrow"):
        assert "kstore[arrow]" in ingest(file(name, b"x"), code=1)


# Parquet and Arrow


def table() -> Any:
    return pa.table(
        {
            "k": pa.array([b"a", None, b"\xff"]),
            "v": pa.array(["x", "ż", None], pa.large_string()),
            "when": pa.array([NOON, NOON + 1, 0], pa.timestamp("ms", "Europe/Warsaw")),
            "h": pa.array([[("n", b"1")], [], None], pa.map_(pa.string(), pa.binary())),
            "d": pa.array(["p", "q", "p"]).dictionary_encode(),
        }
    )


def write_arrow(path: Path, found: Any, *, stream: bool) -> None:
    with (
        pa.OSFile(str(path), "wb") as sink,
        (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, found.schema) as to,
    ):
        to.write_table(found, max_chunksize=2)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_parquet_and_arrow_columns_are_taken_as_they_are(ingest: Ingest, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(table(), path, row_group_size=2)
    else:
        write_arrow(path, table(), stream=kind == "arrows")
    ingest(
        path, *["--key-column", "k", "--value-column", "v"], *["--timestamp-column", "when", "--headers-column", "h"]
    )
    assert [tuple(record)[1:] for record in ingest.records()] == [
        (NOON, b"a", b"x", (("n", b"1"),)),
        (NOON + 1, None, "ż".encode(), ()),
        (0, b"\xff", None, ()),
    ]


def test_headers_in_several_row_groups_of_a_parquet_file_are_taken(ingest: Ingest, tmp_path: Path) -> None:
    headers = pa.array([[(f"{n}", b"h")] for n in range(7)], pa.map_(pa.string(), pa.binary()))
    pq.write_table(pa.table({"v": [f"{n}" for n in range(7)], "h": headers}), tmp_path / "a.parquet", row_group_size=4)
    ingest(tmp_path / "a.parquet", "--value-column", "v", "--headers-column", "h")
    assert [(r.value, r.headers) for r in ingest.records()] == [(b"%d" % n, ((f"{n}", b"h"),)) for n in range(7)]


def test_whole_rows_of_every_type_become_json(ingest: Ingest, tmp_path: Path) -> None:
    columns = {
        "bool": pa.array([True, None]),
        "u64": pa.array([2**64 - 1, None], pa.uint64()),
        "i8": pa.array([-5, None], pa.int8()),
        "f": pa.array([1e300, float("nan")]),
        "f32": pa.array([0.1, float("inf")], pa.float32()),
        "dec": pa.array([1, None], pa.int32()).cast(pa.decimal128(12, 2)),
        "date": pa.array([15857, None], pa.int32()).cast(pa.date32()),
        "ts": pa.array([NOON, None], pa.timestamp("ms", "Europe/Warsaw")),
        "naive": pa.array([NOON, None], pa.timestamp("ms")),
        "list": pa.array([[1, None], None]),
        "nest": pa.array([{"a": [b"x", b"\xff"], "t": datetime(2013, 6, 1), "f": float("inf")}, None]),
        "dict": pa.array(["x", None]).dictionary_encode(),
        "numbers": pa.array([7, None]).dictionary_encode(),
        "none": pa.nulls(2),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", store_schema=True)
    nulls = [
        f"column '{name}' has 1 value that is NaN or infinite, in row {row}: written as null"
        for name, row in (("f", 2), ("f32", 2), ("nest", 1))
    ]
    ingest(tmp_path / "a.parquet", cautions=nulls)
    first, second = ingest.rows
    assert first == {
        "bool": True, "u64": 2**64 - 1, "i8": -5, "f": 1e300, "f32": 0.1, "dec": 1.0, "date": "2013-06-01",
        "ts": "2013-06-01T12:00:00.000Z", "naive": "2013-06-01T12:00:00.000", "list": [1, None],
        "nest": {"a": ["x", "/w=="], "t": "2013-06-01T00:00:00", "f": None}, "dict": "x", "numbers": 7, "none": None,
    }  # fmt: skip
    assert second == dict.fromkeys(columns)


@pytest.mark.parametrize(
    ("array", "unit", "expected"),
    [
        (pa.array([1, 2]), "s", [1000, 2000]),
        (pa.array([1500, 2999]), "us", [1, 2]),
        (pa.array([1_999_999], pa.uint64()), "ns", [1]),
        (pa.array([1.5]), "s", [1500]),
        (pa.array(["1", "2"]), "s", [1000, 2000]),
        (pa.array(["1", "1970-01-01"]), "ms", [1, 0]),
        (pa.array(["1970-01-01T01:00:00.001+01:00", "1970-01-01"]), "ms", [1, 0]),
        (pa.array([b"1970-01-01 00:00:01Z"]), "ms", [1000]),
        (pa.array([1], pa.int32()).cast(pa.date32()), "ms", [86_400_000]),
        (pa.array([5]).dictionary_encode(), "ms", [5]),
        (pa.array(["1700000000.5", "1.7e9", "-0.001"]), "s", [1_700_000_000_500, 1_700_000_000_000, -1]),
        (pa.array(["1", "1700000000.1239"]), "s", [1000, 1_700_000_000_123]),
        (pa.array(["1700000000999999999.9", "5.5"]), "ns", [1_700_000_000_999, 0]),
        (pa.array(["1700000000123456.7"]), "us", [1_700_000_000_123]),
        (pa.array([-1, 5]), "ms", [-1, 5]),
        (pa.array([-1000, 5999]).cast(pa.timestamp("us")), "ms", [-1, 5]),
    ],
    ids=str,
)
def test_timestamps_come_in_units_as_text_and_as_dates(
    ingest: Ingest, tmp_path: Path, array: Any, unit: str, expected: list[int]
) -> None:
    pq.write_table(pa.table({"t": array, "v": ["x"] * len(array)}), tmp_path / "a.parquet")
    ingest(tmp_path / "a.parquet", "--timestamp-column", "t", "--timestamp-unit", unit)
    assert [record.timestamp for record in ingest.records()] == expected


@pytest.mark.parametrize(
    ("array", "unit"),
    [
        (pa.array([5, 1 << 63], pa.uint64()), "ms"),
        (pa.array([5, 1 << 63], pa.uint64()), "s"),
        (pa.array([5, 1 << 62]), "s"),
        (pa.array(["5", "99999999999999999999"]), "s"),
        (pa.array(["5", "99999999999999999999"]), "ms"),
        (pa.array(["5.5", "1e99"]), "s"),
        (pa.array([5, -2]), "ms"),
        (pa.array([5, -2]).cast(pa.timestamp("s")), "ms"),
        (pa.array([5, -999]).cast(pa.timestamp("us")), "ms"),
        (pa.array([5, -2], pa.int32()).cast(pa.date32()), "ms"),
    ],
    ids=str,
)
def test_a_timestamp_that_no_record_can_have_is_named_with_its_row(
    ingest: Ingest, tmp_path: Path, array: Any, unit: str
) -> None:
    pq.write_table(pa.table({"t": array}), tmp_path / "a.parquet")
    words = [tmp_path / "a.parquet", "--timestamp-column", "t", "--timestamp-unit", unit, "--check"]
    assert "a.parquet, row 2: column 't' is '" in ingest(*words, code=1)
    assert not ingest.has_topic


# Where they go


def test_keys_decide_about_partitions_as_in_kafkas_producer(ingest: Ingest, file: File) -> None:
    keys = [b"key %d" % number for number in range(50)]
    path = file("a.csv", b"k\n" + b"\n".join(keys))
    found = json.loads(ingest(path, "--key-column", "k", "--partitions", 3, "--json"))
    assert (found["topic"], found["records"]) == ("t", 50)
    for number in range(3):
        assert {record.key for record in ingest.records(number)} == {k for k in keys if partition_of(k, 3) == number}
    assert [each["last_offset"] + 1 for each in found["partitions"]] == [len(ingest.records(n)) for n in range(3)]
    assert "has 3 partitions, not 4" in ingest(path, "--partitions", 4, code=1)
    ingest(path, "--partitions", 3)


def test_a_topics_own_settings_hold_and_batches_are_as_asked(ingest: Ingest, file: File) -> None:
    with kstore.Store.open(ingest.root, background=False) as store:
        store.create_topic("t", config={"segment.bytes": "2000"})
    path = file("a.csv", b"k\n" + b"x" * 100 + b"\n" + b"y\n" * 5000)
    ingest(path, "--compression", "lz4", "--batch-bytes", 500, "-c", "log.index.interval.bytes=1")
    with kstore.Store.open(ingest.root, "r") as store:
        log = store.log("t", 0)
        assert len(log.segments) > 3
        assert {batch.compression for batch in log.read_batches()} == {"lz4"}


def test_several_files_go_one_after_the_other(ingest: Ingest, file: File) -> None:
    ingest(file("b.csv", b"v\n1\n"), file("a.jsonl", b'{"v":"2"}\n'), "--value-column", "v")
    assert ingest.values == [b"1", b"2"]


def test_files_without_rows_make_an_empty_topic(ingest: Ingest, file: File) -> None:
    assert ingest(file("a.csv", b"k\n"), file("b.jsonl", b"")) == ""
    assert ingest.has_topic


def test_large_files_come_in_pieces(ingest: Ingest, file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_source, "PIECE_BYTES", 4096)
    monkeypatch.setattr(row_source, "BATCH_BYTES", 4096)
    rows = [f"{number},value {number}" for number in range(2000)]
    ingest(file("a.csv", "\n".join(["n,v", *rows]).encode()), "--value-column", "n")
    ingest(file("a.jsonl", b"".join(b'{"n":%d}\n' % number for number in range(2000))), "--value-column", "n")
    pq.write_table(pa.table({"n": range(2000)}), file("a.parquet", b""))
    ingest(file("a.csv", b"n\n").with_name("a.parquet"), "--value-column", "n")
    assert ingest.values == [b"%d" % number for number in range(2000)] * 3


@pytest.mark.parametrize("quoted", [False, True])
def test_a_wrong_row_in_a_later_piece_is_named_with_its_line(
    ingest: Ingest, file: File, monkeypatch: pytest.MonkeyPatch, quoted: bool
) -> None:
    monkeypatch.setattr(row_source, "PIECE_BYTES", 64)
    rows = [f'{number},"v,{number}"' if quoted else f"{number},v" for number in range(100)]
    for at in (0, 1, 50, 99):
        wrong = [*rows[:at], "1,2,3", *rows[at:]]
        assert f"a.csv, line {at + 2}: 3 columns" in ingest(file("a.csv", "\n".join(["n,v", *wrong]).encode()), code=1)


@pytest.mark.parametrize("tail", [b"x" * 5000 + b"\n", b'"' + b"x\n" * 5000])
def test_a_file_is_read_in_the_calling_thread_alone_also_where_a_row_is_too_large(
    ingest: Ingest, file: File, monkeypatch: pytest.MonkeyPatch, tail: bytes
) -> None:
    readers, read = set(), text_files.Counted.readinto

    def note(self: text_files.Counted, buffer: Any) -> int:
        readers.add(threading.get_ident())
        return read(self, buffer)

    monkeypatch.setattr(text_files.Counted, "readinto", note)
    monkeypatch.setattr(row_source, "PIECE_BYTES", 4096)
    told = ingest(file("a.csv", gzip.compress(b"a,b\n1,2\n3," + tail + b"4,5\n" * 1_000_000)), code=1)
    assert "a.csv, line 3: a row is larger than 0 MiB, or a quote is not closed; 1 record before it" in told
    assert readers == {threading.get_ident()}


def test_values_that_json_has_no_numbers_for_are_told_with_their_first_row(
    ingest: Ingest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_source, "BATCH_ROWS", 4)
    bad = [None, 1.5, float("nan"), 2.0, float("inf"), float("-inf")]
    nested = [[number] for number in bad]
    table = pa.table({"x": bad, "y": nested, "z": [1.0] * 6, "s": ["NaN"] * 6})
    pq.write_table(table, tmp_path / "a.parquet")
    told = [f"a.parquet: column '{name}' has 3 values that are NaN or infinite, the first in row 3" for name in "xy"]
    ingest(tmp_path / "a.parquet", "--check", cautions=told)
    assert [row["x"] for row in ingest.rows] == [None, 1.5, None, 2.0, None, None]
    ingest(tmp_path / "a.parquet", "--value-column", "s", "--key-column", "x", cautions=told[:1])
    ingest(tmp_path / "a.parquet", "--value-column", "s", "--key-column", "z")


def test_a_number_that_no_float_can_be_is_refused_in_a_column_of_json_lines(ingest: Ingest, file: File) -> None:
    path = file("a.jsonl", b'{"a":[1]}\n{"a":[1e400]}\n')
    assert "a.jsonl, line 2: " in ingest(path, "--value-column", "a", code=1)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("value", [[], ["--value-column", "b"]])
def test_a_byte_order_mark_belongs_to_no_row(ingest: Ingest, file: File, name: str, value: list[str]) -> None:
    content = {"a.csv": b'"a",b\n1,2\n', "a.jsonl": b'{"a":1,"b":2}\n'}[name]
    ingest(file(name, b"\xef\xbb\xbf" + content), *value)
    assert ingest.values == ([b"2"] if value else [b'{"a":1,"b":2}'])


def test_a_byte_order_mark_comes_before_the_first_row_of_a_file_without_names(ingest: Ingest, file: File) -> None:
    ingest(file("a.csv", b'\xef\xbb\xbf"1",2\n3,4\n'), "--columns", "a,b", "--value-column", "a")
    assert ingest.values == [b"1", b"3"]


def test_the_last_line_says_from_when_to_when_the_records_are(ingest: Ingest, file: File, tmp_path: Path) -> None:
    span = "timestamps 2013-06-01T12:00:00.000Z to 2013-06-01T12:00:09.000Z\n"
    later, earlier = NOON // 1000 + 9, NOON // 1000
    option = ["--timestamp-column", "t", "--timestamp-unit", "s"]
    first = file("a.jsonl", b'{"t":%d}\n{"t":%d}\n' % (later - 3, later))
    second = file("a.csv", b"t\n%d\n%d\n" % (earlier, later - 1))
    assert ingest(first, second, *option).endswith(span)
    pq.write_table(pa.table({"t": pa.array([later, earlier]).cast(pa.timestamp("s"))}), tmp_path / "a.parquet")
    told = json.loads(ingest(tmp_path / "a.parquet", *option, "--json"))
    assert (told["first_timestamp"], told["last_timestamp"]) == (NOON, NOON + 9000)
    assert "timestamps" not in ingest(file("b.jsonl", b'{"t":-1}\n'), "--timestamp-column", "t")
    assert "timestamps" not in ingest(first)


def test_seconds_that_are_taken_for_milliseconds_are_a_warning(ingest: Ingest, file: File) -> None:
    path = file("a.csv", b"t\n" + b"%d\n" % (NOON // 1000) * 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("default", kstore.TimestampWarning)
        told = ingest(path, "--timestamp-column", "t", "--partitions", "4", cautions=["looks like seconds"])
    assert told.endswith("timestamps 1970-01-16T20:34:48.000Z to 1970-01-16T20:34:48.000Z\n")


DECODED = 256 << 20


def _bomb(kind: str) -> Any:
    """A table whose rows have 256 MiB, most of it the same few bytes."""
    long = pa.array(["x" * (1 << 20)])
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * (DECODED >> 20), pa.int32()), long)
    if kind == "one long value":
        return pa.table({"a": ["x" * (96 << 20)]})
    if kind == "one long list":
        return pa.table({"a": pa.ListArray.from_arrays([0, len(rows)], rows)})
    if kind == "long names of headers":
        headers = pa.MapArray.from_arrays(
            list(range(len(rows) + 1)), rows.cast(pa.string()), pa.nulls(len(rows)).cast("binary")
        )
        return pa.table({"a": ["x"] * len(rows), "h": headers})
    return pa.table({"a": rows})


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the greatest memory is read from /proc")
@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("long values", ""),
        ("long names of headers", ""),
        ("one long list", "row 1: it has 268[0-9]{6} bytes, where at most 67108864 are taken"),
        ("one long value", "'a' of row group 0 has 100[0-9]{6} bytes in 1 values, where at most 67108864 bytes a row"),
    ],
)
def test_a_small_parquet_file_takes_little_memory_whatever_it_stands_for(
    tmp_path: Path, kind: str, complaint: str
) -> None:
    table, path = _bomb(kind), tmp_path / "a.parquet"
    columns = [name for name in ("a", "h.key_value.key", "a.list.element") if kind != "one long value"]
    pq.write_table(table, path, compression="zstd", use_dictionary=columns, write_statistics=False)
    assert path.stat().st_size < 50_000
    program = (
        "import sys; from kstore import cli; code = cli.main(sys.argv[1:]); "
        "print(open('/proc/self/status').read()); sys.exit(code)"
    )
    words = ["--to", tmp_path / "data", "--topic", "t", "-c", "max.message.bytes=100000000", "--threads", "1"]
    words += ["--headers-column", "h"] if "h" in table.column_names else []
    command = [sys.executable, "-c", program, "ingest", path, *words, "--value-column", "a"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == (1 if complaint else 0), done.stderr
    assert re.search(complaint, done.stderr)
    most = re.search(r"VmHWM:\s*([0-9]+) kB", done.stdout)
    assert most is not None
    assert int(most[1]) < 200 << 10


# What is wrong


@pytest.mark.parametrize(
    ("name", "content", "options", "complaint"),
    [
        ("a.csv", b"a,b\n1,2\n", ["--key-column", "c"], "a.csv: there is no column 'c'; there is 'a', 'b'"),
        ("a.csv", b"a,a\n1,2\n", [], "a.csv: there are two columns 'a'"),
        ("a.csv", b"a,b\n1,2\n3\n4,5", [], "a.csv, line 3: 1 column where 2 are expected: '3'"),
        ("a.csv", b"a,b\n1,2\n3,4,5\n", [], "a.csv, line 3: 3 columns where 2 are expected"),
        ("a.csv", b'a,b\n1,"2\n3,4\n', [], "a quote is opened that nothing closes"),
        ("a.csv", b"", [], "a.csv: it is empty"),
        ("a.csv", b"\xff\n1\n", [], "no UTF-8"),
        ("a.csv", b"a,t\n1,5\n2,\n", ["--timestamp-column", "t"], "a.csv, line 3: column 't' is null"),
        ("a.csv", b"a,t\n1,noon\n", ["--timestamp-column", "t"], "a.csv, line 2: column 't' is 'noon'"),
        ("a.csv", b"a\n1\n", ["--headers-column", "a"], "cannot hold headers"),
        ("a.csv", gzip.compress(b"a\n1\n" * 1000, mtime=0)[:-9], [], "a.csv: it cannot be unpacked"),
        ("a.csv", b"a\n1\n", ["--delimiter", "ab"], "one character"),
        ("a.jsonl", b'{"a":1}\n{"a":2}\n', ["--value-column", "b"], "a.jsonl: there is no column 'b'; there is 'a'"),
        ("a.jsonl", b'{"a":1}\nx\n', [], "a.jsonl, line 2: no JSON"),
        ("a.jsonl", b'{"t":1}\n{}\n', ["--timestamp-column", "t"], "a.jsonl, line 2: column 't' is null"),
        ("a.jsonl", b'{"t":true}\n', ["--timestamp-column", "t"], "a.jsonl, line 1: column 't' is 'True'"),
        ("a.jsonl", b'{"t":-5}\n', ["--timestamp-column", "t"], "a.jsonl, line 1: column 't' is '-5': before"),
        ("a.csv", b"t\n1\n-2\n", ["--timestamp-column", "t"], "a.csv, line 3: column 't' is '-2': before the epoch"),
        ("a.csv", zstandard.compress(b"a\n1\n" * 1000)[:-1], [], f"a.csv: it cannot be unpacked: {CUT}"),
        ("a.jsonl", zstandard.compress(b"{}\n") * 2 + b"\x28\xb5", [], f"a.jsonl: it cannot be unpacked: {CUT}"),
        ("a.csv", zstandard.compress(b"a\n1\n") + b"rubbish", [], "a.csv: it cannot be unpacked"),
        ("a.csv", bz2.compress(b"a\n1\n" * 1000)[:30] + b"?" * 30, [], "a.csv: it cannot be unpacked"),
        ("a.csv", b'a,b\n1,2"\n3,"4\n', [], "a quote is opened that nothing closes"),
        ("a.jsonl", b'{"v_base64":"!"}\n', ["--value-column", "v"], "a.jsonl, line 1: v_base64 is no base64"),
        ("a.jsonl", b'{"h":5}\n', ["--headers-column", "h"], "a.jsonl, line 1: column 'h'"),
        ("a.parquet", b"PAR1 and no more", [], "a.parquet: "),
        ("a.arrow", b"ARROW1 and no more", [], "a.arrow: "),
        ("a.arrow", b"", [], "a.arrow: "),
        ("a.what", b"", [], "--format does"),
        ("a.csv", b"a\n1\n", ["--compression", "zip"], "zip"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_and_nothing_is_stored(
    ingest: Ingest, file: File, name: str, content: bytes, options: list[str], complaint: str
) -> None:
    assert complaint in ingest(file(name, content), *options, code=1)
    assert not ingest.has_topic or ingest.records() == []


@pytest.mark.parametrize(
    ("array", "option", "complaint"),
    [
        (pa.array([True]), "--timestamp-column", "column 'c' is of type bool, which says no time"),
        (pa.array([[1]]), "--timestamp-column", "which says no time"),
        (pa.array([1, None]), "--timestamp-column", "column 'c' has 1 nulls in rows 1 to 2"),
        (pa.array([1]), "--headers-column", "column 'c' is of type string; a map"),
        (pa.array([1]), "--key-column x --value-column", "b.parquet: there is no column 'x'"),
    ],
)
def test_the_schema_of_a_parquet_file_tells_what_is_wrong_before_anything_is_stored(
    ingest: Ingest, tmp_path: Path, array: Any, option: str, complaint: str
) -> None:
    pq.write_table(pa.table({"c": array}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"c": ["1970-01-01"], "x": [1]}), tmp_path / "a.parquet")
    assert complaint in ingest(tmp_path / "a.parquet", tmp_path / "b.parquet", *option.split(), "c", code=1)
    assert not ingest.has_topic


@pytest.mark.parametrize(
    ("type", "complaint"),
    [
        (pa.map_(pa.string(), pa.int64()), "values of column 'h': Arrow type 'l' (int64) is not taken"),
        (pa.map_(pa.int64(), pa.binary()), "keys of column 'h': Arrow type 'l' (int64) is not taken"),
        (pa.map_(pa.string(), pa.list_(pa.int64())), "values of column 'h': Arrow type '+l' (list) is not taken"),
        (pa.list_(pa.struct({"value": pa.binary(), "key": pa.string()})), "structs of key and value in this order"),
        (pa.list_(pa.struct({"key": pa.string(), "value": pa.binary(), "z": pa.int8()})), "'h': headers are pairs"),
        (pa.large_list(pa.struct({"key": pa.string()})), "column 'h': headers are pairs"),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("option", [(), ("--check",)], ids=["", "check"])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_headers_of_another_type_are_one_line_before_anything_is_stored(
    ingest: Ingest, tmp_path: Path, type: Any, complaint: str, option: tuple[str, ...], kind: str
) -> None:
    good = pa.table({"v": ["x"], "h": pa.array([[("k", b"1")]], pa.map_(pa.string(), pa.binary()))})
    bad = pa.table({"v": ["y"], "h": pa.array([[]], type)})
    for name, table in (("a", good), ("b", bad)):
        if kind == "parquet":
            pq.write_table(table, tmp_path / f"{name}.{kind}")
        else:
            with pa.OSFile(str(tmp_path / f"{name}.{kind}"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
                out.write(table)
    paths = [tmp_path / f"a.{kind}", tmp_path / f"b.{kind}"]
    told = ingest(*paths, "--value-column", "v", "--headers-column", "h", *option, code=1)
    assert f"b.{kind}: " in told
    assert complaint in told
    assert told.count("\n") == 1
    assert not ingest.has_topic


def test_what_was_stored_before_a_bad_row_is_said_and_check_finds_it_before(ingest: Ingest, file: File) -> None:
    files = file("a.csv", b"a\n1\n2\n"), file("b.csv", b"a\n3\n4,5\n")
    assert "b.csv, line 3" in ingest(*files, "--check", code=1)
    assert not ingest.has_topic
    assert ingest(*files, code=1).endswith("; 2 records before it were stored: t-0 offsets 0 to 1\n")
    assert len(ingest.records()) == 2
    assert ingest(file("c.csv", b"a,b\n1\n"), code=1).count("were stored") == 0


@pytest.mark.parametrize(
    "option", [["--batch-bytes", 0], ["--batch-bytes", -1], ["--threads", 0], ["--threads", -3], ["--threads", 257],
               ["--partitions", 0]],
    ids=str,
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused_before_anything_is_made(
    ingest: Ingest, file: File, option: list[Any]
) -> None:
    assert f"argument {option[0]}: it is {option[1]}; " in ingest(file("a.csv", b"a\n1\n"), *option, code=2)
    assert not ingest.root.exists()


def test_a_record_that_is_too_large_is_named_with_its_rows(ingest: Ingest, file: File) -> None:
    path = file("a.csv", b"a\n1\n" + b"x" * 5000 + b"\n")
    told = ingest(path, "-c", "message.max.bytes=1000", code=1)
    assert "a.csv, lines from 2 on: " in told
    assert told.endswith("; 1 record before it was stored: t-0 offsets 0 to 0\n")


def test_a_file_that_is_not_there_and_a_store_in_use_are_one_line(ingest: Ingest, file: File) -> None:
    assert "No such file" in ingest("nothing.csv", code=1)
    with kstore.Store.open(ingest.root, background=False):
        assert "locked" in ingest(file("a.csv", b"a\n1\n"), code=1)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "arrow"])
def test_standard_input_is_a_file_too(ingest: Ingest, tmp_path: Path, kind: str) -> None:
    write_arrow(tmp_path / "x", pa.table({"a": [1]}), stream=True)
    content = {"csv": gzip.compress(b"a\n1\n"), "jsonl": b'{"a":1}', "arrow": (tmp_path / "x").read_bytes()}[kind]
    ours, theirs = os.pipe()
    os.write(theirs, content)
    os.close(theirs)
    before = os.dup(0)
    os.dup2(ours, 0)
    try:
        assert ingest("-", "--format", kind) == "t-0: offsets 0 to 0\n"
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(ours)
    assert ingest.values == [b'{"a":1}']


# As a process


def start(*arguments: object, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "kstore", "ingest", *map(str, arguments)], **streams)


def test_an_interrupt_ends_with_130_and_says_what_is_stored(ingest: Ingest) -> None:
    process = start("-", "--to", ingest.root, "--topic", "t", "--format", "jsonl", stdin=-1, stderr=-1)
    assert process.stdin is not None
    lines = b'{"a":"%s"}\n' % (b"x" * 1000) * 1000
    for _ in range(10):
        process.stdin.write(lines)
    process.stdin.flush()
    log = ingest.root / "t-0" / "00000000000000000000.log"
    until = time.monotonic() + 240
    while not (log.exists() and log.stat().st_size > 8_000_000):
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.stdin.close()
    assert process.stderr is not None
    told = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 130
    count = len(ingest.records())
    assert told == f"kstore ingest: interrupted; {count} records before it were stored: t-0 offsets 0 to {count - 1}\n"
    with kstore.Store.open(ingest.root) as store:
        assert store.log("t", 0).recovery.clean
