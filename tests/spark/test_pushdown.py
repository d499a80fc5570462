"""A query's conditions, without a JVM: what is narrowed, and that no row that matches is left out."""

from __future__ import annotations

import logging
import operator
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.errors import InvalidTimestampError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.log.lateness import LatenessCheck
from kstore.spark import pushdown, scanning
from kstore.spark.integer_set import EVERY_INTEGER, IntegerSet
from kstore.spark.pushdown import Filters, narrowed
from kstore.spark.scan_reader import PushdownReader
from kstore.spark.scanning import Piece, Scan, plan
from kstore.spark.spark_options import ReadOptions
from tests.conftest import examples

START_MS = 1_700_000_000_000
COLUMNS = ("offset", "timestamp", "key", "value", "partition")


class EqualTo(SimpleNamespace):
    pass


class EqualNullSafe(SimpleNamespace):
    pass


class In(SimpleNamespace):
    pass


class GreaterThan(SimpleNamespace):
    pass


class GreaterThanOrEqual(SimpleNamespace):
    pass


class LessThan(SimpleNamespace):
    pass


class LessThanOrEqual(SimpleNamespace):
    pass


class IsNotNull(SimpleNamespace):
    pass


class Not(SimpleNamespace):
    pass


TESTS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    In: lambda one, several: one in several,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def on(kind: type, name: str, *value: Any) -> Any:
    return kind(attribute=(name,), **({"value": value[0]} if value else {}))


def holds(condition: Any, row: dict[str, Any]) -> bool:
    """What Spark makes of a condition without nulls."""
    if isinstance(condition, Not):
        return not holds(condition.child, row)
    return TESTS[type(condition)](row[condition.attribute[0]], condition.value)


def at(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=START_MS) + timedelta(milliseconds=milliseconds)


def read(root: Path, filters: Filters, **options: Any) -> list[dict[str, Any]]:
    parsed = ReadOptions.parse({"subscribe": "t", **{name: str(value) for name, value in options.items()}})
    scan = Scan(COLUMNS, parsed.isolation, parsed.fail_on_data_loss, filters=filters)
    pieces = plan(root, parsed, filters=filters)
    return [row for each in pieces for batch in scan.batches(each) for row in batch.to_pylist()]


def write(root: Path, timestamps: list[int], number: int = 0, topic: str = "t", **settings: Any) -> None:
    """Append one record for each timestamp after `START_MS`, in batches of a few."""
    with kstore.Log.open(root / f"{topic}-{number}", segment_bytes=4000, index_interval_bytes=200, **settings) as log:
        for first in range(0, len(timestamps), 5):
            few = timestamps[first : first + 5]
            values = [b"v%d" % (first + i) for i in range(len(few))]
            log.append_columns(values, keys=values, timestamps=[START_MS + each for each in few])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make windows, gaps and chunks so small that a log of some hundred records has several."""
    monkeypatch.setattr(pushdown, "WINDOW_OFFSETS", 37)
    monkeypatch.setattr(pushdown, "LEAST_GAP", 4)
    monkeypatch.setattr(scanning, "CHUNK_RECORDS", 8)


# --- what conditions say ----------------------------------------------------------------------------------------------

MOMENT = datetime(2023, 11, 14, 17, 13, 20, 500, tzinfo=timezone(-timedelta(hours=5)))  # half a ms after START_MS
FIVE = IntegerSet.of([5])


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ([on(EqualTo, "topic", "t"), on(IsNotNull, "topic")], Filters(topics=frozenset("t"))),
        ([on(In, "partition", [1, 2, None]), on(EqualTo, "partition", 2)], Filters(partitions=IntegerSet.of([2]))),
        ([Not(child=on(In, "partition", [1, 2]))], Filters(partitions=~IntegerSet.of([1, 2]))),
        ([on(EqualTo, "offset", 5)], Filters(offsets=FIVE)),
        ([on(EqualNullSafe, "offset", 5)], Filters(offsets=FIVE)),
        ([Not(child=on(EqualTo, "offset", 5))], Filters(offsets=~FIVE)),
        ([on(In, "offset", [5, 9])], Filters(offsets=IntegerSet.of([5, 9]))),
        ([on(GreaterThan, "offset", 5), on(LessThan, "offset", 9)], Filters(offsets=IntegerSet((6, 9)))),
        ([on(GreaterThanOrEqual, "offset", 5), on(LessThanOrEqual, "offset", 9)], Filters(offsets=IntegerSet((5, 10)))),
        ([Not(child=on(LessThan, "offset", 5))], Filters(offsets=IntegerSet((5,)))),
        ([on(GreaterThan, "timestamp", MOMENT)], Filters(timestamps=IntegerSet((START_MS + 1,)))),
        ([on(GreaterThanOrEqual, "timestamp", MOMENT)], Filters(timestamps=IntegerSet((START_MS + 1,)))),
        ([on(LessThan, "timestamp", MOMENT)], Filters(timestamps=~IntegerSet((START_MS + 1,)))),
        ([on(LessThanOrEqual, "timestamp", MOMENT)], Filters(timestamps=~IntegerSet((START_MS + 1,)))),
        ([on(LessThan, "timestamp", at(0))], Filters(timestamps=~IntegerSet((START_MS,)))),
        ([on(LessThanOrEqual, "timestamp", at(0))], Filters(timestamps=~IntegerSet((START_MS + 1,)))),
        ([on(EqualTo, "timestamp", MOMENT)], Filters(timestamps=~EVERY_INTEGER)),
        ([on(In, "timestamp", [at(0), MOMENT, at(7)])], Filters(timestamps=IntegerSet.of([START_MS, START_MS + 7]))),
    ],
)
def test_conditions_select_exactly_what_they_say(filters: list[Any], said: Filters) -> None:
    assert narrowed(filters) == said
    assert pickle.loads(pickle.dumps(said)) == said


@pytest.mark.parametrize(
    "condition",
    [
        on(EqualTo, "value", b"x"),
        on(EqualTo, "key", b"x"),
        on(EqualTo, "offset", None),
        on(EqualNullSafe, "offset", None),
        on(In, "offset", [None]),
        on(In, "offset", []),
        Not(child=on(In, "offset", [1, None])),
        Not(child=on(EqualTo, "topic", "t")),
        Not(child=on(IsNotNull, "offset")),
        SimpleNamespace(attribute=("headers", "key"), value="x"),
        SimpleNamespace(attribute=("offset",), value=5),
        SimpleNamespace(),
    ],
)
def test_a_condition_of_another_kind_leaves_nothing_out(condition: Any) -> None:
    assert narrowed([condition]) == Filters()


# --- which rows are read ----------------------------------------------------------------------------------------------


def random_condition(rng: random.Random, records: int, moments: list[int]) -> Any:
    def value(name: str) -> Any:
        if name == "timestamp":
            return at(rng.choice(moments) + rng.choice((0, 0, 0, 0.5, -1, 1)))
        return rng.randrange(records + 3) if name == "offset" else rng.randrange(3)

    name = rng.choice(("timestamp", "timestamp", "offset", "partition"))
    kind = rng.choice(list(TESTS))
    condition = on(kind, name, [value(name) for _ in range(rng.randrange(1, 4))] if kind is In else value(name))
    return Not(child=condition) if rng.random() < 0.2 else condition


def random_log(rng: random.Random, lateness: int) -> list[int]:
    """Timestamps in some order; none is below one before it by more than `lateness`."""
    base = sorted(rng.randrange(1000) for _ in range(rng.randrange(1, 120)))
    return [each + rng.randrange(lateness + 1) for each in base]


def same_as_full_scan(root: Path, rng: random.Random, every: list[dict[str, Any]], **promise: Any) -> None:
    moments = [(row["timestamp"] - at(0)) // timedelta(milliseconds=1) for row in every]
    for _ in range(8):
        conditions = [random_condition(rng, len(every), moments) for _ in range(rng.randrange(1, 4))]
        expected = [row for row in every if all(holds(each, row) for each in conditions)]
        found = read(root, replace(narrowed(conditions), **promise), **rng.choice([{}, {"minPartitions": 7}]))
        assert [row for row in found if all(holds(each, row) for each in conditions)] == expected, conditions
        # For conditions on offsets and timestamps the tasks' own test is exact.
        assert found == expected, conditions


@examples(0.3)
@given(st.integers(0, 2**32))
def test_filtered_scans_have_the_rows_of_full_ones(small: None, tmp_path_factory: Any, seed: int) -> None:
    rng, root = random.Random(seed), tmp_path_factory.mktemp("logs")
    for number in range(2):
        write(root, random_log(rng, rng.choice((0, 50, 1000))), number)
    clock = [START_MS]
    with kstore.Log.open(root / "t-2", message_timestamp_type="LogAppendTime", clock=lambda: clock[0]) as log:
        for _ in range(rng.randrange(40)):
            clock[0] = START_MS + rng.randrange(1000)
            log.append_many([b"x"] * rng.randrange(1, 5))
    same_as_full_scan(root, rng, read(root, Filters()))


@examples(0.3)
@given(st.integers(0, 2**32), st.sampled_from((0, 1, 30, 300)))
def test_a_kept_promise_of_lateness_loses_no_row(small: None, tmp_path_factory: Any, seed: int, lateness: int) -> None:
    rng, root = random.Random(seed), tmp_path_factory.mktemp("logs")
    for number in range(3):
        write(root, random_log(rng, lateness), number)
    same_as_full_scan(root, rng, read(root, Filters()), max_lateness_ms=lateness)


@pytest.mark.parametrize("name", ["legacy", "compaction", "transactions", "codecs"])
def test_logs_that_brokers_wrote_are_filtered_like_others(small: None, golden: Any, name: str) -> None:
    rng = random.Random(7)
    for path in sorted(each.parent for each in golden(name).rglob("00000000000000000000.log")):
        with kstore.Log.open(path, "r") as log:
            piece = Piece(str(path), "t", 0, log.log_start_offset, log.log_end_offset)
            chunk = log.read_columns(columns=("offset", "timestamp"))
        rows = list(zip(chunk.offsets.tolist(), chunk.timestamps.tolist(), strict=True))
        for _ in range(4):
            times = IntegerSet.of(rng.sample([each for _, each in rows], min(3, len(rows))))
            times = rng.choice((times, ~times, IntegerSet(times.borders[:1]), ~IntegerSet(times.borders[:1])))
            batches = Scan(("offset",), filters=Filters(timestamps=times)).batches(piece)
            found = [offset for batch in batches for offset in batch.column(0).to_pylist()]
            assert found == [offset for offset, time in rows if time in times]


def test_the_planned_ranges_end_by_the_promise_only(tmp_path: Path) -> None:
    write(tmp_path, [0, 10, 5, 20, 15, 30, 25, 40, 35, 50])
    times = IntegerSet((START_MS + 10, START_MS + 20))

    def planned(**more: Any) -> list[tuple[int, int]]:
        filters = Filters(timestamps=times, **more)
        return [
            (each.start, each.end) for each in plan(tmp_path, ReadOptions.parse({"subscribe": "t"}), filters=filters)
        ]

    assert planned() == [(1, 10)]
    assert planned(max_lateness_ms=5) == [(1, 5)]  # to the first record at or after 25
    assert planned(max_lateness_ms=2**63 - 1) == [(1, 10)]
    assert planned(offsets=IntegerSet((3, 8))) == [(3, 8)]
    assert planned(partitions=IntegerSet.of([1])) == planned(offsets=IntegerSet((10,))) == []


def test_conditions_narrow_a_partition_before_it_is_split(tmp_path: Path) -> None:
    write(tmp_path, list(range(100)))
    options = ReadOptions.parse({"subscribe": "t", "maxRecordsPerPartition": "10"})
    filters = Filters(timestamps=IntegerSet((START_MS + 35, START_MS + 50)), max_lateness_ms=0)
    assert [(each.start, each.end) for each in plan(tmp_path, options, filters=filters)] == [(35, 45), (45, 50)]


def test_batches_are_left_out_by_their_headers(tmp_path: Path, small: None) -> None:
    """A record of the future comes first, so that the time index does not help; it is one of its own batch."""
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append_columns([b"x"], timestamps=[START_MS + 10**9])
        for each in range(10):
            log.append_columns([b"x"] * 10, timestamps=[START_MS + 10 * each + i for i in range(10)])
    with kstore.Log.open(tmp_path / "t-0", "r") as log:
        assert list(Filters(timestamps=IntegerSet((START_MS + 75,))).ranges(log, 0, 101)) == [
            (0, 1),
            (71, 74),
            (74, 101),
        ]
        assert list(Filters(offsets=IntegerSet((15, 20, 60, 65))).ranges(log, 0, 101)) == [(15, 21), (60, 71)]
        assert list(Filters(timestamps=IntegerSet(())).ranges(log, 0, 101)) == []


@pytest.mark.parametrize(("least", "ranges"), [(20, [(11, 21), (41, 51)]), (21, [(11, 51)])])
def test_small_gaps_between_ranges_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, ranges: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(pushdown, "LEAST_GAP", least)
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append(b"x")
        for _ in range(10):
            log.append_many([b"x"] * 10)
        assert list(Filters(offsets=IntegerSet.of([11, 45])).ranges(log, 0, 101)) == ranges


def test_keys_and_values_are_decoded_of_selected_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, list(range(0, 1000, 10)))
    asked = []
    chunks = Scan._chunks

    def spied(self: Scan, log: Any, piece: Piece, offset: int, wanted: Any, end: int | None = None) -> Iterator[Any]:
        asked.append(wanted)
        return chunks(self, log, piece, offset, wanted, end)

    monkeypatch.setattr(Scan, "_chunks", spied)
    found = read(tmp_path, Filters(timestamps=IntegerSet.of([START_MS + 400, START_MS + 900])))
    assert [(row["offset"], row["value"], row["partition"]) for row in found] == [(40, b"v40", 0), (90, b"v90", 0)]
    assert set(asked) == {("offset", "timestamp")}


# --- promises ---------------------------------------------------------------------------------------------------------


def test_a_record_later_than_promised_is_named(tmp_path: Path) -> None:
    write(tmp_path, [0, 100, 200, 139, 300, 400], number=3)
    times = IntegerSet((START_MS, START_MS + 250))
    assert len(read(tmp_path, Filters(timestamps=times, max_lateness_ms=61))) == 4
    said = (
        r"t-3: the record at offset 3 has the timestamp 2023-11-14T22:13:20.139Z, and one before it has "
        r"2023-11-14T22:13:20.200Z: that is later by more than maxLatenessMs, 60 ms"
    )
    with pytest.raises(InvalidTimestampError, match=said):
        read(tmp_path, Filters(timestamps=times, max_lateness_ms=60))


def test_a_time_in_the_future_is_noticed_though_it_ends_the_range(tmp_path: Path) -> None:
    """The range of the hour is empty: its first record is the one of the future, and its end as well."""
    write(tmp_path, [10**9, *range(100)])
    filters = Filters(timestamps=IntegerSet((START_MS + 10, START_MS + 20)), max_lateness_ms=10**9 - 99)
    assert read(tmp_path, filters) == []  # the promise is broken for the first records only, which nothing tells
    said = "t-0: the last record, at offset 100, has the timestamp 2023-11-14T22:13:20.099Z, and one before it"
    with pytest.raises(InvalidTimestampError, match=said):
        read(tmp_path, replace(filters, max_lateness_ms=10**9 - 100))


def test_lateness_is_noticed_from_chunk_to_chunk_and_at_the_limits() -> None:
    check = LatenessCheck("t-0", 2**63 - 1, "maxLatenessMs")
    for time in (2**63 - 1, 0, 1):
        check.see(chunk_of(time))
    with pytest.raises(InvalidTimestampError):
        check.see(chunk_of(-1))
    check = LatenessCheck("t-0", 0, "maxLatenessMs")
    check.see(chunk_of(0))
    check.see(chunk_of(0))
    check.see(chunk_of(2**63 - 1))
    with pytest.raises(InvalidTimestampError):
        check.see(chunk_of(2**63 - 2))


def chunk_of(time: int) -> Any:
    return {"offset": np.array([7]), "timestamp": np.array([time])}


def test_keys_choose_partitions_if_the_topic_is_partitioned_by_key(tmp_path: Path) -> None:
    keys = [b"", b"alice", b"bob", b"carol", b"\xff"]
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t", partitions=5)
        store.append_many("t", [(key, b"v") for key in keys])
        places = {key: store.partition_for("t", key) for key in keys}
    options = ReadOptions.parse({"subscribe": "t"})

    def planned(*conditions: Any, by_key: bool = True) -> set[int]:
        return {each.partition for each in plan(tmp_path, options, filters=narrowed(conditions, by_key=by_key))}

    everywhere = set(places.values())
    for key in keys:
        assert planned(on(EqualTo, "key", key)) == planned(on(EqualNullSafe, "key", bytearray(key))) == {places[key]}
    assert planned(on(In, "key", [b"alice", None, b"bob"])) == {places[b"alice"], places[b"bob"]}
    assert planned(on(EqualTo, "key", b"alice"), on(EqualTo, "key", b"bob")) == set()
    for others in (on(GreaterThan, "key", b"a"), Not(child=on(EqualTo, "key", b"a")), on(EqualNullSafe, "key", None)):
        assert planned(others) == everywhere
    assert planned(on(EqualTo, "key", b"alice"), by_key=False) == everywhere


def test_a_topic_with_a_missing_partition_is_not_narrowed_by_keys() -> None:
    filters = Filters(keys=frozenset([b"alice"])).by_keys({"t": [0, 2], "u": [1, 0]})
    assert [filters.takes("t", number) for number in (0, 2)] == [True, True]
    assert sorted(filters.takes("u", number) for number in (0, 1)) == [False, True]


def test_a_reader_hands_its_promises_and_conditions_to_the_tasks(tmp_path: Path) -> None:
    write(tmp_path, [0, 100, 200, 300, 400])
    given = {"subscribe": "t", "pushdown": "true", "maxLatenessMs": "100", "partitionedByKey": "true"}
    fields = [SimpleNamespace(name="offset", dataType=SimpleNamespace(simpleString=lambda: "bigint"), nullable=True)]
    reader = PushdownReader(str(tmp_path), ReadOptions.parse(given), SimpleNamespace(fields=fields))  # type: ignore[arg-type]
    conditions = [on(LessThan, "timestamp", at(200)), on(EqualTo, "key", b"v1")]
    assert reader.pushFilters(conditions) == conditions
    [part] = reader.partitions()
    assert [batch.column(0).to_pylist() for batch in reader.read(part)] == [[0, 1]]
    assert (part.piece.start, part.piece.end) == (0, 3)  # type: ignore[attr-defined]
    assert reader._scan.filters.keys == frozenset([b"v1"])


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_records_that_were_deleted_are_data_loss_under_a_condition_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, list(range(100)))
    filters = Filters(timestamps=IntegerSet((START_MS + 10, START_MS + 60)))
    piece = Piece(str(tmp_path / "t-0"), "t", 0, 10, 100)
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.delete_records(50)
    with pytest.raises(OffsetOutOfRangeError, match="the log has offsets 50 to 100 now"):
        list(Scan(("offset",), filters=filters).batches(piece))
    with caplog.at_level(logging.WARNING, "kstore"):
        batches = Scan(("offset",), filters=filters, fail_on_data_loss=False).batches(piece)
        assert [row for batch in batches for row in batch.column(0).to_pylist()] == list(range(50, 60))


def test_a_topic_created_again_during_a_read_without_matches_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t", partitions=1)
        store.append_many("t", [(b"k", b"v", START_MS, ())] * 5)
    filters = Filters(timestamps=IntegerSet.of([START_MS + 1]))
    piece = Piece(str(tmp_path / "t-0"), "t", 0, 0, 5, scanning.topic_id_in(str(tmp_path / "t-0")))
    ids = iter([piece.topic_id, "another"])
    monkeypatch.setattr(scanning, "topic_id_in", lambda _: next(ids))
    with pytest.raises(UnknownTopicOrPartitionError, match="another is there"):
        list(Scan(("offset",), filters=filters).batches(piece))
