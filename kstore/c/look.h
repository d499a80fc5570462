/* What tells one state of a file or directory from another: its identity, size and time of modification. */
#ifndef KSTORE_LOOK_H
#define KSTORE_LOOK_H

#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

enum { KS_UNSETTLED_NS = 50000000 }; /* as in base/times.py: a later change may leave a more recent time the same */

typedef struct {
    int64_t device, inode, size, changed_ns; /* changed_ns: -1 if the call failed */
} ks_file_state;

static inline ks_file_state ks_looked(int result, const struct stat *found) {
    if (result != 0) return (ks_file_state){-1, -1, -1, -1};
#ifdef __APPLE__
    const struct timespec *changed = &found->st_mtimespec;
#else
    const struct timespec *changed = &found->st_mtim;
#endif
    return (ks_file_state){(int64_t)found->st_dev, (int64_t)found->st_ino, (int64_t)found->st_size,
                     (int64_t)changed->tv_sec * 1000000000 + changed->tv_nsec};
}

static inline ks_file_state ks_look_at(const char *path) {
    struct stat found;
    return ks_looked(stat(path, &found), &found);
}

static inline ks_file_state ks_look_behind(int fd) {
    struct stat found;
    return ks_looked(fstat(fd, &found), &found);
}

static inline int ks_same_file(const ks_file_state *a, const ks_file_state *b) {
    return a->changed_ns >= 0 && b->changed_ns >= 0 && a->device == b->device && a->inode == b->inode;
}

/* Whether nothing has changed; a change can only go unnoticed if `before` was not settled. */
static inline int ks_same_state(const ks_file_state *before, const ks_file_state *now) {
    return ks_same_file(before, now) && before->size == now->size && before->changed_ns == now->changed_ns;
}

/* Whether no later change can have the same time of modification. */
static inline int ks_is_settled(const ks_file_state *look) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return look->changed_ns >= 0 &&
           (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - look->changed_ns > KS_UNSETTLED_NS;
}

#endif
