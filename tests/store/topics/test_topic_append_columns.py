"""Appending columns to a topic: each partition gets what `append_many` gives it, and a refusal says where it stands."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore import AppendInfo, Store
from kstore.codec._pack import Packer
from kstore.columns._column_encoder import Rows
from kstore.columns.column_input import ColumnInput
from kstore.errors import (
    InvalidColumnError,
    InvalidRecordError,
    InvalidTimestampError,
    LogClosedError,
    RecordTooLargeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from kstore.log import batch_packer
from kstore.store.topics._column_partitioner import ColumnSplitter
from kstore.store.topics._partitioner import Router, Splitter, partition_of
from kstore.store.topics._topic_append import Route
from tests.conftest import ManualClock
from tests.support import arrowstructs as arrow

T = 1_700_000_000_000


@pytest.fixture
def store(root: Path, clock: ManualClock, no_syncs: None) -> Iterator[Store]:
    with Store.open(root, clock=clock, background=False) as store:
        store.create_topic("events", 4)
        yield store


def bytes_of(store: Store, topic: str) -> list[bytes]:
    """Each partition's batches."""
    return [b"".join(map(bytes, store.log(topic, p).read_batches())) for p in store.partitions(topic)]


# ---- the splitter beside the one for records

Record = tuple[bytes | None, bytes | None]


def makes(packers: dict[int, Packer], options: dict[str, Any]) -> Any:
    def make(number: int) -> Packer:
        packers[number] = Packer(options["batch_bytes"], 1 << 20, now_ms=T)
        return packers[number]

    return make


def one_by_one(records: list[Record], partitions: int, options: dict[str, Any]) -> dict[int, bytes]:
    """What each partition gets of the records, in three calls with the same router."""
    router = Router(partitions, sticky_bytes=1, seed=options["seed"])
    packers: dict[int, Packer] = {}
    found: dict[int, bytes] = {}
    for at in range(3):
        splitter = Splitter(
            router, makes(packers, options), limit_bytes=1, max_bytes=1 << 30, sticky_bytes=options["sticky_bytes"]
        )
        iterator = iter(records[at::3])
        more = True
        while more:
            more = splitter.pack(iterator)
            for number, packer in splitter.ready:
                found[number] = found.get(number, b"") + bytes(packer.buffer)
                packer.clear()
    return found


def by_columns(records: list[Record], partitions: int, options: dict[str, Any]) -> dict[int, bytes]:
    router = Router(partitions, sticky_bytes=1, seed=options["seed"])
    packers: dict[int, Packer] = {}
    found: dict[int, bytes] = {}
    for at in range(3):
        splitter = ColumnSplitter(
            router, makes(packers, options), limit_bytes=options["limit"], max_bytes=1 << 30,
            sticky_bytes=options["sticky_bytes"],
        )  # fmt: skip

        def take(splitter: ColumnSplitter = splitter) -> None:
            for number, packer in splitter.ready:
                found[number] = found.get(number, b"") + bytes(packer.buffer)
                packer.clear()

        part = records[at::3]
        for rows in ColumnInput([value for _, value in part], arrow.binary([key for key, _ in part]), None, None, T):
            while splitter.pack(rows):
                take()
        splitter.close()
        take()
    return found


sizes = st.sampled_from([0, 1, 20, 63, 64, 100, 290, 330, 331, 400])
some_records = st.lists(
    st.tuples(st.one_of(st.none(), st.binary(max_size=3)), st.one_of(st.none(), sizes.map(lambda size: b"v" * size))),
    max_size=80,
)


@given(
    records=some_records,
    times=st.integers(1, 12),
    partitions=st.sampled_from([1, 2, 5, 300]),
    batch_bytes=st.sampled_from([100, 400]),
    sticky_bytes=st.sampled_from([1, 150, 1000]),
    limit=st.sampled_from([1, 1 << 30]),
    seed=st.integers(0, 9),
)
def test_rows_go_where_records_go_in_the_same_batches(
    records: list[Record], times: int, partitions: int, batch_bytes: int, sticky_bytes: int, limit: int, seed: int
) -> None:
    options = {"batch_bytes": batch_bytes, "sticky_bytes": sticky_bytes, "limit": limit, "seed": seed}
    records = records * times
    assert by_columns(records, partitions, options) == one_by_one(records, partitions, options)


def test_batches_are_closed_early_where_all_together_would_take_too_much() -> None:
    packers: dict[int, Packer] = {}
    splitter = ColumnSplitter(
        Router(1000, sticky_bytes=1),
        makes(packers, {"batch_bytes": 1 << 20}),
        limit_bytes=1 << 20,
        max_bytes=100_000,
        sticky_bytes=1,
    )
    keys = [b"%d" % number for number in range(20_000)]
    held = []
    records = 0
    for rows in ColumnInput(np.zeros((20_000, 50), np.uint8), keys, None, None, T):
        while splitter.pack(rows):
            held.append(sum(len(packer) for packer in packers.values()))
            records += sum(
                int.from_bytes(bytes(packer.buffer)[57:61], "big") for packer in packers.values() if len(packer)
            )
            for _, packer in splitter.ready:
                packer.clear()
    assert len(held) > 10
    assert max(held) < 100_000 + 256 * 200
    assert 19_000 < records <= 20_000


def test_a_splitter_at_work_is_not_entered_again() -> None:
    def make(number: int) -> Packer:
        splitter.close()
        raise AssertionError

    splitter = ColumnSplitter(Router(1, sticky_bytes=1), make, limit_bytes=1, max_bytes=1, sticky_bytes=1)
    with pytest.raises(RuntimeError, match="at work"):
        splitter.pack(next(iter(ColumnInput([b"x"], None, None, None, T))))


def test_a_packer_that_compresses_or_whose_buffer_is_seen_is_refused() -> None:
    def rows() -> Rows:
        return next(iter(ColumnInput([b"x"], [b"k"], None, None, T)))

    def splitter(codec: int) -> tuple[ColumnSplitter, list[Packer]]:
        made: list[Packer] = []

        def make(number: int) -> Packer:
            made.append(Packer(100, 100, codec, now_ms=T))
            return made[-1]

        return ColumnSplitter(Router(1, sticky_bytes=1), make, limit_bytes=1, max_bytes=1 << 20, sticky_bytes=1), made

    with pytest.raises(ValueError, match="codec"):
        splitter(3)[0].pack(rows())
    sound, [*made] = splitter(0)
    sound.pack(rows())
    sound.close()
    [(_, packer)] = sound.ready
    view = packer.buffer
    with pytest.raises(BufferError, match="alive"):
        sound.pack(rows())
    view.release()
    sound.pack(rows())
    with pytest.raises(ValueError, match="partition 3 of a topic with 2"):
        ColumnSplitter(
            Router(2, sticky_bytes=1), lambda number: made[0], limit_bytes=1, max_bytes=1, sticky_bytes=1, partition=3
        )


# ---- into a store


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("keyed", [True, False, None])
def test_a_topic_filled_by_columns_has_the_bytes_of_one_filled_by_records(
    store: Store, rng: random.Random, codec: str, threads: int, keyed: bool | None
) -> None:
    store.create_topic("rows", 4)
    values = [rng.randbytes(rng.randrange(100)) for _ in range(5000)]
    some = {True: 1.0, False: 0.0, None: 0.5}[keyed]
    keys = [b"k%d" % rng.randrange(50) if rng.random() < some else None for _ in values]
    times = [T + number for number in range(5000)]
    records = [(key, value, time, [("h", b"x")]) for key, value, time in zip(keys, values, times, strict=True)]
    wanted = store.append_many("rows", records, seed=5, compression=codec, batch_bytes=3000)
    given = store.append_columns(
        "events",
        arrow.binary(values),
        keys=None if keyed is False else arrow.views(keys),
        timestamps=np.array(times),
        headers=[[("h", b"x")]] * 5000,
        seed=5,
        compression=codec,
        batch_bytes=3000,
        threads=threads,
    )
    assert given == wanted
    assert bytes_of(store, "events") == bytes_of(store, "rows")


def test_columns_and_records_in_turn_stick_where_records_alone_do(store: Store) -> None:
    for topic in ("rows", "turns"):
        store.create_topic(topic, 4)
        routes = store._appender._routes
        found = routes.find(topic)
        router = Router(4, sticky_bytes=16384, seed=1)  # the same for both
        routes.by_topic[topic] = Route(topic, found.entries, router, found.now)
    for number in range(20):
        store.append_many("rows", [b"x" * 100] * 17, batch_bytes=1000)
        if number % 2:
            store.append_many("turns", [b"x" * 100] * 17, batch_bytes=1000)
        else:
            store.append_columns("turns", [b"x" * 100] * 17, batch_bytes=1000)
    assert bytes_of(store, "turns") == bytes_of(store, "rows")


def test_a_named_partition_takes_every_row(store: Store) -> None:
    info = store.append_columns("events", [b"a", b"b", b"c"], keys=[b"k", None, b"l"], partition=2)
    assert info == {2: AppendInfo(0, 2, info[2].max_timestamp, -1)}
    assert [record.value for record in store.log("events", 2).read()] == [b"a", b"b", b"c"]


def test_a_table_goes_by_its_key_column(store: Store) -> None:
    keys = [b"%d" % number for number in range(100)]
    table = arrow.table({"value": arrow.binary(keys), "key": arrow.dictionary(keys)}, 100)
    info = store.append_columns("events", arrow.Stream([table, table], like=table), sync=True)
    assert sum(one.last_offset + 1 for one in info.values()) == 200
    for partition in range(4):
        for record in store.log("events", partition).read():
            assert partition_of(record.value or b"", 4) == partition


def test_nothing_appended_is_an_empty_answer(store: Store) -> None:
    assert store.append_columns("events", []) == {}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_refused_row_leaves_what_was_finished_before_it(store: Store, codec: str, threads: int) -> None:
    keys = [b"%d" % (number % 97) for number in range(3000)]
    times = [T] * 3000
    times[2500] = -9
    with pytest.raises(InvalidTimestampError, match="record 2500: ") as caught:
        store.append_columns(
            "events", [b"v" * 50] * 3000, keys=keys, timestamps=np.array(times), batch_bytes=2000, compression=codec,
            threads=threads,
        )  # fmt: skip
    appended: Any = caught.value.appended
    ends = {number: store.log("events", number).log_end_offset for number in range(4)}
    assert {number: info.last_offset + 1 for number, info in appended.items()} == ends
    assert 2300 < sum(ends.values()) <= 2500
    for number in range(4):  # nothing from behind the row that was refused
        wanted = [key for key in keys[:2500] if partition_of(key, 4) == number]
        assert [record.key for record in store.log("events", number).read()] == wanted[: ends[number]]


def test_a_row_without_a_key_is_refused_by_a_compacted_topic(store: Store) -> None:
    store.create_topic("compact", 3, config={"cleanup.policy": "compact"})
    keys = [b"%d" % number for number in range(500)]
    keys[321] = None  # type: ignore[call-overload]
    with pytest.raises(InvalidRecordError, match="record 321: a compacted"):
        store.append_columns("compact", [b"v"] * 500, keys=keys)
    with pytest.raises(InvalidRecordError, match="record 0: a compacted"):
        store.append_columns("compact", [b"v"] * 500)


def test_a_row_that_is_too_large_is_named_by_its_number(store: Store) -> None:
    store.create_topic("small", 3, config={"max.message.bytes": "1000"})
    values = [b"v"] * 700
    values[600] = b"x" * 2000
    with pytest.raises(RecordTooLargeError, match="record 600: a batch of 207"):
        store.append_columns("small", values, keys=[b"%d" % number for number in range(700)])
    assert store.append_columns("small", [b"v", b"x" * 900, b"v"], keys=[b"a", b"b", b"c"], batch_bytes=100)


def test_unsound_columns_and_unknown_topics_are_refused(store: Store) -> None:
    with pytest.raises(InvalidColumnError, match="values has 1 rows and keys has 2") as caught:
        store.append_columns("events", [b"a"], keys=[b"a", b"b"])
    assert caught.value.appended is None
    bad = arrow.dictionary([b"a"])
    bad.buffers[1] = b"\7\0\0\0"
    with pytest.raises(InvalidColumnError, match="row 0") as caught:
        store.append_columns("events", [b"a"], keys=bad)
    assert caught.value.appended == {}
    for where in ({"topic": "nowhere"}, {"topic": "events", "partition": 4}):
        with pytest.raises(UnknownTopicOrPartitionError):
            store.append_columns(values=[b"a"], **where)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads"):
        store.append_columns("events", [b"a"], threads=0)


def test_a_closed_store_and_one_that_reads_refuse_columns(root: Path) -> None:
    with Store.open(root, background=False) as store:
        store.create_topic("events", 1)
    with pytest.raises(LogClosedError):
        store.append_columns("events", [b"a"])
    with Store.open(root, mode="r") as store, pytest.raises(LogClosedError):
        store.append_columns("events", [b"a"])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_write_that_fails_ends_the_call(store: Store, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise StorageError(28, "No space left on device")

    monkeypatch.setattr(batch_packer, "store", failing)
    with pytest.raises(StorageError, match="No space"):
        store.append_columns(
            "events", np.zeros((30_000, 100), np.uint8), keys=np.arange(30_000).view("V8"), threads=threads
        )
    monkeypatch.undo()
    assert store.append_columns("events", [b"a"], partition=2)[2].first_offset == 0


def test_threads_append_columns_to_one_topic(store: Store) -> None:
    def append(name: bytes) -> None:
        keys = [b"%d" % number for number in range(500)]
        for _ in range(10):
            store.append_columns("events", [name] * 500, keys=arrow.binary(keys))
            store.append_columns("events", [name] * 500, batch_bytes=1000)

    workers = [threading.Thread(target=append, args=(name,)) for name in (b"a", b"b", b"c")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(store.log("events", number).log_end_offset for number in range(4)) == 30_000
