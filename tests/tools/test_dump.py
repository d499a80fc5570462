"""`kstore dump` prints what Kafka's dump tool prints: every golden run again, then what those do not reach."""

from __future__ import annotations

import codecs
import errno
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore import cli
from kstore.codec.coordinator.record_texts import control_text
from kstore.disk import fs
from kstore.errors import KStoreError
from kstore.tools.dump._dump import LogText, java_text
from kstore.tools.dump.dump_options import DumpOptions
from kstore.tools.dump.kafka_dump import Dump
from tests.golden import dumptexts, goldensets
from tests.support import reference

LOG = "00000000000000000000.log"
COMPATIBILITY = Path(__file__).parents[2] / "docs" / "compatibility.md"


class Dumped:
    """What one call of the command line left."""

    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Dumper = Callable[..., Dumped]


@pytest.fixture
def dump(capsysbinary: pytest.CaptureFixture[bytes]) -> Dumper:
    """`dump("--files", "x.log")`: the command line, in this process."""

    def call(*arguments: str) -> Dumped:
        code = cli.main(["dump", *arguments])
        out, err = capsysbinary.readouterr()
        return Dumped(code, out, err.decode())

    return call


def excepted() -> dict[str, str]:
    """The rows of the dump tool's table in docs/compatibility.md: which runs, and why."""
    after = COMPATIBILITY.read_text(encoding="utf-8").split("<!-- checked: dump runs -->", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert table is not None
    rows = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in table[0].splitlines()[2:]]
    return {row[0].strip("`"): row[-1] for row in rows}


# --- every run of Kafka's tool ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", goldensets.SETS)
def test_a_golden_run_gives_the_same_text_exit_code_and_complaints(
    name: str, golden: Callable[[str], Path], dump: Dumper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DumpLogSegmentsTest.testPrintDataLog, DumpLogSegmentsTest.testDumpIndexMismatches,
    DumpLogSegmentsTest.testDumpTimeIndexErrors, DumpLogSegmentsTest.testDumpEmptyIndex."""
    folder = golden(name)
    before = contents(folder)
    exceptions = excepted()
    for run in dumptexts.runs(name):
        if f"{name}/{run.name}" in exceptions:
            continue
        monkeypatch.chdir(folder / run.directory)
        found = dump(*run.arguments)
        assert found.code == run.code, run
        assert found.out == run.out, run
        if run.err.startswith(("Exception", "This tool", "Missing")):
            assert found.err, run
            assert "Traceback" not in found.err, run
        else:
            expected = run.err.replace("<cwd>", os.fspath(folder / run.directory))
            assert sorted(found.err.splitlines()) == sorted(expected.splitlines()), run
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {os.fspath(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_runs_of_all_sets_are_packed() -> None:
    assert sum(len(dumptexts.runs(name)) for name in goldensets.SETS) == 968


def test_an_exception_names_a_run_that_differs(
    golden: Callable[[str], Path], dump: Dumper, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in excepted():
        name, _, wanted = place.partition("/")
        run = next(run for run in dumptexts.runs(name) if run.name == wanted)
        monkeypatch.chdir(golden(name) / run.directory)
        found = dump(*run.arguments)
        assert (found.code, found.out) != (run.code, run.out)


# --- the sample of DUMP 12 -----------------------------------------------------------------------------------------

SAMPLE = bytes.fromhex(
    "00000000000000000000005500000000029ed0a42e0000000000010000018bcfe568000000018bcfe56805ffffffffffffffffffffffffffff"
    "000000022c000000046b310a68656c6c6f0404683102780468320118000a02010c776f726c642100"
    "00000000000000020000003a000000010292536cdd0000000000000000018bcfe5680a0000018bcfe5680a0000000000000fa0000300000007"
    "0000000110000000046b320100"
    "00000000000000030000004d0000000102f24149950010000000010000018bcfe568140000018bcfe568140000000000001388000000000000"
    "000000021a000000046b330a74786e2d61001a000002046b340a74786e2d6200"
    "0000000000000005000000420000000102dc2784ef0030000000000000018bcfe5681e0000018bcfe5681e00000000000013880000ffffffff"
    "000000012000000008000000000c00000000000900"
    "0000000000000006000000310000000102abff5254000000000002ffffffffffffffff0000018bcfe5681f0000000000001770000100000028"
    "00000000"
    "00000000000000090000003f00000002024574bd720040000000000000018bd01c56a80000018bcfe56828ffffffffffffffffffffffffffff"
    "000000011a00ffb9b7030008676f6e650100"
)
SAMPLE_SKIPPED = (
    b"| key: k1 payload: hello\n| payload: world!\n| key: k2\n| key: k3 payload: txn-a\n| key: k4 payload: txn-b\n"
    b"\n| key: gone\n"
)


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / LOG
    path.write_bytes(SAMPLE)
    return path


def test_the_sample_has_its_record_lines_and_its_gap(sample: Path, dump: Dumper) -> None:
    found = dump("--print-data-log", "--files", LOG)
    lines = [line for line in found.out.decode().splitlines() if line.startswith("|")]
    assert lines[0].endswith("sequence: -1 headerKeys: [h1,h2] key: k1 payload: hello")
    assert lines[5] == (
        "| offset: 5 CreateTime: 1700000000030 keySize: 4 valueSize: 6 sequence: -1 headerKeys: []"
        " endTxnMarker: ABORT coordinatorEpoch: 9"
    )
    assert lines[6].startswith("| offset: 9 CreateTime: 1700000000040 keySize: 4 valueSize: -1 ")
    assert b"deleteHorizonMs: OptionalLong[1700003600040] position: 395 " in found.out
    assert found.err == f"Non-consecutive offsets in {sample}\n  5 is followed by 9\n"


def test_the_sample_without_metadata_has_keys_and_payloads_alone(sample: Path, dump: Dumper) -> None:
    found = dump("--print-data-log", "--skip-record-metadata", "--files", LOG)
    assert b"".join(line for line in found.out.splitlines(keepends=True) if line[:1] in b"|\n") == SAMPLE_SKIPPED


@pytest.mark.parametrize(("limit", "batches"), [(0, 0), (96, 0), (97, 1), (98, 1), (166, 1), (167, 2), (470, 6)])
def test_max_bytes_shows_the_batches_that_are_wholly_inside(
    sample: Path, dump: Dumper, limit: int, batches: int
) -> None:
    """DumpLogSegmentsTest.testPrintDataLogPartialBatches."""
    found = dump("--files", LOG, "--max-bytes", str(limit))
    assert found.out.count(b"baseOffset") == batches
    assert b"invalid bytes" not in found.out


@pytest.mark.parametrize("count", [1, 17])
def test_stray_bytes_at_the_end_are_counted(sample: Path, dump: Dumper, count: int) -> None:
    sample.write_bytes(SAMPLE + bytes(count))
    found = dump("--files", LOG)
    assert found.out.endswith(b"Found %d invalid bytes at the end of %s\n" % (count, LOG.encode()))
    assert found.code == 0


def test_a_tail_of_18_zeros_ends_the_run_as_in_kafka(sample: Path, dump: Dumper) -> None:
    sample.write_bytes(SAMPLE + bytes(18))
    found = dump("--files", LOG)
    assert found.code == 1
    assert found.out.count(b"baseOffset") == 6
    assert b"invalid bytes" not in found.out


@pytest.mark.parametrize("chunk", [18, 61, 97, 100, 471])
def test_a_log_reads_the_same_in_chunks_of_any_size(
    sample: Path, dump: Dumper, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    whole = dump("--print-data-log", "--files", LOG)
    monkeypatch.setattr("kstore.tools.dump.batch_walk._CHUNK_BYTES", chunk)
    assert dump("--print-data-log", "--files", LOG).out == whole.out


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("naïve 漢 😀".encode(), "naïve 漢 😀"),
        (b"a\xffb", "a\ufffdb"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0A", "\ufffdA"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
    ],
)
def test_malformed_text_is_replaced_as_java_replaces_it(data: bytes, text: str) -> None:
    assert java_text(data).decode() == text


def surrogate_as_one(error: UnicodeError) -> tuple[str, int]:
    """Python's replacement, but for the one difference from Java's that DUMP 14 names."""
    assert isinstance(error, UnicodeDecodeError)
    data, start = error.object, error.start
    if re.match(rb"\xed[\xa0-\xbf]", data[start : start + 2]):
        return "\ufffd", start + (3 if re.match(rb"[\x80-\xbf]", data[start + 2 : start + 3]) else 2)
    return "\ufffd", error.end


codecs.register_error("surrogate_as_one", surrogate_as_one)


@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(
            st.sampled_from(
                [b"\xed", b"\xa0", b"\x80", b"\xbf", b"\xe0", b"\xf0", b"\xf4", b"\x8f", b"\x90", b"\xc2", b"a"]
            )
        ).map(b"".join),
        st.text().map(str.encode),
    )
)
def test_text_of_any_bytes_is_what_python_makes_of_them_but_for_surrogates(data: bytes) -> None:
    assert java_text(data).decode() == data.decode(errors="surrogate_as_one")


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=1, max_size=4))
def test_a_value_is_printed_as_its_text_whatever_its_bytes(values: list[bytes | None]) -> None:
    records = [reference.Rec(i, 5, None, value) for i, value in enumerate(values)]
    out = dumped(reference.encode(records), contents=True, metadata=False)
    lines = [b"" if value is None else b"| payload: " + java_text(value) for value in values]
    assert out.partition(b"isvalid: true\n")[2] == b"".join(line + b"\n" for line in lines)


NUMBERS = struct.Struct(">qiibIhiqqqhii")


@given(st.binary(min_size=61, max_size=61))
def test_a_header_of_any_numbers_is_printed_as_they_are(header: bytes) -> None:
    header = (
        header[:8]
        + (49).to_bytes(4, "big")
        + header[12:16]
        + b"\2"
        + header[17:22]
        + bytes([header[22] & ~7])
        + header[23:]
    )
    base, _, epoch, _, crc, _, delta, _, greatest, producer, producer_epoch, sequence, count = NUMBERS.unpack(header)
    words = dumped(header).split()
    named = {name.decode(): value.decode() for name, value in zip(words[::2], words[1::2], strict=True)}
    assert int(named["baseOffset:"]) == base
    assert int(named["lastOffset:"]) == reference.wrap(base + delta)
    assert [int(named[f"{name}:"]) for name in ("count", "baseSequence", "producerId", "producerEpoch")] == [
        count,
        sequence,
        producer,
        producer_epoch,
    ]
    assert [int(named[f"{name}:"]) for name in ("partitionLeaderEpoch", "crc", "size")] == [epoch, crc, 61]
    assert int(named.get("CreateTime:") or named["LogAppendTime:"]) == greatest


@pytest.mark.parametrize(
    ("base", "sequences"), [(2147483646, [2147483646, 2147483647, 0]), (-1, [-1, -1, -1]), (0, [0, 1, 2])]
)
def test_sequences_wrap_to_0(base: int, sequences: list[int]) -> None:
    records = [reference.Rec(i, 5, None, b"v") for i in range(3)]
    out = dumped(reference.encode(records, producer_id=7, base_sequence=base), deep=True)
    assert [int(found) for found in re.findall(rb" sequence: (-?\d+)", out)] == sequences


def dumped(log: bytes, *, metadata: bool = True, contents: bool = False, deep: bool = False) -> bytes:
    """The text of a log in memory, without its two heading lines."""
    out = bytearray()
    text = LogText(
        out.extend,
        path=None,
        control=control_text,
        deep=deep or contents,
        contents=contents,
        metadata=metadata,
    )
    try:
        text.feed(log, len(log), 0, len(log))
    finally:
        text.flush()
    return bytes(out)


# --- any bytes at all -------------------------------------------------------------------------------------------------

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.one_of(st.binary(max_size=300), st.integers(0, 469), st.integers(0, 470 * 8 - 1)))
def test_files_of_any_bytes_are_dumped_or_refused(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: bytes | int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    log = bytearray(SAMPLE)
    if isinstance(data, int):
        log[data // 8] ^= 1 << data % 8
    (folder / LOG).write_bytes(log)
    (folder / LOG).with_suffix(".index").write_bytes(bytes.fromhex("000000020000006100000004000000a7000000090000018b"))
    if isinstance(data, bytes):
        (folder / LOG).with_suffix(suffix).write_bytes(data)
    name = os.fspath((folder / LOG).with_suffix(suffix))
    with open(os.devnull, "wb") as out:
        run = Dump(DumpOptions(deep=True, contents=True), out, lambda text: None)
        try:
            run.run([name])
        except KStoreError:
            pass
        except OSError as error:
            raise AssertionError("no system error can come of bytes") from error


# --- the command line -------------------------------------------------------------------------------------------------


def test_a_process_prints_what_the_function_prints(sample: Path, dump: Dumper) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "kstore", "dump", "--print-data-log", "--files", LOG],
        capture_output=True,
        check=False,
    )
    here = dump("--print-data-log", "--files", LOG)
    assert (found.returncode, found.stdout, found.stderr.decode()) == (here.code, here.out, here.err)


def test_a_reader_that_goes_away_ends_the_run_quietly(sample: Path) -> None:
    sample.write_bytes(SAMPLE * 2000)
    with subprocess.Popen(
        [sys.executable, "-m", "kstore", "dump", "--files", LOG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_missing_file_is_one_line_on_standard_error(sample: Path, dump: Dumper) -> None:
    """DumpLogSegmentsTest.testDumpRemoteLogMetadataNoSuchFileException."""
    found = dump("--files", "nowhere/00000000000000000007.log")
    assert found.code == 1
    assert found.out == b"Dumping nowhere/00000000000000000007.log\nLog starting offset: 7\n"
    assert found.err.count("\n") == 1
    assert "nowhere/00000000000000000007.log" in found.err


def test_a_file_that_may_not_be_read_is_one_line_on_standard_error(
    sample: Path, dump: Dumper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DumpLogSegmentsTest.testDumpRemoteLogMetadataIoException."""

    def refuse(path: str, **how: bool) -> int:
        raise fs.storage_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), path)

    monkeypatch.setattr(fs, "open", refuse)
    found = dump("--files", LOG)
    assert found.code == 1
    assert found.out == f"Dumping {LOG}\nLog starting offset: 0\n".encode()
    assert "Permission denied" in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize("name", ["1_0.log", " 7.log", "9223372036854775808.log", ".log"])
def test_a_name_that_java_takes_for_no_number_ends_the_run(sample: Path, dump: Dumper, name: str) -> None:
    Path(name).write_bytes(SAMPLE)
    assert (dump("--files", name).code, dump("--files", name).out) == (1, f"Dumping {name}\n".encode())


@pytest.mark.parametrize("name", ["+7.log", "-7.log", "9223372036854775807.log"])
def test_a_name_that_java_takes_for_a_number_is_one(sample: Path, dump: Dumper, name: str) -> None:
    """DumpLogSegmentsTest.testDumpRemoteLogMetadataNonZeroStartingOffset."""
    Path(name).write_bytes(SAMPLE)
    assert f"Log starting offset: {int(name[:-4])}\n".encode() in dump("--files", name).out


def test_an_option_that_kafka_never_had_gets_a_hint(dump: Dumper) -> None:
    found = dump("--offset-position", "5", "--files", LOG)
    assert (found.code, found.out) == (1, b"")
    assert "offset-position is not a recognized option: " in found.err
    assert "position" in found.err.partition(": ")[2]


def test_our_help_goes_to_standard_output(dump: Dumper) -> None:
    found = dump("-h")
    assert found.code == 0
    assert b"--print-data-log" in found.out


def test_a_decoder_that_is_not_here_is_refused_by_name(sample: Path, dump: Dumper) -> None:
    found = dump("--remote-log-metadata-decoder", "--files", LOG)
    assert found.code == 1
    assert "remote-log-metadata" in found.err


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dumb"]) == 2
    assert "'dumb'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_the_command_line_tells_about_itself(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    assert "kstore" in capsys.readouterr().out
