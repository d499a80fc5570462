"""Bulk loads: segments that others have staged become part of a store's logs, exactly once.

Owns what a task hands over (`Staged`), what a load has become (`Adopted`) and the order of steps of a commit. Tasks
only ever create private files, with offsets from 0; one commit assigns the offsets, writes them down durably, and only
then changes a log. The hardest rule: from that moment on the load happens, whatever dies; before it, nothing has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

Transaction = tuple[str, int]
"""The application's name and its version: a load is left out unless its version is above the last one committed."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task has staged for one partition: a row of a manifest. Plain values only; may be pickled.

    `directory` is the task attempt's own, in the staging directory; the partition's files are in `topic-partition`
    below it, `segments` says which, as JSON: `[[base offset, next offset, bytes], ...]` with offsets from 0.
    `partitions` is how many the topic has, or is to have. Times are milliseconds, -1 where there are none.
    """

    job: str
    directory: str
    task: int
    topic: str
    partition: int
    partitions: int
    records: int
    batches: int
    bytes: int
    min_timestamp: int
    max_timestamp: int
    segments: str
    query: str | None = None
    batch: int | None = None

    @classmethod
    def of(cls, row: Any) -> Staged:
        """Take a row as it comes back: a `Staged`, a mapping, or what has an `asDict` (Spark's Row)."""
        if isinstance(row, cls):
            return row
        found = row if isinstance(row, Mapping) else row.asDict() if hasattr(row, "asDict") else None
        if found is None:
            raise TypeError(f"a manifest's rows are Staged, mappings or Spark's Rows, not {type(row).__name__}")
        names = [each.name for each in fields(cls)]
        missing = [name for name in names[:12] if name not in found]
        if missing:
            raise ValueError(f"a row of a manifest lacks {', '.join(missing)}")
        return cls(**{name: found[name] for name in names if name in found})


Manifest = Iterable[Staged | Mapping[str, Any] | Any]
"""What all tasks of a load have staged; records get their offsets in the order of its rows."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """What a load has become: by (topic, partition), its first offset and one past its last.

    `duplicate` says that the transaction, or this very load, had been committed before: nothing was changed, and
    `offsets` is empty.
    """

    offsets: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0
    duplicate: bool = False
