"""The search for the record that supersedes another: the next committed one with the same key, within a bound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.log.explaining import newer_record
from kstore.log.explaining.newer_record import Newer, next_of_key
from tests.conftest import ManualClock

NOW = 1_700_000_000_000
SETTINGS: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 1000}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(tmp_path / "accounts-0", clock=ManualClock(NOW), **SETTINGS) as log:
        yield log


def test_the_next_record_of_the_key_is_found_in_any_segment_and_batch(log: kstore.Log) -> None:
    for number in range(0, 40, 4):
        log.append_many([(b"k%d" % (row % 7), b"v" * 40) for row in range(number, number + 4)], compression="lz4")
    assert len(log.segments) > 1
    for offset in range(40):
        found = log.explain(offset=offset).record
        assert found is not None
        following = offset + 7
        assert found.superseded_by == (following if following < 40 else None)
        assert found.superseded_timestamp == (NOW if following < 40 else None)
        assert found.searched_offset == min(following + 1, 40)
        assert found.key == f"k{offset % 7}"


def test_a_superseded_record_is_told_which_one_replaces_it(log: kstore.Log) -> None:
    log.append_many([(b"a", b"1"), (b"b", b"1"), (b"a", None)])
    found = log.explain(offset=0).record
    assert found is not None
    assert found.future[-1] == (
        "A newer record of its key is at offset 2: the next cleaning that reads both removes this one."
    )


def test_a_record_of_an_aborted_or_open_transaction_supersedes_nothing(log: kstore.Log) -> None:
    log.append(b"1", key=b"a")
    for first in (0, 1):
        log.append_many([(b"a", b"2")], producer_id=7, producer_epoch=0, base_sequence=first, transactional=True)
        found = log.explain(offset=0).record
        assert found is not None
        assert (found.superseded_by, found.searched_offset) == (None, 1 if first == 0 else 3)
        if first == 0:
            log.append_marker(7, 0, commit=False)
    log.append_marker(7, 0, commit=True)
    found = log.explain(offset=0).record
    assert found is not None
    assert found.superseded_by == 3


def test_a_record_without_a_key_and_a_log_without_compaction_are_not_searched(tmp_path: Path) -> None:
    with kstore.Log.open(tmp_path / "orders-0") as log:
        log.append_many([(b"a", b"1"), (b"a", b"2"), (None, b"1"), (None, b"2")])
        found = [log.explain(offset=0).record]
    with kstore.Log.open(tmp_path / "orders-0", mode="r", cleanup_policy="compact") as log:
        found += [log.explain(offset=2).record]
        first = log.explain(offset=0).record
    assert first is not None
    assert first.superseded_by == 1
    assert [(each.superseded_by, each.searched_offset) for each in found if each] == [(None, None)] * 2


def test_the_search_ends_at_its_bound(log: kstore.Log) -> None:
    for number in range(400):
        log.append(b"v" * 40, key=b"a" if number in (0, 399) else b"b")
    view = log._view
    assert next_of_key(view, b"a", 0, 400) == Newer(399, NOW, 400)
    bounded = next_of_key(view, b"a", 0, 400, most_bytes=5_000)
    assert bounded.offset == -1
    assert 1 < bounded.end_offset < 399
    assert next_of_key(view, b"a", 399, 400) == Newer(-1, -1, 400)
    assert next_of_key(view, b"a", 0, 399) == Newer(-1, -1, 399)
    assert newer_record.MOST_BYTES == 64 << 20


def test_damage_ends_the_search_and_not_the_explanation(tmp_path: Path) -> None:
    path = tmp_path / "accounts-0"
    with kstore.Log.open(path, clock=ManualClock(NOW), **SETTINGS) as log:
        for number in range(30):
            log.append(b"v" * 40, key=b"a" if number in (0, 29) else b"b")
        second = log.segments[1]
    data = bytearray(Path(second.path).read_bytes())
    data[70] ^= 1
    Path(second.path).write_bytes(data)
    with kstore.Log.open(path, mode="r", **SETTINGS) as log:
        found = log.explain(offset=0).record
        assert found is not None
        assert found.superseded_by is None
        assert found.searched_offset is not None
        assert found.searched_offset <= second.base_offset


def test_a_long_key_is_cut_and_its_bytes_are_shown(log: kstore.Log) -> None:
    log.append_many([(b"\xff" + b"k" * 200, b"1"), ("\u00e9\x1b".encode(), b"1")])
    first, second = (log.explain(offset=offset).record for offset in (0, 1))
    assert first is not None
    assert first.key == "\\xff" + "k" * 99 + "\u2026"
    assert second is not None
    assert second.key == "\u00e9\x1b"
