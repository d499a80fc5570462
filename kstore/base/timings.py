"""`Timings`: the durations of syncs and the number of callers of each, for all logs of one housekeeper."""

from __future__ import annotations

from kstore.base._histogram import Histogram

SYNC_SECONDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CALLERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Timings:
    """Histograms of syncs. Thread-safe."""

    __slots__ = ("callers", "sync")

    def __init__(self) -> None:
        self.sync = Histogram(SYNC_SECONDS)  # seconds of each sync of a log: fdatasync and the work around it
        self.callers = Histogram(CALLERS)  # the calls of `flush` that each sync served (group commit)
