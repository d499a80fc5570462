"""The facts of `Store.explain`: what takes the space of directories, what holds it, and what would free it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kstore.base import optional

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

_html = optional.Late("kstore.explained.explanation_html")  # it imports this module
_text = optional.Late("kstore.explained.disk_text")  # and so does this

__all__ = ["DiskExplanation", "ExplainedPartition", "HeldBytes", "Remedy"]


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes of a partition that one cause holds.

    Immutable, so threads may share it.
    """

    cause: str
    """A name of `ExplainedSegment.holds`, or "deleted" (files that wait for `file.delete.delay.ms`)."""
    size_bytes: int
    """Bytes of `.log` files; for "deleted" space on the disk."""
    explanation: str
    """What holds them, and until when, in words."""


@dataclass(frozen=True, slots=True)
class ExplainedPartition:
    """The space of one partition.

    Immutable, so threads may share it.
    """

    topic: str
    """The topic."""
    partition: int
    """The partition's number."""
    path: str
    """Its directory."""
    log_bytes: int
    """Bytes of its `.log` files in use."""
    disk_bytes: int
    """Space that all its files take."""
    segments: int
    """Its segments."""
    expired_bytes: int
    """Bytes that the next check deletes."""
    held: tuple[HeldBytes, ...]
    """What holds the other bytes, largest first."""
    error: str | None
    """Why the partition cannot be read; None if it can."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A setting that would free space.

    Immutable, so threads may share it.
    """

    topic: str
    """The topic that it is for."""
    setting: str
    """The setting, and the value to give it, such as "retention.ms=86400000"; several are separated by commas."""
    freed_bytes: int
    """Log bytes that the next check, or one at `from_ms`, would delete with it, beyond what it deletes anyway."""
    explanation: str
    """The effect in words."""
    from_ms: int | None = None
    """From when on a check deletes all of these bytes, if something is appended now, in milliseconds since the epoch;
    None for the next check.
    """
    is_at_most: bool = False
    """Whether `freed_bytes` is an upper bound, as for a cleaning by key."""


@dataclass(frozen=True, slots=True)
class DiskExplanation:
    """What takes the space of a store's directories, what holds it, and what would free it.

    `str()` gives text, `to_dict()` what JSON can hold, `to_arrow()` a table of partitions, `to_html()` a page;
    notebooks show a picture. Immutable, so threads may share it.

    Example:
        >>> store = kstore.Store.open("data", background=False)
        >>> topic_id = store.create_topic("orders")
        >>> disk = store.explain()
        >>> [(each.topic, each.log_bytes) for each in disk.partitions]
        [('orders', 0)]
    """

    paths: tuple[str, ...]
    """The log directories."""
    at_ms: int
    """The moment that is explained, in milliseconds since the epoch."""
    partitions: tuple[ExplainedPartition, ...]
    """The partitions, the largest first."""
    topics: Mapping[str, int]
    """Space on the disk by topic, the largest first."""
    disk_bytes: int
    """Space that everything takes."""
    other_bytes: int
    """The part of it outside of partitions: staged loads, directories of deleted partitions, checkpoints."""
    free_bytes: int | None
    """Space that is free on the file system; None if it is not known."""
    remedies: tuple[Remedy, ...]
    """Settings that would free space, the most effective first."""
    note: str | None
    """What to know about the settings, as in `Explanation.note`."""
    others: tuple[HeldBytes, ...] = ()
    """What `other_bytes` consists of, largest first; the causes are "staged" (loads that are staged), "deleted"
    (directories of deleted partitions) and "files" (checkpoints and all others).
    """

    def __str__(self) -> str:
        return str(_text.disk_text(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as dictionaries, lists, texts and numbers.

        Returns:
            A dictionary that `json.dumps` takes.

        Example:
            >>> disk.to_dict()["topics"].keys()
            dict_keys(['orders'])
        """
        return asdict(self)

    def to_arrow(self) -> pyarrow.Table:
        """Return the partitions as an Arrow table.

        Returns:
            A row for each partition, a column for each attribute of `ExplainedPartition`.

        Raises:
            ConfigError: PyArrow is not installed.

        Example:
            >>> disk.to_arrow().num_rows
            1
        """
        pa = optional.pyarrow("to_arrow()")
        held = pa.struct({"cause": pa.string(), "size_bytes": pa.int64(), "explanation": pa.string()})
        schema = pa.schema(
            {
                "topic": pa.string(),
                "partition": pa.int32(),
                "path": pa.string(),
                "log_bytes": pa.int64(),
                "disk_bytes": pa.int64(),
                "segments": pa.int64(),
                "expired_bytes": pa.int64(),
                "held": pa.list_(held),
                "error": pa.string(),
            }
        )
        return pa.Table.from_pylist([asdict(partition) for partition in self.partitions], schema=schema)

    def to_html(self) -> str:
        """Return a page that needs no other file, with pictures.

        Returns:
            The HTML of the page.

        Example:
            >>> disk.to_html().startswith("<!DOCTYPE html>")
            True
        """
        return str(_html.disk_page(self))

    def _repr_html_(self) -> str:
        """Return the picture that a notebook shows."""
        return str(_html.disk_fragment(self))
