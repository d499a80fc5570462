"""Makes docs/ui.png: the page of a partition in Chromium. `make docs` runs it where Chromium is installed."""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from playwright.sync_api import sync_playwright

import kstore
from kstore.testing import ManualClock
from kstore.ui.server import Server
from kstore.ui.viewed_store import ViewedStore

PICTURE = Path(__file__).with_name("ui.png")
SETTINGS = {"log.retention.ms": "1800000", "segment.bytes": "9000"}


def make_store(root: str, clock: ManualClock) -> kstore.Store:
    """Write an hour of orders, of which retention keeps half, and return the open store."""
    warnings.simplefilter("ignore", kstore.ConfigWarning)  # they say what the page shows
    store = kstore.Store.open(root, clock=clock, background=False, config=SETTINGS)
    store.create_topic("orders")
    for number in range(700):
        clock.advance(5_000)
        store.append("orders", b'{"order": %d, "tea": "oolong", "grams": %d}' % (number, number % 400), key=b"anna")
        store.run_housekeeping()
    store.flush()
    return store


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("docs/ui.png stays as it is: there is no chromium", file=sys.stderr)
        return
    clock = ManualClock(1_370_077_200_000)
    with (
        tempfile.TemporaryDirectory() as root,
        make_store(f"{root}/data", clock),
        Server(ViewedStore([f"{root}/data"], config=SETTINGS, clock=clock, title="data")) as server,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page(viewport={"width": 1000, "height": 960})
        page.goto(server.address("/partition/orders/0"))
        page.screenshot(path=PICTURE)


if __name__ == "__main__":
    main()
