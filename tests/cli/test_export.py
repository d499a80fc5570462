"""`kstore export`: records into files, whole or not at all, and back again with `kstore ingest`."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore import cli
from kstore._core import Record
from kstore.cli.commands import export_command
from kstore.cli.sinks import json_lines_writer
from tests.conftest import examples

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.usefixtures("no_syncs")

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
HOUR = 3_600_000
KINDS = ("parquet", "arrow", "arrows", "jsonl", "jsonl.gz")
BACK = [
    "--key-column",
    "key",
    "--value-column",
    "value",
    "--timestamp-column",
    "timestamp",
    "--headers-column",
    "headers",
]

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("export", ...)`: what is printed, or with a `code` the one line of complaint."""

    def go(*arguments: object, code: int = 0) -> str:
        assert cli.main([str(each) for each in arguments]) == code
        printed = capsys.readouterr()
        if not code:
            assert printed.err == ""
            return printed.out
        assert printed.err.count("\n") == 1
        return printed.err

    return go


@pytest.fixture
def data(root: Path) -> Path:
    """A topic of two partitions, an hour between the records of the first, and one without records."""
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("events", 2)
        for number in range(5):
            store.log("events", 0).append(b"v%d" % number, b"k", timestamp=NOON + number * HOUR)
        store.log("events", 1).append(b"\xff", None, timestamp=-1, headers=[("h", b"x"), ("n", None)])
        store.log("events", 1).append(None, b"gone", timestamp=NOON + 1)
        store.create_topic("one")
    return root


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, read by others."""
    if path.name.endswith((".jsonl", ".gz")):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        return [json.loads(line) for line in content.splitlines()]
    if path.suffix == ".parquet":
        table = pq.read_table(path)
    else:
        table = (pa.ipc.open_stream if path.suffix == ".arrows" else pa.ipc.open_file)(path.read_bytes()).read_all()
    places = [name for name in table.schema.names if name == "timestamp"]
    for name in places:
        place = table.schema.get_field_index(name)
        assert table.schema.field(name).type == pa.timestamp("ms", "UTC")
        table = table.set_column(place, name, table.column(name).cast(pa.int64()))
    return list(table.to_pylist())


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_a_topic_goes_into_a_file_partition_by_partition(data: Path, tmp_path: Path, run: Run, kind: str) -> None:
    path = tmp_path / f"x.{kind}"
    assert run("export", data / "events", "--to", path) == f"{path}: 7 records, {path.stat().st_size} bytes\n"
    found = rows_of(path)
    assert found[:5] == [
        {
            "topic": "events", "partition": 0, "offset": n, "timestamp": NOON + n * HOUR, "key": b"k",
            "value": b"v%d" % n, "headers": [],
        }
        for n in range(5)
    ]  # fmt: skip
    headers = [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
    assert [tuple(row.values())[1:] for row in found[5:]] == [
        (1, 0, -1, None, b"\xff", headers),
        (1, 1, NOON + 1, b"gone", None, []),
    ]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz"])
def test_json_lines_are_those_of_cat(data: Path, tmp_path: Path, run: Run, kind: str) -> None:
    run("export", data / "events", "--to", tmp_path / f"x.{kind}")
    lines = [json.loads(line) for line in run("cat", data / "events", "--json").splitlines()]
    assert rows_of(tmp_path / f"x.{kind}") == lines


def test_json_lines_need_no_pyarrow(data: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    run("export", data / "events", "--to", tmp_path / "x.jsonl", "--until", "2013-06-01T13:00")
    assert [row["offset"] for row in rows_of(tmp_path / "x.jsonl")] == [0, 0, 1]
    assert "kstore[arrow]" in run("export", data / "events", "--to", tmp_path / "x.parquet", code=1)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["x.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--offset", "3"], [3, 4]),
        (["--offset", "5"], []),
        (["--to-offset", "2"], [0, 1]),
        (["--from", "2013-06-01T14:00"], [2, 3, 4]),
        (["--from", "2013-06-01T13:00", "--until", "2013-06-01T15:00"], [1, 2]),
        (["--from", "-1h"], []),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "arrows", "jsonl"])
def test_records_come_from_where_they_are_asked_for(
    data: Path, tmp_path: Path, run: Run, kind: str, arguments: list[str], expected: list[int]
) -> None:
    run("export", data / "events-0", "--to", tmp_path / f"x.{kind}", *arguments, "--columns", "offset")
    assert rows_of(tmp_path / f"x.{kind}") == [{"offset": number} for number in expected]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_columns_are_chosen_and_stand_in_their_order(data: Path, tmp_path: Path, run: Run, kind: str) -> None:
    path = tmp_path / f"x.{kind}"
    run("export", data / "events-0", "--to", path, "--columns", "topic,partition,is_transactional,producer_id,offset")
    (first, *_) = rows_of(path)
    assert first == {"topic": "events", "partition": 0, "is_transactional": False, "producer_id": -1, "offset": 0}
    assert list(first) == ["topic", "partition", "is_transactional", "producer_id", "offset"]
    assert first["is_transactional"] is False
    run("export", data / "events", "--to", path, "--columns", "topic,partition", "--force")
    assert rows_of(path) == [{"topic": "events", "partition": number} for number in (0, 0, 0, 0, 0, 1, 1)]
    for columns in ("what", "key,key", ""):
        if columns:
            assert "--columns" in run("export", data / "events-0", "--to", tmp_path / "y", "--columns", columns,
                                      "--format", kind, code=1)  # fmt: skip


def test_an_empty_log_makes_a_file_with_columns_and_no_rows(data: Path, tmp_path: Path, run: Run) -> None:
    for kind in KINDS:
        run("export", data / "one", "--to", tmp_path / f"x.{kind}")
        assert rows_of(tmp_path / f"x.{kind}") == []
    assert pq.read_schema(tmp_path / "x.parquet").names == list(export_command._DEFAULT)


def test_keys_and_values_can_be_text(data: Path, tmp_path: Path, run: Run) -> None:
    run("export", data / "events-0", "--to", tmp_path / "x.parquet", "--text", "--columns", "key,value")
    assert rows_of(tmp_path / "x.parquet")[0] == {"key": "k", "value": "v0"}
    assert "events-1: a value is no UTF-8" in run(
        "export", data / "events", "--to", tmp_path / "y.parquet", "--text", code=1
    )
    assert not (tmp_path / "y.parquet").exists()


def test_the_codec_of_the_file_is_chosen(data: Path, tmp_path: Path, run: Run) -> None:
    for codec, expected in (("zstd", "ZSTD"), ("none", "UNCOMPRESSED"), (None, "SNAPPY")):
        run(
            "export",
            data / "events",
            "--to",
            tmp_path / "x.pq",
            "--force",
            *(["--compression", codec] if codec else []),
        )
        assert pq.ParquetFile(tmp_path / "x.pq").metadata.row_group(0).column(4).compression == expected
    for name in ("x.arrow", "x.arrows"):
        run("export", data / "events", "--to", tmp_path / name, "--compression", "lz4")
        assert len(rows_of(tmp_path / name)) == 7
    assert "no snappy in arrow files" in run(
        "export", data / "events", "--to", "x.arrow", "--compression", "snappy", code=1
    )
    assert "--format does" in run("export", data / "events", "--to", "x.what", code=1)


def test_a_file_that_is_there_is_left_alone_without_force(data: Path, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("precious")
    assert "--force" in run("export", data / "events", "--to", path, code=1)
    assert path.read_text() == "precious"
    found = json.loads(run("export", data / "events", "--to", path, "--force", "--json"))
    assert found == {"file": str(path), "records": 7, "bytes": path.stat().st_size}
    assert "a directory" in run("export", data / "events", "--to", data, "--force", "--format", "jsonl", code=1)
    told = run("export", data / "events", "--to", tmp_path / "no" / "x.jsonl", code=1)
    assert told == f"kstore export: {tmp_path / 'no'}: No such file or directory\n"
    assert "name a topic" in run("export", data, "--to", tmp_path / "y.jsonl", code=1)


def test_force_replaces_files_alone_and_keeps_links_and_modes(data: Path, tmp_path: Path, run: Run) -> None:
    path, link, pipe = tmp_path / "x.jsonl", tmp_path / "link.jsonl", tmp_path / "pipe.jsonl"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path.name)
    run("export", data / "events", "--to", link, "--force")
    assert (link.is_symlink(), len(rows_of(path)), path.stat().st_mode & 0o7777) == (True, 7, 0o640)
    os.mkfifo(pipe)
    for special in (pipe, Path(os.devnull)):
        told = run("export", data / "events", "--to", special, "--force", "--format", "jsonl", code=1)
        assert f"{special} is no regular file" in told
        assert not special.is_file()
    dangling = tmp_path / "dangling.jsonl"
    dangling.symlink_to("new.jsonl")
    run("export", data / "events", "--to", dangling, "--force")
    assert len(rows_of(tmp_path / "new.jsonl")) == 7


def test_an_offset_beyond_some_partitions_of_a_topic_leaves_them_out(data: Path, tmp_path: Path, run: Run) -> None:
    run("export", data / "events", "--to", tmp_path / "x.jsonl", "--offset", 4)
    assert [(row["partition"], row["offset"]) for row in rows_of(tmp_path / "x.jsonl")] == [(0, 4)]
    assert run("cat", data / "events", "--offset", 4) == "v4\n"
    with kstore.Log.open(data / "events-0") as log:
        log.delete_records(2)
    assert run("cat", data / "events", "--offset", 1, "--format", r"%p %o\n").split("\n")[:-1] == [
        "0 2", "0 3", "0 4", "1 1",
    ]  # fmt: skip
    for command in (["cat"], ["export", "--to", tmp_path / "y.jsonl"]):
        assert run(*command, data / "events-1", "--offset", 4, code=1)
        for option, names in (("--offset", "-o/--offset"), ("--to-offset", "--until-offset/--to-offset")):
            assert f"argument {names}" in run(*command, data / "events", f"{option}=-1", code=2)


def test_a_name_that_is_taken_meanwhile_is_left_alone(
    data: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    close = json_lines_writer.JsonLines.close

    def late(writer: Any) -> None:
        path.write_text("another's")
        close(writer)

    monkeypatch.setattr(json_lines_writer.JsonLines, "close", late)
    assert "--force" in run("export", data / "events", "--to", path, code=1)
    assert path.read_text() == "another's"


@pytest.mark.parametrize("kind", KINDS)
def test_damage_leaves_nothing_of_the_file(data: Path, tmp_path: Path, run: Run, kind: str) -> None:
    log = data / "events-0" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[90] ^= 1
    log.write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    old = tmp_path / f"old.{kind}"
    assert "events-0" in run("export", data / "events", "--to", old, code=1)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_one_line_and_leaves_nothing(
    data: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / f"x.{kind}"
    assert run("export", data / "events", "--to", path, code=1) == f"kstore export: {path}: No space left on device\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_large_logs_come_in_pieces(root: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_command, "_CHUNK_BYTES", 4096)
    with kstore.Log.open(root / "big-0") as log:
        log.append_many([b"%d" % number for number in range(2000)], batch_bytes=1000)
    run("export", root / "big-0", "--to", tmp_path / "x.parquet", "--columns", "value")
    assert [row["value"] for row in rows_of(tmp_path / "x.parquet")] == [b"%d" % number for number in range(2000)]
    assert pq.ParquetFile(tmp_path / "x.parquet").num_row_groups > 3


# There and back

RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode),
        st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode),
        st.sampled_from([0, 1, NOON, 2**53 + 1]) | st.integers(0, 2**62),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
    ),
    max_size=20,
)


@pytest.mark.parametrize("kind", KINDS)
@examples(0.2)
@given(records=RECORDS)
def test_what_is_exported_and_ingested_again_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, records: list[Any]
) -> None:
    """Nulls, bytes of any kind, text in any script, times and headers."""
    shutil.rmtree(tmp_path, ignore_errors=True)
    tmp_path.mkdir()
    with kstore.Log.open(tmp_path / "a" / "t-0", message_timestamp_after_max_ms=2**63 - 1) as log:
        log.append_many(records)
    path = str(tmp_path / f"x.{kind}")
    assert cli.main(["export", str(tmp_path / "a" / "t"), "--to", path]) == 0
    config = ["-c", f"message.timestamp.after.max.ms={2**63 - 1}"]
    assert cli.main(["ingest", path, "--to", str(tmp_path / "b"), "--topic", "t", *BACK, *config]) == 0
    assert capsys.readouterr().err == ""
    with kstore.Log.open(tmp_path / "b" / "t-0", "r") as log:
        assert list(log.read()) == [Record(n, when, key, value, h) for n, (key, value, when, h) in enumerate(records)]


@examples(0.2)
@given(
    st.lists(
        st.tuples(st.none() | st.text(max_size=8), st.none() | st.integers(-(2**63), 2**63 - 1), st.booleans()),
        min_size=1, max_size=10,
    )
)  # fmt: skip
def test_rows_that_are_ingested_whole_come_out_as_the_same_rows(tmp_path: Path, rows: list[Any]) -> None:
    shutil.rmtree(tmp_path, ignore_errors=True)
    tmp_path.mkdir()
    table = pa.Table.from_pylist(
        [dict(zip("abc", row, strict=True)) for row in rows],
        schema=pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.bool_())]),
    )
    pq.write_table(table, tmp_path / "x.parquet")
    assert cli.main(["ingest", str(tmp_path / "x.parquet"), "--to", str(tmp_path / "d"), "--topic", "t"]) == 0
    out = tmp_path / "y.parquet"
    assert cli.main(["export", str(tmp_path / "d" / "t"), "--to", str(out), "--columns", "value", "--text"]) == 0
    assert [json.loads(row["value"]) for row in rows_of(out)] == table.to_pylist()


# As a process

# It stops when some records are written, until it is interrupted.
HALF_WAY = """
import sys, time
from kstore.cli import main, progress
def reach(bar, done, total=None):
    print("half-way", flush=True)
    time.sleep(240)
progress.Progress.reach = reach
sys.exit(main(sys.argv[1:]))
"""


def test_an_interrupt_ends_with_130_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    with kstore.Log.open(root / "big-0") as log:
        log.append_many(os.urandom(500).hex().encode() for _ in range(50_000))
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-c", HALF_WAY, "export", str(root / "big-0"), "--to", str(out / "x.jsonl.gz")]
    with subprocess.Popen(command, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"half-way\n"
        assert any(path.stat().st_size for path in out.iterdir())
        assert not (out / "x.jsonl.gz").exists()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"kstore export: interrupted\n"
        assert process.wait() == 130
    assert list(out.iterdir()) == []


def test_only_what_is_committed_is_exported_when_asked_for(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t")
        with store.producer(transactional_id="x") as producer:
            with producer.transaction() as txn:
                txn.append("t", b"committed")
            producer.transaction().append("t", b"aborted")
    found = {}
    for isolation in ("read_uncommitted", "read_committed"):
        path = tmp_path / f"{isolation}.jsonl"
        arguments = ["export", str(tmp_path / "data" / "t-0"), "--to", str(path), "--columns", "offset,value"]
        assert cli.main([*arguments, "--isolation", isolation]) == 0
        found[isolation] = [json.loads(line)["value"] for line in path.read_text().splitlines()]
    assert found == {"read_uncommitted": ["committed", "aborted"], "read_committed": ["committed"]}


def test_a_whole_file_comes_out_of_a_process(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    command = [sys.executable, "-m", "kstore", "export", str(data / "events"), "--to", str(path)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout.decode() == f"{path}: 7 records, {path.stat().st_size} bytes\n"
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    os.umask(now := os.umask(0))
    return now
