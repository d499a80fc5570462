"""Work that no interrupt breaks off: it runs in a thread of its own, since interrupts reach the main thread alone.

The hardest rule: the work relies on nobody waiting for it. A second interrupt may take the one who waits away at any
instruction; so the work takes its locks itself, and gives them back itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_S = 0.5  # a signal that comes just before the wait begins does not end it


class GivenUp(BaseException):
    """What the work raises where it may be broken off, and an interrupt has come; never seen outside."""


def run(work: Callable[[Callable[[], None]], T]) -> T:
    """Run `work` to its end, whatever comes meanwhile; its result, or what it raised.

    An interrupt is raised here once the work has ended. The work is handed a function that raises `GivenUp` when one
    has come, to be called where nothing has happened yet.
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
        thread.start()
    except BaseException as error:
        interrupts.append(error)  # should it have begun, it need not do much
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
            raise interrupts[0] from next((each for each in errors if not isinstance(each, GivenUp)), None)
        if errors:
            raise errors[0]
        return results[0]
    finally:
        interrupts.clear()  # they know of this frame
        errors.clear()
