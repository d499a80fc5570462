"""`kstore export` to CSV and to directories of Parquet files, and its writers with columns of others."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import subprocess
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import cli
from kstore.cli.sinks import partitioned_files, whole_outputs
from kstore.cli.sinks.piece import Piece
from kstore.cli.sinks.table_files import open_writer
from kstore.errors import ConfigError, InvalidRecordError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ds = pytest.importorskip("pyarrow.dataset")

pytestmark = pytest.mark.usefixtures("no_syncs")

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
DAY = 86_400_000
FAR = ["message_timestamp_after_max_ms", "message_timestamp_before_max_ms"]

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run(DIR, FILE, ...)`: what an export prints, or with a `code` the one line of complaint."""

    def go(path: Path, to: Path, *arguments: object, code: int = 0) -> str:
        assert cli.main(["export", str(path), "--to", str(to), *map(str, arguments)]) == code
        printed = capsys.readouterr()
        assert printed.err.count("\n") == (1 if code else 0)
        return printed.err if code else printed.out

    return go


@pytest.fixture
def data(root: Path) -> Path:
    """A topic of two partitions; the days of the first are not in order."""
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("events", 2)
        for number, day in enumerate((0, 1, 0, 2)):
            store.log("events", 0).append(b"v%d" % number, b"k", timestamp=NOON + day * DAY)
        store.log("events", 1).append('ein "Wort",\nÄ'.encode(), None, timestamp=NOON)
        store.log("events", 1).append(None, b"", timestamp=-1)
    return root


# CSV


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_csv_has_text_and_times_and_tells_null_from_empty(data: Path, tmp_path: Path, run: Run, name: str) -> None:
    run(data / "events-1", tmp_path / name)
    content = (tmp_path / name).read_bytes()
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
    assert text == (
        '"topic","partition","offset","timestamp","key","value"\n'
        '"events",1,0,"2013-06-01T12:00:00.000Z",,"ein ""Wort"",\nÄ"\n'
        '"events",1,1,"1969-12-31T23:59:59.999Z","",\n'
    )


def test_csv_that_is_ingested_again_gives_the_same_records(data: Path, tmp_path: Path, run: Run) -> None:
    run(data / "events", tmp_path / "x.csv")
    back = ["--key-column", "key", "--value-column", "value", "--timestamp-column", "timestamp"]
    assert cli.main(["ingest", str(tmp_path / "x.csv"), "--to", str(tmp_path / "b"), "--topic", "t", *back]) == 0
    found: list[tuple[Any, ...]] = []
    for number in range(2):
        with kstore.Log.open(data / f"events-{number}", "r") as log:
            found += [(record.timestamp, record.key, record.value) for record in log.read()]
    with kstore.Log.open(tmp_path / "b" / "t-0", "r") as log:
        again = [(record.timestamp, record.key, record.value) for record in log.read()]
    assert again == found


def test_a_value_that_is_no_text_is_named_and_leaves_no_csv_file(data: Path, tmp_path: Path, run: Run) -> None:
    with kstore.Log.open(data / "events-0") as log:
        offset = log.append(b"\xff", b"k", timestamp=NOON)
    for more in ((), ("--columns", "value"), ("--from", "2013-06-01T12:00")):
        told = run(data / "events", tmp_path / "x.csv", *more, code=1)
        assert f"events-0: a value is no UTF-8, at offset {offset};" in told
        assert "--columns" in told
    assert not list(tmp_path.glob("*x.csv*"))
    run(data / "events", tmp_path / "x.csv", "--columns", "offset,key")


def test_a_csv_file_has_no_column_of_headers(data: Path, tmp_path: Path, run: Run) -> None:
    told = run(data / "events", tmp_path / "x.csv", "--columns", "offset,headers", code=1)
    assert "'headers'" in told
    assert "in a CSV file" in told


def test_a_csv_file_without_records_has_its_header(data: Path, tmp_path: Path, run: Run) -> None:
    run(data / "events", tmp_path / "x.csv", "--from", "2020-01-01", "--columns", "offset,is_tombstone,value")
    assert (tmp_path / "x.csv").read_text() == '"offset","is_tombstone","value"\n'


def test_any_timestamp_has_a_form_in_csv(root: Path, tmp_path: Path, run: Run) -> None:
    times = [2**63 - 1, 253_402_300_799_999, 253_402_300_800_000, 0, 10**15]
    with kstore.Log.open(root / "t-0", **dict.fromkeys(FAR, 2**63 - 1)) as log:
        for time in times:
            log.append(b"", timestamp=time)
    run(root / "t", tmp_path / "x.csv", "--columns", "timestamp")
    assert [row[0] for row in csv.reader(io.StringIO((tmp_path / "x.csv").read_text()))][1:] == [
        "292278994-08-17T07:12:55.807Z", "9999-12-31T23:59:59.999Z", "10000-01-01T00:00:00.000Z",
        "1970-01-01T00:00:00.000Z", "33658-09-27T01:46:40.000Z",
    ]  # fmt: skip
    run(root / "t", tmp_path / "days", "--partition-by", "date")
    assert len(list((tmp_path / "days").iterdir())) == 5


# Directories


def test_a_directory_is_partitioned_as_hive_does(data: Path, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "days"
    printed = run(data / "events", path, "--partition-by", "topic,date", "--columns", "topic,partition,offset,value")
    sizes = [file.stat().st_size for file in path.rglob("*.parquet")]
    assert printed == f"{path}: 6 records, {sum(sizes)} bytes\n"
    assert {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()} == {
        f"topic=events/date={day}/part-0.parquet" for day in ("1969-12-31", "2013-06-01", "2013-06-02", "2013-06-03")
    }
    rows = ds.dataset(path, partitioning="hive").to_table(columns=["topic", "date", "partition", "offset"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [
        ("events", "1969-12-31", 1, 1), ("events", "2013-06-01", 0, 0), ("events", "2013-06-01", 0, 2),
        ("events", "2013-06-01", 1, 0), ("events", "2013-06-02", 0, 1), ("events", "2013-06-03", 0, 3),
    ]  # fmt: skip
    first = pq.ParquetFile(path / "topic=events" / "date=2013-06-01" / "part-0.parquet")
    assert first.schema_arrow.names == ["partition", "offset", "value"]


def test_a_range_and_text_and_a_codec_apply_to_a_directory(data: Path, tmp_path: Path, run: Run) -> None:
    more = ("--until", "2013-06-02", "--from", "2013-06-01", "--text", "--compression", "zstd", "--columns", "value")
    run(data / "events", tmp_path / "d.parquet", "--partition-by", "partition", *more)
    table = ds.dataset(tmp_path / "d.parquet", partitioning="hive").to_table()
    rows = [(row["partition"], row["value"]) for row in table.to_pylist()]
    assert sorted(rows) == [(0, "v0"), (0, "v2"), (1, 'ein "Wort",\nÄ')]
    file = pq.ParquetFile(tmp_path / "d.parquet" / "partition=0" / "part-0.parquet")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_few_files_are_open_however_many_there_are(
    root: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned_files, "_MOST_OPEN", 3)
    monkeypatch.setattr("kstore.cli.commands.export_command._CHUNK_BYTES", 1000)
    real, most = partitioned_files.PartitionedFiles.write, [0]

    def watched(files: Any, piece: Piece) -> None:
        real(files, piece)
        most.append(len(list(Path("/proc/self/fd").iterdir())))

    with kstore.Log.open(root / "t-0") as log:
        for number in range(200):
            log.append(b"%d" % number, timestamp=NOON + (number % 20) * DAY)
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(partitioned_files.PartitionedFiles, "write", watched)
    run(root / "t", tmp_path / "days", "--partition-by", "date")
    assert max(most) < before + 12
    assert len(list((tmp_path / "days").rglob("part-1.parquet"))) == 20
    rows = ds.dataset(tmp_path / "days", partitioning="hive").to_table().to_pylist()
    assert sorted(int(row["value"]) for row in rows) == list(range(200))
    assert all(row["date"] == row["timestamp"].date().isoformat() for row in rows)


def test_a_directory_without_records_has_no_file(data: Path, tmp_path: Path, run: Run) -> None:
    run(data / "events", tmp_path / "d", "--partition-by", "date", "--from", "2020-01-01", "--columns", "offset,key")
    assert list((tmp_path / "d").iterdir()) == []


def test_what_killed_exports_have_left_is_removed(data: Path, tmp_path: Path, run: Run) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name in ("d", "f.csv"):
        (tmp_path / f".{name}.{gone.pid}.tmp").mkdir()
        (tmp_path / f".{name}.{gone.pid}.tmp" / "part-0.parquet").write_bytes(b"x")
    kept = {f".d.{os.getppid()}.tmp", ".d.x.tmp", f".e.{gone.pid}.tmp"}
    for name in kept:
        (tmp_path / name).write_bytes(b"x")
    run(data / "events", tmp_path / "d", "--partition-by", "date")
    run(data / "events", tmp_path / "f.csv")
    assert {path.name for path in tmp_path.glob(".*.tmp")} == kept


def test_an_existing_directory_is_left_alone(data: Path, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "d"
    path.mkdir()
    assert "d is there" in run(data / "events", path, "--partition-by", "date", code=1)
    assert "remove the old one" in run(data / "events", path, "--partition-by", "date", "--force", code=1)
    assert list(path.iterdir()) == []
    told = run(data / "events", tmp_path / "no" / "d", "--partition-by", "date", code=1)
    assert told == f"kstore export: {tmp_path / 'no'}: No such file or directory\n"


def test_mistakes_in_the_columns_of_a_directory_are_named(data: Path, tmp_path: Path, run: Run) -> None:
    for by, told in (("key", "'key'"), ("date,date", "'date'"), ("", "''")):
        assert told in run(data / "events", tmp_path / "d", "--partition-by", by, code=1)
    assert "not of csv" in run(data / "events", tmp_path / "d.csv", "--partition-by", "date", code=1)
    told = run(data / "events", tmp_path / "d", "--partition-by", "topic,partition", "--columns", "topic", code=1)
    assert "leaves none" in told
    assert not (tmp_path / "d").exists()


def test_a_name_that_is_taken_meanwhile_is_left_alone(
    data: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = partitioned_files.PartitionedFiles.close

    def late(files: Any) -> None:
        (tmp_path / "d").mkdir()
        real(files)

    monkeypatch.setattr(partitioned_files.PartitionedFiles, "close", late)
    assert "d is there" in run(data / "events", tmp_path / "d", "--partition-by", "date", code=1)
    assert list((tmp_path / "d").iterdir()) == []
    assert not list(tmp_path.glob(".d*"))


def test_damage_and_a_full_disk_leave_nothing_of_a_directory(
    data: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(tmp_path.rglob("*"))
    path = tmp_path / "d"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        told = run(data / "events", path, "--partition-by", "date", code=1)
        assert told == f"kstore export: {path}: No space left on device\n"
    assert sorted(tmp_path.rglob("*")) == before
    log = data / "events-1" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[80] ^= 1
    log.write_bytes(content)
    assert "events-1" in run(data / "events", path, "--partition-by", "date", code=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_every_file_and_directory_is_synced_before_the_name_is_given(
    data: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.rename

    def renamed(source: str, target: str) -> None:
        inside = {os.path.relpath(path, source) for path in synced if path.startswith(source)}
        assert {str(path.relative_to(source)) for path in Path(source).rglob("*")} | {"."} == inside
        real(source, target)

    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    monkeypatch.setattr(whole_outputs.fs, "sync_directory", lambda path, missing_ok=False: synced.append(str(path)))
    monkeypatch.setattr(os, "rename", renamed)
    run(data / "events", tmp_path / "d", "--partition-by", "topic,date")
    assert synced[-1] == str(tmp_path)


# Columns of others


ROWS = {
    "offset": pa.array([0, 1, 2]),
    "timestamp": pa.array([NOON, NOON + 1, -1], pa.timestamp("ms", "UTC")),
    "key": pa.array([b"a", None, b"c"]),
    "city": pa.array(["Bern", None, "Ä"]),
    "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")]),
    "ratio": pa.array([0.5, None, 1e300]),
    "day": pa.array([date(2013, 6, 1), None, date(1970, 1, 1)]),
    "seen": pa.array([1_000_001, None, 0], pa.timestamp("us")),
    "ok": pa.array([True, None, False]),
    "code": pa.array(["x", None, "x"]).dictionary_encode(),
    "raw": pa.array([b"r", None, b""]),
}
TAGS = pa.array([{"tags": ["a"], "n": 1}, None, {"tags": [], "n": None}])
NAMES = ("partition", *ROWS)


def written(kind: str, pieces: list[Piece], names: tuple[str, ...]) -> bytes:
    """The content of a file with these pieces."""
    file = io.BytesIO()
    writer = open_writer(file, kind, "none", names, as_text=False)
    for piece in pieces:
        writer.write(piece)
    writer.close()
    return file.getvalue()


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_writers_take_record_batches_with_any_columns(kind: str) -> None:
    batch = pa.record_batch({**ROWS, "tags": TAGS})
    content = written(kind, [Piece("t", 7, batch), Piece("t", 8, batch.slice(1))], (*NAMES, "tags"))
    if kind == "parquet":
        table = pq.read_table(pa.BufferReader(content))
    else:
        table = (pa.ipc.open_file if kind == "arrow" else pa.ipc.open_stream)(content).read_all()
    assert table.drop_columns("partition").to_pylist() == pa.Table.from_batches([batch, batch.slice(1)]).to_pylist()
    assert table["partition"].to_pylist() == [7, 7, 7, 8, 8]


def test_json_lines_take_record_batches_with_any_columns() -> None:
    batch = pa.record_batch({**ROWS, "tags": TAGS})
    first, _, third = map(json.loads, written("jsonl", [Piece("t", 7, batch)], (*NAMES, "tags")).splitlines())
    assert first == {
        "partition": 7, "offset": 0, "timestamp": NOON, "key": "a", "city": "Bern", "price": 1.5, "ratio": 0.5,
        "day": "2013-06-01", "seen": "1970-01-01T00:00:01.000001", "ok": True, "code": "x", "raw": "r",
        "tags": {"tags": ["a"], "n": 1},
    }  # fmt: skip
    assert (third["timestamp"], third["city"], third["tags"]) == (-1, "Ä", {"tags": [], "n": None})


def test_csv_takes_record_batches_with_any_flat_columns() -> None:
    lines = written("csv", [Piece("t", 7, pa.record_batch(ROWS))], NAMES).decode().splitlines()
    assert lines[1] == (
        '7,0,"2013-06-01T12:00:00.000Z","a","Bern",1.50,0.5,2013-06-01,"1970-01-01T00:00:01.000001",true,"x","r"'
    )
    assert lines[2] == '7,1,"2013-06-01T12:00:00.001Z",,,,,,,,,'
    with pytest.raises(ConfigError, match="column 'tags' is of type struct"):
        written("csv", [Piece("t", 7, pa.record_batch({"tags": TAGS}))], ("tags",))
    with pytest.raises(InvalidRecordError, match="t-7: a raw is no UTF-8"):
        written("csv", [Piece("t", 7, pa.record_batch({"raw": [b"\xff"]}))], ("raw",))


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_only_rows_that_count_are_written(kind: str) -> None:
    batch = pa.record_batch({"offset": pa.array(range(6))})
    kept = [[True, False, False, True, True, False], [False] * 6, [True] * 6]
    pieces = [Piece("t", 0, batch, pa.array(each).to_numpy(zero_copy_only=False)) for each in kept]
    content = written(kind, pieces, ("topic", "offset"))
    if kind == "parquet":
        found = pq.read_table(pa.BufferReader(content))["offset"].to_pylist()
    elif kind == "csv":
        found = [int(line.split(",")[1]) for line in content.decode().splitlines()[1:]]
    else:
        found = [json.loads(line)["offset"] for line in content.splitlines()]
    assert found == [0, 3, 4, *range(6)]
    assert [piece.size for piece in pieces] == [3, 0, 6]
