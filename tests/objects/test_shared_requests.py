"""Two threads wait for one request: an interrupt or a `close` of one of them is no strange error in the other."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kstore.errors import BackupError
from kstore.objects.local_objects import LocalObjects
from kstore.objects.object_reader import ObjectReader, Piece
from kstore.objects.object_store import Fetched
from kstore.objects.remote_state import ObjectRange

DATA = b"x" * 1000
RANGE = ObjectRange("orders-0/00000000000000000000.log", 0, len(DATA), len(DATA))


class Stopping(LocalObjects):
    """Objects whose first request in the main thread does something."""

    def __init__(self, path: Path, act: Callable[[], object]) -> None:
        super().__init__(str(path))
        self.acts = [act]

    def fetch(self, key: str, position: int, length: int, etag: str | None = None) -> Fetched:
        if threading.current_thread() is threading.main_thread() and self.acts:
            self.acts.pop()()
        return super().fetch(key, position, length, etag)


def read(reader: ObjectReader) -> bytes:
    data = bytearray(len(DATA))
    reader.read_into(RANGE, 0, memoryview(data))
    return bytes(data)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / RANGE.key
    path.parent.mkdir()
    path.write_bytes(DATA)
    return tmp_path


def test_an_interrupt_does_not_reach_a_thread_that_waits_for_the_bytes(home: Path) -> None:
    found = []

    def act() -> None:
        found.append(pool.submit(read, reader))
        [run] = reader._runs
        while len(run.task._takers) < 2:
            pass
        signal.raise_signal(signal.SIGINT)

    reader = ObjectReader(Stopping(home, act))
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            read(reader)
        assert found[0].result(10) == DATA
    reader.close()


def test_a_request_that_close_cancels_is_an_error_of_kstore(home: Path) -> None:
    reader = ObjectReader(LocalObjects(str(home)))
    reader._workers._count = 0  # what is requested ahead stays queued
    reader.plan([Piece(RANGE, 0, len(DATA))])
    [run] = reader._runs
    reader.close()
    reader._blocks[RANGE, 0] = run  # as in a thread that found the run before the close
    reader._runs[run] = None
    with pytest.raises(BackupError, match="closed"):
        read(reader)
