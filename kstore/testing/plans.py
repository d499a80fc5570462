"""Plans decide what a power cut does to each write and each name that was not synced."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kstore.testing.steps import Data, Name


class Fate(Enum):
    """What happens to one write or truncation that was not synced."""

    KEPT = "kept"
    LOST = "lost"
    SHORT = "short"
    """Only its first bytes are written."""
    ZEROS = "zeros"
    """The file has its new size, but the bytes of the write read as zeros."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Decides about each write and each name that was not synced at a power cut."""

    name: str
    of_data: Callable[[Data], Fate]
    of_names: Callable[[Name], bool]
    cut: Callable[[int], int] = lambda size: size // 2
    """Returns how many bytes of a `SHORT` write are written, given its size."""
    alive: bool = False
    """Whether the machine continues to run: data that a failed sync has lost on the disk is then still in memory."""

    def __repr__(self) -> str:
        return self.name


LOST = Plan("LOST", lambda _: Fate.LOST, lambda _: False)
"""Only synced data and synced names are there."""
KEPT = Plan("KEPT", lambda _: Fate.KEPT, lambda _: True, alive=True)
"""Everything is there, as if only the process had died."""
DATA_LOST = Plan("DATA_LOST", lambda _: Fate.LOST, lambda _: True)
"""Names are newer than data: files that were just created or renamed are empty or old."""
NAMES_LOST = Plan("NAMES_LOST", lambda _: Fate.KEPT, lambda _: False)
"""Data is newer than names."""
DATA_ZEROS = Plan("DATA_ZEROS", lambda _: Fate.ZEROS, lambda _: True)
"""Sizes and names are newer than data: files end in zeros."""
DATA_SHORT = Plan("DATA_SHORT", lambda _: Fate.SHORT, lambda _: True)
"""Half of each unsynced write is there."""
PLANS = (LOST, KEPT, DATA_LOST, NAMES_LOST, DATA_ZEROS, DATA_SHORT)


def shuffled(rng: random.Random) -> Plan:
    """Return a plan that decides at random, independently for each write and name."""
    fates = list(Fate)

    def cut(size: int) -> int:
        at = rng.randint(0, size)
        return at - at % 512 if rng.random() < 0.5 else at

    return Plan("shuffled", lambda _: rng.choice(fates), lambda _: rng.random() < 0.5, cut)
