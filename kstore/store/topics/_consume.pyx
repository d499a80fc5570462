# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The records of a topic for readers: `ConsumerRecord`, and an iterator that merges the records of partitions.

Invariant: the state is valid whenever one of the merged iterators is called, since it may run any Python code.
"""

cimport cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport int32_t, int64_t

from kstore._core cimport Record, shown, shown_headers

from kstore._core import RecordIterator

cdef extern from "Python.h":
    PyObject *PyIter_Next(object iterator) except? NULL

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

cdef PyMemberDef[4] members


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class ConsumerRecord:
    """One record of a topic; it unpacks as `topic, partition, offset, timestamp, key, value, headers`.

    The last five are as in `Record`. Records are immutable and compared by value. They hold no reference cycle, so the
    garbage collector does not track them. Thread-safe.

    Example:
        >>> store = kstore.Store.open("data")
        >>> topic_id = store.create_topic("orders")
        >>> place = store.append("orders", b"3 apples", key=b"alice")
        >>> for topic, partition, offset, timestamp, key, value, headers in store.read("orders"):
        ...     print(topic, partition, offset, key, value, headers)
        orders 0 0 b'alice' b'3 apples' ()
    """

    __match_args__ = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")

    def __init__(self, str topic not None, int32_t partition, int64_t offset, int64_t timestamp,
                 key: ReadableBuffer | None = None, value: ReadableBuffer | None = None,
                 headers: Iterable[tuple[str, ReadableBuffer | None]] = ()):
        cdef Record record = Record(offset, timestamp, key, value, headers)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = record.key
        self.value = record.value
        self.headers = record.headers

    def __iter__(self) -> Iterator[Any]:
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
            f"timestamp={self.timestamp}, key={shown(self.key)}, value={shown(self.value)}, "
            f"headers={shown_headers(self.headers)})"
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
    # The next record of one partition: an entry of the heap.
    int64_t timestamp
    int32_t partition
    int32_t source                     # the partition's index in the round
    PyObject *record                   # owned


cdef inline bint _before(const Head *a, const Head *b) noexcept:
    return a.timestamp < b.timestamp or (a.timestamp == b.timestamp and a.partition < b.partition)


@cython.final
cdef class ConsumerIterator:
    """Iterate over the `ConsumerRecord`s of a topic in `rounds`.

    A round is a list of `(partition, iterator of Records)`. It is read to its end before the next one, partition by
    partition. If `by_timestamp`, the partitions are merged: the next record is the one with the least timestamp among
    the partitions' next records, or the lowest partition's record among equal timestamps. Each partition keeps its
    order, and one record of each partition is read ahead. An error of an iterator, replaced by the result of `explain`
    if given, is raised and ends this iterator. Not thread-safe: a concurrent call raises `ValueError`.
    """

    cdef str _topic
    cdef object _explain
    cdef object _rounds
    cdef bint _by_timestamp
    cdef bint _busy
    cdef list _sources                 # of this round
    cdef Py_ssize_t _at                # if not merged: the source after the one being read
    cdef object _reading
    cdef int32_t _partition
    cdef Head *_heap
    cdef int32_t _count
    cdef bint _given                   # the heap's first record was returned: the partition's next one replaces it

    def __init__(self, str topic not None, rounds: Iterable[list[tuple[int, Iterator[Record]]]], *, bint by_timestamp,
                 explain: Callable[[Exception], Exception] | None = None):
        self._topic = topic
        self._explain = explain
        self._rounds = iter(rounds)
        self._by_timestamp = by_timestamp
        self._sources = []

    def __dealloc__(self):
        self._free()

    def __iter__(self) -> ConsumerIterator:
        return self

    def __next__(self) -> ConsumerRecord:
        cdef PyObject *next_record
        if self._busy:
            raise ValueError("iterator already executing")
        self._busy = True
        try:
            if self._by_timestamp:
                return self._next_by_timestamp()
            while True:
                if self._reading is not None:
                    next_record = PyIter_Next(self._reading)
                    if next_record != NULL:
                        record = <object> next_record
                        Py_XDECREF(next_record)
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

    @property
    def needs_bytes(self) -> bool:
        """Whether the next record is not in memory, so that `next` reads from a file."""
        if not self._by_timestamp:
            return self._reading is None or getattr(self._reading, "needs_bytes", True)
        if self._count == 0:
            return True
        return self._given and getattr(self._sources[self._heap[0].source][1], "needs_bytes", True)

    @property
    def in_memory(self) -> int:
        """How many of the next records are in memory, as far as is known without looking at the next batch."""
        if not self._by_timestamp and type(self._reading) is RecordIterator:
            return self._reading.in_memory
        return not self.needs_bytes

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
        """Get the next round; raise StopIteration at the end."""
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
        cdef PyObject *next_record = PyIter_Next((<tuple> self._sources[head.source])[1])
        if next_record == NULL:
            return False
        if type(<object> next_record) is not Record:
            Py_XDECREF(next_record)
            raise TypeError("a source of a ConsumerIterator gives Records")
        head.record = next_record
        head.timestamp = (<Record> next_record).timestamp
        return True

    cdef int _replace_first(self) except -1:
        """Replace the first head by its partition's next record, or by the last head if there is none."""
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
        """Drop the sources and all records that were read ahead."""
        self._free()
        self._given = False
        self._sources = []
        self._at = 0
        self._reading = None
        self._rounds = iter(())
