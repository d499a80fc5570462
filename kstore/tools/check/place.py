"""Decides which log file of a partition belongs under which base offset, and which files hold only copies.

Reads logs and changes nothing. The hardest rule: a sound batch says itself where it belongs, and of each one copy stays.
A file's name is one vote beside those of its batches; the base offset of a batch counts as flipped only where one bit
leads to the offset that the others tell.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from kstore.codec import header
from kstore.disk import fs
from kstore.files.logfile import open_log
from kstore.tools.check import _verify
from kstore.tools.check.index import Rows
from kstore.tools.check.offsets import is_one_bit, longest_chain
from kstore.tools.check.segment import read_rows

__all__ = ["Places", "find_places"]

_UNUSABLE = (
    _verify.Fault.COUNT | _verify.Fault.DELTA | _verify.Fault.CODEC | _verify.Fault.RECORDS | _verify.Fault.OFFSETS
)
_Key = tuple[int, int, bytes]
"""Of a batch: its offset, its size, and its header behind the base offset, length and leader epoch, with the CRC."""


@dataclass(slots=True)
class Places:
    """Where log files belong. Not thread-safe."""

    logs: dict[int, str] = field(default_factory=dict)
    """Names of the files that stay, by the base offset that is theirs."""
    redundant: list[str] = field(default_factory=list)
    """Names of files that go: the files that stay hold each of their batches, or have their name."""
    copies: dict[str, dict[int, str]] = field(default_factory=dict)
    """By file name: positions of batches that another file holds, and the name of that file."""
    lost_bytes: int = 0
    """How many bytes of redundant files no other file holds."""


@dataclass(slots=True)
class _File:
    name: str
    path: str
    named: int
    rows: Rows
    size: int
    firsts: NDArray[numpy.int64]
    """The batches' base offsets; flipped ones as they were."""
    is_sure: bool = False
    own: int = 0
    """The offset at which its batches say that it begins."""
    end: int = 0

    @property
    def spans(self) -> NDArray[numpy.int64]:
        return self.rows["last_offset"] - self.rows["base_offset"] + 1

    @property
    def is_flip_possible(self) -> bool:
        """Whether its one batch has its name's offset but for one bit."""
        return len(self.rows) == 1 and is_one_bit(int(self.firsts[0]) ^ self.named)

    def settle(self, firsts: NDArray[numpy.int64]) -> None:
        self.firsts = firsts
        ends = firsts + self.spans
        chain = longest_chain(list(zip(firsts.tolist(), ends.tolist(), strict=True)))
        self.own, self.end = (int(firsts[chain[0]]), int(ends[chain[-1]])) if chain else (self.named, self.named)

    def keys(self, low: int, high: int) -> dict[int, _Key]:
        """By position: what tells the batches in `[low, high)` from all others."""
        found = {}
        fd = open_log(self.path)
        try:
            for at in numpy.flatnonzero((self.firsts < high) & (self.firsts + self.spans > low)):
                position = int(self.rows["position"][at])
                data = fs.pread(fd, header.HEADER_BYTES, position)[header.MAGIC.at :]
                found[position] = int(self.firsts[at]), int(self.rows["size"][at]), data
        finally:
            fs.close(fd)
        return found


def find_places(directory: str, logs: dict[int, str], orphans: Iterable[int], known_end: int) -> Places:
    """Decide about `logs`, file names by base offset. Raises `StorageError` where one cannot be read.

    `orphans` are base offsets of indexes without a log, `known_end` is the log end that other files know.
    """
    files = [_read(os.path.join(directory, name), base) for base, name in sorted(logs.items())]
    places = Places()
    settled = _settle([file for file in files if len(file.rows)], known_end, places)
    settled = _without_copies(settled, places)
    _name(settled, set(orphans), places)
    ends = {file.name: file.end for file in settled}
    spans = [(base, ends[name]) for base, name in places.logs.items()]
    for file in files:
        if not len(file.rows):
            is_within = file.size and any(base < file.named < end for base, end in spans)
            if file.named in places.logs or is_within:
                places.redundant.append(file.name)
                places.lost_bytes += file.size
            else:
                places.logs[file.named] = file.name
    return places


def _read(path: str, base: int) -> _File:
    rows, _ = read_rows(path, base)
    if not len(rows) or rows["base_offset"][0] < base:
        rows, _ = read_rows(path, 0)  # behind damage only batches at the base offset or above it are looked for
    rows = rows[(rows["faults"] & _UNUSABLE) == 0]
    file = _File(os.path.basename(path), path, base, rows, fs.stat(path).st_size, rows["base_offset"].copy())
    file.settle(file.firsts)
    if len(rows) and (rows["magic"] < 2).any():
        file.is_sure, file.own = True, base  # a message of format 0 or 1 does not tell its first offset
    elif len(rows):
        before = numpy.concatenate([[0], numpy.cumsum(file.spans)[:-1]])
        votes = Counter((file.firsts - before).tolist())
        votes[base] += 1
        begin, most = max(votes.items(), key=lambda vote: (vote[1], vote[0] == base, -vote[0]))
        if most > 1:
            wanted = begin + before
            bits = file.firsts ^ wanted
            file.settle(numpy.where((bits > 0) & (bits & (bits - 1) == 0), wanted, file.firsts))
        file.is_sure = most > 1 or file.own == base
    return file


def _settle(files: list[_File], known_end: int, places: Places) -> list[_File]:
    """Settle the files whose batches and name do not agree; returns all files that may stay."""
    settled = [file for file in files if file.is_sure]
    loose = [file for file in files if not file.is_sure]
    known_end = max([known_end, *(file.end for file in settled)])
    for file in sorted(loose, key=lambda file: file.is_flip_possible):
        over = _overlapping(file, settled)
        keys = set(file.keys(file.own, file.end).values())
        if over and keys <= _all_keys(over, file):
            places.redundant.append(file.name)
            continue
        if file.is_flip_possible and (over or file.end > known_end):
            file.settle(numpy.array([file.named]))
        elif over:
            file.own, file.end = file.named, file.named  # no offset is known that is its own
        settled.append(file)
    return settled


def _overlapping(file: _File, files: Iterable[_File]) -> list[_File]:
    return [other for other in files if other is not file and other.own < file.end and file.own < other.end]


def _all_keys(files: Iterable[_File], file: _File) -> set[_Key]:
    return {key for other in files for key in other.keys(file.own, file.end).values()}


def _without_copies(files: list[_File], places: Places) -> list[_File]:
    """Take out the files whose batches all stand in others; a file under its right name stays if one of two can."""
    left = sorted(files, key=lambda file: (file.own, file.name))
    for file in sorted(left, key=lambda file: (file.own == file.named, len(file.rows))):
        over = _overlapping(file, left)
        if over and set(file.keys(file.own, file.end).values()) <= _all_keys(over, file):
            left.remove(file)
            places.redundant.append(file.name)
    return left


def _name(files: Sequence[_File], orphans: set[int], places: Places) -> None:
    """Give each file the base offset of its first batch, or its name's where no other batch lies between."""
    ordered = sorted(files, key=lambda file: (file.own, -len(file.rows), file.own != file.named))
    owns = {file.own for file in files}
    end = 0
    for file in ordered:
        base = file.own
        is_told = base in orphans or (file.named in owns and file.named != base)
        if end <= file.named < base and not is_told and file.named not in places.logs:
            base = file.named
        if base in places.logs:
            _place_rest(file, next(other for other in files if other.name == places.logs[base]), places)
        else:
            places.logs[base] = file.name
        end = max(end, file.end)


def _place_rest(file: _File, other: _File, places: Places) -> None:
    """Of two files of the same place: the batches of `file` that `other` lacks stay if they all lie behind it."""
    held = set(other.keys(file.own, file.end).values())
    keys = file.keys(file.own, file.end)
    lacking = {position: key for position, key in keys.items() if key not in held}
    behind = [key for key in lacking.values() if key[0] >= other.end]
    base = min((key[0] for key in behind), default=0)
    if behind and base not in places.logs:
        places.logs[base] = file.name
        lacking = {position: key for position, key in lacking.items() if key[0] < base}
        places.copies[file.name] = {position: other.name for position, key in keys.items() if key[0] < base}
    else:
        places.redundant.append(file.name)
    places.lost_bytes += sum(key[1] for key in lacking.values())
