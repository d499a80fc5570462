"""What a root's files say of bulk loads: the COMMIT record of one that is pending, and which have been done.

`kstore-commit.json` is there only while a load that was decided is not wholly in the logs; `kstore-loads.json` has
the last version of each application and the newest loads without one. Plain files in the root: a broker passes them
over. Owns their text and the order in which the roots of a store get them. The hardest rule: a load is decided by the
record in its first root alone; copies elsewhere only keep writers out.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kstore import fs
from kstore.errors import StorageError

COMMIT_FILE = "kstore-commit.json"
LOADS_FILE = "kstore-loads.json"
MOST_JOBS = 1000
"""How many loads without a transaction are remembered; the staged files of older ones are long gone."""

_VERSION = 1


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A load that is decided. `shares` are what the partitions get, `directories` what was staged for it.

    `load` names it: what was staged in these directories; "" where nothing was. `primary` is the root whose record
    decides.
    """

    load: str
    primary: str
    roots: tuple[str, ...]
    application: str | None
    version: int
    shares: tuple[Mapping[str, Any], ...]
    directories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Which loads have been done: the last version by application, and loads by name, the oldest first."""

    applications: Mapping[str, int] = field(default_factory=dict)
    loads: tuple[str, ...] = ()

    def has(self, load: str, application: str | None, version: int) -> bool:
        """Whether this load, or this version of the application or a later one, has been done; a load "" never has."""
        if application is not None and self.applications.get(application, -1) >= version:
            return True
        return load != "" and load in self.loads

    def with_load(self, load: str, application: str | None, version: int) -> Done:
        """The same with one more."""
        applications = dict(self.applications)
        if application is not None:
            applications[application] = max(version, applications.get(application, version))
        loads = (*(each for each in self.loads if each != load), *([load] if load else []))
        return Done(applications, loads[-MOST_JOBS:])

    def write(self, roots: Iterable[str]) -> None:
        """Write it to every root, durably."""
        data = {"version": _VERSION, "applications": dict(self.applications), "loads": list(self.loads)}
        for root in roots:
            fs.write_atomically(f"{root}/{LOADS_FILE}", _text(data))


def read_done(roots: Iterable[str]) -> Done:
    """What the roots know together; `StorageError` for a file that cannot be read."""
    done = Done()
    for root in roots:
        path = f"{root}/{LOADS_FILE}"
        found = _read(path)
        if found is None:
            continue
        try:
            applications = {str(name): int(version) for name, version in found["applications"].items()}
            loads = [str(each) for each in found["loads"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _malformed(path, error) from None
        for name, version in done.applications.items():
            applications[name] = max(version, applications.get(name, version))
        done = Done(applications, tuple(dict.fromkeys([*done.loads, *loads])))
    return done


def write_commit(record: CommitRecord) -> None:
    """Decide a load: when this returns it happens, when it raises it may."""
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
    for root in sorted(record.roots, key=lambda root: root == record.primary):  # the one that counts comes last
        fs.write_atomically(f"{root}/{COMMIT_FILE}", _text(data))


def remove_commit(record: CommitRecord) -> None:
    """Take the record of a load away that is done, or that never was decided."""
    for root in sorted(record.roots, key=lambda root: root != record.primary):
        if fs.exists(root) and fs.unlink(f"{root}/{COMMIT_FILE}"):
            fs.sync_directory(root)


def read_commit(root: str) -> CommitRecord | None:
    """The record in a root, None if there is none; `StorageError` for one that cannot be read."""
    path = f"{root}/{COMMIT_FILE}"
    found = _read(path)
    if found is None:
        return None
    try:
        return CommitRecord(
            load=str(found["load"]),
            primary=str(found["primary"]),
            roots=tuple(map(str, found["roots"])),
            application=None if found["application"] is None else str(found["application"]),
            version=int(found["application_version"]),
            shares=tuple(dict(each) for each in found["shares"]),
            directories=tuple(map(str, found["directories"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(path, error) from None


def find_pending(roots: Sequence[str]) -> CommitRecord | None:
    """The load that is decided and not done, if there is one; copies of one that was not decided are removed.

    Raises `StorageError` when a copy is there and the root that decides is not.
    """
    copies: list[CommitRecord] = []
    for root in roots:
        record = read_commit(root)
        if record is None:
            continue
        if record.primary == root:
            return record
        copies.append(record)
    for record in copies:
        if not fs.exists(record.primary):
            raise StorageError(errno.ENOENT, "a bulk load is pending, and this root of it is missing", record.primary)
        decided = read_commit(record.primary)
        if decided is not None and decided.load == record.load:
            return decided
        remove_commit(record)
    return None


def refuse_pending(root: str, topic: str, partition: int) -> None:
    """Raise `StorageError` for a partition into which a bulk load is on its way: only who finishes it may write."""
    path = f"{root}/{COMMIT_FILE}"
    if not fs.exists(path):
        return
    record = read_commit(root)
    if record is not None and any(
        each.get("topic") == topic and each.get("partition") == partition for each in record.shares
    ):
        raise StorageError(
            errno.EBUSY,
            f"a bulk load into {topic}-{partition} was decided and is not finished; Store.open or "
            f"kstore.spark.commit finishes it",
            path,
        )


def _read(path: str) -> dict[str, Any] | None:
    try:
        data = fs.read_file(path)
    except fs.MissingFileError:
        return None
    try:
        found = json.loads(data)
        version = found["version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _malformed(path, error) from None
    if version != _VERSION:
        raise StorageError(errno.EINVAL, f"version {version!r} of this file; {_VERSION} is known", path)
    if not isinstance(found, dict):
        raise _malformed(path, TypeError("no object"))
    return found


def _malformed(path: str, error: Exception) -> StorageError:
    reason = f"{type(error).__name__}: {error}"[:200]
    return StorageError(errno.EINVAL, f"malformed, and what it says decides about records ({reason})", path)


def _text(data: Any) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
