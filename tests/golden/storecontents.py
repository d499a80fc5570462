"""What a store holds, as JSON: kstore 0.1.0 wrote it down (`data/kstore-0.1`), tests ask the present kstore.

Bytes are Latin-1 text, so that JSON keeps them; null stays null.
"""

from __future__ import annotations

import json
from typing import Any

from kstore import Log, Store

NOW = 1_700_000_000_000
"""The time at which the stores were left; opened later, producers, positions and transactions would have expired."""

SETTINGS = {
    "segment_bytes": 32768,
    "index_interval_bytes": 256,
    "segment_index_bytes": 2048,
    "offsets_topic_num_partitions": 2,
    "transaction_state_log_num_partitions": 2,
}
"""The settings of every store, which no file keeps."""

LONE_SETTINGS = {"segment_bytes": 1024, "index_interval_bytes": 256, "segment_index_bytes": 2048}
"""The settings of the logs without a store."""

TOPIC_SETTINGS = ("segment_bytes", "cleanup_policy", "compression_type", "message_timestamp_type", "retention_ms")


def text(data: bytes | None) -> str | None:
    """The bytes as JSON keeps them."""
    return None if data is None else data.decode("latin-1")


def of_log(log: Log) -> dict[str, Any]:
    """The marks of a log, its batches with their records, what a reader of committed records gets, its producers."""
    batches = []
    for batch in log.read_batches():
        records = [
            [record.offset, record.timestamp, text(record.key), text(record.value)]
            + [[[name, text(value)] for name, value in record.headers]] * bool(record.headers)
            for record in batch
        ]
        header = [batch.base_offset, batch.last_offset, batch.compression, batch.partition_leader_epoch]
        header += [batch.timestamp_type, batch.max_timestamp, batch.delete_horizon_ms]
        header += [batch.producer_id, batch.producer_epoch, batch.base_sequence]
        batches.append([*header, batch.is_transactional, batch.is_control, records])
    newest = log.max_timestamp()
    return {
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "last_stable_offset": log.last_stable_offset,
        "segments": [segment.base_offset for segment in log.segments],
        "max_timestamp": newest and list(newest),
        "found_by_time": [found and list(found) for found in map(log.offset_for_timestamp, (NOW - 5_000, NOW + 1))],
        "committed": [record.offset for record in log.read(isolation="read_committed")],
        "producers": json.loads(json.dumps(log.producer_states())),
        "batches": batches,
    }


def of_store(store: Store) -> dict[str, Any]:
    """Everything that a store's readers see: topics, logs, groups, the table of `accounts`."""
    topics = {}
    for topic in store.topics:
        config = store.topic_config(topic)
        topics[topic] = {
            "topic_id": str(store.topic_id(topic)),
            "config": {name: str(getattr(config, name)) for name in TOPIC_SETTINGS},
            "partitions": {str(number): of_log(store.log(topic, number)) for number in store.partitions(topic)},
        }
    groups = {}
    for group in store.groups:
        positions = sorted(store.committed_offsets(group).items())
        groups[group] = [[*place, int(at), at.metadata, at.commit_timestamp] for place, at in positions]
    table = []
    if "accounts" in store.topics:
        table = sorted([text(record.key), text(record.value), record.offset] for record in store.table("accounts"))
    return {"topics": topics, "groups": groups, "table": table}
