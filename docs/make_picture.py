"""Draws docs/log.svg: a small log, by `kstore describe --svg`. `make docs` runs it, and a test compares the two."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

import kstore
from kstore import cli

PICTURE = Path(__file__).with_name("log.svg")
NINE = 1_370_077_200_000  # 2013-06-01T09:00Z
MINUTE = 60_000


def make_log(path: Path) -> None:
    """Write a log of four segments whose first records are deleted, at times that are given."""
    now = NINE
    settings = {"segment_bytes": 2_000, "index_interval_bytes": 380}
    with kstore.Log.open(path, clock=lambda: now, **settings) as log:
        for number in range(43):
            now = NINE + number * 5 * MINUTE
            log.append_many(b"an order of tea, %3d grams" % (7 * number % 400 + row) for row in range(3))
        log.delete_records(9)


def picture() -> str:
    """Return what the command prints for the log."""
    with tempfile.TemporaryDirectory() as root:
        make_log(Path(root) / "orders-0")
        printed = io.StringIO()
        printed.isatty = lambda: False  # type: ignore[method-assign]
        with contextlib.redirect_stdout(printed):
            code = cli.main(["describe", f"{root}/orders-0", "--svg"])
    assert code == 0
    return printed.getvalue()


def main() -> None:
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
