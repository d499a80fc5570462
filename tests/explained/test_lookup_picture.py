"""The walk of a lookup: the entries of the indexes, the bytes that are scanned, and the batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import kstore
from kstore.explained import lookup_picture
from kstore.explained.explanation import LookupStep
from tests.conftest import ManualClock
from tests.support import pictured
from tests.support.explained_facts import HOSTILE, NOON, explanation, with_record


def texts(of: kstore.Explanation) -> list[str]:
    return pictured.texts(pictured.check(lookup_picture.picture(of)))


def test_the_steps_have_the_entries_that_were_found_and_the_next_ones() -> None:
    found = texts(with_record(explanation(3), 20))
    assert found[0] == "How a lookup finds the record at offset 20"
    assert {"12:00:40 \u2192 offset 15", "12:01:20 \u2192 offset 29", "offset 15 \u2192 byte 2,700"} <= set(found)
    assert "nothing is scanned" in found
    assert "offsets 18 \u2013 20, 450 B, zstd, at byte 2,700" in found
    assert "bytes 2,700 to 3,150 are scanned" in texts(with_record(explanation(3), 21))


def test_a_missing_entry_is_told() -> None:
    of = with_record(explanation(3), 2)
    assert of.record is not None
    steps = [replace(step, found=None) if step.what == "offset_index" else step for step in of.record.steps]
    found = texts(replace(of, record=replace(of.record, steps=tuple(steps))))
    assert "no entry before it: the beginning" in found


@pytest.mark.parametrize("offset", [0, 17, 107, 108, 110, 217])
def test_lookups_of_every_record_are_drawn_soundly(offset: int) -> None:
    of = with_record(explanation(3), offset)
    pictured.check(lookup_picture.picture(of, styled=False, prefix="y"))


def test_names_and_sentences_of_any_length_are_drawn_soundly() -> None:
    of = with_record(explanation(3), 17)
    assert of.record is not None
    steps = [
        LookupStep(step.what, HOSTILE * 40, (1 << 62, 1 << 62), (1 << 62, 1 << 62), 1 << 62, HOSTILE * 9)
        for step in of.record.steps
        if step.what not in ("scan", "batch")
    ]
    pictured.check(lookup_picture.picture(replace(of, record=replace(of.record, steps=tuple(steps)))))


def test_an_explanation_without_a_record_is_refused() -> None:
    with pytest.raises(ValueError, match="no record"):
        lookup_picture.picture(explanation(2))


def test_the_walk_of_a_real_log_is_drawn_with_its_entries(tmp_path: Path, clock: ManualClock) -> None:
    clock.now = NOON
    with kstore.Log.open(tmp_path / "t-0", clock=clock, segment_bytes=5000, index_interval_bytes=500) as log:
        for _ in range(100):
            log.append(b"v" * 80)
            clock.now += 60_000
        of = log.explain(timestamp=NOON + 17 * 60_000)
        assert of.record is not None
        found = texts(of)
        taken = next(step.found for step in of.record.steps if step.what == "offset_index")
        assert taken is not None
        assert f"offset {taken[0]} \u2192 byte {taken[1]:,}" in found
        assert [each for each in found if each.endswith(f"at byte {of.record.batch_position:,}")]
