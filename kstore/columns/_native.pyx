# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The one copy of the C of columns that has state: the pool of blocks, the crew of threads.

`setup.py` compiles these files of c/columns into this module alone. Other modules call the functions below, each of
which passes its arguments on.
"""

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
    int c_read_threaded "ks_read_threaded"(ks_reader *r, int threads) noexcept

cdef extern from "columns/chunks.h" nogil:
    void c_chunks_forget "ks_chunks_forget"(ks_chunks *a) noexcept
    void c_chunks_drop "ks_chunks_drop"(ks_chunks *a) noexcept
    int c_take_chunk "ks_take_chunk"(ks_reader *r, ks_chunks *a) noexcept
    int c_read_chunks "ks_read_chunks"(ks_reader *r, ks_chunks *a, int threads) noexcept
    void c_sample "ks_sample"(ks_reader *r) noexcept
    int c_wants_borders "ks_wants_borders"(const ks_reader *r, const ks_chunks *a) noexcept

cdef extern from "columns/batchtable.h" nogil:
    int c_read_header "ks_read_header"(const uint8_t *p, int64_t n, int64_t left, ks_header *h) noexcept
    int c_take_header "ks_take_header"(ks_reader *r, ks_vec *rows, int64_t *n, ks_header *h, int64_t segment,
                                       const uint8_t *p) noexcept
    int c_read_headers_threaded "ks_read_headers_threaded"(ks_reader *r, ks_headers_memory *m, ks_vec *rows,
                                                           int64_t *n, int64_t segment, const int64_t *borders,
                                                           int64_t count, int threads) noexcept
    void c_pick_field "ks_pick_field"(uint8_t *to, const ks_vec *rows, int64_t first, int64_t n, size_t at,
                                      size_t width) noexcept


cdef ks_block *ks_block_new(size_t size) noexcept nogil:
    return c_block_new(size)


cdef ks_block *ks_block_of(const void *data, size_t size, void (*release)(void *) noexcept nogil,
                           void *owner) noexcept nogil:
    return c_block_of(data, size, release, owner)


cdef ks_block *ks_block_hold(ks_block *block) noexcept nogil:
    return c_block_hold(block)


cdef void ks_block_drop(ks_block *block) noexcept nogil:
    c_block_drop(block)


cdef void ks_vec_drop(ks_vec *v) noexcept nogil:
    c_vec_drop(v)


cdef void ks_pool_shrink(size_t limit) noexcept nogil:
    c_pool_shrink(limit)


cdef void ks_pool_use(int64_t *live, int64_t *idle_bytes) noexcept nogil:
    c_pool_use(live, idle_bytes)


cdef int ks_make_array(ArrowArray *out, int64_t length, int64_t nulls, int64_t buffers,
                       int64_t children) noexcept nogil:
    return c_make_array(out, length, nulls, buffers, children)


cdef void ks_set_buffer(ArrowArray *array, int64_t i, const void *p, ks_block *block) noexcept nogil:
    c_set_buffer(array, i, p, block)


cdef int ks_make_schema(ArrowSchema *out, const char *format, const char *name, int64_t flags,
                        int64_t children) noexcept nogil:
    return c_make_schema(out, format, name, flags, children)


cdef void ks_rows_like(ks_rows *rows, const ks_rows *of, int measured) noexcept nogil:
    c_rows_like(rows, of, measured)


cdef void ks_rows_clear(ks_rows *rows, int keep_memory) noexcept nogil:
    c_rows_clear(rows, keep_memory)


cdef void ks_rows_finish(ks_rows *rows) noexcept nogil:
    c_rows_finish(rows)


cdef ks_mark ks_rows_mark(const ks_rows *rows) noexcept nogil:
    return c_rows_mark(rows)


cdef void ks_rows_back(ks_rows *rows, const ks_mark *mark) noexcept nogil:
    c_rows_back(rows, mark)


cdef int ks_append_header(ks_rows *out, const uint8_t *key, int32_t key_size, const uint8_t *value,
                          int32_t value_size) noexcept nogil:
    return c_append_header(out, key, key_size, value, value_size)


cdef int ks_append_row(ks_rows *out, const ks_batch *b, int64_t offset, int64_t timestamp, const uint8_t *key,
                       int32_t key_size, const uint8_t *value, int32_t value_size, ks_block *block,
                       int64_t bytes) noexcept nogil:
    return c_append_row(out, b, offset, timestamp, key, key_size, value, value_size, block, bytes)


cdef int ks_read_threaded(ks_reader *r, int threads) noexcept nogil:
    return c_read_threaded(r, threads)


cdef const uint8_t *ks_look(ks_reader *r, int64_t position, size_t n) noexcept nogil:
    return c_look(r, position, n)


cdef void ks_used_up(ks_reader *r, const uint8_t *p, int64_t size) noexcept nogil:
    c_used_up(r, p, size)


cdef void ks_window_close(ks_reader *r) noexcept nogil:
    c_window_close(r)


cdef void ks_describe(const uint8_t *p, ks_batch *b) noexcept nogil:
    c_describe(p, b)


cdef int64_t ks_kept_between(ks_reader *r, int64_t base, int64_t last) noexcept nogil:
    return c_kept_between(r, base, last)


cdef uint8_t *ks_decompressed_room(ks_reader *r, size_t used, size_t size) noexcept nogil:
    return c_decompressed_room(r, used, size)


cdef void ks_chunks_forget(ks_chunks *a) noexcept nogil:
    c_chunks_forget(a)


cdef void ks_chunks_drop(ks_chunks *a) noexcept nogil:
    c_chunks_drop(a)


cdef int ks_take_chunk(ks_reader *r, ks_chunks *a) noexcept nogil:
    return c_take_chunk(r, a)


cdef int ks_read_chunks(ks_reader *r, ks_chunks *a, int threads) noexcept nogil:
    return c_read_chunks(r, a, threads)


cdef void ks_sample(ks_reader *r) noexcept nogil:
    c_sample(r)


cdef int ks_wants_borders(const ks_reader *r, const ks_chunks *a) noexcept nogil:
    return c_wants_borders(r, a)


cdef int ks_read_header(const uint8_t *p, int64_t n, int64_t left, ks_header *h) noexcept nogil:
    return c_read_header(p, n, left, h)


cdef int ks_take_header(ks_reader *r, ks_vec *rows, int64_t *n, ks_header *h, int64_t segment,
                        const uint8_t *p) noexcept nogil:
    return c_take_header(r, rows, n, h, segment, p)


cdef int ks_read_headers_threaded(ks_reader *r, ks_headers_memory *m, ks_vec *rows, int64_t *n, int64_t segment,
                                  const int64_t *borders, int64_t count, int threads) noexcept nogil:
    return c_read_headers_threaded(r, m, rows, n, segment, borders, count, threads)


cdef void ks_pick_field(uint8_t *to, const ks_vec *rows, int64_t first, int64_t n, size_t at,
                        size_t width) noexcept nogil:
    c_pick_field(to, rows, first, n, at, width)
