"""`TransactionCoordinator`: transactional ids and their transactions, as a broker's coordinator keeps them.

Each step writes a record to `__transaction_state`, as in Kafka's transaction version 2: Ongoing before the first write
to each new partition; PrepareCommit or PrepareAbort with the next epoch; and, after the markers in all partitions,
CompleteCommit or CompleteAbort. Invariant: once a Prepare record is written, this process or a later opening ends the
transaction that way; a transaction without one is aborted.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from errno import EIO
from typing import TypeVar

from kstore.codec.coordinator import transaction_records
from kstore.codec.coordinator.transaction_records import Status, TransactionState
from kstore.disk import fs
from kstore.errors import InvalidProducerEpochError, InvalidTxnStateError, KStoreError, LogClosedError, StorageError
from kstore.files import checkpoint, names
from kstore.files._producer_snapshot import SnapshotError, parse_snapshot
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.store.catalog import Entry, is_deleted
from kstore.store.coordinator import _transaction
from kstore.store.coordinator._lock_set import LockSet
from kstore.store.coordinator._transaction import LAST_EPOCH, VERSION
from kstore.store.coordinator.internal_topics import TRANSACTIONS_TOPIC, InternalTopics
from kstore.store.coordinator.transaction_log import FIRST_PRODUCER_ID, TransactionEntry, draw_producer_id, read_states
from kstore.store.metadata import Metadata
from kstore.store.read_only_logs import Logs

logger = logging.getLogger("kstore")

T = TypeVar("T")

Place = tuple[str, int]

# Looked up once: every transaction uses them several times.
_ONGOING = Status.ONGOING
_PREPARE_COMMIT = Status.PREPARE_COMMIT


class TransactionCoordinator:
    """The transactional ids of a store. Thread-safe; `TransactionEntry.lock` guards one id."""

    def __init__(self, metadata: Metadata, logs: Logs, internal: InternalTopics) -> None:
        self.ids: dict[str, TransactionEntry] = {}
        self._between = threading.Lock()
        self._metadata = metadata
        self._logs = logs
        self._internal = internal
        self._unread: dict[int, KStoreError] = {}  # partitions whose ids are not known, and why
        fs.register(self)

    def _after_fork(self) -> None:
        """Give every id a new lock: in a child process the thread that held the old one does not exist."""
        self._between = threading.Lock()
        for entry in list(self.ids.values()):
            entry.lock.renew()

    @property
    def logs_by_topic(self) -> dict[str, dict[int, Entry]]:
        return self._metadata.catalog.by_topic

    # Recovery.

    def recover(self) -> None:
        """Read the ids, then end transactions that were decided, or whose record was lost in a crash of the machine."""
        for number, entry in self._internal.partitions(TRANSACTIONS_TOPIC).items():
            try:
                self._read_ids(self._logs.log(entry))
            except KStoreError as error:
                self._unread[number] = error
                logger.error("%s: its transactions are not known: %s", entry.path, error)
        self._complete_prepared()
        self._end_hanging()

    def _read_ids(self, log: Log) -> None:
        states = read_states(log)
        with self._metadata.changing:
            self._unread.pop(log.partition, None)
            for name, state in states.items():
                self.ids.setdefault(name, TransactionEntry(name, log, self._logs, state))

    def _complete_prepared(self) -> None:
        for entry in list(self.ids.values()):
            with entry.lock:
                state = entry.state
                if state is None or not state.status.is_prepared:
                    continue
                logger.info("transaction of %s: completing the %s", entry.transactional_id, state.status.name)
                try:
                    self.complete(entry, only_open=True)
                except KStoreError as error:
                    logger.error("transaction of %s: not completed: %s", entry.transactional_id, error)

    def _end_hanging(self) -> None:
        """End open transactions that no transactional id has: a crash of the machine lost the records of the id.

        Looks only at producer ids from `FIRST_PRODUCER_ID` on, which are kstore's. After a crash, the logs that were
        not closed cleanly are open already; for the other logs, a producer snapshot says whether to open them.
        """
        entries_of = {entry.state.producer_id: entry for entry in self.ids.values() if entry.state is not None}
        newest: dict[int, int] = {}
        for where in self._metadata.catalog.entries():
            if where.failure is not None or self._unread:
                continue
            try:
                log = self._logs.log(where) if where.log is None and self._was_left_open(where) else where.log
                if log is not None:
                    self._end_hanging_in(log, entries_of, newest)
            except KStoreError as error:
                logger.error("%s: transactions without a transactional id are not ended: %s", where.path, error)
        for producer_id, entry in entries_of.items():
            self._catch_up(entry, newest.get(producer_id, -1))

    def _was_left_open(self, where: Entry) -> bool:
        """Return whether a log that is still closed had an open transaction of a kstore producer when it was closed.

        The marker of that transaction may have been written after the close, and lost.
        """
        directory = self._logs.writing().disks.directories[where.root]
        if where.trusted or directory.offline is not None:
            return False
        end = directory.mark(checkpoint.RECOVERY_POINTS, where.key)
        try:
            entries = parse_snapshot(fs.read_file(f"{where.path}/{names.snapshot_name(end or 0)}"))
        except (fs.MissingFileError, SnapshotError):
            return False
        return any(entry.producer_id >= FIRST_PRODUCER_ID and entry.current_txn_first_offset >= 0 for entry in entries)

    @staticmethod
    def _end_hanging_in(log: Log, entries_of: dict[int, TransactionEntry], newest: dict[int, int]) -> None:
        """End these transactions in one log; add the newest epoch of each kstore producer in the log to `newest`."""
        for info in log.producer_states():
            if info.producer_id < FIRST_PRODUCER_ID:
                continue
            epoch = info.producer_epoch
            entry = entries_of.get(info.producer_id)
            if info.current_txn_first_offset >= 0 and (entry is None or not _is_known(entry, log, epoch)):
                commit = entry is not None and entry.was_committed(info.producer_id, epoch + 1)
                verb = "committing" if commit else "aborting"
                logger.warning(
                    "%s: %s a transaction of producer %d without a transactional id", log.path, verb, info.producer_id
                )
                epoch = min(epoch + 1, LAST_EPOCH)
                coordinator_epoch = max(info.coordinator_epoch, 0)
                log.append_marker(info.producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch)
            newest[info.producer_id] = max(epoch, newest.get(info.producer_id, -1))

    def _catch_up(self, entry: TransactionEntry, epoch: int) -> None:
        """Raise the epoch of an id if a crash of the machine lost its newest states: logs would refuse an older epoch.

        A transaction that is ongoing in the state of the id has in fact ended: where its marker is missing, it is
        aborted.
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
                # Otherwise `was_committed` could mistake a complete commit for a commit of this epoch.
                status = Status.EMPTY if state.status.is_complete else state.status
                entry.write(state._replace(producer_epoch=epoch, status=status))
                self.settle(entry, fence=True)
            except KStoreError as error:
                logger.error("transaction of %s: its epoch stays: %s", entry.transactional_id, error)

    def _entry(self, transactional_id: str) -> TransactionEntry:
        """Return the entry of an id, and create it if there is none."""
        entry = self.ids.get(transactional_id)
        if entry is None:
            log = self._internal.log_to_write(TRANSACTIONS_TOPIC, transactional_id)
            if log.partition in self._unread:
                self._read_ids(log)
            with self._metadata.changing:
                entry = self.ids.setdefault(transactional_id, TransactionEntry(transactional_id, log, self._logs, None))
        return entry

    # Steps.

    def begin(self, transactional_id: str, timeout_ms: int, owner: object) -> TransactionEntry:
        """Give an id to a producer: fence the earlier producer, and abort its open transaction (KIP-360, KIP-890)."""
        while True:
            entry = self._entry(transactional_id)
            with entry.lock:
                if self.ids.get(transactional_id) is entry:  # it has not expired since
                    self._begin_locked(entry, timeout_ms, owner)
                    return entry

    def _begin_locked(self, entry: TransactionEntry, timeout_ms: int, owner: object) -> None:
        entry.owner = None  # also when a step below raises
        self.settle(entry, fence=True)
        state = entry.state
        now_ms = self._logs.writing().now()
        if state is None or state.producer_epoch >= LAST_EPOCH - 1:
            producer_id, epoch = draw_producer_id(), 0
        else:
            producer_id, epoch = state.producer_id, state.producer_epoch + 1
        begun = TransactionState(producer_id, epoch, timeout_ms, Status.EMPTY, last_update_ms=now_ms)
        previous, version = (producer_id, 0) if state is None else (state.producer_id, state.client_version)
        entry.write(begun._replace(previous_producer_id=previous, client_version=version))
        entry.owner = weakref.ref(owner)

    def settle(self, entry: TransactionEntry, *, fence: bool = False) -> None:
        """Complete the transaction of an id if it is decided; abort it if it is ongoing."""
        status = None if entry.state is None else entry.state.status
        if status is _ONGOING:
            self.end(entry, commit=False, sync=False, fence=fence)
        elif status is not None and status.is_prepared:
            self.complete(entry, only_open=True)

    def end(self, entry: TransactionEntry, *, commit: bool, sync: bool, fence: bool = False) -> None:
        """Decide an ongoing transaction, then write its markers.

        With `sync` the transaction's records are on the disk before its decision, and the decision before any marker.
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
            self._in_each_log(state, Log.flush)
        now_ms = entry.now()
        entry.decide(commit, min(epoch + 1, LAST_EPOCH), next_id, now_ms)
        if sync:
            entry.log.flush()
        self.complete(entry, sync=sync, now_ms=None if sync else now_ms)

    def complete(
        self, entry: TransactionEntry, *, sync: bool = False, only_open: bool = False, now_ms: int | None = None
    ) -> None:
        """Write the markers of a decided transaction, then the record that it is complete.

        With `only_open` write only the missing markers: an earlier process may have written the others.
        """
        state = entry.state
        assert state is not None
        if now_ms is None:
            now_ms = entry.now()
        commit = state.status is _PREPARE_COMMIT
        coordinator_epoch = entry.coordinator_epoch

        def mark(log: Log) -> None:
            if not only_open or _is_open(log, state):
                _transaction.append_marker(log, state, commit, coordinator_epoch, now_ms)

        self._in_each_log(state, mark)
        if sync:
            self._in_each_log(state, Log.flush)
        entry.done(entry.now() if sync else now_ms)

    def _in_each_log(self, state: TransactionState, step: Callable[[Log], None]) -> None:
        """Call `step` with each log of a transaction; skip topics that are deleted before or during the call."""
        for topic, number in state.partitions:
            where = self._metadata.catalog.by_topic.get(topic, {}).get(number)
            if where is not None:
                try:
                    log = where.log
                    step(self._logs.log(where) if log is None or log.closed else log)
                except KStoreError:
                    if not is_deleted(where):
                        raise
            elif self._logs.writing().disks.any_offline:
                raise StorageError(EIO, "the partition may be in a directory that is offline", f"{topic}-{number}")

    def between_ends(self, look: Callable[[], T]) -> T:
        """Call `look` while no transaction is between its decision and its last marker, and return its result.

        So the log ends that `look` reads are consistent: below them, each transaction either has ended in all of its
        partitions, with all of its records, or is undecided. `look` is called again if an id was added during the call.
        """
        # `_between`: two callers that take the ids' locks in different orders would deadlock.
        with self._between, LockSet() as held:
            known: set[TransactionEntry] = set()
            while True:
                while new := set(self.ids.values()) - known:
                    for entry in new:
                        held.enter(entry.lock)
                    known |= new
                seen = look()
                if known.issuperset(self.ids.values()):
                    return seen

    # Housekeeping.

    def forget_all(self) -> None:
        """Forget all transactional ids before their topic is deleted; raise `InvalidTxnStateError` if any is in use."""
        for entry in list(self.ids.values()):
            if entry.is_owned or (entry.state is not None and not entry.state.status.is_complete):
                name = entry.transactional_id
                raise InvalidTxnStateError(f"{name} is in use, or its transaction not done: {TRANSACTIONS_TOPIC} stays")
        self.ids.clear()
        # The ids are read again if the deletion fails.
        self._unread = {number: KStoreError("deleted") for number in self._internal.partitions(TRANSACTIONS_TOPIC)}

    def abort_timed_out(self) -> None:
        """Abort transactions that are open longer than their timeout; complete decided transactions."""
        manager = self._logs.writing()
        now_ms = manager.now()
        for entry in list(self.ids.values()):
            state = entry.state
            if state is None or not (state.status.is_prepared or _is_over(state, now_ms)):
                continue  # without waiting for the lock
            name = f"transaction of {entry.transactional_id}"
            with entry.lock:
                state = entry.state
                try:
                    if state is not None and _is_over(state, now_ms):
                        if name not in manager.failures:  # otherwise this is a retry
                            logger.warning(
                                "%s: aborted, it is open for %d ms and its timeout is %d",
                                name,
                                now_ms - state.start_ms,
                                state.timeout_ms,
                            )
                        entry.owner = None
                        self.settle(entry, fence=True)
                    elif state is not None and state.status.is_prepared:
                        self.settle(entry)
                    manager.failures.pop(name, None)
                except LogClosedError:
                    return
                except KStoreError as error:
                    if manager.note(name, error):
                        logger.error("%s: not ended: %s", name, error)

    def expire_ids(self) -> None:
        """Forget the transactional ids that were not used for `transactional.id.expiration.ms`."""
        now_ms = self._logs.writing().now()
        least_ms = self._metadata.broker.transactional_id_expiration_ms
        for name, entry in list(self.ids.items()):
            if not _is_expired(entry, now_ms, least_ms):
                continue  # without waiting for the lock
            with entry.lock:
                if _is_expired(entry, now_ms, least_ms):
                    if entry.state is not None:
                        entry.remove()
                    self.ids.pop(name, None)


def check_transactional_id(transactional_id: object) -> str:
    """Raise if a value is not a transactional id; return it otherwise."""
    if not isinstance(transactional_id, str):
        raise TypeError(f"transactional_id must be a str, not {type(transactional_id).__name__}")
    if not transactional_id:
        raise ValueError("transactional_id is empty; without one leave it out")
    transaction_records.transaction_key(transactional_id)
    return transactional_id


def fenced(entry: TransactionEntry) -> InvalidProducerEpochError:
    """Return the error that says why a producer may not continue."""
    state = entry.state
    return InvalidProducerEpochError(
        f"the producer of {entry.transactional_id} is fenced: another has taken the id since, or its transaction was "
        f"aborted after its timeout of {0 if state is None else state.timeout_ms} ms"
    )


def _is_expired(entry: TransactionEntry, now_ms: int, least_ms: int) -> bool:
    state = entry.state
    if entry.is_owned:
        return False
    return state is None or (state.status.is_complete and state.last_update_ms + least_ms <= now_ms)


def _is_over(state: TransactionState, now_ms: int) -> bool:
    return state.status == Status.ONGOING and state.start_ms + state.timeout_ms < now_ms


def _is_open(log: Log, state: TransactionState) -> bool:
    """Return whether a decided transaction is open in a log; one that has its marker's epoch is a later transaction."""
    info = HostedLog(log).writer.producer_info(state.producer_id)
    if info is None or info.current_txn_first_offset < 0:
        return False
    return state.client_version < VERSION or _is_before(info.producer_epoch, state)


def _is_known(entry: TransactionEntry, log: Log, epoch: int) -> bool:
    """Return whether the transaction that is open in a log with this epoch is the one in the state of its id."""
    state = entry.state
    if state is None or state.status.is_complete or (log.topic, log.partition) not in state.partitions:
        return False
    return _is_before(epoch, state) if state.status.is_prepared else epoch == state.producer_epoch


def _is_before(epoch: int, decided: TransactionState) -> bool:
    """Return whether a transaction of this epoch is the decided one or an earlier one."""
    return epoch < decided.producer_epoch or epoch == LAST_EPOCH
