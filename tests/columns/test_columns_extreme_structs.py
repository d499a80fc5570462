"""No number and no pointer of a stranger's Arrow struct is followed before it is checked: an extreme one is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kstore.errors import InvalidColumnError
from tests.columns.test_columns_in_unsound import packed, setting
from tests.support import arrowstructs as arrow

ROWS = [b"a", None, b"ccc", b"d" * 20]
PAIRS = [[(b"a", b"b")], None, [], [(b"c", b"d" * 20)]]
EXTREME = (1 << 61, 1 << 62, (1 << 63) - 1, -1, -(1 << 63))
MOST_BUFFERS_OF_VIEWS = 3 + (1 << 31)

Take = Callable[[arrow.Array], object]


def values(array: arrow.Array) -> object:
    return packed(array)


def times(array: arrow.Array) -> object:
    return packed([b"x"] * 4, None, array)


def headers(array: arrow.Array) -> object:
    return packed([b"x"] * 4, None, None, array)


def streamed(array: arrow.Array) -> object:
    return packed(arrow.Stream([array], like=array))


def table() -> arrow.Array:
    return arrow.table({"value": arrow.binary(ROWS), "key": arrow.views(ROWS), "headers": arrow.headers(PAIRS)}, 4)


KINDS: dict[str, tuple[Callable[[], arrow.Array], Take]] = {
    "binary": (lambda: arrow.binary(ROWS), values),
    "large binary": (lambda: arrow.binary(ROWS, "Z"), values),
    "fixed": (lambda: arrow.fixed([b"abc", None], 3), values),
    "dictionary": (lambda: arrow.dictionary(ROWS), values),
    "dictionary of views": (lambda: arrow.dictionary(ROWS, make=arrow.views), values),
    "views": (lambda: arrow.views(ROWS), values),
    "times": (lambda: arrow.numbers([1, None, 2, 3]), times),
    "map": (lambda: arrow.headers(PAIRS), headers),
    "large list": (lambda: arrow.headers(PAIRS, "+L", make=arrow.views), headers),
    "table": (table, values),
    "stream": (table, streamed),
}


def nodes(array: arrow.Array) -> Iterator[arrow.Array]:
    """The array, and all arrays below it."""
    yield array
    for child in array.children:
        yield from nodes(child)
    if array.dictionary is not None:
        yield from nodes(array.dictionary)


def each_node(kind: str) -> Iterator[tuple[arrow.Array, arrow.Array, Take]]:
    make, take = KINDS[kind]
    for number in range(len(list(nodes(make())))):
        array = make()
        yield array, list(nodes(array))[number], take


@pytest.fixture(autouse=True)
def _everything_is_given_back() -> Iterator[None]:
    before = arrow.alive()
    yield
    assert arrow.alive() == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["length", "null_count", "offset", "n_buffers", "n_children"])
@pytest.mark.parametrize("number", EXTREME)
def test_an_extreme_number_in_an_array_is_refused(kind: str, name: str, number: int) -> None:
    for array, node, take in each_node(kind):
        node.damage = setting(**{name: number})
        if (name, number) == ("null_count", -1):
            take(array)  # it has not been counted
            continue
        with pytest.raises(InvalidColumnError):
            take(array)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", EXTREME)
def test_an_extreme_number_of_children_in_a_schema_is_refused(kind: str, number: int) -> None:
    for array, node, take in each_node(kind):
        if not node.children:
            continue  # not looked at in a type without children
        node.damage_schema = setting(n_children=number)
        with pytest.raises((InvalidColumnError, TypeError)):
            take(array)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["buffers", "children", "dictionary"])
def test_a_missing_pointer_in_an_array_is_refused(kind: str, name: str) -> None:
    for array, node, take in each_node(kind):
        if not getattr(node, name):
            continue  # there is none
        node.damage = setting(**{name: dict(arrow.CArray._fields_)[name]()})
        with pytest.raises(InvalidColumnError):
            take(array)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["format", "children"])
def test_a_missing_pointer_in_a_schema_is_refused(kind: str, name: str) -> None:
    for array, node, take in each_node(kind):
        if name == "children" and not node.children:
            continue
        node.damage_schema = setting(**{name: None if name == "format" else dict(arrow.CSchema._fields_)[name]()})
        with pytest.raises(InvalidColumnError):
            take(array)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_child_is_refused(kind: str) -> None:
    for array, node, take in each_node(kind):
        for number in range(len(node.children)):

            def forget(made: Any, number: int = number) -> None:
                made.children[number] = type(made.children[0])()

            node.damage, node.damage_schema = forget, lambda schema: None
            with pytest.raises(InvalidColumnError):
                take(array)
            node.damage, node.damage_schema = lambda made: None, forget
            with pytest.raises(InvalidColumnError):
                take(array)


@pytest.mark.parametrize("number", [MOST_BUFFERS_OF_VIEWS + 1, 1 << 32, 1 << 40, 1 << 60, 2, 0])
def test_views_have_no_more_buffers_than_they_can_name(number: int) -> None:
    array = arrow.views([b"abcd", b"d" * 20])
    array.damage = setting(n_buffers=number)
    with pytest.raises(InvalidColumnError, match=f"values: .*views with {number} buffers"):
        packed(array)


def test_nulls_that_no_bitmap_shows_are_refused() -> None:
    for array in (arrow.binary([b"a", b"b"]), arrow.views([b"a", b"b"]), arrow.numbers([1, 2])):
        array.null_count, array.buffers[0] = 1, None
        with pytest.raises(InvalidColumnError, match="1 nulls"):
            packed([b"x"] * 2, None, array) if array.format == "l" else packed(array)


def test_a_dictionary_that_is_its_own_is_refused() -> None:
    array = arrow.dictionary(ROWS)
    own: list[Any] = []

    def tie(schema: arrow.CSchema) -> None:
        own.append(arrow.CSchema.from_buffer_copy(schema))
        own[0].dictionary = ctypes.pointer(own[0])
        schema.dictionary = own[0].dictionary

    array.damage_schema = tie
    with pytest.raises(TypeError, match="dictionary of dictionaries"):
        packed(array)


def test_a_schema_of_more_columns_than_records_have_is_refused_by_name() -> None:
    columns = {"value": arrow.binary(ROWS)} | {f"c{number}": arrow.binary(ROWS) for number in range(40)}
    with pytest.raises(ValueError, match="column 'c0'"):
        packed(arrow.table(columns, 4))
    again = arrow.table({"value": arrow.binary(ROWS), "offset": arrow.numbers([1, 2, 3, 4])}, 4)
    again.children.append(arrow.numbers([1, 2, 3, 4]).named("offset"))
    with pytest.raises(ValueError, match="two columns 'offset'"):
        packed(again)
