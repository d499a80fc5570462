"""The pages in a real browser: Debian's Chromium, driven by Playwright. Pictures of them are kept in `build/pictures`.

`KSTORE_CHROMIUM` names another binary; `KSTORE_BROWSER_REQUIRED=1` turns a skip into a failure.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kstore
from kstore.files.stream_positions import StreamPositions, write_positions
from tests.conftest import ManualClock
from tests.ui.conftest import Pages, serving
from tests.ui.test_hostile_requests import BREAKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

CHROMIUM = shutil.which(os.environ.get("KSTORE_CHROMIUM", "chromium"))
PICTURES = Path(__file__).parents[2] / "build" / "pictures"
HOUR = 3_600_000
PLACE = "/partition/orders/0"
EVERY_PAGE = {
    "partitions": "/",
    "groups": "/groups",
    "disk": "/disk",
    "plan": "/plan?rate=0.2&record_bytes=150&segment.bytes=16384&retention.ms=10m&other.segment.ms=5m&days=2",
    "segments": PLACE,
    "segments-over-offsets": f"{PLACE}?axis=offset",
    "segment": f"{PLACE}?segment=0",
    "records": f"{PLACE}/records",
    "search": f"{PLACE}/records?key=key-3",
    "record": f"{PLACE}/record?offset=17",
    "batches": f"{PLACE}/batches?offset=4",
    "producers": f"{PLACE}/producers",
    "check": f"{PLACE}/check?run=yes",
    "damage": "/partition/damaged/0/records?offset=0",
    "findings": "/partition/damaged/0/check?run=yes",
    "error": "/partition/nothing/0",
}

COLOUR_RULES = ["color-contrast", "link-in-text-block"]
"""The rules of axe-core whose results depend on colours."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = (
        pytest.importorskip("playwright.sync_api")
        if not _is_required()
        else __import__("playwright.sync_api", fromlist=["sync_api"])
    )
    if CHROMIUM is None:
        assert not _is_required(), "there is no chromium in PATH or at KSTORE_CHROMIUM"
        pytest.skip("there is no chromium in PATH or at KSTORE_CHROMIUM")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def _is_required() -> bool:
    return os.environ.get("KSTORE_BROWSER_REQUIRED") == "1"


class Window:
    """A window of the browser that has opened the printed address, and all that its pages did."""

    def __init__(self, browser: Browser, pages: Pages, **options: Any) -> None:
        self.pages = pages
        self._context = browser.new_context(**options)
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(15_000)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("console", lambda message: self.complaints.append(f"console: {message.text}"))
        self.page.goto(pages.server.address())

    def open(self, path: str) -> Page:
        self.page.goto(self.pages.server.base + path)
        return self.page

    def live(self, name: str) -> Locator:
        """The element that shows a value of the stream."""
        return self.page.locator(f'[data-live="{name}"]').first

    def close(self) -> None:
        self._context.close()
        foreign = [url for url in self.requests if not url.startswith((f"{self.pages.server.base}/", "data:"))]
        assert foreign == []
        assert [each for each in self.complaints if "404 (Not Found)" not in each] == []


@pytest.fixture
def window(browser: Browser) -> Iterator[Callable[..., Window]]:
    """`window(pages)`: a window. At the end nothing must have been complained about or fetched from elsewhere."""
    opened: list[Window] = []

    def open_window(pages: Pages, **options: Any) -> Window:
        opened.append(Window(browser, pages, **options))
        return opened[-1]

    yield open_window
    for each in opened:
        each.close()


def has_text(locator: Locator, text: str | re.Pattern[str]) -> None:
    from playwright.sync_api import expect

    expect(locator).to_have_text(text, timeout=15_000)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The pages of a directory that has something for every page, and a partition with a damaged batch."""
    root, clock = tmp_path_factory.mktemp("shop") / "data", ManualClock()
    with kstore.Store.open(root, background=False, clock=clock) as store:
        config = {"segment.bytes": "1500", "retention.ms": str(2 * HOUR), "segment.ms": str(HOUR)}
        store.create_topic("orders", partitions=1, config=config)
        store.create_topic("customers", partitions=2, config={"cleanup.policy": "compact"})
        store.create_topic("damaged", partitions=1)
        log = store.log("orders", 0)
        for number in range(24):
            store.append(
                "orders",
                b'{"number": %d, "items": [{"fruit": "apple", "count": 3}]}' % number,
                key=b"key-%d" % (number % 4),
                headers=[("source", b"web")],
            )
            store.append("customers", b"name %d" % number, key=b"customer-%d" % (number % 3))
            store.append("damaged", b"value %d" % number)
            clock.advance(HOUR // 12)
        log.append_many([b"paid"] * 3, producer_id=7, producer_epoch=0, base_sequence=0)
        log.append_many([b"pending"], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        store.commit_offsets("billing", {("orders", 0): 12, ("customers", 1): 2}, metadata="invoice 17")
        damaged = Path(store.log("damaged", 0).segments[0].path)
    data = bytearray(damaged.read_bytes())
    data[data.index(b"value 20")] ^= 0xFF
    damaged.write_bytes(data)
    write_positions(str(root), StreamPositions("lake", clock(), {("orders", 0): 30}))
    with serving() as serve:
        yield serve(root, clock=clock)


def test_axe_finds_nothing_on_any_page_in_light_and_dark(filled: Pages, window: Callable[..., Window]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shown = window(filled, color_scheme="light", viewport={"width": 1200, "height": 900})
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, path in EVERY_PAGE.items():
        page = shown.open(path)
        page.screenshot(path=PICTURES / f"ui-{name}-light.png", full_page=True)
        results = Axe().run(page, options={"resultTypes": ["violations"]})
        assert results.violations_count == 0, f"{path}: {results.generate_report()}"
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=PICTURES / f"ui-{name}-dark.png", full_page=True)
        results = Axe().run(page, options={"resultTypes": ["violations"], "runOnly": COLOUR_RULES})
        assert results.violations_count == 0, f"{path} in the dark: {results.generate_report()}"
        page.emulate_media(color_scheme="light")


def test_pages_fit_into_a_window_of_400_pixels(filled: Pages, window: Callable[..., Window]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shown = window(filled, viewport={"width": 400, "height": 800})
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, path in EVERY_PAGE.items():
        page = shown.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
        wide = page.evaluate(
            "[...document.querySelectorAll('.scroll, .kstore-scroll, pre')].filter(e => e.scrollWidth > e.clientWidth"
            " && (e.tabIndex !== 0 || !e.getAttribute('aria-label'))).length"
        )
        assert wide == 0, path
        page.screenshot(path=PICTURES / f"ui-{name}-narrow.png", full_page=True)
    assert Axe().run(page).violations_count == 0


def test_a_growing_log_is_followed(root: Path, pages: Callable[..., Pages], window: Callable[..., Window]) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1, config={"segment.bytes": "300"})
        store.append("orders", b"first")
        shown = window(pages(root))
        has_text(shown.live("orders-0/end"), "1")
        has_text(shown.page.get_by_role("status"), "Live")
        store.append("orders", b"second")
        has_text(shown.live("orders-0/end"), "2")
        page = shown.open(PLACE)
        has_text(shown.live("segments"), "1")
        for number in range(20):
            store.append("orders", b"value %d" % number)
        has_text(shown.live("end"), "22")
        last = str(store.log("orders", 0).segments[-1].base_offset)
        page.locator("#segments tbody th", has_text=re.compile(rf"^{last}\b")).wait_for()
        page.locator(f'#timeline svg a[href*="segment={last}#"]').wait_for()
        shown.open(f"{PLACE}/records")
        store.append("orders", b"the newest value")
        page.locator("#records tbody tr:first-child", has_text="the newest value").wait_for()


def test_the_focus_stays_where_it_is_while_a_page_follows(
    root: Path, pages: Callable[..., Pages], window: Callable[..., Window]
) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1)
        store.append("orders", b"first")
        shown = window(pages(root))
        page = shown.open(f"{PLACE}/records")
        page.get_by_role("link", name="0", exact=True).last.focus()
        store.append("orders", b"second")
        page.locator("#records tbody tr", has_text="second").wait_for()
        assert page.evaluate("document.activeElement.getAttribute('href')") == f"{PLACE}/record?offset=0"


def test_a_record_is_found_by_time_and_by_key(filled: Pages, window: Callable[..., Window]) -> None:
    shown = window(filled)
    page = shown.open(f"{PLACE}/records")
    page.get_by_label("From time").fill("2023-11-14T22:38:21Z")
    page.keyboard.press("Enter")
    has_text(page.locator("#records tbody th").first, "6")
    page.locator("#records tbody th a").first.click()
    has_text(page.get_by_role("heading", level=2), "Record 6")
    page.get_by_text('"number": 6').first.wait_for()
    page.go_back()
    page.get_by_label("Text, or bytes").fill("key-3")
    page.get_by_role("button", name="Find").click()
    has_text(page.locator("#records tbody th").first, "3")


def test_a_segment_is_explained_by_a_click(filled: Pages, window: Callable[..., Window]) -> None:
    explanation = filled.viewed.log(filled.viewed.place("orders", 0)).explain(at=filled.viewed.clock())
    segment = explanation.segments[1]
    shown = window(filled)
    page = shown.open(PLACE)
    page.locator(f'#timeline svg a[href*="segment={segment.base_offset}#"]').first.click()
    page.get_by_role("heading", name=f"Segment {segment.base_offset}").wait_for()
    page.get_by_text(segment.explanation).wait_for()
    page.get_by_role("link", name="Close").click()
    page.wait_for_url(lambda url: "segment=" not in url)


def test_a_segment_is_explained_by_the_keyboard_alone(filled: Pages, window: Callable[..., Window]) -> None:
    shown = window(filled)
    page = shown.open(PLACE)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('svg') !== null"):
            break
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=re.compile(r"^Segment \d+")).wait_for()


def test_a_plan_is_played_with(filled: Pages, window: Callable[..., Window]) -> None:
    shown = window(filled)
    page = shown.open(PLACE)
    page.get_by_role("link", name="Plan with these settings").click()
    assert page.get_by_label("segment.bytes").first.input_value() == "1500"
    page.get_by_role("group", name="Compared with").get_by_label("retention.ms").fill("30m")
    page.keyboard.press("Enter")
    page.locator("svg", has_text="retention.ms = 30 minutes").wait_for()


def test_damage_is_shown_where_it_is(filled: Pages, window: Callable[..., Window]) -> None:
    shown = window(filled)
    page = shown.open("/partition/damaged/0/records?offset=0")
    has_text(page.get_by_role("alert"), re.compile("CorruptRecordError"))
    page.get_by_role("link", name="Check").click()
    page.get_by_role("button", name="Check").click()
    page.get_by_role("heading", name=re.compile(r"^\d+ errors?$")).wait_for()
    page.get_by_text("CRC").first.wait_for()


def test_a_writer_and_a_partition_may_go_and_come_back(
    root: Path, pages: Callable[..., Pages], window: Callable[..., Window]
) -> None:
    with kstore.Log.open(root / "orders-0") as log:
        log.append_many([b"1", b"2"])
    shown = window(pages(root))
    page = shown.open(PLACE)
    with kstore.Log.open(root / "orders-0") as log:
        log.append(b"3")
        has_text(shown.live("end"), "3")
    shutil.rmtree(root / "orders-0")
    has_text(page.get_by_role("status"), re.compile("orders"))
    with kstore.Log.open(root / "orders-0") as log:
        log.append(b"again")
        has_text(shown.live("end"), "1")
        has_text(page.get_by_role("status"), "Live")


def test_a_server_that_stops_is_told(root: Path, pages: Callable[..., Pages], browser: Browser) -> None:
    served = pages(root)
    shown = Window(browser, served)
    has_text(shown.page.get_by_role("status"), "Live")
    served.server.stop()
    has_text(shown.page.get_by_role("status"), re.compile("^Not live"))
    shown.page.close()


def test_a_log_of_html_and_scripts_does_nothing(
    root: Path, pages: Callable[..., Pages], window: Callable[..., Window]
) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("onerror.script-x_1", partitions=1)
        for text in BREAKING:
            data = text.encode()
            store.append("onerror.script-x_1", b'{"%s": "%s"}' % (data.replace(b'"', b"'"), b"x"), key=data)
            store.append("onerror.script-x_1", data, key=data, headers=[(text, data)])
        store.commit_offsets(BREAKING[0], {("onerror.script-x_1", 0): 3}, metadata=BREAKING[1])
    shown = window(pages(root))
    place = "/partition/onerror.script-x_1/0"
    for path in ("/", "/groups", "/disk", place, f"{place}/records", f"{place}/record?offset=1", f"{place}/batches"):
        page = shown.open(path)
        page.locator("main").wait_for()
        assert page.evaluate("typeof window.pwned") == "undefined"
        assert page.locator("img, iframe, object, embed, script:not([src])").count() == 0
    page = shown.open(f"{place}/records")
    assert page.get_by_text(BREAKING[0]).count() > 0


def test_everything_but_the_live_part_works_without_scripts(filled: Pages, window: Callable[..., Window]) -> None:
    shown = window(filled, java_script_enabled=False)
    page = shown.page
    page.get_by_label("Topic contains").fill("orders")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="orders-0").click()
    page.locator("#segments tbody th a").first.click()
    page.get_by_role("heading", name="Segment 0").wait_for()
    page.get_by_role("link", name="Records", exact=True).click()
    page.get_by_label("From offset").fill("17")
    page.keyboard.press("Enter")
    page.locator("#records tbody th a").first.click()
    has_text(page.get_by_role("heading", level=2), "Record 17")
    page.locator("summary", has_text="Bytes").last.click()
    page.get_by_text("00000000  7b 22").wait_for()
    page.get_by_role("link", name="Groups").click()
    page.get_by_text("invoice 17").first.wait_for()
