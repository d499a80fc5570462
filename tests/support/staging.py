"""Staged files for the tests of adoption, made with plain logs: what tasks leave, without Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kstore import Log
from kstore.store.bulk_loads.load_manifest import Staged

Rows = Sequence[tuple[Any, ...]]


def stage_task(
    root: Path,
    task: int,
    topic: str,
    rows: Mapping[int, Rows],
    *,
    partitions: int,
    job: str = "job",
    config: str | None = None,
    batch_bytes: int | None = None,
    **settings: Any,
) -> list[Staged]:
    """What one task stages of `topic`: rows by partition; its manifest rows."""
    directory = root.parent / f"{root.name}.kstore-staging" / job / f"task-{task}-{uuid.uuid4().hex}"
    staged = []
    for partition, records in rows.items():
        with Log.open(directory / f"{topic}-{partition}", clock=lambda: 1000, **settings) as log:
            log.append_many(records, batch_bytes=batch_bytes)
            segments = [each for each in log.segments if each.size_bytes]
        staged.append(
            Staged(
                job=job,
                directory=str(directory),
                task=task,
                topic=topic,
                partition=partition,
                partitions=partitions,
                records=len(records),
                batches=len(segments),
                bytes=sum(each.size_bytes for each in segments),
                max_timestamp=max(each.max_timestamp for each in segments),
                segments=json.dumps([[each.base_offset, each.next_offset, each.size_bytes] for each in segments]),
                config=config,
            )
        )
    return staged


def records(task: int, partition: int, count: int) -> list[tuple[bytes, bytes]]:
    """Rows that say where they come from."""
    return [(b"k%d" % number, b"t%d-p%d-%d" % (task, partition, number)) for number in range(count)]


def leftovers(root: Path) -> list[str]:
    """What is left of staged files, and of a load's own files in the root."""
    staging = root.parent / f"{root.name}.kstore-staging"
    found = sorted(str(path.relative_to(staging)) for path in staging.rglob("*")) if staging.exists() else []
    return found + [path.name for path in root.glob("kstore-commit*")]
