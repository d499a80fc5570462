"""All that a reader of a store can see, as one value that two stores can be compared by."""

from __future__ import annotations

from typing import Any

import kstore

TIMES = (0, 1_700_000_000_500, 1_700_000_010_000, 1_700_000_060_000, 1_700_000_200_000)


def seen_by_readers(store: kstore.Store) -> dict[str, Any]:
    """Topics, groups, and of each partition its marks, records and answers to questions about times."""
    seen: dict[str, Any] = {
        "topics": {name: (store.topic_id(name), store.partitions(name)) for name in store.topics},
        "settings": {name: store.topic_config(name).to_kafka() for name in store.topics},
        "groups": {group: dict(store.committed_offsets(group)) for group in store.groups},
    }
    for topic in store.topics:
        for number in store.partitions(topic):
            seen[f"{topic}-{number}"] = seen_of_log(store.log(topic, number))
    return seen


def seen_of_log(log: kstore.Log) -> dict[str, Any]:
    """What a reader of one log can see."""
    start, end = log.log_start_offset, log.log_end_offset
    middle = (start + end) // 2
    return {
        "marks": (start, end, log.last_stable_offset),
        "batches": [bytes(batch) for batch in log.read_batches()],
        "records": list(log.read()),
        "committed": list(log.read(isolation="read_committed")),
        "from the middle": list(log.read(middle)),
        "between": list(log.read(middle, end_offset=min(middle + 5, end))),
        "columns": columns_of(log.read_columns(isolation="read_committed")),
        "chunks": [row for chunk in log.iter_columns(offset=middle) for row in columns_of(chunk)],
        "headers": [tuple(row) for row in zip(*(log.batch_table()[name].tolist() for name in TABLE), strict=True)],
        "times": [log.offset_for_timestamp(time) for time in TIMES],
        "since": [list(log.read(start_timestamp=time)) for time in TIMES[1:3]],
        "fetched": bytes(log.fetch(middle, max_bytes=1 << 20).records),
        "aborted": aborted_in(log),
        "latest": list(log.latest()),
        "greatest time": log.max_timestamp(),
        "producers": [
            (state.producer_id, state.producer_epoch, state.current_txn_first_offset, state.batches[-1:])
            for state in log.producer_states()
        ],
        "segments": [(each.base_offset, each.size_bytes, each.max_timestamp) for each in log.segments],
    }


def aborted_in(log: kstore.Log) -> list[tuple[int, int]]:
    """The aborted transactions that a fetch from the log start tells; it may tell some above its end."""
    fetched = log.fetch(log.log_start_offset, max_bytes=1 << 20, isolation="read_committed")
    return [each for each in fetched.aborted_transactions or () if each[1] < log.last_stable_offset]


TABLE = ("base_offset", "last_offset", "max_timestamp", "producer_id", "size_bytes")


def columns_of(columns: Any) -> list[tuple[Any, ...]]:
    """The rows of columns."""
    names = ("offset", "timestamp", "key", "value")
    return list(zip(*(list(columns[name]) for name in names), strict=True))


def unlike(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What differs between two of these, in few words; empty where they are equal."""
    differences = []
    for name in sorted({*one, *other}):
        mine, others = one.get(name), other.get(name)
        if mine == others:
            continue
        if isinstance(mine, dict) and isinstance(others, dict) and name not in ("settings", "topics", "groups"):
            differences += [f"{name}: {what}" for what in unlike(mine, others)]
        else:
            differences.append(f"{name}: {str(mine)[:300]} and {str(others)[:300]}")
    return differences
