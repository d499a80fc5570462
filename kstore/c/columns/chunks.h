/* Several chunks of columns at once, each by one thread from its first batch to its last.

   A thread with rows of its own measures nothing, waits for no other thread, and writes into its own cache. The index
   gives positions where chunks may begin. A chunk that was read waits until its turn; it is used only if the chunk before
   it ended where it began. A batch that is not sound or not to be read as a whole ends a chunk: `ks_read` goes on from
   there and says why. */
#ifndef KSTORE_CHUNKS_H
#define KSTORE_CHUNKS_H

#include "columns/reader.h"

#define KS_MAX_CHUNKS 16
#define KS_MAX_BORDERS 64

typedef struct {
    ks_reader r; /* a copy of the caller's reader, which takes over how far this one came */
    ks_rows rows;
    int64_t from;
    enum ks_stop stop;
} ks_chunk;

/* The memory into which a thread reads and decompresses, one chunk after the other. */
typedef struct {
    ks_block *window, *decompressed;
    size_t decompressed_used; /* views of earlier chunks may point at the bytes before */
} ks_thread_buffers;

typedef struct {
    ks_chunk chunks[KS_MAX_CHUNKS];
    int n, next;                       /* chunks that have been read, and the one that comes next */
    int taken;
    ks_thread_buffers buffers[KS_MAX_CHUNKS];
    int threads_n;                    /* buffers in use */
    int64_t borders[KS_MAX_BORDERS];  /* where chunks begin, and the last one ends; they rise */
    int borders_n;
} ks_chunks;

/* Drops the rows of waiting chunks. */
void ks_chunks_forget(ks_chunks *a);

/* Drops all memory. */
void ks_chunks_drop(ks_chunks *a);

/* Takes the waiting chunk that begins where `r` is; returns whether there was one. `r` has no rows. */
int ks_take_chunk(ks_reader *r, ks_chunks *a);

/* Reads the next chunks, as many as there are threads, if at least two of them begin where `r` is; then takes the first,
   and returns whether it did. Of compressed batches twice as many: a thread that is done sooner takes another one, and the
   threads wait for each other half as often. */
int ks_read_chunks(ks_reader *r, ks_chunks *a, int threads);

/* Measures how many rows and bytes the next batch becomes, if nothing has been measured yet. Builds no rows; the
   decompressed records are kept for the next call, which reads the batch. */
void ks_sample(ks_reader *r);

/* Whether the caller should say where the chunks behind `r` begin. */
int ks_wants_borders(const ks_reader *r, const ks_chunks *a);

#endif
