"""What a small file may cost: bytes that claim, or decompress to, far more than they are end in an error.

Time and memory are bounded. Each case runs in a process of its own whose memory is limited.

The bounds: a batch's own bytes, `max_decompressed_bytes` (256 MiB) for what it decompresses to, a few times that for
columns; the time grows with the bytes that are there and with what they decompress to, never with what they claim.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import zstandard

from kstore import CorruptRecordError, InvalidRecordError, Log
from kstore.codec import compression
from kstore.tools.check.repair import plan_repair
from tests.conftest import sanitized
from tests.support import batches

MIB = 1 << 20
GIB = 1 << 30
CODECS = ("gzip", "snappy", "lz4", "zstd")
SECONDS = 60.0  # of the processor; the least of them takes some tenths


def bomb(codec: str, size: int) -> bytes:
    """Frames that decompress to so many zeros, in a size that is made in no time."""
    if codec == "gzip":
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        return (packer.compress(bytes(16 * MIB)) + packer.flush()) * (size // (16 * MIB))
    if codec == "zstd":
        return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(16 * MIB)) * (size // (16 * MIB))
    if codec == "lz4":
        frame = lz4.frame.compress(
            bytes(4 * MIB), block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False, store_size=False
        )
        return frame[:7] + frame[7:-4] * (size // (4 * MIB)) + frame[-4:]
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * (size // MIB)


def batch_of(section: bytes, codec: str, **fields: int) -> bytes:
    return batches.v2(section, attributes=batches.CODECS.index(codec), **fields)  # type: ignore[arg-type]


def wrapper_of(section: bytes, codec: str, magic: int) -> bytes:
    return batches.legacy(magic, section, attributes=batches.CODECS.index(codec), offset=9)


CHILD = """
    import json, resource, sys, time
    import numpy
    from pathlib import Path
    import kstore
    from kstore import Log, cli
    from kstore.tools.check.verify import verify

    path, limit = Path(sys.argv[1]), int(sys.argv[2])
    file = path / ("0" * 20 + ".log")
    data = file.read_bytes() if file.stat().st_size < 1 << 28 else b""
    before = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (before + limit, before + limit))

    def reading(act):
        def done():
            with Log.open(path, "r") as log:
                return act(log)
        return done

    def appending(log_path):
        with Log.open(log_path) as log:
            log.append_batch(data)

    def following(log_path):
        with Log.open(log_path) as log:
            log.append_as_follower(data)

    def recovering():
        with Log.open(path) as log:
            return sum(1 for _ in log.read())

    acts = {
        "decode": lambda: sum(1 for batch in kstore.decode_batches(data) for _ in batch),
        "decode_columns": lambda: len(kstore.decode_columns(data)),
        "read": reading(lambda log: sum(1 for _ in log.read())),
        "read_batches": reading(lambda log: sum(batch.count or 0 for batch in log.read_batches())),
        "read_columns": reading(lambda log: sum(len(each) for each in log.iter_columns())),
        "batch_table": reading(lambda log: len(log.batch_table())),
        "fetch": reading(lambda log: len(log.fetch(log.log_start_offset, 1000).records)),
        "time": reading(lambda log: log.offset_for_timestamp(1)),
        "newest": reading(lambda log: log.max_timestamp()),
        "verify": lambda: verify([path], deep=True).errors,
        "dump": lambda: cli.main(["dump", "--print-data-log", "--files", str(file)]),
        "describe": lambda: cli.main(["describe", str(path)]),
        "cat": lambda: cli.main(["cat", str(path)]),
        "dump_json": lambda: cli.main(["dump", "--json", "--print-data-log", "--files", str(file)]),
        "export": lambda: cli.main(["export", str(path), "--to", str(path.with_suffix(".jsonl"))]),
        "export_arrow": lambda: cli.main(["export", str(path), "--to", str(path.with_suffix(".parquet"))]),
        "last": lambda: cli.main(["cat", "--last", "1", "--format", "%o", str(path)]),
        "cat_json": lambda: cli.main(["cat", "--json", "--max", "1000", str(path)]),
        "append": lambda: appending(path.with_name("other-0")),
        "follow": lambda: following(path.with_name("third-0")),
        "recover": recovering,
    }
    for name in sys.argv[3].split(","):
        began = time.process_time()
        try:
            said = repr(acts[name]())[:100]
        except kstore.KStoreError as error:
            said = f"{type(error).__name__}: {error}"[:300]
        except ValueError as error:
            said = f"ValueError: {error}"[:300]
        print(json.dumps([name, said, time.process_time() - began]), file=sys.stderr)
"""

ALL = (
    "decode,decode_columns,read,read_batches,read_columns,batch_table,fetch,time,newest,verify,dump,describe,cat,append,"
    "follow,recover"
)


def attempt(directory: Path, memory: int, acts: str = ALL) -> dict[str, str]:
    """What each call said in a process that may take so much memory more than it has; none may take long."""
    if sanitized():
        pytest.skip("the sanitizer reserves terabytes")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(directory), str(memory), acts],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('["')]
    assert [name for name, _, _ in lines] == acts.split(","), done.stderr[-3000:]
    assert done.returncode == 0, done.stderr[-3000:]
    for name, said, seconds in lines:
        assert seconds < SECONDS, (name, said, seconds)
    return {name: said for name, said, _ in lines}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "root" / "t-0"
    path.mkdir(parents=True)
    return path


def put(directory: Path, data: bytes) -> Path:
    path = directory / f"{0:020d}.log"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_decompresses_to_gigabytes_is_an_error_in_bounded_memory(directory: Path, codec: str) -> None:
    put(directory, batch_of(bomb(codec, 2 * GIB), codec, count=10, last_offset_delta=9))
    said = attempt(directory, 2560 * MIB)
    for name in ("decode", "decode_columns", "read", "read_columns"):
        assert said[name].startswith("CorruptRecordError"), said
        assert "268435456 bytes allowed" in said[name], said
    assert said["append"].startswith(("InvalidRecordError", "CorruptRecordError", "RecordTooLargeError")), said


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["gzip", "lz4"])
def test_a_wrapper_that_decompresses_to_gigabytes_is_an_error_in_bounded_memory(
    directory: Path, codec: str, magic: int
) -> None:
    put(directory, wrapper_of(bomb(codec, 2 * GIB), codec, magic))
    said = attempt(directory, 1536 * MIB, "decode,decode_columns,read,read_columns,verify,append,recover")
    for name in ("decode", "decode_columns", "read", "read_columns"):
        assert said[name].startswith("CorruptRecordError"), said


@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers_in_wrappers_are_not_unpacked(directory: Path, magic: int) -> None:
    data = batches.legacy(magic)
    for _ in range(50):
        data = batches.wrapper(magic, data)
    put(directory, data)
    said = attempt(directory, 512 * MIB, "decode,decode_columns,read,read_columns,verify,append,recover")
    for name in ("decode", "decode_columns", "read", "read_columns"):
        assert said[name].startswith("CorruptRecordError"), said


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_of_empty_frames_takes_time_by_its_size_alone(codec: str) -> None:
    if codec == "gzip":
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        one = packer.compress(b"") + packer.flush()
        assert compression.decompress(compression.GZIP, one * 200_000) == b""
    elif codec == "zstd":
        one = zstandard.ZstdCompressor(write_content_size=False).compress(b"")
        assert compression.decompress(compression.ZSTD, one * 200_000) == b""
    elif codec == "lz4":
        frame = lz4.frame.compress(b"x", block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False, store_size=False)
        assert len(compression.decompress(compression.LZ4, frame[:7] + frame[7:-4] * 200_000 + frame[-4:])) == 200_000
    else:
        head = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
        one = bytes(cramjam.snappy.compress_raw(b""))
        assert compression.decompress(compression.SNAPPY, head + (struct.pack(">i", len(one)) + one) * 200_000) == b""


def test_many_gzip_members_are_read_in_linear_time() -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    one = packer.compress(b"ab") + packer.flush()
    assert compression.decompress(compression.GZIP, one * 100_000) == b"ab" * 100_000
    with pytest.raises(CorruptRecordError, match="inside a member"):
        compression.decompress(compression.GZIP, one * 100_000 + one[:-1])
    assert compression.decompress(compression.GZIP, one * 3 + b"\0" * 10) == b"ababab"
    with pytest.raises(CorruptRecordError, match="more than the 5 bytes"):
        compression.decompress(compression.GZIP, one * 3, limit=5)


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 2**31 - 1, "last_offset_delta": 2**31 - 1},
        {"count": -1},
        {"count": -(2**31), "last_offset_delta": 0},
        {"last_offset_delta": 2**31 - 1},
        {"last_offset_delta": -(2**31)},
        {"length": 2**31 - 1},
        {"length": 2**31 - 13},
        {"length": -1},
        {"length": -(2**31)},
        {"base_offset": 2**63 - 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_numbers_of_a_header_that_claim_gigabytes_take_no_memory(
    directory: Path, fields: dict[str, int], codec: str
) -> None:
    put(directory, batches.v2([batches.record()], codec=codec, **fields))  # type: ignore[arg-type]
    attempt(directory, 384 * MIB)


@pytest.mark.parametrize(
    "record",
    [
        batches.record(length=2**31 - 1),
        batches.record(headers_count=2**31 - 1),
        batches.varint(20) + b"\0\0\0" + batches.varint(2**31 - 1) + b"key",
        batches.varint(20) + b"\0\0\0" + batches.varint(-1) + batches.varint(2**31 - 1) + b"value",
        batches.record(headers=[(b"x" * 10, None)], tail=b"\xff" * 100),
    ],
    ids=lambda data: data[:12].hex(),
)
def test_lengths_in_a_record_that_claim_gigabytes_take_no_memory(directory: Path, record: bytes) -> None:
    put(directory, batches.v2([record]))
    said = attempt(directory, 384 * MIB)
    for name in ("decode", "decode_columns", "read", "read_columns"):
        assert said[name].startswith("CorruptRecordError"), said


@pytest.mark.parametrize("count", [1, 2**31 - 1])
def test_a_wrapped_message_that_claims_gigabytes_takes_no_memory(directory: Path, count: int) -> None:
    inner = struct.pack(">qi", 0, count) + batches.legacy(1)[12:]
    put(directory, batches.wrapper(1, inner))
    attempt(directory, 384 * MIB)


def test_a_batch_of_which_the_file_has_a_hole_of_gigabytes_is_an_error_and_no_death(directory: Path) -> None:
    header = batches.v2([batches.record()], length=2**31 - 13)
    path = put(directory, header)
    os.truncate(path, 2**31 - 1)
    attempt(directory, 512 * MIB, "read,read_columns,recover")


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".txnindex", ".snapshot"])
@pytest.mark.parametrize("size", [1 << 31, 1 << 40])
def test_an_index_or_snapshot_of_a_terabyte_of_holes_takes_no_memory(directory: Path, kind: str, size: int) -> None:
    put(directory, batches.v2([batches.record()]))
    path = directory / f"{1 if kind == '.snapshot' else 0:020d}{kind}"
    path.touch()
    os.truncate(path, size)
    attempt(directory, 1024 * MIB, "read,read_columns,time,newest,verify,describe,recover")


def test_a_log_of_a_terabyte_of_holes_takes_no_memory(directory: Path) -> None:
    os.truncate(put(directory, batches.v2([batches.record()])), 1 << 40)
    said = attempt(directory, 512 * MIB, "read,read_columns,batch_table,fetch,time,newest,verify,describe,dump,recover")
    for name in ("read", "read_columns", "recover"):
        assert "more than the 2147483647 of the largest segment" in said[name], said


def test_a_batch_that_decompresses_to_the_limit_is_read_in_a_few_times_that_memory(directory: Path) -> None:
    count = 1 << 20
    one = batches.record(value=b"x" * 240)
    section = zstandard.ZstdCompressor(write_content_size=False).compress(one * count)
    put(directory, batches.v2(section, attributes=4, count=count, last_offset_delta=count - 1))
    said = attempt(directory, 2 * GIB, "read_columns,decode_columns")
    assert said["read_columns"] == str(count), said


def of_many(what: str) -> tuple[bytes, int]:
    """A batch of some KB that decompresses to 16 MiB of tiny things of one kind, and how many rows it has."""
    count, rows = 8 << 20, 1
    if what == "headers":
        body = b"\0\0\0" + batches.field(None) + batches.field(b"v") + batches.varint(count) + b"\0\x01" * count
        section = batches.varint(len(body)) + body
    else:
        one = batches.record(value=None) if what == "records" else batches.record(key=b"", value=b"")
        rows = count * 2 // len(one)
        section = one * rows
    packed = zstandard.ZstdCompressor().compress(section)
    return batches.v2(packed, attributes=4, count=rows, last_offset_delta=rows - 1), rows


@pytest.mark.parametrize("what", ["headers", "records", "keys"])
def test_a_batch_of_millions_of_tiny_things_is_read_in_bounded_memory(directory: Path, what: str) -> None:
    """A quarter of a gigabyte is enough for all but columns of so many rows; headers by the million are no objects."""
    data, rows = of_many(what)
    assert len(data) < 16384
    put(directory, data)
    said = attempt(
        directory,
        GIB // 4,
        "read_batches,batch_table,fetch,time,newest,dump,describe,last,append,follow,read,recover,cat,cat_json,dump_json",
    )
    refused = f"has {8 << 20} headers, and at most {1 << 20} are given as objects"
    for name in ("read", "recover"):
        assert refused in said[name] if what == "headers" else said[name] == str(rows), said
    for name in ("cat", "cat_json", "dump_json", "last"):
        assert said[name] == ("1" if what == "headers" else "0"), (name, said)
    for name in ("dump", "describe"):
        assert said[name] == "0", (name, said)
    assert not [name for name in ("read_batches", "batch_table", "fetch", "time", "newest") if "Error" in said[name]], (
        said
    )
    said = attempt(directory, GIB, "read_columns,decode_columns,verify,export,export_arrow")
    assert said["read_columns"] == said["decode_columns"] == str(rows)
    assert said["export"] == said["export_arrow"] == ("1" if what == "headers" else "0"), said
    assert said["verify"] == ("0" if what == "headers" else "1"), said  # the records' offsets do not rise


def with_headers(count: int, delta: int = 0) -> bytes:
    """A record with so many empty headers."""
    body = b"\0\0" + batches.varint(delta) + batches.field(None) + batches.field(b"v")
    body += batches.varint(count) + b"\0\x01" * count
    return batches.varint(len(body)) + body


def test_a_record_of_as_many_headers_as_are_allowed_is_read_and_the_next_one_can_be(directory: Path) -> None:
    most = 1 << 20
    put(
        directory,
        batches.v2(with_headers(most) + with_headers(most + 1, 1) + with_headers(0, 2), count=3, last_offset_delta=2),
    )
    with Log.open(directory, "r") as log:
        records = log.read()
        assert len(next(records).headers) == most
        with pytest.raises(InvalidRecordError, match=f"offset 1 has {most + 1} headers, and at most {most} are"):
            next(records)
        assert [record.offset for record in log.read(2)] == [2]
        columns = log.read_columns(columns=("headers",))
        assert columns.headers.offsets.tolist() == [0, most, 2 * most + 1, 2 * most + 1]
        with pytest.raises(InvalidRecordError, match=f"row 1 has {most + 1} headers"):
            columns.headers[1]


def test_a_record_with_more_headers_than_are_read_is_not_appended(directory: Path) -> None:
    many = [("", None)] * ((1 << 20) + 1)
    with Log.open(directory) as log:
        for append in (
            lambda: log.append(b"v", headers=many),
            lambda: log.append_many([(None, b"v", None, many)]),
            lambda: log.append_columns([b"v"], headers=[many]),
        ):
            with pytest.raises(InvalidRecordError, match="1048577 headers; at most 1048576 are read as objects"):
                append()
        assert log.log_end_offset == 0


def test_repair_keeps_a_record_with_more_headers_than_objects_are_made_of(directory: Path) -> None:
    data = bytearray(batches.v2(with_headers((1 << 20) + 1), count=1, last_offset_delta=0))
    data[11] ^= 1  # its length, which no CRC covers
    put(directory, bytes(data))
    plan = plan_repair(str(directory))
    assert any("restore the batch's length" in line for line in plan.lines())
    assert (plan.lost, plan.lost_bytes) == ([], 0)
