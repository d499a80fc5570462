"""Finds out which partitions can have the keys that a filter selects, where the keys were partitioned as Kafka does."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kstore.base import optional
from kstore.datasets.pruning import Condition

if TYPE_CHECKING:
    from kstore.datasets.table_source import TableSource

MOST_KEYS = 256


def partitions_of_keys(
    condition: Condition, source: TableSource, places: list[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Return the places that may have records with the selected keys; all of them if the filter selects other keys.

    The filter selects other keys unless it can select nothing below, between and above the keys that are constants in
    it. The constants are in the serialized form of an expression, which is a record batch.
    """
    keys = sorted(_constants(condition.expression))
    if not 0 < len(keys) <= MOST_KEYS:
        return places
    field = optional.pyarrow("a dataset", "compute").compute.field("key")
    gaps = [(field < keys[0],), (field > keys[-1],), (field.is_null(),)]
    gaps += [(field > low, field < high) for low, high in pairwise(keys)]
    if any(condition.may(*gap) for gap in gaps):
        return places
    keys = [key for key in keys if condition.may(field == key)]
    kept = set()
    for topic in {topic for topic, _ in places}:
        numbers = {source.partition_for(topic, key) for key in keys}
        kept |= {place for place in places if place[0] == topic and (place[1] in numbers or None in numbers)}
    return [place for place in places if place in kept]


def _constants(expression: Any) -> set[bytes]:
    """Return the constants of an expression that are bytes."""
    pa = optional.pyarrow("a dataset", "ipc")
    _, (buffer, *_) = expression.__reduce__()
    try:
        rows = pa.ipc.open_file(buffer).read_all().to_pylist()
    except (pa.ArrowInvalid, TypeError):
        return set()
    found: set[bytes] = set()
    waiting = [*rows]
    while waiting:
        value = waiting.pop()
        if isinstance(value, bytes):
            found.add(value)
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
    return found
