"""Works that the calling thread does, with helpers: who does which, how many at a time, and how it ends."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter

import pytest

from kstore.base import helpers
from kstore.base.helpers import with_helpers

FOREVER_S = 3600.0
WAIT_S = 30.0  # for a thread that should be there; a test that waits so long has failed


def me() -> int:
    return threading.get_ident()


def test_the_caller_does_all_works_in_order_where_none_takes_long() -> None:
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
def test_each_group_runs_no_more_works_at_a_time_than_it_is_allowed(at_once: int) -> None:
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


@pytest.mark.parametrize(("groups", "items", "at_once"), [(2, 1, 2), (3, 1, 2), (2, 4, 8), (1, 3, 5)])
def test_groups_of_few_items_are_worked_on_side_by_side(groups: int, items: int, at_once: int) -> None:
    all_run = threading.Barrier(groups * min(items, at_once))
    done = with_helpers(lambda item: all_run.wait(WAIT_S), [range(items)] * groups, at_once, "help")
    assert len(list(done)) == groups * items


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


def test_an_error_in_the_calling_thread_is_raised_once_begun_works_have_ended() -> None:
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
    caller, raised, begun, others = me(), threading.Event(), list[int](), list[threading.Thread]()

    def work(item: int) -> int:
        begun.append(item)
        if me() != caller:
            others.append(threading.current_thread())
            raised.set()
            raise ValueError(f"not {item}")
        assert raised.wait(WAIT_S)
        others[0].join(WAIT_S)
        return item

    told = list[bool]()
    with pytest.raises(ValueError, match=r"^not [01]$"):
        list(with_helpers(work, [range(100)], 2, "help", on_leaving=lambda: told.append(True)))
    assert sorted(begun) in ([0], [0, 1])  # the helper may have been the first
    assert told


def test_the_first_error_is_the_one_that_is_raised() -> None:
    caller, raised = me(), threading.Event()

    def work(item: int) -> None:
        if me() != caller:
            raised.set()
            raise ValueError("first")
        assert raised.wait(WAIT_S)
        next(thread for thread in threading.enumerate() if thread.name == "help").join(WAIT_S)
        raise KeyError("second")

    with pytest.raises(ValueError, match="first"):
        list(with_helpers(work, [range(100)], 2, "help"))


@pytest.mark.parametrize("call", ["get", "put", "popleft"])
def test_an_interrupt_in_the_caller_between_two_works_leaves_no_helper_waiting(call: str) -> None:
    """As Ctrl-C at that place: with a slot that was taken and not given back, at the worst."""

    class Interrupting:
        def __init__(self, real: object) -> None:
            self._real, self._left = real, 3

        def __getattr__(self, name: str) -> object:
            act = getattr(self._real, name)
            if name != call:
                return act

            def interrupted(*arguments: object, **named: object) -> object:
                answer = act(*arguments, **named)
                if threading.current_thread().name != "help" and self._left >= 0:
                    self._left -= 1
                    if self._left == 0:
                        raise KeyboardInterrupt
                return answer

            return interrupted

        def __len__(self) -> int:
            return len(self._real)  # type: ignore[arg-type]

    works = helpers._Works(lambda item: item, [helpers._Group(range(1000), 2)], 0.0, lambda: None)
    group = works._groups[0]
    if call == "popleft":
        group.items = Interrupting(group.items)  # type: ignore[assignment]
    else:
        group.slots = Interrupting(group.slots)  # type: ignore[assignment]
    with contextlib.suppress(KeyboardInterrupt):
        list(works.run(2, "help"))
    assert not [thread for thread in threading.enumerate() if thread.name == "help"]


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
