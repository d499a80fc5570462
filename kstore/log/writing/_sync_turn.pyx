"""Group commit: the turn to sync a log, and the threads that wait for it.

One thread at a time has the turn. The others sleep, each on its own lock. The thread that gives the turn back wakes
the threads whose records the sync has covered, and one more to sync for the rest; no other thread wakes. Compiled, so
that no interrupt (a signal handler that raises) comes between two steps. The GIL is the lock: between a check and the
step that depends on it no object is allocated, since a garbage collection could start and let other threads run.
Invariant: a thread that was woken and leaves without taking the turn still calls `give`, so that the next one is woken.
"""

from libc.stdint cimport int64_t

from _thread import allocate_lock, get_ident
from time import perf_counter

GATHERING_SHARE = 0.5  # a sync waits for the threads of the last one for at most this share of that sync's duration
LONGEST_GATHERING = 0.001  # seconds; threads that append again are back within microseconds


cdef class _Waiter:
    # A thread that sleeps until `target` is on the disk or, if it is `alone`, until it has the turn.
    cdef int64_t target
    cdef bint alone
    cdef object thread, sleep

    def __cinit__(self, int64_t target, bint alone):
        self.target = target
        self.alone = alone
        self.thread = get_ident()
        self.sleep = allocate_lock()
        self.sleep.acquire()


cdef class Turn:
    """The turn to sync one log. Thread-safe; a thread that has the turn must not request it again."""

    cdef object holder  # the thread that has the turn, or None
    cdef list waiting
    cdef _Waiter called  # was woken to take the turn and has not taken it yet
    cdef Py_ssize_t expected  # how many threads waited at the end of the last sync, and may be back soon
    cdef Py_ssize_t awaited  # number of waiting threads that wakes the gathering thread; 0 if no thread gathers
    cdef object gathered
    cdef double began, took

    def __cinit__(self):
        self.waiting = []

    @property
    def waiters(self) -> int:
        """The number of threads that sleep until they have the turn or their records are on the disk."""
        return len(self.waiting)

    def take_or_wait(self, int64_t target) -> bool:
        """Take the turn and return True; or sleep until it may be free or `target` is on the disk, and return False."""
        return self._take_or_sleep(target, False)

    def take(self) -> None:
        """Wait for the turn and take it; threads that call this get it in the order of their calls."""
        self._take_or_sleep(0, True)
        self.began = perf_counter()

    cdef bint _take_or_sleep(self, int64_t target, bint alone) except -1:
        """Take the turn and return True, or sleep as a waiter and return False."""
        cdef _Waiter waiter
        if self.holder is not None:
            waiter = _Waiter(target, alone)
            if self.holder is not None:  # a garbage collection at its allocation may have let the holder continue
                self._sleep(waiter)
                return False
        self.holder = get_ident()
        return True

    cdef int _sleep(self, _Waiter waiter) except -1:
        self.waiting.append(waiter)
        if self.awaited and len(self.waiting) >= self.awaited:
            self.awaited = 0
            self.gathered.release()
        try:
            waiter.sleep.acquire()
        except BaseException:
            # Interrupted. If this thread was woken already, its call of `give` wakes another.
            if waiter in self.waiting:
                self.waiting.remove(waiter)
            raise
        finally:
            if self.called is waiter:
                self.called = None
        return 0

    def gather(self) -> None:
        """With the turn, wait briefly until as many threads wait as after the last sync, to serve them all together.

        The last sync has woken these threads, and they are about to append again. Does not wait if there were no other
        threads; if they do not come back, the next call does not wait.
        """
        cdef double longest
        if len(self.waiting) < self.expected:
            longest = min(self.took * GATHERING_SHARE, LONGEST_GATHERING)
            self.gathered = allocate_lock()
            self.gathered.acquire()
            self.awaited = self.expected
            try:
                self.gathered.acquire(True, longest)
            finally:
                self.awaited = 0
        self.began = perf_counter()

    def give(self, int64_t covered) -> int:
        """Give back the turn, if this thread has it. Wake the threads whose target `covered` reaches; return how many.

        Without the turn, wake a waiting thread to take it, if no thread has it.
        """
        cdef _Waiter waiter, first = None
        cdef list left = []  # allocated while no other thread can take the turn: a garbage collection lets others run
        cdef Py_ssize_t served = 0
        if self.holder is not None:
            if self.holder != get_ident():
                return 0
            self.holder = None
            self.took = perf_counter() - self.began
            self.expected = len(self.waiting)
        if not self.waiting:
            return 0
        for waiter in self.waiting:
            if not waiter.alone and waiter.target <= covered:
                waiter.sleep.release()
                served += 1
            elif first is None and self.called is None:
                first = waiter
            else:
                left.append(waiter)
        self.waiting = left
        # Woken last: its sync covers records that the others append until then.
        if first is not None:
            if first.alone:
                self.holder = first.thread
            else:
                self.called = first
            first.sleep.release()
        return served
