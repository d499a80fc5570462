/* Several chunks of columns read in parallel, each by one thread from its first batch to its last.

   A thread with its own rows needs no estimates, waits for no other thread, and writes into its own cache. The index
   supplies the positions where chunks start. While the caller uses a chunk, helpers read the next chunks into free
   slots. A chunk is used only if the chunk before it ended where this chunk starts. A batch that is not sound, or of
   which only a part is wanted, ends a chunk: `ks_read` continues at this batch and returns the reason.

   Invariant: data that helpers may use changes only after `ks_chunks_forget`, and no helper needs the GIL. */
#ifndef KSTORE_CHUNKS_H
#define KSTORE_CHUNKS_H

#include "columns/crew.h"
#include "columns/reader.h"

#define KS_MAX_CHUNKS 16
#define KS_MAX_BORDERS 64

typedef struct {
    ks_reader r; /* a copy of the caller's reader, which later moves to the position of this copy */
    ks_rows rows;
    int64_t to;
    enum ks_stop stop;
    int is_read;
} ks_chunk;

/* The memory into which a thread reads and decompresses its chunks. */
typedef struct {
    ks_block *window, *decompressed;
    size_t decompressed_used; /* views of earlier chunks may point into the bytes before this */
    int is_used;
} ks_thread_buffers;

typedef struct {
    int64_t borders[KS_MAX_BORDERS];  /* the starts of chunks, and the end of the last one, rising */
    int borders_n;
    int helps;                        /* the fields below are set up */
    int count;                        /* chunks to read; the first one starts at borders[first] */
    int first;
    ks_reader model;                  /* the initial state of a chunk's reader */
    ks_rows like;                     /* the wanted columns */
    ks_job job;
    int helpers, slots;
    /* While helpers work, used only with the lock held: */
    pthread_mutex_t lock;
    pthread_cond_t read;              /* another chunk has been read */
    int at_work;                      /* helpers that search for a chunk, or read one: at most `helpers` */
    int begun, next;                  /* how many chunks were started; the number of the chunk to take next */
    ks_chunk chunks[KS_MAX_CHUNKS];   /* chunk number `i` is in slot i % slots */
    ks_thread_buffers buffers[KS_MAX_CHUNKS];
} ks_chunks;

/* Waits for the helpers, and drops the waiting chunks. */
void ks_chunks_forget(ks_chunks *a);

/* Does the same as ks_chunks_forget, and releases all memory. */
void ks_chunks_drop(ks_chunks *a);

/* Takes the chunk that starts at the position of `r`, if there is one; returns whether it did. `r` must have no rows.
   If the chunk is still being read, the caller reads others while it waits. */
int ks_take_chunk(ks_reader *r, ks_chunks *a);

/* Starts reading the next chunks if there are at least two from the position of `r` on; then takes the first, and
   returns whether it did. Up to `threads` chunks are read ahead, or twice as many if batches are compressed. */
int ks_read_chunks(ks_reader *r, ks_chunks *a, int threads);

/* Measures the rows and bytes of the next batch. Builds no rows; the next `ks_read` reuses the decompressed records. */
void ks_sample(ks_reader *r);

/* Whether the caller should provide the borders of the chunks after `r`. */
int ks_wants_borders(const ks_reader *r, const ks_chunks *a);

#endif
