"""Conditional appends: stored at the offset that the caller expects, or not at all."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.errors import UnexpectedOffsetError

Append = Callable[[kstore.Log, int | None], object]


def one(log: kstore.Log, expected: int | None) -> int:
    return log.append(b"value", b"key", expected_offset=expected)


def with_headers(log: kstore.Log, expected: int | None) -> int:
    return log.append(b"value", headers=[("h", b"x")], expected_offset=expected)


def of_an_epoch(log: kstore.Log, expected: int | None) -> int:
    return log.append(b"value", leader_epoch=7, expected_offset=expected)


def synced(log: kstore.Log, expected: int | None) -> int:
    return log.append(b"value", sync=True, expected_offset=expected)


def large(log: kstore.Log, expected: int | None) -> int:
    return log.append(bytes(200_000), expected_offset=expected)


def many(log: kstore.Log, expected: int | None) -> int:
    return log.append_many([b"value"], atomic=True, expected_offset=expected).first_offset


def columns(log: kstore.Log, expected: int | None) -> int:
    return log.append_columns([b"value"], expected_offset=expected).first_offset


def compressed_columns(log: kstore.Log, expected: int | None) -> int:
    return log.append_columns([b"value"], compression="lz4", threads=2, expected_offset=expected).first_offset


WAYS: list[Append] = [one, with_headers, of_an_epoch, synced, large, many, columns, compressed_columns]


@pytest.fixture
def log(partition: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(partition) as log:
        for number in range(5):
            log.append(b"%d" % number)
        yield log


@pytest.mark.parametrize("way", WAYS)
def test_an_append_is_stored_at_the_expected_offset_and_refused_at_both_neighbours(
    log: kstore.Log, way: Append
) -> None:
    for expected in (0, 4, 6, 2**63 - 1):
        before = bytes(log.fetch(0, 1 << 20).records), log.stats()
        with pytest.raises(UnexpectedOffsetError, match=f"begin at offset {expected}, and the log ends at 5") as caught:
            way(log, expected)
        assert (caught.value.expected, caught.value.actual) == (expected, 5)
        assert (bytes(log.fetch(0, 1 << 20).records), log.stats()) == before
    assert way(log, 5) == 5
    assert way(log, None) == 6
    assert way(log, 7) == 7
    assert log.log_end_offset == 8


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("wrong", "error"), [(-1, ValueError), (2**63, ValueError), ("5", TypeError), (5.0, TypeError)]
)
def test_what_is_no_offset_is_refused_and_nothing_is_stored(
    log: kstore.Log, way: Append, wrong: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="expected_offset"):
        way(log, wrong)
    assert log.log_end_offset == 5


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_append_rolls_no_segment_and_one_that_rolls_is_at_its_offset(partition: Path, way: Append) -> None:
    with kstore.Log.open(partition, segment_bytes=250_000) as log:
        while len(log.segments) == 1:
            end = log.log_end_offset
            with pytest.raises(UnexpectedOffsetError):
                way(log, end + 1)
            assert len(log.segments) == 1
            assert way(log, end) == end
            log.append(bytes(40_000))


def test_several_records_are_one_batch_or_nothing(log: kstore.Log) -> None:
    with pytest.raises(UnexpectedOffsetError):
        log.append_many([b"a", b"b", b"c"], atomic=True, expected_offset=4)
    with pytest.raises(ValueError, match="atomic=True"):
        log.append_many([b"a"], expected_offset=5)
    with pytest.raises(kstore.RecordTooLargeError):
        log.append_columns([bytes(1000)] * 2000, expected_offset=5)
    with pytest.raises(kstore.RecordTooLargeError):
        log.append_columns([bytes(1000)] * 2000, compression="zstd", expected_offset=5)
    assert log.log_end_offset == 5
    assert log.append_many([b"a", b"b", b"c"], atomic=True, expected_offset=5).last_offset == 7
    assert log.append_columns([b"d", b"e"], expected_offset=8).last_offset == 9
    assert len(list(kstore.decode_batches(log.fetch(5, 1 << 20).records))) == 2


def test_a_numbered_batch_that_is_sent_again_is_found_where_it_was_expected(log: kstore.Log) -> None:
    fields = {"producer_id": 9, "producer_epoch": 0, "atomic": True}
    first = log.append_many([b"a"], base_sequence=0, expected_offset=5, **fields)
    log.append(b"other")
    assert log.append_many([b"a"], base_sequence=0, expected_offset=5, **fields).first_offset == first.first_offset == 5
    with pytest.raises(UnexpectedOffsetError):
        log.append_many([b"a"], base_sequence=0, expected_offset=6, **fields)
    with pytest.raises(UnexpectedOffsetError):
        log.append_many([b"b"], base_sequence=1, expected_offset=6, **fields)
    with pytest.raises(UnexpectedOffsetError, match="begin at offset 7, and its batch is at 5 already") as caught:
        log.append_many([b"a"], base_sequence=0, expected_offset=7, **fields)  # at the log end
    assert (caught.value.expected, caught.value.actual, caught.value.appended.first_offset) == (7, 5, -1)
    assert log.log_end_offset == 7
    assert log.append_many([b"b"], base_sequence=1, expected_offset=7, **fields).first_offset == 7


def test_the_error_can_be_pickled() -> None:
    error = UnexpectedOffsetError("text", expected=3, actual=4)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.expected, copy.actual) == ("text", 3, 4)


def test_no_update_of_a_counter_is_lost_and_every_thread_comes_to_an_end(partition: Path) -> None:
    rounds, threads = 150, 8
    with kstore.Log.open(partition) as log:
        log.append(b"0")

        def count() -> None:
            for _ in range(rounds):
                while True:
                    end = log.log_end_offset
                    (last,) = log.read(end - 1, end_offset=end)
                    try:
                        log.append(b"%d" % (int(last.value or b"") + 1), expected_offset=end)
                        break
                    except UnexpectedOffsetError:
                        continue

        workers = [threading.Thread(target=count) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        values = [int(record.value or b"") for record in log.read()]
    assert values == list(range(rounds * threads + 1))


@given(st.lists(st.tuples(st.sampled_from(WAYS[:3] + WAYS[5:7]), st.integers(-2, 2)), max_size=30))
def test_a_log_holds_the_appends_whose_expectation_was_right(steps: list[tuple[Append, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as root, kstore.Log.open(f"{root}/events-0") as log:
        end = 0
        for way, distance in steps:
            expected = max(end + distance, 0)
            if expected == end:
                assert way(log, expected) == end
                end += 1
            else:
                with pytest.raises(UnexpectedOffsetError):
                    way(log, expected)
        assert log.log_end_offset == end == len(list(log.read()))


def test_a_store_and_a_transaction_append_at_an_expected_offset(root: Path) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("events", 2)
        assert store.append("events", b"a", partition=1, expected_offset=0).offset == 0
        with pytest.raises(UnexpectedOffsetError) as caught:
            store.append("events", b"b", partition=1, expected_offset=0)
        assert (caught.value.expected, caught.value.actual) == (0, 1)
        with pytest.raises(ValueError, match="needs a partition"):
            store.append("events", b"b", expected_offset=0)
        with pytest.raises(UnexpectedOffsetError):
            store.append("events", b"b", partition=1, headers=[("h", None)], expected_offset=0)
        producer = store.producer(transactional_id="id")
        with producer.transaction() as txn:
            assert txn.append("events", b"c", partition=1, expected_offset=1).offset == 1
            with pytest.raises(UnexpectedOffsetError):
                txn.append("events", b"d", partition=1, expected_offset=1)
            with pytest.raises(ValueError, match="needs a partition"):
                txn.append("events", b"d", expected_offset=2)
            with pytest.raises(UnexpectedOffsetError):
                txn.append("events", b"d", partition=1, headers=[("h", b"")], expected_offset=1)
            assert txn.append("events", b"d", partition=1, headers=[("h", b"")], expected_offset=2).offset == 2
        with producer.transaction() as txn:
            with pytest.raises(UnexpectedOffsetError) as caught:
                txn.append("events", b"e", partition=1, expected_offset=3)
            assert caught.value.actual == 4  # behind the marker
            assert txn.append("events", b"e", partition=1, expected_offset=4).offset == 4
        values = [record.value for record in store.log("events", 1).read(isolation="read_committed")]
        assert values == [b"a", b"c", b"d", b"e"]
