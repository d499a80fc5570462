"""Options that several subcommands have, mainly those for settings.

`add_config` and `add_settings` add options to a parser; `given` returns the settings for `config=` of a log or store.
Names, ranges and help come from the tables of settings, so that help and errors agree.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from kstore.base.numbers import LONG_MAX
from kstore.cli import command_times
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import LogConfig, from_properties
from kstore.config.settings import Setting, unknown
from kstore.errors import ConfigError

__all__ = [
    "Parser",
    "UsageError",
    "add_config",
    "add_isolation",
    "add_settings",
    "duration",
    "find",
    "given",
    "seconds",
    "whole",
]

_DASHED_VALUE = re.compile(r"-[0-9][0-9a-z]*")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w|)")
_UNIT_SECONDS = {"ms": 1e-3, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST_SECONDS = 36_500 * 86_400
_ROWS = {row.name: row for row in (*LogConfig.settings, *BrokerConfig.settings)}


class UsageError(ConfigError):
    """The command line is invalid."""

    exit_code = 2


class Parser(argparse.ArgumentParser):
    """Parses a subcommand's arguments; raises `UsageError` for a mistake in them.

    The value of an option may start with a dash if a digit follows, as in `--from -1h`.
    """

    def __init__(self, command: str, about: str | None = None, examples: str | None = None) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(f"kstore {command}", None, about, examples, formatter_class=formatter, allow_abbrev=False)

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # type: ignore[override]
        words: list[str] = []
        for word in args:
            if words and _DASHED_VALUE.fullmatch(word) and self._wants_value(words[-1]):
                words[-1] += f"={word}"
            else:
                words.append(word)
        if any(action.nargs == "?" for action in self._get_positional_actions()):
            return self.parse_intermixed_args(words, namespace)  # otherwise none but the first could follow an option
        return super().parse_args(words, namespace)

    def _wants_value(self, word: str) -> bool:
        action = self._option_string_actions.get(word)
        return word.startswith("--") and action is not None and action.nargs is None

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ('{self.prog} --help' tells more)")


def add_isolation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="read_committed leaves out records of open and aborted transactions",
    )


FROM, UNTIL = ("--from", "--from-time"), ("--until", "--to-time")
OFFSET, UNTIL_OFFSET = ("--offset", "--from-offset"), ("--until-offset", "--to-offset")
"""The options for a range by time and by offset, the same in all subcommands. Kafka's consumer has `--offset`."""


def add_range(
    parser: argparse.ArgumentParser,
    *,
    also_until: Sequence[str] = (),
    since: str = "start at the first record at or after a time",
    until: str = "leave out records at or after this time",
) -> Any:
    """Add the options for a range of records. Return the mutually exclusive group that sets the start.

    `since` and `until` are the help for the options of times.
    """
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "-o", *OFFSET, dest="offset", type=whole(0), metavar="N", help="start at this offset in each partition"
    )
    start.add_argument(*FROM, dest="since", metavar="TIME", help=f"{since}: {command_times.HELP}")
    parser.add_argument(*UNTIL, *also_until, dest="until", metavar="TIME", help=until)
    parser.add_argument(*UNTIL_OFFSET, dest="to_offset", type=whole(0), metavar="N", help="end before this offset")
    return start


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c",
        "--config",
        action=_Config,
        metavar="NAME=VALUE|FILE",
        help="a setting by Kafka's topic or broker name ('kstore config' lists them), or a broker's "
        "server.properties; may be repeated",
    )


def add_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add an option for each of these settings, such as `--retention-ms` for `retention.ms`."""
    for name in names:
        row = _ROWS[name]
        parser.add_argument(
            f"--{name.replace('.', '-')}", action=_Set, metavar=(row.unit or row.kind).upper(), help=row.help, const=row
        )


def given(arguments: argparse.Namespace) -> dict[str, str] | None:
    """Return the settings on the command line, under Kafka's names; None if there are none."""
    return getattr(arguments, "settings", None)


def whole(low: int, high: int = LONG_MAX) -> Callable[[str], int]:
    """Return the `type` of an argument that is a whole number in `[low, high]`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if not low <= number <= high:
            limit = f"{low} is the least" if number < low else f"{high} is the most"
            raise argparse.ArgumentTypeError(f"it is {number}; {limit}")
        return number

    return parse


def seconds(text: str) -> float:
    """Parse an argument: a number of seconds, which may be 0 or infinity."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no number of seconds") from None
    if not number >= 0:  # also refuses NaN
        raise argparse.ArgumentTypeError(f"it is {text[:60]}; 0 is the least")
    return number


def duration(text: str) -> float:
    """Parse an argument: a duration above 0, in seconds or with a unit, as in 500ms, 10s, 30m, 12h, 7d, 2w."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no time: seconds, or 500ms, 10s, 30m, 12h, 7d, 2w")
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]]
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"it is {text}; above 0 and at most {_LONGEST_SECONDS // 86_400} days is allowed"
        )
    return seconds


def find(name: str) -> Setting:
    """Return a setting by any of its names; raises `ConfigError` for an unknown name."""
    for row in _ROWS.values():
        if name in (row.name, row.attribute) or any(name == at.name for at in row.broker_names):
            return row
    known = {at.name for row in _ROWS.values() for at in row.broker_names} | _ROWS.keys()
    raise unknown(name, known)


class _Set(argparse.Action):
    """Checks and stores one setting."""

    def __init__(self, const: Setting, **how: Any) -> None:
        super().__init__(const=None, **how)
        self.row = const

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        self.row.parse(values, option_string)
        _take(namespace, {self.row.name: str(values)})


class _Config(argparse.Action):
    """Stores a setting, or the settings of a file. If a setting is given twice, the last value is used."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        _take(namespace, settings_of(str(values)))


def settings_of(word: str) -> dict[str, str]:
    """Return the setting of `NAME=VALUE`, or those of a file."""
    name, equals, value = word.partition("=")
    return {name.strip(): value} if equals else from_properties(word)


def _take(namespace: argparse.Namespace, settings: dict[str, str]) -> None:
    namespace.settings = {**(getattr(namespace, "settings", None) or {}), **settings}
