# cython: language_level=3, auto_pickle=False, autotestdict=False, embedsignature=False, annotation_typing=False
"""Encodes transaction states (FORMAT 12.3, version 1); compiled, since each transaction writes at least five."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kstore.codec._wire cimport store16, store32, store64

from functools import lru_cache

from kstore.codec.coordinator.group_records import unsigned_varint

cdef enum:
    EMPTY = 0                          # the status of an id without a transaction
    HEAD_BYTES = 2 + 8 + 2 + 4 + 1     # version, producer id, epoch, timeout, status
    TIMES_BYTES = 8 + 8
    LONG_TAG_BYTES = 2 + 8             # number and size, then the value
    SHORT_TAG_BYTES = 2 + 2
    PREVIOUS_PRODUCER_ID = 0           # numbers of tagged fields
    NEXT_PRODUCER_ID = 1
    CLIENT_VERSION = 2

cdef bytes NONE = b"\x00"


def state_value(state: TransactionState) -> bytes:
    """Encode a `TransactionState` as the value of its record."""
    cdef int64_t producer_id, updated_ms, start_ms, previous, following
    cdef int32_t timeout_ms
    cdef int16_t epoch, version
    cdef int status
    if not isinstance(state, tuple):
        raise TypeError(f"{state!r} is no TransactionState")
    # A plain tuple, whose items are fast to access in C.
    producer_id, epoch, timeout_ms, status, places, updated_ms, start_ms, previous, following, version = <tuple> state
    cdef bytes partitions = NONE if status == EMPTY else _partitions(places)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(partitions)
    cdef int tags = (previous != -1) + (following != -1) + (version != 0)
    cdef bytes value = PyBytes_FromStringAndSize(
        NULL, HEAD_BYTES + n + TIMES_BYTES + 1 + ((previous != -1) + (following != -1)) * LONG_TAG_BYTES
        + (version != 0) * SHORT_TAG_BYTES)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(value)
    store16(p, 1)
    store64(p + 2, producer_id)
    store16(p + 10, epoch)
    store32(p + 12, timeout_ms)
    p[16] = <uint8_t>status
    memcpy(p + HEAD_BYTES, PyBytes_AS_STRING(partitions), n)
    p += HEAD_BYTES + n
    store64(p, updated_ms)
    store64(p + 8, start_ms)
    p[TIMES_BYTES] = <uint8_t>tags
    p += TIMES_BYTES + 1
    if previous != -1:
        p = _put_long_tag(p, PREVIOUS_PRODUCER_ID, previous)
    if following != -1:
        p = _put_long_tag(p, NEXT_PRODUCER_ID, following)
    if version:
        p[0] = CLIENT_VERSION
        p[1] = 2
        store16(p + 2, version)
    return value


cdef uint8_t *_put_long_tag(uint8_t *p, uint8_t number, int64_t value) noexcept:
    p[0] = number
    p[1] = 8
    store64(p + 2, value)
    return p + LONG_TAG_BYTES


@lru_cache(maxsize=1024)  # transactions of one producer go to the same partitions
def _partitions(places):
    """Encode the partitions of a transaction, by topic, in the order in which they were added."""
    by_topic = {}
    for topic, number in places:
        by_topic.setdefault(topic.encode(), []).append(number)
    out = bytearray(unsigned_varint(len(by_topic) + 1))
    for name, numbers in by_topic.items():
        out += unsigned_varint(len(name) + 1) + name + unsigned_varint(len(numbers) + 1)
        for number in numbers:
            out += number.to_bytes(4, "big")
        out += NONE
    return bytes(out)
