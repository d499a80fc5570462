"""Producers' writes and the transactions' records, interrupted where it hurts; each at the very place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.writer import Writer


class Interrupted(BaseException):
    """As `KeyboardInterrupt`."""


def interrupt(patch: pytest.MonkeyPatch, where: Any, name: str, *, after: bool = False, at: int = 0) -> None:
    """Have the call of `name` that is number `at` interrupted, as it begins or when it is done."""
    plain: Callable[..., Any] = getattr(where, name)
    calls = 0

    def act(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        mine = calls == at + 1
        if mine and not after:
            raise Interrupted
        found = plain(*args, **more)
        if mine:
            raise Interrupted
        return found

    patch.setattr(where, name, act)


def send(log: kstore.Log, sequence: int, *values: bytes, pid: int = 7, txn: bool = False) -> Any:
    return log.append_many(values or [b"v"], producer_id=pid, producer_epoch=0, base_sequence=sequence, transactional=txn)


def committed(log: kstore.Log) -> list[bytes | None]:
    return [record.value for record in log.read(isolation="read_committed")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


# --- in one log -------------------------------------------------------------------------------------------------------


def test_a_batch_interrupted_before_its_write_does_not_count_with_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(path) as log:
        send(log, 0)
        with monkeypatch.context() as patch:
            interrupt(patch, Writer, "_write_staged")
            with pytest.raises(Interrupted):
                send(log, 1)
        send(log, 0, pid=8)
        assert [state.batches[-1].last_sequence for state in log.producer_states()] == [0, 0]
        assert send(log, 1, b"again").first_offset == 2
        assert committed(log) == [b"v", b"v", b"again"]


def test_a_transaction_interrupted_before_its_first_write_holds_nobody_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(path) as log:
        with monkeypatch.context() as patch:
            interrupt(patch, Writer, "_write_staged")
            with pytest.raises(Interrupted):
                send(log, 0, txn=True)
        log.append(b"plain")
        assert log.last_stable_offset == 1
        assert committed(log) == [b"plain"]
        assert log.producer_states() == []


def test_followed_batches_interrupted_before_their_write_do_not_count(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(tmp_path / "leader-0") as leader, kstore.Log.open(path) as log:
        send(leader, 0, txn=True)
        batch = leader.fetch(0, 1 << 20).records
        with monkeypatch.context() as patch:
            interrupt(patch, Writer, "_write_staged")
            with pytest.raises(Interrupted):
                log.append_as_follower(batch)
        log.append(b"plain")
        assert (log.last_stable_offset, log.producer_states()) == (1, [])
