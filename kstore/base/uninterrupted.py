"""Runs work that no interrupt may break, in a separate thread, since Python raises interrupts in the main thread.

If no thread can be started, the main thread does the work and delays Ctrl-C. Invariant: the work takes and releases its
locks itself, since a second interrupt may end the main thread's wait for it at any instruction.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from kstore.base import threads

T = TypeVar("T")

_LOOK_S = 0.5  # the longest wait without a check: a signal that comes just before a wait does not end it


class GivenUp(BaseException):
    """Raised inside the work if an interrupt has come and the work may still stop; `run` never raises it."""


@contextmanager
def _put_off(interrupts: list[BaseException]) -> Iterator[None]:
    """Record Ctrl-C instead of raising it, while the work runs in the main thread."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # Ctrl-C is ignored, or the program has its own handler
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: interrupts.append(KeyboardInterrupt()))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run(work: Callable[[Callable[[], None]], T]) -> T:
    """Run `work` to its end even if an interrupt comes; return its result, or raise its error.

    The interrupt is raised once the work has ended. The argument of `work` is a function that raises `GivenUp` if an
    interrupt has come; `work` calls the function before it changes anything.
    """
    interrupts: list[BaseException] = []

    def check() -> None:
        if interrupts:
            raise GivenUp

    if threading.current_thread() is not threading.main_thread():
        return work(check)
    results: list[T] = []
    errors: list[BaseException] = []
    ended = threading.Lock()  # not an Event: an interrupt in its Python code could leave its own lock taken
    ended.acquire()

    def act() -> None:
        try:
            results.append(work(check))
        except BaseException as error:
            errors.append(error)
        finally:
            ended.release()

    thread = threading.Thread(target=act, name="kstore-undisturbed")
    try:
        if not threads.start(thread):
            with _put_off(interrupts):
                act()
    except BaseException as error:
        interrupts.append(error)  # if the work has begun, its next check ends it
        raise
    while True:
        try:
            while not results and not errors:
                ended.acquire(timeout=_LOOK_S)
            break
        except BaseException as error:
            interrupts.append(error)
    try:
        if interrupts:
            raise interrupts[0] from next((error for error in errors if not isinstance(error, GivenUp)), None)
        if errors:
            raise errors[0]
        return results[0]
    finally:
        interrupts.clear()  # their tracebacks hold this frame
        errors.clear()
