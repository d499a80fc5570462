"""The option `--option` with the settings of a backup's object store."""

from __future__ import annotations

import argparse

from kstore.cli.command_options import UsageError

__all__ = ["add_options", "options_of"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--option`, which takes a configuration key of obstore."""
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the object store, like region=eu-central-1; may be given again",
    )


def options_of(arguments: argparse.Namespace) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for text in arguments.option:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--option takes NAME=VALUE, and {text[:60]!r} has no name or no '='")
        found[name] = value
    return found or None
