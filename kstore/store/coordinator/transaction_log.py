"""The records of `__transaction_state` for each transactional id, and `TransactionEntry`, the state of one id.

A partition is read once, when the store is opened or the id is first needed: no other process writes the partition
while the store has the lock, so the entries always have the present state. Invariant: an entry's state is the last one
in its log; it changes when the record is in the log, not before.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from kstore.codec.coordinator import transaction_records
from kstore.codec.coordinator.group_records import SchemaError
from kstore.codec.coordinator.transaction_records import Status, TransactionState
from kstore.errors import CorruptRecordError, KStoreError
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.store.coordinator._transaction import IdSteps
from kstore.store.read_only_logs import Logs

__all__ = ["FIRST_PRODUCER_ID", "TransactionEntry", "draw_producer_id", "read_states"]

FIRST_PRODUCER_ID = 1 << 62
"""The lowest producer id of a store: brokers allocate theirs from 0 on, in blocks."""

_COMMITS = Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT


def draw_producer_id() -> int:
    """Return a producer id that no other producer has: one of 2^62, drawn at random."""
    return FIRST_PRODUCER_ID + secrets.randbelow(FIRST_PRODUCER_ID)


class TransactionEntry(IdSteps):
    """A transactional id: its state, its log, and its present producer. `lock` guards all of it."""

    __slots__ = ()

    def __init__(self, transactional_id: str, log: Log, logs: Logs, state: TransactionState | None) -> None:
        key = transaction_records.transaction_key(transactional_id)
        super().__init__(transactional_id, key, log, HostedLog(log).writer.appender, logs, state)

    @property
    def is_owned(self) -> bool:
        """Whether a producer of this process has the id."""
        return self.owner is not None and self.owner() is not None

    def was_committed(self, producer_id: int, epoch: int) -> bool:
        """Return whether the log has a commit whose markers have this epoch."""
        for record in self.log.read():
            if record.key == self.key and record.value is not None:
                state = transaction_records.parse_transaction(record.value)
                if (state.producer_id, state.producer_epoch) == (producer_id, epoch) and state.status in _COMMITS:
                    return True
        return False

    def _look_back(self, state: TransactionState | None) -> None:
        """Adopt the state that was being written when an error came, if its record is in the log."""
        with suppress(KStoreError):
            # Other ids may have written to the log since then, but this id has not.
            start = max(self._end, self.log.log_start_offset)
            if any(record.key == self.key for record in self.log.read(start)):
                self.state = state


def read_states(log: Log) -> dict[str, TransactionState]:
    """Return the last state of each id in one partition; raise `CorruptRecordError` for a record without a state."""
    states = {}
    for key, record in log.latest().items():
        try:
            name = transaction_records.parse_transactional_id(key)
            if name is not None and record.value is not None:
                states[name] = transaction_records.parse_transaction(record.value)
        except SchemaError as error:
            what = f"{log.path} has a record of no transaction, with key {key[:60]!r}: {error}"
            raise CorruptRecordError(what, path=log.path) from None
    return states
