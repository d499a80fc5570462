"""`kstore ingest --txn` and `--once`: rows are there once, whatever runs again and whatever is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.cli import ingested_files
from kstore.cli.ingested_files import InputFile
from kstore.cli.sources.row_source import Rows
from kstore.cli.staged_load import StagedLoad
from kstore.files import load_files
from kstore.spark.task_attempt import Topic
from kstore.tools.check.verify import verify
from tests.support.ingesting import File, Ingest

pytestmark = pytest.mark.usefixtures("no_syncs")

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
NOTHING = "nothing is appended: load:{}, or a later version, was loaded before\n"


def known(ingest: Ingest) -> list[dict[str, Any]]:
    """The files that the store knows, in the order in which they were loaded."""
    with kstore.Store.open(ingest.root, "r") as store:
        return [json.loads(record.value or b"") for record in store.log(ingested_files.TOPIC, 0).read()]


# --txn


def test_a_version_of_a_transaction_is_loaded_once_and_no_lower_one_after_it(ingest: Ingest, file: File) -> None:
    files = file("a.jsonl", b'{"n":1}\n'), file("b.jsonl", b'{"n":2}\n')
    assert ingest(*files, "--txn", "load:7") == "t-0: offsets 0 to 1\n"
    for version in (7, 6, 0):
        assert ingest(*files, "--txn", f"load:{version}") == NOTHING.format(version)
    assert ingest(files[0], "--txn", "load:8") == "t-0: offsets 2 to 2\n"
    assert ingest(files[0], "--txn", "other:load:1") == "t-0: offsets 3 to 3\n"
    told = json.loads(ingest(files[0], "--txn", "load:8", "--json"))
    assert told == {"topic": "t", "records": 0, "partitions": [], "skipped": [str(files[0])]}
    assert [row["n"] for row in ingest.rows] == [1, 2, 1, 1]
    assert not any((ingest.root.parent / "data.kstore-staging").iterdir())


def test_a_transaction_of_spark_and_one_of_the_command_are_the_same(ingest: Ingest, file: File) -> None:
    path = file("a.jsonl", b'{"n":1}\n')
    with kstore.Store.open(ingest.root, background=False) as store:
        store.adopt([], txn=("load", 7))
    assert ingest(path, "--txn", "load:7") == NOTHING.format(7)
    assert not ingest.has_topic


def test_a_transaction_with_a_bad_row_stores_nothing_and_may_run_again(ingest: Ingest, file: File) -> None:
    good, bad = file("a.jsonl", b'{"n":1}\n' * 1000), file("b.jsonl", b'{"n":2}\n[]\n')
    assert ingest(good, bad, "--txn", "load:1", code=1).endswith(
        "b.jsonl, line 2: no JSON object: b'[]\\n'; nothing was stored\n"
    )
    big = file("c.jsonl", b'{"n":"%s"}\n' % (b"x" * 5000))
    small = ["-c", "message.max.bytes=1000"]
    assert "c.jsonl, lines from 1 on: " in ingest(good, big, "--txn", "load:1", *small, code=1)
    assert not ingest.has_topic
    assert not any((ingest.root.parent / "data.kstore-staging").iterdir())
    ingest(good, "--txn", "load:1")
    assert len(ingest.rows) == 1000


def test_a_load_places_and_packs_records_as_an_append_does(ingest: Ingest, file: File, root: Path) -> None:
    path = file("a.jsonl", b"".join(b'{"k":"%d","t":%d}\n' % (n % 50, NOON + n) for n in range(5000)))
    words = ["--key-column", "k", "--timestamp-column", "t", "--partitions", 3, "--compression", "lz4"]
    told = ingest(path, *words)
    plain = [[tuple(record) for record in ingest.records(n)] for n in range(3)]
    for option in (["--txn", "load:1"], ["--once"]):
        other = Ingest(root / option[0].strip("-"), ingest._capsys)
        assert other(path, *words, *option) == told
        assert [[tuple(record) for record in other.records(n)] for n in range(3)] == plain
        with kstore.Store.open(other.root, "r") as store:
            assert {batch.compression for batch in store.log("t", 0).read_batches()} == {"lz4"}


@pytest.mark.parametrize(
    "given", ["load", "load:", ":7", "load:-1", "load:x", "load:1.5", "load:9223372036854775808", "x" * 1001 + ":1"]
)
def test_a_transaction_that_cannot_be_is_refused_before_anything_is_made(
    ingest: Ingest, file: File, given: str
) -> None:
    assert "argument --txn: it is " in ingest(file("a.jsonl", b"{}\n"), f"--txn={given}", code=2)
    assert not ingest.root.exists()


# --once


def test_files_of_a_growing_directory_are_loaded_once_each(ingest: Ingest, file: File, tmp_path: Path) -> None:
    first, second = file("a.jsonl", b'{"n":1}\n'), file("b.csv", b"n\n2\n3\n")
    assert ingest(first, second, "--once") == "t-0: offsets 0 to 2\n"
    third = file("c.jsonl", b'{"n":4}\n')
    skipped = "".join(f"{path}: skipped, as it was loaded before\n" for path in (first, second))
    assert ingest(first, second, third, "--once") == skipped + "t-0: offsets 3 to 3\n"
    assert [row["n"] for row in ingest.rows] == [1, 2, 3, 4]
    (tmp_path / "moved").mkdir()
    moved = shutil.move(first, tmp_path / "moved")
    told = json.loads(ingest(moved, "--once", "--json"))
    assert (told["records"], told["skipped"]) == (0, [moved])
    assert [(row["file"], row["size"], row["records"]) for row in known(ingest)] == [
        ("a.jsonl", 8, 1), ("b.csv", 6, 2), ("c.jsonl", 8, 1),
    ]  # fmt: skip


def test_a_file_that_has_changed_is_loaded_whole_and_said_to_be_new(ingest: Ingest, file: File) -> None:
    ingest(file("a.jsonl", b'{"n":1}\n'), "--once")
    path = file("a.jsonl", b'{"n":1}\n{"n":2}\n')
    new = f"{path}: loaded as a new file, as there is one of this name with other contents\n"
    assert ingest(path, "--once") == new + "t-0: offsets 1 to 2\n"
    assert "skipped" in ingest(path, "--once")
    assert "skipped" in ingest(file("a.jsonl", b'{"n":1}\n'), "--once")
    assert [row["n"] for row in ingest.rows] == [1, 1, 2]


def test_the_same_contents_under_another_name_or_in_another_topic_are_loaded(ingest: Ingest, file: File) -> None:
    first, second = file("a.jsonl", b"{}\n"), file("b.jsonl", b"{}\n")
    ingest(first, first, "--once")
    ingest(second, "--once")
    assert len(ingest.rows) == 2
    assert kstore.cli.main(["ingest", str(first), "--to", str(ingest.root), "--topic", "u", "--once"]) == 0
    ingest._capsys.readouterr()
    with kstore.Store.open(ingest.root, background=False) as store:
        assert store.log("u", 0).log_end_offset == 1
        store.delete_topic("t")
    assert ingest(first, second, "--once") == "t-0: offsets 0 to 1\n"
    assert ingest(first, second, "--once").count("skipped") == 2


def test_a_file_without_rows_is_known_and_makes_an_empty_topic(ingest: Ingest, file: File) -> None:
    empty = file("a.jsonl", b"")
    assert ingest(empty, "--once") == ""
    assert "skipped" in ingest(empty, "--once")
    assert ingest.records() == []


def test_a_bad_row_keeps_its_file_out_and_the_files_before_it_in(ingest: Ingest, file: File) -> None:
    good, bad, last = file("a.jsonl", b'{"n":1}\n'), file("b.jsonl", b'{"n":2}\n[]\n'), file("c.jsonl", b'{"n":4}\n')
    told = ingest(good, bad, last, "--once", code=1)
    assert "b.jsonl, line 2" in told
    assert told.endswith("; 1 record before it was stored: t-0 offsets 0 to 0\n")
    bad = file("b.jsonl", b'{"n":2}\n{"n":3}\n')
    assert ingest(good, bad, last, "--once").startswith(f"{good}: skipped")
    assert [row["n"] for row in ingest.rows] == [1, 2, 3, 4]


def test_check_reads_the_files_that_are_not_known_before_any_is_loaded(ingest: Ingest, file: File) -> None:
    old = file("a.csv", b"n\n1\n")
    ingest(old, "--once")
    files = old, file("b.csv", b"t,n\n2,2\n"), file("c.csv", b"t,n\n3\n")
    assert "c.csv, line 2" in ingest(*files, "--once", "--check", "--timestamp-column", "t", code=1)
    assert len(ingest.rows) == 1


def test_a_file_that_changes_while_it_is_read_is_not_loaded(
    ingest: Ingest, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file("a.jsonl", b'{"n":1}\n')
    of = InputFile.of

    def grown(name: str) -> InputFile:
        found = of(name)
        with path.open("ab") as out:
            out.write(b'{"n":2}\n')
        return found

    monkeypatch.setattr(InputFile, "of", grown)
    assert "a.jsonl has changed while it was read, and is not loaded; nothing was stored" in ingest(
        path, "--once", code=1
    )
    monkeypatch.undo()
    ingest(path, "--once")
    assert [row["n"] for row in ingest.rows] == [1, 2]


@pytest.mark.parametrize(("option", "count"), [("--once", 1), ("--txn=load:1", 0)])
def test_an_interrupt_leaves_no_part_of_a_load_and_no_staged_files(
    ingest: Ingest, file: File, monkeypatch: pytest.MonkeyPatch, option: str, count: int
) -> None:
    paths = [file("a.jsonl", b'{"n":1}\n'), file("b.jsonl", b'{"n":2}\n' * 2)]
    add = StagedLoad.add

    def interrupted(load: StagedLoad, topic: Topic, rows: Rows) -> None:
        add(load, topic, rows)
        if rows.size == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(StagedLoad, "add", interrupted)
    stored = "1 record before it was stored: t-0 offsets 0 to 0" if count else "nothing was stored"
    assert ingest(*paths, option, code=130) == f"kstore ingest: interrupted; {stored}\n"
    assert not any((ingest.root.parent / "data.kstore-staging").iterdir())
    monkeypatch.undo()
    ingest(*paths, option)
    assert [row["n"] for row in ingest.rows] == [1, 2, 2]


def test_a_load_that_fails_after_its_decision_keeps_its_files_for_the_next_run(
    ingest: Ingest, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file("a.jsonl", b'{"n":1}\n')

    def fails(*_: object) -> None:
        raise kstore.StorageError(5, "no more", "disk")

    monkeypatch.setattr("kstore.store.bulk_loads.place.take_in_locked", fails)
    assert "a bulk load is decided and not finished (" in ingest(path, "--once", code=1)
    monkeypatch.undo()
    assert ingest(path, "--once") == f"{path}: skipped, as it was loaded before\n"
    assert [row["n"] for row in ingest.rows] == [1]


def test_a_restored_backup_knows_the_files_that_it_has(ingest: Ingest, file: File, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    first, second = file("a.jsonl", b'{"n":1}\n'), file("b.jsonl", b'{"n":2}\n')
    ingest(first, "--once")
    assert kstore.cli.main(["backup", str(ingest.root), "--to", str(tmp_path / "sent")]) == 0
    assert kstore.cli.main(["restore", str(tmp_path / "sent"), str(tmp_path / "restored")]) == 0
    ingest._capsys.readouterr()
    restored = Ingest(tmp_path / "restored", ingest._capsys)
    assert restored(first, second, "--once") == f"{first}: skipped, as it was loaded before\nt-0: offsets 1 to 1\n"


def test_standard_input_and_pipes_are_refused_with_once(ingest: Ingest, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    assert "standard input has none; --txn takes it" in ingest("-", "--format", "jsonl", "--once", code=1)
    assert "a.jsonl is no regular file" in ingest(tmp_path / "a.jsonl", "--once", code=1)
    assert not ingest.root.exists()


def test_names_that_are_no_text_are_known_too(ingest: Ingest, file: File) -> None:
    path = file(os.fsdecode(b"\xff.jsonl"), b"{}\n")
    ingest(path, "--once")
    assert ": skipped" in ingest(path, "--once")
    assert known(ingest)[0]["file"] == "\\xff.jsonl"


def test_the_list_of_files_outlives_any_retention_and_is_no_topic_to_ingest_into(ingest: Ingest, file: File) -> None:
    path = file("a.jsonl", b"{}\n")
    ingest(path, "--once", "-c", "log.retention.ms=1", "-c", "log.cleanup.policy=delete")
    with kstore.Store.open(ingest.root, background=False) as store:
        config = store.topic_config(ingested_files.TOPIC)
        assert (config.cleanup_policy, config.retention_ms, config.retention_bytes) == (("delete",), -1, -1)
        store.append(ingested_files.TOPIC, b"{}")
    assert "the record at offset 1 of __kstore_ingested_files names no file" in ingest(path, "--once", code=1)
    root = str(ingest.root)
    assert kstore.cli.main(["ingest", str(path), "--to", root, "--topic", ingested_files.TOPIC]) == 1


# Killed


KILLED = """
import os, signal, sys
from kstore import cli
from kstore.disk import fs
when, name, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
write = fs.write_atomically

def killed(path, data):
    global left
    left -= os.path.basename(path) == name
    if left == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, data)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

fs.write_atomically = killed
sys.exit(cli.main(["ingest", *sys.argv[4:]]))
"""


@pytest.mark.parametrize(
    ("option", "when", "name", "commit", "stored"),
    [
        ("--txn=load:7", "before", load_files.COMMIT_FILE, 1, 0),
        ("--txn=load:7", "after", load_files.COMMIT_FILE, 1, 101),
        ("--txn=load:7", "after", load_files.LOADS_FILE, 1, 101),
        ("--once", "before", load_files.COMMIT_FILE, 1, 0),
        ("--once", "after", load_files.COMMIT_FILE, 1, 100),
        ("--once", "before", load_files.COMMIT_FILE, 2, 100),
        ("--once", "after", load_files.LOADS_FILE, 2, 101),
    ],
)
def test_a_run_that_is_killed_at_a_commit_has_loaded_all_or_nothing(
    ingest: Ingest, file: File, option: str, when: str, name: str, commit: int, stored: int
) -> None:
    first = file("a.jsonl", b"".join(b'{"n":%d,"k":"%d"}\n' % (n, n) for n in range(100)))
    words = [first, file("b.jsonl", b'{"n":100,"k":"x"}\n'), option, "--partitions", 3, "--key-column", "k"]
    command = [sys.executable, "-c", KILLED, when, name, commit, *words, "--to", ingest.root, "--topic", "t"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(rows_of(ingest)) == stored
    ingest(*words)
    assert sorted(row["n"] for row in rows_of(ingest)) == list(range(101))
    assert verify([ingest.root]).errors == 0
    assert not any((ingest.root.parent / "data.kstore-staging").iterdir())


def rows_of(ingest: Ingest) -> list[Any]:
    """Open the store for writing, which finishes a load that is decided, and read the topic's rows."""
    with kstore.Store.open(ingest.root, background=False) as store:
        numbers = store.partitions("t") if "t" in store.topics else ()
        return [json.loads(record.value or b"") for n in numbers for record in store.log("t", n).read()]
