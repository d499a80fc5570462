"""Decides when to look at each of many things: every time if the thing is hot (changed recently), else seldom (cold).

Does no I/O. Invariant: looking at unchanged things takes at most 0.2 percent of the time.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

HOT_SECONDS = 1.0  # for this long after a change, a thing is looked at every time
COLD_SECONDS = 1.0
LOOK_SECONDS = 20e-6  # the assumed cost of a look
LOOK_SHARE = 499
MOST_AT_ONCE = 20


class Schedule(Generic[T]):
    """Things to look at. For one thread."""

    def __init__(self) -> None:
        self._hot: dict[T, float] = {}  # when each thing last changed
        self._cold: OrderedDict[T, float] = OrderedDict()  # when each thing was last looked at, oldest first

    def add(self, thing: T) -> None:
        self._hot[thing] = float("-inf")

    def remove(self, thing: T) -> None:
        self._hot.pop(thing, None)
        self._cold.pop(thing, None)

    def wake(self, things: Iterable[T]) -> None:
        """Make these things due the next time."""
        for thing in things:
            if self._cold.pop(thing, None) is not None:
                self._hot[thing] = float("-inf")

    @property
    def hot(self) -> Iterable[T]:
        return list(self._hot)

    def due(self, now: float) -> list[T]:
        """Return the things to look at now: all hot things, and the cold things that have waited longest."""
        due, pause = list(self._hot), max(COLD_SECONDS, LOOK_SHARE * LOOK_SECONDS * len(self._cold))
        for thing, looked_at in itertools.islice(self._cold.items(), MOST_AT_ONCE):
            if now - looked_at < pause:
                break
            due.append(thing)
        for thing in due[len(self._hot) :]:
            self._cold[thing] = now
            self._cold.move_to_end(thing)
        return due

    def saw(self, now: float, news: Iterable[T]) -> list[T]:
        """Note which things have changed. Return those that become cold, after `HOT_SECONDS` without a change."""
        for thing in news:
            self._cold.pop(thing, None)
            self._hot[thing] = now
        cooled = [thing for thing, changed_at in self._hot.items() if now - changed_at > HOT_SECONDS]
        for thing in cooled:
            del self._hot[thing]
            self._cold[thing] = now
        return cooled
