"""What kstore's loggers say while a command of copies shows its table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from kstore.cli import output

__all__ = ["told", "warnings"]


def warnings(command: str) -> AbstractContextManager[None]:
    """Print warnings in the block; errors are not shown: the command tells them at its end."""
    return told(lambda text: output.complain(command, [f"warning: {text}"]), below=logging.ERROR)


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
