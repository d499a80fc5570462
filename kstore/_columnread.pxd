# cython: language_level=3
"""The C half of `_columnread`: rows under construction, the walk over batches."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kstore._columns cimport ks_block
from kstore._producers cimport ks_span


cdef extern from "blocks.h" nogil:
    ctypedef struct ks_vec:
        ks_block *block
        uint8_t *p
        size_t capacity

cdef extern from "columns.h" nogil:
    enum:
        KS_OFFSET
        KS_SEQUENCE
        KS_FIXED
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
        ks_vec fixed[11]
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
    ctypedef struct ks_batch:
        int64_t base_offset
        int32_t leader_epoch
        int64_t producer_id
        int16_t producer_epoch
        int32_t base_sequence
        int8_t timestamp_type
        int8_t compression
        int8_t transactional
    void ks_rows_clear(ks_rows *rows, int keep_memory) noexcept
    void ks_rows_finish(ks_rows *rows) noexcept
    ks_mark ks_rows_mark(const ks_rows *rows) noexcept
    void ks_rows_back(ks_rows *rows, const ks_mark *mark) noexcept
    int ks_append_header(ks_rows *out, const uint8_t *key, int32_t key_size, const uint8_t *value,
                         int32_t value_size) noexcept
    int ks_append_row(ks_rows *out, const ks_batch *b, int64_t offset, int64_t timestamp, const uint8_t *key,
                      int32_t key_size, const uint8_t *value, int32_t value_size, ks_block *block,
                      int64_t bytes) noexcept

cdef extern from "unpack.h" nogil:
    ctypedef struct ks_output:
        uint8_t *p
        size_t capacity
        int (*room)(ks_output *out, size_t used, size_t capacity) noexcept nogil
        void *context
    int ks_zstd_setup(void *new_context, void *free_context, void *decompress, void *is_error) noexcept
    int64_t ks_unpack_natively(int codec, const uint8_t *p, size_t n, ks_output *out, int64_t limit) noexcept

cdef extern from "chunks.h" nogil:
    enum:
        KS_AT_END
        KS_FULL
        KS_PAST
        KS_LEFT_ALONE
        KS_PACKED
        KS_FAILED_READ
        KS_OUT_OF_MEMORY
    enum:
        KS_AT_MAGIC
        KS_AT_RECORDS
        KS_FIRST_LOOK
    ctypedef struct ks_reader:
        int64_t start_offset
        int64_t last_wanted
        int64_t most_rows
        int64_t most_bytes
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
        int error
        const ks_span *aborted
        int64_t aborted_n
        int64_t (*unpack)(void *context, ks_reader *r, const uint8_t *p, int64_t size) noexcept nogil
        void *unpack_context
        int64_t most_plain
        int keeps_plain
        const uint8_t *plain
        ks_block *plain_block
        ks_rows staged
        int64_t staged_from
        int64_t staged_to
        ks_rows *out
        int64_t seen_bytes
        int64_t seen_plain
        int64_t seen_rows
        ks_mark given
        int64_t next_offset
        int64_t last_position
        int64_t last_base
        int64_t last_crc
        uint8_t last_header[21]
    int ks_read_together(ks_reader *r, int hands) noexcept
    enum:
        KS_MOST_BORDERS
    ctypedef struct ks_ahead:
        int64_t borders[64]
        int borders_n
    void ks_ahead_forget(ks_ahead *a) noexcept
    void ks_ahead_drop(ks_ahead *a) noexcept
    int ks_take_chunk(ks_reader *r, ks_ahead *a) noexcept
    int ks_read_chunks(ks_reader *r, ks_ahead *a, int hands) noexcept
    void ks_sample(ks_reader *r) noexcept
    int ks_wants_borders(const ks_reader *r, const ks_ahead *a) noexcept
    void ks_crew_setup() noexcept
    uint8_t *ks_plain_room(ks_reader *r, size_t used, size_t size) noexcept
    void ks_choose_decoders(int wide) noexcept
    void ks_rows_like(ks_rows *rows, const ks_rows *of, int measured) noexcept
    const uint8_t *ks_look(ks_reader *r, int64_t position, size_t n) noexcept
    void ks_used_up(ks_reader *r, const uint8_t *p, int64_t size) noexcept
    void ks_window_close(ks_reader *r) noexcept
    int32_t ks_size(const uint8_t *p) noexcept
    void ks_describe(const uint8_t *p, ks_batch *b) noexcept
