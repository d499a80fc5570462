"""The records of `__transaction_state`, in Kafka's format (FORMAT 12.3), and the transaction states in them.

Writes value version 1, byte for byte as a broker of 4.3.0 with transaction version 1 or 2 does.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from kstore.codec.coordinator._states import state_value
from kstore.codec.coordinator.group_records import read_version, text_bytes
from kstore.codec.coordinator.record_texts import TRANSACTION
from kstore.codec.coordinator.schemas import Field, Reader, SchemaError

__all__ = ["Status", "TransactionState", "parse_transaction", "parse_transactional_id", "transaction_key"]

_KEY_HEAD = struct.Struct(">hh")


class Status(IntEnum):
    """The status of a transaction, with Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do: the transaction has ended, or there is none."""
        return self in _COMPLETE

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction's end is decided, but its markers are not yet all written."""
        return self in _PREPARED


# Looked up once, since each transaction tests them several times.
_PREPARED = Status.PREPARE_COMMIT, Status.PREPARE_ABORT
_COMPLETE = Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT


class TransactionState(NamedTuple):
    """The state of a transactional id. `partitions` lists `(topic, number)`s, in the order in which they were added."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: Status
    partitions: tuple[tuple[str, int], ...] = ()
    last_update_ms: int = -1
    start_ms: int = -1
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_version: int = 0

    def to_bytes(self) -> bytes:
        """Return the value of its record."""
        return state_value(self)


def transaction_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id."""
    name = text_bytes("transactional_id", transactional_id)
    return _KEY_HEAD.pack(0, len(name)) + name


def parse_transactional_id(data: bytes) -> str | None:
    """Read a key; return None for another type. Raises `SchemaError` for an invalid key."""
    reader = Reader(data)
    if reader.integer("int16") != 0:
        return None
    name: str = reader.struct((Field("transactionalId", "string"),), 0, flexible=False)["transactionalId"]
    return name


def parse_transaction(data: bytes) -> TransactionState:
    """Read a value of any version; raises `SchemaError` for an invalid value."""
    reader = Reader(data)
    fields = TRANSACTION.read(reader, read_version(reader, TRANSACTION))
    try:
        status = Status(fields["transactionStatus"])
    except ValueError:
        raise SchemaError(f"transaction status {fields['transactionStatus']} is unknown") from None
    topics = fields["transactionPartitions"] or ()
    return TransactionState(
        fields["producerId"],
        fields["producerEpoch"],
        fields["transactionTimeoutMs"],
        status,
        tuple((topic["topic"], number) for topic in topics for number in topic["partitionIds"]),
        fields["transactionLastUpdateTimestampMs"],
        fields["transactionStartTimestampMs"],
        fields.get("previousProducerId", -1),
        fields.get("nextProducerId", -1),
        fields.get("clientTransactionVersion", 0),
    )
