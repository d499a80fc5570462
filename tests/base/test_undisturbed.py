"""Work that no interrupt breaks off, and loads, which are such work."""

from __future__ import annotations

import contextlib
import inspect
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore import Store
from kstore.base import uninterrupted
from kstore.disk import fs
from kstore.files import load_files
from kstore.store.bulk_loads import commit, place
from kstore.store.bulk_loads.commit import BulkLoads
from kstore.store.bulk_loads.load_manifest import Staged
from tests.support.staging import records, stage_task

RENAME, APPEND = 1, 1 << 40
LOAD = [[value for task in range(2) for _, value in records(task, partition, 5)] for partition in range(2)]


LINES, FIRST = inspect.getsourcelines(uninterrupted.run)
WAITING = FIRST + next(
    number for number, line in enumerate(LINES) if "ended.acquire(" in line and "while" in LINES[number - 1]
)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """As in a terminal: a process in a shell's background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    """Send a SIGINT to the main thread once it waits for the work that calls this."""
    main = threading.main_thread().ident
    assert main is not None
    while True:
        frame = sys._current_frames()[main]
        if frame.f_code is uninterrupted.run.__code__ and frame.f_lineno == WAITING:
            break
    signal.pthread_kill(main, signal.SIGINT)


def test_what_the_work_gives_or_raises_comes_back() -> None:
    def fail(check: Callable[[], None]) -> None:
        raise ValueError("x")

    assert uninterrupted.run(lambda check: 5) == 5
    with pytest.raises(ValueError, match="x"):
        uninterrupted.run(fail)


def test_an_interrupt_is_raised_when_the_work_has_ended() -> None:
    steps = []

    def work(check: Callable[[], None]) -> None:
        steps.append(threading.current_thread() is threading.main_thread())
        interrupt()
        with contextlib.suppress(uninterrupted.GivenUp):
            while True:
                check()  # it comes, and is heard of here
        steps.append("ended")

    with pytest.raises(KeyboardInterrupt):
        uninterrupted.run(work)
    assert steps == [False, "ended"]


def test_an_error_of_the_work_is_told_with_the_interrupt() -> None:
    def work(check: Callable[[], None]) -> None:
        interrupt()
        with contextlib.suppress(uninterrupted.GivenUp):
            while True:
                check()
        raise ValueError("x")

    with pytest.raises(KeyboardInterrupt) as found:
        uninterrupted.run(work)
    assert isinstance(found.value.__cause__, ValueError)


def test_work_of_other_threads_stays_in_them() -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(uninterrupted.run(lambda check: threading.current_thread())))
    thread.start()
    thread.join()
    assert found == [thread]


# Loads


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs, "_full_sync", lambda fd: None)
    monkeypatch.setattr(fs, "fdatasync", lambda fd: None)
    monkeypatch.setattr("kstore.store.bulk_loads.commit.THREADS", 1)


def staged(root: Path) -> list[Staged]:
    """Two tasks' rows for two partitions; anew with each call, as a job that runs again stages them."""
    return [
        row
        for task in range(2)
        for row in stage_task(root, task, "t", {p: records(task, p, 5) for p in range(2)}, partitions=2)
    ]


def values(store: Store) -> list[list[bytes]]:
    return [[record.value for record in store.log("t", partition).read()] for partition in range(2)]


def check_once(root: Path, store: Store, rename_bytes: int) -> None:
    """The same rows again leave them there once; nothing hangs, and the next opening finds the same."""
    store.adopt(staged(root), txn=("a", 1), rename_bytes=rename_bytes)
    assert values(store) == LOAD
    store.append("t", b"x", partition=0)
    store.close()
    with Store.open(root, background=False) as again:
        assert again.adopt(staged(root), txn=("a", 1), rename_bytes=rename_bytes).duplicate
        assert values(again) == [[*LOAD[0], b"x"], LOAD[1]]
    assert not (root / load_files.COMMIT_FILE).exists()


STEPS: list[tuple[Any, str]] = [
    (BulkLoads, "_look_through"),
    (BulkLoads, "_share_out"),
    (load_files, "write_commit"),
    (place, "take_in_locked"),
    (load_files.Done, "write"),
    (load_files, "remove_commit"),
]


@pytest.mark.parametrize("rename_bytes", [RENAME, APPEND], ids=["renamed", "appended"])
@pytest.mark.parametrize(("where", "name"), STEPS, ids=[name for _, name in STEPS])
def test_an_interrupt_in_a_load_leaves_it_done_or_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, rename_bytes: int
) -> None:
    root = tmp_path / "logs"
    store = Store.open(root, background=False)
    real = getattr(where, name)
    interrupts = 0

    def interrupted(*args: object) -> object:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            interrupt()
        return real(*args)

    manifest = staged(root)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, staticmethod(interrupted) if where is BulkLoads else interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.adopt(manifest, txn=("a", 1), rename_bytes=rename_bytes)
    decided = name not in ("_look_through", "_share_out")
    if decided:
        assert store.adopt([], txn=("a", 1)).duplicate
    check_once(root, store, rename_bytes)


def test_an_interrupt_at_any_line_of_the_main_thread_leaves_a_load_done_or_undone(tmp_path: Path) -> None:
    at = lines = 0
    while lines == at:  # else it came to its end
        at += 1
        root = tmp_path / str(at)
        store = Store.open(root, background=False)
        manifest = staged(root)
        with interrupting(at) as seen, contextlib.suppress(KeyboardInterrupt):
            store.adopt(manifest, txn=("a", 1), rename_bytes=RENAME)
        lines = len(seen)
        check_once(root, store, RENAME)
        shutil.rmtree(root)
    assert at > 20


@contextlib.contextmanager
def interrupting(at: int) -> Iterator[list[int]]:
    """Raise an interrupt before the `at`th line that this thread begins in the code of loads; the lines up to it."""
    files = (uninterrupted.__file__, commit.__file__)
    seen: list[int] = []

    def line(frame: Any, event: str, arg: object) -> Any:
        if event == "line":
            seen.append(frame.f_lineno)
            if len(seen) == at:
                raise KeyboardInterrupt
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: line if frame.f_code.co_filename in files else None)
    try:
        yield seen
    finally:
        sys.settrace(before)
