"""What the commands of copies say beside their tables: their failures, and what kstore's loggers say meanwhile."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from kstore.base.terminal import escaped

__all__ = ["complain", "told", "warnings"]


def complain(command: str, failures: list[str]) -> int:
    """Print each failure, and give the exit code that they make."""
    for failure in failures:
        print(escaped(f"kstore {command}: {failure}"), file=sys.stderr)
    return 1 if failures else 0


def warnings(command: str) -> AbstractContextManager[None]:
    """Print warnings in the block; errors are not shown: the command tells them at its end."""
    return told(lambda text: complain(command, [f"warning: {text}"]), below=logging.ERROR)


@contextmanager
def told(tell: Callable[[str], object], least: int = logging.WARNING, below: int = logging.CRITICAL) -> Iterator[None]:
    """Have each message of a level of `[least, below)` told in the block, which would else be printed across a table.

    The others are not shown.
    """

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if least <= record.levelno < below:
                tell(record.getMessage())

    logger, teller = logging.getLogger("kstore"), Teller()
    logger.addHandler(teller)
    try:
        yield
    finally:
        logger.removeHandler(teller)
