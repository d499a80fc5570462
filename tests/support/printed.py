"""What a run of a command printed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kstore import cli


class Printed:
    """A run of `kstore COMMAND ARGUMENTS`: its exit code, and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], command: str, *arguments: object) -> None:
        self.code = cli.main([command, *map(str, arguments)])
        printed = capsys.readouterr()
        self.out, self.err = printed.out, printed.err

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found
