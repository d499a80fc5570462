# cython: language_level=3
"""`c/look.h` for Cython: compares states of files and directories."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t


cdef extern from "look.h" nogil:
    enum:
        UNSETTLED_NS "KS_UNSETTLED_NS"
    ctypedef struct Look "ks_file_state":
        int64_t device
        int64_t inode
        int64_t size
        int64_t changed_ns
    Look look_at "ks_look_at"(const char *path) noexcept
    Look look_behind "ks_look_behind"(int fd) noexcept
    bint same_file "ks_same_file"(const Look *a, const Look *b) noexcept
    bint same_state "ks_same_state"(const Look *before, const Look *now) noexcept
    bint is_settled "ks_is_settled"(const Look *look) noexcept


cdef inline bint both_stand(bytes root, int64_t root_ns, bytes directory, int64_t directory_ns) noexcept:
    """Return whether two directories have these times of modification; a negative time is not known."""
    return (root_ns >= 0 and directory_ns >= 0 and look_at(PyBytes_AS_STRING(root)).changed_ns == root_ns
            and look_at(PyBytes_AS_STRING(directory)).changed_ns == directory_ns)
