"""Columns of a producer: numbered as the records of `append_many`, and stored once however often a call is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.store.topics.append_source import ColumnArguments
from kstore.store.topics.idempotent import Numbered

VALUES = [b"%d" % n * (n % 90 + 1) for n in range(400)]
KEYS = [b"%d" % (n % 7) for n in range(400)]
TIMES = list(range(1_700_000_000_000, 1_700_000_000_400))


class Broken(BaseException):
    """As `KeyboardInterrupt`."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t", partitions=3)
        yield store


def break_off(patch: pytest.MonkeyPatch, at: int, *, after: bool) -> None:
    """Have the writing of batches number `at` raise, before or after they are in the log."""
    plain, numbers = Numbered.write, count(1)

    def write(self: Numbered, *arguments: Any) -> None:
        number = next(numbers)
        if number == at and not after:
            raise Broken
        plain(self, *arguments)
        if number == at:
            raise Broken

    patch.setattr(Numbered, "write", write)


def stored(store: kstore.Store, topic: str = "t") -> list[bytes | None]:
    return sorted(record.value or b"" for record in store.read(topic))


def sequences(store: kstore.Store, topic: str = "t") -> list[list[tuple[int, int, int]]]:
    """(producer epoch, base sequence, records) of the batches of each partition."""
    return [
        [(batch.producer_epoch, batch.base_sequence, batch.count) for batch in store.log(topic, number).read_batches()]
        for number in store.partitions(topic)
    ]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_columns_make_the_batches_that_append_many_makes(
    store: kstore.Store, compression: str | None, threads: int
) -> None:
    store.create_topic("rows", partitions=3)
    how: dict[str, Any] = {"seed": 5, "batch_bytes": 900, "compression": compression}
    with store.producer() as columns, store.producer() as records:
        for _ in range(2):
            given = columns.append_columns("t", VALUES, keys=KEYS, timestamps=TIMES, threads=threads, **how)
            rows = [(key, value, time, None) for key, value, time in zip(KEYS, VALUES, TIMES, strict=True)]
            assert given == records.append_many("rows", rows, **how)
        assert {batch.producer_id for batch in store.log("t", 0).read_batches()} == {columns.producer_id}
    assert sequences(store) == sequences(store, "rows")
    assert [base for part in sequences(store) for _, base, _ in part].count(0) == 3


def test_all_calls_of_a_producer_number_one_after_the_other(store: kstore.Store) -> None:
    with store.producer() as producer:
        producer.append("t", b"a", partition=0)
        producer.append_columns("t", [b"b", b"c"], partition=0, sync=True)
        producer.append_many("t", [b"d"], partition=0)
        assert producer.append_columns("t", [], partition=0) == {}
        producer.append_columns("t", np.array([b"e", b"f"]), partition=0)
        producer.append("t", b"g", partition=0)
    assert sequences(store)[0] == [(0, 0, 1), (0, 1, 2), (0, 3, 1), (0, 4, 2), (0, 6, 1)]


FORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "lists": lambda: {"values": list(VALUES), "keys": list(KEYS)},
    "arrow": lambda: {"values": pa.table({"value": VALUES, "key": KEYS})},
    "numpy": lambda: {"values": np.array(VALUES), "keys": np.array(KEYS)},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_call_that_is_broken_off_anywhere_stores_its_rows_once(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch, form: str, after: bool, threads: int, compression: str | None
) -> None:
    how: dict[str, Any] = {"batch_bytes": 2000, "threads": threads, "compression": compression}
    breaks = [1, 2, 3]
    with store.producer() as producer:
        for at in breaks:
            for again in (at, 1):  # a second try is broken off, too
                with monkeypatch.context() as patch:
                    break_off(patch, again, after=after)
                    with pytest.raises(Broken):
                        producer.append_columns("t", **FORMS[form](), **how)
            producer.append_columns("t", **FORMS[form](), **how)
    assert stored(store) == sorted(VALUES * len(breaks))


def test_a_repeated_call_says_where_its_own_rows_are(store: kstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.producer() as producer:
        producer.append_many("t", [b"before"] * 3, partition=0)
        with monkeypatch.context() as patch:
            break_off(patch, 1, after=True)
            with pytest.raises(Broken) as broken:
                producer.append_columns("t", [b"a", b"b"], partition=0)
        assert "offsets 3 to 4" in broken.value.__notes__[0]
        info = producer.append_columns("t", [b"a", b"b"], partition=0)[0]
        assert (info.first_offset, info.last_offset) == (3, 4)
        assert producer.append_columns("t", [b"a", b"b"], partition=0)[0].first_offset == 5


@pytest.mark.parametrize("changed", ["list", "buffer", "array", "keys", "timestamps", "headers", "topic", "partition"])
def test_other_rows_or_arguments_are_another_call(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    store.create_topic("u", partitions=3)
    buffer, array = bytearray(b"b"), np.array([b"a", b"b"])
    call: dict[str, Any] = {"topic": "t", "values": [b"a", buffer], "partition": 0}
    if changed == "array":
        call["values"] = array
    with store.producer() as producer:
        with monkeypatch.context() as patch:
            break_off(patch, 1, after=True)
            with pytest.raises(Broken):
                producer.append_columns(**call)
        if changed == "list":
            call["values"].append(b"c")
        elif changed == "buffer":
            buffer[:] = b"c"
        elif changed == "array":
            array[1] = b"c"
        else:
            others = {
                "keys": [b"k", None],
                "timestamps": [None, 0],
                "headers": [None, [("h", b"")]],
                "topic": "u",
                "partition": 1,
            }
            call[changed] = others[changed]
        producer.append_columns(**call)
    assert len(stored(store)) + len(stored(store, "u")) == 4 + (changed == "list")


def test_a_stream_that_is_read_once_is_never_a_retry(store: kstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = pa.table({"value": [b"a", b"b"]}).to_reader(max_chunksize=1)
    with store.producer() as producer:
        with monkeypatch.context() as patch:
            break_off(patch, 1, after=True)
            with pytest.raises(Broken):
                producer.append_columns("t", reader, partition=0, batch_bytes=1)
        producer.append_columns("t", reader, partition=0, batch_bytes=1)
    assert stored(store)[:1] == [b"a"]
    assert stored(store).count(b"a") == 1


def test_a_call_with_a_refused_row_stores_those_before_it_once(store: kstore.Store) -> None:
    values: list[Any] = [b"a", b"b", "text", b"c"]
    with store.producer() as producer:
        for _ in range(3):
            with pytest.raises(TypeError, match="row 2"):
                producer.append_columns("t", values, partition=0, batch_bytes=1)
        values[2] = b"text"
        producer.append_columns("t", values, partition=0, batch_bytes=1)
        with pytest.raises(kstore.RecordTooLargeError):
            producer.append_columns("t", [b"d", b"x" * (2 << 20)], partition=0)
        producer.append_columns("t", [b"e"], partition=0)
    numbers = [base for _, base, _ in sequences(store)[0]]
    assert numbers == list(range(len(numbers)))


def test_a_closed_producer_takes_no_columns(store: kstore.Store) -> None:
    producer = store.producer()
    producer.close()
    with pytest.raises(kstore.LogClosedError):
        producer.append_columns("t", [b"a"])


ROWS = st.lists(st.tuples(st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=4)


@given(ROWS, ROWS)
def test_rows_are_equal_if_and_only_if_their_digests_are(
    left: list[tuple[bytes | None, bytes | None]], right: list[tuple[bytes | None, bytes | None]]
) -> None:
    def digest(rows: list[tuple[bytes | None, bytes | None]], make: Callable[[list[Any]], Any] = list) -> object:
        return ColumnArguments(make([value for _, value in rows]), make([key for key, _ in rows])).digest()

    assert (digest(left) == digest(right)) == (left == right)
    assert digest(left) == digest(left, lambda column: pa.array(column, pa.binary()))


def test_a_time_that_is_given_is_not_that_of_the_append() -> None:
    def digest(timestamps: Any) -> object:
        return ColumnArguments([b"a"], None, timestamps).digest()

    assert len({digest(None), digest([None]), digest([-1]), digest([0])}) == 3
    assert digest(0) == digest([0])
