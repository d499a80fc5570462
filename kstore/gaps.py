"""Offsets that a repair has lost for good, written down in the partition's directory.

A log may lack offsets where a cleaner, a truncation or a repair took them; between two segments only this file tells a
repair from a segment that got lost. A broker passes over a plain file of this name. Owns the file's text.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable

from kstore import fs
from kstore.errors import StorageError

__all__ = ["GAPS_FILE", "read_gaps", "write_gaps"]

GAPS_FILE = "kstore-gaps.json"

_VERSION = 1


def read_gaps(directory: str | os.PathLike[str]) -> list[tuple[int, int]]:
    """Read the stretches `[start, end)` of offsets that are gone; none without the file. `StorageError` if damaged."""
    path = os.path.join(directory, GAPS_FILE)
    try:
        content = json.loads(fs.read_file(path))
        if not isinstance(content, dict) or content.get("version") != _VERSION:
            raise ValueError(f"an object of version {_VERSION} is needed")
        found = [(gap[0], gap[1]) for gap in content["gaps"]]
        if not all(type(at) is int for gap in found for at in gap):
            raise ValueError("a gap is a pair of offsets")
    except fs.MissingFileError:
        return []
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StorageError(errno.EBADMSG, f"malformed: {str(error)[:200]}", path) from None
    return found


def write_gaps(directory: str | os.PathLike[str], gaps: Iterable[tuple[int, int]]) -> None:
    """Replace the file, durably."""
    content = {"version": _VERSION, "gaps": sorted(set(gaps))}
    fs.write_atomically(os.path.join(directory, GAPS_FILE), f"{json.dumps(content)}\n".encode())
