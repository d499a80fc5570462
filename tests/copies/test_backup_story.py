"""A lost laptop: its directory is restored elsewhere, and a group and a transactional producer go on.

A group reads with a transaction for what it has read and what it writes, as a loader that must count nothing twice.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kstore
from tests.support.backedup import picture_of

COMMITTED = "read_committed"


class Laptop:
    """One directory, the store in it, and the loader that copies orders to a second topic, each of them once."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.url = root, url

    @contextmanager
    def working(self) -> Iterator[kstore.Store]:
        """Open the store, and back it up for as long as it is open."""
        with kstore.Store.open(self.root, segment_bytes=2000) as store:
            for topic in ("orders", "billed"):
                if topic not in store.topics:
                    store.create_topic(topic, 2)
            with kstore.backup(store, self.url, every=0.05):
                yield store

    def lost(self) -> None:
        """The directory is gone."""
        shutil.rmtree(self.root)


def load(store: kstore.Store, at_most: int) -> int:
    """Bill orders that were not billed yet, ten in a transaction with the group's position; how many."""
    billed = 0
    with (
        store.consumer("billing", "orders", isolation=COMMITTED) as consumer,
        store.producer(transactional_id="biller") as producer,
    ):
        records = iter(consumer)
        while billed < at_most:
            some = list(itertools.islice(records, 10))
            if not some:
                break
            with producer.transaction() as transaction:
                for record in some:
                    transaction.append("billed", record.value, record.key)
                positions = {(record.topic, record.partition): record.offset + 1 for record in some}
                transaction.commit_offsets("billing", positions)
            billed += len(some)
    return billed


def order(store: kstore.Store, numbers: range) -> None:
    store.append_many("orders", [(b"%d" % number, b"order %d" % number) for number in numbers])


def billed(store: kstore.Store) -> list[int]:
    """The orders that committed records bill, sorted."""
    values = [record.value or b"" for record in store.read("billed", isolation=COMMITTED)]
    return sorted(int(value.split()[1]) for value in values)


def test_after_a_restore_a_group_and_a_transactional_producer_go_on(tmp_path: Path) -> None:
    laptop = Laptop(tmp_path / "data", str(tmp_path / "backup"))
    with laptop.working() as store:
        order(store, range(100))
        assert load(store, 40) == 40
        position = store.committed_offsets("billing")
    with pytest.raises(kstore.KStoreError, match="data"):  # what is there is not overwritten
        kstore.restore(laptop.url, laptop.root)
    before = picture_of(laptop.root)

    laptop.lost()
    kstore.restore(laptop.url, laptop.root)
    assert before.unlike(picture_of(laptop.root)) == []

    with laptop.working() as store:
        assert store.committed_offsets("billing") == position
        order(store, range(100, 120))
        assert load(store, 1000) == 80
        assert billed(store) == list(range(120))

    laptop.lost()
    kstore.restore(laptop.url, laptop.root)
    with laptop.working() as store:
        assert billed(store) == list(range(120))
        assert load(store, 1000) == 0


def test_what_was_not_backed_up_before_the_loss_is_billed_once_all_the_same(tmp_path: Path) -> None:
    """The group's positions, the records and the transactions of a backup are of one moment: what is lost of one is
    lost of all."""
    root, url = tmp_path / "data", str(tmp_path / "backup")
    with kstore.Store.open(root, segment_bytes=2000) as store:
        for topic in ("orders", "billed"):
            store.create_topic(topic, 2)
        order(store, range(100))
        with kstore.backup(store, url, every=3600) as backup:
            assert load(store, 30) == 30
            backup.flush()
            producer = store.producer(transactional_id="biller")
            transaction = producer.transaction()  # the one that is open when the laptop is lost
            transaction.append("billed", b"order 99", partition=0)
            transaction.commit_offsets("billing", {("orders", 0): 90})
            backup.flush()
            lost = Path(shutil.copytree(url, tmp_path / "as of now"))
            transaction.commit()
            assert load(store, 1000) > 0
            order(store, range(100, 150))
    shutil.rmtree(root)
    kstore.restore(str(lost), root)
    with kstore.Store.open(root) as store:
        assert billed(store) == sorted(billed(store))
        assert len(billed(store)) == 30
        order(store, range(100, 120))
        assert load(store, 1000) == 90
        assert billed(store) == list(range(120))
