"""The offsets of a stream as JSON, and the sharing out of a micro-batch's offsets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import ConfigError
from kstore.spark.stream_offsets import StreamOffsets, share_out

PARTITIONS = st.tuples(st.sampled_from(["a", "b.c", "t-1"]), st.integers(0, 2**31 - 1))


@given(
    st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1)), st.dictionaries(st.sampled_from("ab"), st.text(max_size=5))
)
def test_offsets_come_back_from_json_and_equal_ones_have_equal_text(ends: dict[Any, int], ids: dict[str, str]) -> None:
    offsets = StreamOffsets(ends, ids)
    text = json.dumps(offsets.to_json())
    assert StreamOffsets.parse(json.loads(text)) == offsets
    turned = StreamOffsets(dict(reversed(ends.items())), dict(reversed(ids.items())))
    assert json.dumps(turned.to_json()) == text


def test_the_form_is_that_of_sparks_kafka_source_with_the_ids_of_topics() -> None:
    offsets = StreamOffsets({("b", 10): 3, ("b", 2): 7, ("a", 0): 1}, {"a": "id"})
    assert json.dumps(offsets.to_json()) == '{"a": {"0": 1}, "b": {"2": 7, "10": 3}, "$topicIds": {"a": "id"}}'


@pytest.mark.parametrize(
    "value",
    [
        7,
        None,
        ["a"],
        {"a": 1},
        {"a": {"x": 1}},
        {"a": {"0": -1}},
        {"a": {"0": True}},
        {"a": {"0": 2**63}},
        {"a": {"99999999999": 1}},
        {"a": {"\u0663": 1}},
        {"$topicIds": {"a": 1}},
        {"../a": {"0": 1}},
        {"logOffset": 5},
    ],
)
def test_an_offset_of_another_form_is_refused_with_what_was_found(value: Any) -> None:
    with pytest.raises(ConfigError, match="the checkpoint has an offset that kstore did not write"):
        StreamOffsets.parse(value)


def test_a_small_backlog_does_not_wait_for_the_end_of_a_large_one() -> None:
    assert share_out({("large", 0): 1_000_000, ("small", 0): 1}, 1000) == {("large", 0): 999, ("small", 0): 1}


@given(st.dictionaries(PARTITIONS, st.integers(0, 10**6), max_size=8), st.integers(1, 10**6))
def test_shares_add_up_and_are_in_proportion_to_the_backlogs(backlogs: dict[Any, int], most: int) -> None:
    total = sum(backlogs.values())
    shares = share_out(backlogs, most)
    assert shares.keys() == backlogs.keys()
    assert sum(shares.values()) == min(most, total)
    for partition, size in backlogs.items():
        assert 0 <= shares[partition] <= size
        if total > most:
            assert abs(shares[partition] - size * most / total) < 1
    assert share_out(backlogs, None) == backlogs
