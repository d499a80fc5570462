"""Records as the pages show them: a page of records, a search for a key, and one record whole.

Each request reads a bounded number of bytes. Invariant: what is shown of a value is bounded, whatever its size.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from kstore._core import Record, RecordBatch, decode_batches
from kstore.codec.coordinator.record_texts import control_text
from kstore.errors import CorruptRecordError, KStoreError
from kstore.log.log import Log
from kstore.ui.viewed_store import UNPACKED_BYTES

__all__ = [
    "Found",
    "Preview",
    "ShownRecord",
    "Whole",
    "as_shown",
    "find_records",
    "preview",
    "record_at",
    "records_from",
    "whole",
]

PAGE_RECORDS = 50
READ_BYTES = 16 << 20
"""The most bytes of batches that one request reads, apart from the first batch, which is read whole."""
SEARCH_BYTES = 32 << 20
LOOKED_AT_BYTES = 128 << 20
"""The most bytes of decompressed records that one request looks at, apart from the first record."""
_RECORD_BYTES = 100  # what a record costs however small it is
_FETCH_BYTES = 1 << 20
_LISTED = 200  # characters of a key or value in a list
_SHOWN_TEXT = 20_000  # characters of a value on its own page
_SHOWN_HEX = 1024  # bytes
_PARSED = 1 << 20  # bytes of a value that is parsed as JSON
_HEX_LINE = 16


@dataclass(frozen=True, slots=True)
class Preview:
    """The beginning of a key or value, in one line. Immutable, so threads may share it."""

    text: str
    kind: str
    """"text", "hex", or "null"."""
    size_bytes: int
    is_cut: bool


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record in a list. Immutable, so threads may share it."""

    offset: int
    timestamp: int
    key: Preview
    value: Preview
    headers: int
    marker: str
    """What a control record says; empty for a record."""
    is_transactional: bool
    producer_id: int


@dataclass(frozen=True, slots=True)
class Found:
    """Records that a request has found. Immutable, so threads may share it."""

    records: list[ShownRecord]
    next_offset: int
    """Where to go on."""
    is_end: bool
    """Whether the log ends there."""
    read_bytes: int
    error: str | None
    """Why the read ended early; None if it did not."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A key or value on its own page, cut where it is long. Immutable, so threads may share it."""

    size_bytes: int
    json: str | None
    """The value as indented JSON; None if it is none, or too large to be parsed."""
    text: str | None
    """None if the value is not UTF-8."""
    is_text_cut: bool
    hex: list[tuple[str, str, str]]
    """Lines of a position, bytes, and the same bytes as ASCII."""
    is_hex_cut: bool


def records_from(log: Log, offset: int, rows: int = PAGE_RECORDS) -> Found:
    """Return the records from an offset on, control records included; the offset must be in the log."""
    return _collect(log, offset, rows, READ_BYTES, lambda record: True)


def find_records(log: Log, offset: int, key: bytes, *, exact: bool, rows: int = PAGE_RECORDS) -> Found:
    """Return the records from an offset on that have this key, or a key that contains it."""

    def matches(record: Record) -> bool:
        found = record.key
        return found is not None and (found == key if exact else key in found)

    return _collect(log, offset, rows, SEARCH_BYTES, matches, only_records=True)


def record_at(log: Log, offset: int) -> tuple[Record, RecordBatch] | None:
    """Return the record of an offset with its batch; None if no record has it. The offset must be in the log."""
    for batch in _batches(log, offset, 1):
        for record in batch:
            if record.offset == offset:
                return record, batch
        return None
    return None


def _collect(
    log: Log, offset: int, rows: int, most_bytes: int, wanted: Callable[[Record], bool], *, only_records: bool = False
) -> Found:
    shown: list[ShownRecord] = []
    end, read, looked_at, error = log.log_end_offset, 0, 0, None
    try:
        while offset < end and read < most_bytes:
            before = offset
            for batch in _batches(log, offset, _FETCH_BYTES):
                read += batch.size_bytes
                for record in batch if not (only_records and batch.is_control) else ():
                    if record.offset < offset:
                        continue
                    looked_at += _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
                    if wanted(record):
                        shown.append(as_shown(record, batch))
                    if len(shown) == rows or looked_at >= LOOKED_AT_BYTES:
                        following = record.offset + 1
                        return Found(shown, following, following >= end, read, None)
                offset = max(batch.next_offset, offset)
            if offset == before:
                break
    except KStoreError as raised:
        error = f"{type(raised).__name__}: {raised}"
    return Found(shown, offset, offset >= end, read, error)


def _batches(log: Log, offset: int, most_bytes: int) -> Iterator[RecordBatch]:
    fetched = log.fetch(offset, most_bytes)
    path = f"{log.path}/{fetched.segment_base_offset:020d}.log"
    return decode_batches(fetched.records, path=path, position=fetched.position, max_decompressed_bytes=UNPACKED_BYTES)


def as_shown(record: Record, batch: RecordBatch) -> ShownRecord:
    return ShownRecord(
        record.offset,
        record.timestamp,
        preview(record.key),
        preview(record.value),
        len(record.headers),
        _marker(record) if batch.is_control else "",
        batch.is_transactional,
        batch.producer_id,
    )


def _marker(record: Record) -> str:
    try:
        return control_text(record.key, record.value).decode("utf-8", "replace").strip()
    except CorruptRecordError as error:
        return f"a control record that cannot be read: {error}"


def preview(data: bytes | None, most: int = _LISTED) -> Preview:
    """Return the beginning of a key or value as text, or as hexadecimal digits if it is not UTF-8."""
    if data is None:
        return Preview("null", "null", 0, False)
    head = bytes(data[: most * 4])
    text = _decoded(head, is_all=len(head) == len(data))
    if text is None:
        digits = head[: most // 3].hex(" ")
        return Preview(digits, "hex", len(data), len(data) > most // 3)
    cut = text[:most]
    return Preview(cut, "text", len(data), len(cut) < len(text) or len(head) < len(data))


def whole(data: bytes | None) -> Whole | None:
    """Return a key or value for its own page; None for null."""
    if data is None:
        return None
    head = bytes(data[: _SHOWN_TEXT * 4])
    text = _decoded(head, is_all=len(head) == len(data))
    shown = None if text is None else text[:_SHOWN_TEXT]
    lines = [_hex_line(data, at) for at in range(0, min(len(data), _SHOWN_HEX), _HEX_LINE)]
    return Whole(
        len(data),
        _indented(bytes(data)) if text is not None and len(data) <= _PARSED else None,
        shown,
        text is not None and (len(shown or "") < len(text) or len(head) < len(data)),
        lines,
        len(data) > _SHOWN_HEX,
    )


def _decoded(head: bytes, *, is_all: bool) -> str | None:
    """Return the text of the beginning of a value; None if it is not UTF-8, or has a NUL."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=is_all)
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text


def _indented(data: bytes) -> str | None:
    """Return an object or array of JSON with line breaks, cut where it is long; None for any other value."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        parsed = json.loads(data)
        parts: list[str] = []
        length = 0
        for part in islice(json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(parsed), _SHOWN_TEXT):
            parts.append(part[:_SHOWN_TEXT])
            length += len(part)
            if length > _SHOWN_TEXT:
                return "".join(parts)[:_SHOWN_TEXT] + "\n…"
    except (ValueError, RecursionError):
        return None
    return "".join(parts)


def _hex_line(data: bytes, at: int) -> tuple[str, str, str]:
    piece = bytes(data[at : at + _HEX_LINE])
    return f"{at:08x}", piece.hex(" "), "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
