"""What Kafka's dump tool has not: dumps of whole directories, of ranges, as JSON, and past damage.

Owns what is done at bytes that are no sound batch, and the text or JSON of indexes and snapshots; lines are `dump`'s
and `_dump`'s, the ranges `dumpranges`'. Hardest rule: whatever is met is reported and passed over, and no line is
printed in part. Nothing is ever opened for writing.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, NamedTuple

from kstore import _scan, _verify, compression, fs, names
from kstore._core import Record, crc32c, decode_batches
from kstore._dump import LogJson, LogText, java_text
from kstore._index import OffsetEntries
from kstore.coordinator import OFFSETS, SHARE_GROUPS, TRANSACTIONS, Coordinator, control_json, control_text
from kstore.dump import Decode, DumpOptions, base_offset_of, decoder_of, int_option, legacy_text, snapshot_line
from kstore.dumpranges import LEAST, Report, SegmentFiles, Span, Stretch, follow, stretches
from kstore.errors import ConfigError, CorruptRecordError, InvalidRecordError, KStoreError
from kstore.snapshotfile import SnapshotError, parse_snapshot
from kstore.txnindex import parse_txn_index

__all__ = ["FullDump", "Source", "file_source", "octets"]

_CHUNK_BYTES = 1 << 20
_OFFSET_BYTES, _TIME_BYTES = 8, 12
_MOST_COMPLAINTS = 20
"""Of one index; behind a wrong entry there are often thousands."""
_REMEMBERED = 4096  # damages that are told once, though they are met twice
_CHECKPOINT = ".checkpoint"
_INTERNAL = {
    "__consumer_offsets": OFFSETS,
    "__transaction_state": TRANSACTIONS,
    "__share_group_state": SHARE_GROUPS,
}
_NUMBERS = ("org.apache.kafka.tools.api.IntegerDecoder", "org.apache.kafka.tools.api.LongDecoder")
_CODEC_MASK = 0x07
_V2_HEADER_BYTES = 61
_BAD_CRC = "the CRC of the batch does not hold"


class Source(NamedTuple):
    """What is dumped together: the segments of a partition, or one file; the topic, where the directory tells it."""

    segments: Sequence[SegmentFiles]
    topic: str | None = None


def file_source(path: str) -> Source:
    """A single file, its kind and base offset by its name; `ConfigError` for one that is never dumped."""
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


def octets(name: str, data: bytes | None) -> dict[str, str | None]:
    """Name bytes for JSON: text where they are UTF-8, else base64 under the name with `_base64` behind it."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


class FullDump:
    """One run, to `out`; `report` hears of each damage. Not thread-safe.

    `progress` is called with the bytes of logs that are done. Raises `ConfigError` at once for a decoder that is not
    here; of files, whatever is wrong is reported, and `damages` counts it.
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
        self._told: set[tuple[str, int | None, str]] = set()
        self.damages = 0

    def run(self, source: Source) -> None:
        """Dump a partition or a file."""
        for stretch in stretches(source.segments, self._span, self._report):
            for kind in stretch.files.wanted:
                path = stretch.files.paths[kind]
                try:
                    self._file(kind, path, stretch, source.topic)
                except KStoreError as error:
                    self._report(path, None, _reason(error))
            self._told.clear()

    def _report(self, path: str, position: int | None, what: str) -> None:
        damage = (path, position, what)
        if damage not in self._told:
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
            self._offset_index(path, stretch)
        elif kind == names.TIME_INDEX:
            self._time_index(path, stretch)
        elif kind == names.TXN_INDEX:
            self._txn_index(path, stretch)
        else:
            self._snapshot(path, stretch)

    def _object(self, kind: str, path: str, **members: Any) -> None:
        self._out.write(_line({"type": kind, **octets("file", os.fsencode(path)), **members}))

    # Logs

    def _log(self, path: str, stretch: Stretch, topic: str | None) -> None:
        options = self._options
        if not self._json:
            self._out.write(f"Log starting offset: {stretch.files.base_offset}\n".encode())
        numbers = (options.key_decoder in _NUMBERS, options.value_decoder in _NUMBERS)
        contents = _Contents(self._decoder(topic), numbers, path, self._report)
        text: LogText
        if self._json:
            text = LogJson(
                self._out.write,
                file=_members(octets("file", os.fsencode(path))),
                path=path,
                control=contents.control_json,
                decode=contents.members if contents.decode is not None else None,
                deep=options.deep,
                contents=options.contents,
                metadata=options.metadata,
            )
        else:
            text = LogText(
                self._out.write,
                path=path,
                control=contents.control_text,
                decode=contents.texts if contents.decode is not None else None,
                deep=options.deep,
                contents=options.contents,
                metadata=options.metadata,
                tolerant=True,
            )
        contents.text = text
        text.between(stretch.start_offset, stretch.end_offset)
        text.last_offset = stretch.files.base_offset - 1
        fd = fs.open(path)
        try:
            _Walk(self, fd, text, path, stretch, contents).run(self._max_bytes)
        finally:
            text.flush()
            fs.close(fd)

    def _decoder(self, topic: str | None) -> Decode | None:
        """What was asked for, else that of an internal topic when its directory is dumped."""
        return _INTERNAL.get(topic or "") if self._decode is None else self._decode

    def reach(self, position: int) -> None:
        """Tell how far the log is that is being dumped."""
        if self._progress is not None:
            self._progress(self._done + position)

    def finish(self, size: int) -> None:
        """Count a log as done."""
        self._done += size
        self.reach(0)

    # Indexes and snapshots

    @property
    def _has_lines(self) -> bool:
        return not self._options.verify_index_only and not self._options.index_sanity_check

    def _offset_index(self, path: str, stretch: Stretch) -> None:
        data = fs.read_file(path)
        with _Entries(self, path, stretch, len(data), _OFFSET_BYTES) as entries:
            before = (-1, -1)
            for slot in range(len(data) // _OFFSET_BYTES):
                at = slot * _OFFSET_BYTES
                relative = int.from_bytes(data[at : at + 4], "big", signed=True)
                position = int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
                if not relative and not position:
                    break  # the unused end of an index that is written to
                offset = stretch.files.base_offset + relative
                if not stretch.start_offset <= offset < stretch.end_offset:
                    continue
                if offset <= before[0] or position <= before[1]:
                    entries.complain(at, f"offset {offset} at position {position}, not above the entry before it")
                else:
                    entries.check_offset(at, offset, position)
                before = (offset, position)
                if self._json and self._has_lines:
                    self._object("offset_index_entry", path, slot=slot, offset=offset, position=position)
                elif self._has_lines:
                    self._out.write(b"offset: %d position: %d\n" % (offset, position))

    def _time_index(self, path: str, stretch: Stretch) -> None:
        data = fs.read_file(path)
        with _Entries(self, path, stretch, len(data), _TIME_BYTES) as entries:
            before = (-1, LEAST)
            for slot in range(len(data) // _TIME_BYTES):
                at = slot * _TIME_BYTES
                timestamp = int.from_bytes(data[at : at + 8], "big", signed=True)
                relative = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
                if not timestamp and not relative:
                    break
                offset = stretch.files.base_offset + relative
                if not stretch.start_offset <= offset < stretch.end_offset:
                    continue
                if timestamp <= before[0] or offset < before[1]:
                    entries.complain(at, f"timestamp {timestamp} at offset {offset}, not above the entry before it")
                else:
                    entries.check_time(at, timestamp, offset)
                before = (timestamp, offset)
                if self._json and self._has_lines:
                    self._object("time_index_entry", path, slot=slot, timestamp=timestamp, offset=offset)
                elif self._has_lines:
                    self._out.write(b"timestamp: %d offset: %d\n" % (timestamp, offset))

    def _txn_index(self, path: str, stretch: Stretch) -> None:
        for entry in parse_txn_index(fs.read_file(path), path=path):
            if entry.last_offset < stretch.start_offset or entry.first_offset >= stretch.end_offset:
                continue
            if self._json:
                self._object("aborted_transaction", path, **entry._asdict())
            else:
                self._out.write(
                    f"version: {entry.version} producerId: {entry.producer_id} firstOffset: {entry.first_offset}"
                    f" lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}\n".encode()
                )

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
    """Holds the entries of an index file against the log beside it. Not thread-safe."""

    def __init__(self, dump: FullDump, path: str, stretch: Stretch, size: int, entry_bytes: int) -> None:
        self._dump = dump
        self._path = path
        self._files = stretch.files
        self._complaints = 0
        self._fd: int | None = None
        self._size = 0
        self._index = OffsetEntries(b"", stretch.files.base_offset)
        if size % entry_bytes:
            self.complain(size - size % entry_bytes, f"{size} bytes, which is no multiple of {entry_bytes}")

    def __enter__(self) -> _Entries:
        log, index = self._files.paths.get(names.LOG), self._files.paths.get(names.OFFSET_INDEX)
        if log is not None and fs.exists(log):
            self._fd = fs.open(log)
            self._size = fs.size(self._fd)
        if index is not None and fs.exists(index):
            data = fs.read_file(index)
            self._index = OffsetEntries(data[: len(data) - len(data) % _OFFSET_BYTES], self._files.base_offset)
            self._index.entries = self._index.sound_entries()
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            fs.close(self._fd)
        if self._complaints > _MOST_COMPLAINTS:
            self._dump._report(self._path, None, f"{self._complaints - _MOST_COMPLAINTS} more entries are wrong")

    def complain(self, position: int, what: str) -> None:
        """Report a wrong entry; of many only the first few."""
        self._complaints += 1
        if self._complaints <= _MOST_COMPLAINTS:
            self._dump._report(self._path, position, what)

    def check_offset(self, at: int, offset: int, position: int) -> None:
        """Complain unless a batch begins there that ends at the offset, or below it as before 4.1 (3.18)."""
        if self._fd is None:
            return
        try:
            found = _scan.find_batch(self._fd, position, self._size, LEAST) if 0 <= position < self._size else None
        except CorruptRecordError:
            found = None
        if found is None or found[2] > offset or found[3] > offset:
            self.complain(at, f"offset {offset} at position {position}, where the log has no batch up to that offset")

    def check_time(self, at: int, timestamp: int, offset: int) -> None:
        """Complain unless the batch that holds the offset has this greatest timestamp."""
        if self._fd is None:
            return
        try:
            start = self._index.lookup(offset)[1]
            found = _scan.find_batch(self._fd, start, self._size, offset)
        except CorruptRecordError:
            found = None
        if found is None or found[4] != timestamp or (found[5] == 2 and found[2] > offset):
            self.complain(at, f"timestamp {timestamp} at offset {offset}, which no batch of the log has")


class _Contents:
    """Makes text or JSON of keys, values and control records; what cannot be read is reported and left as it is."""

    def __init__(self, decode: Decode | None, numbers: tuple[bool, bool], path: str, report: Report) -> None:
        self.decode = decode
        self.text: LogText | None = None
        self._numbers = numbers
        self._path = path
        self._report = report

    def _complain(self, error: KStoreError) -> None:
        self._report(self._path, None if self.text is None else self.text.position, _reason(error))

    def control_text(self, key: bytes | None, value: bytes | None) -> bytes:
        try:
            return control_text(key, value)
        except CorruptRecordError as error:
            self._complain(error)
            return b""

    def control_json(self, key: bytes | None, value: bytes | None) -> bytes:
        try:
            return control_json(key, value)
        except CorruptRecordError as error:
            self._complain(error)
            return b"null"

    def texts(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        if self.decode is not None:
            try:
                return self.decode(offset, key, value)
            except InvalidRecordError as error:
                self._complain(error)
        return None if key is None else java_text(key), None if value is None else java_text(value)

    def members(self, offset: int, key: bytes | None, value: bytes | None) -> bytes:
        """The members of a record in JSON that stand for its key and its value."""
        found: dict[str, Any] = {**octets("key", key), **octets("value", value)}
        if self.decode is None:
            return _members(found)
        try:
            key_text, value_text = self.decode(offset, key, value)
        except InvalidRecordError as error:
            self._complain(error)
            return _members(found)
        if not isinstance(self.decode, Coordinator):
            return _members(
                (_number("key", key_text) if self._numbers[0] else octets("key", key))
                | (_number("value", value_text) if self._numbers[1] else octets("value", value))
            )
        if value_text is None:
            return _members({"decode_error": (key_text or b"").decode(), **found})
        decoded = b"null" if value_text == b"<DELETE>" else value_text
        return b'"decoded_key":%b,"decoded_value":%b' % (key_text or b"null", decoded)


def _number(name: str, text: bytes | None) -> dict[str, Any]:
    return {f"decoded_{name}": None if text is None else int(text)}


def _line(members: dict[str, Any]) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _members(members: dict[str, Any]) -> bytes:
    return _line(members)[1:-2]


def _reason(error: KStoreError) -> str:
    """What is wrong, without the place."""
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


class _Walk:
    """The batches of one log file, and what lies between them. Not thread-safe."""

    def __init__(
        self, dump: FullDump, fd: int, text: LogText, path: str, stretch: Stretch, contents: _Contents
    ) -> None:
        self._dump = dump
        self._fd = fd
        self._text = text
        self._path = path
        self._stretch = stretch
        self._contents = contents
        self._has_legacy = False
        self._is_cut = False  # by the caller's limit, so that what crosses it is no damage
        self._end = 0

    def run(self, max_bytes: int) -> None:
        """Print the stretch, as far as it lies within so many bytes of the file."""
        size = fs.size(self._fd)
        self._end = end = min(size if self._stretch.end is None else self._stretch.end, max_bytes, size)
        self._is_cut = end == max_bytes
        position, before = self._stretch.start, -1
        buffer = bytearray(min(_CHUNK_BYTES, max(end - position, 0)))
        while position < end and position != before:
            before = position
            filled = fs.pread_into(self._fd, memoryview(buffer)[: end - position], position)
            with memoryview(buffer)[:filled] as view:
                position, is_over = self._chunk(view, position)
            if is_over:
                break
            self._dump.reach(position)
            if self._text.stop == "more" and self._text.needed > len(buffer):
                buffer = bytearray(self._text.needed)
                before = -1  # unless there is no more than before, for the file has become shorter meanwhile
        self._dump.finish(size)

    def _chunk(self, view: memoryview, position: int) -> tuple[int, bool]:
        """Print what is in a piece of the file; where to go on, and whether there is nothing more."""
        text, end, start = self._text, self._end, position
        while position - start < len(view):
            rest = view[position - start :]
            try:
                position += text.feed(rest, len(rest), position, end)
            except (CorruptRecordError, InvalidRecordError) as error:
                text.settle()
                self._report(text.position, _reason(error))
                position = text.position + text.needed
                continue
            finally:
                self._disorder()
            if text.stop == "more":
                return position, False
            if text.stop == "end":
                if position == end or self._is_cut:
                    return position, True
                position = self._lost(position, "the file ends inside a batch")
            elif text.stop == "lost":
                position = self._lost(position, "no batch can be here: its size is too small")
            else:
                batch = view[position - start : position - start + text.needed]
                position = self._legacy(batch, position) if text.stop == "legacy" else self._unsound(batch, position)
            if position < 0:
                return position, True
        return position, False

    def _report(self, position: int, what: str) -> None:
        self._dump._report(self._path, position, what)

    def _disorder(self) -> None:
        for position, base, last, before in self._text.disorder:
            self._report(position, f"a batch of offsets {base} to {last} behind offset {before}")
        self._text.disorder.clear()

    def _lost(self, position: int, what: str) -> int:
        """Where sound batches go on behind bytes that are none, -1 if they do not."""
        end = self._end
        found = follow(
            self._fd, position + 1, end, self._stretch.files, self._text.last_offset + 1, self._path,
            legacy=self._has_legacy,
        )  # fmt: skip
        size = (end if found < 0 else found) - position
        behind = "nothing sound comes behind them" if found < 0 else f"sound batches go on at position {found}"
        self._report(position, f"{what}; {size} bytes, {behind}")
        return found

    def _has_true_size(self, position: int, size: int) -> bool:
        """Whether a batch that does not hold ends where its header says: another begins there, or the file ends."""
        if position + size == self._end:
            return True
        data, _, _ = _verify.walk(self._fd, position + size, self._end, rows=1, records=False, path=self._path)
        return bool(data)

    def _unsound(self, batch: memoryview, position: int) -> int:
        """Print a batch that does not hold, if that is what the bytes are; where to go on."""
        magic = int.from_bytes(batch[16:17], "big", signed=True)
        what = _BAD_CRC if magic == 2 else f"a batch of format {magic}, which is not known"
        if len(batch) < _V2_HEADER_BYTES:
            return self._lost(position, f"no batch can be here: {len(batch)} bytes are no whole header")
        if not self._has_true_size(position, len(batch)):
            return self._lost(position, what)
        return self._doubtful(batch, position, what)

    def _doubtful(self, batch: memoryview, position: int, what: str) -> int:
        self._report(position, what)
        try:
            self._text.print_batch(batch, position)
        except (CorruptRecordError, InvalidRecordError) as error:
            self._text.settle()
            self._report(position, _reason(error))
        return position + len(batch)

    def _legacy(self, batch: memoryview, position: int) -> int:
        """Print an entry of format 0 or 1; where to go on."""
        data = bytes(batch)
        text, size = self._text, len(data)
        if int.from_bytes(data[12:16], "big") != zlib.crc32(data[16:]):
            if size >= _V2_HEADER_BYTES and int.from_bytes(data[17:21], "big") == crc32c(data[21:]):
                return self._doubtful(batch, position, f"a batch of format {data[16]} that holds as one of format 2")
            if not self._has_true_size(position, size):
                return self._lost(position, _BAD_CRC)
            self._report(position, _BAD_CRC)
        else:
            offset = int.from_bytes(data[:8], "big", signed=True)
            if offset <= text.last_offset:
                self._report(position, f"a batch that ends with offset {offset} behind offset {text.last_offset}")
            text.last_offset = offset
            self._has_legacy = True
            if offset < self._stretch.start_offset:
                return position + size
        try:
            if isinstance(text, LogJson):
                self._legacy_json(data, position)
            else:
                options = self._dump._options
                legacy_text(data, position, text, self._path, options, self._contents.texts, self._wants)
        except (CorruptRecordError, InvalidRecordError) as error:
            text.settle()
            self._report(position, _reason(error))
        return position + size

    def _wants(self, offset: int) -> bool:
        return self._stretch.start_offset <= offset < self._stretch.end_offset

    def _legacy_json(self, data: bytes, position: int) -> None:
        options = self._dump._options
        for batch in decode_batches(data, check_crc=False, path=self._path, position=position):
            if not options.deep:
                line: dict[str, Any] = {
                    "type": "batch",
                    **octets("file", os.fsencode(self._path)),
                    "position": position,
                    "size_bytes": len(data),
                    "base_offset": batch.base_offset,
                    "last_offset": batch.last_offset,
                    "count": batch.count,
                    "max_timestamp": batch.max_timestamp,
                    "timestamp_type": batch.timestamp_type,
                    "compression": compression.type_name(data[17] & _CODEC_MASK),
                    "attributes": data[17],
                    "magic": batch.magic,
                    "crc": int.from_bytes(data[12:16], "big"),
                    "is_valid": int.from_bytes(data[12:16], "big") == zlib.crc32(data[16:]),
                }
                self._text.put(_line(line))
                continue
            for record in batch:
                if self._wants(record.offset):
                    self._text.put(self._legacy_record(record, batch.timestamp_type, position))

    def _legacy_record(self, record: Record, timestamp_type: str, position: int) -> bytes:
        options = self._dump._options
        line: dict[str, Any] = {"type": "record"}
        if options.metadata:
            line |= {
                **octets("file", os.fsencode(self._path)),
                "position": position,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "timestamp_type": timestamp_type,
                "sequence": -1,
                "key_size": -1 if record.key is None else len(record.key),
                "value_size": -1 if record.value is None else len(record.value),
            }
        text = _line(line)[:-2]
        if options.contents:
            text += b"," + self._contents.members(record.offset, record.key, record.value)
        return text + (b',"headers":[]}\n' if options.metadata else b"}\n")
