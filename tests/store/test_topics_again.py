"""`create_topic(exist_ok=True)` and `partition_for`: what a service asks for at each of its starts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from tests.conftest import examples
from tests.support.reference import plain_murmur2


@pytest.fixture
def store(root: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(root, background=False, segment_ms=5000) as store:
        yield store


# --- create_topic(exist_ok=True) --------------------------------------------------------------------------------------


def test_the_same_call_at_every_start_makes_the_topic_once(root: Path) -> None:
    ids = set()
    for start in range(3):
        with kstore.Store.open(root, background=False) as store:
            ids.add(store.create_topic("t", 3, config={"retention.ms": "60000"}, segment_bytes=20000, exist_ok=True))
            store.append("t", b"%d" % start, key=b"k")
            assert len(list(store.read("t"))) == start + 1
            assert (store.topic_config("t").retention_ms, store.topic_config("t").segment_bytes) == (60000, 20000)
    assert len(ids) == 1


def test_another_number_of_partitions_is_an_error_that_names_both(store: kstore.Store) -> None:
    store.create_topic("t", 3)
    for asked in (2, 4):
        with pytest.raises(kstore.TopicExistsError, match=rf"t exists with 3 partitions, not with {asked}"):
            store.create_topic("t", asked, exist_ok=True)
    store.add_partitions("t", 4)
    assert store.create_topic("t", 4, exist_ok=True) == store.topic_id("t")


@pytest.mark.parametrize(
    ("given", "differs"),
    [
        ({}, None),
        ({"retention_ms": 60000}, None),
        ({"retention_ms": "60000"}, None),
        ({"segment_ms": 5000}, None),  # the store's
        ({"config": {"cleanup.policy": "delete"}}, None),  # the default
        ({"retention_ms": 60001}, "retention.ms is 60000, not 60001$"),
        ({"segment_ms": 5001}, "segment.ms is 5000, not 5001$"),
        (
            {"cleanup_policy": ["compact"], "retention_ms": -1},
            "retention.ms is 60000, not -1; cleanup.policy is delete, not compact$",
        ),
    ],
)
def test_settings_that_are_given_are_those_in_force(store: kstore.Store, given: Any, differs: str | None) -> None:
    made = store.create_topic("t", retention_ms=60000, max_message_bytes=1000)
    if differs is None:
        assert store.create_topic("t", **given, exist_ok=True) == made
    else:
        with pytest.raises(kstore.TopicExistsError, match=f"t exists with other settings: .*{differs}"):
            store.create_topic("t", **given, exist_ok=True)
    assert store.topic_config("t").to_kafka()["retention.ms"] == "60000"
    assert store.topic_config("t").to_kafka()["max.message.bytes"] == "1000"


def test_what_is_wrong_with_the_call_is_refused_whether_the_topic_is_there_or_not(store: kstore.Store) -> None:
    for _ in range(2):
        with pytest.raises(kstore.ConfigError, match="did you mean"):
            store.create_topic("t", config={"retention.mss": 1}, exist_ok=True)
        with pytest.raises(ValueError, match="partitions is 0"):
            store.create_topic("t", 0, exist_ok=True)
        store.create_topic("t", exist_ok=True)
    store.create_topic("a.b")
    with pytest.raises(kstore.TopicExistsError, match=r"differs from a\.b"):
        store.create_topic("a_b", exist_ok=True)
    with pytest.raises(kstore.TopicExistsError, match="topic t exists"):
        store.create_topic("t")


def test_a_topic_id_that_is_given_is_the_topics(store: kstore.Store) -> None:
    made = store.create_topic("t", topic_id="AAAAAAAAAAAAAAAAAAAAZA")
    assert store.create_topic("t", topic_id="AAAAAAAAAAAAAAAAAAAAZA", exist_ok=True) == made
    with pytest.raises(kstore.InconsistentTopicIdError, match=f"{made}, not with"):
        store.create_topic("t", topic_id=uuid.uuid4(), exist_ok=True)


def test_a_topic_from_before_there_were_ids_gets_one(root: Path) -> None:
    with kstore.Log.open(root / "old-0") as log:
        log.append(b"x")
    with kstore.Store.open(root, background=False) as store:
        assert store.topic_id("old") is None
        made = store.create_topic("old", exist_ok=True)
        assert made == store.topic_id("old") == store.create_topic("old", exist_ok=True)


def test_a_store_that_reads_makes_no_topic_not_even_one_that_is_there(store: kstore.Store) -> None:
    store.create_topic("t")
    with kstore.Store.open(store.paths[0], "r") as reader, pytest.raises(kstore.ReadOnlyError):
        reader.create_topic("t", exist_ok=True)


# --- partition_for ----------------------------------------------------------------------------------------------------


@examples(0.1)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=20), st.integers(1, 20))
def test_a_key_goes_where_partition_for_says_which_is_where_kafka_sends_it(
    tmp_path_factory: pytest.TempPathFactory, keys: list[bytes], partitions: int
) -> None:
    with kstore.Store.open(tmp_path_factory.mktemp("keys"), background=False) as store:
        store.create_topic("t", partitions)
        for key in keys:
            expected = (plain_murmur2(key) & 0x7FFFFFFF) % partitions
            assert store.partition_for("t", key) == store.partition_for("t", memoryview(key)) == expected
            assert store.append("t", b"x", key).partition == expected


def test_partition_for_follows_the_number_of_partitions_and_needs_no_writer(store: kstore.Store) -> None:
    store.create_topic("t", 1)
    with kstore.Store.open(store.paths[0], "r") as reader:
        assert reader.partition_for("t", b"key") == 0
        store.add_partitions("t", 100)
        expected = store.append("t", b"x", b"key").partition
        assert expected > 0
        assert store.partition_for("t", b"key") == expected
        assert kstore.Store.open(store.paths[0], "r").partition_for("t", b"key") == expected


def test_what_has_no_partition(store: kstore.Store) -> None:
    store.create_topic("t", 4)
    with pytest.raises(TypeError, match="key is None"):
        store.partition_for("t", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="str"):
        store.partition_for("t", "key")  # type: ignore[arg-type]
    with pytest.raises(kstore.UnknownTopicOrPartitionError):
        store.partition_for("unknown", b"key")
    store.close()
    with pytest.raises(kstore.LogClosedError):
        store.partition_for("t", b"key")
