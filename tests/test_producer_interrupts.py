"""Producers' writes and the transactions' records, interrupted where it hurts; each at the very place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.txnindex import TxnIndex
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


class Table:
    """A producer table that is interrupted behind its next write."""

    def __init__(self, state: Any) -> None:
        self.state, self.table = state, state.table
        state.table = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def __len__(self) -> int:
        return len(self.table)

    def write(self, *args: Any) -> int:
        self.table.write(*args)
        self.state.table = self.table
        raise Interrupted


def test_an_abort_interrupted_behind_its_write_stays_in_the_index(path: Path) -> None:
    with kstore.Log.open(path) as log:
        for sequence in range(3):
            send(log, sequence, txn=True)
            if sequence == 1:
                assert log._writer is not None
                Table(log._writer.producers)
                with pytest.raises(Interrupted):
                    log.append_marker(7, 0, commit=False)
            else:
                log.append_marker(7, 0, commit=False)
        assert log.last_stable_offset == log.log_end_offset == 6
        assert committed(log) == []
        assert log.fetch(0, 1 << 20, isolation="read_committed").aborted_transactions == ((7, 0), (7, 2), (7, 4))
    with kstore.Log.open(path) as log:
        assert committed(log) == []


def test_an_abort_interrupted_before_its_write_is_not_in_the_index(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Log.open(path) as log:
        send(log, 0, txn=True)
        with monkeypatch.context() as patch:
            interrupt(patch, TxnIndex, "append", after=True)
            with pytest.raises(Interrupted):
                log.append_marker(7, 0, commit=False)
        assert log.log_end_offset == 1
        log.append_marker(7, 0, commit=True)
        assert committed(log) == [b"v"]
        assert log.fetch(0, 1 << 20, isolation="read_committed").aborted_transactions == ()
