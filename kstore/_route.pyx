# cython: language_level=3, auto_pickle=False, autotestdict=False
"""Records of a topic: which partition each goes to, and many partitions' records as one iterator.

Owns Kafka's default partitioner, the splitting of records over one packer for each partition, `ConsumerRecord` and the
merge by time; encoding is `_pack`'s, decoding `_core`'s. Hardest rule: a record's own code (buffers, iterators) may do
anything, and memory stays bounded however many partitions are filled at once.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from kstore._core cimport Record, as_bytes
from kstore._pack cimport Packer

import secrets

from kstore.errors import RecordTooLargeError

cdef extern from "Python.h":
    PyObject *PyIter_Next(object iterator) except? NULL

cdef extern from "murmur2.h" nogil:
    uint32_t ks_murmur2(const uint8_t *p, size_t n) noexcept
    int32_t ks_partition_of(const uint8_t *key, size_t n, int32_t partitions) noexcept
    uint64_t ks_inverse(int32_t partitions) noexcept
    int32_t ks_partition_by(const uint8_t *key, size_t n, int32_t partitions, uint64_t inverse) noexcept

cdef extern from "member.h":
    ctypedef struct PyMemberDef:
        pass
    int ks_add_member(object kind, PyMemberDef *definition, const char *name, Py_ssize_t offset) except -1

cdef extern from *:
    """
    #define ks_topic_at(record) ((char *)&(record)->topic - (char *)(record))
    #define ks_key_at(record) ((char *)&(record)->key - (char *)(record))
    #define ks_value_at(record) ((char *)&(record)->value - (char *)(record))
    #define ks_headers_at(record) ((char *)&(record)->headers - (char *)(record))
    """
    Py_ssize_t ks_topic_at(ConsumerRecord record) noexcept
    Py_ssize_t ks_key_at(ConsumerRecord record) noexcept
    Py_ssize_t ks_value_at(ConsumerRecord record) noexcept
    Py_ssize_t ks_headers_at(ConsumerRecord record) noexcept

cdef enum:
    LONE_BATCH_BYTES = 70          # of a batch of one record without a key, less its value, to the byte or two

cdef const char *NO_HEADERS = b"\x00"
cdef PyMemberDef[4] members


# ---- The default partitioner (FORMAT.md 13).


def murmur2(key, /):
    """Kafka's hash of a serialized key, signed as Kafka's `Utils.murmur2` gives it; any buffer."""
    cdef bytes held = as_bytes(key, "key")
    return <int32_t> ks_murmur2(<const uint8_t *> PyBytes_AS_STRING(held), <size_t> PyBytes_GET_SIZE(held))


def partition_of(key, int32_t partitions, /):
    """The partition of `partitions` that Kafka's default partitioner sends a serialized key to; an empty key has one."""
    cdef bytes held = as_bytes(key, "key")
    if partitions < 1:
        raise ValueError(f"partitions is {partitions}; a topic has at least 1")
    return ks_partition_of(<const uint8_t *> PyBytes_AS_STRING(held), <size_t> PyBytes_GET_SIZE(held), partitions)


@cython.final
cdef class Router:
    """Says where the next record of a topic goes, as Kafka's default partitioner does.

    A key is hashed over all `partitions`. Records without one stick to a partition until `sticky_bytes` were given to
    it; then another is drawn, uniformly, from `available` (default: all; the same one may be drawn again). The draw
    repeats with `seed`. Thread-safe.
    """

    cdef readonly int32_t partitions
    cdef readonly int64_t sticky_bytes
    cdef tuple _available
    cdef uint64_t _random
    cdef int32_t _sticky               # -1: to be drawn
    cdef int64_t _given                # bytes, to the sticky partition

    def __init__(self, int32_t partitions, *, int64_t sticky_bytes, seed=None, available=None):
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

    def route(self, key, value, /):
        """The partition of one record that is a batch of its own."""
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
            PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
            size = view.len
            PyBuffer_Release(&view)
        partition = self.sticky()
        self.give(LONE_BATCH_BYTES + size, self.sticky_bytes)
        return partition

    cdef int32_t sticky(self) except -1:
        cdef uint64_t z
        cdef uint32_t count
        if self._sticky < 0:
            self._random += <uint64_t> 0x9e3779b97f4a7c15          # splitmix64: any seed will do
            z = self._random
            z = (z ^ (z >> 30)) * <uint64_t> 0xbf58476d1ce4e5b9
            z = (z ^ (z >> 27)) * <uint64_t> 0x94d049bb133111eb
            z = (z ^ (z >> 31)) >> 32
            count = <uint32_t> (self.partitions if self._available is None else len(self._available))
            self._sticky = <int32_t> ((z * count) >> 32)
            if self._available is not None:
                self._sticky = self._available[self._sticky]
        return self._sticky

    cdef void give(self, int64_t size, int64_t enough) noexcept:
        """Count what went to the sticky partition."""
        self._given += size
        if self._given >= enough:
            self._sticky = -1
            self._given = 0


# ---- Splitting records over packers.


@cython.final
cdef class Splitter:
    """Packs one iterable's records for all partitions of a topic: by `router`, over a packer for each partition.

    `make(partition)` gives a new `Packer` when a partition gets its first record. Batches fill up as the packers say;
    when all buffers together hold `most_bytes`, what is open is closed early, however many partitions there are.
    Records without a key stick to a partition for `sticky_bytes`. Not thread-safe: a second call at the same time, or
    from code that a first call runs, is a `RuntimeError`.
    """

    cdef Router _router
    cdef int32_t _partitions
    cdef uint64_t _inverse
    cdef object _make
    cdef int64_t _limit_bytes
    cdef int64_t _most_bytes
    cdef int64_t _sticky_bytes
    cdef int32_t _only                 # the partition of every record; -1: as routed
    cdef list _packers                 # by partition, None without a record
    cdef list _ready                   # partitions with finished batches
    cdef readonly int64_t records
    """Records taken in."""
    cdef int64_t _finished             # bytes, in all packers
    cdef int64_t _held                 # with open batches
    cdef int64_t _reserved             # with room to grow
    cdef bint _busy
    cdef bint _compressing
    # A closed batch that is too large once compressed names its record: numbers of those in each open batch.
    cdef int64_t **_numbers
    cdef int32_t *_room
    cdef int32_t *_counts
    cdef int32_t _current

    def __init__(self, Router router not None, make, *, int64_t limit_bytes, int64_t most_bytes, int64_t sticky_bytes,
                 partition=None):
        self._router = router
        self._partitions = router.partitions
        self._inverse = ks_inverse(router.partitions)
        self._make = make
        self._limit_bytes = limit_bytes
        self._most_bytes = most_bytes
        self._sticky_bytes = sticky_bytes
        self._only = -1 if partition is None else partition
        if self._only >= router.partitions:
            raise ValueError(f"partition {partition} of a topic with {router.partitions}")
        self._packers = [None] * router.partitions
        self._ready = []

    def __dealloc__(self):
        if self._numbers != NULL:
            for i in range(self._router.partitions):
                PyMem_RawFree(self._numbers[i])
        PyMem_RawFree(self._numbers)
        PyMem_RawFree(self._room)
        PyMem_RawFree(self._counts)

    def pack(self, iterator):
        """Take records until enough batches are `ready`; False once `iterator` has ended.

        Takes and raises what `Packer.pack` does, records counted over all partitions. What was ready is to be taken
        away first. A refused record drops every open batch; the finished ones stay `ready`.
        """
        cdef PyObject *item
        if iter(iterator) is not iterator:
            raise TypeError(f"{type(iterator).__name__} is no iterator: wrap it in iter(...)")
        if self._busy:
            raise RuntimeError("this splitter is at work: it was called from another thread, or from a record's code")
        if self._finished:
            raise RuntimeError(f"{self._finished} bytes of finished batches have not been taken away")
        self._busy = True
        try:
            for record in iterator:
                self._take(record)
                if self._finished >= self._limit_bytes:
                    return True
                if self._held >= self._most_bytes:
                    self._close_all()
                    return True
            self._close_all()
            return False
        except RecordTooLargeError as error:
            failure = self._renumbered(error)
            self._drop_all()
            raise failure from None
        except BaseException:
            self._drop_all()
            raise
        finally:
            self._busy = False

    @property
    def ready(self):
        """(partition, packer) of each partition with finished batches; give each to `taken` when they are stored."""
        return [(partition, self._packers[partition]) for partition in self._ready]

    def taken(self, int32_t partition):
        """Forget the finished batches of a partition, and give memory back if there is too much of it."""
        cdef Packer packer = self._packers[partition]
        cdef Py_ssize_t capacity = packer._capacity
        cdef Py_ssize_t finished = packer.finished
        cdef void *data
        packer.clear()
        self._ready.remove(partition)
        self._finished -= finished
        self._held -= finished
        if self._reserved > 2 * self._most_bytes:
            if packer._used == 0:
                PyMem_RawFree(packer.data)
                packer.data = NULL
                packer._capacity = 0
            else:
                data = PyMem_RawRealloc(packer.data, <size_t> packer._used)
                if data != NULL:
                    packer.data = <uint8_t *> data
                    packer._capacity = packer._used
            self._reserved += packer._capacity - capacity

    cdef Packer _packer(self, int32_t partition):
        """The partition's packer, made now if need be: that may open a log, or fail."""
        cdef Packer packer = self._make(partition)
        if packer._codec != 0 and self._numbers == NULL:
            self._make_room_for_numbers()
        if self._packers[partition] is None:          # else the code that makes packers called us
            self._packers[partition] = packer
            self._reserved += packer._capacity
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
                if type(<object> value) is bytes and (type(<object> key) is bytes or <object> key is None):
                    return self._put(key, value)
                return self._add(<object> key, <object> value, None, None)
            if size == 4:
                return self._add((<tuple> item)[0], (<tuple> item)[1], (<tuple> item)[2], (<tuple> item)[3])
        elif type(item) is bytes:
            return self._put(<PyObject *> None, <PyObject *> item)
        elif type(item) is Record:
            record = <Record> item
            return self._add(record.key, record.value, record.timestamp, record.headers)
        elif type(item) is ConsumerRecord:
            consumed = <ConsumerRecord> item
            return self._add(consumed.key, consumed.value, consumed.timestamp, consumed.headers)
        elif isinstance(item, tuple):
            return self._take(tuple(item))
        elif item is not None:
            return self._add(None, item, None, None)
        shape = f"tuple of {len(item)}" if isinstance(item, tuple) else type(item).__name__
        raise TypeError(
            f"record {self.records} is {shape}: bytes, (key, value), (key, value, timestamp, headers) or Record is wanted")

    cdef inline int _put(self, PyObject *key, PyObject *value) except -1:
        """One record of bytes and nothing else: no code but ours runs in here."""
        cdef int32_t partition
        cdef const char *key_data = NULL
        cdef Py_ssize_t key_size = -1
        if key != <PyObject *> None:
            key_data = PyBytes_AS_STRING(<object> key)
            key_size = PyBytes_GET_SIZE(<object> key)
        if self._only >= 0:
            partition = self._only
        elif key_size < 0:
            partition = self._router.sticky()
        else:
            partition = ks_partition_by(<const uint8_t *> key_data, <size_t> key_size, self._partitions, self._inverse)
        self._current = partition
        if PyList_GET_ITEM(self._packers, partition) == <PyObject *> None:
            self._packer(partition)
        # An argument is borrowed where a variable would be counted.
        return self._put_into(<Packer> PyList_GET_ITEM(self._packers, partition), key_data, key_size,
                              PyBytes_AS_STRING(<object> value), PyBytes_GET_SIZE(<object> value))

    cdef inline int _put_into(self, Packer packer, const char *key, Py_ssize_t key_size, const char *value,
                              Py_ssize_t value_size) except -1:
        cdef Py_ssize_t used = packer._used
        cdef Py_ssize_t finished = packer.finished
        cdef Py_ssize_t capacity = packer._capacity
        packer.records = self.records
        packer._append(key, key_size, value, value_size, packer.now_ms, NO_HEADERS, 1)
        self._account(packer, used, finished, capacity, key_size < 0)
        return 0

    cdef int _add(self, object key, object value, object timestamp, object headers) except -1:
        """One record of any form: the record's own code may run in here."""
        cdef Packer packer
        cdef int32_t partition = self._only
        cdef Py_ssize_t used, finished, capacity
        if key is not None:
            key = as_bytes(key, f"key of record {self.records}")
        if partition < 0:
            if key is None:
                partition = self._router.sticky()
            else:
                partition = ks_partition_of(<const uint8_t *> PyBytes_AS_STRING(key), <size_t> PyBytes_GET_SIZE(key),
                                            self._router.partitions)
        self._current = partition
        if self._packers[partition] is None:
            self._packer(partition)
        packer = <Packer> self._packers[partition]
        packer.enter()
        try:
            used, finished, capacity = packer._used, packer.finished, packer._capacity
            packer.records = self.records
            packer.add(value, key, timestamp, headers)
        finally:
            packer.leave()
        self._account(packer, used, finished, capacity, key is None)
        return 0

    cdef inline int _account(self, Packer packer, Py_ssize_t used, Py_ssize_t finished, Py_ssize_t capacity,
                             bint keyless) except -1:
        """Count one record that was packed; the sizes are those before it."""
        self.records += 1
        self._held += packer._used - used
        self._reserved += packer._capacity - capacity
        if packer.finished != finished:
            self._finished += packer.finished - finished
            if finished == 0:
                self._ready.append(self._current)
        if keyless and self._only < 0:
            # The first one of a batch brings the batch's header along.
            self._router.give(packer._used - packer.finished - (0 if packer._count == 1 else used - finished),
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
        """The refusal of a record, by its number among all: a packer that closes a batch counts its own."""
        cdef Packer packer = self._packers[self._current]
        cdef int64_t place
        if packer._codec == 0 or packer._used != packer.finished:       # the record that was being added
            return error
        place = packer._closing - (self.records - self._counts[self._current])
        number = self._numbers[self._current][place]
        return RecordTooLargeError(str(error).replace(f"record {packer._closing}:", f"record {number}:", 1))

    cdef int _close_all(self) except -1:
        cdef Packer packer
        cdef Py_ssize_t used, finished, capacity
        cdef int32_t partition
        for partition in range(self._router.partitions):
            if self._packers[partition] is None:
                continue
            packer = <Packer> self._packers[partition]
            if packer._count == 0:
                continue
            used, finished, capacity = packer._used, packer.finished, packer._capacity
            self._current = partition
            packer.records = self.records
            packer.close_batch()
            self._held += packer._used - used
            self._reserved += packer._capacity - capacity
            self._finished += packer.finished - finished
            if finished == 0:
                self._ready.append(partition)
        return 0

    cdef int _drop_all(self) except -1:
        """Drop the open batches, and count anew what is there."""
        cdef Packer packer
        self._finished = self._held = self._reserved = 0
        self._ready = []
        for partition, packer in enumerate(self._packers):
            if packer is not None:
                packer.drop_open()
                self._finished += packer.finished
                self._held += packer.finished
                self._reserved += packer._capacity
                if packer.finished:
                    self._ready.append(partition)
        return 0


# ---- Records of a topic.


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class ConsumerRecord:
    """One record of a topic: `topic, partition, offset, timestamp, key, value, headers`, in which order it unpacks.

    The last five are as in `Record`. Immutable, compared by value; holds no cycle, hence has no part in garbage
    collection. Thread-safe.
    """

    __match_args__ = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")

    cdef str topic
    cdef readonly int32_t partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef bytes key
    cdef bytes value
    cdef tuple headers

    def __init__(self, str topic not None, int32_t partition, int64_t offset, int64_t timestamp, key=None, value=None,
                 headers=()):
        cdef Record record = Record(offset, timestamp, key, value, headers)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = record.key
        self.value = record.value
        self.headers = record.headers

    def __iter__(self):
        return iter(_fields(self))

    def __len__(self):
        return 7

    def __eq__(self, other):
        if type(other) is not ConsumerRecord:
            return NotImplemented
        return _fields(self) == _fields(<ConsumerRecord> other)

    def __hash__(self):
        return hash(_fields(self))

    def __repr__(self):
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self):
        return ConsumerRecord, _fields(self)


cdef tuple _fields(ConsumerRecord record):
    return (record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, record.headers)


cdef int _add_members() except -1:
    cdef ConsumerRecord record = ConsumerRecord.__new__(ConsumerRecord)
    ks_add_member(ConsumerRecord, &members[0], b"topic", ks_topic_at(record))
    ks_add_member(ConsumerRecord, &members[1], b"key", ks_key_at(record))
    ks_add_member(ConsumerRecord, &members[2], b"value", ks_value_at(record))
    ks_add_member(ConsumerRecord, &members[3], b"headers", ks_headers_at(record))
    return 0


_add_members()


cdef inline ConsumerRecord _consumed(str topic, int32_t partition, Record record):
    cdef ConsumerRecord out = ConsumerRecord.__new__(ConsumerRecord)
    out.topic = topic
    out.partition = partition
    out.offset = record.offset
    out.timestamp = record.timestamp
    out.key = record.key
    out.value = record.value
    out.headers = record.headers
    return out


cdef struct Head:
    # The next record of one partition, in a heap of them.
    int64_t timestamp
    int32_t partition
    int32_t source                     # its place in the round
    PyObject *record                   # owned


cdef inline bint _before(const Head *a, const Head *b) noexcept:
    return a.timestamp < b.timestamp or (a.timestamp == b.timestamp and a.partition < b.partition)


@cython.final
cdef class ConsumerIterator:
    """`ConsumerRecord`s of a topic from `rounds`, an iterator of lists of `(partition, iterator of Records)`.

    Each round is read to its end before the next is asked for: one partition after the other, or, `by_timestamp`,
    always the record with the least timestamp among the partitions' next ones, the lower partition first among
    equals; each partition keeps its own order. One record of each partition is then read ahead. Raises what the
    iterators raise, or what `explain` makes of it, and then ends. Not thread-safe: a second call at the same time is
    a `ValueError`.
    """

    cdef str _topic
    cdef object _explain
    cdef object _rounds
    cdef bint _by_timestamp
    cdef bint _busy
    cdef list _sources                 # of this round
    cdef Py_ssize_t _at                # partition after partition: the source that is read
    cdef object _reading
    cdef int32_t _partition
    cdef Head *_heap
    cdef int32_t _count
    cdef bint _given                   # the first of the heap was given out: its partition's next one is wanted

    def __init__(self, str topic not None, rounds, *, bint by_timestamp, explain=None):
        self._topic = topic
        self._explain = explain
        self._rounds = iter(rounds)
        self._by_timestamp = by_timestamp
        self._sources = []

    def __dealloc__(self):
        self._free()

    def __iter__(self):
        return self

    def __next__(self):
        cdef PyObject *found
        if self._busy:
            raise ValueError("iterator already executing")
        self._busy = True
        try:
            if self._by_timestamp:
                return self._next_by_timestamp()
            while True:
                if self._reading is not None:
                    found = PyIter_Next(self._reading)
                    if found != NULL:
                        record = <object> found
                        Py_XDECREF(found)
                        return _consumed(self._topic, self._partition, <Record?> record)
                    self._reading = None
                if self._at == len(self._sources):
                    self._next_round()
                    self._at = 0
                    continue
                self._partition, self._reading = self._sources[self._at]
                self._at += 1
        except StopIteration:
            self._end()
            raise
        except Exception as error:
            self._end()
            reason = error if self._explain is None else self._explain(error)
            if reason is error:
                raise
            raise reason from error
        except BaseException:
            self._end()
            raise
        finally:
            self._busy = False

    cdef object _next_by_timestamp(self):
        cdef Head *first
        while True:
            if self._given:
                self._given = False
                self._replace_first()
            if self._count > 0:
                first = &self._heap[0]
                self._given = True
                return _consumed(self._topic, first.partition, <Record> first.record)
            self._next_round()
            self._fill()

    cdef int _next_round(self) except -1:
        """Ask for the next round; StopIteration at the end."""
        self._sources = next(self._rounds)
        return 0

    cdef int _fill(self) except -1:
        """Read the first record of each partition of a new round."""
        cdef int32_t source
        cdef Head head
        cdef void *grown = PyMem_RawRealloc(self._heap, max(<size_t> 1, <size_t> len(self._sources)) * sizeof(Head))
        if grown == NULL:
            raise MemoryError
        self._heap = <Head *> grown
        for source in range(<int32_t> len(self._sources)):
            head.source = source
            head.partition = self._sources[source][0]
            if self._read_head(&head):
                self._heap[self._count] = head
                self._count += 1
                self._rise(self._count - 1)
        return 0

    cdef bint _read_head(self, Head *head) except -1:
        cdef PyObject *found = PyIter_Next((<tuple> self._sources[head.source])[1])
        if found == NULL:
            return False
        if type(<object> found) is not Record:
            Py_XDECREF(found)
            raise TypeError("a source of a ConsumerIterator gives Records")
        head.record = found
        head.timestamp = (<Record> found).timestamp
        return True

    cdef int _replace_first(self) except -1:
        """Put the next record of the first head's partition in its place, or the last head when there is none."""
        cdef PyObject *old = self._heap[0].record
        cdef bint more
        self._heap[0].record = NULL
        Py_XDECREF(old)
        more = self._read_head(&self._heap[0])
        if not more:
            self._count -= 1
            self._heap[0] = self._heap[self._count]
        self._sink()
        return 0

    cdef void _rise(self, int32_t at) noexcept:
        cdef Head head = self._heap[at]
        while at > 0 and _before(&head, &self._heap[(at - 1) // 2]):
            self._heap[at] = self._heap[(at - 1) // 2]
            at = (at - 1) // 2
        self._heap[at] = head

    cdef void _sink(self) noexcept:
        cdef Head head
        cdef int32_t at = 0, child = 1
        if self._count < 2:
            return
        head = self._heap[0]
        while child < self._count:
            if child + 1 < self._count and _before(&self._heap[child + 1], &self._heap[child]):
                child += 1
            if not _before(&self._heap[child], &head):
                break
            self._heap[at] = self._heap[child]
            at = child
            child = 2 * at + 1
        self._heap[at] = head

    cdef void _free(self) noexcept:
        cdef int32_t i
        for i in range(self._count):
            Py_XDECREF(self._heap[i].record)
        self._count = 0
        PyMem_RawFree(self._heap)
        self._heap = NULL

    cdef void _end(self) noexcept:
        """Read nothing more."""
        self._free()
        self._given = False
        self._sources = []
        self._at = 0
        self._reading = None
        self._rounds = iter(())
