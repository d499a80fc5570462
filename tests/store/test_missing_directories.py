"""A partition whose directory has gone: the store says so and keeps its keys, verify reports it, repair begins anew."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import kstore
from kstore.files import checkpoint
from kstore.tools.check.repair_root import plan_root
from kstore.tools.check.verify import verify

KEYS = [b"%d" % number for number in range(40)]


@pytest.fixture
def filled(root: Path, no_syncs: None) -> Path:
    """The directory of a closed store: `orders` with four partitions, each of which has records, and no settings."""
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", 4)
        for key in KEYS:
            store.append("orders", b"value", key=key)
        assert all(store.log("orders", number).log_end_offset for number in range(4))
    return root


def errors(root: Path) -> list[str]:
    return [finding.path for finding in verify([root]).findings if finding.severity == "error"]


@pytest.mark.parametrize("gone", [0, 1, 3])
def test_the_store_says_which_partition_is_missing_and_sends_its_keys_nowhere_else(
    filled: Path, gone: int, caplog: pytest.LogCaptureFixture
) -> None:
    with kstore.Store.open(filled, background=False) as store:
        homes = {key: store.partition_for("orders", key) for key in KEYS}
    shutil.rmtree(filled / f"orders-{gone}")
    with caplog.at_level(logging.ERROR, "kstore"), kstore.Store.open(filled, background=False) as store:
        assert f"refused: {filled}/orders-{gone} at position 0: the partition's directory is missing" in caplog.text
        assert store.partitions("orders") == (0, 1, 2, 3)
        for key, home in homes.items():
            if home == gone:
                with pytest.raises(kstore.CorruptRecordError, match="directory is missing: topic orders has other"):
                    store.append("orders", b"value", key=key)
            else:
                assert store.append("orders", b"value", key=key).partition == home


@pytest.mark.parametrize("gone", [0, 1, 3])
def test_verify_reports_a_missing_directory_as_an_error(filled: Path, gone: int) -> None:
    assert errors(filled) == []
    shutil.rmtree(filled / f"orders-{gone}")
    assert errors(filled) == [f"{filled}/orders-{gone}"]


def test_repair_makes_it_anew_with_the_topics_id_and_goes_on_at_its_offset(filled: Path, tmp_path: Path) -> None:
    with kstore.Store.open(filled, background=False) as store:
        topic_id, end = store.topic_id("orders"), store.log("orders", 3).log_end_offset
    shutil.rmtree(filled / "orders-3")
    assert list(plan_root(str(filled)).missing) == [("orders", 3)]
    cli = pytest.importorskip("kstore.cli")
    assert cli.main(["repair", str(filled), "--yes", "--backup", str(tmp_path / "backup")]) == 0
    assert errors(filled) == []
    with kstore.Store.open(filled, background=False) as store:
        assert store.topic_id("orders") == topic_id
        assert store.append("orders", b"value", partition=3).offset == end


def test_a_directory_that_is_put_back_is_used_again(filled: Path, tmp_path: Path) -> None:
    (filled / "orders-3").rename(tmp_path / "orders-3")
    with kstore.Store.open(filled, background=False) as store:
        assert "orders-3" in store.stats()["refused"]
    (tmp_path / "orders-3").rename(filled / "orders-3")
    with kstore.Store.open(filled, background=False) as store:
        assert store.stats()["refused"] == {}
    assert errors(filled) == []


def test_a_topic_of_which_no_directory_is_left_is_not_missing(filled: Path) -> None:
    for number in range(4):
        shutil.rmtree(filled / f"orders-{number}")
    assert errors(filled) == []
    with kstore.Store.open(filled, background=False) as store:
        assert store.topics == ()


def test_a_topic_that_was_made_again_with_fewer_partitions_misses_none(filled: Path) -> None:
    with kstore.Store.open(filled, background=False) as store:
        store.delete_topic("orders")
        store.create_topic("orders", 2)
    with kstore.Store.open(filled, background=False) as store:
        assert store.partitions("orders") == (0, 1)
    assert errors(filled) == []


def test_a_partition_that_never_held_anything_is_not_missed(root: Path) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", 3)
        store.append("orders", b"value", partition=0)
    shutil.rmtree(root / "orders-2")
    assert errors(root) == []


def test_a_high_watermark_alone_is_what_a_broker_leaves_of_a_moved_replica(filled: Path) -> None:
    shutil.rmtree(filled / "orders-3")
    (filled / checkpoint.CLEAN_MARKER).unlink()  # a broker that is shut down in order writes all lines anew
    for name in (checkpoint.RECOVERY_POINTS, checkpoint.LOG_STARTS):
        checkpoint.update_offsets(filled, name, {("orders", 3): None})
    assert ("orders", 3) in checkpoint.read_offsets(filled, checkpoint.HIGH_WATERMARKS)
    assert errors(filled) == []
    with kstore.Store.open(filled, background=False) as store:
        assert store.partitions("orders") == (0, 1, 2)


def test_a_partition_replaced_by_a_link_is_missing_even_without_a_topics_record(filled: Path, tmp_path: Path) -> None:
    """Else the topic would have a partition less: readers would miss its records, and its keys would go elsewhere."""
    (filled / "orders-3").rename(tmp_path / "orders-3")
    (filled / "orders-3").symlink_to(tmp_path / "orders-3")
    assert len(errors(filled)) == 1
    with kstore.Store.open(filled, background=False) as store:
        assert store.partitions("orders") == (0, 1, 2, 3)
        assert "a symbolic link, which is not followed, is in its place" in store.stats()["refused"]["orders-3"]
        with pytest.raises(kstore.CorruptRecordError, match="symbolic link"):
            list(store.read("orders"))
    (filled / "orders-3").unlink()
    (tmp_path / "orders-3").rename(filled / "orders-3")
    with kstore.Store.open(filled, background=False) as store:
        assert store.stats()["refused"] == {}


@pytest.mark.parametrize("number", [-1, 100_000, 2**31 - 1])
def test_a_line_that_names_a_number_that_no_partition_has_is_passed_over(filled: Path, number: int) -> None:
    checkpoint.update_offsets(filled, checkpoint.RECOVERY_POINTS, {("orders", number): 7})
    assert errors(filled) == []
    with kstore.Store.open(filled, background=False) as store:
        assert store.partitions("orders") == (0, 1, 2, 3)
