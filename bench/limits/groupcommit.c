/* Threads that each append and have it on the disk before the next: one sync serves all that wait, and nothing else is
   done, neither a batch nor a checksum nor an index. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 4096, MOST_THREADS = 64 };

struct commit {
    int fd, syncs;
    long bytes, threads;
    int64_t position, written, synced, failed;
    pthread_mutex_t mutex;
    pthread_cond_t covered;
};

struct thread {
    struct commit *commit;
    long count;
};

static void *append(void *argument) {
    struct thread *thread = argument;
    struct commit *commit = thread->commit;
    char data[MOST_BYTES];
    memset(data, 'v', sizeof data);
    for (long i = 0; i < thread->count; i++) {
        pthread_mutex_lock(&commit->mutex);
        commit->failed += pwrite(commit->fd, data, commit->bytes, commit->position) != commit->bytes;
        commit->position += commit->bytes;
        int64_t mine = ++commit->written;
        while (commit->synced < mine) {
            if (!commit->syncs && commit->written - commit->synced == commit->threads) {  /* all of them wait */
                int64_t covered = commit->written;
                commit->syncs = 1;
                pthread_mutex_unlock(&commit->mutex);
                int failed = fdatasync(commit->fd) != 0;
                pthread_mutex_lock(&commit->mutex);
                commit->syncs = 0;
                commit->synced = covered;
                commit->failed += failed;
                pthread_cond_broadcast(&commit->covered);
            } else {
                pthread_cond_wait(&commit->covered, &commit->mutex);
            }
        }
        pthread_mutex_unlock(&commit->mutex);
    }
    return NULL;
}

/* Each of the threads makes `count` appends of `bytes` bytes behind `position`; how many calls failed. */
long appends(int fd, long position, long bytes, int threads, long count) {
    struct commit commit = {.fd = fd, .bytes = bytes, .threads = threads, .position = position,
                            .mutex = PTHREAD_MUTEX_INITIALIZER, .covered = PTHREAD_COND_INITIALIZER};
    struct thread thread = {&commit, count};
    pthread_t ids[MOST_THREADS];
    for (int i = 1; i < threads; i++)
        pthread_create(&ids[i], NULL, append, &thread);
    append(&thread);
    for (int i = 1; i < threads; i++)
        pthread_join(ids[i], NULL);
    return commit.failed;
}
