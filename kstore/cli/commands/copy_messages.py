"""Shows kstore's log messages while `kstore backup` or `kstore replicate` prints its progress or table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from kstore.cli import output

__all__ = ["told", "warnings"]


def warnings(command: str) -> AbstractContextManager[None]:
    """Print warnings during the block. Errors are not shown: the command prints them at its end."""
    return told(lambda text: output.complain(command, [f"warning: {text}"]), below=logging.ERROR)


@contextmanager
def told(tell: Callable[[str], object], least: int = logging.WARNING, below: int = logging.CRITICAL) -> Iterator[None]:
    """Pass each message with a level in `[least, below)` to `tell` during the block; other messages are not shown.

    Without this the messages would be printed into the table.
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
