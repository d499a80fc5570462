"""Transactional ids and their transactions, as a broker's coordinator keeps them: a part of the face of `Store`.

Each step is a record of `__transaction_state`, in the order and with the contents of Kafka's transaction version 2:
Ongoing with every new partition before anything is written there, then PrepareCommit or PrepareAbort with an epoch that
is one higher, the markers in all partitions, CompleteCommit or CompleteAbort. What producers do with it is in
producers.py. The hardest rule: once a Prepare is written the transaction ends that way, whatever happens; before, it
is aborted.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable
from errno import EIO
from typing import TYPE_CHECKING

from kstore import arguments, checkpoint, fs, names, transactionrecords
from kstore.errors import InvalidProducerEpochError, InvalidTxnStateError, KStoreError, LogClosedError, StorageError
from kstore.internaltopics import TRANSACTIONS_TOPIC, InternalTopics
from kstore.snapshotfile import SnapshotError, parse_snapshot
from kstore.transactionlog import FIRST_PRODUCER_ID, TransactionEntry, draw_producer_id, read_states
from kstore.transactionrecords import Status, TransactionState

if TYPE_CHECKING:
    from kstore.catalog import Entry
    from kstore.log import Log

logger = logging.getLogger("kstore")

VERSION = 2
LAST_EPOCH = 2**15 - 1
Place = tuple[str, int]

_new = tuple.__new__
# Looked up once: a transaction asks several times.
_ONGOING = Status.ONGOING
_PREPARE_COMMIT, _PREPARE_ABORT = Status.PREPARE_COMMIT, Status.PREPARE_ABORT
_COMPLETE_COMMIT, _COMPLETE_ABORT = Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT


class Transactions(InternalTopics):
    """What a `Store` knows of transactional ids; see there about threads."""

    _ids: dict[str, TransactionEntry]
    _unread: dict[int, Log | KStoreError]  # partitions whose ids are not known yet, and why

    def _start_transactions(self) -> None:
        self._ids = {}
        self._unread = {}

    def _unlock_ids(self) -> None:
        """Give every id a new lock: in a forked child, where nobody is left to give the old one back."""
        for entry in list(self._ids.values()):
            entry.lock = threading.RLock()

    # What is known, from the opening on.

    def _settle_transactions(self) -> None:
        """Read what there is, end what was decided, and what a crash of the machine has left without an owner."""
        for number, entry in self._internal_partitions(TRANSACTIONS_TOPIC).items():
            try:
                self._read_ids(self._open_log(entry))
            except KStoreError as error:
                self._unread[number] = error
                logger.error("%s: its transactions are not known: %s", entry.path, error)
        self._complete_prepared()
        self._end_hanging()

    def _read_ids(self, log: Log) -> None:
        states = read_states(log)
        with self._admin:
            self._unread.pop(log.partition, None)
            for name, state in states.items():
                self._ids.setdefault(name, TransactionEntry(name, log, state))

    def _complete_prepared(self) -> None:
        for entry in list(self._ids.values()):
            with entry.lock:
                state = entry.state
                if state is None or not state.status.is_prepared:
                    continue
                logger.info("transaction of %s: completing the %s", entry.transactional_id, state.status.name)
                try:
                    self._complete(entry, only_open=True)
                except KStoreError as error:
                    logger.error("transaction of %s: not completed: %s", entry.transactional_id, error)

    def _end_hanging(self) -> None:
        """End transactions of stores that no id knows of: a crash of the machine took the records that did.

        After a crash the logs that were not in order are open. Of the others a snapshot says how they were left.
        """
        known = {entry.state.producer_id: entry for entry in self._ids.values() if entry.state is not None}
        newest: dict[int, int] = {}
        for where in self._catalog.entries():
            if where.failure is not None or self._unread:
                continue
            try:
                log = self._open_log(where) if where.log is None and self._was_left_open(where) else where.log
                if log is not None:
                    self._end_hanging_in(log, known, newest)
            except KStoreError as error:
                logger.error("%s: transactions that nobody knows of are not ended: %s", where.path, error)
        for producer_id, entry in known.items():
            self._catch_up(entry, newest.get(producer_id, -1))

    def _was_left_open(self, where: Entry) -> bool:
        """Whether the last close of a log, which nothing was done to since, left a store's transaction open.

        The end of that transaction may have been written after it, and lost.
        """
        directory = self._writing().directories[where.root]
        if where.trusted or directory.offline is not None:
            return False
        end = directory.mark(checkpoint.RECOVERY_POINTS, where.key)
        try:
            entries = parse_snapshot(fs.read_file(f"{where.path}/{names.snapshot_name(end or 0)}"))
        except (fs.MissingFileError, SnapshotError):
            return False
        return any(each.producer_id >= FIRST_PRODUCER_ID and each.current_txn_first_offset >= 0 for each in entries)

    @staticmethod
    def _end_hanging_in(log: Log, known: dict[int, TransactionEntry], newest: dict[int, int]) -> None:
        """End them in one log; `newest` gets the epochs of all producers of stores."""
        for info in log.producer_states():
            if info.producer_id < FIRST_PRODUCER_ID:
                continue
            epoch = info.producer_epoch
            entry = known.get(info.producer_id)
            if info.current_txn_first_offset >= 0 and (entry is None or not _is_known(entry, log, epoch)):
                commit = entry is not None and entry.was_committed(info.producer_id, epoch + 1)
                what = "committing" if commit else "aborting"
                logger.warning(
                    "%s: %s a transaction of producer %d that nobody knows of", log.path, what, info.producer_id
                )
                epoch = min(epoch + 1, LAST_EPOCH)
                coordinator_epoch = max(info.coordinator_epoch, 0)
                log.append_marker(info.producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch)
            newest[info.producer_id] = max(epoch, newest.get(info.producer_id, -1))

    def _catch_up(self, entry: TransactionEntry, epoch: int) -> None:
        """A crash of the machine has taken the newest states of an id: its logs would refuse the epochs that it has.

        A transaction that is ongoing, as far as it knows, had ended: what is left of it is aborted.
        """
        with entry.lock:
            state = entry.state
            if state is None or state.producer_epoch >= epoch or state.status.is_prepared:
                return
            logger.warning(
                "transaction of %s: its epoch was %d, its logs know %d",
                entry.transactional_id,
                state.producer_epoch,
                epoch,
            )
            try:
                entry.write(state._replace(producer_epoch=epoch))
                if state.status == _ONGOING:
                    self._end(entry, commit=False, sync=False, fence=True)
            except KStoreError as error:
                logger.error("transaction of %s: its epoch stays: %s", entry.transactional_id, error)

    def _entry(self, transactional_id: str) -> TransactionEntry:
        """What is known of an id, which may be nothing."""
        found = self._ids.get(transactional_id)
        if found is None:
            log = self._internal_log_to_write(TRANSACTIONS_TOPIC, transactional_id)
            if log.partition in self._unread:
                self._read_ids(log)
            with self._admin:
                found = self._ids.setdefault(transactional_id, TransactionEntry(transactional_id, log, None))
        return found

    # Steps.

    def _init_transactions(self, transactional_id: str, timeout_ms: int, owner: object) -> TransactionEntry:
        """Begin to produce with an id: fence whoever did before, abort what they left open (KIP-360, KIP-890)."""
        while True:
            entry = self._entry(transactional_id)
            with entry.lock:
                if self._ids.get(transactional_id) is entry:  # it has not expired meanwhile
                    self._init_locked(entry, timeout_ms, owner)
                    return entry

    def _init_locked(self, entry: TransactionEntry, timeout_ms: int, owner: object) -> None:
        entry.owner = None  # whatever happens now
        if entry.state is not None and entry.state.status.is_prepared:
            self._complete(entry, only_open=True)
        if entry.state is not None and entry.state.status == Status.ONGOING:
            self._end(entry, commit=False, sync=False, fence=True)
        state = entry.state
        now_ms = self._writing().now()
        if state is None:
            producer_id = previous = draw_producer_id()
            epoch, version = 0, 0
        else:
            previous, version = state.producer_id, state.client_version
            if state.producer_epoch >= LAST_EPOCH - 1:
                producer_id, epoch = draw_producer_id(), 0
            else:
                producer_id, epoch = state.producer_id, state.producer_epoch + 1
        entry.write(
            TransactionState(
                producer_id,
                epoch,
                timeout_ms,
                Status.EMPTY,
                last_update_ms=now_ms,
                previous_producer_id=previous,
                client_version=version,
            )
        )
        entry.owner = weakref.ref(owner)

    def _add_partitions(self, entry: TransactionEntry, places: Iterable[Place]) -> None:
        """Write down that the transaction goes to these partitions too, before anything is written there."""
        state = entry.state
        assert state is not None
        producer_id, epoch, timeout_ms, status, partitions, _, start_ms, _, _, _ = state
        now_ms = self._writing().now()
        if status is not _ONGOING:
            start_ms = now_ms
        partitions = (*partitions, *places)
        fields = (producer_id, epoch, timeout_ms, _ONGOING, partitions, now_ms, start_ms, producer_id, -1, VERSION)
        entry.write(_new(TransactionState, fields))

    def _end(self, entry: TransactionEntry, *, commit: bool, sync: bool, fence: bool = False) -> None:
        """Decide a transaction that is ongoing, then do it everywhere.

        With `sync` what it has written is on the disk before the decision is, and that before any marker.
        """
        state = entry.state
        assert state is not None
        next_id = -1
        epoch = state.producer_epoch
        if fence:
            epoch = min(epoch + 1, LAST_EPOCH)
        elif epoch >= LAST_EPOCH - 1:
            next_id = draw_producer_id()
        if sync:
            for log in self._logs_of(state):
                log.flush()
        now_ms = self._writing().now()
        fields = (
            state.producer_id,
            min(epoch + 1, LAST_EPOCH),
            state.timeout_ms,
            _PREPARE_COMMIT if commit else _PREPARE_ABORT,
            state.partitions,
            now_ms,
            state.start_ms,
            state.producer_id,
            next_id,
            VERSION,
        )
        entry.write(_new(TransactionState, fields))
        if sync:
            entry.log.flush()
        self._complete(entry, sync=sync, now_ms=None if sync else now_ms)

    def _complete(
        self, entry: TransactionEntry, *, sync: bool = False, only_open: bool = False, now_ms: int | None = None
    ) -> None:
        """Write the markers of a transaction that is decided, then that it is done.

        With `only_open` those alone that are missing: an earlier life may have written the others.
        """
        state = entry.state
        assert state is not None
        if now_ms is None:
            now_ms = self._writing().now()
        commit = state.status is _PREPARE_COMMIT
        coordinator_epoch = max(entry.log._writable().appender.leader_epoch, 0)
        logs = self._logs_of(state)
        for log in logs:
            if only_open and not _is_open(log, state):
                continue
            _append_marker(log, state, commit, coordinator_epoch, now_ms)
        if sync:
            for log in logs:
                log.flush()
        rotated = state.next_producer_id != -1
        fields = (
            state.next_producer_id if rotated else state.producer_id,
            0 if rotated else state.producer_epoch,
            state.timeout_ms,
            _COMPLETE_COMMIT if commit else _COMPLETE_ABORT,
            (),
            self._writing().now() if sync else now_ms,
            state.start_ms,
            state.producer_id,
            -1,
            state.client_version,
        )
        entry.write(_new(TransactionState, fields))

    def _logs_of(self, state: TransactionState) -> list[Log]:
        """The logs of a transaction; topics that were deleted since have nothing to end."""
        found = []
        catalog = self._catalog
        for topic, number in state.partitions:
            where = catalog.partitions(topic).get(number) if topic in catalog else None
            if where is not None:
                log = where.log
                found.append(self._open_log(where) if log is None or log.closed else log)
            elif self._writing().any_offline:
                raise StorageError(EIO, "the partition may be in a directory that is offline", f"{topic}-{number}")
        return found

    # Housekeeping.

    def _forget_ids(self) -> None:
        """Forget all transactional ids, whose topic is to be deleted; `InvalidTxnStateError` while any is in use."""
        for entry in list(self._ids.values()):
            if entry.is_owned or (entry.state is not None and not entry.state.status.is_complete):
                name = entry.transactional_id
                raise InvalidTxnStateError(f"{name} is in use, or its transaction not done: {TRANSACTIONS_TOPIC} stays")
        self._ids.clear()
        # Read again, should the deletion break off.
        self._unread = {number: KStoreError("deleted") for number in self._internal_partitions(TRANSACTIONS_TOPIC)}

    def _abort_timed_out(self) -> None:
        """Abort the transactions that are open longer than their timeout; complete those that could not be before."""
        now_ms = self._writing().now()
        for entry in list(self._ids.values()):
            state = entry.state
            if state is None or not (state.status.is_prepared or _is_over(state, now_ms)):
                continue  # whoever is at work with it has the lock
            with entry.lock:
                state = entry.state
                try:
                    if state is not None and state.status.is_prepared:
                        self._complete(entry, only_open=True)
                    elif state is not None and _is_over(state, now_ms):
                        logger.warning(
                            "transaction of %s: aborted, it is open for %d ms and its timeout is %d",
                            entry.transactional_id,
                            now_ms - state.start_ms,
                            state.timeout_ms,
                        )
                        entry.owner = None
                        self._end(entry, commit=False, sync=False, fence=True)
                except LogClosedError:
                    return
                except KStoreError as error:
                    logger.error("transaction of %s: not ended: %s", entry.transactional_id, error)

    def _expire_ids(self) -> None:
        """Forget the transactional ids that nobody has used for `transactional.id.expiration.ms`."""
        now_ms = self._writing().now()
        least_ms = self._broker.transactional_id_expiration_ms
        for name, entry in list(self._ids.items()):
            if not _is_expired(entry, now_ms, least_ms):
                continue  # whoever is at work with it has the lock
            with entry.lock:
                if _is_expired(entry, now_ms, least_ms):
                    if entry.state is not None:
                        entry.remove()
                    self._ids.pop(name, None)


def check_transactional_id(transactional_id: object) -> str:
    """Refuse what is no transactional id."""
    if not isinstance(transactional_id, str):
        raise TypeError(f"transactional_id must be a str, not {type(transactional_id).__name__}")
    if not transactional_id:
        raise ValueError("transactional_id is empty; without one leave it out")
    transactionrecords.transaction_key(transactional_id)
    return transactional_id


def check_timeout(timeout_ms: int, most_ms: int) -> int:
    """Take a transaction's timeout, up to `transaction.max.timeout.ms`."""
    return arguments.integer("transaction_timeout_ms", timeout_ms, 1, max(most_ms, 1))


def fenced(entry: TransactionEntry) -> InvalidProducerEpochError:
    """Why a producer may not go on."""
    state = entry.state
    return InvalidProducerEpochError(
        f"the producer of {entry.transactional_id} is fenced: another has taken the id since, or its transaction was "
        f"aborted after its timeout of {0 if state is None else state.timeout_ms} ms"
    )


def _append_marker(log: Log, state: TransactionState, commit: bool, coordinator_epoch: int, now_ms: int) -> None:
    """What `Log.append_marker` does, without looking at each number again."""
    writer = log._writable()
    known = state.producer_id, state.producer_epoch
    if commit:
        table, version = writer.producers.table, state.client_version
        if writer.appender.append_commit(table, now_ms, *known, coordinator_epoch, version) >= 0:
            return
    log.append_marker(
        *known, commit=commit, coordinator_epoch=coordinator_epoch, transaction_version=state.client_version
    )


def _is_expired(entry: TransactionEntry, now_ms: int, least_ms: int) -> bool:
    state = entry.state
    if entry.is_owned:
        return False
    return state is None or (state.status.is_complete and state.last_update_ms + least_ms <= now_ms)


def _is_over(state: TransactionState, now_ms: int) -> bool:
    return state.status == Status.ONGOING and state.start_ms + state.timeout_ms < now_ms


def _is_open(log: Log, state: TransactionState) -> bool:
    """Whether a transaction that is decided has not ended in a log; one with its marker's epoch came after it."""
    info = log._producer_state(state.producer_id)
    if info is None or info.current_txn_first_offset < 0:
        return False
    return state.client_version < VERSION or _is_before(info.producer_epoch, state)


def _is_known(entry: TransactionEntry, log: Log, epoch: int) -> bool:
    """Whether the transaction of this epoch that is open in a log is the one that its id tells of."""
    state = entry.state
    if state is None or state.status.is_complete or (log.topic, log.partition) not in state.partitions:
        return False
    return _is_before(epoch, state) if state.status.is_prepared else epoch == state.producer_epoch


def _is_before(epoch: int, decided: TransactionState) -> bool:
    """Whether a transaction of this epoch is the one that was decided, or an earlier one."""
    return epoch < decided.producer_epoch or epoch == LAST_EPOCH
