"""The limits of Kafka's numbers, which are Java's signed integers of 16, 32 and 64 bits, and sizes as text."""

from __future__ import annotations

SHORT_MAX = 2**15 - 1
INT_MAX = 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

NEVER = LONG_MAX
"""A time in milliseconds that is never reached, and an offset that no log reaches."""


def size(count: int) -> str:
    """Format a number of bytes for people."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
