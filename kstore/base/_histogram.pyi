"""`Histogram`: how long or how large what happens beside a system call is, counted in ranges."""

from collections.abc import Sequence
from typing import final

from kstore.base.stats import HistogramStats

@final
class Histogram:
    """Counts of observed values, for each bound those at or below it. Any thread may observe and read."""
    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are rising numbers, 24 at the most."""
    def observe(self, value: float) -> None:
        """Count a value."""
    def stats(self) -> HistogramStats:
        """How many values there were, their sum, and for each bound how many were at or below it."""
