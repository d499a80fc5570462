"""Works that the calling thread does, with helpers: who does which, how many at a time, and how it ends."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from kstore.base.helpers import with_helpers

FOREVER_S = 3600.0
WAIT_S = 30.0  # for a thread that should be there; a test that waits so long has failed


def me() -> int:
    return threading.get_ident()


def test_the_caller_does_all_works_in_order_where_none_takes_longer_than_its_patience() -> None:
    done = list(with_helpers(lambda item: (item, me()), [range(100), range(100, 150)], 4, "help", patience_s=FOREVER_S))
    assert done == [(item, me()) for item in range(150)]


def test_a_helper_begins_beside_a_work_that_takes_longer() -> None:
    beside = threading.Barrier(2)

    def work(item: int) -> int:
        beside.wait(WAIT_S)  # goes on only with another one
        return me()

    done = list(with_helpers(work, [range(4)], 2, "help", patience_s=0.001))
    assert len(done) == 4
    assert Counter(done)[me()] == 2


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_no_more_works_of_a_group_than_allowed_run_at_a_time_and_each_group_has_so_many(at_once: int) -> None:
    """With the calling thread, which goes from one group to the next (SEMANTICS 8.2)."""
    lock = threading.Lock()
    running, most = Counter[str](), Counter[str]()
    all_run = threading.Barrier(2 * at_once)

    def work(item: tuple[str, int]) -> None:
        group, number = item
        with lock:
            running[group] += 1
            most[group] = max(most[group], running[group])
        if number < at_once:
            all_run.wait(WAIT_S)
        with lock:
            running[group] -= 1

    groups = [[(group, number) for number in range(20)] for group in ("a", "b")]
    assert len(list(with_helpers(work, groups, at_once, "help"))) == 40
    assert most == {"a": at_once, "b": at_once}


def test_each_work_is_done_once_and_gives_its_result() -> None:
    done = list(with_helpers(lambda item: item, [range(2000), range(2000, 3000), []], 3, "help"))
    assert sorted(done) == list(range(3000))


def test_nothing_to_do_gives_nothing_and_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail("a thread for no work"))
    assert list(with_helpers(str, [], 2, "help")) == []
    assert list(with_helpers(str, [[], []], 2, "help")) == []
    assert list(with_helpers(str, [[1], []], 2, "help")) == ["1"]


def test_the_caller_does_all_works_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(with_helpers(lambda item: (item, me()), [range(9)], 4, "help")) == [(item, me()) for item in range(9)]


def test_an_error_in_the_calling_thread_is_raised_once_the_works_that_had_begun_have_ended() -> None:
    caller, both, begun, ended = me(), threading.Barrier(2), list[int](), list[int]()

    def work(item: int) -> None:
        begun.append(item)
        if item < 2:
            both.wait(WAIT_S)
        if me() == caller:
            raise ValueError("no")
        ended.append(item)

    with pytest.raises(ValueError, match="no"):
        list(with_helpers(work, [range(100_000)], 2, "help"))
    assert len(begun) == len(ended) + 1
    assert len(begun) < 100_000


def test_an_error_in_a_helper_is_raised_and_no_other_work_begins() -> None:
    caller, raised, begun, helpers = me(), threading.Event(), list[int](), list[threading.Thread]()

    def work(item: int) -> int:
        begun.append(item)
        if me() != caller:
            helpers.append(threading.current_thread())
            raised.set()
            raise ValueError(f"not {item}")
        assert raised.wait(WAIT_S)
        helpers[0].join(WAIT_S)
        return item

    with pytest.raises(ValueError, match=r"^not [01]$"):
        list(with_helpers(work, [range(100)], 2, "help"))
    assert sorted(begun) in ([0], [0, 1])  # the helper may have been the first


def test_a_work_that_runs_elsewhere_is_told_when_the_calling_thread_leaves() -> None:
    caller, runs, left = me(), threading.Event(), threading.Event()

    def work(item: int) -> None:
        if me() == caller:
            assert runs.wait(WAIT_S)
            raise KeyboardInterrupt
        runs.set()
        assert left.wait(WAIT_S)

    with pytest.raises(KeyboardInterrupt):
        list(with_helpers(work, [range(2)], 2, "help", on_leaving=left.set))
    assert left.is_set()


def test_nothing_is_told_when_all_works_are_done() -> None:
    told = list[bool]()
    done = with_helpers(str, [range(3)], 2, "help", on_leaving=lambda: told.append(True))
    assert sorted(done) == ["0", "1", "2"]
    assert told == []


def test_no_work_begins_after_the_iteration_has_ended_early() -> None:
    begun = list[int]()

    def work(item: int) -> int:
        begun.append(item)
        return item

    works = with_helpers(work, [range(10_000)], 3, "help")
    next(works)
    works.close()  # type: ignore[attr-defined]
    count = len(begun)
    assert not [thread for thread in threading.enumerate() if thread.name == "help"]
    assert len(begun) == count
