"""Jobs that are staged in an object store without Spark, as its tasks and its driver do it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from kstore import Store
from kstore.config.log_config import LogConfig
from kstore.objects.open_objects import open_objects
from kstore.spark.object_staging import publish
from kstore.spark.staging import Stage, check_load, made_of
from kstore.store.bulk_loads.load_manifest import Staged, Transaction

TOPIC = "orders"
PARTITIONS = 2


def stage_for(url: str, storage: Mapping[str, Any] | None = None, **config: object) -> Stage:
    """What the tasks of a new job run."""
    planned = check_load(TOPIC, PARTITIONS, None, None, config or None, None, {}, LogConfig())
    return made_of(planned, "", url, uuid.uuid4().hex, storage)


def rows_of(task: int, count: int) -> pa.RecordBatch:
    """The rows of a task; each names its task and its number, and every partition gets some."""
    numbers = range(count)
    return pa.record_batch(
        {
            "key": [b"%d" % number for number in numbers],
            "value": [b"t%d-%d" % (task, number) for number in numbers],
            "partition": pa.array([number % PARTITIONS for number in numbers], pa.int32()),
        }
    )


def upload_job(
    url: str,
    storage: Mapping[str, Any] | None = None,
    *,
    tasks: int = 2,
    count: int = 100,
    txn: Transaction | None = None,
) -> str:
    """Stage a whole job; its URL."""
    made = stage_for(url, storage)
    rows: list[Staged] = [row for task in range(tasks) for row in made.write([rows_of(task, count)])]
    return publish(made.directory, rows, txn, storage)


def values(tasks: int, count: int) -> list[list[bytes]]:
    """What each partition has after the job was adopted once."""
    return [
        [b"t%d-%d" % (task, number) for task in range(tasks) for number in range(count) if number % PARTITIONS == each]
        for each in range(PARTITIONS)
    ]


def stored(root: Path) -> list[list[bytes | None]]:
    """The values of each partition."""
    with Store.open(root, "r") as store:
        if TOPIC not in store.topics:
            return []
        return [[record.value for record in store.log(TOPIC, each).read()] for each in range(PARTITIONS)]


def keys_below(url: str, storage: Mapping[str, Any] | None = None) -> list[str]:
    with open_objects(url, storage, create=True) as objects:
        return sorted(info.key for info in objects.list() if not info.key.endswith(".lock"))


def change(url: str, manifest: Any) -> None:
    """Write another manifest into a job that lies in a directory."""
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    (Path(url.removeprefix("file://")) / "manifest.json").write_bytes(text)


def manifest_of(url: str) -> Any:
    return json.loads((Path(url.removeprefix("file://")) / "manifest.json").read_bytes())
