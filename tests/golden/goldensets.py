"""The golden sets: unpack one, and read what Kafka's own classes said about it.

A set is packed as `tests/golden/data/<set>.tar.xz` (`tests/golden/data/README.md` says why and what is inside).
`copy_set` unpacks a private copy that a test may damage; `expected_records` gives the lines of `records.jsonl` with
their bytes decoded.
"""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

PACKS = Path(__file__).parent / "data"
SETS = tuple(sorted(path.name.removesuffix(".tar.xz") for path in PACKS.glob("*.tar.xz")))


class ExpectedRecord(NamedTuple):
    """One record as Kafka's `FileRecords` read it; `line` has every field of the JSON line."""

    directory: str
    segment: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    line: dict[str, Any]


def copy_set(name: str, into: Path) -> Path:
    """Unpack a private copy of the set below `into`; its folder (`into / name`)."""
    with tarfile.open(PACKS / f"{name}.tar.xz") as pack:
        if hasattr(tarfile, "data_filter"):
            pack.extractall(into, filter="data")
        else:  # SEMANTICS 3.11 before 3.11.4
            pack.extractall(into)
    return into / name


@lru_cache(maxsize=4)
def read_lines(name: str) -> tuple[dict[str, Any], ...]:
    """Every line of the set's `records.jsonl`, as JSON gives it: do not change what is returned."""
    return tuple(json.loads(line) for line in _member(name, "records.jsonl").splitlines())


@cache
def about(name: str) -> dict[str, Any]:
    """The set's `about.json`: versions, settings, how it was made. Do not change what is returned."""
    answer: dict[str, Any] = json.loads(_member(name, "about.json"))
    return answer


def expected_records(name: str, directory: str, segment: str | None = None) -> Iterator[ExpectedRecord]:
    """The records of one partition directory (its path inside the set, such as "dir/canary-0") in log order.

    Lines about empty batches and about what Kafka's classes failed on are left out: `read_lines` has them.
    """
    for line in read_lines(name):
        if line["dir"] != directory or "offset" not in line or segment not in (None, line["segment"]):
            continue
        yield ExpectedRecord(
            directory=line["dir"],
            segment=line["segment"],
            offset=line["offset"],
            timestamp=line["timestamp"],
            key=decode(line["key"]),
            value=decode(line["value"]),
            headers=tuple((header, decode(value)) for header, value in line["headers"]),
            line=line,
        )


def partition_directories(name: str) -> list[str]:
    """The partition directories that the set's records name, in the order of the lines."""
    return list(dict.fromkeys(line["dir"] for line in read_lines(name)))


@cache
def log_directories(name: str) -> list[str]:
    """Every directory of the set that holds a `.log` file, by its path inside the set."""
    with tarfile.open(PACKS / f"{name}.tar.xz") as pack:
        logs = [member for member in pack.getnames() if member.endswith(".log")]
    return sorted({path.removeprefix(f"{name}/").rpartition("/")[0] for path in logs})


def _member(name: str, member: str) -> bytes:
    with tarfile.open(PACKS / f"{name}.tar.xz") as pack:
        stream = pack.extractfile(f"{name}/{member}")
        assert stream is not None
        return stream.read()


def decode(text: str | None) -> bytes | None:
    """The bytes of a base64 field, None for null."""
    return None if text is None else base64.b64decode(text)
