# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The state of a log's producers: epochs and last batches (SEMANTICS 9).

A `ProducerTable` checks a batch before it is written, and applies it afterwards. Invariant: staged batches have no
effect until `publish`, so a failed write leaves no trace.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.errno cimport errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy, memmove, memset

from kstore._core cimport Buffer, ks_parse_record, ks_record, record_section
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BATCH_LENGTH_AT, BatchHead, CODEC_MASK, CONTROL_BIT, CRC_AT, HEADER_UP_TO_MAGIC,
    LAST_OFFSET_DELTA_AT, LOG_OVERHEAD, MAGIC_AT, MAX_TIMESTAMP_AT, MIN_V0_MESSAGE, PRODUCER_EPOCH_AT, PRODUCER_ID_AT,
    RECORDS_AT, RECORDS_COUNT_AT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, batch_size, load16, load32, load64,
    put_header, store32,
)
from kstore.files._producer_snapshot cimport (
    SNAPSHOT_COUNT_AT, SNAPSHOT_ENTRY, SNAPSHOT_HEAD, SNAPSHOT_SOUND, Producer, snapshot_check, snapshot_finish,
    snapshot_get, snapshot_put,
)
from kstore.disk._mounted_read cimport mounted_read, set_mounted_read
from kstore.log.segments._last_stable_offset cimport OpenTransactions
from kstore.files._window cimport Window, read_at, window_at, window_free, window_new

import logging

from kstore.disk import mounts
from kstore.errors import (
    CorruptRecordError, InvalidProducerEpochError, InvalidRecordError, InvalidTxnStateError, OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)

set_mounted_read(mounted_read)

cdef extern from "crc32c.h" nogil:
    uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) noexcept

logger = logging.getLogger("kstore")

cdef enum:
    INT_MAX = 0x7fffffff
    LAST_EPOCH = 32767
    REPLAY_WINDOW = 65536
    MOST_OF_A_MARKER = 512         # an end marker has 78 bytes; a longer one is read separately

# Who appends (SEMANTICS 1.1).
cpdef enum Origin:
    CLIENT = 0
    COORDINATOR = 1
    FOLLOWER = 2


cdef int32_t after(int32_t sequence, int32_t n) noexcept nogil:
    """Return the sequence number that is `n` later; numbers wrap in [0, INT_MAX] (SEMANTICS 9.2)."""
    return <int32_t> ((<int64_t> sequence + n) & INT_MAX)


cdef int32_t before(int32_t sequence, int32_t n) noexcept nogil:
    return <int32_t> ((<int64_t> sequence - n) & INT_MAX)


cdef void read_head(const uint8_t *p, int64_t base_offset, Head *h) noexcept nogil:
    h.base_offset = base_offset
    h.delta = load32(p + LAST_OFFSET_DELTA_AT)
    h.last_offset = base_offset + h.delta
    h.max_timestamp = load64(p + MAX_TIMESTAMP_AT)
    h.producer_id = load64(p + PRODUCER_ID_AT)
    h.epoch = load16(p + PRODUCER_EPOCH_AT)
    h.first_sequence = load32(p + BASE_SEQUENCE_AT)
    h.last_sequence = -1 if h.first_sequence == -1 else after(h.first_sequence, h.delta)
    h.count = load32(p + RECORDS_COUNT_AT)
    h.attributes = load16(p + ATTRIBUTES_AT)


cdef int32_t last_sequence(const Entry *e) noexcept nogil:
    return e.kept[e.count - 1].last_sequence if e.count else -1


cdef void push(Entry *e, int64_t last_offset, int64_t timestamp, int32_t sequence, int32_t delta) noexcept nogil:
    if e.count == MOST_KEPT:
        memmove(&e.kept[0], &e.kept[1], (MOST_KEPT - 1) * sizeof(Kept))
        e.count -= 1
    e.kept[e.count] = Kept(last_offset, timestamp, sequence, delta)
    e.count += 1


cdef void enter_epoch(Entry *e, int16_t epoch) noexcept nogil:
    if e.epoch != epoch:
        e.epoch = epoch
        e.count = 0


cdef inline uint64_t mixed(int64_t producer_id) noexcept nogil:
    cdef uint64_t x = <uint64_t> producer_id
    x ^= x >> 33
    x *= 0xff51afd7ed558ccdULL
    x ^= x >> 33
    return x


cdef int by_producer_id(const void *a, const void *b) noexcept nogil:
    cdef int64_t left = (<const Entry *> a).producer_id, right = (<const Entry *> b).producer_id
    return (left > right) - (left < right)


cdef object name_of(const Head *h):
    return f"producer {h.producer_id}, offsets {h.base_offset} to {h.last_offset}"


@cython.final
cdef class ProducerTable:
    """The producers of one log.

    Not thread-safe: the log's mutex guards it. `open` may be read from any thread.
    """

    def __cinit__(self):
        self._begun = []
        self._completed = []
        self._staged_at = {}
        self.open = OpenTransactions()

    def __dealloc__(self):
        PyMem_RawFree(self._entries)
        PyMem_RawFree(self._slots)
        PyMem_RawFree(self._staged)

    def __len__(self):
        return self._count

    @property
    def size_bytes(self) -> int:
        return ((self._room + self._staged_room) * sizeof(Entry) + self._slots_count * sizeof(int32_t)
                + self.open.size_bytes)

    def clear(self) -> None:
        """Forget all producers."""
        PyMem_RawFree(self._entries)
        PyMem_RawFree(self._slots)
        self._entries = NULL
        self._slots = NULL
        self._count = self._room = self._slots_count = 0
        self.open.clear()
        self.drop()

    # ---- The hash table.

    cdef Entry *_find(self, int64_t producer_id) noexcept:
        cdef Py_ssize_t mask = self._slots_count - 1
        cdef Py_ssize_t at
        if self._count == 0:
            return NULL
        at = <Py_ssize_t> (mixed(producer_id) & <uint64_t> mask)
        while self._slots[at]:
            if self._entries[self._slots[at] - 1].producer_id == producer_id:
                return &self._entries[self._slots[at] - 1]
            at = (at + 1) & mask
        return NULL

    cdef void _enter(self, Py_ssize_t number) noexcept:
        cdef Py_ssize_t mask = self._slots_count - 1
        cdef Py_ssize_t at = <Py_ssize_t> (mixed(self._entries[number].producer_id) & <uint64_t> mask)
        while self._slots[at]:
            at = (at + 1) & mask
        self._slots[at] = <int32_t> (number + 1)

    cdef int _hash(self, Py_ssize_t slots) except -1:
        cdef int32_t *made = <int32_t *> PyMem_RawMalloc(<size_t> slots * sizeof(int32_t))
        cdef Py_ssize_t i
        if made == NULL:
            raise MemoryError
        PyMem_RawFree(self._slots)
        self._slots = made
        self._slots_count = slots
        memset(made, 0, <size_t> slots * sizeof(int32_t))
        for i in range(self._count):
            self._enter(i)
        return 0

    cdef int _reserve(self, Py_ssize_t more) except -1:
        """Make space for `more` entries, so that adding them cannot fail."""
        cdef Py_ssize_t wanted = self._count + more
        cdef Py_ssize_t slots = 16
        cdef void *data
        if wanted > self._room:
            wanted = max(wanted, self._room + self._room // 4 + 8)
            data = PyMem_RawRealloc(self._entries, <size_t> wanted * sizeof(Entry))
            if data == NULL:
                raise MemoryError
            self._entries = <Entry *> data
            self._room = wanted
        if 3 * (self._count + more) > 2 * self._slots_count:
            while 3 * (self._count + more) > 2 * slots:
                slots *= 2
            self._hash(slots)
        return 0

    cdef Entry *_add(self, int64_t producer_id) except NULL:
        cdef Entry *e
        self._reserve(1)
        e = &self._entries[self._count]
        self._begin(e, producer_id)
        self._enter(self._count)
        self._count += 1
        return e

    cdef void _begin(self, Entry *e, int64_t producer_id) noexcept:
        e.producer_id = producer_id
        e.timestamp = e.txn_first = -1
        e.coordinator_epoch = -1
        e.epoch = -1
        e.count = 0

    # ---- Appends that clearly pass every check; all others go through `stage`.

    cdef Entry *_ready(self, int64_t producer_id, int16_t epoch, int32_t sequence, bint transactional) noexcept:
        """Return the producer's entry if this is clearly the next batch of a client; NULL if `stage` has to decide."""
        cdef Entry *e
        if self._staged_count:
            return NULL
        e = self._find(producer_id)
        if e == NULL or e.epoch != epoch or after(last_sequence(e), 1) != sequence:
            return NULL
        if e.txn_first >= 0 and not transactional:
            return NULL
        return e

    cdef void _take(self, Entry *e, int64_t offset, int64_t timestamp, int32_t sequence, bint transactional) noexcept:
        """Apply one record of a `_ready` producer that is in the log; space for its transaction was reserved."""
        push(e, offset, timestamp, sequence, 0)
        e.timestamp = timestamp
        if transactional and e.txn_first < 0:
            e.txn_first = offset
            self.open.begin_last(offset, e.producer_id)

    cdef Entry *_committable(self, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch, int version) noexcept:
        """Return the entry of a producer whose open transaction the marker commits (SEMANTICS 9.11a), else NULL."""
        cdef Entry *e
        if self._staged_count:
            return NULL
        e = self._find(producer_id)
        if e == NULL or e.txn_first < 0 or coordinator_epoch < e.coordinator_epoch:
            return NULL
        if epoch < e.epoch or (epoch == e.epoch and version >= 2):
            return NULL
        return e

    cdef void _commit(self, Entry *e, int64_t timestamp, int16_t epoch, int32_t coordinator_epoch) noexcept:
        """Apply the marker of a `_committable` transaction that is in the log."""
        self.open.end(e.txn_first)
        enter_epoch(e, epoch)
        e.coordinator_epoch = coordinator_epoch
        e.timestamp = timestamp
        e.txn_first = -1

    # ---- Checking an append.

    def stage(self, data: ReadableBuffer, Py_ssize_t position, int64_t base_offset, int origin,
              transaction_version: int | None = None) -> tuple[int, int, int] | None:
        """Check and stage the v2 batch at `position` of `data`, which is to get `base_offset`.

        A batch without a producer passes and is not staged. A client's batch that the log already has is not staged
        either: its (first offset, last offset, timestamp) are returned, otherwise None. `publish` applies staged
        batches. Raises `OutOfOrderSequenceError`, `InvalidProducerEpochError`, `InvalidTxnStateError`,
        `TransactionCoordinatorFencedError`, `InvalidRecordError` for a control record that does not parse, and
        `ValueError` for a marker without a transaction version.
        """
        cdef Buffer held = Buffer(data)
        cdef const uint8_t *p
        cdef Head h
        cdef Entry *stored
        cdef Kept *k
        cdef int16_t i
        cdef int64_t size
        if not 0 <= position <= held.size - RECORDS_AT:
            raise ValueError(f"no batch at position {position} of {held.size} bytes")
        p = held.p + position
        size = batch_size(p)
        if size < RECORDS_AT or size > held.size - position:
            raise ValueError(f"a batch of {size} bytes at position {position} of {held.size} bytes")
        if p[MAGIC_AT] != 2:
            return None
        read_head(p, base_offset, &h)
        if h.producer_id < 0:
            return None
        stored = self._find(h.producer_id)
        if origin == CLIENT and stored != NULL and stored.epoch == h.epoch:
            for i in range(stored.count):
                k = &stored.kept[i]
                if k.last_sequence == h.last_sequence and before(k.last_sequence, k.offset_delta) == h.first_sequence:
                    return k.last_offset - k.offset_delta, k.last_offset, k.timestamp
        if (origin != FOLLOWER and h.attributes & TRANSACTIONAL_BIT and stored != NULL and h.epoch < stored.epoch):
            self._refuse_epoch(&h, stored.epoch, False)
        self._apply(self._stage_of(h.producer_id), &h, p, <Py_ssize_t> size, origin, transaction_version, True)
        return None

    cdef Entry *_stage_of(self, int64_t producer_id) except NULL:
        """Return the staged state of a producer, which starts as a copy of its present state."""
        cdef Entry *e
        cdef Entry *stored
        cdef void *data
        cdef Py_ssize_t wanted
        if self._staged_count:
            slot = self._staged_at.get(producer_id)
            if slot is not None:
                return &self._staged[<Py_ssize_t> slot]
        if self._staged_count == self._staged_room:
            wanted = 2 * self._staged_room + 2
            data = PyMem_RawRealloc(self._staged, <size_t> wanted * sizeof(Entry))
            if data == NULL:
                raise MemoryError
            self._staged = <Entry *> data
            self._staged_room = wanted
        e = &self._staged[self._staged_count]
        stored = self._find(producer_id)
        if stored != NULL:
            e[0] = stored[0]
        else:
            self._begin(e, producer_id)
        self._staged_at[producer_id] = self._staged_count
        self._staged_count += 1
        self._reserve(self._staged_count)
        return e

    cdef int _apply(self, Entry *e, const Head *h, const uint8_t *p, Py_ssize_t n, int origin, object version,
                    bint staging) except -1:
        """Check one batch and apply it to `e` (SEMANTICS 9.5 to 9.11)."""
        cdef int16_t kind
        cdef int32_t coordinator_epoch
        if h.attributes & CONTROL_BIT:
            if not read_marker(h, p, n, &kind, &coordinator_epoch):
                return 0
            self._check_marker(e, h, coordinator_epoch, origin, version)
            if e.txn_first >= 0:
                self._complete(e.producer_id, e.txn_first, h.last_offset, kind == 0, staging)
            enter_epoch(e, h.epoch)
            e.coordinator_epoch = coordinator_epoch
            e.timestamp = h.max_timestamp
            e.txn_first = -1
            return 0
        if h.epoch < e.epoch:
            self._refuse_epoch(h, e.epoch, origin == FOLLOWER)
        if origin == CLIENT:
            self._check_sequence(e, h)
        if e.txn_first >= 0 and not h.attributes & TRANSACTIONAL_BIT:
            if staging:
                raise InvalidTxnStateError(
                    f"{name_of(h)}: not transactional, while the transaction that began at offset {e.txn_first} is open",
                    producer_id=h.producer_id, producer_epoch=h.epoch)
            logger.warning("producer %d: a batch at %d outside of its transaction, which began at %d",
                           h.producer_id, h.base_offset, e.txn_first)
        enter_epoch(e, h.epoch)
        push(e, h.last_offset, h.max_timestamp, h.last_sequence, h.delta)
        e.timestamp = h.max_timestamp
        if e.txn_first < 0 and h.attributes & TRANSACTIONAL_BIT:
            e.txn_first = h.base_offset
            # Before its bytes are in the file: a reader of committed records must not read past it.
            self.open.begin(h.base_offset, h.producer_id)
            if staging:
                self._begun.append(h.base_offset)
        return 0

    cdef int _check_sequence(self, const Entry *e, const Head *h) except -1:
        """Check the sequence of a client's batch (SEMANTICS 9.7)."""
        cdef int32_t last
        if e.epoch == -1:
            return 0
        if h.epoch != e.epoch:
            if h.first_sequence == 0:
                return 0
            raise OutOfOrderSequenceError(
                f"{name_of(h)}: sequence {h.first_sequence} is the first of epoch {h.epoch}, after epoch {e.epoch}; "
                f"expected 0", producer_id=h.producer_id, producer_epoch=h.epoch, expected=0, found=h.first_sequence)
        last = last_sequence(e)
        if h.first_sequence == <int64_t> last + 1 or (h.first_sequence == 0 and last == INT_MAX):
            return 0
        raise OutOfOrderSequenceError(
            f"{name_of(h)}: sequence {h.first_sequence} of epoch {h.epoch} follows sequence {last}; "
            f"expected {after(last, 1)}",
            producer_id=h.producer_id, producer_epoch=h.epoch, expected=after(last, 1), found=h.first_sequence)

    cdef int _check_marker(self, const Entry *e, const Head *h, int32_t coordinator_epoch, int origin,
                           object version) except -1:
        """Check the epochs of a marker (SEMANTICS 9.11, 9.11a)."""
        cdef bint stale
        if version is None:
            if origin != FOLLOWER:
                raise ValueError(f"{name_of(h)}: a marker needs a transaction version")
            version = 0
        if version < 2:
            stale = h.epoch < e.epoch
        else:
            stale = h.epoch <= e.epoch and not (
                h.epoch == e.epoch and (e.txn_first < 0 or h.epoch == LAST_EPOCH))
        if stale:
            self._refuse_epoch(h, e.epoch, origin == FOLLOWER)
        if coordinator_epoch < e.coordinator_epoch:
            text = (f"{name_of(h)}: marker of coordinator epoch {coordinator_epoch}; "
                    f"the newest known is {e.coordinator_epoch}")
            if origin != FOLLOWER:
                raise TransactionCoordinatorFencedError(
                    text, producer_id=h.producer_id, producer_epoch=h.epoch, expected=e.coordinator_epoch,
                    found=coordinator_epoch)
            logger.info("taken as it stands in the log: %s", text)
        return 0

    cdef int _refuse_epoch(self, const Head *h, int16_t known, bint only_say) except -1:
        text = f"{name_of(h)}: producer epoch {h.epoch}; the newest known is {known}"
        if not only_say:
            raise InvalidProducerEpochError(
                text, producer_id=h.producer_id, producer_epoch=h.epoch, expected=known, found=h.epoch)
        logger.info("taken as it stands in the log: %s", text)
        return 0

    cdef int _complete(self, int64_t producer_id, int64_t first, int64_t last, bint aborted, bint staging) except -1:
        if staging:
            self._completed.append((producer_id, first, last, aborted))
        else:
            self.open.end(first)
            if aborted:
                self._completed.append((producer_id, first, last, self.open.stable_after(producer_id, last, ())))
        return 0

    def aborted(self) -> list[tuple[int, int, int, int]]:
        """Return (producer id, first, last, last stable offset) of each staged aborted transaction (SEMANTICS 9.14)."""
        if not self._completed:
            return []
        aborted = []
        ended = set()
        for producer_id, first, last, is_aborted in self._completed:
            if is_aborted:
                aborted.append((producer_id, first, last, self.open.stable_after(producer_id, last, ended)))
            ended.add(first)
        return aborted

    def write_all(self, commit: Callable[[ReadableBuffer, int, bool, bool], tuple[int, int]], data: ReadableBuffer,
                  int64_t first_offset, int origin) -> tuple[int, int]:
        """Write as many of several data batches as fit into one write. Return (code, bytes taken).

        The first batch gets `first_offset`. Batches are staged up to the first that the log already has or that is
        refused. `commit` (an appender's) writes them, up to the first that needs a new segment; the written ones are
        published. If the very first is repeated or refused, nothing is taken, and `stage` says which. Compiled.
        """
        cdef Py_ssize_t position = 0, taken = 0
        cdef int code = -1
        view = memoryview(data)
        try:
            position = self._stage_all(view, len(view), first_offset, origin)
            if position:
                code, taken = commit(view[:position], 0, False, True)
        finally:
            if taken == 0 or taken < position:
                self.drop()
            if 0 < taken < position:
                self._stage_all(view, taken, first_offset, origin)
            if taken:
                self.publish()
        return code, taken

    cdef Py_ssize_t _stage_all(self, object view, Py_ssize_t end, int64_t offset, int origin) except -1:
        """Stage the batches of `[0, end)`. Return the position of the first that was not staged."""
        cdef Buffer held = Buffer(view)
        cdef Py_ssize_t position = 0
        while end - position >= RECORDS_AT:
            try:
                if self.stage(view, position, offset, origin, None) is not None:
                    break
            except ValueError:  # a refusal of any kind; the batch is refused again when its turn comes
                break
            offset += load32(held.p + position + LAST_OFFSET_DELTA_AT) + 1
            position += <Py_ssize_t> load32(held.p + position + BATCH_LENGTH_AT) + LOG_OVERHEAD
        return position

    cpdef publish(self):  # type: None
        """Apply the staged batches, whose bytes are in the log now (SEMANTICS 9.4)."""
        cdef Py_ssize_t i
        cdef Entry *e
        for i in range(self._staged_count):
            e = self._find(self._staged[i].producer_id)
            if e == NULL:
                if self._staged[i].epoch == -1 and self._staged[i].count == 0 and self._staged[i].timestamp == -1:
                    continue  # nothing but an empty control batch
                e = self._add(self._staged[i].producer_id)
            e[0] = self._staged[i]
        for _, first, _, _ in self._completed:
            self.open.end(first)
        self._begun.clear()
        self.drop()

    cpdef drop(self):  # type: None
        """Discard the staged batches."""
        if self._staged_count:
            self._staged_count = 0
            self._staged_at.clear()
        if self._begun:
            for first in self._begun:
                self.open.end(first)
            self._begun.clear()
        if self._completed:
            self._completed.clear()

    def write(self, commit: Callable[[ReadableBuffer, int, bool, bool], tuple[int, int]], data: ReadableBuffer,
              bint follower) -> int:
        """Write the staged batches with `commit` (an appender's); publish them if written, else drop them.

        Return the code of `commit`. Compiled, so that no interrupt can come between the write and `publish`.
        """
        cdef int code = -1
        try:
            code, _ = commit(data, 0, follower, True)
        finally:
            if code == 0:
                self.publish()
            else:
                self.drop()
        return code

    # ---- Replaying.

    def replay(self, int fd, int64_t position, int64_t end, int64_t start_offset,
               path: str | None = None) -> list[tuple[int, int, int, int]]:
        """Apply the batches of `[position, end)` of a file from `start_offset` on, as a follower (SEMANTICS 9.26).

        Stop at the first bytes that are no whole, framed batch. Skip a control batch that does not parse. Return the
        transactions that these batches abort, as `aborted` does. Raises `StorageError`.
        """
        cdef Window w
        cdef int64_t size
        cdef Py_ssize_t left
        cdef const uint8_t *p
        cdef Head h
        cdef Entry *e
        if window_new(&w, fd, end, REPLAY_WINDOW):
            raise MemoryError
        try:
            while end - position > HEADER_UP_TO_MAGIC:
                left = <Py_ssize_t> min(<int64_t> MOST_OF_A_MARKER, end - position)
                p = window_at(&w, position, left)
                if p == NULL:
                    if w.error:
                        raise mounts.read_error(w.error, path)
                    p = w.data             # the file was cut: use the bytes that are left
                    left = w.size
                if left <= HEADER_UP_TO_MAGIC:
                    break
                size = batch_size(p)
                if size < LOG_OVERHEAD + MIN_V0_MESSAGE or size > end - position:
                    break
                if p[MAGIC_AT] == 2 and size >= RECORDS_AT and left >= RECORDS_AT:
                    read_head(p, load64(p), &h)
                    if h.producer_id >= 0 and h.last_offset >= start_offset:
                        e = self._find(h.producer_id)
                        if e == NULL:
                            e = self._add(h.producer_id)
                        if h.attributes & CONTROL_BIT and size > left:
                            data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> size)
                            if read_whole(fd, data, position, path) < size:
                                break
                            self._replay_one(e, &h, <const uint8_t *> PyBytes_AS_STRING(data), <Py_ssize_t> size)
                        else:
                            self._replay_one(e, &h, p, <Py_ssize_t> min(size, <int64_t> left))
                position += size
            completed = list(self._completed)
        finally:
            self._completed.clear()
            window_free(&w)
        return completed


    cdef int _replay_one(self, Entry *e, const Head *h, const uint8_t *p, Py_ssize_t n) except -1:
        try:
            self._apply(e, h, p, n, FOLLOWER, None, False)
        except (InvalidRecordError, CorruptRecordError) as error:
            logger.warning("passed over: %s", error)
        return 0

    # ---- Expiry, snapshots.

    def expire(self, int64_t now_ms, int64_t expiration_ms) -> int:
        """Forget producers silent for `expiration_ms`, unless in a transaction (SEMANTICS 9.21). Return how many."""
        cdef Py_ssize_t i, kept = 0, gone
        for i in range(self._count):
            if self._entries[i].txn_first >= 0 or now_ms - self._entries[i].timestamp < expiration_ms:
                if kept != i:
                    self._entries[kept] = self._entries[i]
                kept += 1
        gone = self._count - kept
        if gone:
            self._count = kept
            self._hash(self._slots_count)
        return gone

    def snapshot(self) -> bytes:
        """Return the contents of a snapshot file (FORMAT 10), sorted by producer id."""
        cdef Py_ssize_t n = self._count, i
        cdef bytes data = PyBytes_FromStringAndSize(NULL, SNAPSHOT_HEAD + n * SNAPSHOT_ENTRY)
        cdef uint8_t *p = <uint8_t *> PyBytes_AS_STRING(data)
        cdef Producer producer
        cdef Entry *e
        cdef Kept *k
        if n > 1:
            qsort(self._entries, <size_t> n, sizeof(Entry), by_producer_id)
            memset(self._slots, 0, <size_t> self._slots_count * sizeof(int32_t))
            for i in range(n):
                self._enter(i)
        for i in range(n):
            e = &self._entries[i]
            k = &e.kept[e.count - 1] if e.count else NULL
            producer.producer_id = e.producer_id
            producer.producer_epoch = e.epoch
            producer.last_sequence = k.last_sequence if k != NULL else -1
            producer.last_offset = k.last_offset if k != NULL else -1
            producer.offset_delta = k.offset_delta if k != NULL else 0
            producer.timestamp = e.timestamp
            producer.coordinator_epoch = e.coordinator_epoch
            producer.txn_first = e.txn_first
            snapshot_put(p, i, &producer)
        snapshot_finish(p, <int32_t> n)
        return data

    def load(self, bytes data not None, int64_t now_ms, int64_t expiration_ms) -> bool:
        """Load a snapshot, without expired producers (SEMANTICS 9.26). Change nothing and return False if unsound."""
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef Py_ssize_t i
        cdef int32_t n
        cdef Producer producer
        cdef Entry *e
        if snapshot_check(p, PyBytes_GET_SIZE(data)) != SNAPSHOT_SOUND:
            return False
        n = load32(p + SNAPSHOT_COUNT_AT)
        self.clear()
        self._reserve(n)
        for i in range(n):
            snapshot_get(p, i, &producer)
            if producer.txn_first < 0:
                producer.txn_first = -1
            if producer.txn_first >= 0 or now_ms - producer.timestamp < expiration_ms:
                e = self._find(producer.producer_id)
                if e == NULL:
                    e = self._add(producer.producer_id)
                e.epoch = producer.producer_epoch
                e.count = 0
                if producer.last_offset >= 0:
                    push(e, producer.last_offset, producer.timestamp, producer.last_sequence, producer.offset_delta)
                e.timestamp = producer.timestamp
                e.coordinator_epoch = producer.coordinator_epoch
                e.txn_first = producer.txn_first
                if producer.txn_first >= 0:
                    self.open.begin(producer.txn_first, producer.producer_id)
        return True

    def states(self) -> list[tuple[int, int, int, int, int, tuple[tuple[int, int, int, int, int], ...]]]:
        """Return all producers, sorted by id: (id, epoch, coordinator epoch, timestamp, open transaction, batches).

        The open transaction is its first offset, or -1. Each kept batch is (first sequence, last sequence, first
        offset, last offset, timestamp).
        """
        cdef Py_ssize_t i
        states = []
        for i in range(self._count):
            states.append(self._state_of(&self._entries[i]))
        states.sort()
        return states

    def state(self,
              int64_t producer_id) -> tuple[int, int, int, int, int, tuple[tuple[int, int, int, int, int], ...]] | None:
        """Return one producer, as in `states`, or None for an unknown id."""
        cdef Entry *e = self._find(producer_id)
        return None if e == NULL else self._state_of(e)

    cdef tuple _state_of(self, const Entry *e):
        cdef int16_t j
        cdef const Kept *k
        batches = []
        for j in range(e.count):
            k = &e.kept[j]
            batches.append((before(k.last_sequence, k.offset_delta) if k.last_sequence >= 0 else -1,
                            k.last_sequence, k.last_offset - k.offset_delta, k.last_offset, k.timestamp))
        return (e.producer_id, e.epoch, e.coordinator_epoch, e.timestamp, e.txn_first, tuple(batches))


def marker_batch(int64_t timestamp, int64_t producer_id, int16_t producer_epoch, bint commit, int32_t coordinator_epoch,
                 bint log_append_time=False) -> bytearray:
    """Return the control batch that ends a transaction, without its offset (FORMAT 4)."""
    cdef uint8_t p[MARKER_BYTES]
    encode_marker(p, timestamp, producer_id, producer_epoch, commit, coordinator_epoch, log_append_time)
    return PyByteArray_FromStringAndSize(<const char *> p, MARKER_BYTES)


cdef void encode_marker(uint8_t *p, int64_t timestamp, int64_t producer_id, int16_t producer_epoch, bint commit,
                        int32_t coordinator_epoch, bint log_append_time) noexcept:
    cdef uint8_t *r = p + RECORDS_AT
    cdef BatchHead head
    head.base_timestamp = head.max_timestamp = timestamp
    head.attributes = <int16_t> (TRANSACTIONAL_BIT | CONTROL_BIT | (TIMESTAMP_TYPE_BIT if log_append_time else 0))
    head.count = 1
    head.producer_id = producer_id
    head.producer_epoch = producer_epoch
    head.base_sequence = -1
    memset(p, 0, MARKER_BYTES)
    put_header(p, MARKER_BYTES, &head)
    r[0] = 16 << 1
    r[4] = 4 << 1
    r[8] = 1 if commit else 0
    r[9] = 6 << 1
    store32(r + 12, coordinator_epoch)
    store32(p + CRC_AT, <int32_t> ks_crc32c(0, p + ATTRIBUTES_AT, MARKER_BYTES - ATTRIBUTES_AT))


cdef Py_ssize_t read_whole(int fd, bytes data, int64_t position, object path) except -1:
    """Fill new bytes from the file. Return how many were read; fewer only at the end of the file."""
    cdef Py_ssize_t got = read_at(fd, <uint8_t *> PyBytes_AS_STRING(data), <size_t> PyBytes_GET_SIZE(data), position)
    if got < 0:
        raise mounts.read_error(errno, path)
    return got


cdef bint read_marker(const Head *h, const uint8_t *p, Py_ssize_t n, int16_t *kind,
                      int32_t *coordinator_epoch) except -1:
    """Read the end marker of a control batch (SEMANTICS 9.11). Return False for a batch without records."""
    cdef ks_record r
    cdef const uint8_t *at = p + RECORDS_AT
    cdef const uint8_t *end = p + n
    cdef bytes section
    if h.count <= 0:
        return False
    if h.attributes & CODEC_MASK:
        section = record_section(p, n, 1 << 20, None, 0)
        at = <const uint8_t *> PyBytes_AS_STRING(section)
        end = at + PyBytes_GET_SIZE(section)
    if ks_parse_record(at, end, &r) == NULL:
        raise InvalidRecordError(f"{name_of(h)}: a control batch whose record does not parse")
    if r.key_size < 4 or load16(r.key) < 0:
        raise InvalidRecordError(
            f"{name_of(h)}: a control record's key of {r.key_size} bytes; 4 with version 0 are wanted")
    kind[0] = load16(r.key + 2)
    if kind[0] != 0 and kind[0] != 1:
        raise InvalidRecordError(f"{name_of(h)}: a control record of type {kind[0]}; 0 and 1 end a transaction")
    if r.value_size < 6 or load16(r.value) < 0:
        raise InvalidRecordError(
            f"{name_of(h)}: a marker's value of {r.value_size} bytes; 6 with version 0 are wanted")
    coordinator_epoch[0] = load32(r.value + 2)
    return True
