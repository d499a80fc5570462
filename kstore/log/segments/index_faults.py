"""Faults of a segment's index files: an entry that the log contradicts is skipped, with one warning for each file."""

from __future__ import annotations

import logging

from kstore.files.index_file import OffsetIndex, TimeIndex

logger = logging.getLogger("kstore")


class IndexFaults:
    """The index files of one segment in which a fault was found. Thread-safe; a warning may be logged twice."""

    __slots__ = ("_is_muted", "_paths")

    def __init__(self) -> None:
        self._paths: tuple[str, ...] = ()  # a tuple takes no memory while it is empty, as it nearly always is
        self._is_muted = False

    def mute(self) -> None:
        """Log nothing more: the files are deleted, and other files may get their names while a reader has them open."""
        self._is_muted = True

    def has(self, path: object) -> bool:
        return str(path) in self._paths

    def report(self, path: object, fault: str) -> None:
        """Log a fault of an index file, unless a fault of this file was logged before."""
        if str(path) not in self._paths and not self._is_muted:
            self._paths += (str(path),)
            logger.warning("%s: %s; it is skipped; kstore verify says whether index or log is damaged", path, fault)

    def report_entry(self, path: object, entry: str) -> None:
        """Log an entry that does not lead to the batch it names."""
        self.report(path, f"an entry names {entry}, which the log does not have there")

    def report_unsound(self, index: OffsetIndex | TimeIndex) -> None:
        """Log an invalid entry of a sealed index, if reading the index stopped at one."""
        if index.has_unsound:
            self.report(index.path, f"entry {index.entries} is invalid, and no entry from there on was read")
