"""Power cuts and kills at each step of a test's work, and the state of the disk afterwards.

The work is repeated for each crash, up to the step of the crash. Every later change or sync raises `StorageError` and
does nothing, which ends the block of the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kstore.disk import fs
from kstore.log.log import Log
from kstore.store.store import Store
from kstore.testing.checked import assert_sound, opened_log, opened_store, without_syncs
from kstore.testing.clock import ManualClock
from kstore.testing.plans import DATA_SHORT, KEPT, LOST
from kstore.testing.recorder import Recorder

How: TypeAlias = Literal["kill", "power", "torn"]

_PLANS = {"kill": KEPT, "power": LOST, "torn": DATA_SHORT}
_WORDS = {
    "kill": "the process was killed, and all that it wrote is there",
    "power": "the power was cut, and only what was synced is there",
    "torn": "the power was cut, and half of each write that was not synced is there",
}

_Opening: TypeAlias = Callable[[Path], AbstractContextManager[Any]]


class Crashes:
    """Makes the crashes of a test: one for each step of its work and each way to crash.

    `for crash in crashes():` crashes before the first step of the work, before the second, and so on, and finally after
    all steps. Its argument `how` names the ways to crash: "kill" (all data that the process wrote is there), "power"
    (only synced data is there), "torn" (as "power", and half of each write that was not synced). Not thread-safe.

    Example:
        >>> from pathlib import Path
        >>> from kstore.testing import Crashes, ManualClock
        >>> crashes = Crashes(Path("."), ManualClock())  # the fixture kstore_crash
        >>> for crash in crashes("power"):
        ...     acknowledged = 0
        ...     with crash.log() as log:
        ...         acknowledged = log.append(b"3 apples", sync=True) + 1
        ...     with crash.reopened() as log:
        ...         assert log.log_end_offset >= acknowledged
    """

    def __init__(
        self,
        directory: Path,
        clock: ManualClock,
        *,
        log: Mapping[str, Any] | None = None,
        store: Mapping[str, Any] | None = None,
    ) -> None:
        """Make an iterator of crashes.

        Args:
            directory: An existing directory; each crash gets a directory in it.
            clock: The clock of the logs and stores.
            log: Default settings for `Crash.log`.
            store: Default settings for `Crash.store`, including `topics`.
        """
        self._directory = directory
        self._clock = clock
        self._log = log or {}
        self._store = store or {}

    def __call__(self, how: How | tuple[How, ...] = ("kill", "power", "torn")) -> Iterator[Crash]:
        """Yield one crash after the other. Each must be used; its directory is removed before the next one."""
        ways = (how,) if isinstance(how, str) else how
        for way in ways:
            if way not in _PLANS:
                raise ValueError(f"how is {way!r}; {', '.join(map(repr, _PLANS))} are allowed")
        steps, is_last = 0, False
        while ways and not is_last:
            is_last = True
            for way in ways:
                crash = Crash(
                    self._directory / f"{way}-{steps}", self._clock, way, steps, log=self._log, store=self._store
                )
                fs.make_directory(crash.directory)
                yield crash
                is_last &= not crash.interrupted
                fs.remove_tree(crash.directory, below=self._directory)
            steps += 1


class Crash:
    """One crash: it ends the work in `log`, `store` or `work_in`; `reopened` opens the files afterwards.

    `Crashes` makes these objects. Not thread-safe.

    Example:
        >>> from pathlib import Path
        >>> from kstore.testing import Crashes, ManualClock
        >>> crashes = Crashes(Path("."), ManualClock())
        >>> crash = next(crashes("power"))
        >>> crash.how, crash.steps
        ('power', 0)
    """

    def __init__(
        self,
        directory: Path,
        clock: ManualClock,
        how: How,
        steps: int,
        *,
        log: Mapping[str, Any] | None = None,
        store: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = directory
        """The directory of the work and of the files that are found; removed before the next crash."""
        self.how = how
        """The way to crash."""
        self.steps = steps
        """How many changes and syncs reach the disk."""
        self._clock = clock
        self._log = log or {}
        self._store = store or {}
        self._opening: _Opening | None = None
        self._refused: str | None = None

    def __repr__(self) -> str:
        return f"<kstore.testing.Crash {self.how} after {self.steps} steps>"

    def __str__(self) -> str:
        step = f"before step {self.steps + 1}, {self._refused}" if self._refused else "after the last step"
        return f"{step}: {_WORDS[self.how]}"

    @property
    def interrupted(self) -> bool:
        """Whether the crash came before the end of the work; a `RuntimeError` if no work was done."""
        if self._refused is None:
            raise RuntimeError(f"{self!r} was not used: do the work in crash.log(), crash.store() or crash.work_in()")
        return self._refused != ""

    def log(self, **settings: Any) -> AbstractContextManager[Log]:
        """Open a new log `test-0` for the work in the `with` block.

        Steps are counted once the log is open; the closing of the log at the end of the block counts, too. A crash ends
        the block without an error.

        Args:
            **settings: Keyword arguments of `Log.open`; they override those of the marker `kstore_log`.

        Returns:
            A context manager, which returns the log.

        Example:
            >>> with crash.log() as log:
            ...     offset = log.append(b"3 apples", sync=True)
            >>> crash.interrupted
            True
        """
        chosen = {**self._log, **settings}
        return self._crashing(lambda path: opened_log(path, self._clock, **chosen))

    def store(self, *, topics: Mapping[str, int] | None = None, **settings: Any) -> AbstractContextManager[Store]:
        """Open a new store for the work in the `with` block, as `log` does.

        Args:
            topics: Topics to create, with their numbers of partitions; they override those of the marker
                `kstore_store`.
            **settings: Keyword arguments of `Store.open`; they override those of the marker.

        Returns:
            A context manager, which returns the store.

        Example:
            >>> with crash.store(topics={"orders": 1}) as store:
            ...     place = store.append("orders", b"3 apples", sync=True)
            >>> crash.interrupted
            True
        """
        chosen = {**self._store, **settings} if topics is None else {**self._store, **settings, "topics": topics}
        return self._crashing(lambda path: opened_store(path, self._clock, **chosen))

    def work_in(self) -> AbstractContextManager[Path]:
        """Make an empty directory for the work in the `with` block, which may open logs and stores in it.

        Returns:
            A context manager like that of `log`, which returns the path.

        Example:
            >>> with crash.work_in() as path:
            ...     with kstore.Log.open(path / "orders-0") as log:
            ...         offset = log.append(b"3 apples", sync=True)
            >>> crash.interrupted
            True
        """
        return self._crashing(_nothing_opened)

    @contextmanager
    def _crashing(self, opening: _Opening) -> Iterator[Any]:
        if self._refused is not None:
            raise RuntimeError(f"{self!r} was used before: each crash ends one work")
        self._opening = opening
        work = self.directory / "work"
        fs.make_directory(work)
        disk = Recorder(work)
        try:
            with disk, _silent(lambda _: not disk.stopped):
                try:
                    with opening(work) as opened:
                        disk.stop_after(self.steps)
                        yield opened
                except Exception:  # after the crash, an error is expected
                    if not disk.stopped:
                        raise
        finally:  # an error of the work itself ends the work, too; its files are kept
            self._refused = disk.stopped
            disk.crash_image(self.directory / "found", plan=_PLANS[self.how])

    @contextmanager
    def reopened(self) -> Iterator[Any]:
        """Open what is found after the crash for the `with` block: the log, the store, or the directory of `work_in`.

        At the end of the block, a log or a store is closed and verified. An error in the block gets a note that names
        the crash.

        Yields:
            The log, the store or the path.

        Raises:
            AssertionError: At the end, if `kstore verify` finds an error.
            RuntimeError: If no work was done.

        Example:
            >>> with crash.log() as log:
            ...     offset = log.append(b"3 apples", sync=True)
            >>> with crash.reopened() as log:
            ...     print(list(log.read()))
            []
        """
        __tracebackhide__ = True
        if self._opening is None:
            raise RuntimeError(f"{self!r} was not used: there is nothing to open again")
        found = self.directory / "found"
        try:
            with without_syncs(), self._opening(found) as opened:
                yield opened
            if not isinstance(opened, Path):
                assert_sound(found)
        except BaseException as error:
            error.add_note(f"after a crash {self}")
            raise


@contextmanager
def _silent(shown: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Drop log messages of kstore for which `shown` is false: those after the crash."""
    logger = logging.getLogger("kstore")
    logger.addFilter(shown)
    try:
        yield
    finally:
        logger.removeFilter(shown)


@contextmanager
def _nothing_opened(path: Path) -> Iterator[Path]:
    yield path
