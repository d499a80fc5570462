"""What runs in Spark's tasks: rows in, private segment files out, one manifest row for each partition that got any.

A `Stage` is made on the driver, checks there what can be checked, and is pickled into tasks; it holds no file and no
lock. The hardest rule: a task attempt writes into a directory of its own and nowhere else, so that one that fails, or
comes too late, has changed nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kstore.adopt import Staged

if TYPE_CHECKING:
    from kstore.store import Store

MANIFEST = (
    "job string, directory string, task long, topic string, partition int, partitions int, records long, batches long, "
    "bytes long, max_timestamp long, segments string, config string, query string, batch long"
)
"""The schema of a manifest, for `df.mapInArrow(stage, MANIFEST)`."""


class Stage:
    """A picklable callable that stages what one task sees. Make it with `stage`.

    `job` names the load: every attempt of every task stages below one directory of that name. Thread-safe.
    """

    job: str
    directory: str  # of the job, in the staging directory
    root: str

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        """Stage the rows of one task; its manifest rows, in kind: record batches, pandas frames, or `Staged`.

        `items` are Arrow record batches (mapInArrow), pandas frames (mapInPandas), or rows: tuples `(key, value[,
        partition[, timestamp[, headers]]])`, Spark's Rows by name, or bytes, which are values.
        """
        raise NotImplementedError

    def write(self, batches: Iterable[Any]) -> list[Staged]:
        """Stage Arrow record batches; what was staged, durably. A refused row raises and leaves nothing behind."""
        raise NotImplementedError

    def check(self, names: Mapping[str, str]) -> None:
        """Refuse columns that do not fit, by name and Spark's simple type name, in the words of Spark's sink."""
        raise NotImplementedError


def stage(
    root: str | os.PathLike[str] | Store,
    *,
    topic: str | None = None,
    partitions: int | None = None,
    compression: str | None = None,
    batch_bytes: int | None = None,
    config: Mapping[str, object] | None = None,
    staging_dir: str | os.PathLike[str] | None = None,
    columns: Iterable[str] | None = None,
    job: str | None = None,
) -> Stage:
    """Make the callable that goes into `df.mapInArrow`, `df.mapInPandas` or `rdd.mapPartitions`.

    `topic` is where rows go that have no column `topic`. `partitions` is needed for a topic that is not there, and must
    be the number of its partitions where it is (`ValueError`). `config` are settings of Kafka's for a topic that is to
    be made. `staging_dir` is `<root>.kstore-staging` unless given: it must be on the file system of `root` and outside
    of it (`StorageError`, `ValueError`).
    """
    raise NotImplementedError
