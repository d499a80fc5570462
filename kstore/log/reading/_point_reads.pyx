# cython: language_level=3, auto_pickle=False, autotestdict=False, annotation_typing=False, nonecheck=True, embedsignature=False
"""Reads at one offset: the offset index, one `pread`, the CRC, a walk to the record. Compiled, since that is so little.

The batch that a thread read last is kept decoded. Takes no lock. What is unusual in any way (a file that is not open, a
batch that the index does not lead to, an old format, damage) is left to the iterators, which also name the fault.
Invariant: a kept batch is used only while the guard's version is the one that its read began with, and in a log of
another process only if a look at the files shows no change.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from kstore._core cimport Guard, ks_parse_record, ks_record, made_record, record_section
from kstore.codec._compression cimport ks_output, ks_unpack
from kstore.codec._wire cimport (
    ATTRIBUTES_AT, BASE_TIMESTAMP_AT, CODEC_MASK, CONTROL_BIT, LAST_OFFSET_DELTA_AT, MAX_TIMESTAMP_AT, RECORDS_AT,
    RECORDS_COUNT_AT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, load16, load32, load64, wrapping_add,
)
from kstore.disk._held cimport Held, hold, take_back
from kstore.disk._look cimport Look, both_stand, is_settled, look_at, look_behind, same_file, same_state
from kstore.files._framing cimport (
    BAD_ORDER, BAD_READ, GOES_ON, Header, Stop, check_crc_at, check_place, read_header,
)
from kstore.files._index_search cimport Around, OffsetEntries, look_around
from kstore.files._window cimport Window, window_at, window_free, window_on

import os
from bisect import bisect_right

from kstore.codec import compression
from kstore.disk import mounts
from kstore.errors import KStoreError

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() noexcept

cdef extern from "window.h" nogil:
    Py_ssize_t read_held "ks_read_held"(Held *held, int fd, uint8_t *p, size_t n, int64_t position) noexcept
    Py_ssize_t read_cached "ks_read_cached"(int fd, uint8_t *p, size_t n, int64_t position) noexcept

cdef enum:
    LEAST_ROOM = 32768             # a batch of 16 KiB, which is what most producers make, and the header behind it
    MOST_BATCH = 1 << 20           # a larger batch is left to the iterators, as read or as decompressed
    MOST_PIECE = 262144            # a larger first batch of a pass is not copied
    MOST_KEPT = 4 << 20            # of all kept batches of the process
    MOST_THREADS = 8               # of one log that keep a batch each
    SMALL_SPAN = 12288             # up to this distance all batches between two index entries are read at once
    MOST_WALK = 262144             # beyond this, the iterators look for the batch
    BEHIND = 256                   # read with a batch of unknown size

UNKNOWN = object()  # type: object
"""The answer if the iterators must read the record."""


# ---- Kept batches. All are in one ring, the one loaded last at its end; the GIL guards the ring.

cdef struct Link:
    Link *before
    Link *behind
    PyObject *kept                 # borrowed: a batch leaves the ring before it is freed

cdef Link _ring
cdef int64_t _kept_bytes = 0
_ring.before = _ring.behind = &_ring


@cython.final
@cython.no_gc
cdef class _Kept:
    """The batch that a thread read last from a log; for that thread alone."""

    cdef Link link
    cdef int64_t counted           # its bytes in `_kept_bytes`
    cdef unsigned long thread
    cdef bint busy                 # a call is reading the batch; another one may come in a garbage collection
    cdef Window window             # the batch as it is stored, in memory that the window owns
    cdef uint8_t *section          # the decompressed records
    cdef size_t section_room
    cdef int64_t version           # of the guard when the read began, -1 if nothing is kept
    cdef int64_t position, size    # of the batch in the file of the segment
    cdef int64_t segment_base
    cdef int64_t least, last       # the offsets that the batch answers for
    cdef bint decided              # not a part of a transaction
    cdef Look look                 # of the file before the read, in a log of another process
    cdef bint settled              # whether each later change is seen; if not, the next call reads the batch again
    cdef bytes path                # of the file
    cdef int64_t base_offset, base_timestamp
    cdef bint append_time
    cdef uint32_t last_delta
    cdef int32_t count             # 0 for a control batch
    cdef const uint8_t *first
    cdef const uint8_t *end
    cdef const uint8_t *at         # the record found last, and how many are left from there on
    cdef int32_t left
    cdef uint32_t at_delta

    def __cinit__(self):
        self.version = -1
        window_on(&self.window, -1, 0, NULL, 0)
        self.window.owns = 1

    def __dealloc__(self):
        self.drop()

    cdef void drop(self) noexcept:
        global _kept_bytes
        self.version = -1
        window_free(&self.window)
        self.window.capacity = self.window.size = 0
        free(self.section)
        self.section, self.section_room = NULL, 0
        self._unlink()
        _kept_bytes -= self.counted
        self.counted = 0

    cdef void _unlink(self) noexcept:
        if self.link.kept != NULL:
            self.link.before.behind, self.link.behind.before = self.link.behind, self.link.before
            self.link.kept = NULL

    cdef bint make_room(self, Py_ssize_t n) noexcept:
        """Make the window large enough for `n` bytes; return False without memory."""
        cdef uint8_t *data
        if n <= self.window.capacity:
            return True
        data = <uint8_t *> realloc(self.window.data, <size_t> n)
        if data == NULL:
            return False
        self.window.data, self.window.capacity = data, n
        return True

    cdef void count_bytes(self) noexcept:
        """Move the batch to the end of the ring, and drop the oldest ones if all take too much memory."""
        global _kept_bytes
        cdef Link *link
        cdef Link *following
        self._unlink()
        self.link = Link(_ring.before, &_ring, <PyObject *> self)
        _ring.before.behind = &self.link
        _ring.before = &self.link
        _kept_bytes += self.window.capacity + <int64_t> self.section_room - self.counted
        self.counted = self.window.capacity + <int64_t> self.section_room
        link = _ring.behind
        while _kept_bytes > MOST_KEPT and link != &self.link:
            following = link.behind
            if not (<_Kept> link.kept).busy:
                (<_Kept> link.kept).drop()
            link = following


cdef int _more_room(ks_output *out, size_t used, size_t capacity) noexcept nogil:
    """Enlarge the section of a `_Kept`; C calls this as the output's function `room`."""
    cdef uint8_t *data
    if capacity > MOST_BATCH:
        return -1
    data = <uint8_t *> realloc(out.p, capacity)
    if data == NULL:
        return -1
    out.p, out.capacity = data, capacity
    return 0


def kept_bytes() -> int:
    """Return the memory of all kept batches of the process."""
    return _kept_bytes


# ---- Reading.

cdef Stop _find(_Kept kept, const Around *around, int64_t base_offset, int64_t offset, int64_t most, bint *sole,
                bint whole, Header *h) noexcept nogil:
    """Frame the batch that holds `offset`, or the next one after a gap, between two entries of the index.

    If it is wanted `whole`, also read all of it, and check the CRC.

    `sole` says whether a single batch is likely to lie between the entries; it is then read without those before it:
    the entries and its own header agree on all offsets.
    """
    cdef Window *w = &kept.window
    cdef Stop stop
    cdef const uint8_t *p
    cdef int64_t position = around.before_position if around.has_before else 0
    cdef int64_t least = base_offset, far = position + MOST_WALK
    cdef int64_t span = around.after_position - position
    cdef int batches = 0
    if around.has_before and around.has_after and (sole[0] or span > SMALL_SPAN):
        w.ahead = BEHIND
        if whole:
            w.ahead = _ahead(w, around.after_end - around.after_position if around.after_end else span + BEHIND)
        stop = read_header(w, around.after_position, h, &p)
        if (stop == GOES_ON and h.magic == 2 and h.base_offset == around.before + 1 and h.last_offset == around.after
                and h.last_offset >= offset and h.size <= MOST_BATCH):
            return _check_whole(w, h) if whole else GOES_ON
    w.ahead = _ahead(w, (around.after_end if around.after_end else around.after_position + span) - position
                     if around.has_after else SMALL_SPAN)
    while position <= far:
        stop = read_header(w, position, h, &p)
        if stop != GOES_ON:
            return stop
        if h.magic != 2 or h.size > MOST_BATCH:
            return BAD_ORDER
        if batches == 0 and around.has_before:
            if h.base_offset < least or h.last_offset != around.before or h.last_offset < h.base_offset:
                return BAD_ORDER
        else:
            stop = check_place(w, h, least, most)
            if stop != GOES_ON:
                return stop
            if h.last_offset >= offset:
                sole[0] = batches == 1 and around.has_after and h.position == around.after_position
                return _check_whole(w, h) if whole else GOES_ON
            stop = check_crc_at(w, h)      # a damaged header may say that its batch ends below the offset
            if stop != GOES_ON:
                return stop
        least = h.last_offset + 1
        position += h.size
        batches += 1
    return BAD_ORDER


cdef inline Stop _check_whole(Window *w, const Header *h) noexcept nogil:
    """Read the whole batch into the window, where it stays, and check its CRC."""
    if window_at(w, h.position, <Py_ssize_t> h.size) == NULL:
        return BAD_READ
    return check_crc_at(w, h)


cdef inline Py_ssize_t _ahead(const Window *w, int64_t wanted) noexcept nogil:
    return <Py_ssize_t> min(max(wanted, RECORDS_AT), w.capacity)


cdef struct Place:
    int64_t segment_base
    int64_t start                  # the log start
    int64_t end                    # of the batches in the segment's file
    int64_t most                   # all offsets of the segment are below


@cython.final
cdef class PointReads:
    """The reads at one offset of a log, with the batches that they keep. Thread-safe."""

    cdef list _kepts               # of each thread, at most `MOST_THREADS`
    cdef Py_ssize_t _turn
    cdef bint _sole                # whether the last batch was found alone between two entries of the index
    cdef bint _is_mounted
    cdef bint _is_own
    cdef bytes _root, _directory
    cdef object _named             # the path that `_name` belongs to
    cdef bytes _name

    def __init__(self, str directory not None, str root not None, bint is_own):
        self._kepts = []
        self._sole = True
        self._is_own = is_own
        self._is_mounted = mounts.is_mounted(directory)
        self._root, self._directory = os.fsencode(root), os.fsencode(directory)

    def find(self, view: View, offset: object, bint committed=False, bint waits=True) -> Any:
        """Return the record at an offset, None if no record has it, or `UNKNOWN` if the iterators must read it.

        With `committed` the answer is also `UNKNOWN` unless the record is certainly committed. Without `waits` the answer is also `UNKNOWN` if the file's bytes are not in the page cache.
        """
        cdef _Kept kept
        cdef int64_t wanted
        cdef int64_t seen = 0
        cdef int overflow = 0
        if type(offset) is not int or self._is_mounted or committed and not self._is_own:
            return UNKNOWN
        wanted = PyLong_AsLongLongAndOverflow(offset, &overflow)
        if overflow:
            return UNKNOWN
        if committed:
            seen = (<Guard?> view.guard).version
            if wanted >= view.stable_end_offset:
                return UNKNOWN
        kept = self._kept(view, wanted, waits)
        if kept is None or committed and not (kept.decided and kept.version == seen):
            return UNKNOWN
        return _answer(kept, wanted)

    def first_batch(self, view: View, int64_t offset) -> tuple[bytes, Segment, int, int, int] | None:
        """Return the batch that holds an offset, or the next one, or None if the iterators must find it.

        Returns the bytes, the segment, the position in its file, and the first and last offset.
        """
        cdef _Kept kept = None if self._is_mounted else self._kept(view, offset, True)
        cdef int64_t segment_base, position, base_offset, last
        cdef Py_ssize_t number
        cdef tuple items
        if kept is None or kept.size > MOST_PIECE:
            return None
        # Copied first: Python code, as that of `view.segments`, may let another call change the kept batch.
        segment_base, position, base_offset, last = kept.segment_base, kept.position, kept.base_offset, kept.last
        data = PyBytes_FromStringAndSize(
            <const char *> window_at(&kept.window, kept.position, <Py_ssize_t> kept.size), <Py_ssize_t> kept.size)
        segments = view.segments
        items = segments.items
        number = <Py_ssize_t> bisect_right(segments.bases, segment_base) - 1
        return (data, items[number], position, base_offset, last) if 0 <= number < len(items) else None

    def fetch(self, view: View, int64_t offset, int64_t max_bytes, bint min_one_message
              ) -> tuple[bytes, Segment, LogFile, int, int, int, int] | None:
        """Return the first `max_bytes` from the batch that holds an offset on, or None if it must be found otherwise.

        Returns the bytes, the segment, its file, the position in it, the first batch's base offset and size, and an
        offset above those of the segment. No CRC is checked. For a log that no other process changes.
        """
        cdef Guard guard = <Guard?> view.guard
        cdef int64_t seen = guard.version, n
        cdef _Kept kept = self._of_thread()
        cdef Place place
        cdef Header h
        cdef bytes data
        if self._is_mounted or not self._is_own or kept is None or view.closed:
            return None
        kept.version = -1
        kept.busy = True
        try:
            found = self._locate(view, kept, offset, False, True, &place, &h)
            if found is None:
                return None
            segment, file = found
            n = min(place.end - h.position, max(max_bytes, h.size) if min_one_message else max_bytes)
            data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> n)
            hold(&kept.window.held)
            got = read_held(&kept.window.held, kept.window.fd, <uint8_t *> PyBytes_AS_STRING(data), <size_t> n, h.position)
            take_back(&kept.window.held)
        except (KStoreError, OSError):
            return None
        finally:
            kept.count_bytes()
            kept.busy = False
        if got != n or guard.version != seen:
            return None
        return data, segment, file, h.position, h.base_offset, h.size, place.most

    def stands(self, view: View, state: DirectoryState) -> bool:
        """Return whether the directories and the last segment of another process's log are as in `state`."""
        cdef Look now
        cdef uint8_t data[64]
        cdef bytes header
        cdef int64_t position
        cdef tuple items = state.segments.items
        if self._is_mounted or not self._stands(view):
            return False
        if not items:
            return True
        segment = items[len(items) - 1]
        now = look_at(PyBytes_AS_STRING(self._path_of(segment.path)))
        device, inode = state.end_file
        if (now.changed_ns != state.end_ns or now.size != state.end_size or now.device != device or now.inode != inode):
            return False
        if state.last_batch is None:
            return True
        position, header = state.last_batch
        file = segment._file
        if file is None or len(header) > 64:
            return False
        return (read_cached(file.fd, data, <size_t> len(header), position) == len(header)
                and memcmp(data, PyBytes_AS_STRING(header), <size_t> len(header)) == 0)

    cdef _Kept _kept(self, view, int64_t offset, bint waits):
        """Return this thread's kept batch, which holds the offset or follows a gap with it, or None."""
        cdef Guard guard = <Guard?> view.guard
        cdef _Kept kept = self._of_thread()
        if kept is None or view.closed or not self._is_own and not self._stands(view):
            return None
        if (kept.version != guard.version or not kept.least <= offset <= kept.last
                or not self._is_own and not _file_stands(kept)):
            if not self._load(view, kept, guard, offset, waits):
                return None
        return kept

    cdef _Kept _of_thread(self):
        """Return this thread's kept batch, or None if it is in use."""
        cdef unsigned long thread = PyThread_get_thread_ident()
        cdef _Kept kept
        for kept in self._kepts:
            if kept.thread == thread:
                return None if kept.busy else kept
        if len(self._kepts) < MOST_THREADS:
            kept = _Kept.__new__(_Kept)
            self._kepts.append(kept)
        else:
            self._turn = (self._turn + 1) % MOST_THREADS
            kept = self._kepts[self._turn]
            if kept.busy:
                return None
            kept.version = -1
        kept.thread = thread
        return kept

    cdef bint _stands(self, view) except -1:
        """Return whether the directories are as the view has read them: the same files, and the same marks."""
        return both_stand(self._root, view._marked_ns, self._directory, view._listed_ns)

    cdef bint _load(self, view, _Kept kept, Guard guard, int64_t offset, bint waits) except -1:
        """Read the batch that holds `offset`, or the next one; return False if the iterators must read it."""
        kept.version = -1
        kept.busy = True
        try:
            return self._load_batch(view, kept, guard, offset, waits)
        except (KStoreError, OSError):         # the iterators find out whether the log has changed or is damaged
            return False
        finally:
            kept.count_bytes()
            kept.busy = False

    cdef bint _load_batch(self, view, _Kept kept, Guard guard, int64_t offset, bint waits) except -1:
        cdef int64_t seen = guard.version
        cdef Place place
        cdef Header h
        cdef Look now
        found = self._locate(view, kept, offset, True, waits, &place, &h)
        if found is None or not self._take(view, kept, &h):
            return False
        if not self._is_own:
            kept.path = self._path_of(found[0].path)
            now = look_at(PyBytes_AS_STRING(kept.path))
            if not same_file(&kept.look, &now):
                return False
        kept.position, kept.size, kept.segment_base = h.position, h.size, place.segment_base
        kept.least = min(max(place.start, h.base_offset), offset)
        kept.last = h.last_offset
        if guard.version != seen:
            return False
        kept.version = seen
        return True

    cdef tuple _locate(self, view, _Kept kept, int64_t offset, bint whole, bint waits, Place *place, Header *h):
        """Frame the batch as `_find` does, in the kept batch's window; return None if the iterators must find it.

        Returns the segment and its open file: as long as a caller holds it, the window's descriptor is valid.
        """
        cdef Py_ssize_t number = 0, count, room
        cdef Around around
        cdef Stop stop
        cdef tuple items, bases
        cdef bint sole = self._sole
        cdef OffsetEntries index
        segments = view.segments
        items, bases = segments.items, segments.bases
        count = len(items)
        if count > 1:
            number = <Py_ssize_t> bisect_right(bases, offset) - 1
        if number < 0 or count == 0:
            return None
        segment = items[number]
        file, offset_index = segment._file, segment._offset_index
        if file is None or offset_index is None:
            return None
        index = <OffsetEntries?> offset_index
        segment._used = True
        place.segment_base = bases[number]
        place.start = view.log_start_offset
        if self._is_own:
            if view.is_unsettled:
                return None
            place.end = view.appender.published_bytes(place.segment_base)
            if place.end < 0:
                place.end = segment.size_bytes
        else:
            place.end = view.readable_bytes(segment)
        if number + 1 < count:
            place.most = bases[number + 1]
        elif self._is_own:
            place.most = view.appender.next_offset
        else:
            place.most = view.log_end_offset
        if not max(place.start, place.segment_base) <= offset < place.most or index.has_unsound:
            return None
        look_around(index, offset, &around)
        if (around.has_after and around.after_position >= place.end
                or around.has_before and around.before_position >= place.end):
            return None
        room = LEAST_ROOM
        if whole and around.has_after and around.after_end > around.after_position:
            room = max(room, <Py_ssize_t> min(around.after_end - around.after_position, <int64_t> MOST_BATCH))
        if not kept.make_room(room):
            return None
        if not self._is_own:
            kept.look = look_behind(file.fd)
            kept.settled = is_settled(&kept.look)  # before the read: a later change has another time
        if not waits and not _is_cached(kept, file.fd, &around, place.end):
            return None
        window_on(&kept.window, file.fd, place.end, kept.window.data, kept.window.capacity)
        kept.window.owns = 1
        memset(h, 0, sizeof(Header))
        hold(&kept.window.held)
        stop = _find(kept, &around, place.segment_base, offset, place.most, &sole, whole, h)
        take_back(&kept.window.held)
        self._sole = sole
        return (segment, file) if stop == GOES_ON else None

    cdef bytes _path_of(self, path):
        if path != self._named:
            self._name, self._named = os.fsencode(path), path
        return self._name

    cdef bint _take(self, view, _Kept kept, const Header *h) except -1:
        """Point to the records of the framed batch, which is decompressed; return False if its header is unsound."""
        cdef const uint8_t *p = window_at(&kept.window, h.position, <Py_ssize_t> h.size)
        cdef int64_t limit = MOST_BATCH, size
        cdef int codec = h.attributes & CODEC_MASK
        cdef ks_output out
        cdef bytes section
        if p == NULL:
            return False
        kept.count = load32(p + RECORDS_COUNT_AT)
        if kept.count < 0 or load32(p + LAST_OFFSET_DELTA_AT) < 0:
            return False
        kept.base_offset = h.base_offset
        kept.last_delta = <uint32_t> load32(p + LAST_OFFSET_DELTA_AT)
        kept.append_time = h.attributes & TIMESTAMP_TYPE_BIT != 0
        kept.base_timestamp = load64(p + (MAX_TIMESTAMP_AT if kept.append_time else BASE_TIMESTAMP_AT))
        kept.decided = h.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) == 0
        if h.attributes & CONTROL_BIT:
            kept.count = 0
        kept.first, kept.end = p + RECORDS_AT, p + h.size
        if codec and kept.count:
            if view.max_decompressed_bytes is not None:
                limit = min(limit, <int64_t> view.max_decompressed_bytes)
            out = ks_output(kept.section, kept.section_room, _more_room, NULL)
            size = ks_unpack(codec, p + RECORDS_AT, <size_t> (h.size - RECORDS_AT), &out, limit)
            kept.section, kept.section_room = out.p, out.capacity
            if size < 0:
                section = record_section(p, <Py_ssize_t> h.size, limit, None, h.position)
                size = PyBytes_GET_SIZE(section)
                out.p, out.capacity = kept.section, kept.section_room
                if size > <int64_t> out.capacity and _more_room(&out, 0, <size_t> size):
                    return False
                kept.section, kept.section_room = out.p, out.capacity
                memcpy(kept.section, PyBytes_AS_STRING(section), <size_t> size)
            kept.first, kept.end = kept.section, kept.section + size
        kept.at, kept.left, kept.at_delta = kept.first, kept.count, 0
        return True


cdef bint _is_cached(_Kept kept, int fd, const Around *around, int64_t end) noexcept:
    """Return whether the bytes between two entries of the index, and those of the batch after them, are cached."""
    cdef int64_t position = around.before_position if around.has_before else 0
    cdef int64_t until = around.after_end if around.after_end else end
    cdef size_t n = <size_t> min(until - position, <int64_t> kept.window.capacity)
    return position < until and read_cached(fd, kept.window.data, n, position) >= 0


cdef bint _file_stands(_Kept kept) noexcept:
    cdef Look now = look_at(PyBytes_AS_STRING(kept.path))
    return kept.settled and same_state(&kept.look, &now)


cdef object _answer(_Kept kept, int64_t offset):
    """Walk to the record as the iterators do: up to the first that is not below `offset`."""
    cdef ks_record r
    cdef const uint8_t *p = kept.first
    cdef const uint8_t *following
    cdef int32_t left = kept.count
    cdef uint32_t delta
    cdef int64_t timestamp
    if offset < kept.base_offset:
        return None
    delta = <uint32_t> (offset - kept.base_offset)
    if kept.at_delta <= delta:
        p, left = kept.at, kept.left
    while left > 0:
        following = ks_parse_record(p, kept.end, &r)
        if following == NULL or <uint32_t> r.offset_delta > kept.last_delta or (left == 1 and following != kept.end):
            return UNKNOWN
        if <uint32_t> r.offset_delta >= delta:
            break
        p = following
        left -= 1
    if left == 0 or <uint32_t> r.offset_delta != delta:
        return None
    kept.at, kept.left, kept.at_delta = p, left, delta
    timestamp = kept.base_timestamp
    if not kept.append_time:
        timestamp = wrapping_add(timestamp, r.timestamp_delta)
    kept.busy = True                           # until the record has its headers
    try:
        return made_record(offset, timestamp, &r)
    finally:
        kept.busy = False
