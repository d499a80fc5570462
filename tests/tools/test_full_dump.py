"""What `kstore dump` has beyond Kafka's tool: directories, JSON, ranges, and that it goes on behind damage."""

# ruff: noqa: F811  (the fixture `dump` is imported)

from __future__ import annotations

import base64
import io
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore._core import decode_batches
from kstore.codec.coordinator.record_texts import control_json
from kstore.disk import fs
from kstore.tools.dump._dump import LogJson
from kstore.tools.dump.dump_options import DumpOptions
from kstore.tools.dump.dump_ranges import Span
from kstore.tools.dump.full_dump import FullDump, file_source
from kstore.tools.dump.record_contents import octets
from tests.conftest import SEED
from tests.golden import goldensets
from tests.support import reference
from tests.tools.test_dump import LOG, SAMPLE, Dumper, dump  # noqa: F401

START_MS = 1_700_000_000_000
GOOD = {
    "canary-16k": "dir", "canary-index-full": "dir", "canary-vectors": "dir", "codecs": "dir", "compaction": "after",
    "consumer-offsets": "dir", "crash": "after", "crash-damaged": "after", "delete-records": "dir", "epochs": "dir",
    "idempotent": "dir", "legacy": "dir", "log-append-time": "dir", "retention": "after-restart",
    "transactions": "dir", "transactions-2.8": "dir",
}  # fmt: skip
"""The directories that Kafka left in good order."""


def objects(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def named(found: dict[str, Any], name: str) -> bytes | None:
    """The bytes of a member, told apart as a reader of the help does."""
    if f"{name}_base64" in found:
        return base64.b64decode(found[f"{name}_base64"], validate=True)
    text: str | None = found[name]
    return None if text is None else text.encode()


# --- JSON of any bytes ------------------------------------------------------------------------------------------------

PIECES = [
    b"\xed", b"\xa0", b"\x80", b"\xbf", b"\xe0", b"\xf0", b"\xf4", b"\x8f", b"\x90", b"\xc2", b"\xc0", b'"', b"\\",
    b"\n", b"\0", b"\x1f", b"\x7f", b"abcdefgh", "漢".encode(), "😀".encode(), "\u2028".encode(), b"\xed\xa0\x80",
]  # fmt: skip
ANY_BYTES = st.one_of(
    st.none(), st.binary(max_size=60), st.lists(st.sampled_from(PIECES)).map(b"".join), st.text().map(str.encode)
)


def json_of(record: reference.Rec) -> dict[str, Any]:
    data, out = reference.encode([record]), bytearray()
    text = LogJson(out.extend, file=b'"file":"f"', path=None, control=control_json, deep=True, contents=True)
    text.feed(data, len(data), 0, len(data))
    text.flush()
    (line,) = objects(bytes(out))
    return line


@given(key=ANY_BYTES, value=ANY_BYTES, name=ANY_BYTES, header=ANY_BYTES)
def test_any_bytes_come_back_from_json_as_they_were(
    key: bytes | None, value: bytes | None, name: bytes | None, header: bytes | None
) -> None:
    name = name or b""
    found = json_of(reference.Rec(3, START_MS, key, value, ((name, header), (b"", None))))
    assert {"key", "value"} == {each.removesuffix("_base64") for each in found if each.startswith(("key", "value"))} - {
        "key_size", "value_size",
    }  # fmt: skip
    expected = {**octets("key", key), **octets("value", value)}
    assert {name: found[name] for name in expected} == expected  # text exactly where Python takes it for UTF-8
    assert found["headers"] == [{**octets("key", name), **octets("value", header)}, {"key": "", "value": None}]
    assert (named(found, "key"), named(found, "value")) == (key, value)


@pytest.mark.parametrize("size", [65535, 65536, 65537])
@pytest.mark.parametrize("text", ["😀漢ß", '"', "\x01", "a"])
def test_a_character_on_the_border_of_a_piece_stays_whole(size: int, text: str) -> None:
    for before in range(4):
        value = ("a" * (size - before) + text * 3).encode()
        assert json_of(reference.Rec(0, 0, None, value))["value"] == value.decode()
        assert named(json_of(reference.Rec(0, 0, None, value + b"\xff")), "value") == value + b"\xff"


# --- what Kafka's own classes read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", goldensets.SETS)
def test_records_in_json_are_those_that_kafka_read(
    name: str,
    golden: Callable[[str], Path],
    dump: Dumper,
) -> None:
    if name not in GOOD:
        pytest.skip("its files are damaged")
    folder = golden(name)
    for directory in sorted((folder / GOOD[name]).iterdir()):
        if not directory.is_dir() or not list(directory.glob("*.log")):
            continue
        found = dump("--json", "--print-data-log", *map(str, sorted(directory.glob("*.log"))))
        assert (found.code, found.err) == (0, "")
        ours = [
            (line["offset"], line["timestamp"], named(line, "key"), named(line, "value"),
             tuple((header["key"], named(header, "value")) for header in line["headers"]))
            for line in objects(found.out) if "control" not in line
        ]  # fmt: skip
        theirs = [
            tuple(record[2:7])
            for record in goldensets.expected_records(name, f"{GOOD[name]}/{directory.name}")
            if not record.line["isControl"]
        ]
        assert ours == theirs


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_directory_in_good_order_is_dumped_whole_with_exit_code_0(
    name: str,
    golden: Callable[[str], Path],
    dump: Dumper,
) -> None:
    root = golden(name) / GOOD[name]
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    text = dump(os.fspath(root), "--deep-iteration")
    found = dump(os.fspath(root), "--json", "--deep-iteration")
    assert (text.code, found.code) == (0, 0)
    lines = objects(found.out)
    assert {line["file"] for line in lines} <= {os.fspath(path) for path in before}
    counts = Counter(line["type"] for line in lines)
    old = text.out.count(b" magic: 0 ") + text.out.count(b" magic: 1 ")  # whose batch lines begin as those of an index
    assert counts["record"] == text.out.count(b"\n| offset: ")
    assert counts["offset_index_entry"] == text.out.count(b"\noffset: ") - old
    assert counts["time_index_entry"] == text.out.count(b"\ntimestamp: ")
    assert counts["producer"] == text.out.count(b"\nproducerId: ")
    assert counts["aborted_transaction"] == text.out.count(b"\nversion: ")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["canary-vectors", "codecs", "legacy", "transactions"])
def test_batches_in_json_have_the_fields_of_a_record_batch(
    name: str,
    golden: Callable[[str], Path],
    dump: Dumper,
) -> None:
    fields = (
        "position", "size_bytes", "base_offset", "last_offset", "count", "partition_leader_epoch", "base_timestamp",
        "max_timestamp", "timestamp_type", "producer_id", "producer_epoch", "base_sequence", "is_transactional",
        "is_control", "delete_horizon_ms", "compression", "attributes", "magic", "crc", "is_valid",
    )  # fmt: skip
    for path in sorted((golden(name) / "dir").rglob("*.log")):
        for line, batch in zip(
            objects(dump("--json", "--files", str(path)).out), decode_batches(path.read_bytes()), strict=True
        ):
            assert line["type"] == "batch"
            assert line["file"] == str(path)
            shared = [field for field in fields if field in line]
            assert len(shared) == len(fields) if batch.magic == 2 else len(shared) > 10
            assert {field: line[field] for field in shared} == {field: getattr(batch, field) for field in shared}


def test_an_internal_topics_records_are_decoded_by_its_directorys_name(
    golden: Callable[[str], Path],
    dump: Dumper,
) -> None:
    root = golden("consumer-offsets") / "dir"
    lines = objects(dump("--json", "--print-data-log", str(root)).out)
    decoded = [line["decoded_key"] for line in lines if "decoded_key" in line]
    assert {"type": "1", "data": {"group": "group-tx", "topic": "tx", "partition": 1}} in decoded
    path = str(root / "__consumer_offsets-0" / LOG)
    assert any("decoded_value" in line for line in objects(dump("--json", "--offsets-decoder", path).out))
    assert not any("decoded_value" in line for line in objects(dump("--json", "--print-data-log", path).out))


def test_a_control_record_in_json_has_its_type_and_epoch(
    golden: Callable[[str], Path],
    dump: Dumper,
) -> None:
    lines = objects(dump("--json", "--deep-iteration", str(golden("transactions") / "dir" / "tx-0")).out)
    markers = [line["control"] for line in lines if "control" in line]
    assert {marker["type"] for marker in markers} == {"ABORT", "COMMIT"}
    assert all(isinstance(marker["coordinator_epoch"], int) for marker in markers)


def test_numbers_are_decoded_as_numbers_and_short_ones_are_told(
    tmp_path: Path,
    dump: Dumper,
) -> None:
    path = tmp_path / LOG
    path.write_bytes(kstore.encode_batch([(b"7", b"\0\0\0\7"), (b"8", b"\0")]))
    found = dump("--json", "--value-decoder-class", "org.apache.kafka.tools.api.IntegerDecoder", str(path))
    first, second = objects(found.out)
    assert (first["key"], first["decoded_value"]) == ("7", 7)
    assert (second["key"], second["value"]) == ("8", "\0")
    assert found.code == 1
    assert found.err == f"kstore dump: {path}, position 0: 1 bytes for a number of 4\n"


# --- directories ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 records a second apart, in some ten segments of batches of 5."""
    path = tmp_path_factory.mktemp("written") / "events-0"
    with kstore.Log.open(path, segment_bytes=4096, index_interval_bytes=200) as opened:
        for first in range(0, 400, 5):
            opened.append_many([(b"k%d" % n, b"v" * 60, START_MS + n * 1000, None) for n in range(first, first + 5)])
    return path


@pytest.fixture
def log(tmp_path: Path, written: Path) -> Path:
    """A copy of it as `data/events-0`."""
    return Path(shutil.copytree(written, tmp_path / "data" / "events-0"))


@pytest.mark.parametrize("arguments", [["data/events-0"], ["data/events"], ["data"], ["data/"], ["./data/events-0/"]])
def test_a_directory_is_named_as_a_partition_a_topic_or_a_whole(
    log: Path,
    dump: Dumper,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(log.parent.parent)
    found = dump(*arguments, "--print-data-log")
    assert (found.code, found.err) == (0, "")
    files = [line.removeprefix(b"Dumping ").decode() for line in found.out.splitlines() if line.startswith(b"Dumping ")]
    assert len(files) == len(list(log.glob("0*")))
    assert all(Path(file).exists() for file in files)
    assert found.out.count(b"| offset: ") == 400


def test_a_partitions_files_come_by_segment_in_the_text_of_kafkas_tool(log: Path, dump: Dumper) -> None:
    logs = sorted(log.glob("*.log"))
    assert len(logs) > 5
    found = dump(str(log), "--deep-iteration").out
    parts = [b"Dumping " + part for part in found.split(b"Dumping ")[1:]]
    theirs = dump("--deep-iteration", "--files", ",".join(map(str, logs))).out
    assert b"".join(part for part in parts if b".log\n" in part) == theirs
    kinds = [part.split(b"\n")[0].rpartition(b".")[2] for part in parts]
    assert kinds[:3] == [b"log", b"index", b"timeindex"]


def test_a_directory_without_partitions_is_told_of(tmp_path: Path, dump: Dumper) -> None:
    (tmp_path / "lost+found").mkdir()
    found = dump(str(tmp_path))
    assert (found.code, found.out) == (0, b"")
    assert "lost+found" in found.err
    assert "nothing to dump" in found.err


def test_segments_in_a_directory_of_any_name_are_dumped(log: Path, dump: Dumper) -> None:
    log.rename(log.parent / "rescued")
    assert dump(str(log.parent / "rescued"), "--deep-iteration").out.count(b"| offset: ") == 400


@pytest.mark.parametrize("name", ["nowhere", "nowhere/00000000000000000000.log"])
def test_a_path_that_nothing_is_at_is_one_line_and_the_next_is_dumped(
    log: Path,
    dump: Dumper,
    name: str,
) -> None:
    found = dump(name, str(log), "--deep-iteration")
    assert found.code == 1
    assert found.err.count("\n") == 1
    assert name in found.err
    assert found.out.count(b"| offset: ") == 400


def test_a_file_that_is_of_no_log_is_refused_by_name(log: Path, dump: Dumper) -> None:
    (log / "partition.metadata").write_text("version: 0\n")
    found = dump(str(log / "partition.metadata"))
    assert (found.code, found.out) == (1, b"")
    assert "partition.metadata: no file of a log" in found.err


def test_a_directory_named_like_a_segments_file_is_refused_as_one(tmp_path: Path, dump: Dumper) -> None:
    path = tmp_path / LOG
    path.mkdir()
    for arguments in ([str(path)], ["--json", "--files", str(path)], [f"{path}/"]):
        found = dump(*arguments)
        assert found.code == 1
        assert f"{LOG}: a directory is here, and a regular file is needed" in found.err


def test_words_beside_files_are_passed_over_as_in_kafka_until_something_is_ours(
    log: Path,
    dump: Dumper,
) -> None:
    one, other = map(str, sorted(log.glob("*.log"))[:2])
    assert dump("--files", one, other).out.count(b"Dumping") == 1
    assert {line["file"] for line in objects(dump("--files", one, other, "--json").out)} == {one, other}


# --- ranges -----------------------------------------------------------------------------------------------------------


def offsets(out: bytes) -> list[int]:
    return [line["offset"] for line in objects(out) if line["type"] == "record"]


RANGES = [(0, 400), (0, 1), (7, 8), (137, 260), (399, 400), (395, 9999), (400, 500), (50, 50), (60, 50)]


@pytest.mark.parametrize(("start", "end"), RANGES)
def test_a_range_of_offsets_has_its_records_and_no_others(
    log: Path,
    dump: Dumper,
    start: int,
    end: int,
) -> None:
    found = dump("--json", "--deep-iteration", f"--from-offset={start}", f"--to-offset={end}", str(log))
    assert (found.code, found.err) == (0, "")
    assert offsets(found.out) == list(range(start, min(end, 400)))
    entries = [line["offset"] for line in objects(found.out) if line["type"].endswith("index_entry")]
    assert all(start <= offset < end for offset in entries)


@pytest.mark.parametrize(("start", "end"), RANGES[:-1])
def test_a_range_of_times_is_that_of_the_offsets_they_are_found_at(
    log: Path,
    dump: Dumper,
    start: int,
    end: int,
) -> None:
    bounds = [f"--from-time={START_MS + start * 1000 - 999}", f"--to-time={START_MS + end * 1000}"]
    found = dump("--json", "--deep-iteration", *bounds, str(log))
    assert (found.code, found.err) == (0, "")
    assert offsets(found.out) == list(range(start, min(end, 400)))


def test_times_out_of_order_begin_and_end_at_the_first_record_that_is_late_enough(
    tmp_path: Path,
    dump: Dumper,
) -> None:
    rng = random.Random(f"{SEED}:7")
    times = [START_MS + 1000 * n + rng.randrange(-9000, 9000) for n in range(300)]
    with kstore.Log.open(tmp_path / "t-0", segment_bytes=2048, index_interval_bytes=100) as opened:
        for at in range(0, 300, 3):
            opened.append_many([(None, b"v" * 40, moment, None) for moment in times[at : at + 3]])
    for _ in range(25):
        low, high = sorted(START_MS + rng.randrange(-10_000, 310_000) for _ in range(2))
        start = next((n for n, moment in enumerate(times) if moment >= low), 300)
        end = next((n for n, moment in enumerate(times) if moment >= high and n >= start), 300)
        found = dump("--json", "--deep-iteration", f"--from-time={low}", f"--to-time={high}", str(tmp_path / "t-0"))
        assert offsets(found.out) == list(range(start, end))
        assert found.code == 0


def test_batches_of_a_range_are_those_that_reach_into_it(log: Path, dump: Dumper) -> None:
    found = objects(dump("--json", "--from-offset", "7", "--to-offset", "16", str(log)).out)
    assert [line["base_offset"] for line in found if line["type"] == "batch"] == [5, 10, 15]
    text = dump("--from-offset", "7", "--to-offset", "16", str(log)).out
    assert text.count(b"baseOffset: ") == 3


def test_a_range_reads_what_the_indexes_lead_to_and_not_the_rest(
    tmp_path: Path,
    dump: Dumper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "big-0"
    with kstore.Log.open(path, segment_bytes=1 << 20) as opened:
        for first in range(0, 40_000, 100):
            opened.append_many([(None, b"v" * 100, START_MS + n, None) for n in range(first, first + 100)])
    size = sum(file.stat().st_size for file in path.glob("*.log"))
    assert size > 4 << 20
    logs = 0

    def count(fd: int, buffer: Any, position: int) -> int:
        nonlocal logs
        logs += (filled := real(fd, buffer, position))
        return filled

    real = fs.pread_into
    monkeypatch.setattr(fs, "pread_into", count)
    found = dump("--json", "--deep-iteration", "--from-offset", "20000", "--to-offset", "20010", str(path))
    assert offsets(found.out) == list(range(20_000, 20_010))
    assert logs < 64 << 10
    logs = 0
    bounds = [f"--from-time={START_MS + 30_000}", f"--to-time={START_MS + 30_010}"]
    assert offsets(dump("--json", "--deep-iteration", *bounds, str(path)).out) == list(range(30_000, 30_010))
    assert logs < 64 << 10


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["garbage", "zeros", "missing", "shifted"])
def test_a_wrong_index_costs_a_range_none_of_its_records(
    log: Path,
    dump: Dumper,
    kind: str,
    damage: str,
) -> None:
    for path in log.glob(f"*.{kind}"):
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "garbage":
            path.write_bytes(random.Random(3).randbytes(len(data)))
        elif damage == "zeros":
            path.write_bytes(bytes(len(data)))
        elif kind == "index":  # each position a byte on
            path.write_bytes(bytes(b + (n % 8 == 7 and b < 255) for n, b in enumerate(data)))
        else:  # each offset one on
            path.write_bytes(bytes(b + (n % 12 == 11 and b < 255) for n, b in enumerate(data)))
    logs = sorted(map(str, log.glob("*.log")))
    for bounds in (
        ["--from-offset=137", "--to-offset=260"],
        [f"--from-time={START_MS + 137_000}", f"--to-time={START_MS + 260_000}"],
    ):
        found = dump("--json", "--deep-iteration", *bounds, str(log))
        assert offsets(found.out) == list(range(137, 260))
        if damage == "shifted":
            assert found.code == 1
        alone = [n for path in logs for n in offsets(dump("--json", "--deep-iteration", *bounds[:1], path).out)]
        assert set(alone) >= set(range(137, 260))


@pytest.mark.parametrize("option", ["--from-offset=-1", "--to-offset=x", f"--to-offset={1 << 63}", "--from-time=soon"])
def test_a_bound_that_is_none_is_one_line(log: Path, dump: Dumper, option: str) -> None:
    found = dump(option, str(log))
    assert (found.code, found.out) == (1, b"")
    assert found.err.count("\n") == 1


def test_a_time_may_be_so_long_ago(log: Path, dump: Dumper) -> None:
    assert offsets(dump("--json", "--deep-iteration", "--from-time", "-1h", str(log)).out) == []
    assert len(offsets(dump("--json", "--deep-iteration", "--to-time", "-1h", str(log)).out)) == 400


# --- damage -----------------------------------------------------------------------------------------------------------

BATCHES = [
    kstore.encode_batch(
        [(b"k", b"value-%d" % n, START_MS, None) for n in range(first, first + 3)],
        base_offset=first,
        compression="none" if first % 2 else "gzip",
    )
    for first in range(0, 30, 3)
]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the examples of a property share."""
    return tmp_path_factory.mktemp("scratch")


PLACES = [sum(map(len, BATCHES[:n])) for n in range(len(BATCHES) + 1)]


def damaged(tmp_path: Path, data: bytes) -> tuple[list[int], list[tuple[str, int | None, str]]]:
    """The offsets of the records that a dump of these bytes has, in JSON and in text, and the complaints."""
    path = tmp_path / LOG
    path.write_bytes(data)
    told: list[tuple[str, int | None, str]] = []
    found: list[list[int]] = []
    for as_json in (True, False):
        told.clear()
        out = io.BytesIO()
        run = FullDump(DumpOptions(deep=True, contents=True), out, lambda *each: told.append(each), as_json=as_json)
        run.run(file_source(str(path)))
        assert run.damages == len(told)
        text = out.getvalue()
        if as_json:
            found.append(offsets(text))
        else:
            assert text.endswith(b"\n")
            found.append([int(line.split()[2]) for line in text.splitlines() if line.startswith(b"| offset: ")])
    assert found[0] == found[1]
    return found[0], told


@pytest.mark.parametrize(
    ("at", "byte", "lost", "what"),
    [
        (17, None, set(), "CRC"),  # the checksum itself: the batch is there
        (8, 0x7F, {15, 16, 17}, "the file ends inside a batch"),
        (8, 0xFF, {15, 16, 17}, "no batch can be here"),
        (11, 0x40, {15, 16, 17}, "CRC"),
        (16, 0, set(), "format 0 whose CRC holds in format 2"),
        (16, 1, set(), "format 1 whose CRC holds in format 2"),
        (16, 3, set(), "format 3"),
        (57, 0x7F, set(), "premature EOF"),
    ],
)
def test_behind_damage_the_dump_goes_on_and_says_where_it_was(
    tmp_path: Path, at: int, byte: int | None, lost: set[int], what: str
) -> None:
    data = bytearray(b"".join(BATCHES))
    place = PLACES[5] + at
    data[place] = byte if byte is not None else data[place] ^ 1
    found, told = damaged(tmp_path, bytes(data))
    assert found == [n for n in range(30) if n not in lost]
    assert {(path, position) for path, position, _ in told} == {(str(tmp_path / LOG), PLACES[5])}
    assert any(what in each[2] for each in told)


@given(st.integers(0, len(b"".join(BATCHES)) - 1), st.integers(0, 7))
def test_a_flipped_bit_costs_at_most_its_own_batch(scratch: Path, at: int, bit: int) -> None:
    data = bytearray(b"".join(BATCHES))
    data[at] ^= 1 << bit
    hit = next(n for n in range(10) if PLACES[n + 1] > at)
    found, told = damaged(scratch, bytes(data))
    if at - PLACES[hit] not in range(8) and at - PLACES[hit] not in range(12, 16):  # which no checksum covers
        assert told
        assert {position for _, position, _ in told} == {PLACES[hit]}
    assert set(range(30)) - set(range(3 * hit, 3 * hit + 3)) <= set(found)


@pytest.mark.parametrize("count", [1, 17, 18, 500])
@pytest.mark.parametrize("fill", [b"\0", b"\xff"])
def test_what_is_no_batch_at_the_end_or_in_between_is_reported_with_its_size(
    tmp_path: Path, count: int, fill: bytes
) -> None:
    stray = fill * count
    for n in (4, 10):
        found, told = damaged(tmp_path, b"".join(BATCHES[:n]) + stray + b"".join(BATCHES[n:]))
        assert found == list(range(30))
        (damage,) = told
        assert damage[1] == PLACES[n]
        assert f"{count} bytes" in damage[2]
        assert ("nothing sound comes behind" in damage[2]) is (n == 10)


def test_a_torn_tail_is_reported_and_what_is_before_it_printed(tmp_path: Path) -> None:
    for cut in range(1, len(BATCHES[9])):
        found, told = damaged(tmp_path, b"".join(BATCHES)[:-cut])
        assert found == list(range(27))
        assert [position for _, position, _ in told] == [PLACES[9]]


def test_offsets_that_go_back_are_reported(tmp_path: Path) -> None:
    found, told = damaged(tmp_path, b"".join([*BATCHES[:3], BATCHES[1], *BATCHES[3:]]))
    assert len(found) == 33
    assert told == [(str(tmp_path / LOG), PLACES[3], "a batch of offsets 3 to 5 behind offset 8")]


def test_a_damage_is_one_line_on_standard_error_and_exit_code_1(
    log: Path,
    dump: Dumper,
) -> None:
    path = sorted(log.glob("*.log"))[3]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    found = dump(str(log), "--deep-iteration")
    assert found.code == 1
    assert found.out.count(b"| offset: ") == 400
    assert found.out.count(b"isvalid: false") == 1
    (line,) = found.err.splitlines()
    assert line.startswith(f"kstore dump: {path}, position ")
    assert line.endswith(": the CRC of the batch does not hold")
    # Kafka's tool goes on, too, but has no word for it.
    assert dump("--deep-iteration", "--files", str(path)).code == 0


def test_only_the_first_bytes_are_looked_at_and_what_crosses_them_is_no_damage(
    tmp_path: Path,
    dump: Dumper,
) -> None:
    path = tmp_path / LOG
    path.write_bytes(b"".join(BATCHES))
    found = dump("--json", "--max-bytes", str(PLACES[4] + 5), str(path))
    assert (found.code, len(objects(found.out))) == (0, 4)


def test_old_messages_are_records_and_their_checksums_are_checked(tmp_path: Path) -> None:
    old = [reference.message(n, b"k", b"v%d" % n, magic=n % 2, timestamp=START_MS) for n in range(6)]
    found, told = damaged(tmp_path, b"".join(old))
    assert (found, told) == (list(range(6)), [])
    bad = bytearray(b"".join(old))
    bad[-1] ^= 1
    found, told = damaged(tmp_path, bytes(bad))
    assert found == list(range(6))
    assert [(position, what) for _, position, what in told] == [
        (sum(map(len, old[:5])), "the CRC of the batch does not hold")
    ]


@pytest.mark.parametrize("chunk", [18, 61, 100, 471])
def test_json_is_the_same_in_chunks_of_any_size(
    tmp_path: Path,
    dump: Dumper,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
) -> None:
    path = tmp_path / LOG
    path.write_bytes(SAMPLE[:-20] + SAMPLE)
    whole = dump("--json", "--print-data-log", str(path))
    monkeypatch.setattr("kstore.tools.dump.batch_walk._CHUNK_BYTES", chunk)
    again = dump("--json", "--print-data-log", str(path))
    assert (again.out, again.err) == (whole.out, whole.err)


@pytest.mark.parametrize("name", ["index-negative", "index-odd-length", "index-position-beyond",
                                  "index-position-inside", "timeindex-beyond", "timeindex-mismatch",
                                  "timeindex-out-of-order", "snapshot-bad-crc", "snapshot-cut",
                                  "txnindex-version-high"])  # fmt: skip
def test_a_wrong_index_or_snapshot_is_reported_with_its_file(
    name: str,
    golden: Callable[[str], Path],
    dump: Dumper,
) -> None:
    found = dump(str(golden("damaged-files") / "dir" / name))
    assert found.code == 1
    assert name.partition("-")[0] in found.err
    assert found.out.count(b"Dumping") == len(list((golden("damaged-files") / "dir" / name).glob("0*")))


@pytest.mark.parametrize("extra", [1, 26, 33])
@pytest.mark.parametrize("by", ["partition", "file"])
def test_a_fragment_at_the_end_of_a_transaction_index_is_told(
    extra: int, by: str, golden: Callable[[str], Path], tmp_path: Path, dump: Dumper
) -> None:
    source = next(path for path in sorted(golden("transactions").rglob("*.txnindex")) if path.stat().st_size)
    directory = Path(shutil.copytree(source.parent, tmp_path / source.parent.name))
    path = directory / source.name
    whole = dump(str(path))
    assert whole.code == 0
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(extra))
    found = dump(str(path if by == "file" else directory))
    assert found.code == 1
    assert found.err == f"kstore dump: {path}, position {size}: {size + extra} bytes, which is no multiple of 34\n"
    assert whole.out in found.out
    # Kafka's tool has no word for it.
    assert dump("--files", str(path)).code == 0


@pytest.mark.parametrize("kind", ["directory", "named pipe", "symbolic link"])
@pytest.mark.parametrize("suffix", [".log", ".index", ".snapshot"])
def test_what_stands_in_the_place_of_a_file_is_told_and_the_others_are_dumped(
    kind: str, suffix: str, log: Path, dump: Dumper
) -> None:
    path = sorted(log.glob(f"*{suffix}"))[1]
    count = len(list(log.glob("0*")))
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "named pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    for named in (log, log.parent / "events", log.parent):
        found = dump(str(named))
        assert found.code == 1
        (line,) = found.err.splitlines()
        assert line.startswith(f"kstore dump: {path}: a {kind} is here, and ")
        assert found.out.count(b"Dumping") == count - 1


def test_a_partition_whose_only_log_is_a_directory_is_told(tmp_path: Path, dump: Dumper) -> None:
    for name in ("data/t-0", "any"):
        (tmp_path / name / LOG).mkdir(parents=True)
        found = dump(str(tmp_path / name))
        assert (found.code, found.out, found.err.count("\n")) == (1, b"", 1)
        assert f"{tmp_path / name / LOG}: a directory is here" in found.err


@given(
    suffix=st.sampled_from([".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint"]),
    data=st.one_of(
        st.binary(max_size=300), st.lists(st.sampled_from([SAMPLE[:97], b"\0", SAMPLE[97:300], b"\xff"])).map(b"".join)
    ),
)
def test_files_of_any_bytes_give_json_and_complaints(scratch: Path, suffix: str, data: bytes) -> None:
    (scratch / LOG).write_bytes(SAMPLE)
    path = (scratch / LOG).with_suffix(suffix)
    path.write_bytes(data)
    try:
        for span in (Span(), Span(2, 5), Span(from_time=START_MS + 10, to_time=START_MS + 30)):
            told: list[object] = []
            out = io.BytesIO()
            run = FullDump(
                DumpOptions(deep=True, contents=True), out, lambda *each, told=told: told.append(each), span=span,
                as_json=True,
            )  # fmt: skip
            run.run(file_source(str(path)))
            objects(out.getvalue())
            assert run.damages == len(told)
    finally:
        path.unlink()


# --- a process --------------------------------------------------------------------------------------------------------


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kstore", "dump", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_process_prints_objects_and_complaints_apart(log: Path, dump: Dumper) -> None:
    (log / "00000000000000009999.snapshot").write_bytes(b"no snapshot")
    here = dump(str(log), "--json")
    with started(str(log), "--json") as there:
        out, err = there.communicate()
    assert (there.returncode, out, err.decode()) == (here.code, here.out, here.err) == (1, here.out, here.err)
    assert here.err.count("\n") == 1


def test_a_reader_of_json_that_goes_away_ends_the_run_quietly(log: Path) -> None:
    with started(*[str(log)] * 200, "--json", "--deep-iteration", "--to-offset", "400") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_help_tells_a_reader_how_bytes_are_told_apart(dump: Dumper) -> None:
    found = dump("-h").out.decode()
    assert "key_base64" in found
    assert "kstore dump data/events-0 --json" in found
