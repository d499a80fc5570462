"""The pages of a directory: rows with sizes and lags, totals, groups, what takes the space; all in parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.files.stream_positions import StreamPositions, write_positions
from kstore.log.hosted_log import HostedLog
from kstore.ui.directory_facts import PAGE_ROWS, Paged
from tests.conftest import ManualClock
from tests.ui.conftest import Pages


def cells(text: str) -> list[list[str]]:
    """The texts of the cells of each row of the page's tables."""
    rows = re.findall(r"<tr\b.*?</tr>", text, re.DOTALL)
    found = [re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[" ".join(re.sub(r"<[^>]+>", "", cell).split()) for cell in row] for row in found]


def test_a_row_has_offsets_size_rate_newest_time_and_lag(
    root: Path, pages: Callable[..., Pages], clock: ManualClock
) -> None:
    with kstore.Store.open(root, background=False, clock=clock) as store:
        store.create_topic("orders", partitions=1, config={"segment.bytes": "400"})
        for _ in range(20):
            store.append("orders", b"an apple")
            clock.advance(500)
        store.log("orders", 0).delete_records(3)
        store.commit_offsets("billing", {("orders", 0): 12})
        store.commit_offsets("shipping", {("orders", 0): 19})
        log = store.log("orders", 0)
        segments, size = len(log.segments), sum(segment.size_bytes for segment in log.segments)
    (row,) = [row for row in cells(pages(root, clock=clock).read("/?topic=orders")) if row[0] == "orders-0"]
    assert row[1:3] == ["3", "20"]
    assert row[3] == kstore.base.numbers.size(size)
    assert row[4] == str(segments)
    assert row[5] == "2/s"
    assert row[6] == "2023-11-14 22:13:29.500"
    assert row[7] == "8 billing (and 1 more)"


def test_a_partition_that_a_group_has_not_read_counts_from_its_log_start(
    root: Path, pages: Callable[..., Pages]
) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=2)
        store.append_many("orders", [b"an apple"] * 9, partition=1)
        store.log("orders", 1).delete_records(2)
        store.commit_offsets("billing", {("orders", 0): 0})
    found = {row[0]: row[7] for row in cells(pages(root).read("/?topic=orders")) if row[0].startswith("orders-")}
    assert found == {"orders-0": "0 billing", "orders-1": "7 billing"}


def test_a_directory_without_partitions_says_so(root: Path, pages: Callable[..., Pages]) -> None:
    assert "There is no partition in this directory yet" in pages(root).read("/")


def test_topics_are_filtered_by_a_part_of_their_name(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        for topic in ("orders", "orders.dead", "clicks"):
            store.create_topic(topic, partitions=2)
    text = pages(root).read("/?topic=orders")
    assert [row[0] for row in cells(text)[1:]] == ["orders-0", "orders-1", "orders.dead-0", "orders.dead-1"]
    assert re.search(r"2 topics,\s+4 partitions", text)
    assert "No topic contains" in pages(root).read("/?topic=nothing")


def test_the_largest_partitions_come_first_if_asked(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        for topic, count in (("a", 1), ("b", 9), ("c", 4)):
            store.create_topic(topic, partitions=1)
            for _ in range(count):
                store.append(topic, b"x" * 100)
    assert [row[0] for row in cells(pages(root).read("/?sort=size"))[1:]] == ["b-0", "c-0", "a-0"]


def test_rows_come_in_pages(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=2 * PAGE_ROWS + 1)
    served = pages(root)
    names = [[row[0] for row in cells(served.read(f"/?page={page}"))[1:]] for page in (1, 2, 3, 4)]
    assert [len(each) for each in names] == [PAGE_ROWS, PAGE_ROWS, 1, 1]
    assert names[2] == names[3] == [f"orders-{2 * PAGE_ROWS}"]
    assert 'rel="next" href="/?topic=&amp;sort=name&amp;page=2"' in served.read("/")


@pytest.mark.parametrize(
    ("rows", "number", "expected"),
    [(0, 1, (1, 0, 0)), (50, 1, (1, 0, 50)), (51, 2, (2, 50, 51)), (51, 9, (2, 50, 51)), (100, 2, (2, 50, 100))],
)
def test_a_page_is_a_part_of_the_rows(rows: int, number: int, expected: tuple[int, int, int]) -> None:
    paged = Paged.of(rows, number)
    assert (paged.number, paged.first, paged.end) == expected


def test_the_first_page_of_ten_thousand_partitions_opens_the_logs_of_its_rows_only(
    root: Path, pages: Callable[..., Pages], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10_000):
        (root / f"topic-{number // 100}-{number % 100}").mkdir()
    opened: list[str] = []
    open_to_read = HostedLog.open_to_read
    monkeypatch.setattr(
        HostedLog, "open_to_read", lambda path, *more: (opened.append(path), open_to_read(path, *more))[1]
    )
    text = pages(root).read("/")
    assert re.search(r"100 topics,\s+10,000 partitions", text)
    assert len(cells(text)) == PAGE_ROWS + 1
    assert len(opened) == len(set(opened)) == PAGE_ROWS


def test_a_page_that_waits_for_sizes_and_positions_is_shown_without_them(root: Path) -> None:
    from kstore.ui.directory_facts import Asked, directory_rows
    from kstore.ui.viewed_store import ViewedStore

    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1)
    viewed = ViewedStore([str(root)], clock=lambda: 0, patience=0)
    viewed._sizes._max_age = viewed._groups._max_age = -1
    found = directory_rows(viewed, Asked("", "size", 1))
    assert found.rows[0][0].place.topic == "orders"
    assert (found.total_bytes, found.rows[0][1]) in ((None, None), (0, []), (None, []), (0, None))
    viewed.close()


def test_a_partition_that_lost_flushed_records_is_marked(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        for topic in ("bad", "good"):
            store.create_topic(topic, partitions=1)
            store.append(topic, b"x")
    (root / "recovery-point-offset-checkpoint").write_text("0\n2\nbad 0 99\ngood 0 1\n")
    rows = {row[0]: row for row in cells(pages(root).read("/"))}
    assert rows["bad-0 damaged"][2] == rows["good-0"][2] == "1"


def test_a_partition_that_cannot_be_read_has_the_error_in_its_row(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("bad", partitions=1)
        store.create_topic("good", partitions=1)
        store.append("good", b"x")
    (root / "bad-0" / "00000000000000000000.log").mkdir()
    rows = {row[0]: row for row in cells(pages(root).read("/"))}
    assert len(rows["bad-0"]) == 2
    assert "00000000000000000000.log" in rows["bad-0"][1]
    assert rows["good-0"][2] == "1"


def test_groups_have_positions_and_lags(root: Path, pages: Callable[..., Pages], clock: ManualClock) -> None:
    with kstore.Store.open(root, background=False, clock=clock) as store:
        store.create_topic("orders", partitions=1)
        for _ in range(7):
            store.append("orders", b"x")
        store.commit_offsets("billing", {("orders", 0): 3, ("gone", 1): 5}, metadata="invoice 17")
    write_positions(str(root), StreamPositions("lake", 1_700_000_000_000, {("orders", 0): 6}))
    served = pages(root)
    rows = cells(served.read("/groups"))[1:]
    assert rows == [
        ["billing", "gone-1", "5", "there is no topic &#39;gone&#39;", "2023-11-14 22:13:20.000", *CONSUMER],
        ["billing", "orders-0", "3", "7", "4", "2023-11-14 22:13:20.000", *CONSUMER],
        ["lake", "orders-0", "6", "7", "1", "2023-11-14 22:13:20.000", "streaming query or export", ""],
    ]
    assert [row[0] for row in cells(served.read("/groups?group=la"))[1:]] == ["lake"]
    assert "No group contains" in served.read("/groups?group=x")


CONSUMER = ["consumer group", "invoice 17"]


def test_a_directory_without_groups_says_so(orders: Pages) -> None:
    assert "No group has committed a position" in orders.read("/groups")


def test_the_disk_page_says_what_takes_the_space_and_what_would_free_it(
    root: Path, pages: Callable[..., Pages], clock: ManualClock
) -> None:
    with kstore.Store.open(root, background=False, clock=clock) as store:
        store.create_topic("big", partitions=1, config={"segment.bytes": "1000", "retention.ms": "36000000"})
        store.create_topic("small", partitions=1)
        for _ in range(50):
            store.append("big", b"x" * 100)
            clock.advance(600_000)
        store.append("small", b"x")
    text = pages(root, clock=clock).read("/disk")
    assert "<svg" in text
    assert "retention.ms=" in text
    tables = cells(text)
    assert [row[0] for row in tables if row[0] in ("big-0", "small-0")] == ["big-0", "small-0"]


def test_the_disk_page_of_a_directory_that_vanished_has_the_error(root: Path, pages: Callable[..., Pages]) -> None:
    served = pages(root)
    root.rmdir()
    answer = served.ask("/")
    assert answer.status == 500
    assert "No such file or directory" in answer.text
    assert "No such file or directory" in served.ask("/disk").text
