"""The writable end of a log: appends whole batches to the active segment, and their index entries.

An `Appender` holds what one append needs of the active segment (descriptors, position, counters, limits), so that
normally one C call encodes, checks the limits, writes, indexes and publishes. In any other case it returns a code to
Python. Invariant: nothing is published before its bytes are in the file, and an append that fails leaves the file and
every counter as they were.

Mutual exclusion: `append` does not release the GIL between its check of `busy` and its return; every other change of
the log sets `busy` first, under the log's mutex.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject_GenericSetAttr
from cpython.unicode cimport PyUnicode_Check
from libc.errno cimport EINTR, EIO, ENOSPC, errno
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from posix.types cimport off_t

from kstore._core cimport Buffer, ks_too_far, not_bytes
from kstore.codec._batches cimport is_ready
from kstore.codec._pack cimport common_headers
from kstore.log.segments._producer_state cimport MARKER_BYTES, Entry, ProducerTable, encode_marker
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BASE_OFFSET_AT, BatchHead, CRC_AT, HEADER_UP_TO_MAGIC, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT,
    LEGACY_TIMESTAMP_AT, LOG_OVERHEAD, MAGIC_AT, MAX_TIMESTAMP_AT, MIN_V0_MESSAGE, RECORDS_AT, TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT, batch_last_offset, batch_max_timestamp, batch_size, load32, load64, put_header, put_uvarint,
    store32, store64, uvarint_size, zigzag,
)
from kstore.files._index_search cimport OFFSET_ENTRY, TIME_ENTRY, put_offset_entry, put_time_entry

import os
from datetime import datetime

from kstore.base import times
from kstore.config import cautions
from kstore.codec import refusals
from kstore.disk import fs
from kstore.errors import (
    InvalidRecordError, InvalidTimestampError, RecordBatchTooLargeError, RecordTooLargeError, StorageError, TimestampWarning,
)
from kstore.types import AppendInfo


cdef extern from "crc32c.h":
    uint32_t crc32c "ks_crc32c"(uint32_t crc, const uint8_t *p, size_t n) noexcept nogil

cdef extern from "unistd.h":
    ssize_t pwrite(int fd, const void *p, size_t n, off_t position) noexcept nogil
    int ftruncate(int fd, off_t size) noexcept nogil


ctypedef ssize_t (*pwrite_t)(int fd, const void *p, size_t n, off_t position) noexcept nogil

cdef enum:
    INT_MAX = 0x7fffffff
    BLOCK_BYTES = 4096
    ONE_STEP_BELOW = 16384     # a smaller record or batch is appended in one step, its write included
    GIL_HELD_BELOW = 131072    # a smaller write takes less than 0.1 ms; getting the GIL back takes up to 5 ms

cdef int64_t LONG_MAX = 0x7fffffffffffffff      # a variable: a literal as large as this would be a Python object

cdef int64_t LIKE_SECONDS_BELOW = cautions.LIKE_SECONDS_BELOW

cdef pwrite_t write_bytes = pwrite
cdef object write_hook = None


cdef ssize_t _hooked_pwrite(int fd, const void *p, size_t n, off_t position) noexcept with gil:
    cdef int code
    try:
        return write_hook(fd, (<const char *>p)[:n], position)
    except OSError as error:
        code = error.errno or EIO
    except BaseException:
        code = EIO
    _set_errno(code)
    return -1


cdef extern from *:
    """
    #include <errno.h>
    static inline void ks_set_errno(int code) { errno = code; }
    """
    void _set_errno "ks_set_errno"(int code) noexcept nogil


def set_pwrite_hook(hook: Callable[[int, bytes, int], int] | None) -> None:
    """Send every write of this module through `hook(fd, data, position) -> int` (None: directly to the system).

    The hook returns the number of bytes written or raises `OSError`; tests use it to record and to fail writes.
    """
    global write_hook, write_bytes
    write_hook = hook
    write_bytes = pwrite if hook is None else _hooked_pwrite


cdef int write_all(int fd, const uint8_t *p, Py_ssize_t n, int64_t position) noexcept nogil:
    cdef ssize_t done
    while n > 0:
        done = write_bytes(fd, p, n, position)
        if done < 0:
            if errno == EINTR:
                continue
            return errno
        if done == 0:
            return ENOSPC
        p += done
        n -= done
        position += done
    return 0


cdef object new_info = AppendInfo.__new__


cdef object _info(int64_t first_offset, int64_t last_offset, int64_t max_timestamp):
    """Return an `AppendInfo` without a log append time. Its `__init__` would take as long as a small append."""
    info = new_info(AppendInfo)
    PyObject_GenericSetAttr(info, "first_offset", first_offset)
    PyObject_GenericSetAttr(info, "last_offset", last_offset)
    PyObject_GenericSetAttr(info, "max_timestamp", max_timestamp)
    PyObject_GenericSetAttr(info, "log_append_time", -1)
    return info


cdef int64_t _system_now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef int64_t _milliseconds(object what, object value) except? -1:
    """Return the milliseconds of an int or a datetime. Refuse a float, which would be rounded silently, and a bool."""
    if not PyLong_CheckExact(value):
        value = times.milliseconds(what, value)
    try:
        return value
    except OverflowError:
        raise InvalidTimestampError(f"{what} {value} is not within -1 to {LONG_MAX}") from None


cdef int _take(object what, object source, Bytes *out, Py_buffer *view) except -1:
    """Borrow the bytes of `source`. Return 1 if `view` has to be released."""
    if PyBytes_CheckExact(source):
        out.p = <const uint8_t *>PyBytes_AS_STRING(source)
        out.n = PyBytes_GET_SIZE(source)
        return 0
    if source is None:
        out.p = NULL
        out.n = -1
        return 0
    if PyUnicode_Check(source):
        raise not_bytes(source, what)
    try:
        PyObject_GetBuffer(source, view, PyBUF_SIMPLE)
    except TypeError:
        raise not_bytes(source, what) from None
    except (BufferError, ValueError):        # not contiguous; the view then holds a copy
        PyObject_GetBuffer(bytes(source), view, PyBUF_SIMPLE)
    out.p = <const uint8_t *>view.buf
    out.n = view.len
    return 1


cdef inline int64_t _last_offset(const uint8_t *p) noexcept nogil:
    if p[MAGIC_AT] < 2:
        return load64(p)
    return load64(p) + load32(p + LAST_OFFSET_DELTA_AT)


cdef inline int64_t _max_timestamp(const uint8_t *p) noexcept nogil:
    if p[MAGIC_AT] == 0:
        return -1
    if p[MAGIC_AT] == 1:
        return load64(p + LEGACY_TIMESTAMP_AT)
    return load64(p + MAX_TIMESTAMP_AT)


# stub: class _LogFile(Protocol):
# stub:     @property
# stub:     def path(self) -> str: ...


cdef class Appender(ActiveEnd):
    """The writable end of one log.

    `busy` is the log's mutex as the fast path sees it. `due_ms` is when housekeeping is next due, `flush_at` the log
    end offset at which a flush is due. `on_publish` is called after an append if a reader waits or that flush is due,
    `on_error` with the error of a failed write, before it is raised.
    Not thread-safe except for `append`, see the module's docstring.
    """

    def __cinit__(self):
        self.busy = True
        self.log_fd = self.offset_fd = self.time_fd = -1
        self.due_ms = self.flush_at = LONG_MAX
        self.tail.max_timestamp = self.tail.first_timestamp = self.tail.last_time_entry = -1

    def __init__(self, clock: Callable[[], int] | None = None):
        self.clock = clock

    def __dealloc__(self):
        self._free()

    cdef void _free(self) noexcept:
        free(self.one)
        free(self.offset_staged)
        free(self.time_staged)
        self.one = self.offset_staged = self.time_staged = NULL
        self.one_bytes = self.offset_room = self.time_room = 0

    # The published state.

    @property
    def size(self) -> int:
        return self.tail.size

    @property
    def next_offset(self) -> int:
        return self.tail.next_offset

    @property
    def since_index(self) -> int:
        return self.tail.since_index

    @property
    def max_timestamp(self) -> int:
        return self.tail.max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        return self.tail.max_timestamp_offset

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the segment's first batch; -1 if unknown or none (SEMANTICS 2.5)."""
        return self.tail.first_timestamp

    @property
    def offset_entries(self) -> int:
        return self.tail.offset_entries

    @property
    def time_entries(self) -> int:
        return self.tail.time_entries

    cpdef int64_t published_bytes(self, int64_t base_offset):
        """Return the size of the segment with this base if it is the active one, else -1. Atomic for readers."""
        return self.tail.size if base_offset == self.base_offset and self.is_active else -1

    def published_maximum(self, int64_t base_offset) -> tuple[int, int] | None:
        """Return (max timestamp, its offset) of the segment with this base if it is the active one, else None."""
        if base_offset != self.base_offset or not self.is_active:
            return None
        return self.tail.max_timestamp, self.tail.max_timestamp_offset

    def now(self) -> int:
        """Return the milliseconds since the epoch, by the log's clock."""
        return self._now()

    cdef int64_t _now(self) except? -1:
        if self.clock is None:
            return _system_now()
        return _milliseconds("what the clock gives", self.clock())

    def configure(self, *, int64_t max_message_bytes, int64_t before_max_ms, int64_t after_max_ms, bint log_append_time,
                  bint key_required, bint plain) -> None:
        """Set the record rules of a configuration; `plain` says that a lone record is stored uncompressed."""
        self.max_message_bytes = max_message_bytes
        self.before_max_ms = before_max_ms
        self.after_max_ms = after_max_ms
        self.log_append_time = log_append_time
        self.key_required = key_required
        self.plain = plain

    def limit(self, *, int64_t segment_bytes, int64_t wait_ms, int64_t offset_entries, int64_t time_entries,
              int64_t index_interval_bytes) -> None:
        """Set the limits that `roll.limits` computed for the active segment."""
        self.segment_bytes = segment_bytes
        self.wait_ms = wait_ms
        self.offset_max = offset_entries
        self.time_max = time_entries
        self.interval = index_interval_bytes

    def attach(self, *, int log_fd, int offset_fd, int time_fd, int64_t base_offset, int64_t size, int64_t next_offset,
               int64_t offset_entries, int64_t time_entries, int64_t last_time_entry, int64_t max_timestamp,
               int64_t max_timestamp_offset, int64_t first_timestamp, int64_t created_ms,
               offset_index: Entries | None = None, time_index: Entries | None = None,
               log: _LogFile | None = None) -> None:
        """Make this segment the active one, and restart the count of bytes since the last index entry (SEMANTICS 3.6).

        The `entries` of `offset_index` and `time_index` are set when their number has changed. `log` is held as long
        as `log_fd` is written to, so that the descriptor stays open.
        """
        self.offset_index = offset_index
        self.time_index = time_index
        self.log = log
        self.is_active = True
        self.parked = False
        self.log_fd = log_fd
        self.offset_fd = offset_fd
        self.time_fd = time_fd
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.tail = Tail(size, next_offset, 0, max_timestamp, max_timestamp_offset, first_timestamp,
                         offset_entries, time_entries, last_time_entry)
        self.offset_secured = self.time_secured = 0

    def count_from(self, int64_t position) -> None:
        """Count the bytes since the last index entry from the position that this entry has."""
        self.tail.since_index = self.tail.size - position

    def detach(self) -> None:
        """Forget the descriptors: nothing can be appended until the next `attach`."""
        self.is_active = self.parked = False
        self.log_fd = self.offset_fd = self.time_fd = -1
        self.log = self.offset_index = self.time_index = None

    @property
    def attached(self) -> bool:
        """Whether there are descriptors to write to."""
        return self.log_fd >= 0

    def park(self) -> None:
        """Release descriptors and buffers until `resume`: appends return `BUSY`, and nothing else changes.

        The appender must be `attached`, and the caller holds the log's mutex.
        """
        if self.log_fd < 0:
            raise ValueError("the appender has no descriptors to give up")
        self.log_fd = self.offset_fd = self.time_fd = -1
        self.log = None
        self.parked = True
        self._free()

    def resume(self, *, int log_fd, int offset_fd, int time_fd, log: _LogFile | None = None) -> None:
        """Continue after `park`, with new descriptors of the same files."""
        if not self.parked:
            raise ValueError("the appender is not parked")
        self.log = log
        self.log_fd = log_fd
        self.offset_fd = offset_fd
        self.time_fd = time_fd
        self.parked = False

    # Appending.

    def append(self, value: ReadableBuffer | None, key: ReadableBuffer | None, timestamp: int | datetime | None,
               expected_offset: int | None = None) -> int:
        """Append one uncompressed record as its own batch. Return its offset, or a `Code`.

        Raises if the record is refused; then nothing has changed. `value` and `key` are bytes-like or None, `timestamp`
        is milliseconds or None for now. With an `expected_offset` the record is stored there or not at all.
        """
        cdef int64_t stamp = 0
        return self._append(value, key, timestamp, None, expected_offset, &stamp)

    cdef int64_t _append(self, object value, object key, object timestamp, object headers, object expected_offset,
                         int64_t *stamp) except? -99:
        """Append as `append` does. Set `stamp` to the timestamp, which a `LogAppendTime` log replaces by its own.

        Return `SLOW` for `headers` that cannot be read without running Python code.
        """
        cdef bytes section = None
        cdef Bytes v, k
        cdef Py_buffer value_view, key_view
        cdef int value_held = 0, key_held = 0
        cdef int64_t now, expected = -1
        cdef Py_ssize_t consumed = 0, n
        cdef int code
        if headers is not None:
            section = common_headers(headers)
            if section is None:
                return SLOW
        try:
            value_held = _take("value", value, &v, &value_view)
            key_held = _take("key", key, &k, &key_view)
            now = self._now()
            if timestamp is None:
                stamp[0] = now
            elif not PyLong_CheckExact(timestamp) and isinstance(timestamp, datetime):
                return SLOW  # the slow path converts it
            else:
                stamp[0] = self._given(timestamp)
            if expected_offset is not None:
                if type(expected_offset) is not int or not 0 <= expected_offset <= LONG_MAX:
                    return SLOW  # the slow path converts or refuses it
                expected = expected_offset
            # From here to the return no Python code runs, so the GIL is the lock.
            if self.busy or self.parked:
                return BUSY
            if now >= self.due_ms:
                return DUE
            if not self.plain or not self.epoch_assigned:
                return SLOW
            if expected >= 0 and expected != self.tail.next_offset:
                return SLOW  # the slow path refuses it
            if v.n + k.n + (0 if section is None else PyBytes_GET_SIZE(section)) >= ONE_STEP_BELOW:
                return SLOW  # refuse it before encoding it
            n = self._encode_one(v, k, section, stamp[0], now, NULL)
            if n >= ONE_STEP_BELOW:
                return SLOW
            code = self._commit(self.one, n, False, &consumed, now, False, False)
            if code != DONE:
                return code
        finally:
            if value_held:
                PyBuffer_Release(&value_view)
            if key_held:
                PyBuffer_Release(&key_view)
        n = self.tail.next_offset - 1
        self._tell()
        return n

    def append_ready(self, data: object, origin: str, leader_epoch: int | None,
                     transaction_version: int) -> AppendInfo | None:
        """Append one encoded batch that needs only its offset and its epoch. Return its `AppendInfo`.

        Return None, with nothing changed, if more is to be done, or if the batch or an argument is wrong, which
        `Log.append_batch` then reports. The bytes are copied first, so the checked bytes are the stored ones.
        """
        cdef Py_buffer view
        cdef Py_ssize_t n, consumed = 0
        cdef int64_t now, first, last, max_timestamp
        if (leader_epoch is not None or type(origin) is not str or origin != "client"
                or type(transaction_version) is not int or transaction_version != 0):
            return None
        now = self._now()
        try:
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        except (TypeError, BufferError, ValueError):
            return None
        try:
            # From here to the end of the commit no Python code runs, as in `append`.
            n = view.len
            if self.busy or self.parked or now >= self.due_ms:
                return None
            if not self.plain or not self.epoch_assigned or self.log_append_time:
                return None
            if not RECORDS_AT <= n < ONE_STEP_BELOW or n > self.max_message_bytes or n > self.segment_bytes:
                return None
            self._make_room(n)
            memcpy(self.one, view.buf, n)
            if not is_ready(self.one, n, now, self.before_max_ms, self.after_max_ms, self.key_required):
                return None
            first = self.tail.next_offset
            last = load32(self.one + LAST_OFFSET_DELTA_AT)
            if first >= LONG_MAX - last:
                return None
            last += first
            max_timestamp = batch_max_timestamp(self.one)
            if self._commit(self.one, n, False, &consumed, now, False, False) != DONE:
                return None
        finally:
            PyBuffer_Release(&view)
        info = _info(first, last, max_timestamp)
        self._tell()
        return info

    cdef int64_t _append_numbered(self, ProducerTable table, object value, object key, object timestamp,
                                  const Stamp *numbers, int64_t *stamp) except? -99:
        """Append one record as `append` does, with a producer's numbers. Return its offset, or a `Code`; set `stamp`.

        Appends only the next record of a producer that `table` knows, in its epoch; returns `SLOW` for anything else,
        which `ProducerTable.stage` has to check. Waiting readers are not woken: `_tell` does that.
        """
        cdef Bytes v, k
        cdef Py_buffer value_view, key_view
        cdef int value_held = 0, key_held = 0
        cdef int64_t now
        cdef Py_ssize_t consumed = 0, n
        cdef int code
        cdef Entry *e
        try:
            value_held = _take("value", value, &v, &value_view)
            key_held = _take("key", key, &k, &key_view)
            now = self._now()
            stamp[0] = now if timestamp is None else self._given(timestamp)
            # From here to the return no Python code runs, as in `append`.
            if self.busy or self.parked or (numbers.held != NULL and numbers.held[0]):
                return BUSY
            if now >= self.due_ms:
                return DUE
            if not self.plain or not self.epoch_assigned or self.log_append_time:
                return SLOW
            e = table._ready(numbers.producer_id, numbers.epoch, numbers.sequence, numbers.transactional)
            if e == NULL:
                return SLOW
            table.open.reserve()
            n = self._encode_one(v, k, None, stamp[0], now, numbers)
            if n >= ONE_STEP_BELOW:
                return SLOW
            code = self._commit(self.one, n, False, &consumed, now, False, False)
            if code != DONE:
                return code
            table._take(e, self.tail.next_offset - 1, stamp[0], numbers.sequence, numbers.transactional)
        finally:
            if value_held:
                PyBuffer_Release(&value_view)
            if key_held:
                PyBuffer_Release(&key_view)
        return self.tail.next_offset - 1

    cdef int64_t _given(self, object timestamp) except? -1:
        """Return the milliseconds of a caller's timestamp; warn of the first that looks like seconds."""
        cdef int64_t stamp = _milliseconds("timestamp", timestamp)
        if 0 < stamp < LIKE_SECONDS_BELOW and not self.warned:
            cautions.issue([cautions.like_seconds(stamp)], TimestampWarning)
            self.warned = True
        return stamp

    cdef int _tell(self) except -1:
        """Call `on_publish` after an append, if a reader waits or a flush is due."""
        if self.waiters or self.tail.next_offset >= self.flush_at:
            self.on_publish()
        return 0

    cdef int64_t _append_commit(self, ProducerTable table, int64_t now, int64_t producer_id, int16_t epoch,
                                int32_t coordinator_epoch, int version) except? -99:
        """Append the marker that commits a producer's open transaction. Return its offset, or a `Code`.

        Return `SLOW` if `ProducerTable.stage` has to check the marker.
        """
        cdef uint8_t batch[MARKER_BYTES]
        cdef Py_ssize_t consumed = 0
        cdef int code
        cdef int64_t offset
        cdef Entry *e
        if self.busy or self.parked:
            return BUSY
        if now >= self.due_ms:
            return DUE
        if not self.epoch_assigned or self.log_append_time or min(self.max_message_bytes, self.segment_bytes) < MARKER_BYTES:
            return SLOW
        e = table._committable(producer_id, epoch, coordinator_epoch, version)
        if e == NULL:
            return SLOW
        encode_marker(batch, now, producer_id, epoch, True, coordinator_epoch, False)
        code = self._commit(batch, MARKER_BYTES, False, &consumed, now, False, False)
        if code != DONE:
            return code
        table._commit(e, now, epoch, coordinator_epoch)
        offset = self.tail.next_offset - 1
        self._tell()
        return offset

    def encode(self, value: ReadableBuffer | None, key: ReadableBuffer | None, timestamp: int | datetime | None,
               int64_t producer_id=-1, int16_t epoch=-1, int32_t sequence=-1, bint transactional=False, *,
               bytes headers=None) -> bytearray:
        """Return the batch that `append` would write for this record, without its offset.

        Has a producer's numbers if given. `headers` are as `encode_headers` returns them.
        """
        cdef Bytes v, k
        cdef Py_buffer value_view, key_view
        cdef int value_held = 0, key_held = 0
        cdef int64_t now, stamp
        cdef Py_ssize_t n
        cdef Stamp numbers = Stamp(producer_id, epoch, sequence, transactional, NULL)
        try:
            value_held = _take("value", value, &v, &value_view)
            key_held = _take("key", key, &k, &key_view)
            now = self._now()
            stamp = now if timestamp is None else self._given(timestamp)
            n = self._encode_one(v, k, headers, stamp, now, &numbers)
            return bytearray((<const char *>self.one)[:n])
        finally:
            if value_held:
                PyBuffer_Release(&value_view)
            if key_held:
                PyBuffer_Release(&key_view)

    def commit(self, buffer: ReadableBuffer, Py_ssize_t position, bint follower, bint rolled=False) -> tuple[int, int]:
        """Append the whole v2 batches of a writable `buffer` from `position` on. Return (code, bytes taken).

        As leader (SEMANTICS 1.19, 3.6), each batch is its own append and gets its offset and leader epoch in place; a
        code other than DONE says what has to be done before the next batch. As `follower`, all bytes are one append
        with the offsets that they carry. With `rolled`, the first append is not checked for a roll again: its segment
        is new, but tiny index files count as full even when empty. The caller holds the log's mutex and has set `busy`;
        the GIL is released for the write. Raises `StorageError`; then no batch of this call is in the log.
        """
        cdef Py_buffer view
        cdef Py_ssize_t consumed = 0
        cdef int code
        # A follower's bytes are not patched, so they may be read-only; a leader's are.
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE if follower else PyBUF_WRITABLE)
        try:
            if not 0 <= position <= view.len:
                raise ValueError(f"position {position} is outside a buffer of {view.len} bytes")
            code = self._commit(<uint8_t *>view.buf + position, view.len - position, follower, &consumed, self._now(),
                                True, rolled)
        finally:
            PyBuffer_Release(&view)
        return code, consumed

    def should_roll(self, buffer: ReadableBuffer, bint follower) -> int:
        """Return the `Code` of the roll that the v2 batches in `buffer` need first (SEMANTICS 2.2), or DONE.

        Checks one batch for a leader's append, all of them for a follower's.
        """
        cdef Buffer held = Buffer(buffer)
        cdef int64_t size
        if follower:
            return self._roll_for_all(&self.tail, held.p, held.size, self._now())
        if held.size < RECORDS_AT:
            raise ValueError(f"{held.size} bytes are no batch")
        size = batch_size(held.p)
        return self._should_roll(&self.tail, size, _max_timestamp(held.p),
                                 self.tail.next_offset + load32(held.p + LAST_OFFSET_DELTA_AT), self._now())

    cdef int _check(self, int64_t stamp, int64_t now, Py_ssize_t key_bytes) except -1:
        """Check one record (SEMANTICS 1.16, 1.17)."""
        if self.key_required and key_bytes < 0:
            raise InvalidRecordError(refusals.NO_KEY)
        if stamp < -1:
            raise InvalidTimestampError(refusals.no_timestamp(stamp))
        if stamp != -1 and not self.log_append_time and ks_too_far(stamp, now, self.before_max_ms, self.after_max_ms):
            raise InvalidTimestampError(refusals.too_far(stamp, now, self.before_max_ms, self.after_max_ms))
        return 0

    cdef Py_ssize_t _encode_one(self, Bytes v, Bytes k, bytes headers, int64_t stamp, int64_t now,
                                const Stamp *numbers) except -1:
        """Check one record in Kafka's order, and encode a batch of it into `one`. Return its size.

        `headers` are as `common_headers` returns them, or None.
        """
        cdef int64_t body, total
        cdef Py_ssize_t headers_size = 1 if headers is None else PyBytes_GET_SIZE(headers)
        cdef uint8_t *p
        cdef BatchHead head
        body = (3 + headers_size + uvarint_size(zigzag(k.n)) + (k.n if k.n > 0 else 0)
                + uvarint_size(zigzag(v.n)) + (v.n if v.n > 0 else 0))
        total = RECORDS_AT + uvarint_size(zigzag(body)) + body
        if total > self.max_message_bytes:
            raise RecordTooLargeError(
                f"the record makes a batch of {total} bytes; max.message.bytes allows {self.max_message_bytes}")
        self._check(stamp, now, k.n)
        if total > self.segment_bytes:
            raise RecordBatchTooLargeError(
                f"the record makes a batch of {total} bytes; segment.bytes allows {self.segment_bytes}")
        self._make_room(total)
        p = self.one
        head.base_timestamp = stamp
        head.max_timestamp = now if self.log_append_time else stamp
        head.attributes = TIMESTAMP_TYPE_BIT if self.log_append_time else 0
        head.count = 1
        head.producer_id = head.producer_epoch = head.base_sequence = -1
        if numbers != NULL:
            head.producer_id = numbers.producer_id
            head.producer_epoch = numbers.epoch
            head.base_sequence = numbers.sequence
            if numbers.transactional:
                head.attributes |= TRANSACTIONAL_BIT
        put_header(p, total, &head)
        p = put_uvarint(p + RECORDS_AT, zigzag(body))
        p[0] = p[1] = p[2] = 0
        p = put_uvarint(p + 3, zigzag(k.n))
        if k.n > 0:
            memcpy(p, k.p, k.n)
            p += k.n
        p = put_uvarint(p, zigzag(v.n))
        if v.n > 0:
            memcpy(p, v.p, v.n)
            p += v.n
        if headers is None:
            p[0] = 0
        else:
            memcpy(p, PyBytes_AS_STRING(headers), headers_size)
        store32(self.one + CRC_AT, <int32_t>crc32c(0, self.one + ATTRIBUTES_AT, total - ATTRIBUTES_AT))
        return total

    cdef int _make_room(self, int64_t n) except -1:
        """Make `one` large enough for a batch of `n` bytes."""
        cdef uint8_t *grown
        if n > self.one_bytes:
            grown = <uint8_t *>realloc(self.one, n + 256)
            if grown == NULL:
                raise MemoryError()
            self.one = grown
            self.one_bytes = n + 256
        return 0

    cdef int _should_roll(self, const Tail *t, int64_t n, int64_t timestamp, int64_t last_offset,
                          int64_t now) noexcept nogil:
        """Apply the rule of SEMANTICS 2.2, in its order, with the limits of roll.py."""
        cdef int64_t waited
        if t.size > self.segment_bytes - n:
            return ROLL_SIZE
        if t.size > 0:
            waited = timestamp - t.first_timestamp if t.first_timestamp >= 0 else now - self.created_ms
            if waited > self.wait_ms:
                return ROLL_TIME
        if t.offset_entries >= self.offset_max:
            return ROLL_OFFSET_INDEX_FULL
        if t.time_entries >= self.time_max:
            return ROLL_TIME_INDEX_FULL
        if last_offset < self.base_offset or last_offset - self.base_offset > INT_MAX:
            return ROLL_OFFSET_RANGE
        return DONE

    cdef bint _stage_index_entries(self, Tail *t, int64_t last_offset) except -1:
        """Stage the index entries of a batch at `t.size` (SEMANTICS 3.6 step 2). Return False if one does not fit."""
        cdef uint8_t *entry
        if t.offset_entries >= self.offset_max:
            return False
        entry = self._room(&self.offset_staged, &self.offset_room,
                           (t.offset_entries - self.tail.offset_entries) * OFFSET_ENTRY, OFFSET_ENTRY)
        put_offset_entry(entry, <int32_t>(last_offset - self.base_offset), <int32_t>t.size)
        t.offset_entries += 1
        if t.max_timestamp > t.last_time_entry:
            if t.time_entries >= self.time_max:
                return False
            entry = self._room(&self.time_staged, &self.time_room,
                               (t.time_entries - self.tail.time_entries) * TIME_ENTRY, TIME_ENTRY)
            put_time_entry(entry, t.max_timestamp, <int32_t>(t.max_timestamp_offset - self.base_offset))
            t.time_entries += 1
            t.last_time_entry = t.max_timestamp
        t.since_index = 0
        return True

    cdef uint8_t *_room(self, uint8_t **buffer, Py_ssize_t *room, Py_ssize_t at, Py_ssize_t n) except NULL:
        cdef uint8_t *grown
        if at + n > room[0]:
            grown = <uint8_t *>realloc(buffer[0], 2 * (at + n) + 256)
            if grown == NULL:
                raise MemoryError()
            buffer[0] = grown
            room[0] = 2 * (at + n) + 256
        return buffer[0] + at

    cdef int _commit(self, uint8_t *p, Py_ssize_t n, bint follower, Py_ssize_t *consumed, int64_t now,
                     bint locked, bint rolled) except? -1:
        cdef Tail t = self.tail
        cdef Py_ssize_t at = 0
        cdef int64_t size, timestamp, last_offset
        cdef int code = DONE
        cdef int failed
        if self.log_fd < 0:
            return BUSY
        if follower:
            code = self._roll_for_all(&t, p, n, now)
            if code == ROLL_OFFSET_RANGE and rolled:
                return SPLIT
            if code != DONE and not rolled:
                return code
            code = DONE
        while at < n:
            if n - at < HEADER_UP_TO_MAGIC:
                raise ValueError(f"{n - at} bytes after the last whole batch")
            size = batch_size(p + at)
            if size < LOG_OVERHEAD + MIN_V0_MESSAGE or size > n - at or (size < RECORDS_AT and not follower):
                raise ValueError(f"a batch of {size} bytes at {at} of {n} bytes")
            timestamp = batch_max_timestamp(p + at)
            if follower:
                last_offset = batch_last_offset(p + at)
            else:
                # The log end, one past it, must fit into 64 bits, too.
                if not 0 <= load32(p + at + LAST_OFFSET_DELTA_AT) < LONG_MAX - t.next_offset:
                    raise InvalidRecordError(
                        f"{load32(p + at + LAST_OFFSET_DELTA_AT) + 1} records do not fit after offset {t.next_offset - 1}")
                last_offset = t.next_offset + load32(p + at + LAST_OFFSET_DELTA_AT)
                if at or not rolled:
                    code = self._should_roll(&t, size, timestamp, last_offset, now)
                    if code != DONE:
                        break
                store64(p + at + BASE_OFFSET_AT, t.next_offset)
                store32(p + at + LEADER_EPOCH_AT, self.leader_epoch)
            if timestamp > t.max_timestamp:
                t.max_timestamp = timestamp
                t.max_timestamp_offset = last_offset
            if t.since_index > self.interval and not self._stage_index_entries(&t, last_offset):
                return SPLIT
            if t.size == 0:
                t.first_timestamp = timestamp
            t.size += size
            t.since_index += size
            t.next_offset = last_offset + 1
            at += size
        if at == 0:
            return code
        if locked and at >= GIL_HELD_BELOW:
            with nogil:
                failed = self._write(&t, p, at)
        else:
            failed = self._write(&t, p, at)
        if failed:
            error = fs.storage_error(OSError(failed, os.strerror(failed)), None if self.log is None else self.log.path)
            if self.on_error is not None:
                self.on_error(error)
            raise error
        if self.offset_index is not None:
            # The entries first: a reader that sees the new end must find them.
            if t.offset_entries != self.tail.offset_entries:
                self.offset_index.entries = t.offset_entries
            if t.time_entries != self.tail.time_entries:
                self.time_index.entries = t.time_entries
        self.tail = t
        consumed[0] = at
        return code

    cdef int _roll_for_all(self, const Tail *t, const uint8_t *p, Py_ssize_t n, int64_t now) noexcept nogil:
        """Apply the roll rule once to a follower's whole append (SEMANTICS 1.28, 2.1)."""
        cdef Py_ssize_t at = 0
        cdef int64_t size, timestamp = -1, last_offset = -1
        while n - at >= HEADER_UP_TO_MAGIC:
            size = batch_size(p + at)
            if size < LOG_OVERHEAD + MIN_V0_MESSAGE or size > n - at:
                break
            timestamp = max(timestamp, batch_max_timestamp(p + at))
            last_offset = batch_last_offset(p + at)
            at += size
        return self._should_roll(t, n, timestamp, last_offset, now)

    cdef int _write(self, const Tail *t, const uint8_t *p, Py_ssize_t n) noexcept nogil:
        """Write the staged bytes into the three files. Return 0, or an errno with all three as they were."""
        cdef Py_ssize_t offset_bytes = (t.offset_entries - self.tail.offset_entries) * OFFSET_ENTRY
        cdef Py_ssize_t time_bytes = (t.time_entries - self.tail.time_entries) * TIME_ENTRY
        cdef int failed
        # Allocate the blocks of the entries first: once the record is in, its index entry must not fail on a full disk.
        if offset_bytes:
            failed = self._secure(self.offset_fd, &self.offset_secured, t.offset_entries * OFFSET_ENTRY,
                                  self.tail.offset_entries * OFFSET_ENTRY, self.offset_max * OFFSET_ENTRY)
            if failed:
                return failed
        if time_bytes:
            # One slot more than the limit, for the closing entry of a roll (SEMANTICS 3.3).
            failed = self._secure(self.time_fd, &self.time_secured, t.time_entries * TIME_ENTRY,
                                  self.tail.time_entries * TIME_ENTRY, (self.time_max + 1) * TIME_ENTRY)
            if failed:
                return failed
        failed = write_all(self.log_fd, p, n, self.tail.size)
        if not failed and offset_bytes:
            failed = write_all(self.offset_fd, self.offset_staged, offset_bytes,
                                self.tail.offset_entries * OFFSET_ENTRY)
        if not failed and time_bytes:
            failed = write_all(self.time_fd, self.time_staged, time_bytes, self.tail.time_entries * TIME_ENTRY)
        if failed and ftruncate(self.log_fd, self.tail.size) != 0:
            # The bytes cannot be removed, so nothing may follow them until recovery has checked the file.
            self.log_fd = -1
        return failed

    cdef int _secure(self, int fd, int64_t *secured, int64_t end, int64_t start, int64_t limit) noexcept nogil:
        """Allocate the blocks of an index file up to `end`, by writing zeros from the first unused slot on."""
        cdef uint8_t zeros[2 * BLOCK_BYTES]
        cdef int64_t until, at
        cdef int failed
        if end <= secured[0]:
            return 0
        memset(zeros, 0, sizeof(zeros))
        at = max(secured[0], start)
        until = min((end + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES, limit)
        while at < until:
            failed = write_all(fd, zeros, min(<int64_t>sizeof(zeros), until - at), at)
            if failed:
                return failed
            at += min(<int64_t>sizeof(zeros), until - at)
        secured[0] = until
        return 0
