# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Kafka's default partitioner, and the splitting of records over one packer for each partition.

Invariant: code of the records (buffers, iterators) may do anything, and memory is bounded however many partitions are
filled at the same time.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from kstore.store.topics._consume cimport ConsumerRecord
from kstore._core cimport Record, as_bytes, not_bytes
from kstore.columns._arrow cimport ks_bytes
from kstore.codec._pack cimport Packer, put_plain

import secrets
from bisect import insort

from kstore.errors import RecordTooLargeError

cdef extern from "murmur2.h" nogil:
    uint32_t ks_murmur2(const uint8_t *p, size_t n) noexcept
    int32_t ks_partition_of(const uint8_t *key, size_t n, int32_t partitions) noexcept
    uint64_t ks_inverse(int32_t partitions) noexcept
    int32_t ks_partition_by(const uint8_t *key, size_t n, int32_t partitions, uint64_t inverse) noexcept
    void ks_partitions_by(const ks_bytes *keys, int64_t n, int32_t partitions, uint64_t inverse, int32_t *out) noexcept

cdef enum:
    LONE_BATCH_BYTES = 70          # size of a batch of one keyless record without its value, to a byte or two
    HASHED_AHEAD = 16              # records

cdef const char *NO_HEADERS = b"\x00"


# ---- The default partitioner (FORMAT 13).


def murmur2(key: ReadableBuffer, /) -> int:
    """Return Kafka's hash of a serialized key (any buffer), signed as by Kafka's `Utils.murmur2`."""
    cdef bytes held = as_bytes(key, "key")
    return <int32_t> ks_murmur2(<const uint8_t *> PyBytes_AS_STRING(held), <size_t> PyBytes_GET_SIZE(held))


def partition_of(key: ReadableBuffer, int32_t partitions, /) -> int:
    """Return the partition, of `partitions`, to which Kafka's default partitioner sends a key, even an empty one."""
    cdef bytes held = as_bytes(key, "key")
    if partitions < 1:
        raise ValueError(f"partitions is {partitions}; a topic has at least 1")
    return ks_partition_of(<const uint8_t *> PyBytes_AS_STRING(held), <size_t> PyBytes_GET_SIZE(held), partitions)


@cython.final
cdef class Router:
    """Chooses the partition of the next record of a topic as Kafka's default partitioner does.

    A key is hashed over all `partitions`. Records without a key go to one partition until it has got `sticky_bytes`;
    then one is drawn uniformly from `available` (default: all), which may be the same again. Equal seeds draw the
    same partitions. Thread-safe.
    """

    def __init__(self, int32_t partitions, *, int64_t sticky_bytes, seed: int | None = None,
                 available: Iterable[int] | None = None):
        cdef tuple numbers = None if available is None else tuple(available)
        if partitions < 1:
            raise ValueError(f"partitions is {partitions}; a topic has at least 1")
        if numbers is not None and not numbers:
            raise ValueError("no partition is available")
        for number in numbers or ():
            if not 0 <= number < partitions:
                raise ValueError(f"available has {number}; partitions are 0 to {partitions - 1}")
        self.partitions = partitions
        self.sticky_bytes = sticky_bytes
        self._available = numbers
        self._random = secrets.randbits(64) if seed is None else seed & 0xffffffffffffffff
        self._sticky = -1

    def route(self, key: ReadableBuffer | None, value: ReadableBuffer | None, /) -> int:
        """Return the partition of one record that is appended as a batch."""
        return self.route_one(key, value)

    cdef int32_t route_one(self, object key, object value) except -1:
        cdef Py_buffer view
        cdef Py_ssize_t size = 0
        cdef int32_t partition
        if type(key) is bytes:
            return ks_partition_of(<const uint8_t *> PyBytes_AS_STRING(key), <size_t> PyBytes_GET_SIZE(key),
                                   self.partitions)
        if key is not None:
            return partition_of(key, self.partitions)
        if type(value) is bytes:
            size = PyBytes_GET_SIZE(value)
        elif value is not None and not isinstance(value, str):
            try:
                PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
            except TypeError:
                raise not_bytes(value, "value") from None
            except (BufferError, ValueError):    # not contiguous
                PyObject_GetBuffer(bytes(value), &view, PyBUF_SIMPLE)
            size = view.len
            PyBuffer_Release(&view)
        partition = self.sticky()
        self.add(LONE_BATCH_BYTES + size, self.sticky_bytes)
        return partition

    cdef int32_t sticky(self) except -1:
        cdef uint64_t z
        cdef uint32_t count
        if self._sticky < 0:
            self._random += <uint64_t> 0x9e3779b97f4a7c15          # splitmix64: any seed is good
            z = self._random
            z = (z ^ (z >> 30)) * <uint64_t> 0xbf58476d1ce4e5b9
            z = (z ^ (z >> 27)) * <uint64_t> 0x94d049bb133111eb
            z = (z ^ (z >> 31)) >> 32
            count = <uint32_t> (self.partitions if self._available is None else len(self._available))
            self._sticky = <int32_t> ((z * count) >> 32)
            if self._available is not None:
                self._sticky = self._available[self._sticky]
        return self._sticky

    cdef void add(self, int64_t size, int64_t enough) noexcept:
        """Count `size` bytes for the sticky partition; after `enough` bytes, draw another partition."""
        self._added += size
        if self._added >= enough:
            self._sticky = -1
            self._added = 0


# ---- Splitting records over packers.


cdef class BaseSplitter:
    """Base of the splitters of records and of columns: a router, and a packer for each partition.

    `make(partition)` returns a new `Packer`; it is called when a partition gets its first record. Batches are `ready`
    once `limit_bytes` of them are finished. The open batches are closed early if all buffers together hold `max_bytes`.
    Records without a key go to one partition for `sticky_bytes`; with `partition`, all records go there. Not
    thread-safe: a concurrent or reentrant call raises `RuntimeError`.
    """

    def __init__(self, Router router not None, make: Callable[[int], Packer], *, int64_t limit_bytes, int64_t max_bytes,
                 int64_t sticky_bytes, partition: int | None = None):
        self._router = router
        self._partitions = router.partitions
        self._inverse = ks_inverse(router.partitions)
        self._make = make
        self._limit_bytes = limit_bytes
        self._max_bytes = max_bytes
        self._sticky_bytes = sticky_bytes
        self._only = -1 if partition is None else partition
        if self._only >= router.partitions:
            raise ValueError(f"partition {partition} of a topic with {router.partitions}")
        self._packers = [None] * router.partitions
        self._made = []

    def close(self) -> None:
        """Finish all open batches."""
        self._enter()
        try:
            self._close_all()
        finally:
            self._busy = False

    @property
    def ready(self) -> list[tuple[int, Packer]]:
        """(partition, packer) of each partition with finished batches, which the caller takes from the packer."""
        return [(partition, self._packers[partition]) for partition in self._made
                if (<Packer> self._packers[partition]).finished]

    cdef int _enter(self) except -1:
        if self._busy:
            raise RuntimeError("this splitter is at work: it was called from another thread, or from a record's code")
        self._busy = True
        return 0

    cdef int _keep(self, int32_t partition, Packer packer) except -1:
        self._packers[partition] = packer
        insort(self._made, partition)
        return 0

    cdef int _close_all(self) except -1:
        for partition in self._made:
            (<Packer> self._packers[partition]).close_batch()
        return 0

    cdef int _drop_all(self) except -1:
        for partition in self._made:
            (<Packer> self._packers[partition]).drop_open()
        return 0

    cdef int _count(self) except -1:
        """Count the bytes that the packers hold, and release memory if their buffers are much larger."""
        cdef Packer packer
        cdef int64_t reserved = 0
        self._finished = self._held = 0
        for partition in self._made:
            packer = self._packers[partition]
            if packer._exports:
                raise BufferError("a view of a packer's buffer is alive")
            self._finished += packer.finished
            self._held += packer._used
            reserved += packer._capacity
        if reserved > 2 * self._max_bytes:
            for partition in self._made:
                (<Packer> self._packers[partition]).shrink()
        return 0


@cython.final
cdef class Splitter(BaseSplitter):
    """Packs the records of one iterable for all partitions of a topic."""

    cdef readonly int64_t records
    """Records packed so far."""
    # The numbers of the records in each open batch: the error for a batch that is too large once compressed names one.
    cdef int64_t **_numbers
    cdef int32_t *_room
    cdef int32_t *_counts
    cdef int32_t _current
    # (key, value) pairs of bytes: their keys are hashed together before the pairs are packed.
    cdef PyObject *_ahead[HASHED_AHEAD]
    cdef ks_bytes _keys[HASHED_AHEAD]
    cdef int32_t _places[HASHED_AHEAD]
    cdef int _ahead_at, _ahead_count   # the pairs in [_ahead_at, _ahead_count) are not packed yet

    def __dealloc__(self):
        self._drop_ahead()
        if self._numbers != NULL:
            for i in range(self._router.partitions):
                PyMem_RawFree(self._numbers[i])
        PyMem_RawFree(self._numbers)
        PyMem_RawFree(self._room)
        PyMem_RawFree(self._counts)

    def pack(self, iterator: Iterator[Any]) -> bool:
        """Pack records until enough batches are `ready`; return False when `iterator` has ended.

        Accepts the records of `Packer.pack` and raises its errors, with records numbered over all partitions. The
        caller must have taken the batches that were ready. If a record is refused, all open batches are dropped, and
        finished ones stay `ready`.
        """
        if iter(iterator) is not iterator:
            raise TypeError(f"{type(iterator).__name__} is no iterator: wrap it in iter(...)")
        if not self._busy:
            self._count()
            if self._finished:
                raise RuntimeError(f"{self._finished} bytes of finished batches have not been taken away")
        self._enter()
        try:
            self._pack_ahead(False)               # pairs left by the last call
            if not self._has_enough():
                try:
                    for record in iterator:
                        if self._put_ahead(<PyObject *> record):
                            if self._ahead_count < HASHED_AHEAD:
                                continue
                            self._pack_ahead(False)
                        else:
                            self._take(record)
                        if self._has_enough():
                            break
                    else:
                        self._pack_ahead(True)
                        self._close_all()
                        return False
                except BaseException:
                    self._pack_ahead(True)        # the iterator has raised after these records
                    raise
            if self._finished < self._limit_bytes:
                self._close_all()
            return True
        except RecordTooLargeError as error:
            failure = self._renumbered(error)
            self._drop_all()
            raise failure from None
        except BaseException:
            self._drop_all()
            raise
        finally:
            self._busy = False

    cdef Packer _packer(self, int32_t partition):
        """Make the partition's packer, which may open a log or fail, and return it."""
        cdef Packer packer = self._make(partition)
        if packer._codec != 0 and self._numbers == NULL:
            self._make_room_for_numbers()
        if self._packers[partition] is None:          # else `_make` has called this method
            self._keep(partition, packer)
        return self._packers[partition]

    cdef int _make_room_for_numbers(self) except -1:
        cdef size_t count = <size_t> self._router.partitions
        self._room = <int32_t *> PyMem_RawMalloc(count * sizeof(int32_t))
        self._counts = <int32_t *> PyMem_RawMalloc(count * sizeof(int32_t))
        self._numbers = <int64_t **> PyMem_RawMalloc(count * sizeof(int64_t *))
        if self._room == NULL or self._counts == NULL or self._numbers == NULL:
            PyMem_RawFree(self._numbers)
            self._numbers = NULL
            raise MemoryError
        memset(self._room, 0, count * sizeof(int32_t))
        memset(self._counts, 0, count * sizeof(int32_t))
        memset(self._numbers, 0, count * sizeof(int64_t *))
        return 0

    cdef inline bint _has_enough(self) noexcept:
        return self._finished >= self._limit_bytes or self._held >= self._max_bytes

    cdef inline bint _put_ahead(self, PyObject *item) noexcept:
        """Hold a pair of bytes to be hashed, or return False. If all places are full, call `_pack_ahead` next."""
        cdef PyObject *key
        cdef int at = self._ahead_count
        assert at < HASHED_AHEAD
        if self._only >= 0 or type(<object> item) is not tuple or PyTuple_GET_SIZE(<object> item) != 2:
            return False
        key = PyTuple_GET_ITEM(<object> item, 0)
        if type(<object> key) is not bytes or type(<object> PyTuple_GET_ITEM(<object> item, 1)) is not bytes:
            return False
        Py_INCREF(<object> item)
        self._ahead[at] = item
        self._keys[at].p = <const uint8_t *> PyBytes_AS_STRING(<object> key)
        self._keys[at].n = PyBytes_GET_SIZE(<object> key)
        self._ahead_count = at + 1
        return True

    cdef int _pack_ahead(self, bint all_of_them) except -1:
        """Pack the held pairs: all of them, or until enough batches are ready."""
        cdef PyObject *item
        cdef PyObject *value
        if self._ahead_at == 0:
            ks_partitions_by(self._keys, self._ahead_count, self._partitions, self._inverse, self._places)
        try:
            while self._ahead_at < self._ahead_count and (all_of_them or not self._has_enough()):
                item = self._ahead[self._ahead_at]
                value = PyTuple_GET_ITEM(<object> item, 1)
                self._put(self._places[self._ahead_at], <const char *> self._keys[self._ahead_at].p,
                          self._keys[self._ahead_at].n, PyBytes_AS_STRING(<object> value),
                          PyBytes_GET_SIZE(<object> value))
                self._ahead_at += 1
                Py_DECREF(<object> item)
        except BaseException:
            self._drop_ahead()
            raise
        if self._ahead_at == self._ahead_count:
            self._ahead_at = self._ahead_count = 0
        return 0

    cdef void _drop_ahead(self) noexcept:
        while self._ahead_at < self._ahead_count:
            self._ahead_count -= 1
            Py_DECREF(<object> self._ahead[self._ahead_count])
        self._ahead_at = self._ahead_count = 0

    cdef int _take(self, object item) except -1:
        """Route one record and pack it."""
        cdef PyObject *key
        cdef PyObject *value
        cdef Record record
        cdef ConsumerRecord consumed
        cdef Py_ssize_t size
        if type(item) is tuple:
            size = len(<tuple> item)
            if size == 2:
                key = <PyObject *> (<tuple> item)[0]
                value = <PyObject *> (<tuple> item)[1]
                if type(<object> value) is bytes:
                    if <object> key is None:
                        return self._put_keyless(value)
                    if type(<object> key) is bytes and self._only >= 0:
                        return self._put(self._only, PyBytes_AS_STRING(<object> key), PyBytes_GET_SIZE(<object> key),
                                         PyBytes_AS_STRING(<object> value), PyBytes_GET_SIZE(<object> value))
                return self._add(<object> key, <object> value, None, None)
            if size == 4:
                return self._add((<tuple> item)[0], (<tuple> item)[1], (<tuple> item)[2], (<tuple> item)[3])
        elif type(item) is bytes:
            return self._put_keyless(<PyObject *> item)
        elif type(item) is Record:
            record = <Record> item
            return self._add(record.key, record.value, record.timestamp, record.headers)
        elif type(item) is ConsumerRecord:
            consumed = <ConsumerRecord> item
            return self._add(consumed.key, consumed.value, consumed.timestamp, consumed.headers)
        elif isinstance(item, tuple):
            item = tuple(item)
            if not self._put_ahead(<PyObject *> item):
                return self._take(item)
            return self._pack_ahead(False) if self._ahead_count == HASHED_AHEAD else 0
        elif item is not None:
            return self._add(None, item, None, None)
        self._pack_ahead(True)
        shape = f"tuple of {len(item)}" if isinstance(item, tuple) else type(item).__name__
        raise TypeError(
            f"record {self.records} is {shape}: bytes, (key, value), (key, value, timestamp, headers) or Record is wanted")

    cdef inline int _put_keyless(self, PyObject *value) except -1:
        if self._ahead_count:
            self._pack_ahead(True)
        return self._put(self._only if self._only >= 0 else self._router.sticky(), NULL, -1,
                         PyBytes_AS_STRING(<object> value), PyBytes_GET_SIZE(<object> value))

    cdef inline int _put(self, int32_t partition, const char *key, Py_ssize_t key_size, const char *value,
                         Py_ssize_t value_size) except -1:
        """Pack one record of plain bytes: no code of the caller runs here."""
        self._current = partition
        if PyList_GET_ITEM(self._packers, partition) == <PyObject *> None:
            self._packer(partition)
        # An argument borrows the packer; a variable would count a reference.
        return self._put_into(<Packer> PyList_GET_ITEM(self._packers, partition), key, key_size, value, value_size)

    cdef inline int _put_into(self, Packer packer, const char *key, Py_ssize_t key_size, const char *value,
                              Py_ssize_t value_size) except -1:
        cdef Py_ssize_t size = put_plain(packer, key, key_size, value, value_size)
        if size == 0:
            return self._append(packer, key, key_size, value, value_size)
        self.records += 1
        self._held += size
        if key_size < 0 and self._only < 0:
            self._router.add(size, self._sticky_bytes)
        if packer._codec != 0:
            self._note_number(packer)
        return 0

    cdef int _append(self, Packer packer, const char *key, Py_ssize_t key_size, const char *value,
                     Py_ssize_t value_size) except -1:
        """Pack a record that `put_plain` does not take."""
        cdef Py_ssize_t used = packer._used
        cdef Py_ssize_t finished = packer.finished
        packer.records = self.records
        packer._append(key, key_size, value, value_size, packer.now_ms, NO_HEADERS, 1)
        return self._account(packer, used, finished, key_size < 0)

    cdef int _add(self, object key, object value, object timestamp, object headers) except -1:
        """Pack one record of any form: code of the record may run here."""
        cdef Packer packer
        cdef int32_t partition = self._only
        cdef Py_ssize_t used, finished
        if self._ahead_count:
            self._pack_ahead(True)
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, f"key of record {self.records}")
        if partition < 0:
            if key is None:
                partition = self._router.sticky()
            else:
                partition = ks_partition_by(<const uint8_t *> PyBytes_AS_STRING(key), <size_t> PyBytes_GET_SIZE(key),
                                            self._partitions, self._inverse)
        self._current = partition
        if self._packers[partition] is None:
            self._packer(partition)
        packer = <Packer> self._packers[partition]
        packer.enter()
        try:
            used, finished = packer._used, packer.finished
            packer.records = self.records
            packer.add(value, key, timestamp, headers)
        finally:
            packer.leave()
        self._account(packer, used, finished, key is None)
        return 0

    cdef inline int _account(self, Packer packer, Py_ssize_t used, Py_ssize_t finished, bint keyless) except -1:
        """Count one packed record; `used` and `finished` are the packer's sizes before it."""
        self.records += 1
        self._held += packer._used - used
        self._finished += packer.finished - finished
        if keyless and self._only < 0:
            # The first record of a batch counts with the batch's header.
            self._router.add(packer._used - packer.finished - (0 if packer._count == 1 else used - finished),
                             self._sticky_bytes)
        if packer._codec != 0:
            self._note_number(packer)
        return 0

    cdef int _note_number(self, Packer packer) except -1:
        cdef int32_t partition = self._current
        cdef int32_t count = packer._count
        cdef int32_t room
        cdef void *grown
        if count > self._room[partition]:
            room = max(64, 2 * self._room[partition])
            grown = PyMem_RawRealloc(self._numbers[partition], <size_t> room * sizeof(int64_t))
            if grown == NULL:
                raise MemoryError
            self._numbers[partition] = <int64_t *> grown
            self._room[partition] = room
        self._numbers[partition][count - 1] = self.records - 1
        self._counts[partition] = count
        return 0

    cdef object _renumbered(self, error):
        """Return `error` with the record's number among all: a packer that closes a batch counts only its own."""
        cdef Packer packer = self._packers[self._current]
        cdef int64_t place
        if packer._codec == 0 or packer._used != packer.finished:       # the record that was being added
            return error
        place = packer._closing - (self.records - self._counts[self._current])
        number = self._numbers[self._current][place]
        return RecordTooLargeError(str(error).replace(f"record {packer._closing}:", f"record {number}:", 1))

    cdef int _close_all(self) except -1:
        cdef Packer packer
        for self._current in self._made:
            packer = self._packers[self._current]
            packer.records = self.records
            packer.close_batch()
        return 0
