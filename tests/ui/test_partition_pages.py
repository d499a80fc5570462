"""The pages of a partition: segments explained, records, batches, producers, findings; and of a damaged one."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.tools.check.verify import verify
from kstore.ui import partition_facts
from kstore.ui.partition_facts import PAGE_BATCHES
from kstore.ui.server import Server
from kstore.ui.viewed_store import ViewedStore
from tests.conftest import ManualClock
from tests.ui.conftest import Pages
from tests.ui.test_directory_pages import cells

PLACE = "/partition/orders/0"
HOUR = 3_600_000


@pytest.fixture
def rolled(root: Path, clock: ManualClock) -> Path:
    """A log of five segments, one of which retention deletes with the next check."""
    with kstore.Store.open(root, background=False, clock=clock) as store:
        config = {"segment.bytes": "1000", "retention.ms": str(2 * HOUR), "segment.ms": str(HOUR)}
        store.create_topic("orders", partitions=1, config=config)
        for number in range(40):
            store.append("orders", b'{"number": %d}' % number, key=b"key-%d" % (number % 4), headers=[("h", b"v")])
            clock.advance(HOUR // 12)
    return root


def test_the_overview_draws_every_segment_and_leads_to_it(
    rolled: Path, pages: Callable[..., Pages], clock: ManualClock
) -> None:
    served = pages(rolled, clock=clock)
    explained = served.viewed.log(served.viewed.place("orders", 0)).explain(at=clock())
    text = served.read(PLACE)
    links = re.findall(r'<a href="\?axis=time&amp;page=1&amp;segment=(\d+)#segment" aria-label=', text)
    assert links == [str(segment.base_offset) for segment in explained.segments]
    assert "<style" not in text
    rows = [row for row in cells(text) if len(row) == 9][1:]
    assert len(rows) == len(explained.segments)
    assert rows[0][4].startswith("rolled by segment.")


def test_a_segment_is_explained_in_words(rolled: Path, pages: Callable[..., Pages], clock: ManualClock) -> None:
    served = pages(rolled, clock=clock)
    segment = served.viewed.log(served.viewed.place("orders", 0)).explain(at=clock()).segments[0]
    for axis in ("time", "offset"):
        text = served.read(f"{PLACE}?axis={axis}&segment={segment.base_offset}")
        assert segment.explanation in text.replace("&#39;", "'")
        assert segment.roll_explanation in text.replace("&#39;", "'")
        assert 'id="segment"' in text


def test_a_partition_without_records_has_every_page(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1)
    served = pages(root)
    for way in ("", "/records", "/batches", "/producers", "/check?run=yes", "?axis=offset"):
        served.read(PLACE + way)
    assert served.ask(f"{PLACE}/record?offset=0").status == 404


def test_the_newest_records_are_shown_and_lead_to_older_ones(
    rolled: Path, pages: Callable[..., Pages], monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr("kstore.ui.record_view.PAGE_RECORDS", 10)
    served = pages(rolled, clock=clock)
    text = served.read(f"{PLACE}/records")
    assert [row[0] for row in cells(text)[1:]] == [str(number) for number in range(39, 29, -1)]
    assert 'rel="prev" href="?offset=20"' in text
    assert 'rel="next"' not in text
    older = served.read(f"{PLACE}/records?offset=20")
    assert cells(older)[1][0] == "20"


def test_records_are_found_by_time(rolled: Path, pages: Callable[..., Pages], clock: ManualClock) -> None:
    served = pages(rolled, clock=clock)
    start = 1_700_000_000_000
    for asked, expected in (
        (str(start + 5 * HOUR // 12), "5"),
        ("2023-11-14T22:38:21Z", "6"),
        ("-5m", "39"),
        ("2001-01-01", "0"),
    ):
        assert cells(served.read(f"{PLACE}/records?time={asked}"))[1][0] == expected, asked
    text = served.read(f"{PLACE}/records?time=2200-01-01")
    assert "No record has a timestamp of 2200-01-01 00:00:00.000 or later" in text


def test_records_are_found_by_key(rolled: Path, pages: Callable[..., Pages], clock: ManualClock) -> None:
    served = pages(rolled, clock=clock)
    hits = [row[0] for row in cells(served.read(f"{PLACE}/records?key=key-3"))[1:]]
    assert hits == [str(number) for number in range(3, 40, 4)]
    assert [row[0] for row in cells(served.read(f"{PLACE}/records?key=0x6b65792d33"))[1:]] == hits
    assert len(cells(served.read(f"{PLACE}/records?key=ey-&match=contains"))) == 41
    assert "0 found" in served.read(f"{PLACE}/records?key=key-33")


def test_an_offset_outside_of_the_log_is_told(rolled: Path, pages: Callable[..., Pages]) -> None:
    text = pages(rolled).read(f"{PLACE}/records?offset=400")
    assert "The offset 400 is not in the log, which has 0 to 40" in text


def test_a_record_has_its_content_its_place_and_its_future(
    rolled: Path, pages: Callable[..., Pages], clock: ManualClock
) -> None:
    served = pages(rolled, clock=clock)
    record = served.viewed.log(served.viewed.place("orders", 0)).explain(at=clock(), offset=17).record
    assert record is not None
    text = served.read(f"{PLACE}/record?offset=17")
    assert "{\n  &#34;number&#34;: 17\n}" in text
    assert "00000000  7b 22 6e 75 6d 62 65 72 22 3a 20 31 37 7d" in text
    assert "key-1" in text
    assert text.count("<svg") == 2
    for sentence in record.future:
        assert sentence in text
    assert [row[0] for row in cells(text)[-len(record.steps) :]] == [
        step.what.replace("_", " ") for step in record.steps
    ]


def test_an_offset_that_no_record_has_says_why(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Log.open(root / "orders-0", cleanup_policy="compact") as log:
        log.append_many([(b"k", b"1"), (b"k", b"2"), (b"l", b"3")])
        log.roll()
        log.append(b"4", key=b"m")
        log.compact()
    served = pages(root, config={"cleanup.policy": "compact"})
    assert "No record has this offset" in served.read(f"{PLACE}/record?offset=0")
    assert "No record has this offset" not in served.read(f"{PLACE}/record?offset=1")


def test_batches_are_listed_and_counted_by_size_and_codec(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Log.open(root / "orders-0") as log:
        log.append_many([b"x" * 10] * 3)
        log.update_config(compression_type="zstd")
        log.append_many([b"y" * 100] * 50)
        for _ in range(PAGE_BATCHES):
            log.append(b"z")
    served = pages(root)
    text = served.read(f"{PLACE}/batches")
    rows = [row for row in cells(text) if len(row) == 11]
    assert rows[1][:3] == ["0", "2", "3"]
    assert [row[4] for row in rows[1:4]] == ["none", "zstd", "zstd"]
    assert len(rows) == PAGE_BATCHES + 1
    assert f"{PAGE_BATCHES + 2} batches" in text
    following = re.search(r'rel="next" href="\?offset=(\d+)"', text)
    assert following is not None
    assert len([row for row in cells(served.read(f"{PLACE}/batches?offset={following[1]}")) if len(row) == 11]) == 3


def test_producers_and_open_transactions_are_listed(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Log.open(root / "orders-0") as log:
        log.append_many([b"1", b"2"], producer_id=7, producer_epoch=1, base_sequence=0)
        log.append_many([b"3"], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        log.append(b"4")
        log.append_many([b"5"], producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
        log.append_marker(8, 0, commit=False)
        log.flush()
    served = pages(root)
    text = served.read(f"{PLACE}/producers")
    assert [row[:3] for row in cells(text) if len(row) == 4][1:] == [["9", "0", "2"]]
    assert [row[:4] for row in cells(text) if len(row) == 6][1:] == [
        ["7", "1", "1", "1"],
        ["8", "0", "0", "4"],
        ["9", "0", "0", "2"],
    ]
    records = served.read(f"{PLACE}/records")
    assert "endTxnMarker: ABORT" in records
    assert "transaction of 9" in records


@pytest.fixture
def damaged(root: Path) -> Path:
    with kstore.Store.open(root, background=False, segment_bytes=500) as store:
        store.create_topic("orders", partitions=1)
        for number in range(20):
            store.append("orders", b"value %d" % number + b"x" * 60)
        segment = store.log("orders", 0).segments[1]
    path = Path(segment.path)
    data = bytearray(path.read_bytes())
    data[-20] ^= 0xFF
    path.write_bytes(data)
    return root


def test_a_damaged_batch_is_told_and_what_is_before_it_is_shown(damaged: Path, pages: Callable[..., Pages]) -> None:
    served = pages(damaged)
    text = served.read(f"{PLACE}/records?offset=0")
    assert "CorruptRecordError" in text
    assert "value 0" in text
    first = served.viewed.log(served.viewed.place("orders", 0)).segments[2].base_offset
    answer = served.ask(f"{PLACE}/record?offset={first - 1}")
    assert answer.status == 200
    assert "CorruptRecordError" in answer.text
    assert "CorruptRecordError" not in served.read(f"{PLACE}/record?offset={first}")


def test_a_check_finds_damage_and_a_sound_segment_is_sound(damaged: Path, pages: Callable[..., Pages]) -> None:
    served = pages(damaged)
    report = verify([damaged / "orders-0"], deep=True)
    text = served.read(f"{PLACE}/check?run=yes")
    assert report.errors >= 1
    assert re.search(rf"<h2[^>]*>{report.errors} errors?</h2>", text)
    for finding in report.findings:
        assert finding.what in text
    bases = [segment.base_offset for segment in served.viewed.log(served.viewed.place("orders", 0)).segments]
    assert "CRC" in served.read(f"{PLACE}/check?run=yes&segment={bases[1]}")
    assert "Nothing is wrong" in served.read(f"{PLACE}/check?run=yes&segment={bases[0]}")
    assert "Nothing is wrong" not in served.read(f"{PLACE}/check")


def test_a_check_of_too_many_bytes_is_refused(
    damaged: Path, pages: Callable[..., Pages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_facts, "CHECK_BYTES", 600)
    served = pages(damaged)
    answer = served.ask(f"{PLACE}/check?run=yes")
    assert answer.status == 400
    assert "kstore verify" in answer.text
    assert served.ask(f"{PLACE}/check?run=yes&segment=0").status == 200


def test_a_log_that_lost_flushed_records_says_so_where_it_ends(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1)
        store.append("orders", b"x")
    (root / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 99\n")
    served = pages(root)
    for way in ("", "/records"):
        text = served.read(PLACE + way)
        assert "CorruptRecordError" in text
        assert "recovery point" in text


def test_a_partition_that_cannot_be_read_says_why_on_every_page(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1)
    (root / "orders-0" / "00000000000000000000.log").mkdir()
    served = pages(root)
    text = served.read(PLACE)
    assert "00000000000000000000.log" in text
    assert f'href="{PLACE}/check"' in text
    for way in ("/records", "/batches", "/producers"):
        answer = served.ask(PLACE + way)
        assert answer.status == 500
        assert "00000000000000000000.log" in answer.text


def test_many_segments_come_in_pages_and_one_picture(
    root: Path, pages: Callable[..., Pages], clock: ManualClock
) -> None:
    with kstore.Log.open(root / "orders-0", clock=clock, segment_bytes=150) as log:
        for _ in range(120):
            log.append(b"x" * 40)
            clock.advance(1000)
    served = pages(root, clock=clock)
    rows = [[row for row in cells(served.read(f"{PLACE}?page={page}")) if len(row) == 9][1:] for page in (1, 2, 3)]
    assert [len(each) for each in rows] == [50, 50, 20]
    assert rows[2][-1][4] == "active"
    assert len(re.findall(r"<rect", served.read(PLACE))) < 100


def test_what_is_given_with_c_decides(root: Path, pages: Callable[..., Pages], clock: ManualClock) -> None:
    with kstore.Log.open(root / "orders-0", clock=clock) as log:
        log.append(b"x")
    assert "kept: no limit is set" in pages(root, clock=clock).read(PLACE)
    assert "kept by retention.ms" in pages(root, clock=clock, config={"retention.ms": "60000"}).read(PLACE)


def test_of_very_many_segments_in_an_object_store_none_is_explained(
    root: Path, pages: Callable[..., Pages], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(root / "orders-0", segment_bytes=150) as log:
        for _ in range(3):
            log.append(b"x" * 40)
    monkeypatch.setattr("kstore.ui.partition_pages.REMOTE_SEGMENTS", 2)
    served = pages(root)
    assert "<svg" in served.read(PLACE)
    monkeypatch.setattr("kstore.ui.partition_pages.fs.is_mounted", lambda path: True)
    text = served.read(PLACE)
    assert "<svg" not in text
    assert "at most 2 segments are explained" in text


def test_a_log_whose_explanation_takes_long_is_shown_without_it_first(
    rolled: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, explain = threading.Event(), kstore.Log.explain
    monkeypatch.setattr(kstore.Log, "explain", lambda *log, **asked: go_on.wait(60) and explain(*log, **asked))
    viewed = ViewedStore([str(rolled)], clock=clock, patience=0)
    with Server(viewed, interval=0.01) as server:
        served = Pages(server, viewed)
        text = served.read(PLACE)
        assert "are being explained" in text
        assert "<svg" not in text
        go_on.set()
        while "are being explained" in (text := served.read(PLACE)):
            pass
        assert "<svg" in text
    viewed.close()


def test_a_check_of_too_many_segments_is_refused(
    rolled: Path, pages: Callable[..., Pages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_facts, "CHECK_SEGMENTS", 2)
    served = pages(rolled)
    assert served.ask(f"{PLACE}/check?run=yes").status == 400
    assert served.ask(f"{PLACE}/check?run=yes&segment=0").status == 200
