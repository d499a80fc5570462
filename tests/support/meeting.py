"""A call that is stopped at one of its lines, so that something else can happen in between."""

from __future__ import annotations

import sys
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
