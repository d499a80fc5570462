# cython: language_level=3
"""Declarations of c/columns, and pointers to its functions, which are compiled into `_native` only."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kstore.codec._aborted cimport ks_span
from kstore.codec._compression cimport ks_output
from kstore.columns._arrowc cimport ArrowArray, ArrowSchema
from kstore.disk._held cimport Held


cdef extern from "columns/layout.h" nogil:
    enum:
        KS_SLACK
        KS_ABSENT
        KS_OFFSETS32
        KS_OFFSETS64
        KS_VIEWS
        KS_STRIDED
        KS_PADDED
        KS_POINTERS
        KS_DICTIONARY
        KS_LIST32
        KS_LIST64
        KS_TIMES

cdef extern from "columns/blocks.h" nogil:
    ctypedef struct ks_block:
        uint8_t *data
        size_t capacity
    ctypedef struct ks_vec:
        ks_block *block
        uint8_t *p
        size_t capacity

cdef extern from "columns/rows.h" nogil:
    enum:
        KS_OFFSET
        KS_SEQUENCE
        KS_FIXED_COLUMNS
    ctypedef struct ks_view:
        int32_t size
        uint8_t prefix[4]
        int32_t buffer
        int32_t offset
    ctypedef struct ks_var:
        int layout
        int64_t used
        int64_t nulls
        ks_vec places
        ks_vec data
        ks_vec valid
    ctypedef struct ks_rows:
        int64_t n
        int64_t bytes
        uint32_t wanted
        ks_vec fixed[12]
        ks_var key
        ks_var value
        int headers
        int64_t headers_n
        ks_vec header_places
        ks_var header_key
        ks_var header_value
        int measured
        ks_block **buffers
        int64_t *extents
        int buffers_n
    ctypedef struct ks_mark:
        int64_t n

cdef extern from "columns/decode.h" nogil:
    ctypedef struct ks_batch:
        int64_t base_offset
        int32_t leader_epoch
        int64_t producer_id
        int16_t producer_epoch
        int32_t base_sequence
        int8_t timestamp_type
        int8_t compression
        int8_t transactional

cdef extern from "columns/reader.h" nogil:
    enum ks_stop:
        KS_AT_END
        KS_FULL
        KS_PAST
        KS_LEFT_ALONE
        KS_PACKED
        KS_FAILED_READ
        KS_OUT_OF_MEMORY
    enum:
        KS_FIRST_LOOK
    ctypedef struct ks_reader:
        int64_t start_offset
        int64_t last_wanted
        int64_t max_rows
        int64_t max_bytes
        int check_crc
        int fd
        const uint8_t *memory
        int64_t position
        int64_t end
        int64_t pause
        int whole_batches
        int expected
        int64_t bytes_ahead
        ks_block *window
        size_t ahead
        Held held
        int error
        const ks_span *aborted
        int64_t aborted_n
        const int64_t *kept
        int64_t kept_n
        int64_t kept_at
        int64_t (*unpack)(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit) noexcept nogil
        int64_t (*unpack_slowly)(void *context, ks_reader *r, const uint8_t *p, int64_t size) noexcept nogil
        void *context
        int64_t max_decompressed
        int keeps_decompressed
        const uint8_t *decompressed
        ks_block *decompressed_block
        ks_rows staged
        int64_t staged_from
        int64_t staged_to
        int chained
        int magic
        int64_t min_base
        int64_t offset_limit
        int64_t first_base
        ks_rows *out
        int64_t seen_bytes
        int64_t seen_decompressed
        int64_t seen_rows
        ks_mark previous
        int64_t next_offset
        int64_t last_position
        int64_t last_base
        int64_t last_crc
        uint8_t last_header[21]

cdef extern from "columns/chunks.h" nogil:
    enum:
        KS_MAX_BORDERS
    ctypedef struct ks_chunks:
        int64_t borders[64]
        int borders_n

cdef extern from "columns/batchtable.h" nogil:
    ctypedef struct ks_header:
        int64_t base_offset, last_offset, position, segment_base_offset, base_timestamp, max_timestamp, producer_id
        int64_t delete_horizon_ms
        int32_t size_bytes, count, partition_leader_epoch, base_sequence
        uint32_t crc
        int16_t producer_epoch
        int8_t magic, compression, timestamp_type, is_transactional, is_control
    ctypedef struct ks_headers_memory:
        pass


# Memory.
cdef ks_block *(*ks_block_new)(size_t size) noexcept nogil
cdef ks_block *(*ks_block_of)(const void *data, size_t size, void (*release)(void *) noexcept nogil,
                              void *owner) noexcept nogil
cdef ks_block *(*ks_block_hold)(ks_block *block) noexcept nogil
cdef void (*ks_block_drop)(ks_block *block) noexcept nogil
cdef void (*ks_vec_drop)(ks_vec *v) noexcept nogil
cdef void (*ks_pool_shrink)(size_t limit) noexcept nogil
cdef void (*ks_pool_use)(int64_t *live, int64_t *idle_bytes) noexcept nogil

# Arrow arrays and schemas.
cdef int (*ks_make_array)(ArrowArray *out, int64_t length, int64_t nulls, int64_t buffers,
                          int64_t children) noexcept nogil
cdef void (*ks_set_buffer)(ArrowArray *array, int64_t i, const void *p, ks_block *block) noexcept nogil
cdef int (*ks_make_schema)(ArrowSchema *out, const char *format, const char *name, int64_t flags,
                           int64_t children) noexcept nogil

# Rows under construction.
cdef void (*ks_rows_like)(ks_rows *rows, const ks_rows *of, int measured) noexcept nogil
cdef void (*ks_rows_clear)(ks_rows *rows, int keep_memory) noexcept nogil
cdef void (*ks_rows_finish)(ks_rows *rows) noexcept nogil
cdef ks_mark (*ks_rows_mark)(const ks_rows *rows) noexcept nogil
cdef void (*ks_rows_back)(ks_rows *rows, const ks_mark *mark) noexcept nogil
cdef int (*ks_append_header)(ks_rows *out, const uint8_t *key, int32_t key_size, const uint8_t *value,
                             int32_t value_size) noexcept nogil
cdef int (*ks_append_row)(ks_rows *out, const ks_batch *b, int64_t offset, int64_t timestamp, const uint8_t *key,
                          int32_t key_size, const uint8_t *value, int32_t value_size, ks_block *block,
                          int64_t bytes) noexcept nogil

# Batches of a file as rows.
cdef ks_stop (*ks_read_threaded)(ks_reader *r, int threads) noexcept nogil
cdef const uint8_t *(*ks_look)(ks_reader *r, int64_t position, size_t n) noexcept nogil
cdef void (*ks_used_up)(ks_reader *r, const uint8_t *p, int64_t size) noexcept nogil
cdef void (*ks_window_close)(ks_reader *r) noexcept nogil
cdef void (*ks_describe)(const uint8_t *p, ks_batch *b) noexcept nogil
cdef int64_t (*ks_kept_between)(ks_reader *r, int64_t base, int64_t last) noexcept nogil
cdef uint8_t *(*ks_decompressed_room)(ks_reader *r, size_t used, size_t size) noexcept nogil
cdef void (*ks_chunks_forget)(ks_chunks *a) noexcept nogil
cdef void (*ks_chunks_drop)(ks_chunks *a) noexcept nogil
cdef int (*ks_take_chunk)(ks_reader *r, ks_chunks *a) noexcept nogil
cdef int (*ks_read_chunks)(ks_reader *r, ks_chunks *a, int threads) noexcept nogil
cdef void (*ks_sample)(ks_reader *r) noexcept nogil
cdef int (*ks_wants_borders)(const ks_reader *r, const ks_chunks *a) noexcept nogil

# Headers of batches as rows.
cdef int (*ks_read_header)(const uint8_t *p, int64_t n, int64_t left, ks_header *h) noexcept nogil
cdef ks_stop (*ks_take_header)(ks_reader *r, ks_vec *rows, int64_t *n, ks_header *h, int64_t segment,
                           const uint8_t *p) noexcept nogil
cdef ks_stop (*ks_read_headers_threaded)(ks_reader *r, ks_headers_memory *m, ks_vec *rows, int64_t *n, int64_t segment,
                                     const int64_t *borders, int64_t count, int threads) noexcept nogil
cdef void (*ks_pick_field)(uint8_t *to, const ks_vec *rows, int64_t first, int64_t n, size_t at,
                           size_t width) noexcept nogil
