"""The pages change nothing on the disk, take no lock, and load files of their own that are small."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import kstore
from kstore.ui.page_templates import assets
from tests.ui.conftest import Pages

EVERY_PAGE = (
    "/",
    "/?sort=size",
    "/groups",
    "/disk",
    "/plan",
    *(
        f"/partition/orders/0{way}"
        for way in (
            "",
            "?segment=0",
            "?axis=offset",
            "/records",
            "/records?key=k",
            "/records?time=-1h",
            "/record?offset=3",
            "/batches",
            "/producers",
            "/check?run=yes",
        )
    ),
)


def state(root: Path) -> dict[str, tuple[int, ...]]:
    """All files below a directory, and beside it, with what changes when somebody writes one."""
    found = {}
    for path in [root, *root.parent.rglob("*")]:
        status = path.stat()
        found[str(path)] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
    return found


def fill(store: kstore.Store) -> None:
    store.create_topic("orders", partitions=1, config={"segment.bytes": "300"})
    for number in range(12):
        store.append("orders", b"value %d" % number, key=b"k")
    store.commit_offsets("billing", {("orders", 0): 3})
    store.log("orders", 0).append_many([b"open"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)


def test_no_page_changes_a_file(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        fill(store)
    before = state(root)
    served = pages(root)
    for path in EVERY_PAGE:
        served.read(path)
    events = served.events("/live/partition/orders/0")
    events.next()
    assert state(root) == before


def test_a_writer_may_be_open_and_may_open_again_while_pages_are_read(root: Path, pages: Callable[..., Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        fill(store)
        served = pages(root)
        for path in EVERY_PAGE:
            served.read(path)
        store.append("orders", b"x")
        before = state(root)
        for path in EVERY_PAGE:
            served.read(path)
        assert state(root) == before
    with kstore.Store.open(root, background=False) as store:
        store.append("orders", b"y")
        assert "14" in served.read("/partition/orders/0")


def test_what_the_pages_load_is_theirs_and_small(orders: Pages) -> None:
    total = 0
    for path in EVERY_PAGE:
        text = orders.read(path.replace("offset=3", "offset=0"))
        loaded = re.findall(r'(?:src|<link[^>]*href)="([^"]+)"', text)
        assert set(loaded) == {"data:,", "/static/page.css", "/static/pictures.css", "/static/live.js"}
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    for name, (data, kind) in assets().items():
        answer = orders.ask(f"/static/{name}")
        assert answer.text.encode() == data
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        assert b"http" not in data
        total += len(data)
    assert 1000 < total <= 100 * 1024


def test_the_script_is_about_a_hundred_lines(orders: Pages) -> None:
    lines = [line for line in orders.read("/static/live.js").splitlines() if line.strip()]
    assert 50 < len(lines) < 130


def test_every_page_is_named_and_has_one_heading_and_landmarks(orders: Pages) -> None:
    for path in EVERY_PAGE:
        text = orders.read(path.replace("offset=3", "offset=0"))
        assert '<html lang="en">' in text
        assert len(re.findall(r"<title>[^<]+ . kstore</title>", text)) == 1
        for tag in ("h1", "main", "footer"):
            assert len(re.findall(rf"<{tag}\b", text)) == 1, (path, tag)
        assert len(re.findall(r'\bid="([^"]+)"', text)) == len(set(re.findall(r'\bid="([^"]+)"', text))), path
        for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
            assert not re.search(r"<th(?![^>]*\bscope=)(?!ead)", table), path
