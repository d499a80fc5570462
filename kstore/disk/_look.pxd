# cython: language_level=3
"""`c/look.h` for Cython: compares states of files and directories."""

from libc.stdint cimport int64_t


cdef extern from "look.h" nogil:
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
