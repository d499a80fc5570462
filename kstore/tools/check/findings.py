"""The results of a check: findings, damage, and the report of a segment. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kstore.base.terminal import escaped
from kstore.errors import StorageError

__all__ = ["Damage", "Finding", "Findings", "SegmentReport", "Severity"]

Severity: TypeAlias = Literal["error", "note"]

MAX_FINDINGS = 1000
"""How many findings of one directory are kept; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault or unusual fact that a check reports.

    An "error" is a fault; a "note" is legal but worth knowing. `position` is in bytes from the start of the file,
    `rule` is the broken rule of docs/rules, and `repair` says what `kstore repair` would do. Immutable.
    """

    path: str
    position: int | None
    offset: int | None
    rule: str
    severity: Severity
    what: str
    repair: str = ""

    def in_one_line(self, severity: str = "") -> str:
        """Return the finding as a line of text; `severity` replaces the finding's own."""
        place = self.path if self.position is None else f"{self.path}:{self.position}"
        offset = "" if self.offset is None else f" (offset {self.offset})"
        rule = f" [{self.rule}]" if self.rule else ""
        repair = f"; repair: {self.repair}" if self.repair and self.severity == "error" else ""
        return f"{escaped(place)}: {severity or self.severity}: {escaped(f'{self.what}{offset}{rule}{repair}')}"


class Findings(list[Finding]):
    """The findings of one file or directory, at most `MAX_FINDINGS` of them. Not thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out = 0

    def add(
        self,
        path: str,
        rule: str,
        what: str,
        *,
        position: int | None = None,
        offset: int | None = None,
        severity: Severity = "error",
        repair: str = "",
    ) -> None:
        """Keep a finding; if there are too many already, only count it if it is an error."""
        if len(self) < MAX_FINDINGS:
            self.append(Finding(path, position, offset, rule, severity, what, repair))
        else:
            self.left_out += severity == "error"

    @contextmanager
    def reading(self, path: str, rule: str, repair: str) -> Iterator[None]:
        """Run a block that reads a file; if it raises `StorageError`, add a finding and suppress the error."""
        try:
            yield
        except StorageError as error:
            self.add(path, rule, error.strerror or str(error), repair=repair)

    def close(self, path: str) -> None:
        """Add a finding with the number of errors that were only counted."""
        if self.left_out:
            self.append(Finding(path, None, None, "", "error", f"and {self.left_out} more of such errors"))
            self.left_out = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes `[position, end)` of a log file that are no sound batches; `end` is the file's end if no batch follows.

    `stop` is the reason in the words of `_verify.walk`. `next_offset` is one past the last offset before the bytes.
    Immutable.
    """

    position: int
    end: int
    stop: str
    next_offset: int
    is_tail: bool


@dataclass(slots=True)
class SegmentReport:
    """The results of a check of one segment, for the check of the whole log. Not thread-safe."""

    base_offset: int
    path: str
    size_bytes: int = 0
    next_offset: int = 0
    batches: int = 0
    records: int = 0
    max_timestamp: int = -1
    has_legacy: bool = False
    is_live: bool = False
    """Whether an index ends in zeros, as the index of an active segment does."""
    damages: list[Damage] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """The gaps `[start, end)` between the segment's batches: offsets that no batch has."""
    last_gap: int = 0
    """The size of the gap in offsets right before the last batch."""
    epochs: list[tuple[int, int, int, int]] = field(default_factory=list)
    """For each run of format 2 batches of one leader epoch: epoch, first base offset, last base offset, position."""
    borders: set[int] = field(default_factory=set)
    """The offsets of `borders_at` at which a batch starts or ends."""
