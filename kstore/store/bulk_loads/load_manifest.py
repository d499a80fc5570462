"""The manifest of a bulk load: its rows (`Staged`), and the result of the load (`Adopted`).

Invariant: a `Staged` has only values that a task can have written, because rows come from outside and the files that
they name are renamed and removed. Code that has a `Staged` need not check it again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from kstore.base import arguments
from kstore.base.numbers import LONG_MAX
from kstore.files import json_file, load_files, names
from kstore.files.load_files import TASK_PREFIX as TASK_PREFIX
from kstore.objects import staged_objects
from kstore.objects.restore_plan import MOST_FILE_BYTES

Transaction = tuple[str, int]
"""The application's name and its version: a load is skipped unless its version is above the last committed one."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A row of a manifest: what one task has staged for one partition.

    All values are `str`, `int` or None; a row can be pickled. Immutable; thread-safe.

    Raises:
        ValueError: If a value is one that no task can have written.

    Example:
        >>> import pyarrow
        >>> from kstore import spark as ks
        >>> rows = pyarrow.record_batch({"key": ["alice", "bob"], "value": ["3 apples", "1 pear"]})
        >>> (staged,) = ks.stage("data", topic="orders", partitions=1).write([rows])
        >>> staged.topic, staged.partition, staged.records
        ('orders', 0, 2)
    """

    job: str
    """The id of the load that the task belongs to."""

    directory: str
    """The directory of the task attempt, in the staging directory; in an object store a URL."""

    task: int
    """The task's number."""

    topic: str
    """The topic that the records are for."""

    partition: int
    """The partition that the records are for."""

    partitions: int
    """How many partitions the topic has, or gets if the load creates it."""

    records: int
    """How many records were staged."""

    batches: int
    """How many batches contain these records."""

    bytes: int
    """The size of these batches."""

    max_timestamp: int
    """The greatest timestamp in milliseconds; -1 if there is none."""

    segments: str
    """The staged segments as JSON: `[[base offset, next offset, bytes], ...]`, with offsets from 0."""

    config: str | None = None
    """The topic's own settings as JSON if the load creates it; else None."""

    query: str | None = None
    """The id of the streaming query; None for a batch job."""

    batch: int | None = None
    """The number of the micro-batch; None for a batch job."""

    objects: str | None = None
    """In an object store, where the segments are, as JSON: `[[object number, position, CRC-32C], ...]`; else None."""

    @classmethod
    def of(cls, row: Any) -> Staged:
        """Make a `Staged` of a row of a manifest.

        Args:
            row: A `Staged`, a mapping, or an object with a method `asDict` (Spark's `Row`).

        Returns:
            The row.

        Raises:
            TypeError: If `row` has another type.
            ValueError: If a value is missing, or is one that no task can have written.

        Example:
            >>> import json
            >>> from dataclasses import asdict
            >>> line = json.dumps(asdict(staged))
            >>> kstore.Staged.of(json.loads(line)) == staged
            True
        """
        if isinstance(row, cls):
            return row
        values = row if isinstance(row, Mapping) else row.asDict() if hasattr(row, "asDict") else None
        if values is None:
            raise TypeError(f"a manifest's rows are Staged, mappings or Spark's Rows, not {type(row).__name__}")
        missing = [column.name for column in fields(cls) if column.default is MISSING and column.name not in values]
        if missing:
            raise ValueError(f"a row of a manifest lacks {', '.join(missing)}")
        return cls(**{column.name: values[column.name] for column in fields(cls) if column.name in values})

    def __post_init__(self) -> None:
        for column in fields(self):
            value = getattr(self, column.name)
            if value is None and column.default is None:
                continue
            if str(column.type).startswith("str"):
                if not isinstance(value, str):
                    raise ValueError(f"{column.name} of a row of a manifest is {_shown(value)}, and text is needed")
            elif type(value) is not int or not -1 <= value <= LONG_MAX:
                raise ValueError(f"{column.name} of a row of a manifest is {_shown(value)}, and a number is needed")
        try:
            parts = json.loads(self.segments)
            config = {} if self.config is None else json_file.parse(self.config.encode())
            sound = [len(part) == 3 and all(type(number) is int for number in part) for part in parts]
        except (TypeError, ValueError, RecursionError):
            sound = []
        if not sound or not all(sound):
            raise ValueError(f"a row of a manifest for {_shown(self.topic)} has no list of segments, or no settings")
        path = self.directory
        is_sound = json_file.is_plain_path(path) if self.objects is None else self._is_in_objects(parts)
        if (
            not is_sound
            or not os.path.basename(path).startswith(TASK_PREFIX)
            or os.path.basename(os.path.dirname(path)) != self.job
        ):
            raise ValueError(f"{_shown(path)} is no directory of a task of the job {_shown(self.job)}")
        names.partition_name(self.topic, self.partition)
        if not 0 <= self.partition < self.partitions or not isinstance(config, dict):
            raise ValueError(f"a row of a manifest for {self.topic}-{self.partition} of {self.partitions} partitions")
        if any(not 0 <= base < end <= LONG_MAX or not 0 < size <= LONG_MAX
               for base, end, size in parts):  # fmt: skip
            raise ValueError(f"{path}: segments {parts} cannot be"[:400])

    def _is_in_objects(self, parts: list[list[int]]) -> bool:
        """Return whether the fields can be those of segments in an object store: the sums fit, and nothing is left out.

        Raises `ConfigError` for a directory that is no URL.
        """
        try:
            found = json.loads(self.objects or "")
            is_sound = len(found) == len(parts) and all(
                len(place) == 3 and all(type(number) is int for number in place) for place in found
            )
        except (TypeError, ValueError, RecursionError):
            return False
        stage, job = staged_objects.split_job(os.path.dirname(self.directory))
        return (
            is_sound
            and all(
                0 <= number <= staged_objects.MOST_NUMBER and 0 <= at <= LONG_MAX - size and 0 <= crc < 2**32
                for (number, at, crc), (_, _, size) in zip(found, parts, strict=True)
            )
            and [base for base, _, _ in parts] == [0, *(end for _, end, _ in parts[:-1])]
            and all(size <= MOST_FILE_BYTES for _, _, size in parts)
            and (self.records, self.bytes) == (parts[-1][1], sum(size for _, _, size in parts))
            and staged_objects.is_attempt(os.path.basename(self.directory))
            and self.directory == f"{stage}/{job}/{os.path.basename(self.directory)}"
        )

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """The segments in an object store as (object number, position, CRC-32C)."""
        return [(number, at, crc) for number, at, crc in json.loads(self.objects or "[]")]

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """The staged segments as (base offset, next offset, bytes)."""
        return [(base, end, size) for base, end, size in json.loads(self.segments)]

    @property
    def path(self) -> str:
        """The directory of the partition's staged files."""
        return f"{self.directory}/{self.topic}-{self.partition}"


Manifest = Iterable[Staged | Mapping[str, Any] | Any]
"""What all tasks of a load have staged; records get offsets in the order of the rows."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of a bulk load. Immutable; thread-safe."""

    offsets: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By (topic, partition): the first offset of the load, and one past its last."""

    records: int = 0
    """How many records were added."""

    bytes: int = 0
    """The size of their batches."""

    duplicate: bool = False
    """Whether the transaction or the same load was committed before; then nothing changed and `offsets` is empty."""


def check_transaction(txn: Transaction | None) -> tuple[str | None, int]:
    """Return the application and version of a transaction, (None, -1) for None; raise `TypeError` or `ValueError`."""
    if txn is None:
        return None, -1
    if not isinstance(txn, tuple | list) or len(txn) != 2 or not isinstance(txn[0], str):
        raise TypeError(f"txn must be (application, version), a str and an int, not {txn!r:.100}")
    if not txn[0] or len(txn[0]) > 1000:
        raise ValueError(f"the application's name has {len(txn[0])} characters; 1 to 1000 are allowed")
    return txn[0], arguments.integer("the version of txn", txn[1], 0, LONG_MAX)


def name_of(rows: Sequence[Staged], txn: tuple[str | None, int]) -> str:
    """Return the identifier of a load: a hash of its directories, since each task attempt has a unique directory.

    For a micro-batch of a stream it is the transaction and the number of records, so that a repeated batch can be
    compared with the first one. It is "" for a load without records: such loads need not be distinguished.
    """
    if not rows:
        return ""
    application, version = txn
    if application is not None and load_files.is_stream(application):
        return f"{application}:{version}:{sum(row.records for row in rows)}"
    return hashlib.sha256("\n".join(sorted({row.directory for row in rows})).encode()).hexdigest()[:32]


def _shown(value: object) -> str:
    return ascii(value)[:200]
