# cython: language_level=3, auto_pickle=False, autotestdict=False, nonecheck=True
"""The files that a segment has opened, and the search by time in them: it is so short that attributes of a class in
Python would be a third of it.
"""

from kstore.files._scan cimport look_behind


cdef class Opened:
    """The part of a `Segment` that compiled searches use. Looking up is safe from any thread."""

    cdef bint find_near(self, int64_t timestamp, int64_t start_offset, int64_t end, object max_decompressed_bytes,
                        Found *found) except? True:
        """As `Segment.find_timestamp`, where all files are open and both indexes name a batch of this time or a later one.

        False otherwise, and where anything is wrong. Raises `CorruptIndexError` and `StorageError`.
        """
        file, times, offsets = self._file, self._time_index, self._offset_index   # another thread may close them
        if file is None or times is None or offsets is None:
            return False
        self._used = True
        return look_behind(file.fd, end, timestamp, start_offset, times, offsets, max_decompressed_bytes, True, found)
