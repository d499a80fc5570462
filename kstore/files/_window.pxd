# cython: language_level=3
"""`c/window.h` for Cython: reads a file through a window."""

from libc.stdint cimport int64_t, uint8_t

from kstore.disk._held cimport Held


cdef extern from "window.h" nogil:
    ctypedef struct Window "ks_window":
        int fd
        int error
        int owns
        int64_t start
        int64_t end
        Py_ssize_t size
        Py_ssize_t capacity
        Py_ssize_t ahead
        uint8_t *data
        Held held
    Py_ssize_t read_at "ks_read_at"(int fd, uint8_t *p, size_t n, int64_t position) noexcept
    void window_on "ks_window_on"(Window *w, int fd, int64_t end, uint8_t *data, Py_ssize_t capacity) noexcept
    int window_new "ks_window_new"(Window *w, int fd, int64_t end, Py_ssize_t capacity) noexcept
    void window_free "ks_window_free"(Window *w) noexcept
    const uint8_t *window_at "ks_window_at"(Window *w, int64_t position, Py_ssize_t n) noexcept
    int window_crc_holds "ks_window_crc_holds"(Window *w, int64_t position, int64_t size, int magic,
                                               Py_ssize_t piece) noexcept
