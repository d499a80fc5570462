"""Entries of a segment's indexes that the log does not bear out: each is passed over, and a warning is logged once."""

from __future__ import annotations

import logging

from kstore.files.index_file import OffsetIndex, TimeIndex

logger = logging.getLogger("kstore")


class IndexFaults:
    """The index files of one segment in which a fault was found. Safe from any thread: at worst a warning comes
    twice."""

    __slots__ = ("_is_muted", "_paths")

    def __init__(self) -> None:
        self._paths: tuple[str, ...] = ()  # hardly ever any, and a log may have very many segments
        self._is_muted = False

    def mute(self) -> None:
        """Log nothing more: the files are deleted, and others may get their names while a reader still has them."""
        self._is_muted = True

    def has(self, path: object) -> bool:
        """Whether a fault of this file was reported."""
        return str(path) in self._paths

    def report(self, path: object, fault: str) -> None:
        """Log a fault of an index file, unless one of this file was logged before."""
        if str(path) not in self._paths and not self._is_muted:
            self._paths += (str(path),)
            logger.warning("%s: %s; it is passed over; kstore verify tells which of the two is damaged", path, fault)

    def report_entry(self, path: object, entry: str) -> None:
        """Log an entry that leads to no such batch."""
        self.report(path, f"an entry names {entry}, which the log does not have there")

    def report_unsound(self, index: OffsetIndex | TimeIndex) -> None:
        """Log a sealed index that was read only up to an entry that cannot be one."""
        if index.has_unsound:
            self.report(index.path, f"entry {index.entries} cannot be one, and none from there on was read")
