"""A new partition goes where the fewest are, and not where nothing may be placed (SEMANTICS 13.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.store.directory_choice import order, spread

ROOTS = ["/a", "/b", "/c"]


def test_directories_are_tried_from_the_fewest_partitions_to_the_most() -> None:
    assert order(ROOTS, {"/a": 2, "/b": 0, "/c": 1}) == ["/b", "/c", "/a"]


def test_a_directory_that_nobody_counted_is_empty() -> None:
    assert order(ROOTS, {"/a": 1, "/b": 1}) == ["/c", "/a", "/b"]


def test_among_equals_the_order_of_log_dirs_decides() -> None:
    assert order(ROOTS, {}) == ROOTS
    assert order(ROOTS[::-1], {"/a": 7, "/b": 7, "/c": 7}) == ROOTS[::-1]


def test_cordoned_directories_are_left_out_whatever_they_have() -> None:
    assert order(ROOTS, {"/a": 0, "/b": 9, "/c": 8}, cordoned=["/a"]) == ["/c", "/b"]
    assert order(ROOTS, {}, cordoned=["/elsewhere"]) == ROOTS


@pytest.mark.parametrize("cordoned", [["*"], ["/a", "/b", "/c"], ["/c", "/b", "/a", "/d"]])
def test_where_all_are_cordoned_the_first_in_service_is_all_there_is(cordoned: list[str]) -> None:
    assert order(ROOTS, {"/a": 9}, cordoned=cordoned) == ["/a"]
    assert order(ROOTS[1:], {"/b": 9}, cordoned=cordoned) == ["/b"]  # the first of log.dirs is offline


def test_a_directory_that_is_offline_gets_nothing_though_it_has_the_fewest() -> None:
    assert order(["/b", "/c"], {"/a": 0, "/b": 2, "/c": 1}) == ["/c", "/b"]
    assert order([], {"/a": 0}) == []


def test_many_partitions_even_out_what_was_uneven() -> None:
    assert spread(5, ROOTS, {"/a": 3, "/b": 1, "/c": 1}) == ["/b", "/c", "/b", "/c", "/a"]
    assert spread(3, ROOTS, {}, cordoned=["*"]) == ["/a"] * 3
    assert spread(0, [], {}) == []
    with pytest.raises(ValueError, match="in service"):
        spread(1, [], {"/a": 0})


@given(
    st.integers(0, 40),
    st.lists(st.sampled_from("abcde"), unique=True, min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 20)),
    st.sets(st.sampled_from("abcdef*")),
)
def test_spreading_is_placing_one_after_another(
    count: int, roots: list[str], counts: dict[str, int], cordoned: set[str]
) -> None:
    expected, now = [], dict(counts)
    for _ in range(count):
        root = order(roots, now, cordoned=cordoned)[0]
        now[root] = now.get(root, 0) + 1
        expected.append(root)
    assert spread(count, roots, counts, cordoned=cordoned) == expected
