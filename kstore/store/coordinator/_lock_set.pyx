"""Locks that are held together, as many as turn up.

Compiled, so that no interrupt (a signal's handler that raises) can come between taking a lock and noting that it is
held: `contextlib.ExitStack` loses the lock there.
"""


cdef class LockSet:
    """Enters context managers one after the other; the end of its `with` block leaves all of them, the last one first.

    Those that are entered must be compiled, too. All are left, also when leaving one raises; its error is raised then.
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
