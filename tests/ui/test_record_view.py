"""Records as pages show them: bounded whatever they hold, and read in bounded pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.ui import record_view
from kstore.ui.record_view import find_records, preview, record_at, records_from, whole


@pytest.mark.parametrize(
    ("data", "text", "kind", "is_cut"),
    [
        (None, "null", "null", False),
        (b"", "", "text", False),
        (b"apples", "apples", "text", False),
        ("äpfel".encode(), "äpfel", "text", False),
        (b"\xff\x00", "ff 00", "hex", False),
        (b"a\x00", "61 00", "hex", False),
        (b"x" * 200, "x" * 200, "text", False),
        (b"x" * 201, "x" * 200, "text", True),
        ("€".encode() * 500, "€" * 200, "text", True),
        (b"\xff" * 66, "ff " * 65 + "ff", "hex", False),
        (b"\xff" * 67, "ff " * 65 + "ff", "hex", True),
    ],
)
def test_a_preview_is_text_or_digits_and_short(data: bytes | None, text: str, kind: str, is_cut: bool) -> None:
    found = preview(data)
    assert (found.text, found.kind, found.is_cut) == (text, kind, is_cut)
    assert found.size_bytes == len(data or b"")


def test_a_value_is_cut_between_characters() -> None:
    text = "€" * 30_000
    found = whole(text.encode())
    assert found is not None
    assert found.text == text[:20_000]
    assert found.is_text_cut


def test_json_is_indented_and_what_is_none_is_not() -> None:
    indented = whole(b'{"a":[1,{"b":"\xc3\xa4"}]}')
    assert indented is not None
    assert indented.json == json.dumps({"a": [1, {"b": "ä"}]}, indent=2, ensure_ascii=False)
    for data in (b"12", b'"text"', b"{", b"[1,]", b"[" * 100_000, b"[1" + b"0" * 10_000 + b"]", b"\xff{}"):
        found = whole(data)
        assert found is not None
        assert found.json is None, data[:20]


def test_json_that_grows_when_it_is_indented_is_cut() -> None:
    found = whole(b"[" * 400 + b",".join([b"1"] * 20_000) + b"]" * 400)
    assert found is not None
    assert found.json is not None
    assert len(found.json) < 21_000


@given(st.binary(max_size=3000) | st.text(max_size=1000).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_value_has_a_view_whose_bytes_are_the_value(data: bytes) -> None:
    found = whole(data)
    assert found is not None
    assert bytes.fromhex("".join(digits for _, digits, _ in found.hex)) == data[:1024]
    assert found.is_hex_cut == (len(data) > 1024)
    assert len(preview(data).text) <= 200


def test_a_record_of_ten_megabytes_is_cut_in_lists_and_on_its_page(partition: Path) -> None:
    with kstore.Log.open(partition, max_message_bytes=20 << 20) as log:
        log.append(b'{"x": "' + b"y" * (10 << 20) + b'"}', key=b"\xff" * (1 << 19))
        log.append(b"small")
        found = records_from(log, 0)
        assert [record.offset for record in found.records] == [0, 1]
        assert len(found.records[0].value.text) == 200
        assert found.records[0].value.size_bytes == (10 << 20) + 9
        record = record_at(log, 0)
        assert record is not None
        shown = whole(record[0].value)
        assert shown is not None
        assert shown.json is None
        assert len(shown.text or "") == 20_000
        assert len(shown.hex) == 64


def test_a_page_of_records_ends_after_so_many_bytes(partition: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_view, "READ_BYTES", 3000)
    monkeypatch.setattr(record_view, "_FETCH_BYTES", 1000)
    with kstore.Log.open(partition) as log:
        for _ in range(10):
            log.append(b"x" * 900)
        found = records_from(log, 0)
        assert (len(found.records), found.next_offset, found.is_end) == (4, 4, False)
        rest = records_from(log, found.next_offset, rows=100)
        assert [record.offset for record in rest.records] == [4, 5, 6, 7]


def test_a_search_goes_on_where_it_ended(partition: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_view, "SEARCH_BYTES", 20_000)
    with kstore.Log.open(partition, segment_bytes=10_000) as log:
        for number in range(1000):
            log.append(b"x" * 60, key=b"key-%d" % (number % 250))
        log.roll()
        hits, offset, requests = [], 0, 0
        while True:
            found = find_records(log, offset, b"key-17", exact=True)
            hits += [record.offset for record in found.records]
            requests += 1
            if found.is_end:
                break
            assert found.next_offset > offset
            offset = found.next_offset
        assert hits == [17, 267, 517, 767]
        assert requests > 3


def test_a_search_looks_at_so_many_records_however_well_they_compress(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_view, "LOOKED_AT_BYTES", 100_000)
    with kstore.Log.open(partition, compression_type="zstd") as log:
        log.append_many([(b"k", None)] * 5000)
        log.append_many([(b"k", bytes(60_000))] * 3)
        ends, offset = [], 0
        while not (found := find_records(log, offset, b"other", exact=True)).is_end:
            assert not found.records
            assert found.next_offset > offset
            offset = found.next_offset
            ends.append(offset)
        assert ends == [991, 1982, 2973, 3964, 4955, 5002]


def test_a_search_ends_after_a_page_of_hits_and_misses_none(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append_many([(b"k", b"%d" % number) for number in range(120)])
        first = find_records(log, 0, b"k", exact=True, rows=50)
        second = find_records(log, first.next_offset, b"k", exact=True, rows=50)
        third = find_records(log, second.next_offset, b"k", exact=True, rows=50)
        assert [len(found.records) for found in (first, second, third)] == [50, 50, 20]
        assert [found.is_end for found in (first, second, third)] == [False, False, True]
        offsets = [record.offset for found in (first, second, third) for record in found.records]
        assert offsets == list(range(120))


def test_a_search_for_an_empty_part_finds_every_key_and_no_null(partition: Path) -> None:
    with kstore.Log.open(partition) as log:
        log.append_many([(None, b"1"), (b"", b"2"), (b"k", b"3")])
        assert [record.offset for record in find_records(log, 0, b"", exact=False).records] == [1, 2]
        assert [record.offset for record in find_records(log, 0, b"", exact=True).records] == [1]


def test_a_batch_that_decompresses_to_too_much_is_an_error_in_words(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_view, "UNPACKED_BYTES", 10_000)
    with kstore.Log.open(partition, compression_type="zstd") as log:
        log.append_many([b"small"])
        log.append_many([b"x" * 5000] * 10)
        found = records_from(log, 0)
        assert len(found.records) == 1
        assert found.error is not None
        assert found.error.startswith("CorruptRecordError")


def test_offsets_in_a_gap_have_no_record_and_a_page_goes_on_behind_it(partition: Path) -> None:
    with kstore.Log.open(partition, cleanup_policy="compact") as log:
        log.append_many([(b"k", b"1"), (b"k", b"2")])
        log.append_many([(b"k", b"3")])
        log.roll()
        log.append(b"4", key=b"l")
        log.compact()
        assert record_at(log, 0) is None
        assert [record.offset for record in records_from(log, 0).records] == [2, 3]
