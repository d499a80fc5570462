"""Interrupts that come at random moments of a call, in the main thread."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable

from tests.conftest import SEED


class Interrupted(BaseException):
    """As `KeyboardInterrupt`."""


def interrupt_often(call: Callable[[], object], seconds: float) -> int:
    """Call again and again, interrupted at a random moment each time; how often an interrupt came within the call."""
    rng = random.Random(SEED)
    is_armed, count, longest = False, 0, 1e-3

    def act(*_: object) -> None:
        if is_armed:
            raise Interrupted

    before, reported = signal.signal(signal.SIGALRM, act), sys.unraisablehook
    sys.unraisablehook = lambda *_: None  # an interrupt in a finalizer
    ends = time.monotonic() + seconds
    try:
        while time.monotonic() < ends:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, longest))
                began = time.monotonic()
                is_armed = True
                call()
                is_armed = False
                longest = max(2 * (time.monotonic() - began), 2e-5)
            except Interrupted:
                count += 1
            finally:
                is_armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        sys.unraisablehook = reported
        signal.signal(signal.SIGALRM, before)
    return count
