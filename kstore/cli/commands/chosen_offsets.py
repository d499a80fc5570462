"""Offsets as they are written on the command line: a number, an end of the log, or a time."""

from __future__ import annotations

import argparse
import re
from typing import Literal, NamedTuple

from kstore.base.numbers import LONG_MAX
from kstore.cli import command_times
from kstore.errors import ConfigError
from kstore.log.log import Log

__all__ = ["OFFSET_FORMS", "ChosenOffset", "chosen_offset"]

OFFSET_FORMS = (
    "earliest, latest, an offset, or a time (the first offset whose timestamp is at or after it, the log end if there "
    "is none): ISO 8601, or -1h, -30m, -2d; a whole number is an offset"
)


class ChosenOffset(NamedTuple):
    """An offset that depends on the log. Immutable."""

    kind: Literal["earliest", "latest", "offset", "time"]
    number: int = 0
    """The offset, or the time in milliseconds since the epoch."""

    def of(self, log: Log) -> int:
        """Return the offset in a log; a given number may be outside of the log."""
        if self.kind == "offset":
            return self.number
        if self.kind == "earliest":
            return log.log_start_offset
        end = log.log_end_offset  # before a search, so that a record that comes meanwhile is not passed over
        found = log.offset_for_timestamp(self.number) if self.kind == "time" else None
        return end if found is None else found.offset


def chosen_offset(text: str) -> ChosenOffset:
    """Parse an argument."""
    if text == "earliest":
        return ChosenOffset("earliest")
    if text == "latest":
        return ChosenOffset("latest")
    if re.fullmatch("[0-9]{1,19}", text):
        if int(text) > LONG_MAX:
            raise argparse.ArgumentTypeError(f"it is {text}; {LONG_MAX} is the most")
        return ChosenOffset("offset", int(text))
    try:
        return ChosenOffset("time", max(command_times.parse(text), 0))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{error}; earliest, latest and offsets are allowed, too") from None
