"""`kstore export --group`: each run goes on where the last one has ended, and no record is left out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import cli
from kstore.cli.sinks import whole_outputs
from kstore.cli.sinks.json_lines_writer import JsonLines
from kstore.disk import fs
from kstore.files import stream_positions
from kstore.files.stream_positions import StreamPositions, read_group, write_positions

pytestmark = pytest.mark.usefixtures("no_syncs")

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z

Export = Callable[..., Any]


@pytest.fixture
def export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    """`export(DIR, ...)`: the (partition, offset) of what a run exports, or with a `code` its line of complaint."""
    numbers = iter(range(100))

    def go(path: Path, *arguments: object, group: str = "g", code: int = 0) -> Any:
        to = tmp_path / f"out{next(numbers)}.jsonl"
        assert cli.main(["export", str(path), "--to", str(to), "--group", group, *map(str, arguments)]) == code
        printed = capsys.readouterr()
        if code:
            assert not to.exists()
            assert printed.err.count("\n") == 1
            return printed.err
        rows = [json.loads(line) for line in to.read_text().splitlines()]
        assert printed.out.splitlines()[-1].startswith(f"{to}: {len(rows)} records, ")
        return [(row["partition"], row["offset"]) for row in rows]

    return go


@pytest.fixture
def data(root: Path) -> Path:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("t", 2)
        fill(store, 0, 3)
        fill(store, 1, 1)
    return root


def fill(store: kstore.Store, partition: int, count: int) -> None:
    for number in range(count):
        store.log("t", partition).append(b"v", timestamp=NOON + number)


def position_of(root: Path, partition: int, group: str = "g") -> int | None:
    found = read_group(str(root), group)
    return None if found is None else found.offsets.get(("t", partition))


def test_each_run_exports_what_is_new_also_while_a_store_writes(data: Path, export: Export) -> None:
    assert export(data / "t") == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert export(data / "t") == []
    with kstore.Store.open(data, background=False) as store:
        fill(store, 0, 2)
        assert export(data / "t") == [(0, 3), (0, 4)]
        store.add_partitions("t", 3)
        fill(store, 1, 1)
        fill(store, 2, 1)
        assert export(data / "t-1") == [(1, 1)]
        assert export(data / "t") == [(2, 0)]
    assert export(data / "t", group="other") == [(0, n) for n in range(5)] + [(1, 0), (1, 1), (2, 0)]


def test_groups_and_topics_have_positions_of_their_own_that_describe_shows(
    data: Path, export: Export, capsys: pytest.CaptureFixture[str]
) -> None:
    with kstore.Store.open(data, background=False) as store:
        store.create_topic("u")
        store.append("u", b"v")
    export(data / "t", "--until-offset", 2)
    export(data / "u")
    assert cli.main(["describe", str(data), "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)["stream_positions"]
    assert shown["group"] == "g"
    assert [tuple(each.values()) for each in shown["partitions"]] == [
        ("t", 0, 2, 3, 1), ("t", 1, 1, 1, 0), ("u", 0, 1, 1, 0),
    ]  # fmt: skip
    assert sorted(path.name for path in Path(f"{data}.kstore-positions").iterdir()) == [".lock", "g.json"]


def test_an_end_by_offset_or_by_position_is_where_the_next_run_goes_on(data: Path, export: Export) -> None:
    assert export(data / "t", "--until-offset", 1) == [(0, 0), (1, 0)]
    assert export(data / "t", "--until-offset", 1) == []
    assert export(data / "t", "--until", NOON + 2, "--by-position") == [(0, 1)]
    assert export(data / "t", "--until", NOON + 1, "--by-position") == []
    assert position_of(data, 0) == 2
    assert export(data / "t") == [(0, 2)]


@pytest.mark.parametrize(
    "arguments", [["--offset", "1"], ["--from", "2013-06-01"], ["--until", "2013-06-01"]], ids=lambda words: words[0]
)
def test_a_range_that_would_leave_records_out_is_refused(data: Path, export: Export, arguments: list[str]) -> None:
    told = export(data / "t", *arguments, code=2)
    assert arguments[0] in told
    assert "--group" in told
    assert not Path(f"{data}.kstore-positions").exists()


@pytest.mark.parametrize("group", ["../g", "a/b", "", ".", "x" * 250, "a\0"])
def test_a_group_that_cannot_be_the_name_of_a_file_is_refused(data: Path, export: Export, group: str) -> None:
    assert "--group is" in export(data / "t", group=group, code=1)
    assert not Path(f"{data}.kstore-positions").exists()


def test_committed_records_are_exported_once_their_transaction_has_ended(data: Path, export: Export) -> None:
    committed = ("--isolation", "read_committed")
    with kstore.Store.open(data, background=False) as store, store.producer(transactional_id="x") as producer:
        with producer.transaction() as txn:
            txn.append("t", b"a", partition=1)
        open_one = producer.transaction()
        open_one.append("t", b"b", partition=1)
        assert export(data / "t-1", *committed) == [(1, 0), (1, 1)]
        assert position_of(data, 1) == store.log("t", 1).last_stable_offset == 3
        assert export(data / "t-1", *committed) == []
        assert export(data / "t-1", group="all") == [(1, 0), (1, 1), (1, 3)]
        assert export(data / "t-1", *committed, group="all") == []
        assert position_of(data, 1, "all") == 4
        open_one.commit()
        assert export(data / "t-1", *committed) == [(1, 3)]


def test_a_topic_that_was_created_again_is_exported_from_its_start(data: Path, export: Export) -> None:
    export(data / "t")
    with kstore.Store.open(data, background=False) as store:
        store.delete_topic("t")
        store.create_topic("t", 2)
        fill(store, 0, 5)
    assert export(data / "t-0") == [(0, n) for n in range(5)]
    assert position_of(data, 1) is None
    assert export(data / "t") == []


def test_logs_without_a_store_have_positions_too(root: Path, export: Export) -> None:
    with kstore.Log.open(root / "t-0") as log:
        log.append_many([b"v"] * 3)
    assert export(root / "t") == [(0, 0), (0, 1), (0, 2)]
    assert export(root / "t-0") == []


def test_a_position_outside_of_the_log_is_an_error_that_names_the_file(data: Path, export: Export) -> None:
    export(data / "t", "--until-offset", 1)
    with kstore.Log.open(data / "t-0") as log:
        log.delete_records(2)
    path = f"{data}.kstore-positions/g.json"
    told = export(data / "t", code=1)
    assert "t-0: group g goes on at offset 1, and the log has 2 to 3" in told
    assert path in told
    write_positions(str(data), StreamPositions("g", 1, {("t", 0): 4}, {}))
    assert "goes on at offset 4" in export(data / "t", code=1)
    Path(path).unlink()
    assert export(data / "t") == [(0, 2), (1, 0)]


def test_positions_of_a_streaming_query_are_left_alone(data: Path, export: Export) -> None:
    write_positions(str(data), StreamPositions("g", 1, {("t", 0): 2}))
    assert "of a streaming query" in export(data / "t", code=1)
    assert position_of(data, 0) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 1, "written_ms": 0, "offsets": {"t": {"0": -1}}}'])
def test_positions_that_are_malformed_are_an_error_and_export_nothing(
    data: Path, export: Export, content: bytes
) -> None:
    path = Path(f"{data}.kstore-positions") / "g.json"
    path.parent.mkdir()
    path.write_bytes(content)
    assert str(path) in export(data / "t", code=1)
    assert path.read_bytes() == content


# Crashes and others


class _Killed(BaseException):
    """Nothing catches it."""


def test_positions_move_only_after_the_file_has_its_name(
    data: Path, export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(root: str, positions: StreamPositions) -> None:
        assert (tmp_path / "killed.jsonl").exists()
        raise _Killed

    export(data / "t", "--until-offset", 1)
    with monkeypatch.context() as patch:
        patch.setattr(stream_positions, "write_positions", killed)
        with pytest.raises(_Killed):
            cli.main(["export", str(data / "t"), "--to", str(tmp_path / "killed.jsonl"), "--group", "g"])
    assert len((tmp_path / "killed.jsonl").read_text().splitlines()) == 2
    assert position_of(data, 0) == 1
    assert export(data / "t") == [(0, 1), (0, 2)]


def test_an_export_that_fails_moves_no_position(
    data: Path, export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert "No space left" in export(data / "t", code=1)
    assert position_of(data, 0) is None
    (tmp_path / "out1.jsonl").write_text("")
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    assert cli.main(["export", str(data / "t"), "--to", str(tmp_path / "out1.jsonl"), "--group", "g"]) == 1
    assert position_of(data, 0) is None


def test_a_full_disk_under_the_positions_exports_the_same_again(
    data: Path, export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, content: bytes) -> None:
        raise fs.FullDiskError(28, os.strerror(28), path)

    with monkeypatch.context() as patch:
        patch.setattr(fs, "write_atomically", full)
        assert cli.main(["export", str(data / "t"), "--to", str(tmp_path / "x.jsonl"), "--group", "g"]) == 1
    assert (tmp_path / "x.jsonl").exists()
    assert export(data / "t") == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_two_exports_of_a_group_at_once_do_not_export_the_same_twice(
    data: Path, export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = JsonLines.close

    def overtaken(writer: JsonLines) -> None:
        monkeypatch.setattr(JsonLines, "close", real)
        assert cli.main(["export", str(data / "t"), "--to", str(tmp_path / "first.jsonl"), "--group", "g"]) == 0
        real(writer)

    monkeypatch.setattr(JsonLines, "close", overtaken)
    assert "another export has moved group g in t-0 meanwhile" in export(data / "t", code=1)
    assert (tmp_path / "first.jsonl").exists()
    assert export(data / "t") == []


def test_an_export_of_another_topic_at_the_same_time_keeps_its_positions(
    data: Path, export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Store.open(data, background=False) as store:
        store.create_topic("u")
        store.append("u", b"v")
    real = JsonLines.close

    def beside(writer: JsonLines) -> None:
        monkeypatch.setattr(JsonLines, "close", real)
        assert cli.main(["export", str(data / "u"), "--to", str(tmp_path / "u.jsonl"), "--group", "g"]) == 0
        real(writer)

    monkeypatch.setattr(JsonLines, "close", beside)
    assert len(export(data / "t")) == 4
    found = read_group(str(data), "g")
    assert found is not None
    assert found.offsets == {("t", 0): 3, ("t", 1): 1, ("u", 0): 1}
    assert set(found.topic_ids or ()) == {"t", "u"}


def test_the_name_and_the_positions_are_given_under_one_lock(
    data: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = whole_outputs._link

    def link(temporary: str, path: str) -> None:
        monkeypatch.setattr("kstore.disk.locks.WAIT_SECONDS", 0.0)
        with pytest.raises(kstore.LogLockedError):
            fs.checkpoint_lock(f"{data}.kstore-positions")
        real(temporary, path)

    monkeypatch.setattr(whole_outputs, "_link", link)
    assert len(export(data / "t")) == 4
    fs.checkpoint_lock(f"{data}.kstore-positions").release()


def test_a_directory_of_parquet_files_moves_positions_too(
    data: Path, export: Export, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    arguments = ["--group", "g", "--partition-by", "partition"]
    assert cli.main(["export", str(data / "t"), "--to", str(tmp_path / "d"), *arguments]) == 0
    assert cli.main(["export", str(data / "t"), "--to", str(tmp_path / "d"), *arguments]) == 1
    capsys.readouterr()
    assert export(data / "t") == []
    shutil.rmtree(tmp_path / "d")
