"""What `__transaction_state` says of each transactional id, and the entry that a store keeps of one.

A partition is read once, when the store is opened or the id is first asked for: nobody else writes it while the store
has the lock, and from then on the entries are what it says. The hardest rule: an entry's state is what its log holds;
it changes when the record is in, and not before.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from kstore import transactionrecords
from kstore.errors import CorruptRecordError, KStoreError
from kstore.grouprecords import SchemaError
from kstore.transactionrecords import Status, TransactionState

if TYPE_CHECKING:
    from kstore.log import Log

__all__ = ["FIRST_PRODUCER_ID", "TransactionEntry", "draw_producer_id", "read_states"]

FIRST_PRODUCER_ID = 1 << 62
"""Where the producer ids of stores begin: brokers allocate theirs from 0 on, in blocks."""

_COMMITS = Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT


def draw_producer_id() -> int:
    """A producer id that nobody has: any of 2^62."""
    return FIRST_PRODUCER_ID + secrets.randbelow(FIRST_PRODUCER_ID)


class TransactionEntry:
    """A transactional id: its state, the log that has it, and whose it is now. `lock` guards all of it."""

    __slots__ = ("_end", "key", "lock", "log", "owner", "state", "transactional_id")

    def __init__(self, transactional_id: str, log: Log, state: TransactionState | None) -> None:
        self.transactional_id = transactional_id
        self.key = transactionrecords.transaction_key(transactional_id)
        self.log = log
        self.state = state
        self._end = log.log_end_offset  # behind what is known of the id
        self.lock = threading.RLock()
        self.owner: weakref.ref[object] | None = None

    @property
    def is_owned(self) -> bool:
        """Whether a producer of this process has it."""
        return self.owner is not None and self.owner() is not None

    def write(self, state: TransactionState) -> None:
        """Write a state down; from then on it holds, also when an interrupt comes before this returns."""
        self._write(state.to_bytes(), state)

    def remove(self) -> None:
        """Write a tombstone: nothing is known of the id from then on."""
        self._write(None, None)

    def was_committed(self, producer_id: int, epoch: int) -> bool:
        """Whether the records tell of a commit whose markers have this epoch."""
        for record in self.log.read():
            if record.key == self.key and record.value is not None:
                state = transactionrecords.parse_transaction(record.value)
                if (state.producer_id, state.producer_epoch) == (producer_id, epoch) and state.status in _COMMITS:
                    return True
        return False

    def _write(self, value: bytes | None, state: TransactionState | None) -> None:
        try:
            self._end = self.log.append(value, self.key) + 1
            self.state = state
        except BaseException:
            with suppress(KStoreError):
                # Other ids may have written to the log meanwhile, this one cannot.
                start = max(self._end, self.log.log_start_offset)
                if any(each.key == self.key for each in self.log.read(start)):
                    self.state = state
            raise


def read_states(log: Log) -> dict[str, TransactionState]:
    """The last state of each id in one partition; `CorruptRecordError` for what is none."""
    last: dict[bytes, bytes | None] = {}
    for record in log.read():
        if record.key is None:
            raise CorruptRecordError(f"the record at offset {record.offset} of {log.path} has no key", path=log.path)
        last[record.key] = record.value
    found = {}
    for key, value in last.items():
        try:
            name = transactionrecords.parse_transactional_id(key)
            if name is not None and value is not None:
                found[name] = transactionrecords.parse_transaction(value)
        except SchemaError as error:
            what = f"{log.path} has a record that tells no transaction, of key {key[:60]!r}: {error}"
            raise CorruptRecordError(what, path=log.path) from None
    return found
