"""Walks over the batches of a log file, and goes on behind damage.

Each fault is reported; bytes that are no sound batch are skipped, up to the next sound one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kstore._core import Record, decode_batches
from kstore.codec import compression, header
from kstore.disk import fs
from kstore.errors import CorruptRecordError, InvalidRecordError
from kstore.tools.check import _verify
from kstore.tools.dump._dump import LogJson, LogText
from kstore.tools.dump.dump_ranges import Report, Stretch, follow
from kstore.tools.dump.kafka_dump import DumpOptions, legacy_text
from kstore.tools.dump.record_contents import Contents, json_line, octets, reason_of

__all__ = ["LogWalk"]

_CHUNK_BYTES = 1 << 20
_BAD_CRC = "the CRC of the batch does not hold"


class LogWalk:
    """The batches of one log file, and the damage between them. Not thread-safe."""

    def __init__(
        self,
        fd: int,
        text: LogText,
        path: str,
        stretch: Stretch,
        contents: Contents,
        options: DumpOptions,
        *,
        report: Report,
        reach: Callable[[int], object],
    ) -> None:
        self._fd = fd
        self._options = options
        self._tell = report
        self._reach = reach
        self._text = text
        self._path = path
        self._stretch = stretch
        self._contents = contents
        self._has_legacy = False
        self._is_cut = False  # the caller's limit ends the walk: a batch that crosses it is no damage
        self._end = 0

    def run(self, max_bytes: int) -> int:
        """Print the stretch, as far as it lies within the first `max_bytes` of the file; returns the file's size."""
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
            self._reach(position)
            if self._text.stop == "more" and self._text.needed > len(buffer):
                buffer = bytearray(self._text.needed)
                before = -1  # go on; if the file has become shorter meanwhile, the next round ends the walk
        return size

    def _chunk(self, view: memoryview, position: int) -> tuple[int, bool]:
        """Print the batches in a piece of the file; returns where to go on, and whether the walk is over."""
        text, end, start = self._text, self._end, position
        while position - start < len(view):
            rest = view[position - start :]
            try:
                position += text.feed(rest, len(rest), position, end)
            except (CorruptRecordError, InvalidRecordError) as error:
                text.settle()
                self._report(text.position, reason_of(error))
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
        self._tell(self._path, position, what)

    def _disorder(self) -> None:
        for position, base, last, before in self._text.disorder:
            self._report(position, f"a batch of offsets {base} to {last} behind offset {before}")
        self._text.disorder.clear()

    def _lost(self, position: int, what: str) -> int:
        """Report bytes that are no sound batch; returns where sound batches go on, or -1."""
        end = self._end
        next_position = follow(
            self._fd, position + 1, end, self._stretch.files, self._text.last_offset + 1, self._path,
            legacy=self._has_legacy,
        )  # fmt: skip
        size = (end if next_position < 0 else next_position) - position
        behind = (
            "nothing sound comes behind them"
            if next_position < 0
            else f"sound batches go on at position {next_position}"
        )
        self._report(position, f"{what}; {size} bytes, {behind}")
        return next_position

    def _has_true_size(self, position: int, size: int) -> bool:
        """Whether an unsound batch ends where its header says: another begins there, or the file ends."""
        if position + size == self._end:
            return True
        data, _, _ = _verify.walk(self._fd, position + size, self._end, rows=1, records=False, path=self._path)
        return bool(data)

    def _unsound(self, batch: memoryview, position: int) -> int:
        """Print an unsound batch, if the bytes look like one; returns where to go on."""
        magic = header.MAGIC.of(batch)
        what = _BAD_CRC if magic == 2 else f"a batch of format {magic}, which is not known"
        if len(batch) < header.HEADER_BYTES:
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
            self._report(position, reason_of(error))
        return position + len(batch)

    def _legacy(self, batch: memoryview, position: int) -> int:
        """Print an entry of format 0 or 1; returns where to go on."""
        data = bytes(batch)
        text, size = self._text, len(data)
        if not header.legacy_crc_holds(data):
            if size >= header.HEADER_BYTES and header.crc_holds(data):
                magic = header.MAGIC.of(data)
                return self._doubtful(batch, position, f"a batch of format {magic} whose CRC holds in format 2")
            if not self._has_true_size(position, size):
                return self._lost(position, _BAD_CRC)
            self._report(position, _BAD_CRC)
        else:
            offset = header.BASE_OFFSET.of(data)
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
                options = self._options
                legacy_text(data, position, text, self._path, options, self._contents.texts, self._wants)
        except (CorruptRecordError, InvalidRecordError) as error:
            text.settle()
            self._report(position, reason_of(error))
        return position + size

    def _wants(self, offset: int) -> bool:
        return self._stretch.start_offset <= offset < self._stretch.end_offset

    def _legacy_json(self, data: bytes, position: int) -> None:
        options = self._options
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
                    "compression": compression.type_name(batch.attributes & header.CODEC_MASK),
                    "attributes": header.LEGACY_ATTRIBUTES.of(data),
                    "magic": batch.magic,
                    "crc": header.LEGACY_CRC.of(data),
                    "is_valid": header.legacy_crc_holds(data),
                }
                self._text.put(json_line(line))
                continue
            for record in batch:
                if self._wants(record.offset):
                    self._text.put(self._legacy_record(record, batch.timestamp_type, position))

    def _legacy_record(self, record: Record, timestamp_type: str, position: int) -> bytes:
        options = self._options
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
        text = json_line(line)[:-2]
        if options.contents:
            text += b"," + self._contents.members(record.offset, record.key, record.value)
        return text + (b',"headers":[]}\n' if options.metadata else b"}\n")
