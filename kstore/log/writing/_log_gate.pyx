# cython: language_level=3, auto_pickle=False, autotestdict=False
"""The gate of a log: every change of the log holds it, except the fast path of `append`.

Compiled, so that no interrupt (a signal handler that raises) can come between taking the mutex and the `with` block, or
between the block and the release of the mutex.
"""

from kstore.log.writing._appender cimport Appender


cdef class Gate:
    """The log's mutex and the appender's `busy` flag together: inside `with gate:` no other thread changes the log.

    Entering calls `check()`; if it raises, the mutex is released. Leaving calls `failed(error)` first if the block
    raised; then the appender stays busy if `stopped()` returns true, and the mutex is released.
    """

    cdef object mutex, check, stopped, failed
    cdef Appender appender

    def __init__(self, mutex: threading.Lock, Appender appender, *, check: Callable[[], object], stopped: Callable[[], bool],
                 failed: Callable[[BaseException], object] | None = None):
        self.mutex = mutex
        self.appender = appender
        self.check = check
        self.stopped = stopped
        self.failed = failed

    def __enter__(self) -> None:
        self.mutex.acquire()
        self.appender.busy = True
        try:
            self.check()
        except BaseException:
            self._leave()
            raise

    def __exit__(self, kind, error, trace):
        try:
            if error is not None and self.failed is not None:
                self.failed(error)
        finally:
            self._leave()

    def attempt(self, action: Callable[[], object]) -> bool:
        """If no thread is inside the gate, call `action()` inside it, without `check`. Return whether it was called."""
        if not self.mutex.acquire(False):
            return False
        self.appender.busy = True
        try:
            action()
        finally:
            self._leave()
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Wait until no thread is inside, for at most `timeout` seconds."""
        if self.mutex.acquire(True, -1 if timeout is None else timeout):
            self.mutex.release()

    cdef int _leave(self) except -1:
        # An interrupt in `stopped` leaves the appender busy; the next append enters the gate, which calls it again.
        try:
            self.appender.busy = self.stopped()
        finally:
            self.mutex.release()
        return 0
