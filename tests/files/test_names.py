"""names.py: what Kafka calls a topic, a partition directory and a segment's file (FORMAT 1.2, 1.3)."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import InvalidTopicError
from kstore.files import names

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda topic: topic not in (".", ".."))
PARTITIONS = st.integers(0, 2**31 - 1)
OFFSETS = st.integers(0, 2**63 - 1)


def test_files_carry_the_offset_in_twenty_digits() -> None:
    assert names.log_name(1000) == "00000000000000001000.log"
    assert names.index_name(0) == "00000000000000000000.index"
    assert names.time_index_name(107) == "00000000000000000107.timeindex"
    assert names.txn_index_name(5) == "00000000000000000005.txnindex"
    assert names.snapshot_name(2**63 - 1) == "09223372036854775807.snapshot"


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_an_offset_outside_64_bits_names_no_file(offset: int) -> None:
    with pytest.raises(ValueError, match=str(offset)):
        names.log_name(offset)


@given(OFFSETS, st.sampled_from((*names.SEGMENT_KINDS, names.SNAPSHOT)), st.sampled_from(["", ".deleted", ".swap"]))
def test_a_file_name_that_was_built_is_parsed_to_what_it_was_built_from(offset: int, kind: str, state: str) -> None:
    """UnifiedLogTest.testOffsetFromProducerSnapshotFile, LocalLogTest.testOffsetFromFile."""
    name = names.file_name(offset, kind, state)
    parsed = names.parse_file_name(name)
    assert parsed == (offset, kind, state)
    assert str(parsed) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        "12",
        "12.",
        "12.logs",
        "-1.log",
        "+1.log",
        "1 .log",
        "00000000000000000000.log.gone",
        "leader-epoch-checkpoint",
        "x00000000000000000000.log",
        "00000000000000000000.log\n",
        "٣.log",
        "09223372036854775808.log",
        "9" * 5000 + ".log",
    ],
)
def test_what_is_no_segment_file_is_parsed_to_none(name: str) -> None:
    assert names.parse_file_name(name) is None


@given(
    st.lists(
        st.text()
        | st.builds(
            lambda digits, kind, state: digits + kind + state,
            OFFSETS.map(str) | OFFSETS.map("{:020}".format) | st.just("09223372036854775808") | st.just("٣" * 20),
            st.sampled_from((*names.SEGMENT_KINDS, names.SNAPSHOT, ".logs")),
            st.sampled_from(["", "", ".deleted"]),
        )
    )
)
def test_many_names_are_sorted_as_each_of_them_is_parsed(entries: list[str]) -> None:
    parsed = [file for name in entries if (file := names.parse_file_name(name)) is not None and not file.state]
    assert names.offsets_by_kind(entries) == {
        kind: [file.offset for file in parsed if file.kind == kind] for kind in (*names.SEGMENT_KINDS, names.SNAPSHOT)
    }


def test_a_short_file_name_is_read_and_is_not_the_one_that_kafka_writes() -> None:
    parsed = names.parse_file_name("7.log")
    assert parsed == (7, ".log", "")
    assert str(parsed) != "7.log"


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("00000000000000000012.log.swap", 12),
        ("5.anything", 5),
        ("5", None),
        ("a5.log", None),
        (".5", None),
        ("", None),
        ("³.log", None),
        ("9223372036854775807.x", 2**63 - 1),
        ("9223372036854775808.x", None),
        ("1" * 5000 + ".x", None),
    ],
)
def test_the_numeric_prefix_of_any_name_is_what_stands_before_its_first_dot(name: str, offset: int | None) -> None:
    """SEMANTICS 8.6: names without a numeric prefix are ignored."""
    assert names.parse_offset(name) == offset


@pytest.mark.parametrize("topic", ["a", "a" * 249, "A.b_c-9", "-", "...", "__consumer_offsets"])
def test_a_topic_of_up_to_249_plain_characters_is_taken(topic: str) -> None:
    assert names.check_topic(topic) == topic


@pytest.mark.parametrize("topic", ["", ".", "..", "a" * 250, "a b", "a/b", "é", "a\n", "a\0", "日本", "a:b"])
def test_a_bad_topic_is_refused(topic: str) -> None:
    with pytest.raises(InvalidTopicError):
        names.check_topic(topic)


def test_a_topic_that_is_no_str_is_refused() -> None:
    with pytest.raises(InvalidTopicError, match="bytes"):
        names.check_topic(b"orders")  # type: ignore[arg-type]


def test_dots_and_underscores_collide_and_dashes_do_not() -> None:
    assert names.metric_name("a.b") == names.metric_name("a_b")
    assert names.metric_name("a.b") != names.metric_name("a-b")


@given(TOPICS, PARTITIONS)
def test_a_partition_name_that_was_built_is_parsed_to_what_it_was_built_from(topic: str, partition: int) -> None:
    name = names.partition_name(topic, partition)
    assert name == f"{topic}-{partition}"
    assert names.parse_partition_name(name) == (topic, partition, "", "")


@pytest.mark.parametrize("partition", [-1, 2**31, True, "0", 1.0])
def test_a_partition_number_outside_31_bits_is_refused(partition: object) -> None:
    with pytest.raises(InvalidTopicError):
        names.partition_name("orders", partition)  # type: ignore[arg-type]


@given(TOPICS, PARTITIONS)
def test_a_directory_to_delete_has_a_name_of_at_most_255_characters_that_parses(topic: str, partition: int) -> None:
    """SEMANTICS 0.7: the topic is cut so that the whole name fits."""
    name = names.delete_directory_name(topic, partition)
    assert len(name) <= 255
    parsed = names.parse_partition_name(name)
    assert topic.startswith(parsed.topic)
    assert (parsed.partition, parsed.suffix) == (partition, "-delete")
    assert re.fullmatch(r"[0-9a-f]{32}", parsed.unique_id)


def test_213_characters_of_a_topic_survive_in_a_name_to_delete() -> None:
    """LocalLogTest.testLogDeleteDirName."""
    assert re.fullmatch(r"foo-3\.[0-9a-f]{32}-delete", names.delete_directory_name("foo", 3))
    longest = names.delete_directory_name("n" + "o" * 248, 5)
    assert len(longest) == 255
    assert re.fullmatch(r"no{212}-5\.[0-9a-f]{32}-delete", longest)
    assert names.parse_partition_name(names.delete_directory_name("t" * 213, 0)).topic == "t" * 213
    assert names.parse_partition_name(names.delete_directory_name("t" * 214, 0)).topic == "t" * 213


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-b-3", ("a-b", 3, "", "")),
        ("test_topic-143", ("test_topic", 143, "", "")),
        ("a--3", ("a-", 3, "", "")),
        ("a-007", ("a", 7, "", "")),
        ("a-+7", ("a", 7, "", "")),
        ("my-delete-0", ("my-delete", 0, "", "")),
        ("a.b-0.0123-delete", ("a.b", 0, "-delete", "0123")),
        ("a-0.x.y-stray", None),
        ("odd name-0", ("odd name", 0, "", "")),
        ("a-2147483647", ("a", 2**31 - 1, "", "")),
    ],
)
def test_a_directory_name_is_split_at_its_last_dash(name: str, expected: tuple[str, int, str, str] | None) -> None:
    """LocalLogTest.testParseTopicPartitionName."""
    if expected is None:  # what stands before the last dot is "a-0.x", and "0.x" is no partition
        with pytest.raises(InvalidTopicError):
            names.parse_partition_name(name)
    else:
        assert names.parse_partition_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "-0",
        "orders-",
        "orders-x",
        "orders-1.5",
        "orders--",
        "orders-2147483648",
        "orders-" + "9" * 5000,
        "orders-٣",
        "orders-0-delete",
        "orders-0.-delete",
        "orders.-delete",
        "orders.0123-delete",
        "-0.0123-delete",
        "orders-.0123-delete",
        "orders-1a.0123-delete",
        "orders-1a",
        "non_kafka_dir",
        "non_kafka_dir-delete",
        "orders-0.a b-delete",
        "or ders-0.ab-delete",
        "orders-0.ab-delete\n",
        "-delete",
    ],
)
def test_a_name_that_is_no_partition_directory_is_refused(name: str) -> None:
    """LocalLogTest.testParseTopicPartitionNameForEmptyName,
    LocalLogTest.testParseTopicPartitionNameForMissingSeparator,
    LocalLogTest.testParseTopicPartitionNameForMissingTopic,
    LocalLogTest.testParseTopicPartitionNameForMissingPartition,
    LocalLogTest.testParseTopicPartitionNameForInvalidPartition,
    LocalLogTest.testParseTopicPartitionNameForExistingInvalidDir."""
    with pytest.raises(InvalidTopicError, match="no partition directory"):
        names.parse_partition_name(name)


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    names.parse_file_name(text)
    names.parse_offset(text)
    with contextlib.suppress(InvalidTopicError):
        names.parse_partition_name(text)


@pytest.mark.parametrize("name", ["counter", "my-events", "a.b_c"])
def test_the_name_of_a_topic_alone_is_answered_with_its_first_partitions(name: str) -> None:
    with pytest.raises(
        InvalidTopicError, match=rf"partition 0 of a topic '{re.escape(name)}' is '{re.escape(name)}-0'"
    ):
        names.parse_partition_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "no topic", "a" * 250])
def test_what_names_no_topic_is_answered_without_a_suggestion(name: str) -> None:
    with pytest.raises(InvalidTopicError) as caught:
        names.parse_partition_name(name)
    assert "partition 0" not in str(caught.value)
