/* Reads the header of each batch and nothing else: one pread a header, shared by threads; no field is looked at. */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

enum { HEADER_BYTES = 61, MOST_THREADS = 64 };

struct part {
    int fd;
    const int64_t *positions;
    long count, failed;
};

static void *read_headers(void *argument) {
    struct part *part = argument;
    char header[HEADER_BYTES];
    for (long i = 0; i < part->count; i++)
        part->failed += pread(part->fd, header, sizeof header, part->positions[i]) != sizeof header;
    return NULL;
}

/* How many headers could not be read. */
long headers(int fd, const int64_t *positions, long count, int threads) {
    struct part parts[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    long failed = 0, each = count / threads;
    for (int i = 0; i < threads; i++) {
        parts[i] = (struct part){fd, positions + i * each, i + 1 < threads ? each : count - i * each, 0};
        if (i) pthread_create(&ids[i], NULL, read_headers, &parts[i]);
    }
    read_headers(&parts[0]);
    for (int i = 0; i < threads; i++) {
        if (i) pthread_join(ids[i], NULL);
        failed += parts[i].failed;
    }
    return failed;
}
