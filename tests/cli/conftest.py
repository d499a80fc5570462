"""Fixtures of the tests of `kstore ingest`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ingesting import File, Ingest


@pytest.fixture
def ingest(root: Path, capsys: pytest.CaptureFixture[str]) -> Ingest:
    return Ingest(root / "data", capsys)


@pytest.fixture
def file(tmp_path: Path) -> File:
    def make(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return make
