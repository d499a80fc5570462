"""The objects of bulk loads that Spark's tasks have staged in an object store: their names, their listing, their end.

Below a staging URL each load has a prefix, its job. Each attempt of a task writes the `.log` files of its segments one
after the other into objects `<job>/<attempt>.<number>`; `<job>/manifest.json` is written last, if at all. Invariant:
only objects with these names are read and deleted; anything else below the URL stays.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kstore.errors import ConfigError, InvalidTopicError
from kstore.files import names
from kstore.files.load_files import TASK_PREFIX
from kstore.objects.object_store import ObjectInfo, Objects
from kstore.objects.open_objects import SCHEMES, open_objects
from kstore.objects.remote_objects import without_credentials

MANIFEST = "manifest.json"

MOST_NUMBER = 9999
"""The highest number of an attempt's object."""

STALE_MS = 7 * 24 * 3600 * 1000
"""Objects of a job without a manifest are deleted if none was written for a week, as in a staging directory."""

_ATTEMPT = re.compile(re.escape(TASK_PREFIX) + r"[0-9]{1,10}-[0-9a-f]{32}")
_OBJECT = re.compile(rf"({_ATTEMPT.pattern})\.(0|[1-9][0-9]{{0,3}})")


class StagedKey(NamedTuple):
    """An object of an attempt, named below its job."""

    attempt: str
    number: int

    def __str__(self) -> str:
        return f"{self.attempt}.{self.number}"


def is_url(place: object) -> bool:
    """Return whether a staging directory is the URL of an object store."""
    return isinstance(place, str) and "://" in place


def check_url(url: str) -> str:
    """Return a staging URL without credentials and slashes at its end; raises `ConfigError` for what cannot be one."""
    scheme, _, rest = url.partition("://")
    plain = without_credentials(url)
    if scheme not in SCHEMES or scheme == "memory":
        allowed = ", ".join(each for each in SCHEMES if each != "memory")
        raise ConfigError(f"{plain[:200]!r} begins with {scheme[:20]!r}; {allowed} are allowed for staging")
    parts = plain.partition("://")[2].split("/")
    if not rest.strip("/") or "?" in plain or "#" in plain or "." in parts[1:] or ".." in parts or "" in parts[1:]:
        raise ConfigError(f"{plain[:200]!r} is no URL for staging: s3://bucket/prefix is one")
    return plain


def is_attempt(name: str) -> bool:
    return _ATTEMPT.fullmatch(name) is not None


def parse(key: str) -> StagedKey | None:
    """Return the parts of an object's name below its job; None for any other name."""
    match = _OBJECT.fullmatch(key)
    return None if match is None else StagedKey(match[1], int(match[2]))


def split_job(url: str) -> tuple[str, str]:
    """Return the staging URL and the name of the job that the URL of a job consists of; raises `ConfigError`."""
    stage, _, job = check_url(url).rpartition("/")
    try:
        check_url(stage)
        return stage, names.check_topic(job)
    except (ConfigError, InvalidTopicError):
        what = "is not the URL of a job, a staging URL followed by the job's name"
        raise ConfigError(f"{without_credentials(url)[:200]!r} {what}") from None


def open_job(stage: str, job: str, storage: Mapping[str, Any] | None, *, create: bool = True) -> Objects:
    """Open the objects of one job; `create` is that of `open_objects`."""
    return open_objects(f"{stage}/{names.check_topic(job)}", storage, create=create)


def list_job(objects: Objects) -> dict[str, int]:
    """Return the names and sizes of a job's objects, the manifest last if there is one."""
    found = {info.key: info.size for info in objects.list() if info.key == MANIFEST or parse(info.key) is not None}
    if MANIFEST in found:
        found[MANIFEST] = found.pop(MANIFEST)
    return found


def remove_job(objects: Objects) -> None:
    """Delete the objects of a job, the manifest last, so that a repetition finds the rest."""
    wanted = list(list_job(objects))
    objects.delete(key for key in wanted if key != MANIFEST)
    if MANIFEST in wanted:
        objects.delete([MANIFEST])


def remove_attempts(objects: Objects, attempts: Iterable[str]) -> None:
    """Delete the objects of some attempts of a job."""
    gone = set(attempts)
    keys = [key for key in list_job(objects) if (parsed := parse(key)) is not None and parsed.attempt in gone]
    objects.delete(keys)


def jobs_of(objects: Objects) -> dict[str, list[ObjectInfo]]:
    """Return what lies below a staging URL by job. `objects` are those of the staging URL."""
    jobs: dict[str, list[ObjectInfo]] = {}
    for info in objects.list():
        job, _, key = info.key.partition("/")
        if key == MANIFEST or parse(key) is not None:
            jobs.setdefault(job, []).append(info)
    return jobs


def remove_stale(objects: Objects, *, now_ms: int | None = None) -> list[str]:
    """Delete and return the jobs without a manifest to which nothing was written for a week."""
    limit = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) - STALE_MS
    removed = []
    for job, found in jobs_of(objects).items():
        keys = [info.key for info in found]
        if f"{job}/{MANIFEST}" not in keys and max(info.modified_ms for info in found) < limit:
            objects.delete(keys)
            removed.append(job)
    return removed
