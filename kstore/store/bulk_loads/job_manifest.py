"""`manifest.json` of a job in an object store: what its tasks have staged, and the load's transaction.

It is written when all tasks have ended, so a job that has one is whole. Invariant: what is decoded names only objects
of its own job, and every value is in its range, because the manifest is a stranger's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.errors import BackupError, KStoreError
from kstore.files.json_file import Fields
from kstore.objects import backup_manifest, staged_objects
from kstore.objects.object_store import Objects
from kstore.store.bulk_loads.load_manifest import Staged, Transaction, check_transaction

VERSION = 1
MOST_BYTES = 64 << 20
MOST_SEGMENTS = 500_000
MOST_CONFIG = 100_000  # characters


class JobManifest(NamedTuple):
    """The rows of a job, and the transaction of its load."""

    rows: tuple[Staged, ...]
    txn: Transaction | None


def write(objects: Objects, job: str, rows: Sequence[Staged], txn: Transaction | None) -> bool:
    """Write the manifest of a job; return False, and write nothing, if it has one. Raises `BackupError`."""
    application, version = check_transaction(txn)
    data = {
        "version": VERSION,
        "job": job,
        "application": application,
        "application_version": version,
        "rows": [_encoded(row) for row in rows],
    }
    text = json.dumps(data, separators=(",", ":")).encode() + b"\n"
    if len(text) > MOST_BYTES:
        raise BackupError(f"the manifest of {objects.url} would have {len(text)} bytes; {MOST_BYTES} are allowed")
    return objects.put_new(staged_objects.MANIFEST, text)


def _encoded(row: Staged) -> dict[str, Any]:
    return {
        "attempt": os.path.basename(row.directory),
        "task": row.task,
        "topic": row.topic,
        "partition": row.partition,
        "partitions": row.partitions,
        "records": row.records,
        "batches": row.batches,
        "bytes": row.bytes,
        "max_timestamp": row.max_timestamp,
        "config": row.config,
        "segments": [[*part, *place] for part, place in zip(row.parts, row.places, strict=True)],
    }


def read(objects: Objects, stage: str, job: str) -> JobManifest | None:
    """Return the manifest of a job, None if it has none; raises `BackupError` for one that cannot be a job's."""
    found = objects.read(staged_objects.MANIFEST, most_bytes=MOST_BYTES)
    return None if found is None else decode(found.data, stage, job)


def decode(data: bytes, stage: str, job: str) -> JobManifest:
    where = f"{stage}/{job}/{staged_objects.MANIFEST}"
    fields = backup_manifest.parse(data, where)
    with backup_manifest.malformed_fields(where):
        version = fields.integer("version", 0, LONG_MAX)
        if version != VERSION:
            raise BackupError(f"{where} has version {version}; this release of kstore knows version {VERSION}")
        named = fields.text("job")
        if named != job:
            raise BackupError(f"{where} is of the job {named[:100]!a}; it is not where it was written")
        application = fields.take("application")
        version = fields.integer("application_version", -1, LONG_MAX)
        txn = None if application is None else (fields.text_of("application", application), version)
        rows = []
        segments = 0
        for number, row in enumerate(fields.objects("rows")):
            parts = list(_segments(row))
            segments += len(parts)
            if segments > MOST_SEGMENTS:
                raise BackupError(f"{where} has more than {MOST_SEGMENTS} segments")
            rows.append(_row(row, parts, f"{where}, row {number}", stage, job))
        fields.end()
        try:
            check_transaction(txn)
        except (TypeError, ValueError) as error:
            raise BackupError(f"{where} is malformed: {error}") from None
    return JobManifest(tuple(rows), txn)


def _segments(row: Fields) -> Iterator[list[int]]:
    for place, item in row.items("segments"):
        if not isinstance(item, list) or len(item) != 6 or any(type(number) is not int for number in item):
            raise row.refusal(place, item, "a list of 6 numbers")
        yield item


def _row(row: Fields, parts: list[list[int]], where: str, stage: str, job: str) -> Staged:
    attempt = row.text("attempt")
    config = row.take("config")
    if config is not None and (not isinstance(config, str) or len(config) > MOST_CONFIG):
        raise row.refusal("config", config, f"null or text of at most {MOST_CONFIG} characters")
    values: dict[str, Any] = {
        "task": row.integer("task", 0, LONG_MAX),
        "topic": row.text("topic"),
        "partition": row.integer("partition", 0, INT_MAX),
        "partitions": row.integer("partitions", 1, INT_MAX),
        "records": row.integer("records", 1, LONG_MAX),
        "batches": row.integer("batches", 1, LONG_MAX),
        "bytes": row.integer("bytes", 1, LONG_MAX),
        "max_timestamp": row.integer("max_timestamp", -1, LONG_MAX),
    }
    row.end()
    try:
        return Staged(
            job=job,
            directory=f"{stage}/{job}/{attempt}",
            segments=json.dumps([part[:3] for part in parts]),
            objects=json.dumps([part[3:] for part in parts]),
            config=config,
            **values,
        )
    except (KStoreError, ValueError) as error:
        raise BackupError(f"{where} is malformed: {error}") from None
