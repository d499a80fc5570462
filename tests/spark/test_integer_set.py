"""Sets of integers by their borders, against Python's own sets."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.base.numbers import LONG_MAX, LONG_MIN
from kstore.spark.integer_set import EVERY_INTEGER, IntegerSet

SOME = range(-2, 12)
numbers = st.integers(0, 9)
expressions: st.SearchStrategy[tuple[IntegerSet, Callable[[int], bool]]] = st.recursive(
    st.one_of(
        st.frozensets(numbers).map(lambda few: (IntegerSet.of(few), few.__contains__)),
        numbers.map(lambda least: (IntegerSet.since(least), lambda each: each >= least)),
    ),
    lambda inner: st.one_of(
        inner.map(lambda one: (~one[0], lambda each: not one[1](each))),
        st.tuples(inner, inner).map(lambda two: (two[0][0] & two[1][0], lambda n: two[0][1](n) and two[1][1](n))),
    ),
    max_leaves=5,
)


@given(expressions)
def test_a_set_has_the_members_that_its_conditions_say(both: tuple[IntegerSet, Callable[[int], bool]]) -> None:
    made, said = both
    members = [each for each in SOME if said(each)]
    assert [each for each in SOME if each in made] == members
    assert [*np.array(SOME)[made.mask(np.array(SOME))]] == members
    assert list(made.borders) == sorted(set(made.borders))
    for start in SOME:
        assert made.first_from(start) == next((each for each in members if each >= start), None)
        for stop in range(start + 1, SOME.stop):
            [reached] = made.reaches(np.array([start]), np.array([stop]))
            assert reached == any(start <= each < stop for each in members)
    assert made.end == (members[-1] + 1 if members and members[-1] < SOME[-1] else None)


def test_the_limits_of_64_bits_are_members_like_others() -> None:
    limits = np.array([LONG_MIN, -1, LONG_MAX])
    for made, members in [
        (EVERY_INTEGER, [True, True, True]),
        (IntegerSet.of([LONG_MAX]), [False, False, True]),
        (IntegerSet.of([LONG_MIN]), [True, False, False]),
        (IntegerSet.since(LONG_MIN), [True, True, True]),
        (IntegerSet.since(LONG_MAX + 1), [False, False, False]),
        (~IntegerSet.of([LONG_MIN, LONG_MAX]), [False, True, False]),
    ]:
        assert made.mask(limits).tolist() == members
        assert (~made).mask(limits).tolist() == [not each for each in members]
    assert EVERY_INTEGER.is_all
    assert (~~EVERY_INTEGER).is_all
    assert not IntegerSet.of([LONG_MAX]).is_all


@pytest.mark.parametrize("change", [operator.invert, lambda one: one & EVERY_INTEGER])
def test_no_operation_changes_its_operand(change: Callable[[IntegerSet], IntegerSet]) -> None:
    made = IntegerSet.of([1, 2, 5])
    change(made)
    assert made.borders == (1, 3, 5, 6)
