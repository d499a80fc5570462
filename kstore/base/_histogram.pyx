# cython: language_level=3, auto_pickle=False, autotestdict=False
"""`Histogram`: counts durations or sizes in ranges.

Compiled, so that an observation is atomic under the GIL. Invariant: only operations with a system call are observed,
never one that happens for each append.
"""

cimport cython
from libc.stdint cimport int64_t

cdef enum:
    MOST_BOUNDS = 24


@cython.final
cdef class Histogram:
    """For each bound, the number of observed values at or below it. Any thread may observe and read."""

    cdef double bounds[MOST_BOUNDS]
    cdef int64_t counts[MOST_BOUNDS + 1]
    cdef int size
    cdef int64_t observed
    cdef double total

    def __init__(self, bounds: Sequence[float]):
        """`bounds` are at most 24 rising numbers."""
        if len(bounds) > MOST_BOUNDS or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"bounds are {bounds!r}; at most {MOST_BOUNDS} rising numbers are allowed")
        self.size = len(bounds)
        for at, bound in enumerate(bounds):
            self.bounds[at] = bound

    def observe(self, double value) -> None:
        """Count a value."""
        cdef int at = 0
        while at < self.size and value > self.bounds[at]:
            at += 1
        self.counts[at] += 1
        self.observed += 1
        self.total += value

    def stats(self) -> HistogramStats:
        """Return the number of values, their sum, and for each bound the number of values at or below it."""
        cdef int64_t counts[MOST_BOUNDS]
        cdef int64_t below = 0, observed = self.observed
        cdef double total = self.total
        cdef int at
        for at in range(self.size):  # an atomic copy: other threads may run while the result is created
            below += self.counts[at]
            counts[at] = below
        return {
            "count": observed,
            "sum": total,
            "buckets": [[self.bounds[at], counts[at]] for at in range(self.size)],
        }
