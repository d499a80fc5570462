"""Bulk loads become part of the logs exactly once (SPARK 3.2), on a machine that goes on."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore import ConfigError, Log, StorageError, Store
from kstore.files import load_files
from kstore.store.bulk_loads._rebase import rebase
from kstore.store.bulk_loads.load_manifest import Staged
from kstore.tools.check.verify import verify
from tests.support.staging import leftovers, records, stage_task

RENAME, APPEND = 1, 1 << 40


def values(store: Store, topic: str, partition: int) -> list[bytes]:
    return [record.value for record in store.log(topic, partition).read()]


def staged_twice(root: Path, *, count: int = 50, job: str = "job", **settings: object) -> list[Staged]:
    """Two tasks' rows for both partitions of a topic."""
    return [
        row
        for task in range(2)
        for row in stage_task(
            root, task, "t", {p: records(task, p, count) for p in range(2)}, partitions=2, job=job, **settings
        )
    ]


def expected(partition: int, count: int = 50) -> list[bytes]:
    return [value for task in range(2) for _, value in records(task, partition, count)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.mark.parametrize("rename_bytes", [RENAME, APPEND])
def test_a_load_has_its_rows_in_the_order_of_the_manifest(root: Path, rename_bytes: int) -> None:
    with Store.open(root, background=False) as store:
        store.create_topic("t", 2)
        store.append("t", b"before", partition=1)
        done = store.adopt(staged_twice(root), rename_bytes=rename_bytes)
        assert done.offsets == {("t", 0): (0, 100), ("t", 1): (1, 101)}
        assert (done.records, done.duplicate) == (200, False)
        store.append("t", b"after", partition=0)
        assert values(store, "t", 0) == [*expected(0), b"after"]
        assert values(store, "t", 1) == [b"before", *expected(1)]
        assert [record.offset for record in store.log("t", 0).read()] == list(range(101))
    assert leftovers(root) == []
    for partition in range(2):
        assert verify([root / f"t-{partition}"]).errors == 0
    with Store.open(root, background=False) as store:
        assert values(store, "t", 0) == [*expected(0), b"after"]


def test_a_version_that_is_not_above_the_last_is_left_out(root: Path) -> None:
    with Store.open(root, background=False) as store:
        assert not store.adopt(staged_twice(root), txn=("a", 5)).duplicate
        for version in (5, 4, 0):
            assert store.adopt(staged_twice(root, job=f"job{version}"), txn=("a", version)).duplicate
        assert not store.adopt(staged_twice(root, job="other"), txn=("b", 5)).duplicate
    with Store.open(root, background=False) as store:
        assert store.adopt([], txn=("a", 5)).duplicate
        assert not store.adopt(staged_twice(root, job="six"), txn=("a", 6)).duplicate
        assert len(values(store, "t", 0)) == 300
    assert leftovers(root) == []


def test_the_same_manifest_counts_once_without_a_transaction(root: Path) -> None:
    manifest = staged_twice(root)
    with Store.open(root, background=False) as store:
        assert not store.adopt(manifest).duplicate
        assert store.adopt([asdict(row) for row in manifest]).duplicate
        assert not store.adopt(staged_twice(root)).duplicate  # the same job's name, other attempts
        assert len(values(store, "t", 0)) == 200


def test_loads_of_nothing_count_by_their_transactions_alone(root: Path) -> None:
    with Store.open(root, background=False) as store:
        for txn, duplicate in ((("a", 1), False), (("b", 1), False), (("a", 2), False), (("a", 2), True)):
            assert store.adopt([], txn=txn).duplicate is duplicate
        assert not store.adopt([]).duplicate
        assert store.adopt(staged_twice(root), txn=("a", 2)).duplicate
    found = load_files.read_done([str(root)])
    assert (found.applications, found.loads) == ({"a": 2, "b": 1}, ())


def test_of_streaming_queries_the_thousand_that_committed_last_are_remembered(tmp_path: Path) -> None:
    queries = [f"{load_files.STREAM_PREFIX}{number:08x}-0000-0000-0000-000000000000" for number in range(1003)]
    done = load_files.Done({"nightly": 1, "spark:mine": 2})
    for batch, query in enumerate(queries):
        done = done.with_load("", query, batch)
        if batch == 1001:
            done = done.with_load("", queries[2], batch)  # the oldest that is left goes on
            done.write([str(tmp_path)])
            done = load_files.read_done([str(tmp_path)])  # the file keeps the order
    left = list(done.applications)
    assert left == ["nightly", "spark:mine", *queries[4:1002], queries[2], queries[1002]]
    assert len(left) == load_files.MOST_STREAMS + 2


def test_a_micro_batch_that_comes_again_with_more_records_is_refused(root: Path) -> None:
    txn = (f"{load_files.STREAM_PREFIX}{0:08x}-0000-0000-0000-000000000000", 7)

    def staged(job: str, count: int) -> list[Staged]:
        return stage_task(root, 0, "t", {0: [(None, b"v")] * count}, partitions=1, job=job)

    with Store.open(root, background=False) as store:
        assert store.adopt(staged("first", 8), txn=txn).records == 8
        assert store.adopt(staged("again", 8), txn=txn).duplicate
        assert store.adopt(staged("compacted", 5), txn=txn).duplicate
    with Store.open(root, background=False) as store:
        with pytest.raises(ConfigError, match=r":7 was committed with 8 records, and is to be committed with 16"):
            store.adopt(staged("replanned", 16), txn=txn)
        assert store.adopt(staged("next", 16), txn=(txn[0], 8)).records == 16
        assert len(values(store, "t", 0)) == 24


def test_a_manifest_can_be_pickled(root: Path) -> None:
    manifest = staged_twice(root)
    assert pickle.loads(pickle.dumps(manifest)) == manifest


@pytest.mark.parametrize(
    ("txn", "error"),
    [("a", TypeError), (("a",), TypeError), ((1, 1), TypeError), (("a", -1), ValueError), (("", 1), ValueError)],
)
def test_a_transaction_is_a_name_and_a_version(root: Path, txn: object, error: type[Exception]) -> None:
    with Store.open(root, background=False) as store, pytest.raises(error):
        store.adopt([], txn=txn)  # type: ignore[arg-type]


def test_a_topic_with_another_number_of_partitions_is_refused_before_anything(root: Path) -> None:
    with Store.open(root, background=False) as store:
        store.create_topic("t", 3)
        with pytest.raises(ValueError, match="topic t has 3 partitions, and was staged for 2"):
            store.adopt(staged_twice(root))
        assert store.log("t", 0).log_end_offset == 0


def test_staged_files_missing_or_of_another_size_are_refused_without_a_change(root: Path) -> None:
    manifest = staged_twice(root)
    [path, *_] = sorted(Path(manifest[-1].path).glob("*.log"))
    data = path.read_bytes()
    no_batch = bytes(16) + b"\x03" + data[17:]
    with Store.open(root, background=False) as store:
        for broken, message in (
            (data[:-1], "staged file has"),
            (data + b"x", "staged file has"),
            (no_batch, "no whole"),
        ):
            path.write_bytes(broken)
            with pytest.raises(kstore.KStoreError, match=message):
                store.adopt(manifest)
        path.unlink()
        with pytest.raises(StorageError):
            store.adopt(manifest)
        assert store.topics == ()
        path.write_bytes(data)
        assert store.adopt(manifest).records == 200
        assert values(store, "t", 1) == expected(1)


def test_a_manifest_that_has_rows_twice_is_refused(root: Path) -> None:
    manifest = staged_twice(root)
    with Store.open(root, background=False) as store:
        with pytest.raises(ValueError, match="twice"):
            store.adopt([*manifest, manifest[1]])
        assert store.adopt(manifest).records == 200


def test_several_segments_of_a_task_become_several_segments(root: Path) -> None:
    with Store.open(root, background=False, segment_bytes=1000) as store:
        store.adopt(staged_twice(root, segment_bytes=1000, batch_bytes=300), rename_bytes=RENAME)
        log = store.log("t", 0)
        assert len(log.segments) > 4
        assert values(store, "t", 0) == expected(0)
        assert [record.offset for record in log.read(60)] == list(range(60, 100))
        for segment in log.segments[:-1]:
            assert Path(segment.path).with_suffix(".index").stat().st_size % 8 == 0
            assert Path(segment.path).with_name(f"{segment.next_offset:020d}.snapshot").exists()


def test_batches_have_the_epoch_of_the_log_and_a_new_log_has_an_entry(root: Path) -> None:
    with Store.open(root, background=False) as store:
        store.create_topic("t", 2)
        store.log("t", 0).append_many([b"x"], leader_epoch=7)
        store.adopt(staged_twice(root), rename_bytes=RENAME)
        for number, epoch in ((0, 7), (1, 0)):
            batches = list(store.log("t", number).read_batches())
            assert {batch.partition_leader_epoch for batch in batches} == {epoch}
            lines = (root / f"t-{number}" / "leader-epoch-checkpoint").read_text().split("\n")
            assert lines[2:-1] == [f"{epoch} 0"]


def test_small_loads_that_each_open_the_store_get_index_entries(root: Path) -> None:
    for number in range(4):
        staged = stage_task(root, 0, "t", {0: [(None, bytes(10_000))]}, partitions=1, job=f"job{number}")
        with Store.open(root, background=False) as store:
            store.adopt(staged)
    assert (root / "t-0" / f"{0:020}.index").stat().st_size == 8 * 3  # of all batches but the first
    assert verify([root / "t-0"]).errors == 0


@pytest.mark.parametrize("rename_bytes", [RENAME, APPEND])
def test_the_producers_that_a_log_knows_outlive_a_load(root: Path, rename_bytes: int) -> None:
    with Store.open(root, background=False) as store:
        store.create_topic("t", 2)
        log = store.log("t", 0)
        log.append_many([b"x"], producer_id=9, producer_epoch=1, base_sequence=0)
        before = log.producer_states()
        store.adopt(staged_twice(root), rename_bytes=rename_bytes)
        assert log.producer_states() == before
        log.append_many([b"y"], producer_id=9, producer_epoch=1, base_sequence=1)
    (root / ".kafka_cleanshutdown").unlink()
    with Store.open(root, background=False) as store:
        assert [(each.producer_id, each.batches[-1].last_sequence) for each in store.log("t", 0).producer_states()] == [
            (9, 1)
        ]


@pytest.mark.parametrize("rename_bytes", [RENAME, APPEND])
@pytest.mark.parametrize("mode", ["a", "r"])
def test_who_follows_a_log_sees_the_load_and_what_comes_after_it(root: Path, rename_bytes: int, mode: str) -> None:
    with Store.open(root, background=False) as store:
        store.create_topic("t", 2)
        store.append("t", b"before", partition=0)
        log = store.log("t", 0)
        reader = log if mode == "a" else Log.open(root / "t-0", mode="r")
        found: list[bytes] = []

        def follow() -> None:
            for record in reader.read(follow=True, timeout=60):
                found.append(record.value)
                if record.value == b"after":
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        for number in range(3):
            store.adopt(staged_twice(root, job=f"job{number}"), rename_bytes=rename_bytes)
            store.append("t", b"between", partition=0)
        store.append("t", b"after", partition=0)
        thread.join()
        assert found == [b"before", *[*expected(0), b"between"] * 3, b"after"]


def test_appends_of_others_come_before_or_after_a_load_and_never_into_it(root: Path) -> None:
    with Store.open(root, background=False) as store:
        store.create_topic("t", 2)
        stop = threading.Event()
        written = []

        def append() -> None:
            while not stop.is_set():
                written.append(store.append("t", b"other", partition=0).offset)

        thread = threading.Thread(target=append)
        thread.start()
        every = [store.adopt(staged_twice(root, job=f"job{n}"), rename_bytes=(RENAME, APPEND)[n % 2]) for n in range(6)]
        stop.set()
        thread.join()
        found = values(store, "t", 0)
        for done in every:
            first, end = done.offsets["t", 0]
            assert found[first:end] == expected(0)
        assert [offset for offset, value in enumerate(found) if value == b"other"] == written


def test_loads_of_several_threads_follow_each_other(root: Path) -> None:
    with Store.open(root, background=False) as store:
        store.create_topic("t", 2)
        manifests = [staged_twice(root, job=f"job{number}") for number in range(4)]
        threads = [threading.Thread(target=store.adopt, args=(manifest,)) for manifest in manifests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert values(store, "t", 1) == expected(1) * 4
    assert leftovers(root) == []


def test_a_load_into_an_internal_topic_is_refused(root: Path) -> None:
    [row, *_] = staged_twice(root)
    Path(row.path).rename(Path(row.directory) / "__consumer_offsets-0")
    with Store.open(root, background=False) as store, pytest.raises(kstore.InvalidTopicError, match="coordinator"):
        store.adopt([replace(row, topic="__consumer_offsets")])


def test_a_store_of_several_directories_takes_a_load_and_each_keeps_writers_out(tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    manifest = staged_twice(roots[0])
    with Store.open(roots, background=False) as store:
        store.create_topic("t", 2)
        store.adopt(manifest, txn=("a", 1), rename_bytes=RENAME)
        assert values(store, "t", 0) == expected(0)
        assert values(store, "t", 1) == expected(1)
    assert load_files.read_done([str(roots[1])]).applications == {"a": 1}
    assert not list(tmp_path.glob("*/kstore-commit.json"))


def test_what_the_files_of_loads_say_is_believed_or_refused(root: Path) -> None:
    Store.open(root, background=False).close()
    for name in (load_files.COMMIT_FILE, load_files.LOADS_FILE):
        for text in ("", "{}", "[1]", '{"version": 2}', '{"version": 1}', "\xff", '{"version": 1, "applications": []}'):
            (root / name).write_text(text, encoding="latin-1")
            with pytest.raises(StorageError, match=r"malformed|version"):
                Store.open(root, background=False)
        (root / name).unlink()
    Store.open(root, background=False).close()
    (root / load_files.LOADS_FILE).write_text(json.dumps({"version": 1, "applications": {"a": 3}, "loads": []}))
    with Store.open(root, background=False) as store:
        assert store.adopt([], txn=("a", 3)).duplicate


SHAPES = st.lists(
    st.tuples(st.integers(1, 30), st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]), st.integers(0, 200)),
    min_size=1,
    max_size=6,
)


@given(shapes=SHAPES, base=st.integers(0, 2**62), epoch=st.integers(0, 2**31 - 1), before=st.integers(0, 2**62))
def test_batches_of_every_shape_get_offsets_and_keep_their_records(
    shapes: list[tuple[int, str, int]], base: int, epoch: int, before: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "batches.log"
    rows = [[(b"k", bytes([n]) * size) for n in range(count)] for count, _, size in shapes]
    data = b"".join(
        kstore.encode_batch(each, compression=codec) for each, (_, codec, _) in zip(rows, shapes, strict=True)
    )
    path.write_bytes(data)
    with open(path, "r+b") as file:
        rebase(file.fileno(), len(data), before, 3)
        assert rebase(file.fileno(), len(data), base, epoch, write=False)[0] == base + sum(map(len, rows))
        next_offset, batches, crc = rebase(file.fileno(), len(data), base, epoch)
    found = list(kstore.decode_batches(path.read_bytes()))
    assert (next_offset, batches, crc) == (base + sum(map(len, rows)), len(rows), found[0].crc)
    assert {batch.partition_leader_epoch for batch in found} == {epoch}
    records = [record for batch in found for record in batch]
    assert [record.offset for record in records] == list(range(base, next_offset))
    assert [(record.key, record.value) for record in records] == [row for each in rows for row in each]


@given(data=st.binary(max_size=300), flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4))
def test_bytes_that_are_no_batches_are_refused_and_nothing_is_written_past_them(
    data: bytes, flips: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    whole = bytearray(kstore.encode_batch([(b"k", b"v" * 50)]) * 2)
    for at, byte in flips:
        whole[at % len(whole)] = byte
    for each in (data, bytes(whole)):
        path.write_bytes(each)
        with open(path, "r+b") as file, contextlib.suppress(kstore.CorruptRecordError):
            rebase(file.fileno(), len(each), 5, 1, path=str(path))
        assert len(path.read_bytes()) == len(each)


def test_batches_of_producers_and_control_batches_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    numbers = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    for special in (numbers, numbers | {"transactional": True}):
        data = kstore.encode_batch([b"v"], **special)
        path.write_bytes(data)
        with open(path, "r+b") as file, pytest.raises(kstore.CorruptRecordError, match="no task stages"):
            rebase(file.fileno(), len(data), 0, 0)
