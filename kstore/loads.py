"""What a root's files say of bulk loads: the COMMIT record of one that is pending, and which have been done.

`kstore-commit.json` is there only while a load that was decided is not wholly in the logs; `kstore-loads.json` has
the last version of each application and the newest loads without one. Plain files in the root: a broker passes them
over. Owns their text and the order in which the roots of a store get them. The hardest rule: a load is decided by the
record in its first root alone, which says so itself, wherever that root is found later; copies elsewhere only keep
writers out.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kstore import fs
from kstore.errors import StorageError

COMMIT_FILE = "kstore-commit.json"
LOADS_FILE = "kstore-loads.json"
STAGING = ".kstore-staging"
"""What a staging directory that is beside its root has behind the root's name."""

MOST_JOBS = 1000
"""How many loads without a transaction are remembered; the staged files of older ones are long gone."""

_VERSION = 1


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A load that is decided. `shares` are what the partitions get, `directories` what was staged for it.

    `load` names it: what was staged in these directories; "" where nothing was. `primary` is the root whose record
    decides. Of what was read, `decides` says whether it does, and `root` where its root was when it was written.
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
        own = {"decides": root == record.primary, "root": root}
        fs.write_atomically(f"{root}/{COMMIT_FILE}", _text(data | own))


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
            decides=found["decides"] is True,
            root=str(found["root"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(path, error) from None


def find_pending(roots: Sequence[str]) -> CommitRecord | None:
    """The load that is decided and not done, if there is one, with the paths that its roots have now.

    Copies of one that was not decided are removed. Raises `StorageError` when a copy is there and the root that decides
    is not, and for a root that is itself a copy, made while a load was pending.
    """
    found: dict[str, CommitRecord] = {}
    for root in roots:
        record = read_commit(root)
        if record is not None:
            found[root] = record
    for record in found.values():
        if record.decides:
            return _where_it_is(record, found)
    for record in found.values():
        decided = read_commit(record.primary) if fs.exists(record.primary) else None
        if decided is not None and decided.decides and decided.load == record.load:
            return _where_it_is(decided, found)
        if record.primary not in roots:
            there = "is not opened with the others" if fs.exists(record.primary) else "is missing"
            raise StorageError(
                errno.ENOENT, f"a bulk load is pending, and this root, which decides about it, {there}", record.primary
            )
        for root, copy in found.items():
            if copy.load == record.load and fs.unlink(f"{root}/{COMMIT_FILE}"):
                fs.sync_directory(root)
    return None


def _where_it_is(record: CommitRecord, found: Mapping[str, CommitRecord]) -> CommitRecord:
    """A load whose roots are reached by other paths than when it was decided, by the paths they have now."""
    moves = {copy.root: root for root, copy in found.items() if copy.load == record.load and copy.root != root}
    if not moves:
        return record
    for old, new in moves.items():
        other = read_commit(old) if fs.exists(old) and not _is_the_same(old, new) else None
        if other is not None and other.load == record.load:
            raise StorageError(
                errno.EEXIST,
                f"a bulk load is pending here and in {old}, of which this is a copy; it is finished there, and here "
                f"whoever removes this file gives it up",
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
        segments = [{**each, "directory": moved(str(each["directory"]))} for each in share["segments"]]
        return {**share, "root": moves.get(share["root"], share["root"]), "segments": segments}

    try:
        shares = tuple(map(moved_share, record.shares))
    except (KeyError, TypeError) as error:
        raise _malformed(f"{moves.get(record.primary, record.primary)}/{COMMIT_FILE}", error) from None
    return replace(
        record,
        primary=moves.get(record.primary, record.primary),
        roots=tuple(moves.get(root, root) for root in record.roots),
        shares=shares,
        directories=tuple(map(moved, record.directories)),
    )


def _is_the_same(one: str, other: str) -> bool:
    """Whether two paths lead to one directory."""
    first, second = fs.stat(one), fs.stat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _parents(old: str, new: str) -> list[tuple[str, str]]:
    """The directories that were moved if not only the root was: what is above the names that both paths end in."""
    one, two = old.split("/"), new.split("/")
    while one and two and one[-1] == two[-1]:
        one.pop()
        two.pop()
    return [("/".join(one), "/".join(two))] if len("/".join(one)) < len(old) else []


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
