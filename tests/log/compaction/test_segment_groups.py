"""Which segments are cleaned together: the limits, each at its border and beside it (SEMANTICS 7.13)."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from kstore.base.numbers import INT_MAX
from kstore.log.compaction.segment_groups import Source, group

LARGE = 1 << 40


def source(base: int, next_base: int, size: int = 10, offset_index: int = 8, time_index: int = 12) -> Source:
    return Source(cast("Any", None), base, next_base, size, offset_index, time_index)


def chain(count: int, **sizes: int) -> list[Source]:
    return [source(base * 10, base * 10 + 10, **sizes) for base in range(count)]


def lengths(sources: list[Source], *, segment_bytes: int = LARGE, index_bytes: int = LARGE) -> list[int]:
    return [len(members) for members in group(sources, segment_bytes=segment_bytes, index_bytes=index_bytes)]


def test_no_segments_make_no_groups() -> None:
    assert lengths([]) == []


def test_segments_are_grouped_as_long_as_their_logs_fit() -> None:
    """LogCleanerTest.testSegmentGrouping"""
    assert lengths(chain(10)) == [10]
    assert lengths(chain(10), segment_bytes=1) == [1] * 10
    assert lengths(chain(10), segment_bytes=29) == [2] * 5
    assert lengths(chain(10), segment_bytes=30) == [3, 3, 3, 1]


def test_segments_are_grouped_as_long_as_each_of_their_indexes_fits() -> None:
    assert lengths(chain(10, offset_index=20), index_bytes=1) == [1] * 10
    assert lengths(chain(10, offset_index=20), index_bytes=59) == [2] * 5
    assert lengths(chain(10, offset_index=20), index_bytes=60) == [3, 3, 3, 1]
    assert lengths(chain(10, time_index=20), index_bytes=59) == [2] * 5
    assert lengths(chain(10, time_index=20), index_bytes=60) == [3, 3, 3, 1]


def test_the_last_offset_of_a_group_is_at_most_2_31_minus_1_above_its_base() -> None:
    """LogCleanerTest.testSegmentGroupingWithSparseOffsets: a segment's last offset is the one before the next base."""
    for more, expected in ((-1, [2]), (0, [2]), (1, [1, 1])):
        sources = [source(5, 10), source(10, 5 + INT_MAX + 1 + more)]
        assert lengths(sources) == expected


def test_a_segment_that_follows_an_empty_one_is_measured_from_the_base_of_the_group() -> None:
    """LogCleanerTest.testSegmentGroupingFollowingLoadOfZeroIndex: an empty segment is never too far away."""
    far = 2 * INT_MAX
    assert lengths([source(0, 1), source(1, far, size=0), source(far, far + 10)]) == [2, 1]
    assert lengths([source(0, 1), source(1, far, size=0)]) == [2]
    assert lengths([source(0, 1), source(1, far, size=1)]) == [1, 1]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(1, INT_MAX))),
    st.integers(1, 100),
    st.integers(1, 100),
)
def test_groups_keep_the_order_and_no_group_could_take_in_the_segment_behind_it(
    sizes: list[tuple[int, int, int, int]], segment_bytes: int, index_bytes: int
) -> None:
    sources, base = [], 0
    for size, offset_index, time_index, span in sizes:
        sources.append(source(base, base + span, size, offset_index, time_index))
        base += span

    def fits(members: list[Source]) -> bool:
        return (
            sum(each.size_bytes for each in members) <= segment_bytes
            and sum(each.offset_index_bytes for each in members) <= index_bytes
            and sum(each.time_index_bytes for each in members) <= index_bytes
            and all(
                each.size_bytes == 0 or each.next_base - 1 - members[0].base_offset <= INT_MAX for each in members[1:]
            )
        )

    groups = group(sources, segment_bytes=segment_bytes, index_bytes=index_bytes)
    assert [each for members in groups for each in members] == sources
    for number, members in enumerate(groups):
        assert len(members) == 1 or fits(members)
        if number + 1 < len(groups):
            assert not fits([*members, groups[number + 1][0]])
