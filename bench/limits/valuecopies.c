/* Reads a file and copies a value out of each record, nothing else: no checksum, no field is looked at, no offset is made.
   Pieces are shared by threads; each has a buffer for its piece, and memory for the values. It uses the memory again unless
   all values are kept. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20, MOST_THREADS = 64 };

struct part {
    int fd, number, threads;
    long stride, value, copied;
    char *kept; /* memory for all values, or NULL */
};

static void *copy_values(void *argument) {
    struct part *part = argument;
    char *piece = malloc(PIECE_BYTES), *values = malloc(PIECE_BYTES);
    long at = (long)part->number * PIECE_BYTES, size;
    while ((size = pread(part->fd, piece, PIECE_BYTES, at)) > 0) {
        char *to = part->kept ? part->kept + at / PIECE_BYTES * (PIECE_BYTES / part->stride * part->value) : values;
        for (const char *from = piece; piece + size - from >= part->stride; from += part->stride) {
            memcpy(to, from + part->stride - part->value, (size_t)part->value);
            to += part->value;
            part->copied++;
        }
        at += (long)part->threads * PIECE_BYTES;
    }
    free(piece);
    free(values);
    return NULL;
}

/* How many values were copied: of `value` bytes, at the end of each `stride` bytes of a piece. `kept` is memory for all of
   them, or NULL. */
long values(int fd, long stride, long value, int threads, char *kept) {
    struct part parts[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    long copied = 0;
    for (int i = 0; i < threads; i++) {
        parts[i] = (struct part){fd, i, threads, stride, value, 0, kept};
        if (i) pthread_create(&ids[i], NULL, copy_values, &parts[i]);
    }
    copy_values(&parts[0]);
    for (int i = 0; i < threads; i++) {
        if (i) pthread_join(ids[i], NULL);
        copied += parts[i].copied;
    }
    return copied;
}
