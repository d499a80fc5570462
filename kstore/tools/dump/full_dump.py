"""Dumps that Kafka's tool does not have: of whole directories, of ranges, as JSON, and dumps that go on after damage.

Invariant: every fault is reported and skipped, and no line is printed in part. No file is opened for writing.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from kstore.codec.coordinator.record_texts import OFFSETS, SHARE_GROUPS, TRANSACTIONS
from kstore.disk import fs
from kstore.errors import ConfigError, CorruptRecordError, KStoreError
from kstore.files import _log_search, names
from kstore.files._index_search import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetEntries, TimeEntries
from kstore.files._producer_snapshot import SnapshotError, parse_snapshot
from kstore.files.txnindex import TXN_ENTRY_BYTES, parse_txn_index
from kstore.tools.check import recheck
from kstore.tools.dump._dump import LogJson, LogText
from kstore.tools.dump.batch_walk import LogWalk
from kstore.tools.dump.dump_options import Decode, DumpOptions, base_offset_of, decoder_of, int_option
from kstore.tools.dump.dump_ranges import LEAST, Report, SegmentFiles, Span, Stretch, sound_offsets, stretches
from kstore.tools.dump.index_dump import whole_entries
from kstore.tools.dump.kafka_dump import snapshot_line, txn_index_line
from kstore.tools.dump.record_contents import Contents, json_line, json_members, octets, reason_of

__all__ = ["FullDump", "Source", "file_source"]

_MOST_COMPLAINTS = 20
"""How many wrong entries of one index are reported; thousands often follow the first one."""
_REMEMBERED = 4096  # how many faults are remembered, to report each only once
_CHECKPOINT = ".checkpoint"
_INTERNAL = {
    "__consumer_offsets": OFFSETS,
    "__transaction_state": TRANSACTIONS,
    "__share_group_state": SHARE_GROUPS,
}
_NUMBERS = ("org.apache.kafka.tools.api.IntegerDecoder", "org.apache.kafka.tools.api.LongDecoder")


_Damage: TypeAlias = tuple[str, int | None, str]
"""The file, the position in it or None, and a description."""


class Source(NamedTuple):
    """A partition or a single file to dump; `topic` is the topic in the directory's name, if any.

    `directory` is the partition's, None for a single file. `others` are paths that should be files but are not.
    """

    segments: Sequence[SegmentFiles]
    topic: str | None = None
    directory: str | None = None
    others: Sequence[str] = ()


class _Nowhere(io.BytesIO):
    """Discards the output of a second pass over a file: the first pass has printed it."""

    def write(self, _: object) -> int:
        return 0


def file_source(path: str) -> Source:
    """Return a single file as a source; raise `ConfigError` if its name is not that of a file of a log."""
    directory, slash, name = path.rpartition("/")
    kind = name[name.rfind(".") :] if "." in name else ""
    if kind == _CHECKPOINT:
        return Source([SegmentFiles(0, {names.LOG: path}, (names.LOG,))])
    if kind not in (*names.SEGMENT_KINDS, names.SNAPSHOT):
        raise ConfigError("no file of a log: its name ends in none of .log, .index, .timeindex, .txnindex, .snapshot")
    base_offset = base_offset_of(name)
    if base_offset < 0:
        raise ConfigError(f"a base offset is not negative, and {base_offset} is the name's")
    stem = f"{directory}{slash}{name.partition('.')[0]}"
    beside = {other: f"{stem}{other}" for other in names.SEGMENT_KINDS if fs.exists(f"{stem}{other}")}
    return Source([SegmentFiles(base_offset, {**beside, kind: path}, (kind,))])


class FullDump:
    """One run of a dump, which prints to `out` and calls `report` for each fault of a file.

    `progress` is called with the number of bytes of logs that are done. `damages` counts the faults. The constructor
    raises `ConfigError` for an unknown decoder. Not thread-safe.
    """

    def __init__(
        self,
        options: DumpOptions,
        out: BinaryIO,
        report: Report,
        *,
        span: Span | None = None,
        as_json: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self._options = options
        self._out = out
        self._tell = report
        self._span = Span() if span is None else span
        self._json = as_json
        self._progress = progress
        self._decode = decoder_of(options)
        self._max_bytes = int_option("max-bytes", options.max_bytes)
        if self._max_bytes < 0:
            raise ConfigError(f"max-bytes {self._max_bytes}: 0 is the least")
        self._done = 0
        self._told: set[_Damage] = set()
        self._collected: list[_Damage] | None = None
        self.damages = 0

    def run(self, source: Source) -> None:
        for path in source.others:
            self._report_other(path)
        for stretch in stretches(source.segments, self._span, partial(self._report_unless_removed, source.directory)):
            for kind in stretch.files.wanted:
                path = stretch.files.paths[kind]
                damages = self._damages_of(kind, path, stretch, source.topic)
                if damages and source.directory is not None:
                    damages = self._look_again(kind, path, stretch, source.topic, fs.absolute(source.directory))
                for damage in damages:
                    self._report(*damage)
            self._told.clear()

    def _damages_of(self, kind: str, path: str, stretch: Stretch, topic: str | None) -> list[_Damage]:
        """Dump one file; return its faults."""
        damages: list[_Damage] = []
        self._collected = damages
        try:
            self._file(kind, path, stretch, topic)
        except KStoreError as error:
            damages.append((path, None, reason_of(error)))
        finally:
            self._collected = None
        return damages

    def _look_again(self, kind: str, path: str, stretch: Stretch, topic: str | None, directory: str) -> list[_Damage]:
        """Return a file's faults except those of a write in progress; none if a writer has removed the file."""
        out, self._out = self._out, _Nowhere()
        progress, self._progress = self._progress, None
        try:
            seen, doubtful = recheck.look(
                lambda: self._damages_of(kind, path, stretch, topic), list, directory, os.path.dirname(directory)
            )
        finally:
            self._out, self._progress = out, progress
        return [damage for damage in seen if damage not in doubtful] if fs.exists(path) else []

    def _report_other(self, path: str) -> None:
        """Report a directory, a pipe or a link in the place of a file."""
        try:
            fs.close(fs.open(path))
        except fs.MissingFileError:
            pass  # removed since the directory was listed
        except KStoreError as error:
            self._report(path, None, reason_of(error))
        else:
            self._report(path, None, "it was no regular file when the directory was listed, and is left out")

    def _report_unless_removed(self, directory: str | None, path: str, position: int | None, what: str) -> None:
        """Report a fault, unless a writer has removed the file."""
        if directory is None or fs.exists(path):
            self._report(path, position, what)

    def _report(self, path: str, position: int | None, what: str) -> None:
        damage = (path, position, what)
        if self._collected is not None and len(self._collected) < _REMEMBERED:
            self._collected.append(damage)
        elif damage not in self._told:
            if len(self._told) > _REMEMBERED:
                self._told.clear()
            self._told.add(damage)
            self.damages += 1
            self._tell(*damage)

    def _file(self, kind: str, path: str, stretch: Stretch, topic: str | None) -> None:
        if not self._json:
            self._out.write(os.fsencode(f"Dumping {path}\n"))
        if kind == names.LOG:
            self._log(path, stretch, topic)
        elif kind == names.OFFSET_INDEX:
            self._index(path, stretch, of_time=False)
        elif kind == names.TIME_INDEX:
            self._index(path, stretch, of_time=True)
        elif kind == names.TXN_INDEX:
            self._txn_index(path, stretch)
        else:
            self._snapshot(path, stretch)

    def _object(self, kind: str, path: str, **members: Any) -> None:
        self._out.write(json_line({"type": kind, **octets("file", os.fsencode(path)), **members}))

    # Logs

    def _log(self, path: str, stretch: Stretch, topic: str | None) -> None:
        options = self._options
        if not self._json:
            self._out.write(f"Log starting offset: {stretch.files.base_offset}\n".encode())
        numbers = (options.key_decoder in _NUMBERS, options.value_decoder in _NUMBERS)
        contents = Contents(self._decoder(topic), path, self._report, numbers)
        text: LogText
        if self._json:
            text = LogJson(
                self._out.write,
                file=json_members(octets("file", os.fsencode(path))),
                path=path,
                control=contents.control_json,
                decode=contents.members if contents.decode is not None else None,
                **options.lines,
            )
        else:
            text = LogText(
                self._out.write,
                path=path,
                control=contents.control_text,
                decode=contents.texts if contents.decode is not None else None,
                **options.lines,
                tolerant=True,
            )
        contents.text = text
        text.between(stretch.start_offset, stretch.end_offset)
        text.last_offset = stretch.files.base_offset - 1
        fd = fs.open(path)
        try:
            walk = LogWalk(fd, text, path, stretch, contents, options, report=self._report, reach=self.reach)
            self.finish(walk.run(self._max_bytes)[0])
        finally:
            text.flush()
            fs.close(fd)

    def _decoder(self, topic: str | None) -> Decode | None:
        """Return the decoder that the options name, or an internal topic's decoder if its directory is dumped."""
        return _INTERNAL.get(topic or "") if self._decode is None else self._decode

    def reach(self, position: int) -> None:
        """Report the progress: the present log is done up to `position`."""
        if self._progress is not None:
            self._progress(self._done + position)

    def finish(self, size: int) -> None:
        self._done += size
        self.reach(0)

    # Indexes and snapshots

    @property
    def _has_lines(self) -> bool:
        return not self._options.verify_index_only and not self._options.index_sanity_check

    def _index(self, path: str, stretch: Stretch, *, of_time: bool) -> None:
        kind: type[OffsetEntries | TimeEntries] = TimeEntries if of_time else OffsetEntries
        entry_bytes = TIME_ENTRY_BYTES if of_time else OFFSET_ENTRY_BYTES
        first, second = ("timestamp", "offset") if of_time else ("offset", "position")
        data = fs.read_file(path)
        base = stretch.files.base_offset
        with _Entries(self._report, path, stretch, len(data), entry_bytes) as entries:
            before = (-1, LEAST if of_time else -1)
            for slot, entry in enumerate(whole_entries(kind, data, base)):
                at, shown = slot * entry_bytes, f"{first} {entry[0]} at {second} {entry[1]}"
                if entry == ((0, base) if of_time else (base, 0)):
                    break  # the unused end of an index in use
                if not stretch.start_offset <= entry[of_time] < stretch.end_offset:
                    continue
                if entry[0] <= before[0] or entry[1] < before[1] + (not of_time):
                    entries.complain(at, f"{shown}, not above the entry before it")
                elif of_time:
                    entries.check_time(at, *entry)
                else:
                    entries.check_offset(at, *entry)
                before = entry
                if self._json and self._has_lines:
                    type_name = "time_index_entry" if of_time else "offset_index_entry"
                    self._object(type_name, path, slot=slot, **{first: entry[0], second: entry[1]})
                elif self._has_lines:
                    self._out.write(f"{first}: {entry[0]} {second}: {entry[1]}\n".encode())

    def _txn_index(self, path: str, stretch: Stretch) -> None:
        data = fs.read_file(path)
        if rest := len(data) % TXN_ENTRY_BYTES:
            self._report(path, len(data) - rest, f"{len(data)} bytes, which is no multiple of {TXN_ENTRY_BYTES}")
        for entry in parse_txn_index(data, path=path):
            if entry.last_offset < stretch.start_offset or entry.first_offset >= stretch.end_offset:
                continue
            if self._json:
                self._object("aborted_transaction", path, **entry._asdict())
            else:
                self._out.write(txn_index_line(entry).encode())

    def _snapshot(self, path: str, stretch: Stretch) -> None:
        try:
            entries = parse_snapshot(fs.read_file(path))
        except SnapshotError as error:
            self._report(path, None, str(error))
            return
        for entry in entries:
            if self._json:
                members = {name: None if value == -1 else value for name, value in entry._asdict().items()}
                self._object("producer", path, **members)
            else:
                self._out.write(snapshot_line(entry).encode())


class _Entries:
    """Compares the entries of an index file with the log in the same directory. Not thread-safe."""

    def __init__(self, report: Report, path: str, stretch: Stretch, size: int, entry_bytes: int) -> None:
        self._report = report
        self._path = path
        self._files = stretch.files
        self._complaints = 0
        self._fd: int | None = None
        self._size = 0
        if size % entry_bytes:
            self.complain(size - size % entry_bytes, f"{size} bytes, which is no multiple of {entry_bytes}")

    def __enter__(self) -> _Entries:
        log = self._files.paths.get(names.LOG)
        if log is not None and fs.exists(log):
            self._fd = fs.open(log)
            self._size = fs.size(self._fd)
        self._index = sound_offsets(self._files)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            fs.close(self._fd)
        if self._complaints > _MOST_COMPLAINTS:
            self._report(self._path, None, f"{self._complaints - _MOST_COMPLAINTS} more entries are wrong")

    def complain(self, position: int, what: str) -> None:
        """Report a wrong entry, unless too many were reported already."""
        self._complaints += 1
        if self._complaints <= _MOST_COMPLAINTS:
            self._report(self._path, position, what)

    def check_offset(self, at: int, offset: int, position: int) -> None:
        """Complain unless a batch at the position ends at the offset or, as before 4.1, below it (SEMANTICS 3.18)."""
        if self._fd is None:
            return
        try:
            batch = (
                _log_search.find_batch(self._fd, position, self._size, LEAST) if 0 <= position < self._size else None
            )
        except CorruptRecordError:
            batch = None
        if batch is None or batch.base_offset > offset or batch.last_offset > offset:
            self.complain(at, f"offset {offset} at position {position}, where the log has no batch up to that offset")

    def check_time(self, at: int, timestamp: int, offset: int) -> None:
        """Complain unless the batch that holds the offset has this greatest timestamp."""
        if self._fd is None:
            return
        try:
            start = self._index.lookup(offset)[1]
            batch = _log_search.find_batch(self._fd, start, self._size, offset)
        except CorruptRecordError:
            batch = None
        if batch is None or batch.max_timestamp != timestamp or (batch.magic == 2 and batch.base_offset > offset):
            self.complain(at, f"timestamp {timestamp} at offset {offset}, which no batch of the log has")
