"""The files with the positions of queries and exports: what is written is read, any other bytes are an error."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kstore import cli
from kstore.errors import StorageError
from kstore.files.stream_positions import (
    MAX_BYTES,
    StreamPositions,
    groups_with_positions,
    read_group,
    read_positions,
    write_positions,
)

SOUND: dict[str, Any] = {"version": 1, "written_ms": 5, "offsets": {"t": {"0": 3, "1": 0}, "u": {"10": 2**63 - 1}}}
EXPECTED = StreamPositions("g", 5, {("t", 0): 3, ("t", 1): 0, ("u", 10): 2**63 - 1})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def put(root: Path, content: object, group: str = "g") -> Path:
    """Write a group's file with this content: bytes, or what becomes JSON."""
    path = Path(f"{root}.kstore-positions") / f"{group}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_positions_that_were_written_are_read_and_replaced(root: Path) -> None:
    assert read_positions(str(root)) == []
    write_positions(str(root), EXPECTED)
    other = StreamPositions("a", 6, {})
    write_positions(str(root), other)
    assert read_positions(str(root)) == [other, EXPECTED]
    write_positions(str(root), EXPECTED._replace(written_ms=7))
    assert read_positions(str(root)) == [other, EXPECTED._replace(written_ms=7)]
    of_exports = other._replace(topic_ids={"t": "b3JkZXJzLW9mLXRlYS0xMw"})
    write_positions(str(root), of_exports)
    assert read_positions(str(root))[0] == of_exports
    assert list(root.iterdir()) == []


def test_other_names_in_the_directory_are_no_groups(root: Path) -> None:
    path = put(root, SOUND)
    path.with_name("g.json.tmp").write_bytes(b"")
    path.with_name("notes").write_bytes(b"")
    assert groups_with_positions(str(root)) == ["g"]
    assert read_group(str(root), "another") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"NaN",
        b"[" * 100_000,
        b"1" * 5000,
        b'{"version": 1, "version": 1, "written_ms": 5, "offsets": {}}',
        b'{"version": 1, "written_ms": 5, "offsets": {"t": {"0": 1, "0": 2}}}',
        b" " * (MAX_BYTES + 1),
        [],
        SOUND | {"version": 2},
        SOUND | {"version": "1"},
        SOUND | {"more": 1},
        SOUND | {"topic_ids": None},
        SOUND | {"topic_ids": []},
        SOUND | {"topic_ids": {"t": 1}},
        SOUND | {"topic_ids": {"t": "short"}},
        SOUND | {"topic_ids": {"../t": "b3JkZXJzLW9mLXRlYS0xMw"}},
        SOUND | {"written_ms": -1},
        SOUND | {"written_ms": 2**63},
        SOUND | {"written_ms": None},
        {"version": 1, "written_ms": 5},
        SOUND | {"offsets": []},
        SOUND | {"offsets": {"t": []}},
        SOUND | {"offsets": {"t": 1}},
        SOUND | {"offsets": {"../t": {"0": 1}}},
        SOUND | {"offsets": {"x" * 250: {"0": 1}}},
        SOUND | {"offsets": {"\ud800": {"0": 1}}},
        SOUND | {"offsets": {"t": {"": 1}}},
        SOUND | {"offsets": {"t": {"-1": 1}}},
        SOUND | {"offsets": {"t": {"00": 1}}},
        SOUND | {"offsets": {"t": {"٣": 1}}},
        SOUND | {"offsets": {"t": {"2147483648": 1}}},
        SOUND | {"offsets": {"t": {"9" * 5000: 1}}},
        SOUND | {"offsets": {"t": {"0": -1}}},
        SOUND | {"offsets": {"t": {"0": 2**63}}},
        SOUND | {"offsets": {"t": {"0": 1.0}}},
        SOUND | {"offsets": {"t": {"0": True}}},
        SOUND | {"offsets": {"t": {"0": "1"}}},
    ],
    ids=lambda content: f"{content!a:.60}",
)
def test_any_other_content_is_an_error_that_names_the_file(root: Path, content: object) -> None:
    put(root, SOUND)
    assert read_positions(str(root)) == [EXPECTED]
    path = put(root, content)
    with pytest.raises(StorageError) as error:
        read_positions(str(root))
    assert error.value.filename == str(path)
    assert "kstore repair" not in str(error.value)
    assert len(str(error.value)) < 1000


def test_any_bytes_give_positions_or_an_error_and_are_described(
    root: Path, rng: Random, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = json.dumps(SOUND).encode()
    for _ in range(300):
        changed = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(changed))
            changed[place : place + rng.randint(0, 3)] = rng.choice(
                [rng.randbytes(2), b"0", b'"', b"{", b"}", b"9" * 20]
            )
        put(root, bytes(changed))
        path = f"{root}.kstore-positions/g.json"
        try:
            named = [read_positions(str(root))[0].group]
        except StorageError as error:
            named = [error.filename]
        assert named in (["g"], [path])
        assert cli.main(["describe", "--json", str(root)]) == 0
        json.loads(capsys.readouterr().out)


def test_a_link_a_pipe_and_a_directory_are_not_read(root: Path, tmp_path: Path) -> None:
    path = put(root, SOUND)
    (tmp_path / "secret").write_text(json.dumps(SOUND))
    for make in (lambda: path.symlink_to(tmp_path / "secret"), lambda: os.mkfifo(path), path.mkdir):
        path.unlink()
        make()
        with pytest.raises(StorageError, match="is here, and"):
            read_positions(str(root))


def test_a_group_may_have_any_name_that_a_file_can_have(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = ["", "..", "a\nb", "\x1b[31m", "\udcff", "ünï"]
    for group in odd:
        put(root, SOUND, group)
    assert {each.group for each in read_positions(str(root))} == set(odd)
    for arguments in (["describe"], ["describe", "--json"]):
        assert cli.main([*arguments, str(root)]) == 0
        assert "\x1b" not in capsys.readouterr().out
