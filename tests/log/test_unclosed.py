"""A log or a store that was never closed warns as a file does; one in a forked child says whose it is."""

from __future__ import annotations

import gc
import os
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def warned(act: Callable[[], object]) -> list[str]:
    """The `ResourceWarning`s of what `act` leaves behind."""
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
        gc.collect()
    return [str(each.message) for each in found if issubclass(each.category, ResourceWarning)]


@pytest.fixture
def log_path(root: Path) -> Path:
    with kstore.Store.open(root) as store:
        store.create_topic("t")
        store.append("t", b"x")
    return root / "t-0"


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_log_and_a_store_that_are_collected_while_open_warn(log_path: Path, mode: Any) -> None:
    assert warned(lambda: kstore.Log.open(log_path, mode)) == [f"unclosed log {str(log_path)!r} mode={mode!r}"]
    root = str(log_path.parent)
    assert warned(lambda: kstore.Store.open(root, mode)) == [f"unclosed store {root!r} mode={mode!r}"]


def test_the_logs_of_a_store_warn_with_it_alone(log_path: Path) -> None:
    for mode in ("a", "r"):
        store = kstore.Store.open(log_path.parent, mode)
        assert len(list(store.read("t"))) == 1
        del store
        gc.collect()

    def read(mode: Any) -> None:
        store = kstore.Store.open(log_path.parent, mode)
        assert len(list(store.read("t"))) == 1

    for mode in ("a", "r"):
        assert len(warned(lambda mode=mode: read(mode))) == 1  # type: ignore[misc]


@pytest.mark.parametrize("mode", ["a", "r"])
def test_what_was_closed_or_never_opened_does_not_warn(log_path: Path, mode: Any) -> None:
    def use() -> None:
        with kstore.Store.open(log_path.parent, mode) as store:
            assert len(list(store.log("t", 0).read())) == 1
        with kstore.Log.open(log_path, mode) as log:
            assert len(list(log.read())) == 1
        kstore.Log.open(log_path, mode).close()
        for wrong in ("nothing", "x-y-z"):
            with pytest.raises((kstore.KStoreError, ValueError)):
                kstore.Log.open(log_path.parent / wrong, "r")
        with kstore.Log.open(log_path) as log, pytest.raises(kstore.LogLockedError):
            kstore.Log.open(log_path)
        with kstore.Store.open(log_path.parent), pytest.raises(kstore.LogLockedError):
            kstore.Store.open(log_path.parent)

    assert warned(use) == []


def test_a_log_that_warned_has_lost_nothing_and_given_its_lock_back(log_path: Path) -> None:
    warned(lambda: kstore.Log.open(log_path).append(b"y"))
    with kstore.Log.open(log_path) as log:
        assert [record.value for record in log.read()] == [b"x", b"y"]


def test_a_warning_that_is_an_error_does_not_keep_the_lock(log_path: Path) -> None:
    program = f"""
        import gc, kstore
        kstore.Log.open({str(log_path)!r})
        kstore.Store.open({str(log_path.parent)!r})
        gc.collect()
        kstore.Store.open({str(log_path.parent)!r}).close()
    """
    done = run(program, "-W", "error::ResourceWarning")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ResourceWarning: unclosed") == 2


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )


def test_by_default_nothing_is_printed_and_with_dev_mode_the_line_is(log_path: Path) -> None:
    program = f"""
        import kstore
        log = kstore.Log.open({str(log_path)!r})
        log = None
    """
    assert run(program).stderr == ""
    assert f"<string>:4: ResourceWarning: unclosed log {str(log_path)!r} mode='a'" in run(program, "-X", "dev").stderr


def test_what_is_open_when_the_interpreter_ends_warns_no_more_than_a_file(log_path: Path) -> None:
    program = f"""
        import kstore
        file = open({str(log_path / "leader-epoch-checkpoint")!r})
        log = kstore.Log.open({str(log_path)!r}, "r")
        store = kstore.Store.open({str(log_path.parent)!r}, background=True)
    """
    assert run(program).stderr == ""
    done = run(program, "-W", "always::ResourceWarning")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "unclosed file" in done.stderr
    for line in done.stderr.splitlines():
        assert "ResourceWarning: unclosed" in line or line.startswith("  "), done.stderr


# --- forked children --------------------------------------------------------------------------------------------------


def in_child(act: Callable[[], object]) -> str:
    """What `act` raises in a forked child, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "nothing"
        try:
            act()
        except kstore.LogClosedError as error:
            text = str(pickle.loads(pickle.dumps(error)))
        except BaseException as error:
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text


def test_a_forked_child_is_told_whose_the_log_is(log_path: Path) -> None:
    told = rf"was opened in process {os.getpid()}, before a fork, and is closed in this one, \d+: open it here"
    with kstore.Log.open(log_path) as log, kstore.Log.open(log_path, "r") as reader:
        acts: list[Callable[[], object]] = [
            lambda: log.append(b"x"), lambda: log.append_many([b"x"]), log.flush, log.roll,
            lambda: list(log.read()), lambda: log.read_columns(), lambda: list(reader.read()),
            lambda: reader.log_end_offset, lambda: reader.segments,
        ]  # fmt: skip
        for act in acts:
            assert matches(f"{log_path}: the log {told}", in_child(act))
        assert log.append(b"y") == 1
    with pytest.raises(kstore.LogClosedError, match="the log is closed"):
        log.append(b"z")


def matches(pattern: str, text: str) -> bool:
    assert re.match(pattern, text), text
    return True


def test_a_forked_child_is_told_whose_the_store_and_its_producers_are(log_path: Path) -> None:
    told = rf"was opened in process {os.getpid()}, before a fork"
    with kstore.Store.open(log_path.parent) as store, kstore.Store.open(log_path.parent, "r") as reader:
        producer, transactional = store.producer(), store.producer(transactional_id="id")
        consumer = store.consumer("grp", "t")
        acts: list[tuple[str, Callable[[], object]]] = [
            ("the store", lambda: store.append("t", b"x")), ("the store", lambda: store.create_topic("new")),
            ("the store", lambda: list(store.read("t"))), ("the store", lambda: store.topics),
            ("the store", lambda: reader.topics), ("the store", lambda: next(consumer)),
            ("the store", lambda: store.append_many("t", [b"x"])), ("the store", consumer.poll),
        ]  # fmt: skip
        for what, act in acts:
            assert matches(f"{what} at .* {told}", in_child(act))
        assert matches(f"the (producer|store at .*) {told}", in_child(lambda: producer.append("t", b"x")))
        assert matches(f"the (producer of id|store at .*) {told}", in_child(transactional.transaction))
        assert store.append("t", b"y").offset == 1


def test_a_grandchild_is_told_of_the_process_that_opened_it(log_path: Path) -> None:
    with kstore.Log.open(log_path, "r") as log:
        first = in_child(lambda: list(log.read()))
        again = in_child(lambda: (_ for _ in ()).throw(ValueError(in_child(lambda: list(log.read())))))
        for text in (first, again):
            assert f"was opened in process {os.getpid()}, before a fork" in text


def test_a_child_that_opens_the_log_itself_does_not_warn_of_its_parents(log_path: Path) -> None:
    reader = kstore.Log.open(log_path, "r")

    def use() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with kstore.Log.open(log_path, "r") as log:
                assert len(list(log.read())) == 1

    assert in_child(use) == "nothing"
    reader.close()
