"""Tools for the tests of an application: a clock to move, logs that are verified at the end, power cuts and kills.

The pytest plugin is the module `pytest_kstore`, which imports this package when a fixture is used. Invariant: a crash
image shows only states that a disk may have after a crash.
"""

from kstore.testing.checked import assert_sound, checked_log, checked_store
from kstore.testing.clock import ManualClock
from kstore.testing.crashes import Crash, Crashes

__all__ = ["Crash", "Crashes", "ManualClock", "assert_sound", "checked_log", "checked_store"]
