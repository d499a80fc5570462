"""Bytes of one record: varints at every width, field sizes at their borders, and what a decoder must refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore._core import Record, decode_batches
from kstore.codec._pack import encode_batch
from kstore.errors import CorruptRecordError
from tests.support import reference
from tests.support.reference import Rec, batch, record, varint

INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1

# FORMAT 3.1.
TABLE = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (64, "80 01"),
    (-64, "7f"),
    (-65, "81 01"),
    (300, "d8 04"),
    (8191, "fe 7f"),
    (8192, "80 80 01"),
    (2147483647, "fe ff ff ff 0f"),
    (-2147483648, "ff ff ff ff 0f"),
    (INT64, "fe" + "ff" * 8 + "01"),
    (-INT64 - 1, "ff" * 9 + "01"),
]
# Both neighbours of each power of 128, in zigzag form: where a varint grows by a byte.
WIDTHS = sorted({sign * (1 << 7 * k - 1) + step for k in range(1, 10) for sign in (1, -1) for step in (-1, 0, 1)})


def section_of(data: bytes) -> bytes:
    return data[reference.HEADER_BYTES :]


def read(section: bytes, count: int = 1, **fields: int) -> list[Record]:
    [one] = decode_batches(batch(section, count, **fields))
    return list(one)


def body(*parts: bytes) -> bytes:
    """A record with its length; `parts` follow the attributes byte."""
    joined = b"\x00" + b"".join(parts)
    return varint(len(joined)) + joined


@pytest.mark.parametrize(("number", "form"), TABLE)
def test_the_oracle_writes_varints_as_the_format_document_lists_them(number: int, form: str) -> None:
    assert varint(number) == bytes.fromhex(form)


@pytest.mark.parametrize("delta", [*WIDTHS, *(n for n, _ in TABLE)])
def test_timestamp_deltas_of_every_width_are_read(delta: int) -> None:
    [one] = read(record(delta, 0, None, b"v"))
    assert one.timestamp == delta


@pytest.mark.parametrize("delta", [n for n in [*WIDTHS, INT32] if 0 <= n <= INT32])
def test_offset_deltas_of_every_width_are_read(delta: int) -> None:
    [one] = read(record(0, delta, None, b"v"), base_offset=1 << 40, last_offset_delta=delta)
    assert one.offset == (1 << 40) + delta


@pytest.mark.parametrize("delta", [n for n in [*WIDTHS, -INT32 - 1] if -INT32 - 1 <= n < 0])
def test_negative_offset_deltas_of_every_width_are_refused(delta: int) -> None:
    """Kafka's readers do not look (FORMAT 3.2); such a record is in no batch by its offset."""
    with pytest.raises(CorruptRecordError, match=f"offset {(1 << 40) + delta}, outside of its batch"):
        read(record(0, delta, None, b"v"), base_offset=1 << 40, last_offset_delta=INT32)


@pytest.mark.parametrize("delta", [n for n in [*WIDTHS, INT64 - 5] if n >= -1])
def test_timestamp_deltas_of_every_width_are_written_in_minimal_form(delta: int) -> None:
    first = 0 if delta >= 0 else 5
    records = [Rec(0, first, None, b"a"), Rec(1, first + delta, None, b"b")]
    ours = encode_batch([(r.key, r.value, r.timestamp, None) for r in records])
    assert ours == reference.encode(records)


def test_a_negative_delta_of_every_width_is_written_in_minimal_form() -> None:
    for delta in (n for n in WIDTHS if n < 0):
        records = [Rec(0, INT64, None, b"a"), Rec(1, INT64 + delta, None, b"b")]
        assert encode_batch([(None, r.value, r.timestamp, ()) for r in records]) == reference.encode(records)


def test_offset_deltas_are_written_at_their_widths() -> None:
    records = [Rec(i, 7, None, b"") for i in range(8194)]
    assert encode_batch([Record(*r) for r in records]) == reference.encode(records)


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 8193, 1 << 20, (1 << 20) + 1])
def test_keys_values_and_headers_of_every_length_width_survive(size: int) -> None:
    data = bytes(i & 0xFF for i in range(size))
    for one in (
        Rec(0, 5, data, None),
        Rec(0, 5, None, data),
        Rec(0, 5, None, None, ((b"h", data), (b"x" * min(size, 9000), None))),
    ):
        written = encode_batch([(one.key, one.value, 5, [(name.decode(), d) for name, d in one.headers])])
        assert written == reference.encode([one])
        [back] = read(section_of(written), base_timestamp=5)
        assert (back.key, back.value) == (one.key, one.value)
        assert [(name.encode(), d) for name, d in back.headers] == list(one.headers)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192])
def test_header_counts_of_every_width_survive(count: int) -> None:
    one = Rec(0, 5, None, b"v", tuple((b"%d" % i, None) for i in range(count)))
    written = encode_batch([(None, b"v", 5, [(name.decode(), None) for name, _ in one.headers])])
    assert written == reference.encode([one])
    [back] = read(section_of(written), base_timestamp=5)
    assert len(back.headers) == count


def test_null_and_empty_are_two_different_things() -> None:
    written = section_of(encode_batch([(None, None, 5, None), (b"", b"", 5, [("", b""), ("", None)])]))
    assert written[3:7] == b"\x00\x01\x01\x00"
    null, empty = read(written, 2, base_timestamp=5)
    assert (null.key, null.value, null.headers) == (None, None, ())
    assert (empty.key, empty.value, empty.headers) == (b"", b"", (("", b""), ("", None)))


@pytest.mark.parametrize("length", [-1, -2, -65, -(1 << 31)])
def test_any_negative_length_of_a_key_value_or_header_value_reads_as_null(length: int) -> None:
    """FORMAT 3.2, check 6."""
    null = varint(length)
    [one] = read(body(b"\x00", b"\x00", null, null, varint(1), varint(1), b"h", null))
    assert (one.key, one.value, one.headers) == (None, None, (("h", None),))


def test_non_minimal_varints_are_accepted() -> None:
    """FORMAT 3.1: the decoder accepts them from any writer."""
    [one] = read(body(b"\x82\x80\x00", b"\x80\x00", b"\x82\x80\x80\x80\x00", b"k", b"\x84\x00", b"vv", b"\x80\x80\x00"))
    assert one == Record(0, 1, b"k", b"vv", ())


def test_surplus_bits_of_the_last_byte_of_a_varint_are_dropped() -> None:
    """FORMAT 3.1: bits above the low 4 of a fifth byte, above the low 1 of a tenth."""
    section = body(b"\x82" + b"\x80" * 8 + b"\x7e", b"\x82\x80\x80\x80\x70", b"\x01", b"\x01", b"\x00")
    [one] = read(section, last_offset_delta=1)
    assert (one.timestamp, one.offset) == (1, 1)


def test_the_unused_attributes_byte_of_a_record_is_ignored() -> None:
    section = bytearray(record(0, 0, b"k", b"v"))
    section[1] = 0xFF
    [one] = read(bytes(section))
    assert one.value == b"v"


def test_timestamps_wrap_as_java_longs_do() -> None:
    [one] = read(record(1, 1, None, None), base_offset=INT64 - 1, base_timestamp=INT64, last_offset_delta=1)
    assert (one.offset, one.timestamp) == (INT64, -INT64 - 1)


def test_offsets_beyond_64_bits_are_refused() -> None:
    with pytest.raises(CorruptRecordError, match="last offset delta of 1 from offset 9223372036854775807"):
        read(record(1, 1, None, None), base_offset=INT64, last_offset_delta=1)


GOOD = record(0, 0, b"key", b"value", [(b"h", b"x")])
BAD_SECTIONS = {
    "nothing where a record is declared": (b"", 1),
    "fewer records than declared": (GOOD, 2),
    "more bytes than records": (GOOD + b"\x00", 1),
    "a whole record too many": (GOOD + GOOD, 1),
    "a length varint of six bytes": (b"\x80" * 5 + b"\x00", 1),
    "a length varint that the data cuts off": (b"\x80", 1),
    "a negative record length": (varint(-1) + GOOD, 1),
    "a record of no bytes": (varint(0), 1),
    "a record length beyond the data": (varint(len(GOOD)) + GOOD[1:], 1),
    "a record that claims a byte less than its fields have": (varint(len(GOOD) - 2) + GOOD[1:-1], 1),
    "a record that claims a byte more than its fields have": (varint(len(GOOD)) + GOOD[1:] + b"\x00", 1),
    "a timestamp varint of eleven bytes": (body(b"\x80" * 10 + b"\x00", b"\x00", b"\x01", b"\x01", b"\x00"), 1),
    "an offset varint of six bytes": (body(b"\x00", b"\x80" * 5 + b"\x00", b"\x01", b"\x01", b"\x00"), 1),
    "a key longer than its record": (body(b"\x00", b"\x00", varint(9), b"k", b"\x01", b"\x00"), 1),
    "a key of 2 GiB": (body(b"\x00", b"\x00", varint(INT32), b"k", b"\x01", b"\x00"), 1),
    "a value longer than its record": (body(b"\x00", b"\x00", b"\x01", varint(3), b"v", b"\x00"), 1),
    "a negative number of headers": (body(b"\x00", b"\x00", b"\x01", b"\x01", varint(-1)), 1),
    "more headers than bytes": (body(b"\x00", b"\x00", b"\x01", b"\x01", varint(3), b"\x00\x01"), 1),
    "two billion headers": (body(b"\x00", b"\x00", b"\x01", b"\x01", varint(INT32)), 1),
    "a null header key": (body(b"\x00", b"\x00", b"\x01", b"\x01", varint(1), b"\x01", b"\x01"), 1),
    "a header key longer than its record": (body(b"\x00", b"\x00", b"\x01", b"\x01", varint(1), varint(4), b"h"), 1),
    "a header value longer than its record": (
        body(b"\x00", b"\x00", b"\x01", b"\x01", varint(1), varint(1), b"h", varint(2), b"x"),
        1,
    ),
    "a record that reaches into the next": (varint(len(GOOD) + 5) + GOOD[1:] + GOOD, 2),
    "a negative number of records": (GOOD, -1),
    "two billion records": (GOOD, INT32),
}


@pytest.mark.parametrize("case", BAD_SECTIONS)
@pytest.mark.parametrize("codec", [reference.NONE, reference.LZ4])
def test_the_decoder_refuses(case: str, codec: int) -> None:
    """FORMAT 3.2; each with a CRC that holds, so that nothing else finds it. ByteUtilsTest.testInvalidVarint."""
    section, count = BAD_SECTIONS[case]
    data = batch(reference.compress(codec, section), count, attributes=codec)
    [one] = decode_batches(data, path="some.log", position=4000)
    with pytest.raises(CorruptRecordError) as caught:
        list(one)
    assert (caught.value.path, caught.value.position) == ("some.log", 4000)


def test_an_empty_batch_may_be_followed_by_anything() -> None:
    """FORMAT 3.2, check 2: with no records declared nothing more is looked at."""
    assert read(b"\xff\xff", 0) == []


times = st.integers(-1, INT64)
data = st.none() | st.binary(max_size=80) | st.binary(min_size=120, max_size=9000)
names = st.text(max_size=20).map(lambda s: s.encode("utf-8", "ignore"))
headers = st.lists(st.tuples(names, data), max_size=4).map(tuple)
records = st.lists(st.builds(Rec, st.just(0), times, data, data, headers), min_size=1, max_size=12)


@given(records, st.integers(0, INT64 - 20), st.integers(-1, INT32))
def test_whatever_is_written_is_what_the_oracle_writes_and_both_read_it_back(
    items: list[Rec], base_offset: int, epoch: int
) -> None:
    items = [r._replace(offset=base_offset + i) for i, r in enumerate(items)]
    written = encode_batch(
        [(r.key, r.value, r.timestamp, [(name.decode(), d) for name, d in r.headers]) for r in items],
        base_offset=base_offset,
        partition_leader_epoch=epoch,
    )
    wrapped = [r._replace(timestamp=r.timestamp) for r in items]
    assert written == reference.batch(
        b"".join(
            record(reference.wrap(r.timestamp - items[0].timestamp), i, r.key, r.value, r.headers)
            for i, r in enumerate(wrapped)
        ),
        len(items),
        base_offset=base_offset,
        leader_epoch=epoch,
        base_timestamp=items[0].timestamp,
        max_timestamp=max(r.timestamp for r in items),
    )
    assert reference.decode(written) == [(2, items)]
    [one] = decode_batches(written)
    assert [
        Rec(r.offset, r.timestamp, r.key, r.value, tuple((n.encode(), d) for n, d in r.headers)) for r in one
    ] == items
