"""What tests of an application need: a clock to move, logs that are checked at the end, power cuts and kills.

pytest's plugin is the module `pytest_kstore`, which imports nothing of this before a fixture is used. Invariant: what a
crash image shows is what a disk may show, neither more nor less.
"""

from kstore.testing.checked import assert_sound, checked_log, checked_store
from kstore.testing.clock import ManualClock
from kstore.testing.crashes import Crash, Crashes

__all__ = ["Crash", "Crashes", "ManualClock", "assert_sound", "checked_log", "checked_store"]
