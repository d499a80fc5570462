/* Two processes and a file: one writes 100 bytes at a rate and wakes the other, which tells when it was woken. The ways:
   an inotify watch that ends with its first event, a futex in shared memory that the writer wakes, a permanent inotify
   watch. Returns the writer's mean time of a write and its wake-up; `lags` gets the time of each. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ONE_SHOT, FUTEX, PERMANENT, NOBODY };

struct shared {
    volatile double written_at;
    volatile int written, waits, woken;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + t.tv_nsec * 1e-9;
}

static void follow(const char *directory, struct shared *shared, int way, int count, double *lags) {
    int fd = inotify_init1(IN_NONBLOCK), seen = 0;
    char events[4096];
    if (way == PERMANENT) inotify_add_watch(fd, directory, IN_MODIFY);
    while (seen < count) {
        int before = shared->woken;
        if (way == ONE_SHOT) inotify_add_watch(fd, directory, IN_MODIFY | IN_ONESHOT);
        shared->waits = 1;
        if (shared->written == seen) {
            struct pollfd polled = {fd, POLLIN, 0};
            if (way == FUTEX) syscall(SYS_futex, &shared->woken, FUTEX_WAIT, before, NULL, NULL, 0);
            else poll(&polled, 1, -1);
        }
        while (way != FUTEX && read(fd, events, sizeof events) > 0) {}
        if (shared->written > seen) {
            lags[shared->written - 1] = now() - shared->written_at;
            seen = shared->written;
        }
    }
    _exit(0);
}

double wakes(const char *directory, int way, double rate, int count, double *lags) {
    size_t size = sizeof(struct shared) + (size_t)count * sizeof(double);
    struct shared *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double *found = (double *)(shared + 1), took = 0, due = now();
    char data[100] = {0};
    int at = open(directory, O_RDONLY | O_DIRECTORY), fd = openat(at, "file", O_RDWR | O_CREAT, 0600);
    pid_t child = way == NOBODY ? 0 : fork();
    if (way != NOBODY && child == 0) follow(directory, shared, way, count, found);
    while (child && !shared->waits) usleep(100);
    for (int i = 0; i < count; i++) {
        due += 1 / rate;
        double left = due - now();
        if (left > 0) usleep((unsigned)(left * 1e6));
        double began = shared->written_at = now();
        shared->written = i + 1;
        if (pwrite(fd, data, sizeof data, 0) != sizeof data) took = -1e9;
        if (way == FUTEX) {
            shared->woken++;
            syscall(SYS_futex, &shared->woken, FUTEX_WAKE, 1, NULL, NULL, 0);
        }
        took += now() - began;
    }
    if (child) waitpid(child, NULL, 0);
    for (int i = 0; i < count; i++) lags[i] = found[i];
    close(fd);
    close(at);
    munmap(shared, size);
    return took / count;
}
