# cython: language_level=3
"""The Arrow C data and stream interfaces (arrow_c.h)."""

from libc.stdint cimport int64_t


cdef extern from "columns/arrow_c.h" nogil:
    enum:
        ARROW_FLAG_DICTIONARY_ORDERED
        ARROW_FLAG_NULLABLE
        ARROW_FLAG_MAP_KEYS_SORTED

    const char *SCHEMA_CAPSULE "KS_ARROW_SCHEMA_CAPSULE"
    const char *ARRAY_CAPSULE "KS_ARROW_ARRAY_CAPSULE"
    const char *STREAM_CAPSULE "KS_ARROW_STREAM_CAPSULE"

    struct ArrowSchema:
        const char *format
        const char *name
        const char *metadata
        int64_t flags
        int64_t n_children
        ArrowSchema **children
        ArrowSchema *dictionary
        void (*release)(ArrowSchema *) noexcept nogil
        void *private_data

    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void **buffers
        ArrowArray **children
        ArrowArray *dictionary
        void (*release)(ArrowArray *) noexcept nogil
        void *private_data

    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream *, ArrowSchema *out) noexcept nogil
        int (*get_next)(ArrowArrayStream *, ArrowArray *out) noexcept nogil
        const char *(*get_last_error)(ArrowArrayStream *) noexcept nogil
        void (*release)(ArrowArrayStream *) noexcept nogil
        void *private_data
