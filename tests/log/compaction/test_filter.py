"""The second pass of a cleaning: each row of SEMANTICS 7.16 to 7.21a with its neighbours, beside a slow cleaner.

`clean` gives both the same batches and compares what comes out, byte for byte; the tests say what it is besides.

Faults that were planted by hand, one at a time; a test of this file, of `test_filter_histories.py` or of
`test_transactions.py` failed for each:

* Control batches: deduplicated by their keys; judged by the bits of the first pass; an empty one stays; an orphan
  marker goes without a horizon, or gets none; a marker's horizon is due a millisecond late.
* The end of the round: the last batch is dropped; the end is off by one.
* Horizons: not stamped; due a millisecond late, by bits and by records; a tombstone goes whatever its horizon; one
  beyond the end of the map goes when it is due; the horizon of a rebuilt batch is set anew.
* Transactions: active aborted ones are lost at a group's border; their data does not count as seen; a second one
  replaces the first; one begins behind its first offset; the heap gives another than the first; an abort marker
  leaves it active; the note of committed data is not cleared; no index entry for a marker that stays; data that only
  the first pass took for aborted is judged by its bits.
* Rebuilt batches: a record's offset is renumbered; the greatest timestamp is the old batch's; append time counts from
  the old base; attributes of records or names of headers are copied as they are; no room for names that grow; the
  greatest offset is the batch's.
* Emptied batches: they keep the codec or the base timestamp; an active producer's other batches are emptied; a
  producer's epoch is not compared.
* Which records: the one at the map's last offset, or at the first dirty one, is judged by the other rule; ordinals of
  discarded batches are not counted; records of the clean part without a key stay.
* Damage: no CRC check before a batch is rebuilt, or goes; bytes behind the last record, offsets that fall inside a
  batch and a batch below the one before it pass.
* Batches that are not read: one of a transaction, a producer's last one, or the one before the round's end is dropped.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pytest

from kstore.errors import CorruptRecordError
from kstore.files.txnindex import AbortedTxn
from kstore.log.compaction._cleaned_transactions import CleanedTransactions
from kstore.log.compaction._filter import BatchFilter
from kstore.log.compaction._newest_records import NewestRecords
from kstore.log.compaction.scanned_segments import ScannedPart
from tests.support.batches import CODECS, legacy, record, resealed, v2, wrapper
from tests.support.reference import APPEND_TIME, CONTROL, DELETE_HORIZON, TRANSACTIONAL, Rec
from tests.support.slowcleaner import Cleaner, Decoded, Transactions, decoded, first_pass, odd_record, split

NOW = 1_700_000_000_000
RETENTION = 1000
NEVER = 1 << 62


class Cleaned(NamedTuple):
    """What the filter made of a log, and the filter."""

    dropped: int  # batches that need not be read a second time
    output: list[bytes]
    filter: BatchFilter
    retained: list[AbortedTxn]
    changed: bool
    max_offset: int

    @property
    def batches(self) -> list[Decoded]:
        return [decoded(data) for data in self.output]

    @property
    def kept(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(r.offset, r.key, r.value) for b in self.batches for r in b.records]


def without_reading(
    clean_part: Sequence[bytes],
    scanned: Sequence[bytes],
    beyond: Sequence[bytes],
    newest: NewestRecords,
    judge: BatchFilter,
    aborted: Iterable[AbortedTxn],
    now: int,
    retention: int,
    first_uncleanable: int,
    last: Mapping[int, tuple[int, int]],
    keeps_old_tombstones: bool,
) -> tuple[bytes, int]:
    """The output when each batch is a piece that is not read if nothing of it stays; how many were not."""
    again, transactions = NewestRecords(newest.capacity, newest.first_dirty_offset), CleanedTransactions()
    transactions.add_aborted(aborted)
    start = end = sum(map(len, clean_part))
    part = ScannedPart(start, 0)
    for each in scanned:
        part.begin(again)
        if not again.add(each, transactions, path="x.log", position=end):
            break
        end += len(each)
        part.add(end, again)
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    made = BatchFilter(
        again, transactions, now_ms=now, delete_retention_ms=retention, first_uncleanable_offset=first_uncleanable
    )
    made.set_last_records(last)
    data, output, dropped = b"".join((*clean_part, *scanned, *beyond)), bytearray(), 0
    for at, end, is_scanned, piece in part.parts(len(data), again):
        if piece and made.drop(records=piece.records, batches=piece.batches, last_offset=piece.last_offset):
            dropped += 1
            continue
        chunk = made.clean(
            data[at:end],
            scanned=is_scanned or at >= start,
            path="x.log",
            position=at,
            keeps_old_tombstones=keeps_old_tombstones,
        )
        output += chunk.output
    for name in COUNTERS_UNREAD:
        assert getattr(made, name) == getattr(judge, name)
    return bytes(output), dropped


COUNTERS_UNREAD = (
    "batches_read",
    "batches_kept",
    "records_read",
    "records_kept",
    "keyless_dropped",
    "tombstones_removed",
)
COUNTERS = (*COUNTERS_UNREAD, "batches_rebuilt", "batches_emptied", "tombstones_kept")


def read_from_a_file(
    made: BatchFilter, parts: Sequence[tuple[bool, bytes]], keeps_old_tombstones: bool, rng: random.Random
) -> tuple[bytes, bool, int]:
    """What `clean_file` gives in all, in pieces and for outputs of any size."""
    output, changed, max_offset, begin = bytearray(), False, -1, 7
    with tempfile.TemporaryFile() as file:
        file.write(bytes(begin) + b"".join(data for _, data in parts))
        file.flush()
        position = begin
        for is_scanned, data in parts:
            end, size = position + len(data), rng.choice((80, 300, 1 << 16))
            while position < end:
                chunk = made.clean_file(
                    file.fileno(),
                    position,
                    end,
                    bytearray(size),
                    enough_bytes=rng.choice((1, 500, 1 << 20)),
                    scanned=is_scanned,
                    path="x.log",
                    keeps_old_tombstones=keeps_old_tombstones,
                )
                assert chunk.changed == (
                    bytes(chunk.output) != data[position - end : position - end + chunk.taken or None]
                )
                output += chunk.output
                changed |= chunk.changed
                max_offset = max(max_offset, chunk.max_offset)
                position += chunk.taken
                size *= 1 if chunk.taken else 2
    return bytes(output), changed, max_offset


def clean(
    *batches: bytes,
    clean_part: Sequence[bytes] = (),
    first_dirty: int | None = None,
    aborted: Iterable[AbortedTxn] = (),
    capacity: int = 1000,
    now: int = NOW,
    retention: int = RETENTION,
    first_uncleanable: int = NEVER,
    last: Mapping[int, tuple[int, int]] | None = None,
    keeps_old_tombstones: bool = True,
    chunk: int | None = None,
    beyond: int = 0,
) -> Cleaned:
    """Clean `clean_part` and then `batches`, which the first pass scans: all but the last `beyond` of them."""
    aborted = list(aborted)
    if first_dirty is None:
        first_dirty = decoded(batches[0]).base if batches else NEVER
    scanned = batches[: len(batches) - beyond]
    newest, transactions = NewestRecords(capacity, first_dirty), CleanedTransactions()
    transactions.add_aborted(aborted)
    data = b"".join(scanned)
    taken = newest.add(data, transactions, path="x.log", position=0)
    known = first_pass(scanned, first_dirty, aborted, capacity=capacity)
    assert newest.latest_offset == known.latest
    assert newest.is_full or taken == len(data)

    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    made = BatchFilter(
        newest,
        transactions,
        now_ms=now,
        delete_retention_ms=retention,
        first_uncleanable_offset=first_uncleanable,
    )
    judge = Cleaner(known, Transactions(aborted), now, retention, first_uncleanable, last or {}, keeps_old_tombstones)
    made.set_last_records(last or {})
    output, changed, max_offset, position = bytearray(), False, -1, 0
    for is_scanned, part in ((False, clean_part), (True, batches)):
        data = b"".join(part)
        at = 0
        while at < len(data):
            size = len(data) if chunk is None else chunk
            while True:
                answer = made.clean(
                    memoryview(data)[at : at + size],
                    scanned=is_scanned,
                    path="x.log",
                    position=position + at,
                    keeps_old_tombstones=keeps_old_tombstones,
                )
                if answer.taken:
                    break
                assert (bytes(answer.output), answer.changed, answer.max_offset) == (b"", False, -1)
                size *= 2
            assert answer.changed == (bytes(answer.output) != data[at : at + answer.taken])
            output += answer.output
            changed |= answer.changed
            max_offset = max(max_offset, answer.max_offset)
            at += answer.taken
        position += len(data)
    expected = [judge.clean(each) for each in (*clean_part, *batches)]
    assert split(bytes(output)) == [each for each in expected if each]
    assert max_offset == judge.max_offset
    retained = transactions.take_retained()
    assert retained == judge.transactions.retained
    assert made.keyless_dropped == judge.keyless
    assert made.tombstones_removed == judge.removed
    assert made.batches_read == len(clean_part) + len(batches)
    assert made.records_kept == sum(len(decoded(each).records) for each in split(bytes(output)))
    assert made.batches_kept + made.batches_rebuilt + made.batches_emptied == len(split(bytes(output)))
    unread, dropped = without_reading(
        clean_part,
        scanned,
        batches[len(scanned) :],
        newest,
        made,
        aborted,
        now,
        retention,
        first_uncleanable,
        last or {},
        keeps_old_tombstones,
    )
    assert unread == bytes(output)
    in_file = BatchFilter(
        newest,
        again := CleanedTransactions(),
        now_ms=now,
        delete_retention_ms=retention,
        first_uncleanable_offset=first_uncleanable,
    )
    again.add_aborted(aborted)
    in_file.set_last_records(last or {})
    rng = random.Random(len(output))
    parts = ((False, b"".join(clean_part)), (True, b"".join(batches)))
    assert read_from_a_file(in_file, parts, keeps_old_tombstones, rng) == (bytes(output), changed, max_offset)
    assert again.take_retained() == retained
    for name in COUNTERS:
        assert getattr(in_file, name) == getattr(made, name)
    return Cleaned(dropped, split(bytes(output)), made, retained, changed, max_offset)


def data(
    offset: int,
    *pairs: tuple[bytes | None, bytes | None],
    stamps: Sequence[int] | None = None,
    horizon: int | None = None,
    codec: str = "none",
    attributes: int = 0,
    **fields: int,
) -> bytes:
    """A data batch with these keys and values at offsets from `offset` on, a record a millisecond."""
    stamps = [NOW + i for i in range(len(pairs))] if stamps is None else stamps
    base = stamps[0] if horizon is None else horizon
    return v2(
        [record(i, stamps[i] - base, key, value) for i, (key, value) in enumerate(pairs)],
        base_offset=offset,
        base_timestamp=base,
        codec=codec,
        attributes=attributes | (DELETE_HORIZON if horizon is not None else 0),
        **{"max_timestamp": max(stamps), "leader_epoch": 5, **fields},
    )


def keyed(offset: int, keys: bytes, **more: int) -> bytes:
    """A batch with a record for each byte of `keys`, and its offset as the value."""
    return data(offset, *((keys[i : i + 1], b"%d" % (offset + i)) for i in range(len(keys))), **more)


def produced(offset: int, keys: bytes, producer_id: int = 7, **more: int) -> bytes:
    return keyed(offset, keys, producer_id=producer_id, producer_epoch=3, base_sequence=offset, **more)


def of_transaction(offset: int, keys: bytes, producer_id: int = 7, **more: int) -> bytes:
    return produced(offset, keys, producer_id, attributes=TRANSACTIONAL, **more)


def marker(
    offset: int,
    kind: int,
    producer_id: int = 7,
    *,
    horizon: int | None = None,
    epoch: int = 3,
    codec: str = "none",
    value: bytes | None = bytes(6),
) -> bytes:
    base = NOW if horizon is None else horizon
    return v2(
        [record(0, NOW - base, bytes((0, 0, 0, kind)), value)],
        base_offset=offset,
        leader_epoch=5,
        base_timestamp=base,
        max_timestamp=NOW,
        codec=codec,
        attributes=TRANSACTIONAL | CONTROL | (DELETE_HORIZON if horizon is not None else 0),
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def aborted(producer_id: int, first: int, last: int) -> AbortedTxn:
    return AbortedTxn(0, producer_id, first, last, last + 1)


ABORT, COMMIT, LEADER_CHANGE = 0, 1, 2


# ---- Which records stay (SEMANTICS 7.19)


def test_of_each_key_the_newest_record_stays_with_its_offset() -> None:
    """MemoryRecordsTest.testFilterTo."""
    done = clean(keyed(10, b"abc"), keyed(13, b"bb"), keyed(15, b"d"))
    assert [(offset, key) for offset, key, _ in done.kept] == [(10, b"a"), (12, b"c"), (14, b"b"), (15, b"d")]
    assert [(b.base, b.last) for b in done.batches] == [(10, 12), (13, 14), (15, 15)]


def test_whole_live_and_whole_dead_batches_are_copied_and_left_out() -> None:
    dead, live = keyed(0, b"abc"), [keyed(3, b"ab"), keyed(5, b"c")]
    done = clean(dead, *live)
    assert done.output == live
    assert (done.filter.batches_kept, done.filter.batches_rebuilt, done.changed) == (2, 0, True)
    assert done.dropped == 1
    assert not clean(*live).changed


def test_a_record_without_a_key_goes_and_an_empty_key_is_a_key() -> None:
    done = clean(data(0, (None, b"1"), (b"", b"2"), (None, None)), data(3, (b"", b"4")), data(4, (None, b"5")))
    assert done.kept == [(3, b"", b"4")]
    assert done.filter.keyless_dropped == 3


def test_keys_of_the_clean_part_are_looked_up() -> None:
    done = clean(
        keyed(20, b"bx"), clean_part=[keyed(0, b"abc"), keyed(3, b"ad"), data(5, (None, b"")), keyed(6, b"bb")]
    )
    # Of the clean part only what the dirty part supersedes goes: two records of a key were left there by a full map.
    assert [offset for offset, _, _ in done.kept] == [0, 2, 3, 4, 20, 21]
    assert done.filter.keyless_dropped == 1


def test_the_batch_that_holds_the_first_dirty_offset_is_judged_by_both() -> None:
    for first_dirty, kept in ((3, [0, 4, 5, 6]), (4, [0, 4, 5, 6]), (5, [0, 3, 4, 5, 6])):
        done = clean(keyed(3, b"aa"), keyed(5, b"bc"), first_dirty=first_dirty, clean_part=[keyed(0, b"xbc")])
        assert [offset for offset, _, _ in done.kept] == kept, first_dirty


def test_beyond_the_end_of_the_map_every_record_stays() -> None:
    # The map is full with two keys: the pass ends behind offset 1, and offset 2 has a place in the map no more.
    rest = [keyed(2, b"aca"), data(5, (None, b"v"), (b"a", b"v")), data(7, (b"b", b"v"))]
    done = clean(keyed(0, b"ab"), *rest, capacity=2, beyond=2)
    assert done.output == [keyed(0, b"ab"), *rest]
    done = clean(keyed(0, b"aa"), keyed(2, b"ba"), *rest[1:], capacity=2, beyond=2)
    assert [offset for offset, _, _ in done.kept] == [1, 2, 3, 5, 6, 7]
    # The pass may end inside a batch.
    done = clean(data(0, (b"a", b"1"), (None, b"2"), (b"b", b"3"), (None, b"4"), (b"c", b"5")), capacity=1)
    assert [offset for offset, _, _ in done.kept] == [0, 1, 2, 3, 4]
    done = clean(data(0, (b"a", b"1"), (None, b"2"), (b"b", b"3"), (None, b"4"), (b"c", b"5")), capacity=2)
    assert [offset for offset, _, _ in done.kept] == [0, 2, 3, 4]


# ---- Tombstones and horizons (SEMANTICS 7.19, 7.20, 7.22)


def test_a_kept_tombstone_stamps_its_whole_batch_with_the_horizon() -> None:
    """MemoryRecordsTest.testBaseTimestampToDeleteHorizonConversion."""
    done = clean(data(0, (b"a", b"1"), (b"b", None), (b"c", b"3")))
    (batch,) = done.batches
    assert (batch.horizon, batch.base_timestamp, batch.max_timestamp) == (NOW + RETENTION, NOW + RETENTION, NOW + 2)
    assert [r.timestamp for r in batch.records] == [NOW, NOW + 1, NOW + 2]
    assert (done.filter.tombstones_kept, done.filter.tombstones_removed) == (1, 0)


def test_a_superseded_tombstone_stamps_nothing() -> None:
    done = clean(data(0, (b"b", None), (b"c", b"3")), keyed(2, b"b"))
    assert [(b.horizon, b.base_timestamp) for b in done.batches] == [(None, NOW + 1), (None, NOW)]


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize(("horizon", "stays"), [(NOW - 1, False), (NOW, False), (NOW + 1, True)])
def test_a_tombstone_goes_when_its_horizon_has_come(horizon: int, stays: bool, codec: str) -> None:
    batch = data(0, (b"a", b"1"), (b"b", None), horizon=horizon, codec=codec)
    for done in (clean(batch), clean(keyed(2, b"x"), clean_part=[batch])):
        assert (done.output[0] == batch) is stays
        assert len(done.batches[0].records) == 1 + stays
        assert done.batches[0].horizon == horizon
        assert (done.filter.tombstones_kept, done.filter.tombstones_removed) == ((1, 0) if stays else (0, 1))


def test_a_tombstone_beyond_the_end_of_the_map_outlives_its_horizon() -> None:
    front = keyed(0, b"ab")
    done = clean(front, keyed(2, b"c"), data(3, (b"x", None)), capacity=2, beyond=1)
    assert [b.horizon for b in done.batches] == [None, None, NOW + RETENTION]
    due = data(3, (b"x", None), horizon=NOW - 5)
    assert clean(front, keyed(2, b"c"), due, capacity=2, beyond=1).output[-1] == due
    # Where the pass ended inside its batch, too.
    due = data(0, (b"a", b"1"), (b"b", None), horizon=NOW - 5)
    assert clean(due, capacity=1).output == [due]


def test_a_horizon_is_set_once() -> None:
    (once,) = clean(data(0, (b"a", None))).output
    done = clean(once, now=NOW + 5)
    assert done.output == [once]
    assert not done.changed


def test_without_an_end_of_the_retention_no_horizon_is_set() -> None:
    # The sum wraps in Kafka, and a horizon below 0 is none.
    batch = data(0, (b"a", None))
    for retention in ((1 << 63) - 1 - NOW + 1, (1 << 63) - 1):
        newest, transactions = NewestRecords(10, 0), CleanedTransactions()
        newest.add(batch, transactions, path="x", position=0)
        made = BatchFilter(
            newest, transactions, now_ms=NOW, delete_retention_ms=retention, first_uncleanable_offset=NEVER
        )
        answer = made.clean(batch, scanned=True, path="x", position=0, keeps_old_tombstones=True)
        assert bytes(answer.output) == batch
    (stamped,) = clean(batch, retention=(1 << 63) - 1 - NOW).batches
    assert stamped.horizon == (1 << 63) - 1


def test_a_horizon_below_zero_is_due_and_goes_with_the_rebuilt_batch() -> None:
    done = clean(data(0, (b"a", b"1"), (b"b", None), horizon=-7))
    (batch,) = done.batches
    assert (batch.horizon, batch.base_timestamp) == (None, NOW)


def test_old_tombstones_stay_as_the_segments_age_says() -> None:
    for magic in (0, 1):
        batch = legacy(magic, None, key=b"a", offset=3)
        done = clean(batch)
        assert [(b.magic, b.horizon) for b in done.batches] == [(2, NOW + RETENTION)]
        assert clean(batch, keeps_old_tombstones=False).output == []
        # Those of format 2 have their own horizon.
        assert clean(data(0, (b"a", None)), keeps_old_tombstones=False).kept == [(0, b"a", None)]


# ---- Which batches stay (SEMANTICS 7.17, 7.18)


def test_aborted_data_goes_at_once_and_its_marker_after_a_horizon() -> None:
    """MemoryRecordsTest.testFilterToBatchDiscard."""
    txn = aborted(7, 0, 3)
    log = [of_transaction(0, b"ab"), keyed(2, b"c"), marker(3, ABORT)]
    first = clean(*log, aborted=[txn])
    assert first.output == log[1:]
    assert first.retained == [txn]
    second = clean(*first.output, aborted=[txn])
    assert second.retained == []
    assert [b.horizon for b in second.batches] == [None, NOW + RETENTION]
    assert clean(*second.output, now=NOW + RETENTION - 1).output == second.output
    third = clean(*second.output, now=NOW + RETENTION)
    assert third.output == log[1:2]


def test_a_commit_marker_goes_when_its_data_is_gone_and_a_horizon_has_passed() -> None:
    log = [of_transaction(0, b"ab"), marker(2, COMMIT)]
    assert clean(*log).output == log
    orphan = clean(marker(2, COMMIT))
    assert [b.horizon for b in orphan.batches] == [NOW + RETENTION]
    assert clean(*log[:1], *orphan.output, now=NOW + RETENTION).output == [log[0], *orphan.output]
    assert clean(*orphan.output, now=NOW + RETENTION).output == []


def test_control_batches_of_other_types_stay() -> None:
    batch = marker(0, LEADER_CHANGE, -1, epoch=-1)
    assert clean(batch).output == [batch]
    due = marker(0, LEADER_CHANGE, horizon=NOW - 9)
    assert clean(due).output == [due]
    # A kept record without a value stamps its batch, whatever it is.
    (stamped,) = clean(marker(0, LEADER_CHANGE, value=None)).batches
    assert stamped.horizon == NOW + RETENTION


@pytest.mark.parametrize("codec", CODECS)
def test_control_batches_behind_a_codec_are_treated_alike(codec: str) -> None:
    log = [of_transaction(0, b"a"), marker(1, COMMIT, codec=codec), marker(2, COMMIT, codec=codec)]
    done = clean(*log)
    assert done.output[:2] == log[:2]
    assert done.batches[2].horizon == NOW + RETENTION


def test_a_control_batch_is_not_deduplicated_by_its_key() -> None:
    log = [of_transaction(0, b"a"), marker(1, COMMIT), of_transaction(2, b"b"), marker(3, COMMIT)]
    later = data(4, (bytes((0, 0, 0, COMMIT)), b"a record with the key of a marker"))
    assert clean(*log, later).output == [*log, later]
    assert clean(later, clean_part=log).output == [*log, later]


def test_the_last_data_of_an_active_producer_leaves_its_header() -> None:
    log = [produced(0, b"ab"), produced(2, b"ab"), keyed(4, b"abc")]
    for offset, emptied in ((0, []), (1, [0]), (2, []), (3, [2])):
        done = clean(*log, last={7: (offset, 3), 9: (1, 3)})
        assert [b.base for b in done.batches] == [*emptied, 4], offset
        for batch in done.batches[:-1]:
            assert (batch.records, len(batch.data)) == ((), 61)
            assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, batch.base)
            assert (batch.base_timestamp, batch.max_timestamp, batch.last) == (-1, NOW + 1, batch.base + 1)
            assert (batch.leader_epoch, batch.attributes) == (5, 0)
        assert done.filter.batches_emptied == len(emptied)
    # A batch without a producer id is no producer's.
    assert clean(produced(0, b"a", -1), keyed(1, b"a"), last={-1: (0, 3)}).output == [keyed(1, b"a")]


@pytest.mark.parametrize(("epoch", "stays"), [(2, False), (3, True), (4, False)])
def test_the_last_marker_of_a_producer_without_data_leaves_its_header(epoch: int, stays: bool) -> None:
    due = marker(0, COMMIT, horizon=NOW)
    done = clean(due, keyed(1, b"a"), last={7: (-1, epoch)})
    assert len(done.output) == 1 + stays
    if stays:
        assert (done.batches[0].attributes, done.batches[0].records) == (TRANSACTIONAL | CONTROL, ())
        # It is empty, and stays so; and goes when the producer has.
        assert clean(*done.output, last={7: (-1, epoch)}).output == done.output
        assert clean(*done.output).output == [keyed(1, b"a")]
    # Data is not a producer's last record by its epoch.
    assert clean(produced(0, b"a"), keyed(1, b"a"), last={7: (-1, epoch)}).output == [keyed(1, b"a")]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("end", "stays"), [(1, False), (2, True), (3, False)])
def test_the_batch_before_the_end_of_the_round_leaves_its_header(end: int, stays: bool, codec: str) -> None:
    dead = (
        keyed(0, b"ab", attributes=CODECS.index(codec))
        if codec == "none"
        else data(0, (b"a", b"1"), (b"b", b"2"), codec=codec)
    )
    done = clean(dead, keyed(2, b"ab"), first_uncleanable=end)
    assert [len(b.records) for b in done.batches] == ([0, 2] if stays else [2])
    assert all(b.attributes == 0 for b in done.batches)


def test_empty_batches_go_unless_they_are_still_needed() -> None:
    """MemoryRecordsTest.testEmptyBatchDeletion."""
    (emptied,) = clean(keyed(0, b"a"), clean_part=[], first_uncleanable=1, aborted=[]).output
    assert emptied == keyed(0, b"a")
    log = [produced(0, b"ab"), keyed(2, b"ab")]
    emptied, live = clean(*log, last={7: (1, 3)}).output
    again = clean(emptied, live, last={7: (1, 3)})
    assert again.output == [emptied, live]
    assert not again.changed
    assert clean(emptied, live).output == [live]
    assert clean(live, clean_part=[emptied]).output == [live]
    # Its fields that a producer could have written otherwise are set.
    other = resealed(emptied, base_timestamp=77, attributes=DELETE_HORIZON | 4)
    assert clean(other, live, last={7: (1, 3)}).output == [emptied, live]


def test_an_aborted_batch_of_an_active_producer_leaves_its_header() -> None:
    done = clean(of_transaction(0, b"ab"), marker(2, ABORT), aborted=[aborted(7, 0, 2)], last={7: (1, 3)})
    assert (done.batches[0].attributes, done.batches[0].records) == (TRANSACTIONAL, ())
    # As data seen, so that the marker stays.
    assert len(done.output) == 2
    again = clean(*done.output, aborted=[aborted(7, 0, 2)], last={7: (1, 3)})
    assert again.output == done.output


def test_data_that_only_the_first_pass_took_for_aborted_is_judged_by_its_keys() -> None:
    """As in Kafka, where the first pass meets no marker below the first dirty offset (SEMANTICS 7.15)."""
    ended = [of_transaction(0, b"x"), marker(1, ABORT)]
    log = [of_transaction(2, b"ab"), keyed(4, b"b"), marker(5, COMMIT), of_transaction(6, b"c"), keyed(7, b"d")]
    done = clean(*log, clean_part=ended, aborted=[aborted(7, 0, 1)])
    # What the map does not know supersedes nothing: of the keys a and b only the later b is in it.
    assert [offset for offset, _, _ in done.kept if offset not in (1, 5)] == [2, 4, 6, 7]
    older = [keyed(2, b"a"), of_transaction(3, b"ab"), data(5, (b"b", None), (b"z", b"")), of_transaction(7, b"b")]
    done = clean(*older, clean_part=ended, aborted=[aborted(7, 0, 1)])
    assert [offset for offset, _, _ in done.kept if offset != 1] == [2, 3, 5, 6, 7]


# ---- Rebuilt batches (SEMANTICS 7.20, 7.21)


@pytest.mark.parametrize("codec", CODECS)
def test_a_rebuilt_batch_keeps_everything_but_what_the_gone_records_decided(codec: str) -> None:
    """MemoryRecordsTest.testFilterToPreservesPartitionLeaderEpoch, and of its producer
    MemoryRecordsTest.testFilterToPreservesProducerInfo.
    """
    batch = data(
        4,
        (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"),
        stamps=[NOW + 9, NOW + 5, NOW + 20, NOW - 3],
        codec=codec, attributes=TRANSACTIONAL, producer_id=9, producer_epoch=2, base_sequence=77,
        last_offset_delta=6,
    )  # fmt: skip
    done = clean(batch, keyed(11, b"a"))
    (rebuilt, _) = done.batches
    assert (rebuilt.base, rebuilt.last, rebuilt.leader_epoch) == (4, 10, 5)
    assert (rebuilt.producer_id, rebuilt.producer_epoch, rebuilt.base_sequence) == (9, 2, 77)
    assert rebuilt.attributes == TRANSACTIONAL | CODECS.index(codec)
    assert (rebuilt.base_timestamp, rebuilt.max_timestamp) == (NOW + 5, NOW + 5)
    assert [(r.offset, r.timestamp) for r in rebuilt.records] == [(5, NOW + 5), (7, NOW - 3)]


def test_the_greatest_offset_is_the_last_kept_records_of_a_rebuilt_batch() -> None:
    assert clean(keyed(0, b"abc"), clean_part=[]).max_offset == 2
    assert clean(keyed(0, b"aba"), keyed(3, b"x"), keyed(4, b"x"), first_uncleanable=4).max_offset == 4
    assert clean(keyed(0, b"a"), keyed(1, b"aab")).max_offset == 3
    assert clean(keyed(0, b"xab"), data(3, (b"a", None), (b"b", b"1"), (b"a", b"1"))).max_offset == 5
    assert clean(data(0, (b"a", b""), (None, b""), last_offset_delta=8)).max_offset == 0


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_append_time_is_the_time_of_each_record(codec: str) -> None:
    batch = data(
        0,
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
        stamps=[5, 9, 7],
        max_timestamp=NOW,
        attributes=APPEND_TIME,
        codec=codec,
    )
    done = clean(batch, keyed(3, b"a"))
    rebuilt = done.batches[0]
    assert (rebuilt.base_timestamp, rebuilt.max_timestamp, rebuilt.attributes & APPEND_TIME) == (NOW, NOW, APPEND_TIME)
    stamped = clean(data(0, (b"a", None), (b"b", b""), stamps=[5, 9], max_timestamp=NOW, attributes=APPEND_TIME))
    assert stamped.batches[0].base_timestamp == NOW + RETENTION
    assert [r.timestamp for r in stamped.batches[0].records] == [NOW, NOW]


@pytest.mark.parametrize("more", [0, 1, 2, 9])
@pytest.mark.parametrize("attributes", [0, 1, 255])
def test_rebuilt_records_are_as_short_as_can_be(more: int, attributes: int) -> None:
    records = [
        Rec(0, 0, b"k%d" % i, value, ((b"name", None), ("\u00e9".encode(), b"x")) if i % 2 else ())
        for i, value in enumerate([b"v", b"", b"w" * 100, b"x"])
    ]
    batch = v2(
        [odd_record(i, r, i, more=more, attributes=attributes) for i, r in enumerate(records)], base_timestamp=NOW
    )
    # As long as all stay the batch does.
    assert clean(batch).output == [batch]
    for gone in (b"k0", b"k3"):  # the first, so that the base timestamp changes, or the last
        done = clean(batch, data(4, (gone, b"")))
        assert len(done.batches[0].records) == 3
    (stamped,) = clean(v2([odd_record(0, Rec(0, 0, b"k", None), 0, more=more, attributes=attributes)])).batches
    assert stamped.records[0].value is None


def test_names_of_headers_become_utf_8_however_much_they_grow() -> None:
    for name in (b"\xff" * 300, b"\xff" * 300_000, b"a\xc3", "\u20ac".encode(), b"\xf0\x9f\x98", b"x" * 40 + b"\x80"):
        batch = v2(
            [record(0, 0, b"a", b""), record(1, 0, b"b", b"", [(b"n", b"1"), (name, None)]), record(2, 0, b"c", b"")],
            base_timestamp=NOW,
        )
        assert clean(batch).output == [batch]
        done = clean(batch, data(3, (b"a", b"")))
        assert done.batches[0].records[0].headers[1][0] == name.decode(errors="replace").encode()


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_batch_grows_beyond_the_input_when_a_horizon_is_stamped(codec: str) -> None:
    pairs = [(b"%d" % i, None) for i in range(5000)]
    for stamps in ([NOW] * 5000, [0] * 5000, [1 << 62] * 5000):
        batch = data(0, *pairs, stamps=stamps, codec=codec)
        done = clean(batch, capacity=10000)
        (stamped,) = done.batches
        assert len(stamped.records) == 5000
        if codec == "none":
            assert len(stamped.data) > len(batch)


def test_timestamps_of_any_size_and_sign_survive() -> None:
    """Kafka gives a log up whose kept records have timestamps below -1: `negative-timestamps-cleaned`."""
    stamps = [0, -1, (1 << 63) - 1, -(1 << 63), 5, -(1 << 62), 1 << 62, NOW]
    for codec in ("none", "gzip"):
        batch = data(0, *((b"%d" % i, None if i == 4 else b"") for i in range(8)), stamps=stamps, codec=codec)
        for gone in range(8):
            done = clean(batch, data(8, (b"%d" % gone, b"x")))
            expected = [each for i, each in enumerate(stamps) if i != gone]
            assert [r.timestamp for r in done.batches[0].records] == expected


# ---- Formats 0 and 1 (SEMANTICS 7.21a)


def test_old_messages_become_batches_of_format_2() -> None:
    done = clean(legacy(0, b"1", key=b"a", offset=3), legacy(1, b"2", key=b"b", offset=4, timestamp=NOW - 5))
    first, second = done.batches
    for batch, offset, stamp in ((first, 3, -1), (second, 4, NOW - 5)):
        assert (batch.magic, batch.base, batch.last, batch.leader_epoch) == (2, offset, offset, -1)
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
        assert (batch.base_timestamp, batch.max_timestamp, batch.attributes) == (stamp, stamp, 0)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_a_wrapper_becomes_one_batch_from_its_first_kept_record_to_its_last(magic: int, codec: str) -> None:
    inner = [
        legacy(magic, b"%d" % i, key=b"%d" % i, offset=i if magic else 10 + i, timestamp=NOW + i) for i in range(5)
    ]
    batch = wrapper(magic, inner, codec=codec, offset=14, timestamp=NOW + 4)
    done = clean(batch, data(15, (b"0", b""), (b"2", b""), (b"4", b"")))
    rebuilt = done.batches[0]
    assert (rebuilt.base, rebuilt.last) == (11, 13)
    assert [r.offset for r in rebuilt.records] == [11, 13]
    assert [r.timestamp for r in rebuilt.records] == ([NOW + 1, NOW + 3] if magic else [-1, -1])
    assert rebuilt.attributes == CODECS.index(codec)
    assert (rebuilt.base_timestamp, rebuilt.max_timestamp) == ((NOW + 1, NOW + 3) if magic else (-1, -1))


def test_append_time_of_a_wrapper_stays() -> None:
    batch = wrapper(
        1, [legacy(1, b"v", key=b"%d" % i, offset=i, timestamp=i) for i in range(3)],
        offset=2, timestamp=NOW, attributes=APPEND_TIME,
    )  # fmt: skip
    done = clean(batch, data(3, (b"0", b"")))
    rebuilt = done.batches[0]
    assert (rebuilt.attributes & APPEND_TIME, rebuilt.base_timestamp, rebuilt.max_timestamp) == (APPEND_TIME, NOW, NOW)


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_batch_that_ends_the_round_leaves_a_header(magic: int) -> None:
    """Kafka gives the log up there: `old-batch-at-the-end`."""
    log = [legacy(magic, b"1", key=b"a", offset=3), keyed(4, b"a")]
    for end, stays in ((3, False), (4, True), (5, False)):
        done = clean(*log, first_uncleanable=end)
        assert len(done.output) == 1 + stays
        if stays:
            assert (done.batches[0].base, done.batches[0].last, done.batches[0].records) == (3, 3, ())
            assert done.batches[0].max_timestamp == (NOW if magic else -1)
    inner = [legacy(magic, b"", key=b"a", offset=i if magic else 5 + i) for i in range(3)]
    done = clean(wrapper(magic, inner, offset=7), keyed(8, b"a"), first_uncleanable=8)
    assert [(b.base, b.last, len(b.records), b.attributes) for b in done.batches] == [(5, 7, 0, 0), (8, 8, 1, 0)]


# ---- Damage


def test_a_damaged_batch_that_would_not_stay_as_it_is_is_an_error_and_nothing_else() -> None:
    """`cleaner-checks-batches`: Kafka gives damage a matching CRC (SEMANTICS 7.23)."""
    batch = keyed(0, b"abc")
    for flipped in range(61, len(batch)):
        damaged = bytearray(batch)
        damaged[flipped] ^= 0x04
        with pytest.raises(CorruptRecordError) as caught:
            clean_alone(bytes(damaged), superseding=[b"a", b"b"])
        assert (caught.value.path, caught.value.position) == ("x.log", 100)
        assert "kstore repair" in caught.value.reason


def test_a_damaged_key_or_producer_id_costs_no_record() -> None:
    batch = bytearray(keyed(0, b"c"))
    batch[batch.rindex(b"c")] = ord("a")
    with pytest.raises(CorruptRecordError, match="CRC"):
        clean_alone(bytes(batch), superseding=[b"a"])
    other = bytearray(of_transaction(0, b"c", 6))
    other[50] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        clean_alone(bytes(other), aborted=[aborted(7, 0, 9)])
    # What stays as it is is not looked at: readers are told.
    assert clean_alone(bytes(other)) == other


SOUND = keyed(4, b"abc")


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (resealed(keyed(4, b"abc")[:8] + (len(SOUND) - 11).to_bytes(4, "big") + SOUND[12:] + b"x"), "bytes are left"),
        (resealed(SOUND, count=2), "bytes are left"),
        (resealed(SOUND, count=4), "declares 4 records"),
        (resealed(SOUND, count=-1), "declares -1 records"),
        (resealed(SOUND, count=(1 << 31) - 1, last_offset_delta=(1 << 31) - 1), "the data ends before"),
        (resealed(SOUND, last_offset_delta=1), "declares 3 records and a last offset delta of 1"),
        (resealed(SOUND, last_offset_delta=-1), "last offset delta of -1"),
        (resealed(SOUND, base_offset=-1), "from offset -1"),
        (resealed(SOUND, base_offset=(1 << 63) - 3), "from offset 9223372036854775805"),
        (v2([record(0, 0, b"a"), record(3, 0, b"b")], last_offset_delta=2, base_offset=4), "outside of its batch"),
        (v2([record(-1, 0, b"a"), record(1, 0, b"b")], base_offset=4), "outside of its batch"),
        (v2([record(1, 0, b"a"), record(1, 0, b"b")], base_offset=4), "not above that of the record before"),
        (v2([record(1, 0, b"a"), record(0, 0, b"b")], base_offset=4), "not above that of the record before"),
        (v2([record(0, 0, b"a", length=-1)]), "negative length"),
        (resealed(SOUND, attributes=5), "compression type 5"),
        (resealed(SOUND, attributes=CODECS.index("lz4")), "lz4"),
        (resealed(marker(4, COMMIT), attributes=CONTROL | CODECS.index("zstd")), "zstd"),
        (SOUND[:8] + bytes(4), "batch of 12 bytes"),
        (SOUND[:8] + (40).to_bytes(4, "big") + SOUND[12:52], "batch of 52 bytes"),
        (SOUND[:16] + b"\x03" + SOUND[17:], "magic 3"),
        (SOUND + SOUND, "below 7"),
        (SOUND + keyed(6, b"d"), "below 7"),
        (SOUND + legacy(1, key=b"a", offset=6), "below 7"),
        (legacy(1, key=b"a", crc=1), "CRC"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_sound_batch_is_an_error_also_where_all_of_it_would_stay(damaged: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        clean_alone(damaged)
    assert caught.value.reason.count("kstore repair") == 1
    assert caught.value.position in (100, 100 + len(SOUND))


def test_a_batch_of_the_dirty_part_that_the_first_pass_has_not_seen_is_refused() -> None:
    newest = NewestRecords(10, 5)
    newest.add(keyed(5, b"ab"), CleanedTransactions(), path="x", position=0)
    for scanned, log in (
        (False, [keyed(5, b"a")]),
        (False, [keyed(4, b"xy")]),
        (True, [keyed(5, b"ab"), keyed(7, b"c")]),
    ):
        newest.end_segment(10)
        made = BatchFilter(
            newest, CleanedTransactions(), now_ms=NOW, delete_retention_ms=0, first_uncleanable_offset=NEVER
        )
        with pytest.raises(ValueError, match="has not seen the batch at offset"):
            made.clean(b"".join(log), scanned=scanned, path="x", position=0, keeps_old_tombstones=True)


def test_output_outlives_the_next_call() -> None:
    newest = NewestRecords(10, 0)
    log = [keyed(0, b"ab"), keyed(2, b"ac"), keyed(4, b"d")]
    newest.add(b"".join(log), CleanedTransactions(), path="x", position=0)
    made = BatchFilter(newest, CleanedTransactions(), now_ms=NOW, delete_retention_ms=0, first_uncleanable_offset=NEVER)
    chunks = [made.clean(each, scanned=True, path="x", position=0, keeps_old_tombstones=True) for each in log]
    assert [r.offset for chunk in chunks for r in decoded(bytes(chunk.output)).records] == [1, 2, 3, 4]
    assert [chunk.changed for chunk in chunks] == [True, False, False]
    assert chunks[1].output.readonly


def clean_alone(
    data: bytes, superseding: Sequence[bytes] = (), aborted: Iterable[AbortedTxn] = (), position: int = 100
) -> bytes:
    """Filter bytes of the clean part, in front of records with these keys at offset 1000."""
    newest, transactions = NewestRecords(1000, 1000), CleanedTransactions()
    newest.add(
        b"".join(keyed(1000 + i, key) for i, key in enumerate(superseding)), transactions, path="y.log", position=0
    )
    answers: list[bytes | CorruptRecordError] = []
    for in_file in (False, True):
        transactions = CleanedTransactions()
        transactions.add_aborted(aborted)
        made = BatchFilter(
            newest, transactions, now_ms=NOW, delete_retention_ms=RETENTION, first_uncleanable_offset=NEVER
        )
        try:
            if in_file:
                answers.append(cleaned_in_pieces(made, data, position))
            else:
                chunk = made.clean(data, scanned=False, path="x.log", position=position, keeps_old_tombstones=True)
                answers.append(bytes(chunk.output))
        except CorruptRecordError as error:
            answers.append(error)
    answer, again = answers
    if isinstance(answer, CorruptRecordError):
        assert isinstance(again, CorruptRecordError)
        assert (again.reason, again.path, again.position) == (answer.reason, answer.path, answer.position)
        raise answer
    assert again == answer
    return answer


def cleaned_in_pieces(made: BatchFilter, data: bytes, position: int) -> bytes:
    """The same from a file, in pieces of as few batches as there can be."""
    output, at, end, size = bytearray(), position, position + len(data), 61
    with tempfile.TemporaryFile() as file:
        file.write(bytes(position) + data)
        file.flush()
        while at < end and size < 4 * len(data) + 200:
            chunk = made.clean_file(
                file.fileno(),
                at,
                end,
                bytearray(size),
                enough_bytes=1 << 20,
                scanned=False,
                path="x.log",
                keeps_old_tombstones=True,
            )
            output += chunk.output
            at += chunk.taken
            size = 61 if chunk.taken else 2 * size
    return bytes(output)
