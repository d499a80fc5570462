"""What real brokers wrote: every record as Kafka's own classes read it, every plain batch written again to the byte."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kstore._core import RecordBatch, RecordIterator, decode_batches
from kstore.codec._batches import check_batch
from kstore.codec._pack import encode_batch
from kstore.errors import CorruptRecordError
from kstore.files._log_scan import scan
from kstore.files._log_search import last_offset
from tests.golden import goldensets

SETS = [name for name in goldensets.SETS if name != "damaged-files"]
# Sets whose every log ends with a whole batch, and whose index files come from one run of the broker.
SOUND = ("canary-16k", "canary-vectors", "codecs", "idempotent", "log-append-time", "transactions")


def segments(root: Path, name: str) -> Iterator[tuple[str, str, Path]]:
    seen = dict.fromkeys((line["dir"], line["segment"]) for line in goldensets.read_lines(name))
    for directory, segment in seen:
        yield directory, segment, root / directory / segment


def header_of(one: RecordBatch) -> tuple[Any, ...]:
    return (
        one.base_offset,
        one.timestamp_type,
        one.producer_id,
        one.producer_epoch,
        one.is_transactional,
        one.is_control,
        one.compression,
        one.magic,
        one.partition_leader_epoch,
    )


def expected_header(line: dict[str, Any]) -> tuple[Any, ...]:
    names = ("batchBaseOffset", "timestampType", "producerId", "producerEpoch", "isTransactional", "isControl")
    return tuple(line[name] for name in (*names, "compression", "magic", "partitionLeaderEpoch"))


def read_as_kafka_lists(data: bytes) -> Iterator[tuple[Any, ...]]:
    try:
        for one in decode_batches(data, check_crc=False):
            records = list(one)
            for record in records:
                sequence = one.base_sequence
                if sequence >= 0:
                    sequence = sequence + record.offset - one.base_offset & 0x7FFFFFFF
                yield (*header_of(one), sequence, *record)
            if not records:
                yield "empty", one.base_offset, one.last_offset, one.base_sequence, one.max_timestamp
    except CorruptRecordError:
        yield ("error",)


def lines_as_we_read(name: str, directory: str, segment: str) -> Iterator[tuple[Any, ...]]:
    records = goldensets.expected_records(name, directory, segment)
    for line in goldensets.read_lines(name):
        if (line["dir"], line["segment"]) != (directory, segment):
            continue
        if "error" in line:
            yield ("error",)
        elif "emptyBatch" in line:
            yield "empty", line["batchBaseOffset"], line["lastOffset"], line["baseSequence"], line["maxTimestamp"]
        else:
            r = next(records)
            yield (*expected_header(line), line["sequence"], r.offset, r.timestamp, r.key, r.value, r.headers)


@pytest.mark.parametrize("name", SETS)
def test_every_record_is_what_kafkas_own_classes_read(name: str, golden: Callable[[str], Path]) -> None:
    root = golden(name)
    for directory, segment, path in segments(root, name):
        found = list(read_as_kafka_lists(path.read_bytes()))
        assert found == list(lines_as_we_read(name, directory, segment)), f"{directory}/{segment}"


@pytest.mark.parametrize("name", SETS)
def test_every_fresh_plain_batch_is_written_again_byte_for_byte(name: str, golden: Callable[[str], Path]) -> None:
    """Batches that a producer or a broker built anew; the cleaner's have gaps, append time hides what deltas were."""
    root = golden(name)
    written = 0
    for _, _, path in segments(root, name):
        data = path.read_bytes()
        try:
            batches = list(decode_batches(data, check_crc=False))
        except CorruptRecordError:
            continue
        for one in batches:
            if one.magic != 2 or one.count == 0 or one.delete_horizon_ms is not None or not one.is_valid:
                continue
            if one.timestamp_type != "CreateTime" or one.count != one.last_offset - one.base_offset + 1:
                continue
            again = encode_batch(
                one,
                base_offset=one.base_offset,
                compression=one.compression,
                partition_leader_epoch=one.partition_leader_epoch,
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                base_sequence=one.base_sequence,
                transactional=one.is_transactional,
                control=one.is_control,
            )
            written += 1
            if one.compression == "none":
                assert again == bytes(one), f"{path.name} at {one.position}"
            else:
                [back] = decode_batches(again)
                assert (list(back), header_of(back)) == (list(one), header_of(one))
                assert again[21:57] == bytes(one)[21:57]
    assert (written > 0) is (name != "log-append-time")


@pytest.mark.parametrize("name", SOUND)
def test_scans_find_sound_logs_sound_and_build_the_brokers_own_indexes(
    name: str, golden: Callable[[str], Path]
) -> None:
    """SEMANTICS 8.16, and 8.18 for the closing time entry."""
    root = golden(name)
    compared = 0
    for _, _, path in segments(root, name):
        fd = os.open(path, os.O_RDONLY)
        try:
            size, base = path.stat().st_size, int(path.stem)
            found = scan(fd, 0, size, base)
            assert (found.stop, found.end_position) == ("end", size)
            assert last_offset(fd, 0, size) == ((found.next_offset - 1, size) if found.batches else None)
            if _index_interval(name, path) != 4096:
                continue
            times = found.time_entries
            closing = struct.pack(">qi", found.max_timestamp, found.max_timestamp_offset - base)
            if found.max_timestamp > (struct.unpack_from(">q", times, len(times) - 12)[0] if times else -1):
                times += closing
            if path.with_suffix(".index").stat().st_size < 1 << 20:
                assert found.index_entries == path.with_suffix(".index").read_bytes()
                assert times == path.with_suffix(".timeindex").read_bytes()
                compared += 1
        finally:
            os.close(fd)
    assert compared or name == "canary-vectors"


def _index_interval(name: str, path: Path) -> int:
    """Some topics of these sets were made with another interval; their entries are closer than 4096 bytes."""
    data = path.with_suffix(".index").read_bytes()
    positions = [position for _, position in struct.iter_unpack(">ii", data) if position]
    gaps = [b - a for a, b in pairwise([0, *positions])]
    return 4096 if all(gap > 4096 for gap in gaps) else 0


def test_a_leaders_check_finds_nothing_wrong_with_what_a_leader_stored(golden: Callable[[str], Path]) -> None:
    root = golden("codecs")
    for _, _, path in segments(root, "codecs"):
        for one in decode_batches(path.read_bytes()):
            found = check_batch(bytes(one), now_ms=one.max_timestamp)
            assert (found.count, found.max_timestamp, found.consecutive) == (one.count, one.max_timestamp, True)
            assert found.errors == []


def test_records_come_the_same_through_chunks_of_any_number_of_batches(golden: Callable[[str], Path]) -> None:
    root = golden("legacy")
    for directory, segment, path in segments(root, "legacy"):
        data = path.read_bytes()
        starts = [one.position for one in decode_batches(data)] + [len(data)]
        expected = [tuple(r)[:5] for r in (r for one in decode_batches(data) for r in one)]
        for step in (1, 2, len(starts)):
            cuts = [*starts[::step], len(data)]
            pieces = [(data[a:b], segment, a) for a, b in pairwise(cuts) if a < b]
            assert [tuple(r) for r in RecordIterator(pieces)] == expected, directory
