"""The driver's part of staging in an object store: jobs that are given up, and micro-batches that wait for their store.

Invariant: only objects that tasks have written, and manifests of their jobs, are deleted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from kstore.errors import ConfigError
from kstore.files import names
from kstore.objects import staged_objects
from kstore.objects.open_objects import open_objects
from kstore.store.bulk_loads import job_manifest
from kstore.store.bulk_loads.load_manifest import Staged, Transaction


def discard_objects(url: str, rows: Sequence[Staged], job: str | None, storage: Mapping[str, Any] | None) -> None:
    """Delete the objects of the attempts of `rows`, and all those of a job, given by its name or its URL."""
    stage = staged_objects.check_url(url)
    attempts: dict[str, set[str]] = {}
    for row in rows:
        place, attempt = os.path.split(row.directory)
        if place != f"{stage}/{row.job}":
            raise ConfigError(f"{row.directory[:400]!a} is not below {stage}")
        attempts.setdefault(row.job, set()).add(attempt)
    for name, of_job in attempts.items():
        with staged_objects.open_job(stage, name, storage) as objects:
            staged_objects.remove_attempts(objects, of_job)
    if job is not None:
        if staged_objects.is_url(job):
            place, job = staged_objects.split_job(job)
            if place != stage:
                raise ConfigError(f"{place}/{job} is not below {stage}")
        with staged_objects.open_job(stage, names.check_topic(job), storage) as objects:
            staged_objects.remove_job(objects)


def publish(url: str, rows: Sequence[Staged], txn: Transaction | None, storage: Mapping[str, Any] | None) -> str:
    """Write the manifest of the job at a URL, unless it has one, and return the URL; the job can then be adopted."""
    stage, job = staged_objects.split_job(url)
    with staged_objects.open_job(stage, job, storage) as objects:
        job_manifest.write(objects, job, rows, txn)
    return f"{stage}/{job}"


def discard_but_published(url: str, rows: Sequence[Staged], storage: Mapping[str, Any] | None) -> None:
    """Delete the objects of a job; of one that has a manifest, only those of the attempts in `rows` it does not name.

    A query that is started again has staged a batch once more; these objects would add up with each start.
    """
    stage, job = staged_objects.split_job(url)
    with staged_objects.open_job(stage, job, storage) as objects:
        found = job_manifest.read(objects, stage, job)
        if found is None:
            staged_objects.remove_job(objects)
            return
        kept = {row.directory for row in found.rows}
        again = {os.path.basename(row.directory) for row in rows if row.directory not in kept}
        staged_objects.remove_attempts(objects, again)


def clear_batches(url: str, query: str, batch: int, storage: Mapping[str, Any] | None) -> None:
    """Delete what is left of a query's micro-batches up to this one, below a staging URL; raises `BackupError`."""
    with open_objects(url, storage, create=True) as objects:
        for job, found in staged_objects.jobs_of(objects).items():
            number = job.removeprefix(f"{query}-")
            if number.isascii() and number.isdecimal() and job == f"{query}-{int(number)}" and int(number) <= batch:
                objects.delete([info.key for info in found])
