"""Prints the text and the summary of Kafka's dump tool for the files of a partition directory (docs/rules/dump.md).

`_dump.pyx` prints the lines of batches and records. Invariant: the output equals that of Kafka's tool, and ends where
Kafka's ends, so that two dumps can be compared with `diff`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from kstore.base.numbers import INT_MAX
from kstore.disk import fs
from kstore.errors import ConfigError, StorageError
from kstore.files._producer_snapshot import ProducerEntry, SnapshotError, parse_snapshot
from kstore.files.txnindex import AbortedTxn, parse_txn_index
from kstore.tools.dump._dump import LogText
from kstore.tools.dump.batch_walk import LogWalk
from kstore.tools.dump.dump_options import DumpOptions, base_offset_of, decoder_of, int_option
from kstore.tools.dump.dump_ranges import SegmentFiles, Stretch
from kstore.tools.dump.index_dump import IndexCheck, TimeFindings, dump_index, dump_time_index
from kstore.tools.dump.record_contents import Contents

__all__ = ["Dump", "snapshot_line", "txn_index_line"]

_KRAFT_SNAPSHOT = re.compile(r"(\d{20}).(\d{10})\.checkpoint", re.ASCII)


@dataclass
class _Findings:
    """The findings for the summary, by the files' absolute paths."""

    mismatches: dict[str, dict[int, int]] = field(default_factory=dict)
    times: dict[str, TimeFindings] = field(default_factory=dict)
    gaps: dict[str, dict[int, int]] = field(default_factory=dict)


class Dump:
    """One run of the tool, which prints to `out` and `err`.

    If Kafka's tool ends with a stack trace, `run` raises `KStoreError`; `out` has the text before. Not thread-safe.
    """

    def __init__(self, options: DumpOptions, out: BinaryIO, err: Callable[[str], object]) -> None:
        self._options = options
        self._out = out
        self._err = err
        self._findings = _Findings()
        self._directory = os.getcwd()

    def run(self, paths: Sequence[str]) -> None:
        """Dump the files one after the other, then print the summary of their faults."""
        for path in paths:
            self._file(path if fs.is_mounted(path) else _plain_path(path))
        self._summary()

    def _print(self, text: str) -> None:
        self._out.write(os.fsencode(text))

    def _file(self, path: str) -> None:
        self._print(f"Dumping {path}\n")
        name = path.rpartition("/")[2]
        dump = self._KINDS.get(name[name.rfind(".") :] if "." in name else "")
        if dump is None:
            self._err(f"Ignoring unknown file {path}\n")
        else:
            dump(self, path, name)

    def _absolute(self, path: str) -> str:
        return path if fs.is_mounted(path) else os.path.join(self._directory, path)

    # Logs

    def _log(self, path: str, name: str) -> None:
        options = self._options
        decode = decoder_of(options)
        max_bytes = int_option("max-bytes", options.max_bytes)
        if not name.endswith(".checkpoint"):
            self._print(f"Log starting offset: {base_offset_of(name)}\n")
        elif name == "bootstrap.checkpoint":
            self._print("KRaft bootstrap snapshot\n")
        else:
            match = _KRAFT_SNAPSHOT.fullmatch(name)
            if match is None:
                raise ConfigError(f"{path}: neither bootstrap.checkpoint nor the name of a KRaft snapshot")
            self._print(f"Snapshot end offset: {int(match[1])}, epoch: {int(match[2])}\n")
        contents = Contents(decode, path)
        text = LogText(
            self._out.write,
            path=path,
            control=contents.control_text,
            decode=None if decode is None else contents.texts,
            **options.lines,
        )
        fd = fs.open(path, follow=True)
        try:
            size = fs.size(fd)
            if size > INT_MAX:
                raise StorageError(errno.EFBIG, f"{size} bytes, more than the {INT_MAX} of the largest segment", path)
            if max_bytes < 0:
                raise ConfigError(f"max-bytes {max_bytes}: 0 is the least")
            whole = Stretch(SegmentFiles(0, {}, ()))
            _, left = LogWalk(fd, text, path, whole, contents, options).run(max_bytes)
            if left and max_bytes == INT_MAX:
                text.put(os.fsencode(f"Found {left} invalid bytes at the end of {name}\n"))
        finally:
            text.flush()
            fs.close(fd)
        if text.gaps:
            self._findings.gaps.setdefault(self._absolute(path), {}).update(text.gaps)

    # Indexes and snapshots

    def _index(self, path: str, name: str) -> None:
        options = self._options
        max_message_size = int_option("max-message-size", options.max_message_size)
        absolute = self._absolute(path)
        mismatches = dump_index(
            absolute,
            path,
            base_offset_of(name),
            _sibling(absolute, name, ".log"),
            IndexCheck(options.index_sanity_check, not options.verify_index_only),
            max_message_size,
            self._print,
        )
        if mismatches:
            self._findings.mismatches.setdefault(absolute, {}).update(mismatches)

    def _time_index(self, path: str, name: str) -> None:
        options = self._options
        absolute = self._absolute(path)
        dump_time_index(
            absolute,
            path,
            base_offset_of(name),
            _sibling(absolute, name, ".log"),
            _sibling(absolute, name, ".index"),
            IndexCheck(options.index_sanity_check, not options.verify_index_only),
            self._print,
            self._findings.times.setdefault(absolute, TimeFindings()),
        )

    def _txn_index(self, path: str, name: str) -> None:
        base_offset_of(name)
        if not fs.exists(path):
            return
        for entry in parse_txn_index(fs.read_file(path, follow=True), path=path):
            self._print(txn_index_line(entry))

    def _snapshot(self, path: str, _: str) -> None:
        try:
            entries = parse_snapshot(fs.read_file(path, follow=True))
        except SnapshotError as error:
            self._err(f"{error}\n")
            return
        for entry in entries:
            self._print(snapshot_line(entry))

    _KINDS = {
        ".log": _log,
        ".checkpoint": _log,
        ".index": _index,
        ".timeindex": _time_index,
        ".txnindex": _txn_index,
        ".snapshot": _snapshot,
    }

    # The end of the run

    def _summary(self) -> None:
        findings = self._findings
        for path, mismatches in findings.mismatches.items():
            self._err(f"Mismatches in :{path}\n")
            for offset in sorted(mismatches, reverse=True):
                self._err(f"  Index offset: {offset}, log offset: {mismatches[offset]}\n")
        self._times("Found timestamp mismatch in :{}", "  Index timestamp: {}, log timestamp: {}", "mismatches")
        self._times(
            "Found out of order timestamp in :{}",
            "  Index timestamp: {}, Previously indexed timestamp: {}",
            "disorder",
        )
        self._times(
            "The following indexed offsets are not found in :{}",
            "Indexed offset: {}, found log offset: {}",
            "not_found",
        )
        for path, gaps in findings.gaps.items():
            self._err(f"Non-consecutive offsets in {path}\n")
            for offset in sorted(gaps):
                self._err(f"  {offset} is followed by {gaps[offset]}\n")

    def _times(self, heading: str, line: str, kind: str) -> None:
        for path, findings in self._findings.times.items():
            pairs: list[tuple[int, int]] = getattr(findings, kind)
            if pairs:
                self._err(f"{heading.format(path)}\n")
            for pair in pairs:
                self._err(f"{line.format(*pair)}\n")


# Names and lines


def _plain_path(path: str) -> str:
    """Normalise a path as Java's `File` does: no double slash, and no slash at the end."""
    path = re.sub("/+", "/", path)
    return path[:-1] if len(path) > 1 and path.endswith("/") else path


def _sibling(path: str, name: str, suffix: str) -> str:
    return f"{path.rpartition('/')[0]}/{name.partition('.')[0]}{suffix}"


def snapshot_line(entry: ProducerEntry) -> str:
    """Return a producer's entry in a snapshot as the tool prints it."""
    first = entry.current_txn_first_offset
    line = (
        f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch}"
        f" coordinatorEpoch: {entry.coordinator_epoch}"
        f" currentTxnFirstOffset: {'OptionalLong.empty' if first < 0 else f'OptionalLong[{first}]'}"
        f" lastTimestamp: {entry.timestamp}"
    )
    if entry.last_offset >= 0:
        line += (
            f" firstSequence: {(entry.last_sequence - entry.offset_delta) % (1 << 31)}"
            f" lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset}"
            f" offsetDelta: {entry.offset_delta} timestamp: {entry.timestamp}"
        )
    return line + "\n"


def txn_index_line(entry: AbortedTxn) -> str:
    """Return an entry of a transaction index as the tool prints it."""
    return (
        f"version: {entry.version} producerId: {entry.producer_id} firstOffset: {entry.first_offset}"
        f" lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}\n"
    )
