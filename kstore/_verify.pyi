"""Batches of a `.log` file held against their own headers, and the next sound one behind damage."""

import enum
import os
from typing import Final, TypeAlias

_Path: TypeAlias = str | os.PathLike[str] | None

ROW: Final[list[tuple[str, str]]]

class Fault(enum.IntFlag):
    COUNT = 1
    DELTA = 2
    CODEC = 4
    RECORDS = 8
    OFFSETS = 16
    TIMESTAMP = 32
    EPOCH = 64

def walk(
    fd: int, position: int, end: int, *, rows: int = 16384, records: bool = True, path: _Path = None
) -> tuple[bytes, int, str]: ...
def find_next(
    fd: int, position: int, end: int, least: int, most: int, *, legacy: bool = False, path: _Path = None
) -> int: ...
