"""Stores that kstore 0.1.0 left are read, recovered and continued; `data/kstore-0.1/README.md` says what they are."""

from __future__ import annotations

import hashlib
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.conftest import ManualClock
from tests.golden import goldensets
from tests.golden.goldenlogs import files
from tests.golden.storecontents import LONE_SETTINGS, NOW, SETTINGS, of_log, of_store
from tests.support.staging import stage_task
from tests.support.verifying import errors, unsound

PACK = Path(__file__).parent / "data" / "kstore-0.1" / "stores.tar.xz"
SHA256 = "62f00eeb41f5802a576f743da89dc91be762c1619c116ea7d8f26f9442923e27"
INTERNAL = ("__consumer_offsets", "__transaction_state")

pytestmark = pytest.mark.usefixtures("no_syncs")


@cache
def expected() -> dict[str, Any]:
    """What kstore 0.1.0 read: do not change what is returned."""
    with tarfile.open(PACK) as pack:
        stream = pack.extractfile("kstore-0.1/expected.json")
        assert stream is not None
        found: dict[str, Any] = json.load(stream)
    return found


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """A copy of all of them that the test may change."""
    goldensets.copy_set("kstore-0.1/stores", tmp_path)
    return tmp_path / "kstore-0.1"


def opened(*roots: Path, mode: Any = "a") -> kstore.Store:
    """The store with the settings of its first life."""
    return kstore.Store.open(list(roots), mode, clock=ManualClock(NOW), background=mode == "r", **SETTINGS)


def test_the_set_is_the_one_that_0_1_wrote() -> None:
    """It is never made anew: a file that changes gets a set of its own."""
    assert hashlib.sha256(PACK.read_bytes()).hexdigest() == SHA256


def test_the_set_has_every_file_that_kstore_itself_defines(stores: Path) -> None:
    there = {path.name for path in stores.rglob("kstore-*")}
    own = {"topics.json", "commit.json", "loads.json", "follower.json", "restore.json", "gaps.json", "leader-epochs"}
    assert {f"kstore-{name}" for name in own} | {"kstore-backup.json"} <= there
    for path in stores.rglob("kstore-*.json"):
        assert json.loads(path.read_bytes())["version"] == 1


@pytest.mark.parametrize(
    ("name", "directories"),
    [("clean", ["clean"]), ("follower", ["follower"]), ("killed", ["killed/a", "killed/b"])],
)
def test_mode_r_reads_what_0_1_read_and_changes_no_byte(stores: Path, name: str, directories: list[str]) -> None:
    before = files(stores)
    with opened(*(stores / directory for directory in directories), mode="r") as store:
        assert of_store(store) == expected()[name]
    assert files(stores) == before


@pytest.mark.parametrize("name", ["closed-0", "torn-0"])
def test_a_log_without_a_store_is_read_in_mode_r_and_continued(stores: Path, name: str) -> None:
    before, path = files(stores), stores / "lone" / name
    with kstore.Log.open(path, "r") as log:
        assert of_log(log) == expected()[name]
    assert files(stores) == before
    with kstore.Log.open(path, clock=ManualClock(NOW), **LONE_SETTINGS) as log:
        assert of_log(log) == expected()[name]
        assert (log.recovery.cut_bytes, log.recovery.cut_from_offset) == ((250, 50) if name == "torn-0" else (0, None))
        assert log.append(b"of a later release") == 50
    assert unsound(path) == []


def test_verify_finds_nothing_in_what_0_1_closed(stores: Path) -> None:
    assert errors(stores / "clean", stores / "follower", stores / "lone" / "closed-0", deep=True) == []


def test_a_closed_store_goes_on_where_it_was(stores: Path) -> None:
    root, was = stores / "clean", expected()["clean"]
    with opened(root) as store:
        assert of_store(store) == was
        for topic in was["topics"]:
            if topic not in INTERNAL:
                ends = {
                    int(number): log["log_end_offset"] for number, log in was["topics"][topic]["partitions"].items()
                }
                for partition, end in ends.items():
                    where = store.append(topic, b"later", key=b"account 1", partition=partition)
                    assert where.offset == end
        producer = store.producer(transactional_id="transfers")  # ends the transaction that 0.1.0 left open
        with producer.transaction() as txn:
            txn.append("bank", b"-1", key=b"anna")
            txn.commit_offsets("billing", {("plain", 0): 80})
        store.producer().append("idempotent", b"once more")
        store.commit_offsets("other", {("bank", 1): 3})
        assert b"open" not in [record.value for record in store.read("bank", isolation="read_committed")]
        assert store.committed_offsets("billing") == {("plain", 0): 80, ("plain", 1): 60}
        assert store.table("accounts")[b"account 1"].value == b"later"
        assert store.compact("accounts", roll=True)["accounts", 0].records_after == 9
    assert unsound(root) == []
    with opened(root, mode="r") as store:
        assert store.committed_offsets("other") == {("bank", 1): 3, ("codec-zstd", 0): 7}
        for topic in set(was["topics"]) - {*INTERNAL, "accounts"}:
            for number, log in was["topics"][topic]["partitions"].items():
                assert of_log(store.log(topic, int(number)))["batches"][: len(log["batches"])] == log["batches"]


def test_leader_epochs_that_0_1_gave_out_hold(stores: Path) -> None:
    """`kstore-leader-epochs`: the partition had no batch of the new epoch before the close."""
    with opened(stores / "clean") as store:
        store.append("stamped", b"later")
        (*_, last) = store.log("stamped", 0).read_batches()
        assert last.partition_leader_epoch == 1
        assert set(store.become_leader().values()) == {2}


def test_a_killed_store_is_recovered_and_its_bulk_load_finished(stores: Path) -> None:
    roots = [stores / "killed" / name for name in "ab"]
    with opened(*roots) as store:
        assert of_store(store) == expected()["killed, recovered"]
        assert "doomed" not in store.topics
        for partition in range(4):
            store.append("orders", b"later", partition=partition)
        with store.producer(transactional_id="transfers").transaction() as txn:
            txn.append("bank", b"+7", key=b"bert")
        again = stage_task(roots[0], 9, "orders", {0: [b"again"]}, partitions=4, job="again")
        store.adopt(again, txn=("nightly", 3))
        assert store.log("orders", 0).log_end_offset == 57
    assert [path.name for path in stores.rglob("kstore-commit*")] == []
    loads = json.loads((roots[1] / "kstore-loads.json").read_bytes())
    assert loads["applications"] == {"nightly": 3}
    assert not list((stores / "killed" / "a.kstore-staging").rglob("*.log"))
    assert unsound(*roots) == []


def test_a_load_that_0_1_finished_is_not_stored_again(stores: Path) -> None:
    with opened(stores / "clean") as store:
        again, next_day = (
            stage_task(stores / "clean", 9, "loaded", {1: [b"again"]}, partitions=2, job=job) for job in ("a", "b")
        )
        assert store.adopt(again, txn=("daily", 7)).records == 0
        assert store.log("loaded", 1).log_end_offset == 15
        assert store.adopt(next_day, txn=("daily", 8)).records == 1


def test_a_follower_goes_on_behind_its_leader(stores: Path) -> None:
    leader, follower = stores / "clean", stores / "follower"
    with (
        pytest.raises(kstore.NotLeaderError, match=r"a follower of /srv/kstore-0.1/clean takes"),
        opened(follower) as store,
    ):
        store.append("plain", b"refused")
    copied = kstore.replicate(leader, follower, clock=ManualClock(NOW), **SETTINGS)
    assert all(not facts["truncations"] for facts in copied.stats()["partitions"].values())
    assert errors(follower, deep=True) == []
    with opened(leader, mode="r") as theirs, opened(follower, mode="r") as ours:
        assert ours.topics == theirs.topics
        for topic in theirs.topics:
            for number in theirs.partitions(topic):
                one, other = of_log(ours.log(topic, number)), of_log(theirs.log(topic, number))
                assert one["batches"] == other["batches"] or topic == "accounts"
                assert one["log_end_offset"] == other["log_end_offset"]
        assert of_store(ours)["table"] == of_store(theirs)["table"]
        assert of_store(ours)["groups"] == of_store(theirs)["groups"]
    with opened(follower) as store:
        store.become_leader()
        assert store.append("plain", b"of the new leader", partition=0).offset == 94


def test_a_backup_is_restored_and_goes_on(stores: Path) -> None:
    kstore.restore(str(stores / "backup"), stores / "restored")
    with opened(stores / "restored", mode="r") as store:
        assert of_store(store) == expected()["backup, restored"]
    assert errors(stores / "restored", deep=True) == []
    with opened(stores / "clean") as store:
        store.append("plain", b"later", partition=0)
        with kstore.backup(store, str(stores / "backup"), every=3600) as backup:
            backup.flush()
            assert backup.stats()["failure"] is None
    kstore.restore(str(stores / "backup"), stores / "again")
    with kstore.Store.open(stores / "again", "r") as store:
        assert [record.value for record in store.log("plain", 0).read(93)] == [b"of the second round", b"later"]


def test_a_restore_that_was_interrupted_is_continued(stores: Path) -> None:
    with pytest.raises(kstore.StorageError, match="a restore into this directory is not finished"):
        opened(stores / "restoring")
    restored = kstore.restore(str(stores / "backup"), stores / "restoring")
    assert 0 < restored.fetched_bytes < restored.bytes
    with opened(stores / "restoring", mode="r") as store:
        assert of_store(store) == expected()["backup, restored"]
