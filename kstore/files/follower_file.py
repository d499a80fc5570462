"""The file of a follower, which names the leader's log directories.

`kstore-follower.json` is in every log directory of a follower and in none of a leader; a broker ignores it.
Invariant: while any directory of a store has the file, the store is a follower, so that a crash between changes of two
directories never makes a leader.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from kstore.disk import fs
from kstore.errors import InvalidTopicError, NotLeaderError, ReplicationError, StorageError
from kstore.files import json_file, load_files, names

FOLLOWER_FILE = "kstore-follower.json"
MAX_BYTES = 4 << 20
"""The largest size of the file: about fifteen thousand of the longest topic names."""

MAX_SOURCES = 1000

_VERSION = 1

Path = str | os.PathLike[str]


class FollowerRole(NamedTuple):
    """The role of a follower: the absolute paths of the leader's directories, and the topics to follow (None: all)."""

    source: tuple[str, ...]
    topics: tuple[str, ...] | None

    def __str__(self) -> str:
        topics = "" if self.topics is None else f", with the topics {', '.join(self.topics)}"
        return f"a follower of {', '.join(self.source)}{topics}: Store.become_leader() makes it a leader"

    def refusal(self, directory: str) -> NotLeaderError:
        """Return the error for a client's write to this follower."""
        return NotLeaderError(
            f"{directory}: a follower of {', '.join(self.source)} takes records and topics from there alone; "
            f"Store.become_leader() makes it a leader"
        )


def read_role(root: Path) -> FollowerRole | None:
    """Read a directory's role; None for a leader's directory. Raises `StorageError` if the file is malformed."""
    path = _path(root)
    fields = json_file.read(path, MAX_BYTES, _VERSION)
    if fields is None:
        return None
    sources = tuple(fields.path_of(place, item) for place, item in fields.items("source"))
    topics = None
    named = fields.take("topics")
    if named is not None:
        if not isinstance(named, list):
            raise fields.refusal("topics", named, "a list or null")
        topics = tuple(fields.text_of(f"topics[{number}]", item) for number, item in enumerate(named))
    fields.end()
    role = FollowerRole(sources, topics)
    wrong = _what_is_wrong(role)
    if wrong is not None:
        raise json_file.malformed(path, wrong)
    return role


def read_roles(roots: Iterable[Path]) -> FollowerRole | None:
    """Read the role of a store: a follower's if any of the directories has one, None for a leader.

    Raises `StorageError` if two directories name different leaders.
    """
    found: tuple[str, FollowerRole] | None = None
    for root in roots:
        role = read_role(root)
        if role is None:
            continue
        if found is not None and found[1] != role:
            what = f"this directory follows {', '.join(role.source)}, and {found[0]} is not a follower of the same"
            raise StorageError(errno.EBADMSG, f"{what}; kstore.replicate writes both anew", _path(root))
        found = found or (os.fspath(root), role)
    return None if found is None else found[1]


def write_role(root: Path, role: FollowerRole) -> None:
    """Write a follower's role, durably; the caller holds the root's lock. Raises `ValueError` for an invalid role."""
    wrong = _what_is_wrong(role)
    if wrong is not None:
        raise ValueError(wrong)
    topics = None if role.topics is None else list(role.topics)
    data = json.dumps({"version": _VERSION, "source": list(role.source), "topics": topics}, indent=1).encode() + b"\n"
    if len(data) > MAX_BYTES:
        raise ValueError(f"a follower's file of {len(data)} bytes; {MAX_BYTES} are allowed")
    fs.write_atomically(_path(root), data)


def remove_role(root: Path) -> None:
    """Remove the role from a directory, durably; do nothing if there is none."""
    if fs.unlink(_path(root)):
        fs.sync_directory(root)


def follow(roots: Sequence[Path], role: FollowerRole) -> None:
    """Make a store a follower: write the role into its directories. Creates missing ones; locks all during the change.

    Raises `LogLockedError` if a store or a broker has locked one of them, and `ReplicationError` if a bulk load into
    them is not finished, since a follower could not finish it.
    """
    with ExitStack() as locks:
        for root in roots:
            fs.make_directories(root)
            locks.callback(fs.lock_root(root, shared=False).release)
        for root in roots:
            refuse_pending_load(root)
        for root in roots:
            if read_role_to_replace(root) != role:
                write_role(root, role)


def read_role_to_replace(root: Path) -> FollowerRole | None:
    """Read a role as `read_role` does, but return None for a malformed file, which is about to be replaced."""
    try:
        return read_role(root)
    except StorageError as error:
        if error.errno != errno.EBADMSG:
            raise
        return None


def refuse_pending_load(root: Path) -> None:
    """Raise `ReplicationError` if a bulk load into this directory is committed but not finished."""
    path = f"{os.fspath(root)}/{load_files.COMMIT_FILE}"
    if fs.exists(path):
        raise ReplicationError(
            f"{path}: a bulk load is not finished, which a follower cannot take; Store.open finishes it in a leader"
        )


def _what_is_wrong(role: FollowerRole) -> str | None:
    """Return what makes a role invalid, None if nothing does."""
    if not role.source or len(role.source) > MAX_SOURCES or len(set(role.source)) < len(role.source):
        return f"source names {len(role.source)} directories; from 1 to {MAX_SOURCES} are needed, none of them twice"
    for path in role.source:
        if not json_file.is_plain_path(path):
            return f"source has {ascii(path)[:100]}; an absolute path without '.', '..', '//' and NUL is needed"
    topics = role.topics or ()
    if len(set(topics)) < len(topics):
        return "topics has a name twice"
    for topic in topics:
        try:
            names.check_topic(topic)
        except InvalidTopicError as error:
            return f"topics: {error}"
    return None


def _path(root: Path) -> str:
    return f"{os.fspath(root).rstrip('/')}/{FOLLOWER_FILE}"
