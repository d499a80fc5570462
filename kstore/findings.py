"""What a check found, and what it learned on the way: findings, damage, the report of a segment.

Pure: no file is opened here, and nothing is decided.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["Damage", "Finding", "Findings", "SegmentReport", "Severity"]

Severity: TypeAlias = Literal["error", "note"]

MAX_FINDINGS = 1000
"""How many are kept of one directory; of the rest there is only a count."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found. Immutable.

    An "error" is wrong; a "note" is legal, and worth knowing. `position` is in bytes from the start of the file;
    `rule` is the rule of SEMANTICS.md or FORMAT.md, `repair` what `kstore repair` would do.
    """

    path: str
    position: int | None
    offset: int | None
    rule: str
    severity: Severity
    what: str
    repair: str = ""


class Findings(list[Finding]):
    """The findings of one file or directory, so many of them and no more. Not thread-safe."""

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
        """Take one in, or count it where there are too many already."""
        if len(self) < MAX_FINDINGS:
            self.append(Finding(path, position, offset, rule, severity, what, repair))
        else:
            self.left_out += severity == "error"

    def close(self, path: str) -> None:
        """Say how many were left out."""
        if self.left_out:
            self.append(Finding(path, None, None, "", "error", f"and {self.left_out} more of such errors"))
            self.left_out = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes `[position, end)` of a log file that are no sound batches; `end` is the file's where none comes after.

    `next_offset` is one past the last offset before them. Immutable.
    """

    position: int
    end: int
    stop: str
    next_offset: int
    is_tail: bool


@dataclass(slots=True)
class SegmentReport:
    """What a check of one segment learned, for the check of the whole log. Not thread-safe."""

    base_offset: int
    path: str
    size_bytes: int = 0
    next_offset: int = 0
    batches: int = 0
    records: int = 0
    max_timestamp: int = -1
    has_legacy: bool = False
    is_live: bool = False
    """Whether an index ends in zeros, as it does while the segment is written to."""
    damages: list[Damage] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Offsets `[start, end)` that no batch of the segment holds, those behind the last one left out."""
    last_gap: int = 0
    """How many offsets no batch holds right before the last batch."""
    epochs: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Runs of batches of one leader epoch: epoch, first base offset, last base offset, position."""
    borders: set[int] = field(default_factory=set)
    """Those of the offsets asked for at which a batch begins, or ends."""
