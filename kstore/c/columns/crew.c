#include "columns/crew.h"

#include <signal.h>
#include <stddef.h>

#define KS_MAX_HELPERS 15
#define KS_HELPER_STACK ((size_t)512 << 10)

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    ks_job *jobs; /* jobs that need more helpers, the newest first */
    int threads, idle;
    unsigned forks; /* since the first process */
} ks_crew_state;

static ks_crew_state ks_crew = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, 0, 0};

static void *ks_help(void *nothing) {
    (void)nothing;
    pthread_mutex_lock(&ks_crew.lock);
    for (;;) {
        ks_job *job = ks_crew.jobs;
        while (job && job->wanted == 0) job = job->next;
        if (!job) {
            ks_crew.idle++;
            pthread_cond_wait(&ks_crew.wake, &ks_crew.lock);
            ks_crew.idle--;
            continue;
        }
        job->wanted--;
        job->running++;
        pthread_mutex_unlock(&ks_crew.lock);
        job->work(job->context);
        pthread_mutex_lock(&ks_crew.lock);
        if (--job->running == 0) pthread_cond_signal(&job->done);
    }
    return NULL;
}

/* Creates the helpers that the jobs want beyond the idle ones (including those that are just waking up). The caller
   holds ks_crew.lock. Helpers block all signals: Python handles them. */
static void ks_hire(void) {
    int wanted = -ks_crew.idle;
    for (const ks_job *job = ks_crew.jobs; job; job = job->next) wanted += job->wanted;
    if (wanted <= 0) return;
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, KS_HELPER_STACK);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int n = wanted; n > 0 && ks_crew.threads < KS_MAX_HELPERS; n--) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, ks_help, NULL)) break;
        ks_crew.threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

void ks_job_begin(ks_job *job, void (*work)(void *), void *context) {
    *job = (ks_job){work, context, 0, 0, 0, ks_crew.forks, PTHREAD_COND_INITIALIZER, NULL};
}

void ks_job_ask(ks_job *job, int helpers) {
    if (helpers <= 0) return;
    pthread_mutex_lock(&ks_crew.lock);
    if (!job->is_listed) {
        job->next = ks_crew.jobs;
        ks_crew.jobs = job;
        job->is_listed = 1;
    }
    int more = helpers - job->wanted;
    if (more > 0) {
        job->wanted += more;
        ks_hire();
        if (more == 1) pthread_cond_signal(&ks_crew.wake); else pthread_cond_broadcast(&ks_crew.wake);
    }
    pthread_mutex_unlock(&ks_crew.lock);
}

void ks_job_end(ks_job *job) {
    if (job->is_listed) {
        pthread_mutex_lock(&ks_crew.lock);
        ks_job **at = &ks_crew.jobs;
        while (*at != job) at = &(*at)->next;
        *at = job->next;
        while (job->running) pthread_cond_wait(&job->done, &ks_crew.lock);
        pthread_mutex_unlock(&ks_crew.lock);
    }
    pthread_cond_destroy(&job->done);
}

int ks_job_is_lost(const ks_job *job) { return job->forks != ks_crew.forks; }

void ks_crew_run(void (*work)(void *), void *context, int helpers) {
    ks_job job;
    ks_job_begin(&job, work, context);
    ks_job_ask(&job, helpers);
    work(context);
    ks_job_end(&job);
}

static void ks_crew_enter(void) { pthread_mutex_lock(&ks_crew.lock); }
static void ks_crew_leave(void) { pthread_mutex_unlock(&ks_crew.lock); }

/* A forked child has no threads and no jobs. */
static void ks_crew_child(void) {
    pthread_mutex_init(&ks_crew.lock, NULL);
    pthread_cond_init(&ks_crew.wake, NULL);
    ks_crew.jobs = NULL;
    ks_crew.threads = ks_crew.idle = 0;
    ks_crew.forks++;
}

__attribute__((constructor)) static void ks_crew_setup(void) {
    pthread_atfork(ks_crew_enter, ks_crew_leave, ks_crew_child);
}
