# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The C code of columns that has state, the pool of blocks and the crew of threads: this module has the only copy.

`setup.py` compiles the files into this module only. Other modules call their functions through its pointers.
"""

from kstore.disk._mounted_read cimport mounted_read, set_mounted_read

cdef extern from "columns/blocks.h" nogil:
    ks_block *c_block_new "ks_block_new"(size_t size) noexcept
    ks_block *c_block_of "ks_block_of"(const void *data, size_t size, void (*release)(void *) noexcept nogil,
                                       void *owner) noexcept
    ks_block *c_block_hold "ks_block_hold"(ks_block *block) noexcept
    void c_block_drop "ks_block_drop"(ks_block *block) noexcept
    void c_vec_drop "ks_vec_drop"(ks_vec *v) noexcept
    void c_pool_shrink "ks_pool_shrink"(size_t limit) noexcept
    void c_pool_use "ks_pool_use"(int64_t *live, int64_t *idle_bytes) noexcept

cdef extern from "columns/arrow.h" nogil:
    int c_make_array "ks_make_array"(ArrowArray *out, int64_t length, int64_t nulls, int64_t buffers,
                                     int64_t children) noexcept
    void c_set_buffer "ks_set_buffer"(ArrowArray *array, int64_t i, const void *p, ks_block *block) noexcept
    int c_make_schema "ks_make_schema"(ArrowSchema *out, const char *format, const char *name, int64_t flags,
                                       int64_t children) noexcept

cdef extern from "columns/rows.h" nogil:
    void c_rows_like "ks_rows_like"(ks_rows *rows, const ks_rows *of, int measured) noexcept
    void c_rows_clear "ks_rows_clear"(ks_rows *rows, int keep_memory) noexcept
    void c_rows_finish "ks_rows_finish"(ks_rows *rows) noexcept
    ks_mark c_rows_mark "ks_rows_mark"(const ks_rows *rows) noexcept
    void c_rows_back "ks_rows_back"(ks_rows *rows, const ks_mark *mark) noexcept

cdef extern from "columns/decode.h" nogil:
    int c_append_header "ks_append_header"(ks_rows *out, const uint8_t *key, int32_t key_size, const uint8_t *value,
                                           int32_t value_size) noexcept
    int c_append_row "ks_append_row"(ks_rows *out, const ks_batch *b, int64_t offset, int64_t timestamp,
                                     const uint8_t *key, int32_t key_size, const uint8_t *value, int32_t value_size,
                                     ks_block *block, int64_t bytes) noexcept

cdef extern from "columns/reader.h" nogil:
    const uint8_t *c_look "ks_look"(ks_reader *r, int64_t position, size_t n) noexcept
    void c_used_up "ks_used_up"(ks_reader *r, const uint8_t *p, int64_t size) noexcept
    void c_window_close "ks_window_close"(ks_reader *r) noexcept
    void c_describe "ks_describe"(const uint8_t *p, ks_batch *b) noexcept
    int64_t c_kept_between "ks_kept_between"(ks_reader *r, int64_t base, int64_t last) noexcept
    uint8_t *c_decompressed_room "ks_decompressed_room"(ks_reader *r, size_t used, size_t size) noexcept

cdef extern from "columns/cells.h" nogil:
    ks_stop c_read_threaded "ks_read_threaded"(ks_reader *r, int threads) noexcept

cdef extern from "columns/chunks.h" nogil:
    void c_chunks_forget "ks_chunks_forget"(ks_chunks *a) noexcept
    void c_chunks_drop "ks_chunks_drop"(ks_chunks *a) noexcept
    int c_take_chunk "ks_take_chunk"(ks_reader *r, ks_chunks *a) noexcept
    int c_read_chunks "ks_read_chunks"(ks_reader *r, ks_chunks *a, int threads) noexcept
    void c_sample "ks_sample"(ks_reader *r) noexcept
    int c_wants_borders "ks_wants_borders"(const ks_reader *r, const ks_chunks *a) noexcept

cdef extern from "columns/batchtable.h" nogil:
    int c_read_header "ks_read_header"(const uint8_t *p, int64_t n, int64_t left, ks_header *h) noexcept
    ks_stop c_take_header "ks_take_header"(ks_reader *r, ks_vec *rows, int64_t *n, ks_header *h, int64_t segment,
                                       const uint8_t *p) noexcept
    ks_stop c_read_headers_threaded "ks_read_headers_threaded"(ks_reader *r, ks_headers_memory *m, ks_vec *rows,
                                                           int64_t *n, int64_t segment, const int64_t *borders,
                                                           int64_t count, int threads) noexcept
    void c_pick_field "ks_pick_field"(uint8_t *to, const ks_vec *rows, int64_t first, int64_t n, size_t at,
                                      size_t width) noexcept

set_mounted_read(mounted_read)

ks_block_new = c_block_new
ks_block_of = c_block_of
ks_block_hold = c_block_hold
ks_block_drop = c_block_drop
ks_vec_drop = c_vec_drop
ks_pool_shrink = c_pool_shrink
ks_pool_use = c_pool_use
ks_make_array = c_make_array
ks_set_buffer = c_set_buffer
ks_make_schema = c_make_schema
ks_rows_like = c_rows_like
ks_rows_clear = c_rows_clear
ks_rows_finish = c_rows_finish
ks_rows_mark = c_rows_mark
ks_rows_back = c_rows_back
ks_append_header = c_append_header
ks_append_row = c_append_row
ks_read_threaded = c_read_threaded
ks_look = c_look
ks_used_up = c_used_up
ks_window_close = c_window_close
ks_describe = c_describe
ks_kept_between = c_kept_between
ks_decompressed_room = c_decompressed_room
ks_chunks_forget = c_chunks_forget
ks_chunks_drop = c_chunks_drop
ks_take_chunk = c_take_chunk
ks_read_chunks = c_read_chunks
ks_sample = c_sample
ks_wants_borders = c_wants_borders
ks_read_header = c_read_header
ks_take_header = c_take_header
ks_read_headers_threaded = c_read_headers_threaded
ks_pick_field = c_pick_field
