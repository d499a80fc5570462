"""What Kafka's dump tool printed for the golden sets: `tests/golden/data/dump/dumps.tar.xz`, by set and by run."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACK = Path(__file__).parent / "data" / "dump" / "dumps.tar.xz"


class Run(NamedTuple):
    """One run of the tool of 4.3.0: where it ran (inside the set), its arguments, and what came of it."""

    name: str
    directory: str
    code: int
    arguments: list[str]
    out: bytes
    err: str


@cache
def _files() -> dict[str, bytes]:
    with tarfile.open(PACK) as pack:
        streams = ((member.name, pack.extractfile(member)) for member in pack if member.isfile())
        return {name: stream.read() for name, stream in streams if stream is not None}


@cache
def runs(name: str) -> list[Run]:
    """Every run over the files of the set."""
    files = _files()
    found = []
    for line in files[f"{name}/dump/commands.txt"].decode().splitlines():
        if line.startswith("#"):
            continue
        out, directory, code, arguments = line.split("\t")
        text = f"{name}/dump/{out}"
        err = files.get(text.removesuffix(".out") + ".err", b"").decode()
        found.append(Run(out.removesuffix(".out"), directory, int(code), json.loads(arguments), files[text], err))
    return found
