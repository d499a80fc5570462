"""Options of scans and writes, and the ranges that tasks read: SPARK 4 row by row, without a JVM."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.spark.option_reader import COLUMN_TYPES
from kstore.spark.spark_options import Range, ReadOptions, WriteOptions, split

THERE = {"a": [0, 1], "b": [0], "__consumer_offsets": [0]}


class Numbers:
    """A partition of which only numbers are known: offsets `[start, end)`, a record every 10 ms from offset 0 on."""

    def __init__(self, start: int, end: int, batch: int = 1) -> None:
        self.start, self.end, self.batch = start, end, batch

    def at_time(self, timestamp: int) -> int | None:
        offset = max(-(-timestamp // 10), self.start)
        return offset if offset < self.end else None

    def border(self, offset: int) -> int:
        return offset - offset % self.batch


def ranges(there: Callable[[str, int], Numbers] | None = None, **options: Any) -> list[tuple[Any, ...]]:
    """What is planned of `THERE`; each partition has the offsets 5 to 20 unless said otherwise."""
    parsed = ReadOptions.parse({name: str(value) for name, value in options.items()})
    return [tuple(each) for each in parsed.plan(parsed.choose(THERE), there or (lambda *_: Numbers(5, 20)))]


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        ranges(**options)
    return str(caught.value)


# --- which partitions -------------------------------------------------------------------------------------------------


def test_subscribe_takes_all_partitions_of_its_topics_and_drops_blank_entries() -> None:
    assert ranges(subscribe=" b, ,a,") == [("a", 0, 5, 20), ("a", 1, 5, 20), ("b", 0, 5, 20)]


def test_a_pattern_matches_whole_names_and_leaves_out_what_coordinators_keep() -> None:
    assert {each[0] for each in ranges(subscribePattern=".*")} == {"a", "b"}
    assert [each[0] for each in ranges(subscribePattern="b|ab")] == ["b"]
    assert ranges(subscribePattern="nothing") == []


def test_assign_takes_the_partitions_that_it_names() -> None:
    assert ranges(assign='{"a":[1],"b":[0]}') == [("a", 1, 5, 20), ("b", 0, 5, 20)]


@pytest.mark.parametrize("given", [{}, {"subscribe": "a", "assign": "{}"}, {"subscribe": "a", "subscribePattern": "a"}])
def test_exactly_one_way_to_choose_is_wanted(given: dict[str, str]) -> None:
    assert "exactly one of subscribe, subscribePattern, assign" in refusal(**given)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("subscribe", " , ", "subscribe names no topic: ','"),
        ("subscribePattern", "", "subscribePattern is empty"),
        ("subscribePattern", "(", "subscribePattern is no regular expression"),
        ("assign", "a", "assign is no JSON"),
        ("assign", "[]", "assign is no JSON object"),
        ("assign", "{}", "assign names no partition"),
        ("assign", '{"a": 1}', "assign wants a list of partitions for 'a'"),
        ("assign", '{"a": [-1]}', "assign has -1 for 'a'"),
        ("assign", '{"a": [true]}', "assign has True for 'a'"),
        ("assign", "[" * 5000, "assign is no JSON"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_with_its_value(option: str, value: str, said: str) -> None:
    assert said in refusal(**{option: value})


@pytest.mark.parametrize("given", [{"subscribe": "a,gone"}, {"assign": '{"a":[0,7]}'}, {"assign": '{"gone":[0]}'}])
def test_a_missing_partition_is_an_error_unless_data_loss_is_allowed(
    given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=r"gone|a-7"):
        ranges(**given)
    with caplog.at_level(logging.WARNING, "kstore"):
        assert {each[0] for each in ranges(**given, failOnDataLoss="false")} <= {"a"}
    assert "failOnDataLoss is false" in caplog.text


# --- where they start and end -----------------------------------------------------------------------------------------


def test_names_and_words_may_be_in_any_case() -> None:
    assert ranges(SUBSCRIBE="b", STARTINGOFFSETS="Earliest", endingoffsets="LATEST") == [("b", 0, 5, 20)]


def test_offsets_by_partition_are_half_open_and_minus_two_and_one_are_the_marks() -> None:
    found = ranges(subscribe="a", startingOffsets='{"a":{"0":7,"1":-2}}', endingOffsets='{"a":{"0":9,"1":-1}}')
    assert found == [("a", 0, 7, 9), ("a", 1, 5, 20)]


def test_ranges_that_are_empty_are_left_out() -> None:
    assert ranges(subscribe="b", startingOffsets='{"b":{"0":20}}') == []
    assert ranges(lambda *_: Numbers(5, 5), subscribe="b") == []


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_offsets_must_name_exactly_the_partitions_that_are_read(side: str) -> None:
    option = f"{side}Offsets"
    assert f"{option} does not name a-1" in refusal(subscribe="a", **{option: '{"a":{"0":7}}'})
    assert "names b-0" in refusal(subscribe="a", **{option: '{"a":{"0":7,"1":8},"b":{"0":8}}'})
    by_time = f"{side}OffsetsByTimestamp"
    assert f"{by_time} does not name a-1" in refusal(subscribe="a", **{by_time: '{"a":{"0":7}}'})


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("startingOffsets", "latest", "startingOffsets is 'latest', which a batch read cannot have"),
        ("startingOffsets", '{"b":{"0":-1}}', "startingOffsets is -1 (latest) for b-0"),
        ("endingOffsets", "earliest", "endingOffsets is 'earliest', which a batch read cannot have"),
        ("endingOffsets", '{"b":{"0":-2}}', "endingOffsets is -2 (earliest) for b-0"),
        ("startingOffsets", "7", "startingOffsets is no JSON object"),
        ("startingOffsets", "soon", "startingOffsets is no JSON"),
        ("startingOffsets", '{"b":{"0":-3}}', "startingOffsets is -3 for b-0"),
        ("startingOffsets", '{"b":{"0":1.5}}', "startingOffsets is 1.5 for b-0"),
        ("startingOffsets", '{"b":{"0":9223372036854775808}}', "startingOffsets is 9223372036854775808"),
        ("startingOffsets", '{"b":{"x":1}}', "startingOffsets has 'x' for 'b'"),
        ("startingOffsets", '{"b":[1]}', "startingOffsets wants numbers by partition for 'b'"),
        ("startingTimestamp", "noon", "startingTimestamp is 'noon'"),
        ("startingTimestamp", "-1", "startingTimestamp is '-1'"),
        ("endingOffsetsByTimestamp", '{"b":{"0":-1}}', "endingOffsetsByTimestamp is -1 for b-0"),
        ("startingOffsetsByTimestampStrategy", "guess", "startingOffsetsByTimestampStrategy is 'guess'"),
        ("failOnDataLoss", "maybe", "failOnDataLoss is 'maybe'; true and false are allowed"),
        ("minPartitions", "0", "minPartitions is '0'"),
        ("minPartitions", "many", "minPartitions is 'many'"),
        ("maxRecordsPerPartition", "-5", "maxRecordsPerPartition is '-5'"),
        ("includeHeaders", "1", "includeHeaders is '1'"),
        ("columns", "value,vlaue", "columns has 'vlaue'"),
        ("columns", "value,VALUE", "columns has 'value'"),
        ("columns", "", "columns has ''"),
        ("isolation", "serializable", "isolation is 'serializable'"),
        ("kafka.isolation.level", "none", "kafka.isolation.level is 'none'"),
        ("pushdown", "yes", "pushdown is 'yes'"),
        ("maxLatenessMs", "1000", "maxLatenessMs is '1000' and has an effect only with pushdown=true"),
        ("partitionedByKey", "true", "partitionedByKey is 'true' and has an effect only with pushdown=true"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_its_option(option: str, value: str, said: str) -> None:
    assert said in refusal(subscribe="b", **{option: value})


@pytest.mark.parametrize(("offset", "side"), [(4, "starting"), (21, "starting"), (4, "ending"), (21, "ending")])
def test_offsets_outside_of_the_log_are_data_loss(offset: int, side: str) -> None:
    option = {f"{side}Offsets": json.dumps({"b": {"0": offset}})}
    with pytest.raises(OffsetOutOfRangeError, match=rf"{side}Offsets is {offset} for b-0, whose offsets are 5 to 20"):
        ranges(subscribe="b", **option)
    kept = ranges(subscribe="b", failOnDataLoss="false", **option)
    assert kept == ([("b", 0, 5, 20)] if (offset, side) in ((4, "starting"), (21, "ending")) else [])


@pytest.mark.parametrize("offset", [5, 20])
def test_the_marks_themselves_are_inside(offset: int) -> None:
    whole = [("b", 0, 5, 20)]
    assert ranges(subscribe="b", startingOffsets=json.dumps({"b": {"0": offset}})) == (whole if offset == 5 else [])
    assert ranges(subscribe="b", endingOffsets=json.dumps({"b": {"0": offset}})) == (whole if offset == 20 else [])


def test_an_end_below_the_start_is_an_error_that_names_both() -> None:
    said = refusal(subscribe="b", startingOffsets='{"b":{"0":9}}', endingOffsets='{"b":{"0":8}}')
    assert "endingOffsets is 8 for b-0, below its start 9" in said


def test_moments_become_the_first_offset_at_or_after_them() -> None:
    assert ranges(subscribe="b", startingTimestamp=70, endingTimestamp=91) == [("b", 0, 7, 10)]
    both = {"startingOffsetsByTimestamp": '{"b":{"0":71}}', "endingOffsetsByTimestamp": '{"b":{"0":90}}'}
    assert ranges(subscribe="b", **both) == [("b", 0, 8, 9)]
    assert ranges(subscribe="b", startingTimestamp=0, endingTimestamp=10**15) == [("b", 0, 5, 20)]


def test_a_moment_after_all_records_is_an_error_or_the_end_by_strategy() -> None:
    assert "startingTimestamp is 200 for b-0, which has no record" in refusal(subscribe="b", startingTimestamp=200)
    assert ranges(subscribe="b", startingTimestamp=190) == [("b", 0, 19, 20)]
    assert ranges(subscribe="b", startingTimestamp=200, startingOffsetsByTimestampStrategy="latest") == []


def test_a_moment_for_all_beats_moments_by_partition_and_these_beat_offsets() -> None:
    by_time, offsets = {"startingOffsetsByTimestamp": '{"b":{"0":80}}'}, {"startingOffsets": "no JSON"}
    assert ranges(subscribe="b", **by_time, **offsets) == [("b", 0, 8, 20)]
    assert ranges(subscribe="b", startingTimestamp=90, startingOffsetsByTimestamp="no JSON", **offsets)[0][2] == 9
    ends = {"endingTimestamp": 100, "endingOffsetsByTimestamp": "no JSON", "endingOffsets": "no JSON"}
    assert ranges(subscribe="b", **ends) == [("b", 0, 5, 10)]


# --- how ranges are cut -----------------------------------------------------------------------------------------------


def test_min_partitions_cuts_larger_ranges_in_proportion() -> None:
    sizes = {0: 10, 1: 90}
    found = ranges(lambda _, number: Numbers(0, sizes[number]), subscribe="a", minPartitions=10)
    assert [each for each in found if each[1] == 0] == [("a", 0, 0, 10)]
    assert [each[3] - each[2] for each in found if each[1] == 1] == [10] * 9
    assert [each[2:] for each in ranges(lambda *_: Numbers(0, 10), subscribe="b", minPartitions=3)] == [
        (0, 3),
        (3, 6),
        (6, 10),
    ]


def test_fewer_min_partitions_than_partitions_change_nothing() -> None:
    assert ranges(subscribe="a", minPartitions=1) == ranges(subscribe="a")


@pytest.mark.parametrize(("most", "lengths"), [(14, [14, 1]), (15, [15]), (16, [15]), (5, [5, 5, 5]), (1, [1] * 15)])
def test_no_range_is_longer_than_max_records_per_partition(most: int, lengths: list[int]) -> None:
    found = ranges(subscribe="b", maxRecordsPerPartition=most)
    assert [each[3] - each[2] for each in found] == lengths


def test_cuts_are_at_borders_of_batches_or_inside_of_a_large_batch() -> None:
    assert [each[2:] for each in ranges(lambda *_: Numbers(0, 100, 7), subscribe="b", minPartitions=2)] == [
        (0, 49),
        (49, 100),
    ]
    assert [each[2:] for each in ranges(lambda *_: Numbers(0, 100, 1000), subscribe="b", minPartitions=2)] == [
        (0, 50),
        (50, 100),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300), st.integers(1, 40)), max_size=5),
    st.none() | st.integers(1, 400),
    st.none() | st.integers(1, 400),
)
def test_pieces_cover_their_ranges_in_order_and_keep_both_bounds(
    given_ranges: list[tuple[int, int, int]], least: int | None, most: int | None
) -> None:
    whole = [
        (Range("t", number, start, start + size), Numbers(0, 1000, batch).border)
        for number, (start, size, batch) in enumerate(given_ranges)
    ]
    pieces = list(split(whole, least, most))
    for each, _ in whole:
        mine = [piece for piece in pieces if piece.partition == each.partition]
        assert mine[0].start == each.start
        assert mine[-1].end == each.end
        assert all(one.end == other.start for one, other in itertools.pairwise(mine))
    assert all(0 < piece.end - piece.start <= (most or 1000) for piece in pieces)
    assert [piece.partition for piece in pieces] == sorted(piece.partition for piece in pieces)
    total = sum(size for _, size, _ in given_ranges)
    assert len(pieces) >= min(least or 0, total)
    if most is None:
        assert len(pieces) <= max(least or 0, len(whole)) + len(whole)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_columns_come_in_sparks_order_or_in_the_one_asked_for() -> None:
    assert ReadOptions.parse({"subscribe": "a"}).columns == tuple(COLUMN_TYPES)[:-1]
    assert ReadOptions.parse({"subscribe": "a", "includeHeaders": "TRUE"}).columns == tuple(COLUMN_TYPES)
    assert ReadOptions.parse({"subscribe": "a", "columns": " value,TimestampType "}).columns == (
        "value",
        "timestampType",
    )


def test_isolation_is_taken_under_either_name_and_a_contradiction_is_refused() -> None:
    assert ReadOptions.parse({"subscribe": "a"}).isolation == "read_uncommitted"
    for name in ("isolation", "kafka.isolation.level", "Kafka.Isolation.Level"):
        assert ReadOptions.parse({"subscribe": "a", name: "read_committed"}).isolation == "read_committed"
    both = {"isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"}
    assert "one of them is enough" in refusal(subscribe="a", **both)


@pytest.mark.parametrize(
    "name",
    [
        "kafka.bootstrap.servers",
        "groupIdPrefix",
        "kafka.group.id",
        "fetchOffset.numRetries",
        "path",
        "minOffsetsPerTrigger",
    ],
)
def test_what_has_no_meaning_here_is_passed_over(name: str) -> None:
    assert ranges(subscribe="b", **{name: "whatever"}) == [("b", 0, 5, 20)]


def test_one_table_may_have_the_options_of_both_directions() -> None:
    options = {"subscribe": "a", "topic": "a", "partitions": "2"}
    assert ReadOptions.parse(options).topics == ("a",)
    assert WriteOptions.parse(options).topic == "a"


@pytest.mark.parametrize(
    ("name", "meant"), [("startingOffset", "startingOffsets"), ("min_partitions", "minPartitions"), ("froobles", None)]
)
def test_an_unknown_option_is_refused_with_its_value_and_what_may_have_been_meant(name: str, meant: str | None) -> None:
    said = refusal(subscribe="a", **{name: "oops"})
    assert said.startswith(f"{name} is no option of a scan")
    assert "'oops'" in said
    assert (f"; {meant} is" in said) == (meant is not None)


def test_options_survive_pickling() -> None:
    import pickle

    parsed = ReadOptions.parse({"assign": '{"a":[1]}', "startingOffsets": '{"a":{"1":3}}'})
    assert pickle.loads(pickle.dumps(parsed)) == parsed


@given(
    st.dictionaries(st.sampled_from(["subscribe", "assign", "startingOffsets", "columns", "minPartitions"]), st.text())
)
def test_any_text_gives_options_or_an_error_that_is_ours(options: dict[str, str]) -> None:
    try:
        parsed = ReadOptions.parse(options)
        parsed.plan(parsed.choose(THERE), lambda *_: Numbers(5, 20))
    except (ConfigError, UnknownTopicOrPartitionError, OffsetOutOfRangeError):
        pass


# --- writes -----------------------------------------------------------------------------------------------------------


def test_a_write_takes_its_options_in_any_case() -> None:
    given_options = {
        "TOPIC": "t",
        "partitions": "16",
        "compression": "zstd",
        "batchBytes": "65536",
        "stagingDir": "/s",
        "txnAppId": "daily",
        "txnVersion": "20261121",
        "commitTimeout": "2.5s",
        "config.segment.bytes": "1048576",
        "path": "/r",
    }
    parsed = WriteOptions.parse(given_options)
    assert parsed == WriteOptions("t", 16, "zstd", 65536, {"segment.bytes": "1048576"}, "/s", ("daily", 20261121), 2.5)
    assert WriteOptions.parse({}) == WriteOptions()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("partitions", "0", "partitions is '0'"),
        ("batchBytes", "1k", "batchBytes is '1k'"),
        ("txnAppId", "x", "txnVersion is missing"),
        ("txnVersion", "1", "txnAppId is missing"),
        ("txnVersion", "-1", "txnVersion is '-1'"),
        ("commitTimeout", "soon", "commitTimeout is 'soon'"),
        ("kafka.partitioner.class", "com.example.Mine", "kafka.partitioner.class is 'com.example.Mine'"),
        ("topics", "t", "topics is no option of a write; topic is: 't'"),
    ],
)
def test_a_value_that_a_write_cannot_have_is_refused_with_its_option(option: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WriteOptions.parse({option: value})
    assert said in str(caught.value)


def test_kafkas_own_default_partitioner_may_be_named() -> None:
    WriteOptions.parse({"kafka.partitioner.class": "org.apache.kafka.clients.producer.internals.DefaultPartitioner"})
