"""The states of a log's cleaning: one at a time, aborted by a pause, and waited for (SEMANTICS 7.1, 7.7, 7.8)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kstore.errors import KStoreError, LogClosedError
from kstore.log.writing.cleaning_guard import Cleaning, CleaningAbortedError, State
from tests.support.interrupts import interrupt_often

SECONDS = 60  # a wait that lasts as long has failed


def usable() -> None:
    pass


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        pass


def test_a_cleaning_runs_alone_and_is_over_with_its_block() -> None:
    cleaning = Cleaning(usable)
    assert cleaning.state is State.NONE
    with cleaning.running():
        assert cleaning.state is State.IN_PROGRESS
        cleaning.check()
        with ThreadPoolExecutor(1) as pool, pytest.raises(CleaningAbortedError, match="in progress"):
            pool.submit(cleaning.running().__enter__).result(SECONDS)
        for wait in (False, True):  # it would wait for itself
            with pytest.raises(KStoreError, match="this thread is cleaning"):
                cleaning.running(wait=wait).__enter__()
    assert cleaning.state is State.NONE


def test_a_pause_aborts_a_cleaning_and_begins_when_that_has_ended() -> None:
    cleaning = Cleaning(usable)
    begun, paused = threading.Event(), threading.Event()

    def pause() -> State:
        begun.wait(SECONDS)
        with cleaning.paused():
            paused.set()
            return cleaning.state

    with ThreadPoolExecutor(1) as pool:
        with cleaning.running():
            state = pool.submit(pause)
            begun.set()
            until(lambda: cleaning.state is State.ABORTED)
            assert not paused.is_set()
            with pytest.raises(CleaningAbortedError, match="aborted"):
                cleaning.check()
        assert state.result(SECONDS) is State.PAUSED
    assert cleaning.state is State.NONE
    assert cleaning.failure is None


def test_pauses_nest_and_a_cleaning_begins_after_the_last_of_them() -> None:
    cleaning = Cleaning(usable)
    with cleaning.paused():
        with cleaning.paused():
            assert cleaning.pauses == 2
        assert cleaning.state is State.PAUSED
        with pytest.raises(CleaningAbortedError, match="paused"), cleaning.running():
            pass
    with cleaning.running():
        pass


def test_one_who_waits_cleans_after_the_pauses_and_cleanings_of_others() -> None:
    cleaning = Cleaning(usable)
    order = []

    def clean(name: str) -> None:
        with cleaning.running(wait=True):
            order.append(name)

    with ThreadPoolExecutor(2) as pool:
        with cleaning.paused():
            works = [pool.submit(clean, name) for name in "ab"]
            order.append("pause")
        for work in works:
            work.result(SECONDS)
    assert order[0] == "pause"
    assert sorted(order[1:]) == ["a", "b"]


def test_the_thread_that_cleans_cannot_pause_its_own_cleaning() -> None:
    cleaning = Cleaning(usable)
    with cleaning.running(), pytest.raises(KStoreError, match="this thread is cleaning"), cleaning.paused():
        pass


def test_a_failure_is_kept_until_a_cleaning_succeeds_and_an_abort_is_none() -> None:
    cleaning = Cleaning(usable)
    with pytest.raises(OSError, match="disk"), cleaning.running():
        raise OSError("disk")
    assert isinstance(cleaning.failure, OSError)
    for harmless in (CleaningAbortedError("paused"), LogClosedError("closed")):
        with pytest.raises(type(harmless)), cleaning.running():
            raise harmless
        assert isinstance(cleaning.failure, OSError)
    with cleaning.running():
        pass
    assert cleaning.failure is None


def test_no_cleaning_begins_or_goes_on_in_a_log_that_cannot_be_written() -> None:
    refusals: list[KStoreError] = []

    def check() -> None:
        if refusals:
            raise refusals[0]

    cleaning = Cleaning(check)
    with cleaning.running():
        refusals.append(LogClosedError("closed"))
        with pytest.raises(LogClosedError):
            cleaning.check()
    with pytest.raises(LogClosedError):
        cleaning.running().__enter__()
    assert cleaning.state is State.NONE


def test_no_interrupt_leaves_a_pause_or_a_cleaning_in_force(budget: Callable[[float], float]) -> None:
    cleaning = Cleaning(usable)

    def change() -> None:
        with cleaning.paused():
            pass
        with cleaning.running():
            pass

    assert interrupt_often(change, budget(2)) > 0
    assert cleaning.state is State.NONE
