"""What every parser must do with any bytes: one function for each, for the fuzzer (fuzz.py) and for the kept corpus.

A target takes bytes, and raises nothing for any of them: errors of kstore are answers, all else is a fault. Bytes
behind a checksum are tried with one that holds, too, or a fuzzer would never get past it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c as second_opinion

from kstore import cli
from kstore.codec import compression
from kstore.codec._pack import Packer
from kstore.codec.coordinator.group_records import parse_group, parse_key, parse_position
from kstore.codec.coordinator.record_texts import OFFSETS, SHARE_GROUPS, TRANSACTIONS, control_json, control_text
from kstore.codec.coordinator.schemas import SchemaError
from kstore.codec.coordinator.transaction_records import parse_transaction, parse_transactional_id
from kstore.columns import _column_encoder, _json_columns
from kstore.columns._arrow import Source
from kstore.columns.column_input import ColumnInput
from kstore.config import settings
from kstore.errors import CorruptIndexError, CorruptRecordError, InvalidRecordError, KStoreError
from kstore.files import checkpoint, follower_file, gap_files, load_files, names, topic_files
from kstore.files._index_search import OffsetEntries, TimeEntries
from kstore.files._producer_snapshot import SnapshotError, is_cut_short, parse_snapshot
from kstore.files.txnindex import format_txn_index, parse_txn_index
from kstore.log.segments._producer_state import ProducerTable
from kstore.tools.check import _verify
from kstore.tools.check.verify import verify
from tests.columns import test_columns_fuzz
from tests.search import test_fuzz
from tests.support import arrowstructs as arrow
from tests.support import reference

CORPUS = Path(__file__).parent / "corpus"
T = 1_700_000_000_000
KEPT_BYTES = 4096  # of the inputs of one target
LIMIT = 1 << 20  # of what payloads may decompress to: a fuzzer wants many small inputs
LONG_MAX = 2**63 - 1

_scratch = Path(tempfile.mkdtemp(prefix="kstore-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))  # noqa: PTH112
_fd = os.open(_scratch / "bytes", os.O_RDWR | os.O_CREAT)
atexit.register(shutil.rmtree, _scratch, ignore_errors=True)


def filled(data: bytes) -> int:
    """A descriptor of a file that holds these bytes."""
    os.ftruncate(_fd, 0)
    os.pwrite(_fd, data, 0)
    return _fd


def batches(data: bytes) -> None:
    """Batches of any format, as they come and with checksums that hold: decoded, checked, patched, as columns."""
    for each in (data, test_fuzz.with_crc(data)):
        test_fuzz.decode_everything(each)
        test_fuzz.check_everything(each)
        test_columns_fuzz.check(each, check_crc=False)


def records(data: bytes) -> None:
    """A record section behind a header that the first bytes draw."""
    if len(data) < 4:
        return
    codec, count, last_delta, bits = data[:4]
    batch = reference.batch(
        data[4:], count, attributes=codec % 5 | bits & 0x78, last_offset_delta=last_delta, producer_id=bits
    )
    test_fuzz.decode_everything(batch)
    test_fuzz.check_everything(batch)
    test_columns_fuzz.check(batch)
    if not codec % 5:
        assert test_fuzz.as_ours(batch) == test_fuzz.as_oracle(batch)


def files(data: bytes) -> None:
    """A `.log` file: recovery's walk, searches, the check's walk, producers' replay."""
    for each in (data, test_fuzz.with_crc(data)):
        fd = filled(each)
        test_fuzz.walk_everything(fd, len(each))
        for position in (0, len(each) // 2):
            rows, end, stop = _verify.walk(fd, position, len(each), rows=3)
            assert position <= end <= len(each)
            assert len(rows) % len(_verify.walk(fd, 0, 0)[0] or b"x") == 0
            assert stop
            found = _verify.find_next(fd, position, len(each), 0, LONG_MAX, legacy=bool(position))
            assert found == -1 or position <= found < len(each)
        table = ProducerTable()
        with contextlib.suppress(CorruptRecordError):
            table.replay(fd, 0, len(each), 0)
        again = ProducerTable()
        assert again.load(table.snapshot(), 0, LONG_MAX)


def codecs(data: bytes) -> None:
    """Bytes as each codec's, in the frames of each format."""
    for codec in (1, 2, 3, 4):
        for magic in (0, 1, 2):
            with contextlib.suppress(CorruptRecordError):
                assert len(compression.decompress(codec, data, limit=LIMIT, magic=magic)) <= LIMIT
        batch = reference.batch(data, 3, attributes=codec, last_offset_delta=2)
        test_columns_fuzz.check(batch)


def indexes(data: bytes) -> None:
    """Bytes as the entries of each index."""
    for kind, size in ((OffsetEntries, 8), (TimeEntries, 12)):
        whole = data[: len(data) // size * size]
        entries: Any = kind(whole, 100)
        sound = entries.sound_entries()
        assert 0 <= sound <= entries.entries == len(whole) // size
        for target in (0, 99, 100, 101, 1 << 20, LONG_MAX):
            entries.lookup(target)
            assert 0 <= entries.entries_below(target) <= entries.entries
        for slot in range(entries.entries):
            entries.entry(slot)
        assert len(entries.all_entries()) == entries.entries
        entries.entries = sound
        assert entries.sound_entries() == sound
    with contextlib.suppress(CorruptIndexError):
        found = parse_txn_index(data)
        assert len(format_txn_index(found)) == len(data) // 34 * 34


def snapshots(data: bytes) -> None:
    """A producer snapshot, as it comes and with a checksum that holds: both readers judge alike."""
    sealed = data[:2] + struct.pack(">I", second_opinion.crc32c(data[6:])) + data[6:] if len(data) >= 6 else data
    for each in (data, sealed):
        try:
            entries = parse_snapshot(each)
        except SnapshotError:
            entries = None
        table = ProducerTable()
        assert table.load(each, 0, LONG_MAX) == (entries is not None), entries
        is_cut_short(each)
        table.states()
        table.aborted()
        again = ProducerTable()
        assert again.load(table.snapshot(), 0, LONG_MAX)
        assert again.snapshot() == table.snapshot()


class Bytes:
    """Numbers and pieces, drawn from the input one after the other; zeros when it is used up."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        self.at += size
        return found + bytes(size - len(found))

    def number(self, most: int) -> int:
        return self.take(1)[0] % (most + 1)

    def long(self) -> int:
        """A small number mostly, sometimes one at a border."""
        number = int.from_bytes(self.take(2), "big", signed=True)
        return {32767: LONG_MAX, -32768: -LONG_MAX, 32766: 1 << 62, 32765: 1 << 31, 32764: 1 << 32}.get(number, number)


def _array(data: Bytes, rows: list[bytes | None]) -> arrow.Array:
    kind = data.number(6)
    skip = data.number(2)
    if kind == 0:
        made = arrow.binary(rows, "zuZU"[data.number(3)], skip=skip)
    elif kind == 1:
        made = arrow.views(rows, skip=skip)
    elif kind == 2:
        made = arrow.fixed([None if row is None else row[:3].ljust(3) for row in rows], 3, skip=skip)
    elif kind == 3:
        make = (arrow.binary, arrow.views)[data.number(1)]
        made = arrow.dictionary(rows, "cCsSiIlL"[data.number(7)], skip=skip, make=make)
    elif kind == 4:
        formats = ("l", "i", "s", "tsm:", "tsu:UTC", "tsn:", "tss:", "tdD", "tdm")
        numbers = [None if row is None else len(row) for row in rows]
        made = arrow.numbers(numbers, formats[data.number(8)], skip=skip)
    elif kind == 5:
        pairs = [None if row is None else [(row[:3], row), (b"", None)] for row in rows]
        made = arrow.headers(pairs, ("+m", "+l", "+L")[data.number(2)], skip=skip)
    else:
        made = arrow.nulls(len(rows))
    return made


# No formats, or not of these buffers; another that is one would have buffers whose extent nothing tells.
FORMATS = (None, b"", b"?", b"w", b"w:", b"w:-3", b"w:99999999999999999999", b"+", b"+s", b"ts", b"tsx:", b"tD", b"v",
           b"vv", b"zz", b"\xff")  # fmt: skip


def _damage(data: Bytes, made: arrow.Array) -> None:
    """Fields of the structs, and the bytes of buffers whose extent the structs tell; those of data stay as long."""
    everything = [made, *made.children, *(child for each in made.children for child in each.children)]
    if made.dictionary is not None:
        everything.append(made.dictionary)
    for _ in range(data.number(3)):
        each = everything[data.number(len(everything) - 1)]
        what = data.number(8)
        if what < 4:
            field, value = ("length", "offset", "n_buffers", "n_children")[what], data.long()
            if field in ("length", "offset") and 0 <= value < 1 << 30:
                value = min(value, getattr(each, field))  # more rows than memory cannot be told from the structs
            if field in ("n_buffers", "n_children") and value > 0:
                value = -value
            each.damage = lambda array, field=field, value=value: setattr(array, field, value)
        elif what == 4:
            text = FORMATS[data.number(len(FORMATS) - 1)]
            each.damage_schema = lambda schema, text=text: setattr(schema, "format", text)
        elif what == 5 and each.buffers:
            number = data.number(len(each.buffers) - 1)
            each.damage = lambda array, number=number: array.buffers.__setitem__(number, None)
        elif what == 6:
            each.null_count = data.long()
        elif what == 7:
            each.damage_schema = lambda schema: setattr(schema, "flags", -1)
        elif len(each.buffers) > 2 and each.format in "zuZU":
            offsets = bytearray(each.buffers[1] or b"")
            if offsets:
                offsets[data.number(min(len(offsets) - 1, 255))] = data.take(1)[0]
                width = 4 if each.format in "zu" else 8
                last = int.from_bytes(offsets[-width:], "little", signed=True)
                if last < 1 << 16:  # how long the data is, only the last offset says
                    each.buffers[1] = bytes(offsets)
                    each.buffers[2] = bytes(each.buffers[2] or b"").ljust(max(last, 0), b"#")


REFUSALS = KStoreError, TypeError, ValueError  # of a type that no column has, of counts that differ


def columns_in(data: bytes) -> None:
    """Arrow structs of every layout, sound and not, as each column of an append and as JSON."""
    draw = Bytes(data)
    before = arrow.alive()
    sizes = [draw.number(24) for _ in range(draw.number(9))]
    rows = [None if size == 24 else bytes([65 + number]) * size for number, size in enumerate(sizes)]
    role = draw.number(3)
    made = _array(draw, rows)
    _damage(draw, made)
    columns: list[Any] = [rows, None, None, None]
    columns[role] = made
    with contextlib.suppress(*REFUSALS):
        _pack(columns, 100 + draw.number(255))
    with contextlib.suppress(*REFUSALS):
        _render(made, ("value", "key")[draw.number(1)], ("text", "raw", "int", "number")[draw.number(3)])
    if arrow.alive() != before:
        gc.collect()  # an error holds the frames that it went through
    assert arrow.alive() == before, "an array was not given back"


def _pack(columns: list[Any], batch_bytes: int) -> None:
    packer = Packer(batch_bytes, 1 << 20, now_ms=T)
    for each in ColumnInput(*columns, T):
        _column_encoder.pack(packer, each, 1 << 31)
    _column_encoder.close(packer)


def _render(made: arrow.Array, role: str, kind: Any) -> None:
    for found in Source("c", role, made):
        _json_columns.render_rows([("v", kind, column) for column in found.values()])


KINDS = (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX, names.TXN_INDEX, names.SNAPSHOT)


def directories(data: bytes) -> None:
    """A partition's directory with one file of any bytes among sound ones: `verify`, and both dumps."""
    if not data:
        return
    kind, data = KINDS[data[0] % len(KINDS)], data[1:]
    root = _scratch / "root"
    shutil.rmtree(root, ignore_errors=True)
    partition = root / "t-0"
    partition.mkdir(parents=True)
    sound = test_fuzz.CORPUS[0] + reference.encode([reference.Rec(9, T, None, b"v")], leader_epoch=2)
    (partition / names.log_name(0)).write_bytes(sound)
    path = partition / names.file_name(0 if kind != names.SNAPSHOT else 9, kind)
    path.write_bytes(data)
    if kind == names.LOG:
        for suffix in (names.OFFSET_INDEX, names.TIME_INDEX):
            (partition / names.file_name(0, suffix)).write_bytes(b"")
    verify([root], deep=True, threads=1)
    for arguments in (["--files", str(path), "--print-data-log"], [str(partition), "--json", "--deep-iteration"]):
        out, complaints = io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
            code = cli.main(["dump", *arguments])
        assert code in (0, 1, 2), arguments
        assert "Traceback" not in complaints.getvalue(), complaints.getvalue()


def small_files(data: bytes) -> None:
    """The small files of a root and of a partition, in text and in JSON."""
    if not data:
        return
    kind, data = data[0] % 9, data[1:]
    root = _scratch / "files"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)

    def read(name: str, how: Callable[[str], object]) -> None:
        (root / name).write_bytes(data)
        with contextlib.suppress(KStoreError):
            how(str(root))

    if kind == 0:
        read(topic_files.TOPICS_FILE, lambda path: topic_files.read_topics([path]))
    elif kind == 1:
        read(load_files.COMMIT_FILE, load_files.read_commit)
    elif kind == 2:
        read(load_files.LOADS_FILE, lambda path: load_files.read_done([path]))
    elif kind == 3:
        read(gap_files.GAPS_FILE, gap_files.read_gaps)
        read(follower_file.FOLLOWER_FILE, follower_file.read_role)
    elif kind == 4:
        read(checkpoint.RECOVERY_POINTS, lambda path: checkpoint.read_offsets(path, checkpoint.RECOVERY_POINTS))
    elif kind == 5:
        read(names.PARTITION_METADATA, checkpoint.read_partition_metadata)
    elif kind == 6:
        with contextlib.suppress(KStoreError):
            settings.parse_properties(data.decode(errors="surrogateescape"))
    elif kind == 7:
        with contextlib.suppress(KStoreError):
            checkpoint.parse_checkpoint(data, "f", 2)
    else:
        text = data.decode(errors="replace")
        with contextlib.suppress(KStoreError):
            names.parse_partition_name(text)
        names.parse_file_name(text)
        names.parse_offset(text)


def internal_records(data: bytes) -> None:
    """Keys and values of a broker's own topics, for the store and for the dump."""
    if not data:
        return
    cut, data = data[0], data[1:]
    key, value = data[:cut], data[cut:]
    for parse in (parse_key, parse_position, parse_group, parse_transaction, parse_transactional_id):
        for each in (key, value):
            with contextlib.suppress(SchemaError):
                parse(each)
    for coordinator in (OFFSETS, TRANSACTIONS, SHARE_GROUPS):
        for each in (value, None):
            with contextlib.suppress(InvalidRecordError):
                coordinator(0, key, each)
    for each in (value, None):
        with contextlib.suppress(CorruptRecordError):
            control_text(key, each)
            control_json(key, each)


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (
        batches,
        records,
        files,
        codecs,
        indexes,
        snapshots,
        columns_in,
        directories,
        small_files,
        internal_records,
    )
}


def corpus(target: str) -> list[bytes]:
    """The inputs that are kept for a target: those that reach most, and those that once found a fault."""
    return [bytes.fromhex(line) for line in (CORPUS / f"{target}.hex").read_text("ascii").split()]
