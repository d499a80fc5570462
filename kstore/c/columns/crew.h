/* A few threads of C that help with work that is done without the GIL.

   Helpers are made when they are first needed and sleep between jobs. A forked child makes its own. */
#ifndef KSTORE_CREW_H
#define KSTORE_CREW_H

/* Runs `work` in the caller and in up to `helpers` idle helpers; returns when all of them have returned. It does not wait
   for a helper to become free: `work` must be able to do everything in one thread. */
void ks_crew_run(void (*work)(void *), void *context, int helpers);

#endif
