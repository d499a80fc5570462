"""Options that subcommands share: how settings are given on a command line, and how the help tells of them.

A subcommand's parser gets them by `add_config` and `add_settings`; `given` hands out what `config=` of a log or a store
takes. Names, ranges and help come from the tables of settings, so that the command line says what the errors say.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from kstore.brokerconfig import BrokerConfig
from kstore.config import LogConfig, from_properties
from kstore.errors import ConfigError
from kstore.settings import Setting, unknown

__all__ = ["Parser", "UsageError", "add_config", "add_isolation", "add_settings", "find", "given", "whole"]

_DASHED_VALUE = re.compile(r"-[0-9][0-9a-z]*")
_ROWS = {row.name: row for row in (*LogConfig.settings, *BrokerConfig.settings)}


class UsageError(ConfigError):
    """A command line that cannot be understood."""

    exit_code = 2


class Parser(argparse.ArgumentParser):
    """Takes a subcommand's arguments apart; a mistake in them is a `UsageError`.

    The value of an option may begin with a dash if a digit follows, as in `--from -1h`.
    """

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # type: ignore[override]
        """Take the arguments apart."""
        words: list[str] = []
        for word in args:
            if words and _DASHED_VALUE.fullmatch(word) and self._wants_value(words[-1]):
                words[-1] += f"={word}"
            else:
                words.append(word)
        return super().parse_args(words, namespace)

    def _wants_value(self, word: str) -> bool:
        action = self._option_string_actions.get(word)
        return word.startswith("--") and action is not None and action.nargs is None

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ('{self.prog} --help' tells more)")


def add_isolation(parser: argparse.ArgumentParser) -> None:
    """Add `--isolation`, for what reads records."""
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="read_committed: no record of a transaction that is open or was aborted",
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, which takes settings by Kafka's names, or a broker's file of them."""
    parser.add_argument(
        "-c",
        "--config",
        action=_Config,
        metavar="NAME=VALUE|FILE",
        help="a setting by Kafka's topic or broker name, or a server.properties, which brings Kafka's default of "
        "retention.ms; may be given again ('kstore config' lists the names)",
    )


def add_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add an option for each of these settings, named as it is: `retention.ms` is `--retention-ms`."""
    for name in names:
        row = _ROWS[name]
        parser.add_argument(
            f"--{name.replace('.', '-')}", action=_Set, metavar=(row.unit or row.kind).upper(), help=row.help, const=row
        )


def given(arguments: argparse.Namespace) -> dict[str, str] | None:
    """What was given by these options, under Kafka's names; None if nothing was."""
    return getattr(arguments, "settings", None)


def whole(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    """An argument's `type`: a whole number of `[low, high]`."""

    def parse(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if not low <= found <= high:
            wanted = f"{low} is the least" if found < low else f"{high} is the most"
            raise argparse.ArgumentTypeError(f"it is {found}; {wanted}")
        return found

    return parse


def find(name: str) -> Setting:
    """Find a setting by any of its names; `ConfigError` for a name that none has."""
    for row in _ROWS.values():
        if name in (row.name, row.attribute) or any(name == at.name for at in row.broker_names):
            return row
    known = {at.name for row in _ROWS.values() for at in row.broker_names} | _ROWS.keys()
    raise unknown(name, known)


class _Set(argparse.Action):
    """Takes one setting; its value is checked at once."""

    def __init__(self, const: Setting, **how: Any) -> None:
        super().__init__(const=None, **how)
        self.row = const

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        self.row.parse(values, option_string)
        _take(namespace, {self.row.name: str(values)})


class _Config(argparse.Action):
    """Takes a setting or a file of them; what comes later on the command line wins."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        name, equals, value = str(values).partition("=")
        _take(namespace, {name.strip(): value} if equals else from_properties(str(values)))


def _take(namespace: argparse.Namespace, found: dict[str, str]) -> None:
    namespace.settings = {**(getattr(namespace, "settings", None) or {}), **found}
