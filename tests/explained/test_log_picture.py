"""`kstore describe --svg`: the picture of a log has its segments and index entries, and is sound XML for any log."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

import kstore
from kstore import cli
from kstore.base.numbers import size
from kstore.explained.log_picture import LogFacts, close_up_of, picture
from kstore.types import SegmentInfo
from tests.conftest import ManualClock
from tests.golden import goldensets
from tests.support import pictured

MOST_BYTES = 60 << 10
NOON = 1_370_088_000_000  # 2013-06-01T12:00Z


def drawn(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints: XML of ASCII, small enough for a page."""
    assert cli.main(["describe", str(path), "--svg"]) == 0
    text = capsys.readouterr().out
    assert len(text) <= MOST_BYTES
    return pictured.check(text)


def made(path: Path, clock: ManualClock, batches: int, *, minutes: int = 5) -> None:
    """Write batches of 160 bytes, twelve to a segment, with an index entry for every third one."""
    clock.now = NOON
    with kstore.Log.open(path, clock=clock, segment_bytes=2000, index_interval_bytes=380) as log:
        for _ in range(batches):
            log.append_many([b"v" * 26] * 3)
            clock.now += minutes * 60_000


def test_every_segment_is_a_bar_with_its_offsets_size_and_times(
    tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "t-0", clock, 30)
    found = pictured.texts(drawn(tmp_path / "t-0", capsys))
    with kstore.Log.open(tmp_path / "t-0", "r") as log:
        assert len(log.segments) == 3
        for segment in log.segments:
            at = found.index(f"{segment.base_offset} to {segment.next_offset - 1}")
            assert found[at + 1].removesuffix(", active") == size(segment.size_bytes)
            assert found[at + 1].endswith("active") == segment.is_active
    assert "12:00 to 12:55" in found
    assert {"log start: 0", "log end, the next offset: 90"} <= set(found)


def test_the_entries_of_both_indexes_are_drawn_with_their_values(
    tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "t-0", clock, 25)
    found = pictured.texts(drawn(tmp_path / "t-0", capsys))
    assert cli.main(["dump", "--files", str(tmp_path / "t-0" / "00000000000000000036.index")]) == 0
    entries = re.findall(r"offset: (\d+) position: (\d+)", capsys.readouterr().out)
    assert len(entries) == 3
    assert {f"{offset} \u2192 {int(position):,}" for offset, position in entries} <= set(found)
    assert {"13:15 \u2192 47", "13:30 \u2192 56", "13:45 \u2192 65", "13:55 \u2192 71"} <= set(found)
    assert {"4 entries", "3 entries", "12 batches"} <= set(found)


def test_the_walk_below_the_picture_is_how_a_read_finds_the_record(
    tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "t-0", clock, 25)
    *_, by_offset, by_time = pictured.texts(drawn(tmp_path / "t-0", capsys))
    assert by_offset == "Read offset 60: segment 36; its .index says 56 \u2192 byte 960, and a scan from there."
    assert by_time == "Read from 13:40 on: its .timeindex says 13:30 \u2192 offset 56; then as above, up to that time."
    with kstore.Log.open(tmp_path / "t-0", "r") as log:
        twenty_to_two = NOON + 100 * 60_000
        found = log.offset_for_timestamp(twenty_to_two)
        assert found is not None
        assert found.offset == 60
        positions = log.batch_table(56)["position"].tolist()
        assert positions[0] == 960


def test_records_below_the_log_start_are_grey(
    tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "t-0", clock, 25)
    assert 'class="before edge"' not in drawn(tmp_path / "t-0", capsys)
    with kstore.Log.open(tmp_path / "t-0") as log:
        log.delete_records(9)
    svg = drawn(tmp_path / "t-0", capsys)
    assert 'class="before edge"' in svg
    assert "log start: 9 (grey: deleted)" in pictured.texts(svg)


def test_a_log_of_many_segments_and_entries_is_drawn_in_part_and_says_so(
    tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.now = NOON
    with kstore.Log.open(tmp_path / "t-0", clock=clock, segment_bytes=20_000, index_interval_bytes=300) as log:
        for _ in range(3000):
            log.append(b"v" * 50)
            clock.now += 3_600_000
        segments = len(log.segments)
    found = pictured.texts(drawn(tmp_path / "t-0", capsys))
    assert segments > 12
    assert f"{segments - 12} before" in found
    assert any(re.fullmatch(r"\d of \d+ entries", label) for label in found)
    assert not [label for label in found if "\u2013" in label]  # no label of a batch: there are too many


def test_an_empty_log_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.Log.open(tmp_path / "t-0") as log:
        assert "empty" in pictured.texts(drawn(tmp_path / "t-0", capsys))
        log.append(b"v")
        log.delete_records(1)
        assert "log start and log end, the next offset: 1" in pictured.texts(drawn(tmp_path / "t-0", capsys))


def test_a_log_that_is_being_written_shows_the_entries_in_use(
    tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.now = NOON
    with kstore.Log.open(tmp_path / "t-0", clock=clock, index_interval_bytes=100) as log:
        for _ in range(3):
            log.append(b"v" * 100)
            clock.now += 1
        assert "2 entries" in pictured.texts(drawn(tmp_path / "t-0", capsys))


@pytest.mark.parametrize("name", goldensets.SETS)
def test_logs_of_kafka_are_drawn(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = goldensets.copy_set(name, tmp_path)
    for directory in goldensets.log_directories(name):
        assert cli.main(["describe", str(root / directory), "--svg"]) in (0, 1)
        text, complaint = capsys.readouterr()
        assert text or complaint.count("\n") == 1
        assert "-1&#8211;" not in text  # no batch whose first offset is not known
        if text:
            ElementTree.fromstring(text)


def test_a_log_whose_indexed_segments_lie_far_back_is_drawn(
    tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "t-0", clock, 24)
    with kstore.Log.open(tmp_path / "t-0", clock=clock) as log:
        for _ in range(14):
            log.roll()
            log.append(b"v")
    assert "4 before" in pictured.texts(drawn(tmp_path / "t-0", capsys))


def test_a_name_with_markup_and_control_characters_is_escaped() -> None:
    segment = SegmentInfo(0, 1, 70, 0, 0, NOON, NOON, True, "/x", None)
    facts = LogFacts("<script>\x1b&", 0, 1, [segment], segment, [], [], [(0, 0, 0, NOON)])
    svg = picture(facts)
    ElementTree.fromstring(svg)
    assert "<script" not in svg
    assert "\x1b" not in svg
    far = replace(segment, max_timestamp=1 << 62)
    ElementTree.fromstring(picture(replace(facts, segments=[far], close_up=far, time_entries=[(1 << 62, 0)])))


def test_the_segment_in_detail_is_the_newest_sealed_one_with_entries() -> None:
    sealed = SegmentInfo(0, 5, 70, 1, 1, NOON, NOON, False, "/x", None)
    bare = replace(sealed, base_offset=5, offset_index_entries=0)
    active = replace(sealed, base_offset=9, is_active=True)
    assert close_up_of([sealed, bare, active], 0) is sealed
    assert close_up_of([bare, active], 0) is active
    assert close_up_of([sealed, active], 5) is active


@pytest.mark.parametrize("name", ["", "t"])
def test_a_picture_of_more_than_one_partition_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with kstore.Log.open(tmp_path / "t-0"):
        assert cli.main(["describe", str(tmp_path / name), "--svg"]) == 1
    assert "--svg draws one" in capsys.readouterr().err
