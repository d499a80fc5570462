"""`Histogram`: counts durations or sizes in ranges."""

from collections.abc import Sequence
from typing import final

from kstore.base.stats import HistogramStats

@final
class Histogram:
    """For each bound, the number of observed values at or below it. Any thread may observe and read."""
    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are at most 24 rising numbers."""
    def observe(self, value: float) -> None:
        """Count a value."""
    def stats(self) -> HistogramStats:
        """Return the number of values, their sum, and for each bound the number of values at or below it."""
