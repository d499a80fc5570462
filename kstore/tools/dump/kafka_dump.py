"""The text of Kafka's dump tool for the files of a partition directory, line by line (docs/rules/dump.md).

Owns how each kind of file is dumped, the lines of formats 0 and 1, and the summary at the end of the run. `_dump`
prints v2 batches, `indexes` the index files; `codec.coordinator` decodes the internal topics. Hardest rule: the output
equals that of Kafka's tool, and ends where Kafka's ends, so that two dumps can be compared with `diff`. No file is ever
opened for writing.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from kstore._core import decode_batches
from kstore.base.numbers import INT_MAX
from kstore.codec import compression, header
from kstore.codec.legacy import messages
from kstore.disk import fs
from kstore.errors import ConfigError, CorruptRecordError, InvalidRecordError, StorageError
from kstore.files._producer_snapshot import ProducerEntry, SnapshotError, parse_snapshot
from kstore.files.txnindex import parse_txn_index
from kstore.tools.dump._dump import LogText, java_text
from kstore.tools.dump.index_dump import IndexCheck, TimeFindings, dump_index, dump_time_index

__all__ = [
    "INT_MAX",
    "Decode",
    "Dump",
    "DumpOptions",
    "base_offset_of",
    "decoder_of",
    "int_option",
    "legacy_text",
    "snapshot_line",
]

Decode = Callable[[int, bytes | None, bytes | None], tuple[bytes | None, bytes | None]]
"""Makes text of a record's key and value; the offset is for error texts."""

_CHUNK_BYTES = 1 << 20
_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_KRAFT_SNAPSHOT = re.compile(r"(\d{20}).(\d{10})\.checkpoint", re.ASCII)
_CLASSES = "org.apache.kafka.tools.api."


@dataclass(frozen=True)
class DumpOptions:
    """The options of the command line; numbers are as they were typed, since Kafka's tool parses them late.

    `decoder` is "offsets", "transaction", "share-group" or another of Kafka's; with None the two classes decode.
    """

    deep: bool = False
    contents: bool = False
    metadata: bool = True
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_bytes: str = str(INT_MAX)
    max_message_size: str = "5242880"
    decoder: str | None = None
    key_decoder: str = _CLASSES + "StringDecoder"
    value_decoder: str = _CLASSES + "StringDecoder"


@dataclass
class _Findings:
    """The findings for the summary, by the files' absolute paths."""

    mismatches: dict[str, dict[int, int]] = field(default_factory=dict)
    times: dict[str, TimeFindings] = field(default_factory=dict)
    gaps: dict[str, dict[int, int]] = field(default_factory=dict)


class Dump:
    """One run: `files`, to `out` and `err`. Not thread-safe.

    A `KStoreError` ends the run where Kafka's tool ends with a stack trace; what it has printed by then is in `out`.
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
            self._file(_plain_path(path))
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
        return os.path.join(self._directory, path)

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
        text = LogText(
            self._out.write,
            path=path,
            control=_control_text,
            decode=decode,
            deep=options.deep,
            contents=options.contents,
            metadata=options.metadata,
        )
        fd = fs.open(path, follow=True)
        try:
            self._batches(fd, text, path, name, max_bytes, decode)
        finally:
            text.flush()
            fs.close(fd)
        if text.gaps:
            self._findings.gaps.setdefault(self._absolute(path), {}).update(text.gaps)

    def _batches(self, fd: int, text: LogText, path: str, name: str, max_bytes: int, decode: Decode | None) -> None:
        size = fs.size(fd)
        if size > INT_MAX:
            raise StorageError(errno.EFBIG, f"{size} bytes, more than the {INT_MAX} of the largest segment", path)
        if max_bytes < 0:
            raise ConfigError(f"max-bytes {max_bytes}: 0 is the least")
        end = min(size, max_bytes)
        position = 0
        buffer = bytearray(min(_CHUNK_BYTES, end))
        while True:
            filled = fs.pread_into(fd, memoryview(buffer)[: end - position], position)
            used = 0
            with memoryview(buffer) as view:
                while True:
                    used += text.feed(view[used:filled], filled - used, position + used, end)
                    if text.stop == "legacy":
                        batch = bytes(view[used : used + text.needed])
                        legacy_text(batch, position + used, text, path, self._options, decode)
                    elif text.stop == "short":
                        text.short_batch(
                            fs.pread(fd, header.HEADER_BYTES, position + used), position + used, text.needed
                        )
                    else:
                        break
                    used += text.needed
            position += used
            if text.stop == "end" or (filled < len(buffer) and position + filled - used < end):
                break  # the last batch was printed, or the file has become shorter meanwhile
            if text.needed > len(buffer):
                buffer = bytearray(text.needed)
        if end > position and max_bytes == INT_MAX:
            text.put(os.fsencode(f"Found {end - position} invalid bytes at the end of {name}\n"))

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
            self._print(
                f"version: {entry.version} producerId: {entry.producer_id} firstOffset: {entry.first_offset}"
                f" lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}\n"
            )

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


# Formats 0 and 1


def legacy_text(
    batch: bytes,
    position: int,
    text: LogText,
    path: str,
    options: DumpOptions,
    decode: Decode | None,
    wants: Callable[[int], bool] | None = None,
) -> None:
    """Print an entry of format 0 or 1, with those of its records whose offsets `wants` accepts."""
    offset, crc, magic = header.BASE_OFFSET.of(batch), header.LEGACY_CRC.of(batch), header.MAGIC.of(batch)
    attributes = header.LEGACY_ATTRIBUTES.of(batch)
    text.put(f"offset: {offset}".encode())
    codec = attributes & header.CODEC_MASK
    if magic < 0 or codec > compression.ZSTD:
        raise CorruptRecordError(f"magic {magic}, compression type {codec}", path=path, position=position)
    label = "NoTimestampType"
    timestamp = -1
    if magic:
        label = "LogAppendTime" if attributes & header.TIMESTAMP_TYPE_BIT else "CreateTime"
        timestamp = header.LEGACY_TIMESTAMP.of(batch)
    valid = _java_flag(header.legacy_crc_holds(batch))
    text.put(
        f" position: {position} {label}: {timestamp} size: {len(batch)} magic: {magic}"
        f" compresscodec: {compression.type_name(codec)} crc: {crc} isvalid: {valid}\n".encode()
    )
    if not options.deep:
        return
    records = [
        record for decoded in decode_batches(batch, check_crc=False, path=path, position=position) for record in decoded
    ]
    for record, message in zip(records, messages(memoryview(batch), position), strict=True):
        text.follow(record.offset)
        if wants is not None and not wants(record.offset):
            continue
        if options.metadata:
            text.put(
                f"| offset: {record.offset} {label}: {record.timestamp} keySize: {_size(record.key)}"
                f" valueSize: {_size(record.value)} isValid: {_java_flag(message.crc_holds)}"
                f" crc: {message.crc}".encode()
            )
        if options.contents:
            key, value = (decode or _strings)(record.offset, record.key, record.value)
            text.put(_contents(key, value, metadata=options.metadata))
        text.put(b"\n")


# Names and numbers


def _plain_path(path: str) -> str:
    """Normalise a path as Java's `File` does: no double slash, none at the end."""
    path = re.sub("/+", "/", path)
    return path[:-1] if len(path) > 1 and path.endswith("/") else path


def _number(text: str, bits: int) -> int | None:
    """Read a number as Java does: without underscores and blanks."""
    value = int(text) if _NUMBER.fullmatch(text) and len(text) < 1000 else None
    return value if value is not None and -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None


def int_option(name: str, text: str) -> int:
    """The number in an option; `ConfigError` for a text that is no number to Java."""
    value = _number(text, 32)
    if value is None:
        raise ConfigError(f"Cannot parse argument '{text}' of option {name}: a number of 32 bits is wanted")
    return value


def base_offset_of(name: str) -> int:
    """The base offset in a file's name; `ConfigError` for a name without one, as in Java."""
    text = name.partition(".")[0]
    value = _number(text, 64)
    if value is None:
        raise ConfigError(f"{name}: the name of such a file begins with its base offset, and {text!r} is no number")
    return value


def _sibling(path: str, name: str, suffix: str) -> str:
    return f"{path.rpartition('/')[0]}/{name.partition('.')[0]}{suffix}"


def _java_flag(flag: bool) -> str:
    return "true" if flag else "false"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def snapshot_line(entry: ProducerEntry) -> str:
    """A producer's entry in a snapshot as the tool prints it."""
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


# Keys and values


def _contents(key: bytes | None, value: bytes | None, *, metadata: bool) -> bytes:
    text = b""
    if key is not None:
        text = (b" key: " if metadata else b"| key: ") + key
    if value is not None:
        text += (b" payload: " if metadata or text else b"| payload: ") + value
    return text


def _strings(_: int, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
    return None if key is None else java_text(key), None if value is None else java_text(value)


def _integer_decoder(size: int) -> Callable[[bytes], bytes]:
    def decode(data: bytes) -> bytes:
        if len(data) < size:
            raise InvalidRecordError(f"{len(data)} bytes for a number of {size}")
        return str(int.from_bytes(data[:size], "big", signed=True)).encode()

    return decode


_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    _CLASSES + "StringDecoder": java_text,
    _CLASSES + "IntegerDecoder": _integer_decoder(4),
    _CLASSES + "LongDecoder": _integer_decoder(8),
}


def decoder_of(options: DumpOptions) -> Decode | None:
    """Choose the decoder of keys and values; None if they are text already."""
    if options.decoder in ("offsets", "transaction", "share-group"):
        from kstore.codec.coordinator import record_texts

        return {
            "offsets": record_texts.OFFSETS,
            "transaction": record_texts.TRANSACTIONS,
            "share-group": record_texts.SHARE_GROUPS,
        }[options.decoder]
    if options.decoder is not None:
        raise ConfigError(
            f"records of the {options.decoder} topic are not decoded here: kstore knows __consumer_offsets, "
            "__transaction_state and __share_group_state"
        )
    decoders = []
    for name in (options.key_decoder, options.value_decoder):
        if name not in _DECODERS:
            raise ConfigError(f"Failed to load decoder class {name}: there are {', '.join(_DECODERS)}")
        decoders.append(_DECODERS[name])
    key_decoder, value_decoder = decoders
    if key_decoder is value_decoder is java_text:
        return None

    def decode(_: int, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        return None if key is None else key_decoder(key), None if value is None else value_decoder(value)

    return decode


def _control_text(key: bytes | None, value: bytes | None) -> bytes:
    from kstore.codec.coordinator.record_texts import control_text  # many small tables, which few dumps need

    return control_text(key, value)
