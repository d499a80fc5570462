/* Several chunks of columns at once, each by one thread from its first batch to its last.

   A thread with rows of its own measures nothing, waits for no other thread, and writes into its own cache. The index
   gives positions where chunks may begin. Helpers go on reading the chunks that come next while the caller uses the one that
   it took, as long as there is a slot for it. A chunk that was read waits until its turn; it is used only if the chunk before
   it ended where it began. A batch that is not sound or not to be read as a whole ends a chunk: `ks_read` goes on from
   there and says why. Hardest rule: what a helper may still look at changes only after `ks_chunks_forget`, and no helper
   needs the GIL. */
#ifndef KSTORE_CHUNKS_H
#define KSTORE_CHUNKS_H

#include "columns/crew.h"
#include "columns/reader.h"

#define KS_MAX_CHUNKS 16
#define KS_MAX_BORDERS 64

typedef struct {
    ks_reader r; /* a copy of the caller's reader, which takes over how far this one came */
    ks_rows rows;
    int64_t to;
    enum ks_stop stop;
    int is_read;
} ks_chunk;

/* The memory into which a thread reads and decompresses, one chunk after the other. */
typedef struct {
    ks_block *window, *decompressed;
    size_t decompressed_used; /* views of earlier chunks may point at the bytes before */
    int is_used;
} ks_thread_buffers;

typedef struct {
    int64_t borders[KS_MAX_BORDERS];  /* where chunks begin, and the last one ends; they rise */
    int borders_n;
    int helps;                        /* what is below is set up */
    int count;                        /* chunks to read: the first of them begins at borders[first] */
    int first;
    ks_reader model;                  /* what the readers of chunks begin as, with */
    ks_rows like;                     /* the columns that are wanted */
    ks_job job;
    int helpers, slots;
    /* With the lock held, while helpers work: */
    pthread_mutex_t lock;
    pthread_cond_t read;              /* another chunk */
    int at_work;                      /* helpers that look for a chunk, or read one: at most `helpers` */
    int begun, next;                  /* chunks that were begun; the one that the caller takes next */
    ks_chunk chunks[KS_MAX_CHUNKS];   /* number `i` in slot i % slots */
    ks_thread_buffers buffers[KS_MAX_CHUNKS];
} ks_chunks;

/* Waits for the helpers, and drops the rows of waiting chunks. */
void ks_chunks_forget(ks_chunks *a);

/* The same, and drops all memory. */
void ks_chunks_drop(ks_chunks *a);

/* Takes the chunk that begins where `r` is, if it is one of those that are read; returns whether there was one. `r` has no
   rows. While it is not read yet, the caller reads another one, too. */
int ks_take_chunk(ks_reader *r, ks_chunks *a);

/* Begins to read the next chunks if at least two of them begin where `r` is; then takes the first, and returns whether it
   did. As many wait at once as there are threads, of compressed batches twice as many. */
int ks_read_chunks(ks_reader *r, ks_chunks *a, int threads);

/* Measures how many rows and bytes the next batch becomes, if nothing has been measured yet. Builds no rows; the
   decompressed records are kept for the next call, which reads the batch. */
void ks_sample(ks_reader *r);

/* Whether the caller should say where the chunks behind `r` begin. */
int ks_wants_borders(const ks_reader *r, const ks_chunks *a);

#endif
