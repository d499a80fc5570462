"""A root's files about bulk loads: the record of a pending load, and the list of finished ones.

`kstore-commit.json` exists only from the commit of a load until the load is wholly in the logs. `kstore-loads.json` has
the last version of each application and the newest loads without an application. A broker ignores both. Invariant: only
the record in a load's primary root commits the load; the record itself says that it does, so the root may be moved. The
copies in other roots only keep writers out.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.disk import fs
from kstore.errors import ConfigError, InvalidTopicError, StorageError
from kstore.files import json_file, names
from kstore.files.json_file import Fields

COMMIT_FILE = "kstore-commit.json"
LOADS_FILE = "kstore-loads.json"
STAGING = ".kstore-staging"
"""The suffix that makes a root's path the path of its staging directory."""

TASK_PREFIX = "task-"
MAX_COMMIT_BYTES = 64 << 20  # about two hundred thousand staged segments
MAX_LOADS_BYTES = 32 << 20

STREAM_PREFIX = "spark:"
"""A streaming query's loads are those of the application with this prefix and the query's id."""

MOST_STREAMS = 1000
"""How many streaming queries are remembered: those that committed last."""

MOST_JOBS = 1000
"""How many loads are remembered by name; the staged files of older loads are long deleted."""

_STREAM = re.compile(re.escape(STREAM_PREFIX) + "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_VERSION = 1


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The record of a committed load: one of `shares` for each partition, and the `directories` of the staged files.

    `load` is the name of the load, "" if nothing was staged. `primary` is the root whose record commits the load. In a
    record that was read, `decides` says whether it is the primary root's record, and `root` is the path that its root
    had when it was written.
    """

    load: str
    primary: str
    roots: tuple[str, ...]
    application: str | None
    version: int
    shares: tuple[Mapping[str, Any], ...]
    directories: tuple[str, ...]
    decides: bool = False
    root: str = ""

    def __str__(self) -> str:
        whose = "" if self.application is None else f" of {self.application}, version {self.version},"
        return (
            f"a bulk load{whose} into {len(self.shares)} partitions was decided and is not finished; Store.open or "
            f"kstore.spark.commit finishes it"
        )


@dataclass(frozen=True, slots=True)
class Done:
    """The finished loads: the last version of each application, and the names of loads, the oldest first."""

    applications: Mapping[str, int] = field(default_factory=dict)
    loads: tuple[str, ...] = ()

    def has(self, load: str, application: str | None, version: int) -> bool:
        """Return whether this load, or this or a later version of the application, is finished; a load "" never is."""
        if application is not None and self.applications.get(application, -1) >= version:
            return True
        return load != "" and load in self.loads

    def has_job(self, job: str) -> bool:
        """Return whether a job that was staged in an object store is finished, as far as its name shows."""
        query, _, batch = job.rpartition("-")
        is_number = batch.isascii() and batch.isdecimal()
        return job in self.loads or (is_number and self.has("", f"{STREAM_PREFIX}{query}", int(batch)))

    def with_load(self, load: str, application: str | None, version: int) -> Done:
        """Return a copy with one more load."""
        applications = dict(self.applications)
        if application is not None:
            applications[application] = max(version, applications.pop(application, version))  # the last is the newest
            streams = [name for name in applications if is_stream(name)]
            for name in streams[:-MOST_STREAMS]:
                del applications[name]
        loads = (*(done for done in self.loads if done != load), *([load] if load else []))
        return Done(applications, loads[-MOST_JOBS:])

    def joined(self, other: Done) -> Done:
        applications = dict(other.applications)
        for name, version in self.applications.items():
            applications[name] = max(version, applications.get(name, version))
        return Done(applications, tuple(dict.fromkeys([*self.loads, *other.loads])))

    def write(self, roots: Iterable[str]) -> None:
        """Write the loads to every root, durably."""
        # "version" is the last line, as in the files of earlier releases: `kstore repair` reads damaged ones by lines.
        data = {"applications": dict(self.applications), "loads": list(self.loads), "version": _VERSION}
        for root in roots:
            _write(f"{root}/{LOADS_FILE}", data, MAX_LOADS_BYTES)  # in the order of the commits


def is_stream(application: str) -> bool:
    """Return whether the loads of an application are the micro-batches of a streaming query."""
    return _STREAM.fullmatch(application) is not None


def staging_areas(roots: Iterable[str], named: Iterable[str] = ()) -> tuple[str, ...]:
    """Return where loads into these roots may be staged: next to each root, and in the directories of `named`."""
    return tuple(dict.fromkeys([*(f"{root}{STAGING}" for root in roots), *named]))


def check_staged(directory: str, areas: Sequence[str], *, partition: str | None = None) -> str:
    """Return the staging area of a task attempt's directory, or of the directory of its `partition`.

    The path is AREA/JOB/TASK or AREA/JOB/TASK/PARTITION. Raises `ConfigError` for any other path. Does no I/O.
    """
    attempt, name = os.path.split(directory) if partition is not None else (directory, None)
    job, task = os.path.split(attempt)
    area = os.path.dirname(job)
    is_attempt = json_file.is_plain_path(directory) and task.startswith(TASK_PREFIX) and area != job
    if not is_attempt or name != partition or area not in areas:
        below = "" if partition is None else f"/{partition}"
        raise ConfigError(
            f"{_shown(directory)} is not JOB/{TASK_PREFIX}...{below} in a staging directory of this store "
            f"({', '.join(areas)}); staging_dir names another one"
        )
    return area


def read_done(roots: Iterable[str]) -> Done:
    """Return the finished loads of all roots; raise `StorageError` if a file cannot be read."""
    done = Done()
    for root in roots:
        path = f"{root}/{LOADS_FILE}"
        fields = json_file.read(path, MAX_LOADS_BYTES, _VERSION)
        if fields is None:
            continue
        versions = fields.mapping("applications")
        applications = Fields(versions, path, "applications.")
        newest_versions = {name: applications.integer(name, 0, LONG_MAX) for name in versions}
        loads = [fields.text_of(place, item) for place, item in fields.items("loads")]
        fields.end()
        done = done.joined(Done(newest_versions, tuple(loads)))
    return done


def write_commit(record: CommitRecord) -> None:
    """Commit a load. If this raises, the load may or may not be committed."""
    data = {
        "version": _VERSION,
        "load": record.load,
        "primary": record.primary,
        "roots": list(record.roots),
        "application": record.application,
        "application_version": record.version,
        "shares": list(record.shares),
        "directories": list(record.directories),
    }
    for root in sorted(record.roots, key=lambda root: root == record.primary):  # the record that commits is last
        own = {"decides": root == record.primary, "root": root}
        _write(f"{root}/{COMMIT_FILE}", data | own, MAX_COMMIT_BYTES)


def remove_commit(record: CommitRecord) -> None:
    """Remove the record of a load that is finished or was never committed."""
    for root in sorted(record.roots, key=lambda root: root != record.primary):
        if fs.exists(root) and fs.unlink(f"{root}/{COMMIT_FILE}"):
            fs.sync_directory(root)


def read_commit(root: str) -> CommitRecord | None:
    """Return the record in a root, None if there is none; raise `StorageError` if it cannot be read.

    The types and ranges of its fields are checked here; `find_pending` checks where its paths lead.
    """
    path = f"{root}/{COMMIT_FILE}"
    fields = json_file.read(path, MAX_COMMIT_BYTES, _VERSION)
    if fields is None:
        return None
    application = fields.take("application")
    record = CommitRecord(
        load=fields.text("load"),
        primary=fields.file_path("primary"),
        roots=tuple(fields.path_of(place, path) for place, path in fields.items("roots")),
        application=None if application is None else fields.text_of("application", application),
        version=fields.integer("application_version", -1, LONG_MAX),
        shares=tuple(_read_share(share) for share in fields.objects("shares")),
        directories=tuple(fields.path_of(place, item) for place, item in fields.items("directories")),
        decides=fields.flag("decides"),
        root=fields.file_path("root"),
    )
    fields.end()
    keys = [(share["topic"], share["partition"]) for share in record.shares]
    if len(set(keys)) < len(keys):
        raise json_file.malformed(path, "shares has a partition twice")
    return record


def _read_share(fields: Fields) -> dict[str, Any]:
    share: dict[str, Any] = {
        "root": fields.file_path("root"),
        "topic": fields.text("topic"),
        "partition": fields.integer("partition", 0, INT_MAX),
        "renames": fields.flag("renames"),
        "leader_epoch": fields.integer("leader_epoch", -1, INT_MAX),
        "segments": [_read_segment(segment) for segment in fields.objects("segments")],
    }
    fields.end()
    try:
        names.partition_name(share["topic"], share["partition"])
    except InvalidTopicError as error:
        raise json_file.malformed(fields.path, f"{fields.where}topic: {error}") from None
    segments = share["segments"]
    ends = [segment["next_offset"] for segment in segments]
    if not segments or ends[:-1] != [segment["base_offset"] for segment in segments[1:]]:
        what = "segments must be one at least, each where the last one ends"
        raise json_file.malformed(fields.path, f"{fields.where}{what}")
    return share


def _read_segment(fields: Fields) -> dict[str, Any]:
    segment = {
        "directory": fields.file_path("directory"),
        "staged_base": fields.integer("staged_base", 0, LONG_MAX),
        "bytes": fields.integer("bytes", 1, LONG_MAX),
        "base_offset": (base := fields.integer("base_offset", 0, LONG_MAX)),
        "next_offset": fields.integer("next_offset", base + 1, LONG_MAX),
        "first_crc": fields.integer("first_crc", 0, 2**32 - 1),
    }
    fields.end()
    return segment


def find_pending(roots: Sequence[str], areas: Sequence[str]) -> CommitRecord | None:
    """Return the load that is committed but not finished, with the present paths of its roots; None if there is none.

    All paths of the result are in these roots or below `areas` (`staging_areas`), so that a forged record cannot change
    other files. Copies of a load that was not committed are removed. Raises `StorageError` if a copy's primary root is
    not in `roots`, if a root was copied while a load was pending, and if a record names other directories.
    """
    records: dict[str, CommitRecord] = {}
    for root in roots:
        record = read_commit(root)
        if record is not None:
            records[root] = record
    for root, record in records.items():
        if record.decides:
            return _confined(_where_it_is(record, records), f"{root}/{COMMIT_FILE}", roots, areas)
    for record in records.values():
        if record.primary not in roots:
            state = "is not opened with the others" if fs.exists(record.primary) else "is missing"
            raise StorageError(
                errno.ENOENT, f"a bulk load is pending, and this root, which decides about it, {state}", record.primary
            )
        for root, copy in records.items():
            if copy.load == record.load and fs.unlink(f"{root}/{COMMIT_FILE}"):
                fs.sync_directory(root)
    return None


def _confined(record: CommitRecord, path: str, roots: Sequence[str], areas: Sequence[str]) -> CommitRecord:
    """Return the record without roots that are not in `roots`; refuse paths that are not in these or in `areas`."""
    if record.primary not in roots:
        raise json_file.malformed(path, f"primary is {_shown(record.primary)}, which is not opened with this root")

    def check(field: str, directory: str, partition: str | None = None) -> None:
        try:
            fs.refuse_links(directory, below=check_staged(directory, areas, partition=partition))
        except ConfigError as error:
            what = f"{field}: {error}; removing this file gives the load up"
            raise StorageError(errno.EPERM, what, path) from None

    for number, share in enumerate(record.shares):
        name = f"{share['topic']}-{share['partition']}"
        for at, segment in enumerate(share["segments"]):
            check(f"shares[{number}].segments[{at}].directory", segment["directory"], name)
    for number, directory in enumerate(record.directories):
        check(f"directories[{number}]", directory)
    return replace(record, roots=tuple(root for root in record.roots if root in roots))


def _where_it_is(record: CommitRecord, records: Mapping[str, CommitRecord]) -> CommitRecord:
    """Return a record with the present paths of its roots, since a root may have been moved after the commit."""
    moves = {copy.root: root for root, copy in records.items() if copy.load == record.load and copy.root != root}
    if not moves:
        return record
    for old, new in moves.items():
        other = read_commit(old) if fs.exists(old) and not _is_the_same(old, new) else None
        if other is not None and other.load == record.load:
            raise StorageError(
                errno.EEXIST,
                f"a bulk load is pending here and in {old}, of which this is a copy; it is finished there; "
                f"to give it up here, remove this file",
                f"{new}/{COMMIT_FILE}",
            )

    def moved(path: str) -> str:
        for old, new in moves.items():
            for before, now in ((old, new), *_parents(old, new)):
                at = now + path.removeprefix(before)
                if path.startswith((f"{before}/", f"{before}{STAGING}/")) and fs.exists(at):
                    return at
        return path

    def moved_share(share: Mapping[str, Any]) -> Mapping[str, Any]:
        segments = [{**segment, "directory": moved(str(segment["directory"]))} for segment in share["segments"]]
        return {**share, "root": moves.get(share["root"], share["root"]), "segments": segments}

    return replace(
        record,
        primary=moves.get(record.primary, record.primary),
        roots=tuple(moves.get(root, root) for root in record.roots),
        shares=tuple(map(moved_share, record.shares)),
        directories=tuple(map(moved, record.directories)),
    )


def _is_the_same(one: str, other: str) -> bool:
    first, second = fs.stat(one), fs.stat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _parents(old: str, new: str) -> list[tuple[str, str]]:
    """Return the old and new path of the directory that was moved, without the names that both paths end in."""
    one, two = old.split("/"), new.split("/")
    while one and two and one[-1] == two[-1]:
        one.pop()
        two.pop()
    return [("/".join(one), "/".join(two))] if len("/".join(one)) < len(old) else []


def refuse_pending(root: str, topic: str, partition: int) -> None:
    """Raise `StorageError` if a bulk load into the partition is pending: only the store that finishes it may write."""
    path = f"{root}/{COMMIT_FILE}"
    if not fs.exists(path):
        return
    record = read_commit(root)
    if record is not None and any(
        share.get("topic") == topic and share.get("partition") == partition for share in record.shares
    ):
        raise StorageError(
            errno.EBUSY,
            f"a bulk load into {topic}-{partition} was decided and is not finished; Store.open or "
            f"kstore.spark.commit finishes it",
            path,
        )


def _shown(path: str) -> str:
    return ascii(path)[:400]


def _write(path: str, data: Any, most_bytes: int) -> None:
    text = (json.dumps(data, indent=1) + "\n").encode()
    if len(text) > most_bytes:
        raise StorageError(errno.EFBIG, f"{len(text)} bytes are to be written; {most_bytes} are allowed", path)
    fs.write_atomically(path, text)
