"""What `kstore describe` says of the disk, against `du`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import kstore
from kstore import cli
from kstore.files import load_files, names

KINDS = (*names.SEGMENT_KINDS, names.SNAPSHOT)


def du(*paths: Path) -> int:
    """The bytes of the blocks under these paths, a file of several names once."""
    program = shutil.which("du")
    if program is None:
        pytest.skip("no du")
    done = subprocess.run([program, "-s", "-c", "-B1", *paths], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-2])


def described(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    cli.main(["describe", str(path), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def write(path: Path, random: Random) -> None:
    """A file of some blocks, a sparse one, or an empty one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        if random.random() < 0.8:
            file.write(random.randbytes(random.choice((1, 4096, 10_000, 70_000))))
        if random.random() < 0.3:
            file.truncate(1 << 20)


def a_root(path: Path, random: Random) -> list[Path]:
    """Directories and files of all kinds, under names that a broker, a store and a user give."""
    written = []
    for topic in ("a", "b"):
        for number in range(random.randint(1, 2)):
            for base in (0, 10, 20):
                for state in ("", names.DELETED, names.CLEANED, names.SWAP):
                    written += [path / f"{topic}-{number}" / names.file_name(base, kind, state) for kind in KINDS]
            written += [path / f"{topic}-{number}" / name for name in ("partition.metadata", "notes", "folder/deep/x")]
    written = random.sample(written, len(written) // 2)
    gone = f"{names.delete_directory_name('c', 0)}/{names.log_name(0)}"
    beside = [gone, "b-9-stray/x", "lost+found/x", "recovery-point-offset-checkpoint", "meta.properties"]
    written += [path / name for name in random.sample(beside, 3)]
    written += [Path(f"{path}{load_files.STAGING}") / f"job/{load_files.TASK_PREFIX}1/a-0/{names.log_name(0)}"]
    for file in written:
        write(file, random)
    twice, once = random.sample(written[:-1], 2)  # in the root, so that the staged bytes are those of their directory
    os.link(once, twice.parent / "hard link")
    (twice.parent / "soft link").symlink_to(once)
    return written


def test_the_bytes_on_the_disk_are_those_that_du_counts(
    tmp_path: Path, rng: Random, budget: Callable[[float], float], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(max(1, int(budget(6)))):
        random = Random(rng.random())
        root = tmp_path / f"data{number}"
        files = a_root(root, random)
        found = described(capsys, root)
        assert found["disk"]["total_bytes"] == du(root, Path(f"{root}{load_files.STAGING}"))
        assert found["disk"]["staged_bytes"] == du(Path(f"{root}{load_files.STAGING}"))
        live = [file for file in files if file.suffix == names.LOG and file.parent.name[-2:] in ("-0", "-1")]
        live = [file for file in live if file.is_relative_to(root) and file.parent.parent == root]
        assert found["disk"]["log_bytes"] <= sum(file.stat().st_blocks * 512 for file in live)
        for facts in found["partitions"]:
            parts = {name: count for name, count in facts["disk"].items() if name != "total_bytes"}
            assert sum(parts.values()) == facts["disk"]["total_bytes"]
        for topic, told in found["topics"].items():
            of_topic = [facts["disk"] for facts in found["partitions"] if facts["topic"] == topic]
            assert told["disk"] == {name: sum(each[name] for each in of_topic) for name in of_topic[0]}
        for name in {facts["path"] for facts in found["partitions"]}:
            assert described(capsys, Path(name))["disk"]["total_bytes"] == du(Path(name))


def test_each_kind_of_file_counts_as_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    with kstore.Store.open(root, background=False, file_delete_delay_ms=10**9) as store:
        for topic in ("kept", "cut", "gone"):
            store.create_topic(topic)
            store.append_many(topic, [bytes(1000)] * 100)
        log = store.log("cut", 0)
        log.roll()
        log.append(b"v")
        log.delete_records(100)
        log.apply_retention()
        store.delete_topic("gone")
        write(Path(f"{root}{load_files.STAGING}/job/x"), Random(1))
        found = described(capsys, root)
        [cut, kept] = [facts["disk"] for facts in found["partitions"]]
        assert found["disk"]["total_bytes"] == du(root, Path(f"{root}{load_files.STAGING}"))
        log_file = root / "kept-0" / names.log_name(0)
        assert kept["log_bytes"] == du(log_file)
        assert kept["deleted_bytes"] == 0
        assert cut["deleted_bytes"] == sum(map(du, (root / "cut-0").glob("*.deleted"))) > 0
        [gone] = root.glob("gone-0.*-delete")
        assert found["disk"]["deleted_bytes"] == cut["deleted_bytes"] + du(gone)
        assert found["disk"]["staged_bytes"] == du(Path(f"{root}{load_files.STAGING}"))
        assert cli.main(["describe", str(root)]) == 0
        told = capsys.readouterr().out.splitlines()[-1]
        assert told.startswith("on disk ")
        for what in ("logs", "indexes and other files", "deleted, not yet removed", "staged loads"):
            assert what in told
        assert cli.main(["describe", str(root / "kept-0")]) == 0
        assert "  on disk " in capsys.readouterr().out
