"""A call that is stopped at one of its lines, so that something else can happen in between."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import kstore

PACKAGE = Path(kstore.__file__).parent


@dataclass
class Line:
    """Runs a call and, when it has come to the line of this number in these folders of kstore, an action in between."""

    number: int
    action: Callable[[], None]
    folders: Sequence[str]
    passed: int = field(default=0, init=False)
    place: str = field(default="", init=False)

    def run(self, call: Callable[[], str | None]) -> str | None:
        before = sys.gettrace()
        sys.settrace(self._frame)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _frame(self, frame: FrameType, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename
        return self._line if any(path.startswith(f"{PACKAGE}/{folder}/") for folder in self.folders) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.passed += 1
            if self.passed == self.number:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self.action()
        return self._line


def meet(
    line: int,
    folders: Sequence[str],
    first: Callable[[], str | None],
    second: Callable[[], str | None],
    look: Callable[[threading.Thread], None],
    *,
    longest_wait: float,
    longest_look: float,
) -> tuple[str, str | None, str | None]:
    """Have `second` come while `first` is at a line and then `look`, each in its own thread; the place and answers.

    `look` gets the thread of `second`, which may wait for `first`. The place is empty where there is no such line.
    Raises what `second` raises, and what `look` raises unless it had to wait for `first`, and saw what came later.
    """
    answers: list[str | None] = []
    failed: list[BaseException] = []
    faults: list[BaseException] = []
    late: list[bool] = []

    def act() -> None:
        try:
            answers.append(second())
        except BaseException as error:
            failed.append(error)

    def look_on() -> None:
        try:
            look(other)
        except BaseException as error:
            faults.append(error)

    def between() -> None:
        other.start()
        other.join(longest_wait)
        looker.start()
        looker.join(longest_look)
        late.append(looker.is_alive())

    other = threading.Thread(target=act, daemon=True)
    looker = threading.Thread(target=look_on, daemon=True)
    stopped = Line(line, between, folders)
    try:
        answer = stopped.run(first)
        if not stopped.place:
            return "", answer, None
        for thread in (other, looker):
            thread.join(60)
            assert not thread.is_alive(), "they wait for one another"
        for error in failed:
            raise error
        if faults and late == [False]:  # not raised amid the line, which may have taken a lock
            raise faults[0]
    except BaseException as error:
        error.add_note(f"at line {line}, {stopped.place}")
        raise
    return stopped.place, answer, answers[0]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.0005)
