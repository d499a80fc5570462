"""A closed log to damage, over and over, and what `verify` says of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.codec import header
from kstore.tools.check.repair import plan_repair
from kstore.tools.check.verify import Finding, targets, verify


def errors(*paths: Path | str, deep: bool = False) -> list[Finding]:
    return [finding for finding in verify(paths, deep=deep).findings if finding.severity == "error"]


def unsound(*paths: Path | str) -> list[str]:
    """What `verify` finds wrong, and what `repair` would do; nothing where a log is sound."""
    found = [str(finding) for finding in errors(*paths, deep=True)]
    for target in targets(paths):
        if target.kind == "partition":
            plan = plan_repair(target.path)
            found += [] if plan.is_empty else [f"{target.path}: {plan.lines()}"]
    return found


def client_batch(timestamps: Sequence[int], **how: Any) -> bytes:
    """A batch of records of any timestamps, before 1970 too, as a client sends it: the header has the greatest one."""
    later = 2**41
    batch = bytearray(kstore.encode_batch([(b"k", b"v", at + later, ()) for at in timestamps], **how))
    header.BASE_TIMESTAMP.put(batch, header.BASE_TIMESTAMP.of(batch) - later)
    header.MAX_TIMESTAMP.put(batch, max(timestamps))
    header.CRC.put(batch, header.computed_crc(batch))
    return bytes(batch)


def make_log(tmp_path: Path) -> Path:
    """A closed log of three segments, batches of one to three records, four index entries in each of the first two."""
    path = tmp_path / "root" / "t-0"
    path.parent.mkdir()
    write(path)
    return path


def write(path: Path, batches: int = 24) -> None:
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000, 7))
    with kstore.Log.open(
        path, segment_bytes=2000, index_interval_bytes=300, segment_index_bytes=1200, clock=lambda: next(clock)
    ) as log:
        for number in range(batches):
            log.append_many([b"v" * 100] * (3 - number % 3))


def make_pristine(log_path: Path) -> Callable[[], Path]:
    """A function that gives the log back as it was."""
    root = log_path.parent
    kept = root.parent / "kept"
    shutil.copytree(root, kept)

    def restore() -> Path:
        shutil.rmtree(root)
        shutil.copytree(kept, root)
        return log_path

    return restore


def logs(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def batch_positions(data: bytes) -> list[int]:
    found, position = [], 0
    while position < len(data):
        found.append(position)
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return found


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return make_log(tmp_path)


@pytest.fixture
def pristine(log_path: Path) -> Callable[[], Path]:
    return make_pristine(log_path)
