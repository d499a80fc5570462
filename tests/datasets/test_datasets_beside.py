"""Scans beside a writer in another process, and scans amid which a log is cut, shortened, rolled and compacted.

The rows of a scan are those of the log at one time, or the scan ends with the documented error.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import polars as pl
import pyarrow.compute as pc
import pytest

import kstore
from kstore.datasets import table_scan
from kstore.errors import OffsetOutOfRangeError
from kstore.log import column_reads
from tests.conftest import SEED
from tests.support.puppet import Puppet
from tests.support.told_rows import COMPACTED, KEPT, KEYS, LATENESS, PARTITIONS, SHRINKING, Row, T, row

COLUMNS = ["partition", "offset", "timestamp", "key", "value"]
WAYS: list[dict[str, Any]] = [{}, {"max_lateness": LATENESS}, {"isolation": "read_committed"}, {"threads": 1}]
Ends = dict[int, tuple[int, int]]


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are returned piece by piece, too, as many rows are."""
    monkeypatch.setattr(table_scan, "TOGETHER", 0)


class Condition(NamedTuple):
    """A condition as each engine writes it, and as Python does."""

    sql: str
    polars: Any
    pyarrow: Any
    of: Callable[[Row], bool]


def conditions(choose: random.Random, end: int) -> Condition:
    """One condition on rows below an offset."""
    low = choose.randrange(end + 10)
    high = low + choose.choice((1, 20, 500))
    first, last = (datetime.fromtimestamp(T / 1000, UTC) + timedelta(milliseconds=10 * each) for each in (low, high))
    key = b"k%d" % choose.randrange(KEYS)
    every = Condition("true", pl.lit(True), pc.scalar(True), lambda row: True)
    of_key = Condition(
        f"key = '{key.decode()}'::blob", pl.col("key") == key, pc.field("key") == key, lambda row: row.key == key
    )
    offsets = Condition(
        f'"offset" >= {low} and "offset" < {high}',
        (pl.col("offset") >= low) & (pl.col("offset") < high),
        (pc.field("offset") >= low) & (pc.field("offset") < high),
        lambda row: low <= row.offset < high,
    )
    times = Condition(
        f"timestamp >= '{first:%Y-%m-%d %H:%M:%S.%f}+00' and timestamp < '{last:%Y-%m-%d %H:%M:%S.%f}+00'",
        (pl.col("timestamp") >= first) & (pl.col("timestamp") < last),
        (pc.field("timestamp") >= first) & (pc.field("timestamp") < last),
        lambda row: T + 10 * low <= row.timestamp < T + 10 * high,
    )
    nothing = Condition(
        "value is null and partition = 1",
        pl.col("value").is_null() & (pl.col("partition") == 1),
        pc.field("value").is_null() & (pc.field("partition") == 1),
        lambda row: row.value is None and row.partition == 1,
    )
    return choose.choice([every, of_key, offsets, times, nothing])


class Asked:
    """A topic as each engine asks it."""

    def __init__(self, root: Path, topic: str, how: dict[str, Any]) -> None:
        self._dataset = kstore.dataset(root, topic, **how)
        self._frame = kstore.scan_polars(root, topic, **how)

    def by_duckdb(self, condition: Condition) -> list[Row]:
        dataset = self._dataset
        with duckdb.connect() as connection:
            names = 'partition, "offset", epoch_ms(timestamp), key, value'
            found = connection.execute(f"select {names} from dataset where {condition.sql}").fetchall()
        assert dataset is not None
        return [Row(*each) for each in found]

    def by_polars(self, condition: Condition) -> list[Row]:
        frame = self._frame.filter(condition.polars).select(COLUMNS).with_columns(pl.col("timestamp").cast(pl.Int64))
        return [Row(*each) for each in frame.collect().rows()]

    def by_pyarrow(self, condition: Condition) -> list[Row]:
        return rows_of(self._dataset.to_batches(columns=COLUMNS, filter=condition.pyarrow))


ENGINES = [Asked.by_duckdb, Asked.by_polars, Asked.by_pyarrow]


def rows_of(batches: Iterator[Any]) -> list[Row]:
    found = []
    for batch in batches:
        columns = batch.set_column(2, "timestamp", batch.column("timestamp").view("int64")).columns
        found += [Row(*each) for each in zip(*(column.to_pylist() for column in columns), strict=True)]
    return found


def ends_of(store: kstore.Store, topic: str) -> Ends:
    logs = {number: store.log(topic, number) for number in range(PARTITIONS)}
    return {number: (log.log_start_offset, log.log_end_offset) for number, log in logs.items()}


def judge(topic: str, found: list[Row], condition: Condition, before: Ends, after: Ends) -> None:
    """Compare the rows of a scan with what was written, by the ends of the logs before and after it."""
    for number in range(PARTITIONS):
        mine = [each for each in found if each.partition == number]
        offsets = [each.offset for each in mine]
        assert offsets == sorted(set(offsets))
        assert mine == [row(number, offset) for offset in offsets]
        assert all(map(condition.of, mine))
        (start, end), (later_start, later_end) = before[number], after[number]
        assert all(start <= offset < later_end for offset in offsets)
        written = [row(number, offset) for offset in range(start, later_end)]
        wanted = [each.offset for each in written if condition.of(each)]
        must = {offset for offset in wanted if later_start <= offset < end}
        if topic == COMPACTED:
            must &= set({each.key: each.offset for each in written}.values())  # the newest of each key
        elif offsets:
            assert offsets == [offset for offset in wanted if offsets[0] <= offset <= offsets[-1]]
        assert must <= set(offsets)


def test_scans_beside_a_writer_elsewhere_give_the_log_of_one_time(
    root: Path, rng: random.Random, budget: Callable[[float], float], record_property: Callable[[str, int], None]
) -> None:
    scans, amid, gone = 0, 0, 0
    prelude = "from tests.support.told_rows import Writer", f"writer = Writer({str(root)!r}, {SEED!r})"
    with Puppet(*prelude) as writer, kstore.Store.open(root, "r") as store:
        asked: dict[tuple[str, int], Asked] = {}
        until = time.monotonic() + budget(6)
        while time.monotonic() < until or not amid:
            writer.begin("writer.steps(80)")
            for _ in range(4):
                topic, way = rng.choice((KEPT, SHRINKING, COMPACTED)), rng.randrange(len(WAYS))
                if (topic, way) not in asked or rng.random() < 0.1:
                    asked[topic, way] = Asked(root, topic, WAYS[way])
                before = ends_of(store, topic)
                condition, scan = conditions(rng, before[0][1]), rng.choice(ENGINES)
                try:
                    found = scan(asked[topic, way], condition)
                except (OffsetOutOfRangeError, duckdb.Error) as error:
                    if topic != SHRINKING or "is not in the log, which starts at" not in str(error):
                        raise
                    gone += 1
                    continue
                after = ends_of(store, topic)
                try:
                    judge(topic, found, condition, before, after)
                except AssertionError as error:
                    error.add_note(f"{scan.__name__} of {topic} with {WAYS[way]}: {condition.sql}; {before}, {after}")
                    raise
                scans += 1
                amid += before != after
            writer.answer()
    record_property("scans beside a writer", scans)
    record_property("amid a change", amid)
    record_property("told of deleted records", gone)


# ---- One scan, and a change amid it.

RECORDS = 90


def append(log: kstore.Log, generation: int, count: int) -> None:
    """Append batches of three, whose values say in which generation they were written."""
    end = log.log_end_offset + count
    while (at := log.log_end_offset) < end:
        rows = [row(0, offset) for offset in range(at, at + 3)]
        keys = [each.key if generation == 0 else b"k%d" % (each.offset % KEYS) for each in rows]
        values = [b"%d: %d" % (generation, each.offset) for each in rows]
        records = zip(keys, values, (each.timestamp for each in rows), strict=True)
        log.append_many([(key, value, timestamp, ()) for key, value, timestamp in records], compression="lz4")


def cut(log: kstore.Log, at: int) -> None:
    log.truncate_to(at)


def cut_and_write_anew(log: kstore.Log, at: int) -> None:
    log.truncate_to(at)
    append(log, 1, RECORDS + 30 - log.log_end_offset)


def start_anew(log: kstore.Log, at: int) -> None:
    log.truncate_fully_and_start_at(at)
    append(log, 1, RECORDS)


def shorten(log: kstore.Log, at: int) -> None:
    log.delete_records(at)


def compact(log: kstore.Log, at: int) -> None:
    append(log, 0, at % 7)
    log.compact(roll=True)


def grow(log: kstore.Log, at: int) -> None:
    append(log, 0, at)
    log.roll()


CUTS = [cut, cut_and_write_anew, start_anew]
CHANGES = [*CUTS, shorten, compact, grow]


def by_batches(dataset: Any, condition: Condition) -> Iterator[list[Row]]:
    for batch in dataset.to_batches(columns=COLUMNS, filter=condition.pyarrow):
        yield rows_of(iter([batch]))


def by_a_reader(dataset: Any, condition: Condition) -> Iterator[list[Row]]:
    for batch in dataset.scanner(columns=COLUMNS, filter=condition.pyarrow).to_reader():
        yield rows_of(iter([batch]))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_scan_amid_which_a_log_changes_gives_one_state_or_an_error(
    tmp_path: Path,
    no_syncs: None,
    monkeypatch: pytest.MonkeyPatch,
    rng: random.Random,
    budget: Callable[[float], float],
    record_property: Callable[[str, int], None],
    change: Callable[[kstore.Log, int], None],
) -> None:
    waiting: list[Callable[[], None]] = []  # a change between the two steps of a scan: filter, then other columns

    def read_kept(*arguments: Any) -> Any:
        while waiting:
            waiting.pop()()
        return real(*arguments)

    real = table_scan.read_kept
    monkeypatch.setattr(table_scan, "read_kept", read_kept)
    monkeypatch.setattr(table_scan, "MOST_SELECTED", 5)
    monkeypatch.setattr(column_reads, "CHUNK_BYTES", 400)
    until, number, ended = time.monotonic() + budget(0.5), 0, 0
    while time.monotonic() < until or number < 8:
        number += 1
        settings: dict[str, Any] = {"cleanup_policy": "compact"} if change is compact else {}
        path, is_own, scan = tmp_path / f"t-{number}", rng.random() < 0.5, rng.choice([by_batches, by_a_reader])
        condition, taken, at = conditions(rng, RECORDS), rng.randint(1, 12), rng.randrange(RECORDS)
        with kstore.Log.open(path, segment_bytes=1200, index_interval_bytes=200, **settings) as log:
            append(log, 0, RECORDS)
            dataset = kstore.dataset(log if is_own else path, **rng.choice(WAYS))
            before = all_rows(dataset, condition)
            batches, found = scan(dataset, condition), list[Row]()
            for _, rows in zip(range(taken), batches, strict=False):
                found += rows
            assert found == before[: len(found)]
            if rng.random() < 0.5:
                waiting.append(partial(change, log, at))
            else:
                change(log, at)
            is_error, given = False, len(found)
            try:
                for rows in batches:
                    found += rows
            except OffsetOutOfRangeError:
                is_error = True
            is_pending = bool(waiting)
            waiting.clear()
            after = [each for each in all_rows(dataset, condition) if each.offset < RECORDS]
        where = f"{change.__name__} at {at} after {given} rows of {condition.sql}, {is_pending=}, {is_own=}"
        judge_one(change, found, before, after, is_error, where)
        ended += is_error
    record_property("scans amid a change", number)
    record_property("that an error ended", ended)


def all_rows(dataset: Any, condition: Condition) -> list[Row]:
    return [each for each in rows_of(dataset.to_batches(columns=COLUMNS)) if condition.of(each)]


def judge_one(
    change: Callable[..., None], found: list[Row], before: list[Row], after: list[Row], is_error: bool, where: str
) -> None:
    if is_error:
        assert change in (*CUTS, shorten), where
        assert set(found) <= {*before, *after}, where
    elif change is compact:
        assert set(before) & set(after) <= set(found) <= set(before), where
    elif change in CUTS:
        assert found in (before, after), where
    else:
        assert found == before, where
    assert [each.offset for each in found] == sorted({each.offset for each in found}), where


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "elsewhere"])
def test_a_log_that_is_cut_between_the_steps_of_a_scan_is_an_error(
    partition: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    """Rows that only the old state or only the new one has were left out, and nothing said so."""
    real = table_scan.read_kept
    with kstore.Log.open(partition) as log:
        append(log, 0, RECORDS)
        dataset = kstore.dataset(log if is_own else partition)
        monkeypatch.setattr(table_scan, "read_kept", lambda *a: cut_and_write_anew(log, 30) or real(*a))
        with pytest.raises(OffsetOutOfRangeError):
            dataset.to_table(columns=["value"], filter=pc.field("key") == b"k8")


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "elsewhere"])
def test_a_log_that_is_cut_between_the_ranges_of_a_scan_is_an_error(partition: Path, is_own: bool) -> None:
    with kstore.Log.open(partition) as log:
        append(log, 0, RECORDS)
        offset = pc.field("offset")
        batches = kstore.dataset(log if is_own else partition).to_batches(filter=(offset < 39) | (offset > 60))
        assert next(batches).num_rows == 39
        cut_and_write_anew(log, 30)
        with pytest.raises(OffsetOutOfRangeError):
            list(batches)


@pytest.mark.parametrize("change", [compact, grow, shorten], ids=lambda change: change.__name__)
def test_what_is_no_cut_is_no_error_between_the_steps_of_a_scan(
    partition: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[kstore.Log, int], None]
) -> None:
    real = table_scan.read_kept
    with kstore.Log.open(partition, segment_bytes=1200, cleanup_policy="compact,delete") as log:
        append(log, 0, RECORDS)
        key = row(0, RECORDS - 1).key
        monkeypatch.setattr(table_scan, "read_kept", lambda *a: change(log, 1) or real(*a))
        for dataset in (kstore.dataset(log), kstore.dataset(partition)):
            found = dataset.to_table(columns=["value"], filter=(pc.field("key") == key) & (pc.field("offset") > 2))
            assert found["value"].to_pylist()[-1] == b"0: %d" % (RECORDS - 1)
