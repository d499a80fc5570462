"""The limits of Kafka's numbers, which are Java's signed integers of 16, 32 and 64 bits."""

from __future__ import annotations

SHORT_MAX = 2**15 - 1
INT_MAX = 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

NEVER = LONG_MAX
"""A time in milliseconds that is never reached, and an offset that no log reaches."""
