from collections.abc import Sequence
from typing import final

from kstore.base.stats import HistogramStats

@final
class Histogram:
    """Counts of observed values, for each bound those at or below it. Any thread may observe and read."""

    def __init__(self, bounds: Sequence[float]) -> None: ...
    def observe(self, value: float) -> None:
        """Count a value."""
    def stats(self) -> HistogramStats:
        """How many values there were, their sum, and for each bound how many were at or below it."""
