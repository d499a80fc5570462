"""Runs `kstore ingest` in this process, for the tests of its parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import cli
from kstore._core import Record

File = Callable[[str, bytes], Path]
"""Makes a file of this name with these contents."""


class Ingest:
    """Runs the command into one directory, and looks at what is there then."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys

    def __call__(self, *arguments: object, code: int = 0, cautions: Sequence[str] = ()) -> str:
        """What is printed, or with a `code` the one line of complaint."""
        words = ["ingest", *map(str, arguments), "--to", str(self.root), "--topic", "t"]
        assert cli.main(words) == code
        printed = self._capsys.readouterr()
        if not code:
            complaints = printed.err.splitlines()
            assert len(complaints) == len(cautions)
            assert all(caution in complaint for caution, complaint in zip(cautions, complaints, strict=True))
            return printed.out
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        return printed.err

    def records(self, partition: int = 0) -> list[Record]:
        with kstore.Store.open(self.root, "r") as store:
            return list(store.log("t", partition).read())

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records()]

    @property
    def rows(self) -> list[Any]:
        return [json.loads(value or b"null") for value in self.values]

    @property
    def has_topic(self) -> bool:
        return (self.root / "t-0").exists()
