"""What a power cut does to the writes and names that were not synced: a plan decides about each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kstore.testing.steps import Data, Name


class Fate(Enum):
    """What becomes of one write or truncation that was not synced."""

    KEPT = "kept"
    LOST = "lost"
    SHORT = "short"
    """Only a beginning of it is there."""
    ZEROS = "zeros"
    """The file has grown, and what was to be written reads as zeros."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Decides about each write and each name that was not synced when the power went."""

    name: str
    of_data: Callable[[Data], Fate]
    of_names: Callable[[Name], bool]
    cut: Callable[[int], int] = lambda size: size // 2
    """Where a `SHORT` write of so many bytes ends."""
    alive: bool = False
    """Whether the machine goes on: then what a failed sync has lost on the disk is still in its memory."""

    def __repr__(self) -> str:
        return self.name


LOST = Plan("LOST", lambda _: Fate.LOST, lambda _: False)
"""Only what was synced is there, under names that were synced."""
KEPT = Plan("KEPT", lambda _: Fate.KEPT, lambda _: True, alive=True)
"""All is there, as after the death of the process alone."""
DATA_LOST = Plan("DATA_LOST", lambda _: Fate.LOST, lambda _: True)
"""Names are ahead of the bytes: files that were just made or renamed are empty or old."""
NAMES_LOST = Plan("NAMES_LOST", lambda _: Fate.KEPT, lambda _: False)
"""The bytes are ahead of the names."""
DATA_ZEROS = Plan("DATA_ZEROS", lambda _: Fate.ZEROS, lambda _: True)
"""Sizes and names are ahead of the bytes: files end in zeros."""
DATA_SHORT = Plan("DATA_SHORT", lambda _: Fate.SHORT, lambda _: True)
"""Each write that was not synced is there by half."""
PLANS = (LOST, KEPT, DATA_LOST, NAMES_LOST, DATA_ZEROS, DATA_SHORT)


def shuffled(rng: random.Random) -> Plan:
    """A plan that decides each by chance; it shows the fates of later writes to be independent of earlier ones'."""
    fates = list(Fate)

    def cut(size: int) -> int:
        at = rng.randint(0, size)
        return at - at % 512 if rng.random() < 0.5 else at

    return Plan("shuffled", lambda _: rng.choice(fates), lambda _: rng.random() < 0.5, cut)
