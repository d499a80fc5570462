/* A few threads of C that help with work that is done without the GIL.

   Helpers are made when they are first needed and sleep between jobs. A forked child makes its own. */
#ifndef KSTORE_CREW_H
#define KSTORE_CREW_H

#include <pthread.h>

/* Work that helpers share. */
typedef struct ks_job {
    void (*work)(void *context);
    void *context;
    int wanted, running; /* helpers */
    int is_listed;
    unsigned forks;      /* of the process, when the job was made */
    pthread_cond_t done;
    struct ks_job *next;
} ks_job;

/* Runs `work` in the caller and in up to `helpers` idle helpers; returns when all of them have returned. It does not wait
   for a helper to become free: `work` must be able to do everything in one thread. */
void ks_crew_run(void (*work)(void *), void *context, int helpers);

/* The same in two steps, between which the caller does something else. */
void ks_job_begin(ks_job *job, void (*work)(void *), void *context);

/* Sees to it that so many more helpers run `work`, as soon as they are free; returns at once. Those that were asked for
   before and do not run yet are among them. */
void ks_job_ask(ks_job *job, int helpers);

/* Returns when no helper runs `work` any more, and none will. */
void ks_job_end(ks_job *job);

/* Whether the process was forked from the one that made the job: its helpers are not here, and left their work unfinished. */
int ks_job_is_lost(const ks_job *job);

#endif
