"""The options about an object store: `--option` with its settings, and those of the commands that read a prefix."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kstore.cli.command_options import UsageError

__all__ = ["add_options", "add_reading", "given_to_read", "options_of"]


def add_options(parser: argparse._ActionsContainer, mark: str = "") -> None:
    """Add `--option`, which takes a configuration key of obstore."""
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"{mark}a setting of the object store, like region=eu-central-1; may be given again",
    )


def add_reading(parser: argparse.ArgumentParser, *, until: Sequence[str] = (), mark: str = "") -> None:
    """Add the options of a command that reads a prefix. `until` has more names of `--backup-until`.

    `mark` begins the text of each option.
    """
    group = parser.add_argument_group("of a URL, or of a directory that has a backup")
    add_options(group, mark)
    group.add_argument("--cache", metavar="DIR", help=f"{mark}keep what is fetched in this directory")
    group.add_argument(
        *until,
        "--backup-until",
        dest="backup_until",
        metavar="TIME",
        help=f"{mark}the state of the backup at this time, as in kstore restore --until",
    )
    group.add_argument(
        "--with-deleted",
        action="store_true",
        help=f"{mark}also what retention has deleted, as long as the backup has it",
    )


def given_to_read(asked: argparse.Namespace) -> list[str]:
    """Return which of the options of `add_reading` are on the command line."""
    names = {
        "option": "--option",
        "cache": "--cache",
        "backup_until": "--backup-until",
        "with_deleted": "--with-deleted",
    }
    return [name for attribute, name in names.items() if getattr(asked, attribute)]


def options_of(arguments: argparse.Namespace) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for text in arguments.option:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--option takes NAME=VALUE, and {text[:60]!r} has no name or no '='")
        found[name] = value
    return found or None
