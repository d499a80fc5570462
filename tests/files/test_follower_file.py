"""The role file of a follower: strict reading, durable writing, several directories of one store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kstore.disk import fs
from kstore.errors import LogLockedError, NotLeaderError, ReplicationError, StorageError
from kstore.files.follower_file import (
    FOLLOWER_FILE,
    MAX_BYTES,
    MAX_SOURCES,
    FollowerRole,
    follow,
    read_role,
    read_roles,
    remove_role,
    write_role,
)

ROLE = FollowerRole(("/srv/leader",), None)


def put(root: Path, content: object) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (root / FOLLOWER_FILE).write_bytes(data)


@pytest.mark.parametrize(
    "role",
    [
        ROLE,
        FollowerRole(("/a", "/b/c"), ("orders", "__consumer_offsets")),
        FollowerRole(("/with blank/ünï",), ()),
        FollowerRole(tuple(f"/d{n}" for n in range(MAX_SOURCES)), None),
    ],
)
def test_a_role_that_was_written_is_read_and_removed(tmp_path: Path, role: FollowerRole) -> None:
    assert read_role(tmp_path) is None
    write_role(tmp_path, role)
    assert read_role(tmp_path) == role
    remove_role(tmp_path)
    remove_role(tmp_path)
    assert read_role(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "role",
    [
        FollowerRole((), None),
        FollowerRole(("/a", "/a"), None),
        FollowerRole(("relative",), None),
        FollowerRole(("/a/../b",), None),
        FollowerRole(("/a\0",), None),
        FollowerRole(tuple(f"/d{n}" for n in range(MAX_SOURCES + 1)), None),
        FollowerRole(("/a",), ("../../etc",)),
        FollowerRole(("/a",), ("one", "one")),
    ],
)
def test_a_role_that_cannot_be_is_not_written_and_not_read(tmp_path: Path, role: FollowerRole) -> None:
    with pytest.raises(ValueError):
        write_role(tmp_path, role)
    assert not (tmp_path / FOLLOWER_FILE).exists()
    topics = None if role.topics is None else list(role.topics)
    put(tmp_path, {"version": 1, "source": list(role.source), "topics": topics})
    with pytest.raises(StorageError, match=FOLLOWER_FILE):
        read_role(tmp_path)


SOUND: dict[str, Any] = {"version": 1, "source": ["/a"], "topics": None}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b'{"version": 1, "version": 1, "source": ["/a"], "topics": null}',
        b" " * (MAX_BYTES + 1),
        b"[" * 100_000,
        [],
        SOUND | {"version": 2},
        SOUND | {"version": "1"},
        SOUND | {"more": 1},
        {"version": 1, "source": ["/a"]},
        SOUND | {"source": "/a"},
        SOUND | {"source": [1]},
        SOUND | {"source": ["a"]},
        SOUND | {"topics": "all"},
        SOUND | {"topics": [None]},
        SOUND | {"topics": ["a/b"]},
        SOUND | {"topics": ["x" * 250]},
    ],
)
def test_any_other_content_is_an_error_that_names_the_file(tmp_path: Path, content: object) -> None:
    put(tmp_path, SOUND)
    assert read_role(tmp_path) == FollowerRole(("/a",), None)
    put(tmp_path, content)
    with pytest.raises(StorageError, match=FOLLOWER_FILE):
        read_role(tmp_path)


def test_one_directory_with_a_role_makes_the_store_a_follower(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        root.mkdir()
    assert read_roles(roots) is None
    write_role(roots[1], ROLE)
    assert read_roles(roots) == ROLE
    write_role(roots[0], ROLE)
    assert read_roles(roots) == ROLE
    write_role(roots[0], FollowerRole(("/elsewhere",), None))
    with pytest.raises(StorageError, match="/srv/leader"):
        read_roles(roots)


def test_follow_makes_all_directories_those_of_a_follower_and_needs_their_locks(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    follow(roots, ROLE)
    assert [read_role(root) for root in roots] == [ROLE, ROLE]
    put(roots[0], b"damaged")
    other = FollowerRole(("/other",), ("t",))
    lock = fs.lock_root(roots[1], shared=False)
    with pytest.raises(LogLockedError):
        follow(roots, other)
    lock.release()
    assert read_role(roots[1]) == ROLE
    follow(roots, other)
    assert [read_role(root) for root in roots] == [other, other]


def test_a_directory_with_an_unfinished_bulk_load_cannot_follow(tmp_path: Path) -> None:
    (tmp_path / "kstore-commit.json").write_bytes(b"{}")
    with pytest.raises(ReplicationError, match="bulk load"):
        follow([tmp_path], ROLE)
    assert read_role(tmp_path) is None


def test_the_refusal_names_the_directory_and_the_source() -> None:
    error = FollowerRole(("/a", "/b"), None).refusal("/here")
    assert isinstance(error, NotLeaderError)
    assert isinstance(error, PermissionError)
    assert "/here" in str(error)
    assert "/a, /b" in str(error)
