/* What the questions of bench/ about batches cannot leave out: bytes are read or written, summed up and copied, and
   nothing else is done. No record is parsed and no varint is made: records are as long as they are on average, and a
   value is at the end of its record. The memory of a thread is the caller's, and is used again. */
#define _GNU_SOURCE
#ifdef __AVX2__
#include <immintrin.h>
#endif
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "crc32c.h"
#include "murmur2.h"

enum { NEAR_BYTES = 16 << 10, MOST_THREADS = 64, CHECKED_FROM = 21, HEADER_BYTES = 61, MORE = 32, LINE_BYTES = 64,
       ROOM_BYTES = 128 << 10, AT_ONCE = 16 };

static const int64_t START_MS = 1700000000000;
static volatile uint32_t sink; /* so that no checksum is left out */

/* ---- threads ---- */

typedef int64_t step(const void *job, int64_t number, uint8_t *room);

struct crew {
    step *each;
    const void *job;
    int64_t count, next, failed;
};

struct hand {
    struct crew *crew;
    uint8_t *room;
};

static void *work(void *argument) {
    struct hand *hand = argument;
    struct crew *crew = hand->crew;
    int64_t number;
    while ((number = __atomic_fetch_add(&crew->next, 1, __ATOMIC_RELAXED)) < crew->count)
        if (crew->each(crew->job, number, hand->room) < 0) crew->failed = 1;
    return NULL;
}

/* Does `count` steps on so many threads, each with a room of `room_bytes`; 0, or -1. */
static int64_t shared(step *each, const void *job, int64_t count, uint8_t *rooms, int64_t room_bytes, int threads) {
    struct crew crew = {each, job, count, 0, 0};
    struct hand hands[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    for (int i = 0; i < threads; i++) {
        hands[i] = (struct hand){&crew, rooms + i * room_bytes};
        if (i && pthread_create(&ids[i], NULL, work, &hands[i])) return -1;
    }
    work(&hands[0]);
    for (int i = 1; i < threads; i++) pthread_join(ids[i], NULL);
    return -crew.failed;
}

/* ---- copies ---- */

/* Where n is not known to the compiler, up to MORE - 1 bytes behind are copied, too: the next copy is over them. */
static inline __attribute__((always_inline)) void copy(uint8_t *to, const uint8_t *from, int64_t n) {
    if (__builtin_constant_p(n))
        memcpy(to, from, (size_t)n);
    else
        for (int64_t i = 0; i < n; i += MORE) memcpy(to + i, from + i, MORE);
}

static inline __attribute__((always_inline)) void copy_all(uint8_t *to, int64_t to_stride, const uint8_t *from,
                                                           int64_t from_stride, int64_t n, int64_t rows) {
    for (; rows > 0; rows--, to += to_stride, from += from_stride) {
        copy(to, from, n);
        __asm__ volatile("" : : "r"(to) : "memory"); /* the copy is made, although the next may be over it */
    }
}

/* A field of each row, where MORE bytes behind the last may be touched. */
static void fields(uint8_t *to, int64_t to_stride, const uint8_t *from, int64_t from_stride, int64_t n, int64_t rows) {
    switch (n) {
    case 10: copy_all(to, to_stride, from, from_stride, 10, rows); return;
    case 16: copy_all(to, to_stride, from, from_stride, 16, rows); return;
    case 100: copy_all(to, to_stride, from, from_stride, 100, rows); return;
    case 1024: copy_all(to, to_stride, from, from_stride, 1024, rows); return;
    default: copy_all(to, to_stride, from, from_stride, n, rows);
    }
}

/* ---- reading ---- */

/* Reads and sums up a piece of a file; its bytes. */
static int64_t checked_piece(int fd, int64_t at, uint8_t *piece, int64_t piece_bytes) {
    const int64_t got = pread(fd, piece, (size_t)piece_bytes, at);
    if (got > 0) sink = ks_crc32c(0, piece, (size_t)got);
    return got;
}

/* Reads and sums up a whole file in such pieces; its bytes. */
int64_t checked(int fd, uint8_t *piece, int64_t piece_bytes) {
    int64_t at = 0, got;
    while ((got = checked_piece(fd, at, piece, piece_bytes)) > 0) at += got;
    return at;
}

/* Reads and sums up the piece at each of the positions; the bytes read. */
int64_t points(int fd, const int64_t *positions, int64_t n, uint8_t *piece, int64_t piece_bytes) {
    int64_t read = 0;
    for (int64_t i = 0; i < n; i++) read += checked_piece(fd, positions[i], piece, piece_bytes);
    return read;
}

/* As `checked_piece`, and copies the value at the end of each record to one place; the bytes read. */
int64_t values_of_piece(int fd, int64_t at, uint8_t *piece, int64_t piece_bytes, int64_t stride, int64_t n,
                        uint8_t *to) {
    const int64_t got = checked_piece(fd, at, piece, piece_bytes);
    if (got > 0) fields(to, 0, piece + stride - n, stride, n, got / stride);
    return got;
}

/* ---- batches in memory to columns ---- */

/* Moves n bytes, and what is left of 32, around the caches to memory that nothing reads soon; `to` begins a line. */
static void move(void *to, const void *from, int64_t n) {
#ifdef __AVX2__
    const __m256i *words = from;
    for (int64_t i = 0; i * 32 < n; i++) _mm256_stream_si256((__m256i *)to + i, _mm256_loadu_si256(words + i));
#else
    memcpy(to, from, (size_t)n);
#endif
}

struct columns {
    const uint8_t *data;
    int64_t rows, stride, value, near;
    uint8_t *values;
    int64_t *offsets, *timestamps;
};

static int64_t columns_near(const void *job, int64_t number, uint8_t *room) {
    const struct columns *c = job;
    const int64_t first = number * c->near, left = c->rows - first, rows = left < c->near ? left : c->near;
    const uint8_t *from = c->data + first * c->stride;
    int64_t numbers[NEAR_BYTES / 8];
    sink = ks_crc32c(0, from, (size_t)(rows * c->stride));
    fields(room, c->value, from + c->stride - c->value, c->stride, c->value, rows);
    move(c->values + first * c->value, room, rows * c->value);
    for (int64_t i = 0; i < rows; i++) numbers[i] = first + i;
    move(c->offsets + first, numbers, rows * 8);
    for (int64_t i = 0; i < rows; i++) numbers[i] = START_MS;
    move(c->timestamps + first, numbers, rows * 8);
    return 0;
}

/* Sums up batches, copies each value, of at most a KiB, to a column and stores two numbers for each record; 0, or -1.
   The columns begin with a line of the caches and have another one behind. */
int64_t columns(const uint8_t *data, int64_t rows, int64_t stride, int64_t value, uint8_t *values, int64_t *offsets,
                int64_t *timestamps, uint8_t *rooms, int threads) {
    const int64_t near = (NEAR_BYTES / stride + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; /* each begins with a line */
    const struct columns c = {data, rows, stride, value, near, values, offsets, timestamps};
    return shared(columns_near, &c, (rows + near - 1) / near, rooms, ROOM_BYTES, threads);
}

/* ---- columns to a file ---- */

/* Copies each value, and each key before it, to its place in a piece, sums up what it has made and writes the piece. */
int64_t columns_in(int fd, const uint8_t *values, int64_t value_bytes, const uint8_t *keys, int64_t key_bytes,
                   int64_t rows, int64_t stride, uint8_t *piece, int64_t piece_bytes) {
    const int64_t rows_near = NEAR_BYTES / stride;
    int64_t filled = 0, at = 0;
    for (int64_t first = 0; first < rows;) {
        const int64_t some = rows - first < rows_near ? rows - first : rows_near;
        uint8_t *to = piece + filled;
        uint8_t *value = to + stride - value_bytes, *key = value - key_bytes;
        if (key_bytes) fields(key, stride, keys + first * key_bytes, key_bytes, key_bytes, some);
        fields(value, stride, values + first * value_bytes, value_bytes, value_bytes, some);
        sink = ks_crc32c(0, to, (size_t)(some * stride));
        filled += some * stride;
        first += some;
        if (filled + NEAR_BYTES > piece_bytes || first == rows) {
            if (pwrite(fd, piece, (size_t)filled, at) != filled) return -1;
            at += filled;
            filled = 0;
        }
    }
    return at;
}

/* The same for a topic of several partitions, each with a piece and a file: a record goes where its key is hashed to, or
   without keys to one partition until its piece is full. 0, or -1. */
int64_t spread_in(const int *fds, int32_t partitions, const uint8_t *value, int64_t value_bytes, const uint8_t *keys,
                  int64_t key_bytes, int64_t rows, int64_t stride, uint8_t *pieces, int64_t piece_bytes, int64_t *filled,
                  int64_t *ends) {
    const uint64_t inverse = ks_inverse(partitions);
    const int64_t most = piece_bytes / stride * stride;
    int32_t places[AT_ONCE] = {0}, sticky = 0;
    for (int64_t first = 0; first < rows; first += AT_ONCE) {
        const int64_t some = rows - first < AT_ONCE ? rows - first : AT_ONCE;
        for (int64_t i = 0; i < some && key_bytes; i++)
            places[i] = ks_partition_by(keys + (first + i) * key_bytes, (size_t)key_bytes, partitions, inverse);
        for (int64_t i = 0; i < some; i++) {
            const int32_t to = key_bytes ? places[i] : sticky;
            uint8_t *piece = pieces + to * piece_bytes, *at = piece + filled[to] + stride - value_bytes;
            memcpy(at - key_bytes, keys + (first + i) * key_bytes, (size_t)key_bytes);
            memcpy(at, value, (size_t)value_bytes);
            filled[to] += stride;
            if (filled[to] < most) continue;
            sink = ks_crc32c(0, piece, (size_t)most);
            if (pwrite(fds[to], piece, (size_t)most, ends[to]) != most) return -1;
            ends[to] += most;
            filled[to] = 0;
            sticky = (sticky + 1) % partitions;
        }
    }
    for (int32_t to = 0; to < partitions; to++) {
        uint8_t *piece = pieces + to * piece_bytes;
        sink = ks_crc32c(0, piece, (size_t)filled[to]);
        if (pwrite(fds[to], piece, (size_t)filled[to], ends[to]) != filled[to]) return -1;
    }
    return 0;
}

/* ---- codecs ---- */

typedef int lz4_unpack(const char *from, char *to, int n, int room);
typedef size_t lz4_pack(void *to, size_t room, const void *from, size_t n, const void *preferences);
typedef size_t zstd_code(void *context, void *to, size_t room, const void *from, size_t n); /* both directions */

/* Batches, and pieces of several. `file` and `data` have the positions in the file and in the plain records, one more
   than there are batches; `pieces` has the first batch of each piece, one more than the `count` of pieces. */
struct batches {
    const int64_t *pieces, *file, *data;
    int64_t count;
    int64_t stride, value; /* bytes of a record and of its value */
    uint8_t *rooms;
    int64_t room_bytes; /* of a thread */
    void *lz4, *zstd;   /* one of the two functions */
    const void *preferences;
    void *const *contexts; /* of zstd, of each thread */
};

struct coding {
    const struct batches *batches;
    int fd;
    const uint8_t *data;
    int64_t *end; /* of the file that is written */
};

/* One of zstd's two functions, with the context of the thread whose room that is. */
static int64_t by_zstd(const struct batches *b, const uint8_t *room, uint8_t *to, int64_t left, const uint8_t *from,
                       int64_t n) {
    void *context = b->contexts[(room - b->rooms) / b->room_bytes];
    return (int64_t)((zstd_code *)b->zstd)(context, to, (size_t)left, from, (size_t)n);
}

static int64_t by_lz4(const struct batches *b, const uint8_t *from, int64_t n, uint8_t *to, int64_t left) {
    return (int64_t)((lz4_pack *)b->lz4)(to, (size_t)left, from, (size_t)n, b->preferences);
}

/* The blocks of an lz4 frame whose header has 7 bytes; how many bytes they made, or -1. */
static int64_t unpack_lz4(lz4_unpack *unpack, const uint8_t *p, int64_t n, uint8_t *to, int64_t room) {
    const uint8_t *end = p + n;
    int64_t made = 0;
    uint32_t size;
    for (p += 7; end - p >= 4; p += size) {
        memcpy(&size, p, 4);
        p += 4;
        const int stored = size >> 31;
        size &= INT32_MAX;
        const int got = stored ? (int)size : unpack((const char *)p, (char *)to + made, (int)size, (int)(room - made));
        if (!size) break;
        if (got < 0) return -1;
        if (stored) memcpy(to + made, p, size);
        made += got;
    }
    return made;
}

/* A room holds a piece of the file, a batch of it unpacked, and its values. */
static int64_t unpack_piece(const void *job, int64_t number, uint8_t *room) {
    const struct coding *c = job;
    const struct batches *b = c->batches;
    const int64_t first = b->pieces[number], last = b->pieces[number + 1], third = b->room_bytes / 3;
    const int64_t size = b->file[last] - b->file[first];
    uint8_t *plain = room + third, *values = plain + third;
    if (pread(c->fd, room, (size_t)size, b->file[first]) != size) return -1;
    for (int64_t i = first; i < last; i++) {
        const uint8_t *batch = room + b->file[i] - b->file[first], *from = batch + HEADER_BYTES;
        const int64_t n = b->file[i + 1] - b->file[i] - HEADER_BYTES, bytes = b->data[i + 1] - b->data[i];
        sink = ks_crc32c(0, batch + CHECKED_FROM, (size_t)(n + HEADER_BYTES - CHECKED_FROM));
        const int64_t made = b->lz4 ? unpack_lz4((lz4_unpack *)b->lz4, from, n, plain, third)
                                    : by_zstd(b, room, plain, third, from, n);
        if (made != bytes) return -1;
        fields(values, b->value, plain, b->stride, b->value, bytes / b->stride);
    }
    return 0;
}

/* Reads batches, sums them up, unpacks each with the library and copies its values; 0, or -1. */
int64_t unpacked(const struct batches *b, int fd, int threads) {
    const struct coding c = {b, fd, NULL, NULL};
    return shared(unpack_piece, &c, b->count, b->rooms, b->room_bytes, threads);
}

/* A room holds the records of a batch, and a piece of batches as the library packs them. */
static int64_t pack_piece(const void *job, int64_t number, uint8_t *room) {
    const struct coding *c = job;
    const struct batches *b = c->batches;
    const int64_t half = b->room_bytes / 2;
    int64_t filled = 0;
    for (int64_t i = b->pieces[number]; i < b->pieces[number + 1]; i++) {
        const int64_t bytes = b->data[i + 1] - b->data[i];
        uint8_t *to = room + half + filled + HEADER_BYTES;
        const int64_t left = half - filled - HEADER_BYTES;
        fields(room, b->stride, c->data + b->data[i], b->stride, b->stride, (bytes + b->stride - 1) / b->stride);
        const int64_t made = b->lz4 ? by_lz4(b, room, bytes, to, left) : by_zstd(b, room, to, left, room, bytes);
        if (made <= 0 || made > left) return -1;
        sink = ks_crc32c(0, to - HEADER_BYTES + CHECKED_FROM, (size_t)(made + HEADER_BYTES - CHECKED_FROM));
        filled += made + HEADER_BYTES;
    }
    const int64_t at = __atomic_fetch_add(c->end, filled, __ATOMIC_RELAXED);
    return pwrite(c->fd, room + half, (size_t)filled, at) == filled ? 0 : -1;
}

/* Copies the records of each batch, has the library pack them, sums up what it made and writes that; the bytes. */
int64_t packed(const struct batches *b, int fd, const uint8_t *data, int threads) {
    int64_t end = 0;
    const struct coding c = {b, fd, data, &end};
    return shared(pack_piece, &c, b->count, b->rooms, b->room_bytes, threads) ? -1 : end;
}

/* ---- appends ---- */

/* Sums up a batch, gives it its offset and writes it, `count` times to one file; 0, or -1. */
int64_t ready_batches(int fd, uint8_t *batch, int64_t size, int64_t records, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const uint64_t offset = __builtin_bswap64((uint64_t)(i * records));
        sink = ks_crc32c(0, batch + CHECKED_FROM, (size_t)(size - CHECKED_FROM));
        memcpy(batch, &offset, sizeof offset);
        if (pwrite(fd, batch, (size_t)size, i * size) != size) return -1;
    }
    return 0;
}

/* Writes `count` times all of these sizes, each to the end of its file, which is `ends` before; 0, or -1. */
int64_t writes(const int *fds, const int64_t *sizes, int64_t *ends, const int *files, int64_t n, const uint8_t *data,
               int64_t count) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < n; j++) {
            if (pwrite(fds[files[j]], data, (size_t)sizes[j], ends[files[j]]) != sizes[j]) return -1;
            ends[files[j]] += sizes[j];
        }
    return 0;
}
