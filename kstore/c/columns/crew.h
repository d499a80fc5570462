/* A few C threads, called helpers, for work without the GIL.

   Helpers are created on demand and sleep between jobs. A forked child creates its own. */
#ifndef KSTORE_CREW_H
#define KSTORE_CREW_H

#include <pthread.h>

/* Work that helpers share. */
typedef struct ks_job {
    void (*work)(void *context);
    void *context;
    int wanted, running; /* helpers */
    int is_listed;
    unsigned forks;      /* of the process, when the job was created */
    pthread_cond_t done;
    struct ks_job *next;
} ks_job;

/* Runs `work` in the caller and in up to `helpers` idle helpers; returns when all of them have returned. Does not wait
   for a helper to become idle: `work` must be able to do everything in one thread. */
void ks_crew_run(void (*work)(void *), void *context, int helpers);

/* Prepares a job, which runs `work` like ks_crew_run but in steps, between which the caller does other work. */
void ks_job_begin(ks_job *job, void (*work)(void *), void *context);

/* Requests `helpers` helpers for `work` in addition to those that already run it; does not wait. The number includes
   earlier requests that no helper has taken yet. */
void ks_job_ask(ks_job *job, int helpers);

/* Ends the job: returns when no helper runs `work` and none will. */
void ks_job_end(ks_job *job);

/* Whether the process was forked after the job was created: the child has no helpers, their work is unfinished. */
int ks_job_is_lost(const ks_job *job);

#endif
