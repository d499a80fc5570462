"""kstore/testing/checked.py: a test's logs and stores are opened quickly, follow the clock, and are verified."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.disk import fs
from kstore.testing import ManualClock, checked_log, checked_store


def damage(log: kstore.Log, close: Callable[[], None]) -> None:
    """Write a record, close, and flip a bit of it."""
    log.append(b"value")
    close()
    path = Path(log.path) / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[65] ^= 1
    path.write_bytes(data)


def test_a_sound_log_passes(root: Path) -> None:
    with checked_log(root) as log:
        log.append(b"value")
        assert (log.topic, log.partition) == ("test", 0)
    with pytest.raises(kstore.LogClosedError):
        log.append(b"late")


def test_a_log_that_the_test_has_closed_is_verified_all_the_same(root: Path) -> None:
    with pytest.raises(AssertionError, match=r"00000\.log:0: error: .*CRC"), checked_log(root) as log:
        damage(log, log.close)


def test_a_corrupt_log_fails_and_all_that_verify_finds_is_said(root: Path) -> None:
    with pytest.raises(AssertionError) as caught, checked_log(root) as log:
        damage(log, log.close)
    first, *findings = str(caught.value).splitlines()
    assert first == f"{root} is not sound at the end of the test:"
    assert [finding.split(": ")[0] for finding in findings] == [
        f"{root}/test-0/00000000000000000000.log:0",
        f"{root}/test-0/00000000000000000000.timeindex:0",
        f"{root}/test-0/00000000000000000000.log:73",
    ]


def test_a_corrupt_partition_of_a_store_fails(root: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"orders-1/0*\.log:0: error"),
        checked_store(root, topics={"orders": 2}) as store,
    ):
        damage(store.log("orders", 1), store.close)


def test_an_error_in_the_block_is_the_one_that_is_raised(root: Path) -> None:
    with pytest.raises(KeyError, match="mine"), checked_log(root):
        raise KeyError("mine")


def test_no_sync_waits_for_the_disk_in_the_block_and_all_do_afterwards(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(fs, "_full_sync", waited.append)
    monkeypatch.setattr(os, "fdatasync", waited.append)
    with checked_log(root) as log, checked_store(tmp_path / "second") as store:
        log.append(b"value", sync=True)
        store.create_topic("orders")
        store.append("orders", b"value")
        store.flush()
    assert waited == []
    with kstore.Log.open(root / "test-0") as log:
        log.append(b"value", sync=True)
    assert waited


def test_retention_of_a_log_follows_the_clock(root: Path) -> None:
    clock = ManualClock()
    with checked_log(root, clock, retention_ms=1000) as log:
        log.append(b"value")
        clock.advance(1000)
        assert [record.value for record in log.read()] == [b"value"]
        clock.advance(1)
        assert list(log.read()) == []


def test_a_log_rolls_when_the_clock_says_so(root: Path) -> None:
    clock = ManualClock()
    with checked_log(root, clock, segment_ms=1000) as log:
        log.append(b"value")
        clock.advance(1001)
        log.append(b"value")
        assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_retention_of_a_store_follows_the_clock(root: Path) -> None:
    clock = ManualClock()
    with checked_store(root, clock, topics={"orders": 2}, retention_ms=1000) as store:
        store.append("orders", b"value", key=b"k")
        clock.advance(1000)
        assert [record.value for record in store.read("orders")] == [b"value"]
        clock.advance(1)
        assert list(store.read("orders")) == []


def test_a_log_and_a_store_that_are_closed_do_not_keep_the_clock_from_moving(root: Path, tmp_path: Path) -> None:
    clock = ManualClock()
    with checked_log(root, clock) as log, checked_store(tmp_path / "second", clock) as store:
        log.close()
        store.close()
        clock.advance(1000)


def test_a_store_has_no_thread_of_its_own(root: Path) -> None:
    import threading

    before = threading.active_count()
    with checked_store(root):
        assert threading.active_count() == before


def test_a_setting_of_the_store_wins_over_the_kits(root: Path) -> None:
    clock = ManualClock()
    settings = {"retention_ms": 1000, "log_retention_check_interval_ms": 300_000}
    with checked_store(root, clock, topics={"orders": 1}, **settings) as store:
        clock.advance(1)
        store.append("orders", b"value")
        clock.advance(2000)
        assert len(list(store.read("orders"))) == 1
        clock.advance(300_000)
        assert len(list(store.read("orders"))) == 0
