"""Opens the store of a command: to show what it has, or to change it."""

from __future__ import annotations

import argparse
from typing import Any

from kstore.errors import UnknownTopicOrPartitionError
from kstore.store import catalog
from kstore.store.store import Store

__all__ = ["add_directories", "open_to_change", "open_to_show"]


def add_directories(parser: argparse.ArgumentParser) -> None:
    """Add the option for a store of several log directories."""
    parser.add_argument(
        "--log-dir", action="append", default=[], metavar="DIR",
        help="another log directory of the same store; may be given again",
    )  # fmt: skip


def open_to_show(paths: list[str]) -> Store:
    """Open a store in mode "r"."""
    return Store.open(paths, "r", background=False)


def open_to_change(paths: list[str], **settings: Any) -> Store:
    """Open an existing store for writing. Raises `UnknownTopicOrPartitionError` for a directory without partitions."""
    if not catalog.look(catalog.real_paths(paths)).entries:
        raise UnknownTopicOrPartitionError(f"there is no partition in {', '.join(paths)}")
    return Store.open(paths, background=False, **settings)
