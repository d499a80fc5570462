"""Runs many tasks in the calling thread, with the help of other threads if the tasks take long.

Threads share the GIL, so helpers are useful only for tasks that wait for a disk or run C code without the GIL.
Invariant: each task runs at most once, in one of the threads, and none starts after the iteration has ended.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Generic, TypeVar

from kstore.base.threads import start

PATIENCE_S = 0.002
"""The most time that recovering or checking a small log takes; a longer task waits for the disk or reads many bytes."""

Item = TypeVar("Item")
T = TypeVar("T")


def with_helpers(
    work: Callable[[Item], T],
    groups: Iterable[Iterable[Item]],
    at_once: int,
    name: str,
    *,
    patience_s: float = 0.0,
    on_leaving: Callable[[], object] = lambda: None,
) -> Iterator[T]:
    """Call `work` for each item of all groups, up to `at_once` of a group at a time; yield the results as they arrive.

    The calling thread takes one item after the other, and all of them if no thread can be started. The helpers are
    threads of this `name`. A helper takes an item only if no call has started for `patience_s` seconds, since helpers
    slow down short calls that run only Python. After an error, or if the iteration ends early, no further call starts.
    Then `on_leaving` is called, perhaps more than once, the running calls end, and the first error is raised.
    """
    works = _Works(work, [_Group(items, at_once) for items in groups], patience_s, on_leaving)
    return works.run(at_once, name)


class _Group(Generic[Item]):
    """Items of which only a few are processed at the same time, for example those of one disk."""

    def __init__(self, items: Iterable[Item], at_once: int) -> None:
        self.items = deque(items)  # `popleft` is atomic, so only one thread gets an item
        # A queue, since an interrupt may leave a Semaphore or an Event locked.
        self.slots: SimpleQueue[None] = SimpleQueue()
        for _ in range(at_once):
            self.slots.put(None)


class _Works(Generic[Item, T]):
    """The state of one call."""

    def __init__(
        self, work: Callable[[Item], T], groups: list[_Group[Item]], patience_s: float, on_leaving: Callable[[], object]
    ) -> None:
        self._work = work
        self._patience_s = patience_s
        self._on_leaving = on_leaving
        self._groups = groups
        self._results: deque[T] = deque()
        self._errors: deque[BaseException] = deque()
        self._begun = monotonic()  # when the last call started
        self._next = threading.Lock()  # held by the helper that starts the next call
        # Gets an entry for each helper once no item is left.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._helpers: list[threading.Thread] = []

    def run(self, at_once: int, name: str) -> Iterator[T]:
        try:
            self._start_helpers(at_once, name)
            for group in self._groups:
                while group.items:
                    self._do_next(group)
                    yield from self._arrived()
            self._leave_the_rest()
            for helper in self._helpers:
                helper.join()
                yield from self._arrived()
        except BaseException as error:
            self._leave_the_rest()
            self._on_leaving()
            if self._errors and isinstance(error, Exception):
                raise self._errors[0] from None
            raise
        finally:
            for helper in self._helpers:
                if helper.ident is not None:  # otherwise an interrupt came before its start
                    helper.join()
        if self._errors:
            raise self._errors[0]

    def _start_helpers(self, at_once: int, name: str) -> None:
        for number, group in enumerate(self._groups):
            # The calling thread starts with the first group, so that group needs one helper less.
            for _ in range(min(at_once, len(group.items)) - (number == 0)):
                helper = threading.Thread(target=self._help, args=(group,), name=name)
                self._helpers.append(helper)
                if not start(helper):
                    self._helpers.pop()
                    return

    def _arrived(self) -> Iterator[T]:
        while self._results:
            yield self._results.popleft()

    def _do_next(self, group: _Group[Item]) -> None:
        group.slots.get()
        try:
            try:
                item = group.items.popleft()
            except IndexError:  # another thread has just taken the last one
                return
            self._begun = monotonic()
            self._results.append(self._work(item))
        finally:
            group.slots.put(None)

    def _help(self, group: _Group[Item]) -> None:
        try:
            while group.items:
                with self._next:
                    while group.items and (left := self._begun + self._patience_s - monotonic()) > 0:
                        with suppress(Empty):
                            self._bell.get(timeout=left)
                    if group.items:
                        self._begun = monotonic()
                self._do_next(group)
        except BaseException as error:
            self._errors.append(error)
            self._leave_the_rest()
            self._on_leaving()

    def _leave_the_rest(self) -> None:
        """Start no further call, and wake the helpers, even if an interrupt has lost a slot."""
        for group in self._groups:
            group.items.clear()
        for _ in self._helpers:
            self._bell.put(None)
            for group in self._groups:
                group.slots.put(None)
