"""`kstore ingest --rejects`: rows that are refused go to a file with the reasons, and all others are appended."""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore import cli
from kstore.cli.rejected_rows import RejectsFile
from kstore.cli.sources import row_source
from kstore.cli.sources.row_source import find_refused
from tests.support.ingesting import File, Ingest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.usefixtures("no_syncs")

DAY = 86_400_000


class Sifted:
    """Runs the command with a file for rejected rows."""

    def __init__(self, ingest: Ingest, rejects: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.ingest, self.path, self._capsys = ingest, rejects, capsys

    def __call__(self, *arguments: object, rejected: int) -> str:
        """Run, and return what is printed; there are so many rejected rows in this run."""
        words = [
            "ingest",
            *map(str, arguments),
            "--to",
            str(self.ingest.root),
            "--topic",
            "t",
            "--rejects",
            str(self.path),
        ]
        assert cli.main(words) == (3 if rejected else 0)
        printed = self._capsys.readouterr()
        were = "1 row was" if rejected == 1 else f"{rejected} rows were"
        assert printed.err == (f"kstore ingest: {were} rejected: {self.path}\n" if rejected else "")
        return printed.out

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]


@pytest.fixture
def sifted(ingest: Ingest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sifted:
    return Sifted(ingest, tmp_path / "rejects.jsonl", capsys)


# What is refused


def test_json_lines_that_cannot_be_read_go_to_the_file(sifted: Sifted, file: File) -> None:
    path = file("a.jsonl", b'x\n{"n":1,"t":5}\n\n[]\n{"n":2,"t":"noon"}\r\n{"n":3}\n{"n":"\xff"}\n{"n":4,"t":-1}')
    assert sifted(path, "--timestamp-column", "t", rejected=5) == (
        "t-0: offsets 0 to 1\ntimestamps 1970-01-01T00:00:00.005Z to 1970-01-01T00:00:00.005Z\n"
    )
    assert [row["n"] for row in sifted.ingest.rows] == [1, 4]
    assert [(row["file"], row["line"], row["reason"].partition(":")[0]) for row in sifted.lines] == [
        (str(path), 1, "no JSON"),
        (str(path), 4, "no JSON object"),
        (str(path), 5, "column 't' is 'noon'"),
        (str(path), 6, "column 't' is null, where each record needs a timestamp"),
        (str(path), 7, "no JSON"),
    ]
    assert [row.get("text") for row in sifted.lines] == ["x", "[]", '{"n":2,"t":"noon"}', '{"n":3}', None]
    assert base64.b64decode(sifted.lines[4]["base64"]) == b'{"n":"\xff"}'


def test_csv_lines_with_other_cells_or_times_go_to_the_file(
    sifted: Sifted, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_source, "PIECE_BYTES", 64)
    rows = [[f"{n}", "2013-06-01"] for n in range(60)]
    rows[0] = ["0"]
    for number in (10, 11, 12, 13, 14, 15, 16, 40):
        rows[number] = ["1", "2", "3"]
    rows[41][1], rows[42][1], rows[59][1] = "", "noon", "-2"
    path = file("a.csv", "\n".join(["n,t", *map(",".join, rows)]).encode())
    sifted(path, "--timestamp-column", "t", rejected=12)
    assert [row["line"] for row in sifted.lines] == [2, 12, 13, 14, 15, 16, 17, 18, 42, 43, 44, 61]
    assert [row["text"] for row in sifted.lines[:2]] == ["0", "1,2,3"]
    assert sifted.lines[0]["reason"] == "1 column where 2 are expected"
    assert [json.loads(row["text"])["n"] for row in sifted.lines[-3:]] == [41, 42, 59]
    bad = {row["line"] - 2 for row in sifted.lines}
    assert [row["n"] for row in sifted.ingest.rows] == [n for n in range(60) if n not in bad]


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_rows_of_parquet_and_arrow_without_a_time_go_to_the_file(
    sifted: Sifted, tmp_path: Path, kind: str, views: bool
) -> None:
    times = pa.array([5, None, 1, -2, None, None, 7], pa.int64())
    text = pa.array([f"value {n}" for n in range(7)], pa.string_view() if views else pa.string())
    headers = pa.array([[(f"{n}", b"h")] for n in range(7)], pa.map_(pa.string(), pa.binary()))
    table = pa.table({"n": range(7), "t": times, "v": text, "h": headers})
    if kind == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as out, pa.ipc.new_file(out, table.schema) as to:
            to.write_table(table)
    words = ["--timestamp-column", "t", "--headers-column", "h", "--value-column", "v", "--key-column", "n"]
    sifted(tmp_path / f"a.{kind}", *words, rejected=4)
    assert [tuple(record)[1:] for record in sifted.ingest.records()] == [
        (time, b"%d" % n, b"value %d" % n, ((f"{n}", b"h"),)) for n, time in ((0, 5), (2, 1), (6, 7))
    ]
    assert [row["row"] for row in sifted.lines] == [2, 4, 5, 6]
    assert [json.loads(row["text"])["v"] for row in sifted.lines] == [f"value {n}" for n in (1, 3, 4, 5)]


@pytest.mark.parametrize("option", [[], ["--once"], ["--txn", "load:1"], ["--compression", "gzip"]], ids=str)
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_records_that_the_topic_refuses_go_to_the_file(
    sifted: Sifted, file: File, option: list[str], name: str
) -> None:
    config = {
        "max.message.bytes": "1000",
        "message.timestamp.before.max.ms": str(20_000 * DAY),
        "cleanup.policy": "compact",
    }
    with kstore.Store.open(sifted.ingest.root, background=False) as store:
        store.create_topic("t", config=config)
        now = store.append("t", b"x", key=b"0").timestamp
    large = "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))  # larger than 1000 bytes also when compressed
    rows: list[tuple[str | None, int, str]] = [
        ("1", now, "a"), ("2", now, large), (None, now, "b"), ("4", 1, "c"), ("5", now, "d"), ("6", now, "x" * 5000),
    ]  # fmt: skip
    if name == "a.csv":
        content = "k,t,v\n" + "".join(f"{key or ''},{time},{value}\n" for key, time, value in rows)
    else:
        content = "".join(json.dumps({"k": k, "t": t, "v": v}, ensure_ascii=False) + "\n" for k, t, v in rows)
    compressed = "--compression" in option
    words = ["--key-column", "k", "--timestamp-column", "t", "--value-column", "v", *option]
    told = sifted(file(name, content.encode()), *words, rejected=3 if compressed else 4)
    assert told.endswith(f"timestamps {kstore.base.times.show(now)} to {kstore.base.times.show(now)}\n")
    stored = [record.key for record in sifted.ingest.records()]
    assert stored == [b"0", b"1", b"5", *([b"6"] if compressed else [])]
    first = 2 if name == "a.csv" else 1
    lines = [1, 2, 3] if compressed else [1, 2, 3, 5]
    assert [row["line"] - first for row in sifted.lines] == lines
    assert ["allowed" in row["reason"] or "key" in row["reason"] or "time" in row["reason"] for row in sifted.lines]
    assert not any(row["reason"].startswith("record ") for row in sifted.lines)
    assert json.loads(sifted.lines[0]["text"])["v"] == large


GOOD = st.integers(0, 99).map(lambda n: b'{"n":%d,"t":%d}' % (n, n))
BAD = st.sampled_from(
    [b"{", b"[]", b'{"n":1}', b'{"t":"noon"}', b'{"t":-2}', b"\xff", b'{"t":NaN}', b'{"t":5,"n":"%s"}' % (b"x" * 2000)]
)


@given(lines=st.lists(st.tuples(st.booleans(), GOOD, BAD), max_size=40), piece_bytes=st.sampled_from([1, 50, 1 << 20]))
def test_appended_and_rejected_rows_are_all_rows_in_order(
    lines: list[tuple[bool, bytes, bytes]], piece_bytes: int
) -> None:
    written = [(is_good, good if is_good else bad) for is_good, good, bad in lines]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr(row_source, "PIECE_BYTES", piece_bytes)
        root = Path(name)
        (root / "a.jsonl").write_bytes(b"".join(line + b"\n" for _, line in [(True, b'{"n":0,"t":0}'), *written]))
        words = ["--to", root / "data", "--topic", "t", "--timestamp-column", "t", "--rejects", root / "rejects"]
        words += ["-c", "message.max.bytes=1000"]
        is_clean = all(is_good for is_good, _ in written)
        assert cli.main(["ingest", *map(str, [root / "a.jsonl", *words])]) == (0 if is_clean else 3)
        with kstore.Store.open(root / "data", "r") as store:
            appended = [record.value for record in store.log("t", 0).read()]
        assert appended == [b'{"n":0,"t":0}', *(line for is_good, line in written if is_good)]
        assert (root / "rejects").exists() != is_clean
        rejected = [] if is_clean else [json.loads(line) for line in (root / "rejects").read_bytes().splitlines()]
        assert [(row["line"] - 2, _row(row)) for row in rejected] == [
            (number, line) for number, (is_good, line) in enumerate(written) if not is_good
        ]


def _row(rejected: dict[str, str]) -> bytes:
    return rejected["text"].encode() if "text" in rejected else base64.b64decode(rejected["base64"])


@given(st.sets(st.integers(0, 99)), st.integers(0, 100))
def test_each_refused_row_is_found_and_few_are_looked_at_again(bad: set[int], count: int) -> None:
    asked = 0

    def error_of(start: int, end: int) -> Exception | None:
        nonlocal asked
        asked += 1
        return next((ValueError(n) for n in range(start, end) if n in bad), None)

    found = find_refused(count, error_of)
    assert [(index, error.args) for index, error in found] == [(n, (n,)) for n in sorted(bad) if n < count]
    assert asked <= 1 + 2 * 7 * len(found)


def test_rejects_and_loads_of_json_lines_need_no_pyarrow(
    sifted: Sifted, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = file("a.jsonl", b'{"n":1}\nx\n{"n":"%s"}\n{"n":2}\n' % (b"x" * 5000))
    sifted(path, "--once", "-c", "message.max.bytes=1000", rejected=2)
    assert [row["n"] for row in sifted.ingest.rows] == [1, 2]


@pytest.mark.parametrize(
    ("times", "bad"),
    [
        (pa.array([5, -1, -2, None, 7]), [2, 3]),
        (pa.array([5, -1, -2, None, 7]).cast(pa.timestamp("ms")), [2, 3]),
        (pa.array([5, -1000, -999, None, 0]).cast(pa.timestamp("us")), [2, 3]),
        (pa.array([5, -1, 3, None, 1 << 62]).cast(pa.timestamp("s")), [1, 3, 4]),
        (pa.array([5, -1, 0, None, 7], pa.int32()).cast(pa.date32()), [1, 3]),
        (pa.array(["5", "noon", "1970-01-01", None, "1e99"]), [1, 3, 4]),
        (pa.array(["5", "x", "5", None, "x"]).dictionary_encode(), [1, 3, 4]),
        (pa.array([1.5, -2.5, float("nan"), None, 7.0]), [1, 2, 3]),
    ],
    ids=str,
)
def test_times_that_no_record_can_have_go_to_the_file_whatever_their_type(
    sifted: Sifted, tmp_path: Path, times: Any, bad: list[int]
) -> None:
    table = pa.table({"t": times, "n": range(5)})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as out, pa.ipc.new_file(out, table.schema) as to:
        to.write_table(table)
    sifted(tmp_path / "a.arrow", "--timestamp-column", "t", "--value-column", "n", rejected=len(bad))
    assert [row["row"] - 1 for row in sifted.lines] == bad
    assert all(row["reason"].startswith("column 't' is ") for row in sifted.lines)
    assert [int(value or b"") for value in sifted.ingest.values] == [n for n in range(5) if n not in bad]


# The file


def test_the_file_appears_with_its_first_row_and_later_runs_add_to_it(sifted: Sifted, file: File) -> None:
    good, bad = file("a.jsonl", b'{"n":1}\n'), file("b.jsonl", b'{"n":2}\nx\n')
    assert json.loads(sifted(good, "--json", rejected=0))["rejected"] == 0
    assert not sifted.path.exists()
    assert json.loads(sifted(bad, "--json", rejected=1))["rejected"] == 1
    sifted(bad, rejected=1)
    assert [row["line"] for row in sifted.lines] == [2, 2]
    with sifted.path.open("ab") as file_of_rejects:
        file_of_rejects.write(b'{"file":"torn by a power c')
    sifted(bad, rejected=1)
    assert json.loads(sifted.path.read_bytes().splitlines()[-1])["line"] == 2


def test_a_load_with_rejected_rows_is_done_and_rejects_nothing_again(sifted: Sifted, file: File) -> None:
    bad = file("a.jsonl", b'{"n":2}\nx\n')
    for option in (["--txn", "load:1"], ["--once"]):
        sifted(bad, *option, rejected=1)
        sifted(bad, *option, rejected=0)
    assert [row["n"] for row in sifted.ingest.rows] == [2, 2]
    assert len(sifted.lines) == 2


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: path.write_bytes(b"important\n"), "which has something else than rejected rows: b'importan'"),
        (lambda path: path.mkdir(), "which is no file"),
        (lambda path: path.symlink_to(path.with_name("a.jsonl")), "which is a file to read"),
    ],
)
def test_a_file_that_has_something_else_is_refused_and_stays(
    sifted: Sifted, file: File, make: Callable[[Path], object], complaint: str
) -> None:
    path = file("a.jsonl", b"x\n")
    make(sifted.path)
    assert complaint in sifted.ingest(path, "--rejects", sifted.path, code=1)
    assert path.read_bytes() == b"x\n"
    assert not sifted.ingest.root.exists()
    assert "there is no directory" in sifted.ingest(path, "--rejects", path.parent / "no" / "r", code=1)


def test_a_file_that_is_damaged_or_lacks_a_column_still_ends_the_run(sifted: Sifted, file: File) -> None:
    for name, content, complaint in (
        ("a.jsonl", b'{"n":1}\n', "there is no column 't'; there is 'n'"),
        ("a.csv", b't\n1\n"2\n', "a quote is opened that nothing closes"),
        ("a.parquet", b"PAR1", "a.parquet: "),
    ):
        words = [file(name, content), "--timestamp-column", "t", "--rejects", sifted.path]
        assert complaint in sifted.ingest(*words, code=1)
    assert not sifted.path.exists()


def test_the_rows_rejected_before_an_error_are_in_the_file(sifted: Sifted, file: File) -> None:
    first, second = file("a.jsonl", b'{"n":1}\nx\n'), file("b.csv", b'n\n2\n"3\n')
    assert "were stored" in sifted.ingest(first, first, second, "--rejects", sifted.path, code=1)
    assert [row["line"] for row in sifted.lines] == [2, 2]


def test_rows_are_added_to_the_file_in_the_order_of_the_calls(tmp_path: Path) -> None:
    file = RejectsFile(str(tmp_path / "r"), [])
    source = row_source.Source("name\udcff", row_source.Mapping())
    file.add(source, [row_source.Refused(1, "why", b"a\n"), row_source.Refused(2, "why", None)])
    file.sync()
    lines = (tmp_path / "r").read_text().splitlines()
    assert lines == [
        '{"file":"name\\udcff","row":1,"reason":"why","text":"a\\n"}',
        '{"file":"name\\udcff","row":2,"reason":"why"}',
    ]
    assert file.count == 2
