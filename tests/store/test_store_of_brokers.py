"""A store over directories that brokers left: each topic is read and appended to, the rest is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.files import checkpoint, names
from tests.golden import goldensets

SETS = ["consumer-offsets", "delete-records", "epochs", "idempotent", "transactions", "transactions-2.8"]
KEPT = ("meta.properties", "bootstrap.checkpoint", names.PARTITION_METADATA)


@pytest.fixture(params=SETS)
def log_dir(request: pytest.FixtureRequest, golden: Callable[[str], Path]) -> Path:
    """A copy of a golden set's log directory; its parent has the set's name."""
    path = golden(request.param) / "dir"
    for left in path.rglob(".keep"):
        left.unlink()
    return path


def kept(log_dir: Path) -> dict[str, bytes]:
    """What kstore must not touch."""
    return {str(path.relative_to(log_dir)): path.read_bytes() for name in KEPT for path in log_dir.rglob(name)}


def partitions(store: kstore.Store) -> dict[str, kstore.Log]:
    """Every log of a store, by the name of its directory."""
    return {
        f"{topic}-{number}": store.log(topic, number) for topic in store.topics for number in store.partitions(topic)
    }


@pytest.mark.parametrize("mode", ["r", "a"])
def test_every_topic_is_listed_and_every_record_read(log_dir: Path, mode: str) -> None:
    name = log_dir.parent.name
    with kstore.Store.open(log_dir, mode) as store:  # type: ignore[arg-type]
        logs = partitions(store)
        assert [f"dir/{directory}" for directory in sorted(logs)] == goldensets.log_directories(name)
        for directory, log in logs.items():
            expected = [
                (record.offset, record.timestamp, record.key, record.value, record.headers)
                for record in goldensets.expected_records(name, f"dir/{directory}")
                if record.offset >= log.log_start_offset and not record.line["isControl"]
            ]
            assert [tuple(record) for record in log.read()] == expected, directory
            metadata = checkpoint.read_partition_metadata(log_dir / directory)
            assert metadata is None or store.topic_id(log.topic) == metadata.topic_id


def test_appending_leaves_the_brokers_own_files_alone(log_dir: Path) -> None:
    before = kept(log_dir)
    assert before
    with kstore.Store.open(log_dir) as store:
        ends = {directory: log.append(b"ours", b"key") for directory, log in partitions(store).items()}
    with kstore.Store.open(log_dir) as store:
        for directory, log in partitions(store).items():
            assert log.recovery.clean
            assert [record.value for record in log.read(ends[directory])] == [b"ours"]
            epochs = [batch.partition_leader_epoch for batch in log.read_batches()]
            assert epochs[-1] == max(0, *epochs)  # the newest known, as the broker's next start goes on from there
    assert kept(log_dir) == before


def test_a_log_with_numbered_batches_is_never_closed_without_a_snapshot(log_dir: Path) -> None:
    """SEMANTICS 9.26: without one, an opening after a clean close takes the producers' state to be empty at the
    end."""
    crash(log_dir)
    for _ in range(3):
        with kstore.Store.open(log_dir) as store:
            logs = partitions(store)
            numbered = {name: any(batch.producer_id >= 0 for batch in log.read_batches()) for name, log in logs.items()}
            ends = {name: log.log_end_offset for name, log in logs.items()}
        for name in logs:
            if numbered[name]:
                assert (log_dir / name / names.snapshot_name(ends[name])).exists()


def crash(log_dir: Path) -> None:
    """Leave no sign of a clean end, and no snapshot; recovery, too, deletes those that it cannot trust."""
    for path in (log_dir / checkpoint.CLEAN_MARKER, log_dir / checkpoint.RECOVERY_POINTS, *log_dir.rglob("*.snapshot")):
        path.unlink(missing_ok=True)
