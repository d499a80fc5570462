"""A set of locks that are held together.

Compiled, so that no interrupt (a signal handler that raises) can come between taking a lock and recording that it is
held: `contextlib.ExitStack` loses the lock if an interrupt comes there.
"""


cdef class LockSet:
    """Enters context managers one after the other; the end of its `with` block exits all of them, the last one first.

    The context managers must be compiled, too. All of them are exited even if an exit raises; then its error is raised.
    """

    cdef list exits

    def __cinit__(self):
        self.exits = []

    def enter(self, manager: AbstractContextManager[Any]) -> None:
        """Enter a context manager."""
        leave = manager.__exit__
        manager.__enter__()
        self.exits.append(leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind, error, trace):
        failure = None
        while self.exits:
            leave = self.exits.pop()
            try:
                leave(kind, error, trace)
            except BaseException as raised:
                failure = raised
        if failure is not None:
            raise failure
