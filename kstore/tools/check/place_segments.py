"""Decides which base offset belongs to each log file of a partition, and which files have only other files' batches.

Reads logs and changes nothing. Each sound batch votes for its file's base offset, and the file's name is one more vote.
A base offset counts as flipped only if changing one bit makes it the offset that the other batches imply. Invariant:
one copy of each sound batch is kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy
from numpy.typing import NDArray

from kstore.codec import header
from kstore.disk import fs
from kstore.files.log_file import open_log
from kstore.tools.check import _verify
from kstore.tools.check.check_index import Rows
from kstore.tools.check.check_segment import read_rows
from kstore.tools.check.settle_offsets import is_one_bit, longest_chain

__all__ = ["Places", "find_places"]

_UNUSABLE = (
    _verify.Fault.COUNT | _verify.Fault.DELTA | _verify.Fault.CODEC | _verify.Fault.RECORDS | _verify.Fault.OFFSETS
)
_Key = tuple[int, int, bytes]
"""Identifies a batch: its offset, its size, and its header from the magic on, which includes the CRC."""


@dataclass(slots=True)
class Places:
    """Where log files belong. Not thread-safe."""

    logs: dict[int, str] = field(default_factory=dict)
    """Names of the files that are kept, by their right base offsets."""
    redundant: list[str] = field(default_factory=list)
    """Files to remove: another file has the same batches or gets the same base offset, or the offsets are unknown."""
    flipped: dict[str, int] = field(default_factory=dict)
    """By file name: the right base offset of the file's only batch, in which a bit was flipped."""
    copies: dict[str, dict[int, str]] = field(default_factory=dict)
    """By file name: the positions of batches that another file has, too, each with the name of that file."""
    lost_bytes: int = 0
    """The number of bytes in redundant files that no other file has."""


@dataclass(slots=True)
class _File:
    name: str
    path: str
    named: int
    rows: Rows
    size: int
    firsts: NDArray[numpy.int64]
    """The batches' base offsets before any bit was flipped."""
    is_sure: bool = False
    is_lost: bool = False
    """Whether its batches' offsets contradict other files. It keeps its name unless another file gets that name."""
    own: int = 0
    """The offset at which the file starts according to its batches."""
    end: int = 0

    @property
    def spans(self) -> NDArray[numpy.int64]:
        spans: NDArray[numpy.int64] = self.rows["last_offset"] - self.rows["base_offset"] + 1
        return spans

    @property
    def begins(self) -> NDArray[numpy.int64]:
        """For each batch before the first damage: the file's start offset if no offset before the batch is missing."""
        ends = self.rows["position"] + self.rows["size"]
        starts = numpy.concatenate([[0], ends[:-1]])
        whole = numpy.logical_and.accumulate(self.rows["position"] == starts)
        spans = self.spans
        begins: NDArray[numpy.int64] = (self.firsts - (numpy.cumsum(spans) - spans))[whole]
        return begins

    def without_flips(self, begin: int) -> NDArray[numpy.int64]:
        """Return the base offsets if the file starts at `begin`; each offset that is wrong in one bit is corrected."""
        begins = self.begins
        firsts = self.firsts.copy()
        wanted = firsts[: len(begins)] - begins + begin
        bits = firsts[: len(begins)] ^ wanted
        is_flip = (bits > 0) & (bits & (bits - 1) == 0)
        firsts[: len(begins)][is_flip] = wanted[is_flip]
        return firsts

    @property
    def is_flip_possible(self) -> bool:
        """Whether the file has only one batch, whose offset differs from the name's in one bit."""
        is_whole = len(self.rows) == 1 and not self.rows["position"][0]
        return is_whole and is_one_bit(int(self.firsts[0]) ^ self.named)

    @property
    def is_flipped(self) -> bool:
        """Whether the file has only one batch, in whose base offset a bit was flipped."""
        return len(self.rows) == 1 and bool(self.firsts[0] != self.rows["base_offset"][0])

    def settle(self, firsts: NDArray[numpy.int64]) -> None:
        self.firsts = firsts
        ends = firsts + self.spans
        chain = longest_chain(list(zip(firsts.tolist(), ends.tolist(), strict=True)))
        self.own, self.end = (int(firsts[chain[0]]), int(ends[chain[-1]])) if chain else (self.named, self.named)

    def keys(self, low: int, high: int) -> dict[int, _Key]:
        """Return the keys of the batches with offsets in `[low, high)`, by position."""
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
    """Decide about `logs`, file names by base offset. Raises `StorageError` if a log cannot be read.

    `orphans` are base offsets of indexes without a log; `known_end` is the log end offset according to other files.
    """
    files = [_read(os.path.join(directory, name), base) for base, name in sorted(logs.items())]
    places = Places()
    bounds = {*logs, *orphans}
    blank = {file.named for file in files if not len(file.rows)}
    told = {*orphans, *blank, *(file.named for file in files if file.own == file.named)}
    settled = _settle([file for file in files if len(file.rows)], told, blank, known_end, places)
    settled = _without_copies(settled, places)
    places.flipped = {file.name: int(file.firsts[0]) for file in settled if file.is_flipped}
    _name(settled, bounds, places)
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
        rows, _ = read_rows(path, 0)  # after damage only batches at or above the given base offset are found
    rows = rows[(rows["faults"] & _UNUSABLE) == 0]
    file = _File(os.path.basename(path), path, base, rows, fs.stat(path).st_size, rows["base_offset"].copy())
    file.settle(file.firsts)
    if len(rows) and (rows["magic"] < 2).any():
        file.is_sure, file.own = True, base  # the header of a wrapper in format 0 or 1 lacks its first offset
    elif len(rows):
        votes = Counter(file.begins.tolist())
        votes[base] += 1
        begin, most = max(votes.items(), key=lambda vote: (vote[1], vote[0] == base, -vote[0]))
        if most > 1:
            file.settle(file.without_flips(begin))
        is_run = bool((file.firsts[1:] == file.firsts[:-1] + file.spans[:-1]).any())
        file.is_sure = most > 1 or file.own == base or (is_run and len(file.begins) < len(rows))
    return file


def _settle(files: list[_File], bounds: set[int], blank: set[int], known_end: int, places: Places) -> list[_File]:
    """Decide about the files whose batches and name disagree; return all files that may be kept.

    `bounds` are base offsets known from file names; `blank` are those of logs without a sound batch.
    """
    flipped: set[_Key] = set()
    settled = [file for file in files if file.is_sure]
    loose = [file for file in files if not file.is_sure]
    known_end = max([known_end, *(file.end for file in settled)])
    for file in sorted(loose, key=lambda file: (file.is_flip_possible, file.own)):
        for begin in file.begins.tolist() if len(file.rows) > 1 else ():
            firsts = file.without_flips(begin)
            told = replace(file)
            told.settle(firsts)
            if begin <= known_end and (told.begins == begin).all() and not _overlapping(told, settled):
                file.settle(firsts)
                break
        over = _overlapping(file, settled)
        keys = set(file.keys(file.own, file.end).values())
        if over and keys <= _all_keys(over, file):
            places.redundant.append(file.name)
            continue
        others = [other for other in [*settled, *loose] if other is not file]
        is_flipped = file.is_flip_possible and (bool(over) or _is_flipped(file, others, bounds, blank, known_end))
        if is_flipped:
            flipped |= keys
            file.settle(numpy.array([file.named]))
        elif over or file.own > known_end or is_flipped is None:
            if len(file.rows) == 1:
                places.redundant.append(file.name)
                places.lost_bytes += file.size
                continue
            file.is_lost = True
            file.own, file.end = file.named, file.named
        settled.append(file)
        known_end = max(known_end, file.end)
    for file in [file for file in settled if not file.is_sure]:
        if flipped & set(file.keys(file.own, file.end).values()):  # a copy of a batch that was found to be flipped
            settled.remove(file)
            places.redundant.append(file.name)
    return settled


def _is_flipped(file: _File, others: Sequence[_File], bounds: set[int], blank: set[int], known_end: int) -> bool | None:
    """Return whether the name of a file is right although the offset of its only batch differs from it in one bit.

    The name is right if more starts and ends of other files adjoin the file at the name's offset than at the batch's.
    `bounds` are starts known from file names. Returns None (not known) if both fit equally often and the batch's offset
    is in `blank`, the names of files without a sound batch.
    """
    if file.end > known_end or _overlapping(file, [other for other in others if other.is_sure]):
        return True
    starts = {known_end, *bounds, *(other.own for other in others)}
    ends = {0, *(other.end for other in others)}
    end = file.named + int(file.spans[0])
    is_free = not any(other.own < end and file.named < other.end for other in others)
    says = (file.own in ends | bounds) + (file.end in starts)
    named = (file.named in ends) + (end in starts) if is_free else 0
    return None if named == says and file.own in blank else named > says


def _overlapping(file: _File, files: Iterable[_File]) -> list[_File]:
    return [other for other in files if other is not file and other.own < file.end and file.own < other.end]


def _all_keys(files: Iterable[_File], file: _File) -> set[_Key]:
    return {key for other in files for key in other.keys(file.own, file.end).values()}


def _without_copies(files: list[_File], places: Places) -> list[_File]:
    """Drop each file whose batches are all in other files; of two equal files, keep the one with the right name."""
    left = sorted(files, key=lambda file: (file.own, file.name))
    for file in sorted(left, key=lambda file: (not file.is_flipped, file.own == file.named, len(file.rows))):
        over = _overlapping(file, left)
        if over and set(file.keys(file.own, file.end).values()) <= _all_keys(over, file):
            left.remove(file)
            places.redundant.append(file.name)
    return left


def _name(files: Sequence[_File], known: set[int], places: Places) -> None:
    """Give each file the base offset of its first batch, or leave its name if batches are missing at its start.

    Batches are missing if the name is at or above the end of the file before and below the first batch, and no other
    file or name says otherwise. `known` are the base offsets in names of logs and indexes.
    """
    ordered = sorted(files, key=lambda file: (file.is_lost, file.own, -len(file.rows), file.own != file.named))
    owns = {file.own for file in files if not file.is_lost}
    end = 0
    for file in ordered:
        base = file.own
        is_told = base in known or (file.named in owns and file.named != base)
        if end <= file.named < base and not is_told and file.named not in places.logs:
            base = file.named
        if base in places.logs:
            _place_rest(file, next(other for other in files if other.name == places.logs[base]), places)
        else:
            places.logs[base] = file.name
        end = max(end, file.end)


def _place_rest(file: _File, other: _File, places: Places) -> None:
    """Decide about a file with the base offset of `other`: keep only its batches after the end of `other`."""
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
    places.lost_bytes += file.size if file.is_lost else sum(key[1] for key in lacking.values())
