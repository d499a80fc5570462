"""What a cleaner knows of transactions: each row of SEMANTICS 7.16, and a model written from the rules."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import CorruptRecordError
from kstore.files.txnindex import AbortedTxn
from kstore.log.compaction._cleaned_transactions import CleanedTransactions
from tests.support.batches import CONTROL, TRANSACTIONAL, legacy, record, resealed, v2
from tests.support.slowcleaner import ABORT, COMMIT, Transactions

LEADER_CHANGE = 2


def aborted(producer_id: int, first: int, last: int) -> AbortedTxn:
    return AbortedTxn(0, producer_id, first, last, last + 1)


def data(offset: int, producer_id: int = 7, count: int = 1, *, transactional: bool = True) -> bytes:
    return v2(
        [record(i, 0, b"k", b"v") for i in range(count)],
        base_offset=offset,
        attributes=TRANSACTIONAL if transactional else 0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )


def marker(offset: int, kind: int, producer_id: int = 7, *, codec: str = "none", key: bytes | None = None) -> bytes:
    told = bytes((0, 0, 0, kind)) if key is None else key
    return v2(
        [record(0, 0, told, bytes(6))],
        base_offset=offset,
        codec=codec,
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=0,
    )


def emptied(batch: bytes) -> bytes:
    return resealed(resealed(batch)[:8] + (61 - 12).to_bytes(4, "big") + batch[12:61], count=0)


def started(*transactions: AbortedTxn) -> CleanedTransactions:
    seen = CleanedTransactions()
    seen.add_aborted(transactions)
    return seen


# ---- The rows of SEMANTICS 7.16


def test_data_of_an_aborted_transaction_goes_and_its_marker_stays_for_one_pass() -> None:
    seen = started(aborted(7, 10, 14))
    assert not seen.visit(data(9))
    assert seen.visit(data(10))
    assert seen.take_retained() == []
    assert not seen.visit(marker(14, ABORT))
    assert seen.take_retained() == [aborted(7, 10, 14)]
    assert seen.take_retained() == []
    assert not seen.visit(data(15))


def test_an_abort_marker_without_data_goes_and_leaves_no_entry() -> None:
    seen = started(aborted(7, 10, 14))
    assert seen.visit(marker(14, ABORT))
    assert seen.take_retained() == []
    assert not seen.visit(data(15))
    assert started().visit(marker(14, ABORT))


def test_a_commit_marker_goes_unless_data_of_its_producer_was_seen_since_the_last() -> None:
    seen = started()
    assert seen.visit(marker(3, COMMIT))
    assert not seen.visit(data(4))
    assert not seen.visit(data(5, 8))
    assert not seen.visit(marker(6, COMMIT))
    assert seen.visit(marker(7, COMMIT))
    assert not seen.visit(marker(8, COMMIT, 8))


def test_other_data_is_kept_and_leaves_no_note() -> None:
    seen = started(aborted(7, 0, 9))
    assert not seen.visit(data(1, transactional=False))
    assert not seen.visit(legacy(1, offset=2))
    assert not seen.visit(legacy(0, offset=3))
    assert seen.visit(marker(4, COMMIT))
    assert seen.visit(marker(9, ABORT))


def test_a_control_batch_without_records_goes_and_ends_nothing() -> None:
    seen = started(aborted(7, 0, 9))
    assert seen.visit(data(0))
    assert seen.visit(emptied(marker(4, ABORT)))
    assert seen.visit(data(5))


@pytest.mark.parametrize("kind", [LEADER_CHANGE, 3, 6, 77])
def test_control_batches_of_other_types_stay_and_end_nothing(kind: int) -> None:
    seen = started(aborted(7, 0, 9))
    assert not seen.visit(marker(1, kind))
    assert seen.visit(data(2))


def test_an_empty_transactional_batch_counts_as_data_seen() -> None:
    seen = started(aborted(7, 0, 9))
    assert seen.visit(emptied(data(0)))
    assert not seen.visit(marker(9, ABORT))
    assert not seen.visit(emptied(data(10, 8)))
    assert not seen.visit(marker(11, COMMIT, 8))


def test_a_transaction_begins_with_the_batch_that_reaches_its_first_offset() -> None:
    for first, is_aborted in ((13, False), (12, True), (11, True), (9, True)):
        assert started(aborted(7, first, 20)).visit(data(10, count=3)) is is_aborted, first


def test_a_second_aborted_transaction_of_a_producer_with_an_active_one_is_dropped() -> None:
    seen = started(aborted(7, 0, 4), aborted(7, 2, 8))
    assert seen.visit(data(2))
    assert not seen.visit(marker(4, ABORT))
    assert seen.take_retained() == [aborted(7, 0, 4)]
    assert not seen.visit(data(5))


def test_a_transaction_stays_active_when_the_next_segments_are_added() -> None:
    seen = started(aborted(7, 0, 40))
    assert seen.visit(data(0))
    seen.add_aborted([aborted(7, 0, 40), aborted(8, 21, 30)])
    assert seen.take_retained() == []
    assert seen.visit(data(20))
    assert seen.visit(data(21, 8))
    assert not seen.visit(marker(30, ABORT, 8))
    assert not seen.visit(marker(40, ABORT))
    assert seen.take_retained() == [aborted(8, 21, 30), aborted(7, 0, 40)]


def test_the_type_behind_a_codec_is_read() -> None:
    for codec in ("gzip", "lz4", "zstd"):
        seen = started()
        assert not seen.visit(data(0))
        assert not seen.visit(marker(1, COMMIT, codec=codec))
        assert seen.visit(marker(2, COMMIT, codec=codec))


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\0\0", b"\xff\xff\0\1"])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_control_batch_without_a_control_record_is_corruption(key: bytes, codec: str) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        started().visit(marker(0, COMMIT, key=key, codec=codec), path="x.log", position=44)
    assert (caught.value.path, caught.value.position) == ("x.log", 44)


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        bytes(16),
        data(0)[:-1],
        data(0) + b"x",
        resealed(marker(0, ABORT), count=-1),
        resealed(marker(0, ABORT), count=1)[:61],
        emptied(marker(0, ABORT))[:50],
        bytes((*data(0)[:16], 3, *data(0)[17:60])),
    ],
)
def test_bytes_that_are_no_batch_are_corruption(batch: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        started().visit(batch)


# ---- Any history, beside a model written from the rules


@given(seed=st.integers(0, 1 << 32), producers=st.sampled_from([1, 3, 40, 2000]), batches=st.sampled_from([60, 600]))
def test_any_history_is_judged_as_the_model_does(seed: int, producers: int, batches: int) -> None:
    draw = random.Random(seed)
    model, seen = Transactions(), CleanedTransactions()
    offset = 0
    # First offsets differ: an offset belongs to one producer.
    firsts = draw.sample(range(4 * batches), k=batches // 3)
    for _ in range(batches):
        if draw.random() < 0.1:
            added = [aborted(draw.randrange(producers), first, first + 9) for first in firsts[:5]]
            del firsts[:5]
            model.waiting += added
            seen.add_aborted(added)
        producer_id = draw.randrange(producers)
        offset += draw.randrange(1, 4)
        if draw.random() < 0.6:
            count = draw.randrange(1, 3)
            assert seen.visit(data(offset, producer_id, count)) is model.data(offset + count - 1, producer_id)
            offset += count - 1
        else:
            kind = draw.choice([ABORT, ABORT, COMMIT, LEADER_CHANGE])
            assert seen.visit(marker(offset, kind, producer_id)) is model.marker(offset, kind, producer_id)
        if draw.random() < 0.1:
            assert seen.take_retained() == model.retained
            model.retained.clear()
    assert seen.take_retained() == model.retained
