"""validation.analyze_run: a follower's append analyzed at once, or left to `analyze`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.codec import header, validation


def batches(count: int, *, epoch: int = 3, start: int = 5, gap: int = 0) -> bytearray:
    data, offset = bytearray(), start
    for number in range(count):
        batch = bytearray(kstore.encode_batch([b"v%d" % each for each in range(number % 3 + 1)], base_offset=offset))
        header.LEADER_EPOCH.put(batch, epoch)
        data += batch
        offset += number % 3 + 1 + gap
    return data


@pytest.mark.parametrize("count", [1, 2, 3, 50])
@pytest.mark.parametrize("gap", [0, 4])
def test_a_run_is_what_the_walk_over_all_batches_says(count: int, gap: int) -> None:
    data = bytes(batches(count, gap=gap))
    run, whole = validation.analyze_run(data), validation.analyze(data, origin="follower")
    assert run is not None
    assert run._replace(batches=()) == whole._replace(batches=())
    assert run.batches == (whole.batches if count < 2 else (whole.batches[0], whole.batches[-1]))


def test_two_epochs_a_producer_a_cut_and_nothing_are_left_to_the_walk() -> None:
    two = batches(1, epoch=1) + batches(1, epoch=2, start=9)
    produced = kstore.encode_batch([b""], producer_id=1, producer_epoch=0, base_sequence=0)
    for data in (b"", bytes(two), bytes(batches(3)[:-1]), bytes(batches(1, epoch=-1)), produced):
        assert validation.analyze_run(data) is None


@given(st.integers(0, 2**32))
def test_any_changed_byte_is_left_to_the_walk_or_changes_nothing_that_was_checked(seed: int) -> None:
    rng = random.Random(seed)
    data = batches(rng.randint(1, 6))
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    run = validation.analyze_run(bytes(data))
    if run is not None:
        whole = validation.analyze(bytes(data), origin="follower")
        assert run._replace(batches=()) == whole._replace(batches=())


def test_a_run_that_needs_several_segments_is_split_like_any_other_append(tmp_path: Path) -> None:
    data = batches(2, start=0)
    second = len(bytes(kstore.encode_batch([b"v0"])))
    header.BASE_OFFSET.put(memoryview(data)[second:], 2**31 + 10)
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.append_as_follower(bytes(data))
        assert [batch.base_offset for batch in log.read_batches()] == [0, 2**31 + 10]
        assert len(log.segments) == 2
