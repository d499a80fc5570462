"""Draws the pictures of docs/ from real logs. `make docs` runs it, and a test compares each picture with its file."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import append_picture
import compaction_picture

import kstore
from kstore import cli
from kstore.explained import record_picture

DOCS = Path(__file__).parent
NINE = 1_370_077_200_000  # 2013-06-01T09:00Z
SECOND, MINUTE = 1000, 60_000


def log_picture(root: Path) -> str:
    """Return what `kstore describe --svg` prints for a log of four segments whose first records are deleted."""
    now = NINE
    settings = {"segment_bytes": 2_000, "index_interval_bytes": 380}
    with kstore.Log.open(root / "orders-0", clock=lambda: now, **settings) as log:
        for number in range(43):
            now = NINE + number * 5 * MINUTE
            log.append_many(b"an order of tea, %3d grams" % (7 * number % 400 + row) for row in range(3))
        log.delete_records(9)
    printed = io.StringIO()
    printed.isatty = lambda: False  # type: ignore[method-assign]
    with contextlib.redirect_stdout(printed):
        code = cli.main(["describe", f"{root}/orders-0", "--svg"])
    assert code == 0
    return printed.getvalue()


def retention_picture(root: Path) -> str:
    """Return the life of the first record of a segment that takes 9 minutes to fill (SEMANTICS 6.19)."""
    now = NINE - 90 * SECOND  # checks are at full minutes: the first one 30 seconds after the opening
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kstore.ConfigWarning)  # it says what the picture shows
        store = kstore.Store.open(root, clock=lambda: now, background=False, config={"log.retention.ms": 10 * MINUTE})
    with store:
        store.create_topic("orders", config={"segment.bytes": 16384, "file.delete.delay.ms": MINUTE})
        store.run_housekeeping()
        for number in range(193):
            now = NINE + number * 5 * SECOND
            store.append("orders", b"%-80d" % number)  # a batch of 150 bytes
            store.run_housekeeping()
        return record_picture.picture(store.log("orders", 0).explain(offset=0), prefix="retention")


MADE: dict[str, Callable[[Path], str]] = {
    "log.svg": log_picture,
    "retention.svg": retention_picture,
    "compaction.svg": compaction_picture.of_log,
    "append.svg": append_picture.of_log,
}


def picture(name: str) -> str:
    """Return a picture of docs/, made anew."""
    with tempfile.TemporaryDirectory() as root:
        return MADE[name](Path(root))


def main() -> None:
    for name in MADE:
        (DOCS / name).write_text(picture(name), encoding="utf-8")


if __name__ == "__main__":
    main()
