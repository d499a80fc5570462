"""The manifest, the rounds and the catalogs of a backup: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import BackupError
from kstore.objects import backup_manifest, backup_rounds, object_keys
from kstore.objects.backup_contents import (
    BackupState,
    Chunk,
    Dropped,
    EpochStart,
    PartitionState,
    SealedSegment,
    StoredFile,
    TopicState,
)
from kstore.objects.backup_manifest import BackupManifest, CatalogPlace, Intent, Span
from kstore.objects.backup_rounds import Change, Round

ID = "AAAAAAAAAAAAAAAAAAAAAg"

MANIFEST = BackupManifest(
    backup="0" * 32,
    generation=3,
    writer="f" * 32,
    revision=17,
    number=9,
    time_ms=1_000,
    window_ms=604_800_000,
    catalogs=(CatalogPlace(2, 10, 100, 1, (Span(1, 2),)), CatalogPlace(5, 20, 100, 2, (Span(3, 3), Span(5, 5)))),
    rounds=(Span(6, 6), Span(8, 9)),
    intents=(Intent("orders-0/00000000000000000000.log", 10, 7),),
)

LOG = StoredFile(".log", 100, 5)
SEGMENT = SealedSegment(0, 10, 77, 1_000_000_000, (LOG, StoredFile(".index", 0, 0)))
CHANGE = Change(
    "orders",
    0,
    topic_id=ID,
    end_offset=14,
    high_watermark=12,
    epochs=(EpochStart(0, 0), EpochStart(2, 5)),
    sealed=(SEGMENT,),
    chunks=(Chunk(10, 0, 50, 3, 12, 0, 0), Chunk(10, 50, 50, 4, 13, 0, 50), Chunk(10, 100, 7, 5, 14, 0, 3, "4-2")),
    snapshot=(10, StoredFile(".snapshot", 6, 9)),
    gaps=((3, 5), (9, 10)),
)
ROUND = Round(
    1,
    1_000,
    1,
    True,
    (CHANGE,),
    {"orders": TopicState(ID, 1, {"retention.ms": "-1"}), "gone": None},
    Dropped(1_000, ("orders-0/00000000000000000000.log.1-3",), (Span(4, 6),)),
    loads='{"version":1}',
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert backup_manifest.decode(MANIFEST.encode(), "m") == MANIFEST


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("version", 2, "has version 2; this release of kstore knows version 1"),
        ("backup", "0" * 31, "32 hexadecimal digits"),
        ("generation", 0, "whole number from 1"),
        ("generation", True, "whole number from 1"),
        ("number", 10, "number is 10, and the last of its rounds is 9"),
        ("time_ms", 19, "before its newest catalog's 20"),
        ("rounds", [[5, 9]], "above catalog 5 is needed"),
        ("rounds", [[8, 9], [6, 6]], "spans that rise above 9"),
        ("rounds", [[6, 9 + (1 << 25)]], "rounds"),
        ("catalogs", [[2, 10, 100, 1]], "a list of 5"),
        ("catalogs", [[2, 10, 100, 1, [[1, 2]]], [2, 20, 100, 1, []]], "above 2"),
        ("intents", [["../../etc/passwd", 1, 1]], "the name of a segment's file"),
        ("intents", [["orders-0/../x/00000000000000000000.log", 1, 1]], "the name of a segment's file"),
        ("more", 1, "is no field of this version"),
    ],
)
def test_a_manifest_with_a_field_that_cannot_be_is_refused_with_the_field(field: str, value: object, says: str) -> None:
    fields = json.loads(MANIFEST.encode())
    with pytest.raises(BackupError) as error:
        backup_manifest.decode(json.dumps(fields | {field: value}).encode(), "the manifest")
    assert says in str(error.value)
    assert "the manifest" in str(error.value)


@given(st.data())
def test_any_bytes_are_a_manifest_or_a_backup_error(data: st.DataObject) -> None:
    text = bytearray(MANIFEST.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = backup_manifest.decode(bytes(text), "m")
    except BackupError:
        return
    assert backup_manifest.decode(found.encode(), "m") == found


def test_a_round_gives_the_state_that_follows_and_a_catalog_keeps_it() -> None:
    data = backup_rounds.encode_round(ROUND)
    assert backup_rounds.header_bytes(data[: backup_rounds.PREFIX.size], "r") == len(data)
    read = backup_rounds.decode_round(data + b"tails", "r")
    assert read == ROUND
    state = backup_rounds.apply(BackupState(), read, "r", len(data))
    partition = state.partitions["orders", 0]
    assert [(chunk.round, chunk.at) for chunk in partition.tail] == [(1, len(data)), (1, len(data) + 50), (0, 3)]
    assert partition.objects() == [
        "orders-0/00000000000000000000.log",
        "orders-0/00000000000000000000.index",
        "orders-0/00000000000000000010.log.4-2",
        "orders-0/00000000000000000010.snapshot",
    ]
    assert state.topics.keys() == {"orders"}
    assert state.dropped[0].objects() == [*ROUND.dropped.keys, *map(object_keys.round_key, (4, 5, 6))]
    assert backup_rounds.decode_catalog(backup_rounds.encode_catalog(state), "c") == state


def test_a_tail_that_becomes_a_segment_leaves_the_chunks_that_follow_it() -> None:
    state = backup_rounds.apply(BackupState(), ROUND, "r", 0)
    sealed = SealedSegment(10, 14, 78, 1, (LOG,))
    change = replace(CHANGE, sealed=(sealed,), skip=2, keep=2, chunks=(), epochs=None, snapshot=None)
    after = backup_rounds.apply(state, Round(2, 1_001, 1, True, (change,)), "r", 0).partitions["orders", 0]
    assert after.segments == (SEGMENT, sealed)
    assert after.tail == ()
    assert after.epochs == CHANGE.epochs


def test_what_was_dropped_goes_out_of_the_state_once_it_is_deleted() -> None:
    state = backup_rounds.apply(BackupState(), ROUND, "r", 0)
    for until, left in ((999, 1), (1_000, 0)):
        after = backup_rounds.apply(state, Round(2, 5_000, 1, True, deleted_until_ms=until), "r", 0)
        assert len(after.dropped) == left


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"keep": 1}, "0 to 1 of them cannot be kept"),
        ({"chunks": (Chunk(10, 1, 50, 3, 12, 0, 0),)}, "a chunk of 10 at 1 comes behind offset 10"),
        ({"chunks": (Chunk(9, 0, 50, 3, 12, 0, 0),)}, "a chunk of 9 at 0 comes behind offset 10"),
        ({"chunks": (Chunk(10, 0, 50, 3, 10, 0, 0),)}, "ends at 10, not above 10"),
        ({"end_offset": 13}, "its end is 13, below the 14"),
        ({"high_watermark": 15}, "not both up to its end 14"),
        ({"epochs": (EpochStart(2, 0), EpochStart(2, 5))}, "leader epoch 2 from 5 on follows 2 from 0 on"),
        ({"sealed": (SEGMENT, SealedSegment(9, 10, 1, 1, (LOG,)))}, "segment 9 ends at 10, behind one that ends at 10"),
        ({"sealed": (SealedSegment(0, 10, 1, 1, (LOG, LOG)),)}, "each once and a .log are needed"),
        ({"sealed": (SealedSegment(0, 10, 1, 1, ()),)}, "each once and a .log are needed"),
    ],
)
def test_a_round_that_leaves_a_gap_or_an_overlap_is_refused(change: dict[str, object], says: str) -> None:
    bad = replace(ROUND, changes=(replace(CHANGE, **change),))  # type: ignore[arg-type]
    with pytest.raises(BackupError) as error:
        backup_rounds.apply(
            BackupState(), backup_rounds.decode_round(backup_rounds.encode_round(bad), "r"), "the round", 0
        )
    assert says in str(error.value)


@pytest.mark.parametrize("topic", ["../../etc", "..", "", "a/b", "a" * 250, "a\0b", "a b"])
def test_a_topic_that_leads_elsewhere_is_refused(topic: str) -> None:
    for bad in (replace(ROUND, changes=(replace(CHANGE, topic=topic),)), replace(ROUND, topics={topic: None})):
        with pytest.raises(BackupError, match="malformed"):
            backup_rounds.decode_round(backup_rounds.encode_round(bad), "r")
    state = BackupState(partitions={("orders", 0): PartitionState(topic, 0)})
    with pytest.raises(BackupError, match="malformed"):
        backup_rounds.decode_catalog(backup_rounds.encode_catalog(state), "c")


@pytest.mark.parametrize(
    "file",
    [
        StoredFile("/../x", 1, 1),
        StoredFile(".log", 1, 1, "../x"),
        StoredFile(".log", -1, 1),
        StoredFile(".log", 1, 1, "0-1"),
    ],
)
def test_a_file_of_another_kind_or_suffix_is_refused(file: StoredFile) -> None:
    bad = replace(ROUND, changes=(replace(CHANGE, sealed=(SEGMENT._replace(files=(file,)),)),))
    with pytest.raises(BackupError, match="malformed"):
        backup_rounds.decode_round(backup_rounds.encode_round(bad), "r")


@given(st.data())
def test_any_bytes_are_a_round_or_a_backup_error(data: st.DataObject) -> None:
    text = bytearray(backup_rounds.encode_round(ROUND)[backup_rounds.PREFIX.size :])
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    header = backup_rounds.PREFIX.pack(backup_rounds.ROUND_MAGIC, len(text), backup_rounds.crc32c(text))
    try:
        found = backup_rounds.decode_round(header + bytes(text), "r")
        backup_rounds.apply(BackupState(), found, "r", 0)
    except BackupError:
        return
    assert backup_rounds.decode_round(backup_rounds.encode_round(found), "r") == found


def test_a_header_whose_length_or_checksum_is_wrong_is_refused() -> None:
    data = backup_rounds.encode_round(ROUND)
    for bad, says in (
        (data[:15], "has 15 bytes"),
        (b"X" + data[1:], "begins with"),
        (data[:-1], "ends after"),
        (data[:-1] + b"X", "header of CRC"),
    ):
        with pytest.raises(BackupError, match=says):
            backup_rounds.decode_round(bad, "r")


@pytest.mark.parametrize(
    "key",
    [
        "orders-0/00000000000000000000.log",
        "orders-0/00000000000000000000.timeindex.12-0",
        "a-b-3/09223372036854775807.snapshot",
        "kstore-backup-00000000000000000001.round",
        "kstore-backup-00000000000000000001.catalog",
        "orders-0/partition.metadata",
        "orders-0/leader-epoch-checkpoint",
    ],
)
def test_names_of_objects_are_read(key: str) -> None:
    assert object_keys.check(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "kstore-backup.json",
        "orders-0/0.log",
        "orders-00/00000000000000000000.log",
        "../00000000000000000000.log",
        "..-0/00000000000000000000.log",
        "orders-0/00000000000000000000.log.",
        "orders-0/00000000000000000000.log.0-1",
        "orders-0/00000000000000000000.log.1-1/x",
        "orders-0/99999999999999999999.log",
        "orders-0/00000000000000000000.log.deleted",
        "orders-0.x-delete/00000000000000000000.log",
        "kstore-backup-99999999999999999999.round",
        "orders-0/other",
        "",
    ],
)
def test_names_of_other_files_are_refused(key: str) -> None:
    with pytest.raises(BackupError, match="no name of a backup's object"):
        object_keys.check(key)
