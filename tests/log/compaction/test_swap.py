"""The swap: the power may go at any step of a pass, and any of the renames that no sync has covered may be kept.

Planted faults that the tests must catch: a missing sync of the directory before the renames, after those to `.swap`,
after those to `.deleted`, and between two new segments of one group, in the renames to `.swap` and to the final names;
the first-dirty line written before the pass that it is of.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.disk import fs
from kstore.files import names
from kstore.log.segments import swap as swapping
from kstore.log.segments.segment import Segment
from tests.conftest import ManualClock
from tests.support.cleaning import clean, open_log, unfinished
from tests.support.faultfs import KEPT, LOST, NAMES_LOST, FaultFS, shuffled
from tests.support.swaps import check_subsets, committed, story, swap_one_group


@pytest.fixture(autouse=True)
def without_syncs(no_syncs: None) -> None:
    """What is on the disk is the images' business."""


def check(image: Path, clock: ManualClock, expected: dict[bytes, bytes | None], end: int) -> None:
    """What a cleaning may not lose is there, and the log can be read, appended to and cleaned again."""
    with kstore.Log.open(image / "events-0", "r") as log:
        assert committed(log) == expected
    with open_log(image, clock, internal_segment_bytes=900) as log:
        assert log.recovery.cut_bytes == 0
        assert log.log_end_offset == end
        assert committed(log) == expected
        assert unfinished(image / "events-0") == []
        assert log.append(b"after", key=b"after") == end
        log.compact(roll=True)
        assert committed(log) == {**expected, b"after": b"after"}


def prepared(root: Path, clock: ManualClock) -> tuple[dict[bytes, bytes | None], int]:
    with open_log(root, clock, internal_segment_bytes=900) as log:
        story(log, clock)
        return committed(log), log.log_end_offset


def test_the_power_may_go_at_every_step_of_a_pass(
    root: Path, tmp_path: Path, clock: ManualClock, rng: random.Random
) -> None:
    expected, end = prepared(root, clock)
    images = tmp_path / "images"
    images.mkdir()
    with FaultFS(root) as disk, open_log(root, clock, internal_segment_bytes=900) as log:
        since = disk.step
        assert clean(log).segments_after > 3
    looked, first = 0, rng.randrange(4)
    plans = (LOST, KEPT, NAMES_LOST, shuffled(rng))
    for step, plan, image in disk.crash_images(images, *plans, since=since):
        if plans.index(plan) == (step + first) % 4:  # the others with another seed
            check(image, clock, expected, end)
            looked += 1
    assert looked > 60


def test_no_crash_amid_a_pass_brings_a_key_back_whose_tombstone_goes(
    root: Path, tmp_path: Path, clock: ManualClock, rng: random.Random
) -> None:
    """SEMANTICS 7.26: where the end of a group holds nothing, old segments survive a crash and are cleaned again."""
    settings: dict[str, Any] = {"internal_segment_bytes": rng.choice([300, 600, 1200]), "delete_retention_ms": 0}
    images = tmp_path / "images"
    images.mkdir()
    with FaultFS(root) as disk, open_log(root, clock, **settings) as log:
        passes = []
        for _ in range(3):
            for _ in range(rng.randrange(5, 25)):
                clock.advance(1)
                log.append(None if rng.random() < 0.3 else b"value", key=b"%d" % rng.randrange(5))
                if rng.random() < 0.3:
                    log.roll()
            log.roll()
            log.flush()
            clock.advance(1_000_000)
            expected, since = committed(log), disk.step
            clean(log)
            passes.append((range(since, disk.step), expected))
    for steps, expected in passes:
        plan = rng.choice((LOST, KEPT, NAMES_LOST, shuffled(rng)))
        for step in rng.sample(steps, min(len(steps), 8)):
            image = disk.crash_image(images / f"{step}", step, plan)
            with kstore.Log.open(image / "events-0", "r") as log:
                assert committed(log) == expected
            with open_log(image, clock, **settings) as log:
                assert committed(log) == expected
                for _ in range(2):
                    clock.advance(1_000_000)
                    log.compact(roll=True)
                    assert committed(log) == expected


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_every_subset_of_renames_that_no_sync_covers_opens_without_a_loss(
    root: Path, tmp_path: Path, clock: ManualClock, rng: random.Random, segments: int, caplog: pytest.LogCaptureFixture
) -> None:
    """SEMANTICS 7.25, 7.26; the row `synced-swap`."""
    disk, since, expected, end = swap_one_group(root, clock, segments=segments)
    looked = check_subsets(disk, since, tmp_path / "images", rng, lambda image: check(image, clock, expected, end))
    assert looked > 60
    assert "is skipped" not in caplog.text  # no index belongs to another log


class WithoutOneSync:
    """`fs`, of which one sync of a directory does nothing."""

    def __init__(self, missing: int) -> None:
        self._left = missing

    def __getattr__(self, name: str) -> Any:
        return getattr(fs, name)

    def sync_directory(self, path: str) -> None:
        self._left -= 1
        if self._left != -1:
            fs.sync_directory(path)


def all_at_once(directory: str, new: Sequence[Segment]) -> None:
    """`make_swap_files` with one sync for several new segments."""
    fs.sync_directory(directory)
    for segment in reversed(new):
        segment.rename(".swap")
    fs.sync_directory(directory)


@pytest.mark.parametrize(
    "fault", ["before .swap", "after .swap", "after .deleted", "between two .swap", "between two final names"]
)
def test_a_missing_sync_of_the_directory_is_caught(
    root: Path, tmp_path: Path, clock: ManualClock, rng: random.Random, fault: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if fault == "between two .swap":
            patch.setattr(swapping, "make_swap_files", all_at_once)
            disk, since, expected, end = swap_one_group(root, clock, segments=2)
        elif fault == "before .swap":
            patch.setattr(swapping, "fs", WithoutOneSync(0))
            disk, since, expected, end = swap_one_group(root, clock, segments=2)
        elif fault == "between two final names":  # of three: an opening deletes what lies between two `.swap` files
            patch.setattr(swapping, "fs", WithoutOneSync(5))
            disk, since, expected, end = swap_one_group(root, clock, segments=3)
        else:
            patch.setattr(swapping, "fs", WithoutOneSync(1 if fault == "after .swap" else 2))
            disk, since, expected, end = swap_one_group(root, clock, segments=1)
    with pytest.raises((AssertionError, kstore.KStoreError)):
        check_subsets(disk, since, tmp_path / "images", rng, lambda image: check(image, clock, expected, end))


def test_an_empty_new_segment_does_not_keep_the_old_index_of_transactions() -> None:
    """It covers no offset, so that SEMANTICS 8.6 deletes nothing, and it has no such index to take the place."""
    old = [names.file_name(7, kind) for kind in names.SEGMENT_KINDS]
    new = [names.file_name(7, kind, names.SWAP) for kind in names.SEGMENT_KINDS[:3]]
    assert swapping.leftovers([*old, *new], lambda _: 7).remove == (names.txn_index_name(7),)
    assert set(old) <= set(swapping.leftovers([*old, *new], lambda _: 8).remove)


def test_a_group_of_which_nothing_stays_becomes_an_empty_segment(root: Path, clock: ManualClock) -> None:
    with open_log(root, clock) as log:
        log.append_many([(b"key", b"1"), (b"key", b"2")])
        log.roll()
        log.append_many([(b"%d" % number * 60, b"value" * 30) for number in range(9)])
        log.append(b"3", key=b"key")
        log.roll()
        log.update_config(internal_segment_bytes=200)
        log.compact()
        assert (log.segments[0].base_offset, log.segments[0].size_bytes) == (0, 0)
        offsets = list(range(2, 12))
        assert [record.offset for record in log.read(0)] == offsets
        assert log.offset_for_timestamp(0) is not None
        assert log.offset_for_timestamp(0).offset == 2
        assert log.fetch(0, 1 << 20).offset == 2
        with kstore.Log.open(root / "events-0", "r") as reader:
            assert [record.offset for record in reader.read(0)] == offsets
            assert reader.read_columns(0).offsets.tolist() == offsets
    with open_log(root, clock) as log:
        assert [record.offset for record in log.read(0)] == offsets
        log.append(b"4", key=b"key")
        assert log.compact(roll=True).records_before == 11
