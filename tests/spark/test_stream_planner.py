"""What micro-batches a stream gets, on real logs that another store writes and without a JVM."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kstore import Store
from kstore.disk import fs
from kstore.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.files import checkpoint
from kstore.files.stream_positions import read_positions
from kstore.spark.scanning import Scan
from kstore.spark.stream_offsets import StreamOffsets
from kstore.spark.stream_options import MAX_DELAY_MS, StreamOptions
from kstore.spark.stream_planner import HANGING_MS, StreamPlanner
from kstore.testing import ManualClock

START_MS = 1_700_000_000_000


class Stream:
    """A stream of one directory: its planner, and where it stands."""

    def __init__(self, root: Path, clock: ManualClock | None = None, **options: Any) -> None:
        given = {"startingOffsets": "earliest"} | options
        if not given.keys() & {"assign", "subscribePattern"}:
            given.setdefault("subscribe", "t")
        self.options = StreamOptions.parse({name: str(value) for name, value in given.items()})
        self.planner = StreamPlanner(str(root), self.options, clock=clock or ManualClock(0))
        self.at = StreamOffsets()

    def start(self) -> Stream:
        self.at = self.planner.initial()
        return self

    def trigger(self, most: int | None = None, least: int | None = None) -> list[tuple[str, int, int, bytes]]:
        """Plan one micro-batch, read it, and go on; the topic, partition, offset and value of each row."""
        end = self.planner.latest(self.at, most, least)
        rows = self.rows(self.at, end)
        self.at = end
        return rows

    def rows(self, start: StreamOffsets, end: StreamOffsets) -> list[tuple[str, int, int, bytes]]:
        read = self.options.read
        scan = Scan(("topic", "partition", "offset", "value"), read.isolation, read.fail_on_data_loss)
        pieces = self.planner.pieces(start, end)
        return [tuple(row.values()) for each in pieces for batch in scan.batches(each) for row in batch.to_pylist()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with a topic `t` of two partitions, open for writing all the time."""
    with Store.open(tmp_path / "logs", background=False) as store:
        store.create_topic("t", 2)
        yield store


@pytest.fixture
def root(store: Store) -> Path:
    return Path(store._metadata.paths[0])


def append(store: Store, place: int, *values: bytes, topic: str = "t") -> None:
    store.log(topic, place).append_many((value, value) for value in values)


def values(rows: list[tuple[str, int, int, bytes]]) -> list[bytes]:
    return [row[-1] for row in rows]


# --- where it starts, and how far it goes -----------------------------------------------------------------------------


def test_a_stream_starts_at_the_latest_offsets_unless_told_otherwise(store: Store, root: Path) -> None:
    append(store, 0, b"old")
    stream = Stream(root, startingOffsets="latest").start()
    assert StreamOptions.parse({"subscribe": "t"}).read.starting.text == "latest"
    append(store, 0, b"new")
    assert stream.trigger() == [("t", 0, 1, b"new")]


def test_a_stream_starts_at_offsets_and_times_that_are_given(store: Store, root: Path) -> None:
    store.log("t", 0).append_many([(None, b"%d" % i, START_MS + i, None) for i in range(5)])
    append(store, 1, b"a", b"b")
    offsets = '{"t": {"0": 3, "1": -1}}'
    assert values(Stream(root, startingOffsets=offsets).start().trigger()) == [b"3", b"4"]
    assert values(Stream(root, startingTimestamp=START_MS + 2).start().trigger()) == [b"2", b"3", b"4", b"a", b"b"]
    with pytest.raises(ConfigError, match="does not name t-1"):
        Stream(root, startingOffsets='{"t": {"0": 3}}').start()


def test_a_limit_is_shared_out_in_proportion_to_the_backlogs(store: Store, root: Path) -> None:
    append(store, 0, *(b"a",) * 30)
    append(store, 1, *(b"b",) * 10)
    stream = Stream(root).start()
    assert values(stream.trigger(most=8)) == [b"a"] * 6 + [b"b"] * 2
    assert [len(stream.trigger(most=20)) for _ in range(3)] == [20, 12, 0]


def test_fewer_rows_than_the_least_wait_until_the_delay_has_passed(store: Store, root: Path) -> None:
    clock = ManualClock(0)
    stream = Stream(root, clock, minOffsetsPerTrigger=3).start()
    append(store, 0, b"a", b"b")
    assert stream.trigger(least=3) == []
    clock.now = MAX_DELAY_MS - 1
    assert stream.trigger(least=3) == []
    clock.now += 1
    assert len(stream.trigger(least=3)) == 2
    append(store, 0, b"c", b"d", b"e")
    assert len(stream.trigger(least=3)) == 3  # at once


def test_a_stream_that_is_frozen_ends_exactly_there_and_takes_in_nothing_new(store: Store, root: Path) -> None:
    append(store, 0, *(b"a",) * 5)
    stream = Stream(root, subscribePattern=".*").start()
    stream.planner.freeze()
    append(store, 0, b"late")
    store.create_topic("u", 1)
    append(store, 0, b"later", topic="u")
    found = [stream.trigger(most=2, least=100) for _ in range(4)]
    assert [len(rows) for rows in found] == [2, 2, 1, 0]
    assert stream.planner.latest(stream.at, 2, None).to_json() == stream.at.to_json()
    assert stream.planner.newest().ends == {("t", 0): 6, ("t", 1): 0, ("u", 0): 1}  # the lag is shown


def test_a_frozen_stream_that_starts_at_the_latest_reads_nothing(store: Store, root: Path) -> None:
    stream = Stream(root, startingOffsets="latest")
    stream.planner.freeze()
    append(store, 0, b"between")
    stream.start()
    assert stream.trigger() == []


def test_new_partitions_and_topics_are_read_from_their_first_record(store: Store, root: Path) -> None:
    stream = Stream(root, startingOffsets="latest", subscribePattern="t|u").start()
    store.add_partitions("t", 3)
    append(store, 2, b"new partition")
    store.create_topic("u", 1)
    append(store, 0, b"new topic", topic="u")
    store.create_topic("other", 1)
    append(store, 0, b"not chosen", topic="other")
    assert values(stream.trigger()) == [b"new partition", b"new topic"]


def test_pieces_are_cut_as_a_scan_cuts_them(store: Store, root: Path) -> None:
    append(store, 0, *(b"a",) * 100)
    stream = Stream(root, maxRecordsPerPartition=30, minPartitions=2).start()
    pieces = stream.planner.pieces(stream.at, stream.planner.latest(stream.at, None, None))
    assert len(pieces) >= 4
    assert max(each.end - each.start for each in pieces) <= 30
    assert len(values(stream.trigger())) == 100


def test_a_batch_that_is_planned_again_has_the_same_rows(store: Store, root: Path) -> None:
    append(store, 0, b"a", b"b")
    stream = Stream(root).start()
    start = stream.at
    rows = stream.trigger()
    append(store, 0, b"c")
    again = Stream(root)  # after a restart Spark asks for the pieces first
    assert again.rows(start, stream.at) == rows


# --- what can be lost -------------------------------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_retention_that_overtakes_the_stream_is_an_error_or_a_warning(
    store: Store, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(store, 0, *(b"%d" % i for i in range(10)))
    strict, lenient = Stream(root).start(), Stream(root, failOnDataLoss="false").start()
    strict.trigger(most=2)
    lenient.trigger(most=2)
    store.log("t", 0).delete_records(7)
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0 starts at offset 7, and offset 2 .*retention has overtaken"):
        strict.trigger()
    assert values(lenient.trigger()) == [b"7", b"8", b"9"]
    assert lenient.trigger() == []
    assert len(warnings(caplog)) == 1
    assert "goes on at 7" in warnings(caplog)[0]


def test_records_deleted_between_the_plan_and_the_read_are_an_error(store: Store, root: Path) -> None:
    append(store, 0, *(b"%d" % i for i in range(10)))
    stream = Stream(root).start()
    end = stream.planner.latest(stream.at, None, None)
    store.log("t", 0).delete_records(7)
    with pytest.raises(OffsetOutOfRangeError, match="failOnDataLoss"):
        stream.rows(StreamOffsets({("t", 0): 2, ("t", 1): 0}), end)


def test_first_records_that_are_deleted_after_the_plan_are_an_error(store: Store, root: Path) -> None:
    append(store, 0, *(b"%d" % i for i in range(10)))
    stream = Stream(root).start()
    end = stream.planner.latest(stream.at, None, None)
    store.log("t", 0).delete_records(7)
    with pytest.raises(OffsetOutOfRangeError, match="was to be read from 0 to 10, but the log has offsets 7 to 10"):
        stream.rows(stream.at, end)
    assert values(Stream(root, failOnDataLoss="false").rows(stream.at, end)) == [b"7", b"8", b"9"]


def test_the_planned_batch_of_a_deleted_topic_stops_no_stream_that_may_lose_data(store: Store, root: Path) -> None:
    store.create_topic("u", 1)
    append(store, 0, *(b"x",) * 100, topic="u")
    append(store, 0, b"a")
    options = {"subscribePattern": "t|u", "failOnDataLoss": "false", "minPartitions": 4}
    stream = Stream(root, **options).start()
    end = stream.planner.latest(stream.at, None, None)
    store.delete_topic("u")
    assert values(Stream(root, **options).rows(stream.at, end)) == [b"a"]


def test_a_topic_that_is_deleted_during_the_look_is_not_there(store: Store, root: Path) -> None:
    append(store, 0, b"a")
    store.create_topic("u", 1)
    stream = Stream(root).start()
    topics = stream.planner._store.topics
    store.delete_topic("u")
    with mock.patch.object(Store, "topics", topics):
        assert values(stream.trigger()) == [b"a"]


def test_records_that_are_cut_off_are_an_error_or_a_warning(
    store: Store, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (b"a", b"b", b"c"):
        append(store, 0, value)
    strict, lenient = Stream(root).start(), Stream(root, failOnDataLoss="false").start()
    strict.trigger()
    lenient.trigger()
    store.log("t", 0).truncate_to(1)
    with pytest.raises(OffsetOutOfRangeError, match="t-0 ends at offset 1, and the stream has read up to 3"):
        strict.trigger()
    assert lenient.trigger() == []
    append(store, 0, b"d")
    assert values(lenient.trigger()) == [b"d"]
    assert len(warnings(caplog)) == 1


def test_a_topic_that_is_deleted_is_an_error_or_a_warning(
    store: Store, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("u", 1)
    append(store, 0, b"x", topic="u")
    strict = Stream(root, subscribePattern="t|u").start()
    lenient = Stream(root, subscribePattern="t|u", failOnDataLoss="false").start()
    strict.trigger()
    lenient.trigger()
    store.delete_topic("u")
    append(store, 0, b"goes on")
    with pytest.raises(UnknownTopicOrPartitionError, match=r"u-0, of which offset 1 is next, is gone"):
        strict.trigger()
    assert values(lenient.trigger()) == [b"goes on"]
    assert ("u", 0) not in lenient.at.ends
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_that_is_created_again_is_an_error_or_is_read_from_its_start(
    store: Store, root: Path, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    append(store, 0, b"old 0", b"old 1")
    strict, lenient = Stream(root).start(), Stream(root, failOnDataLoss="false").start()
    strict.trigger()
    lenient.trigger()
    store.delete_topic("t")
    store.create_topic("t", 2)
    append(store, 0, b"new 0", b"new 1", b"new 2")
    if restarted:
        for stream in (strict, lenient):
            stream.planner = StreamPlanner(str(root), stream.options)
    with pytest.raises(UnknownTopicOrPartitionError, match="topic t was deleted and created again: its id was"):
        strict.trigger()
    assert values(lenient.trigger()) == [b"new 0", b"new 1", b"new 2"]
    assert lenient.trigger() == []
    assert [text for text in warnings(caplog) if "created again" in text]


def test_the_id_of_a_topic_stays_known_while_its_file_cannot_be_read(store: Store, root: Path) -> None:
    stream = Stream(root).start()
    metadata = root / "t-0" / "partition.metadata"
    data = metadata.read_bytes()
    metadata.unlink()
    append(store, 0, b"a")
    assert values(stream.trigger()) == [b"a"]
    metadata.write_bytes(data)
    store.delete_topic("t")
    store.create_topic("t", 2)
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        stream.trigger()


def test_a_topic_that_is_subscribed_and_does_not_exist_is_an_error(store: Store, root: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="subscribe names 'missing'"):
        Stream(root, subscribe="t,missing").start()


def test_a_transaction_that_hangs_is_named_with_what_to_do(
    store: Store, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(0)
    stream = Stream(root, clock, isolation="read_committed").start()
    producer = store.producer(transactional_id="stuck")
    transaction = producer.transaction()
    transaction.append_many("t", [b"open"], partition=0)
    append(store, 0, b"behind")
    append(store, 1, b"elsewhere")
    assert values(stream.trigger()) == [b"elsewhere"]
    clock.now = HANGING_MS
    assert stream.trigger() == []
    assert stream.trigger() == []
    (text,) = warnings(caplog)
    assert "t-0" in text
    assert f"producer {producer.producer_id} " in text
    assert "isolation=read_uncommitted" in text
    transaction.commit()
    assert values(stream.trigger()) == [b"open", b"behind"]


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_stream_that_becomes_read_committed_repeats_and_misses_nothing(
    store: Store, root: Path, strict: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = Stream(root).start()
    transaction = store.producer(transactional_id="slow").transaction()
    transaction.append_many("t", [b"open"], partition=0)
    append(store, 0, b"behind")
    assert values(before.trigger()) == [b"open", b"behind"]
    stream = Stream(root, isolation="read_committed", failOnDataLoss=strict)
    stream.at = before.at
    assert stream.trigger() == []
    transaction.commit()
    append(store, 0, b"next")
    assert values(stream.trigger()) == [b"next"]
    assert warnings(caplog) == []


def test_a_checkpoint_of_the_cleaner_that_cannot_be_read_is_a_warning(
    store: Store, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(store, 0, b"a")
    stream = Stream(root).start()
    (root / checkpoint.CLEANER_OFFSETS).write_text("no checkpoint\n")
    assert values(stream.trigger()) == [b"a"]
    assert stream.trigger() == []
    (text,) = warnings(caplog)
    assert "it is not known how far compaction has come" in text


def test_a_compaction_that_overtakes_the_stream_is_a_warning(
    store: Store, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("c", 1, config={"cleanup.policy": "compact"})
    checkpoint.write_offsets(root, checkpoint.CLEANER_OFFSETS, {("c", 0): 3})
    append(store, 0, *(b"%d" % i for i in range(10)), topic="c")
    stream = Stream(root, subscribe="c").start()
    stream.trigger(most=5)
    assert warnings(caplog) == []  # what was compacted before the stream began is no news
    checkpoint.write_offsets(root, checkpoint.CLEANER_OFFSETS, {("c", 0): 8})
    stream.trigger(most=1)
    stream.trigger(most=1)
    (text,) = warnings(caplog)
    assert "c-0: compaction has reached offset 8, and the stream is at 5" in text
    assert "min.compaction.lag.ms" in text


# --- what it costs and leaves -----------------------------------------------------------------------------------------


def test_a_look_at_unchanged_directories_lists_none_and_takes_no_lock(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(store, 0, b"a")
    stream = Stream(root).start()
    stream.trigger()
    settle(root)
    stream.trigger()  # after this the planner has seen times that are old enough to be believed
    calls: list[str] = []

    def counted(name: str) -> Any:
        original = getattr(fs, name)

        def call(*given: Any, **options: Any) -> Any:
            calls.append(name)
            return original(*given, **options)

        return call

    for name in ("scandir", "listdir", "lock_root"):
        monkeypatch.setattr(fs, name, counted(name))
    stream.trigger()
    assert calls == []
    store.log("t", 0).roll()
    stream.trigger()
    assert calls  # the directory that has changed
    assert "lock_root" not in calls


def settle(root: Path) -> None:
    """Make the directories' times of modification old."""
    for path in (root, *root.iterdir()):
        if path.is_dir():
            os.utime(path, ns=(1, 1))


def test_a_group_has_its_positions_in_a_file_beside_the_directory(store: Store, root: Path) -> None:
    stream = Stream(root, ManualClock(1234), groupId="monitored").start()
    append(store, 0, b"a", b"b")
    before = sorted(path.name for path in root.iterdir())
    stream.trigger()
    stream.planner.done(stream.at)
    (found,) = read_positions(str(root))
    assert (found.group, found.written_ms, found.offsets) == ("monitored", 1234, {("t", 0): 2, ("t", 1): 0})
    assert sorted(path.name for path in root.iterdir()) == before


def test_positions_that_cannot_be_written_are_a_warning_and_no_more(
    store: Store, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(f"{root}.kstore-positions").write_text("a file in the way")
    stream = Stream(root, groupId="g").start()
    stream.planner.done(stream.at)
    stream.planner.done(stream.at)
    (text,) = warnings(caplog)
    assert "the positions of group g are not written" in text


@pytest.mark.parametrize("group", ["", "..", "a/b", "x" * 249])
def test_a_group_that_cannot_name_a_file_is_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="groupId"):
        StreamOptions.parse({"subscribe": "t", "groupId": group})


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is an option of a batch read"),
        ({"pushdown": "true"}, "pushdown is an option of a batch read"),
        ({"maxOffsetPerTrigger": "5"}, "maxOffsetPerTrigger is no option of a stream"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "above maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon'"),
        ({"maxTriggerDelay": "5 fortnights"}, "maxTriggerDelay is '5 fortnights'"),
        ({"startingOffsets": "yesterday"}, "startingOffsets"),
        ({"subscribePattern": "t"}, "exactly one of subscribe"),
    ],
)
def test_a_bad_option_of_a_stream_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        StreamOptions.parse({"subscribe": "t"} | options)


@pytest.mark.parametrize(
    ("text", "wanted"), [("15m", 900_000), ("90", 90), ("2 min", 120_000), ("1h", 3_600_000), ("500ms", 500)]
)
def test_a_delay_has_sparks_units(text: str, wanted: int) -> None:
    assert StreamOptions.parse({"subscribe": "t", "maxTriggerDelay": text}).max_delay_ms == wanted


# --- random histories -------------------------------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """Appends, rolls, new partitions, limits, restarts and repeated batches: each record comes exactly once."""

    @initialize()
    def begin(self) -> None:
        self.place = tempfile.mkdtemp(prefix="kstore-stream-")
        self.store = Store.open(self.place, background=False)
        self.store.create_topic("t", 1)
        self.stream = Stream(Path(self.place), maxRecordsPerPartition=7).start()
        self.appended: dict[tuple[str, int], list[bytes]] = {("t", 0): []}
        self.read: dict[tuple[str, int], list[bytes]] = {}
        self.last: tuple[StreamOffsets, StreamOffsets, Any] | None = None

    @rule(data=st.data(), count=st.integers(1, 20))
    def append(self, data: st.DataObject, count: int) -> None:
        number = data.draw(st.integers(0, len(self.appended) - 1))
        given = self.appended["t", number]
        new = [b"%d-%d" % (number, len(given) + i) for i in range(count)]
        self.store.log("t", number).append_many(new)
        given.extend(new)

    @rule(data=st.data())
    def roll(self, data: st.DataObject) -> None:
        self.store.log("t", data.draw(st.integers(0, len(self.appended) - 1))).roll()

    @precondition(lambda self: len(self.appended) < 4)
    @rule()
    def add_partition(self) -> None:
        self.store.add_partitions("t", len(self.appended) + 1)
        self.appended["t", len(self.appended)] = []

    @rule(most=st.none() | st.integers(1, 30))
    def trigger(self, most: int | None) -> None:
        start = self.stream.at
        rows = self.stream.trigger(most)
        assert most is None or len(rows) <= most
        self.last = (start, self.stream.at, rows)
        for topic, number, offset, value in rows:
            at = self.read.setdefault((topic, number), [])
            assert offset == len(at)
            at.append(value)

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat(self) -> None:
        assert self.last is not None
        start, end, rows = self.last
        assert self.stream.rows(start, end) == rows

    @rule()
    def restart(self) -> None:
        self.stream.planner.close()
        self.stream.planner = StreamPlanner(self.place, self.stream.options)
        self.stream.at = StreamOffsets.parse(self.stream.at.to_json())

    @invariant()
    def what_was_read_is_a_part_of_what_was_appended(self) -> None:
        for place, found in getattr(self, "read", {}).items():
            assert found == self.appended[place][: len(found)]

    def teardown(self) -> None:
        self.trigger(None)
        assert self.read == {place: given for place, given in self.appended.items() if given}
        self.stream.planner.close()
        self.store.close()
        shutil.rmtree(self.place)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_batches_of_a_stream_have_sparks_types(store: Store, root: Path) -> None:
    append(store, 0, b"a")
    stream = Stream(root).start()
    (piece,) = stream.planner.pieces(stream.at, stream.planner.latest(stream.at, None, None))
    (batch,) = Scan(stream.options.read.columns).batches(piece)
    assert batch.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
