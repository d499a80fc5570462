"""A consumer that reads a store which another process writes, and commits to a store of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.support.puppet import Puppet


@pytest.fixture
def source(root: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", 2)
        yield store


@pytest.fixture
def own(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "own", background=False) as store:
        yield store


@pytest.fixture
def reader(source: kstore.Store) -> Iterator[kstore.Store]:
    with kstore.Store.open(source.paths[0], "r") as store:
        yield store


def write(store: kstore.Store, first: int, end: int, partition: int = 0) -> None:
    for number in range(first, end):
        store.append("orders", b"%d" % number, partition=partition)


def numbers(records: Any) -> list[int]:
    return [int(record.value) for record in records]


# --- where it is refused ----------------------------------------------------------------------------------------------


def test_positions_is_an_open_store(source: kstore.Store, reader: kstore.Store, own: kstore.Store) -> None:
    with pytest.raises(TypeError, match="positions must be one of Store or None, not str"):
        reader.consumer("grp", "orders", positions="own")  # type: ignore[arg-type]
    own.close()
    with pytest.raises(kstore.LogClosedError, match="own is closed"):
        reader.consumer("grp", "orders", positions=own)


def test_a_follower_keeps_no_positions_for_another_store(
    source: kstore.Store, own: kstore.Store, tmp_path: Path
) -> None:
    kstore.replicate(own.paths[0], tmp_path / "copy")
    with (
        kstore.Store.open(tmp_path / "copy", background=False) as follower,
        pytest.raises(kstore.NotLeaderError),
    ):
        source.consumer("grp", "orders", positions=follower)


@pytest.mark.parametrize("change", ["append", "append_many", "append_columns", "flush", "roll", "compact"])
def test_every_change_of_a_log_that_reads_is_a_read_only_error(reader: kstore.Store, change: str) -> None:
    log = reader.log("orders", 0)
    arguments = {"append": (b"x",), "append_many": ([b"x"],), "append_columns": ([b"x"],)}.get(change, ())
    with pytest.raises(kstore.ReadOnlyError, match="mode='a'"):
        getattr(log, change)(*arguments)


def test_every_change_of_a_store_that_reads_is_a_read_only_error(reader: kstore.Store) -> None:
    changes: list[Any] = [
        lambda: reader.append("orders", b"x"),
        lambda: reader.create_topic("new"),
        reader.producer,
        reader.flush,
        reader.become_leader,
    ]
    for change in changes:
        with pytest.raises(kstore.ReadOnlyError, match="mode='a'"):
            change()
    reader.close()
    for change in changes:
        with pytest.raises(kstore.LogClosedError) as caught:
            change()
        assert not isinstance(caught.value, kstore.ReadOnlyError)


# --- what is committed ------------------------------------------------------------------------------------------------


def test_a_group_goes_on_from_the_positions_in_the_other_store(
    source: kstore.Store, reader: kstore.Store, own: kstore.Store
) -> None:
    write(source, 0, 5)
    write(source, 5, 8, partition=1)
    source.commit_offsets("grp", {("orders", 0): 1})  # the same group's here is another
    with reader.consumer("grp", "orders", positions=own) as consumer:
        assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
        consumer.commit("so far", sync=True)
    assert own.committed_offsets("grp") == {("orders", 0): 3}
    assert own.committed_offsets("grp")["orders", 0].metadata == "so far"
    assert own.groups == ("grp",)
    write(source, 8, 9)
    with reader.consumer("grp", "orders", positions=own) as consumer:
        assert numbers(consumer) == [3, 4, 8, 5, 6, 7]
        consumer.commit()
    assert own.committed_offsets("grp") == {("orders", 0): 6, ("orders", 1): 3}
    assert source.committed_offsets("grp") == {("orders", 0): 1}


def test_a_position_holds_for_the_topic_that_was_read_and_no_later_namesake(
    source: kstore.Store, reader: kstore.Store, own: kstore.Store
) -> None:
    write(source, 0, 3)
    with reader.consumer("grp", "orders", positions=own) as consumer:
        assert len(list(consumer)) == 3
        consumer.commit()
        source.delete_topic("orders")
        source.create_topic("orders", 2)
        write(source, 10, 15)
        for ask in (lambda: consumer.positions, lambda: next(consumer), consumer.poll):
            with pytest.raises(kstore.UnknownTopicOrPartitionError, match="deleted"):
                ask()
    with reader.consumer("grp", "orders", positions=own) as consumer:
        assert numbers(consumer) == [10, 11, 12, 13, 14]
        consumer.commit()
    with reader.consumer("grp", "orders", positions=own) as consumer:
        assert numbers(consumer) == []


def test_a_topic_of_that_name_in_the_store_of_the_positions_has_no_part_in_them(
    source: kstore.Store, reader: kstore.Store, own: kstore.Store
) -> None:
    own.create_topic("orders")
    write(source, 0, 3)
    with reader.consumer("grp", "orders", positions=own) as consumer:
        assert len(list(consumer)) == 3
        consumer.commit()
    own.delete_topic("orders")
    with reader.consumer("grp", "orders", positions=own) as consumer:
        assert list(consumer) == []


def test_positions_in_a_transaction_elsewhere_know_their_topic_too(
    source: kstore.Store, reader: kstore.Store, own: kstore.Store
) -> None:
    own.create_topic("totals")
    write(source, 0, 3)
    with own.producer(transactional_id="t") as producer, reader.consumer("grp", "orders", positions=own) as consumer:
        with producer.transaction() as txn:
            for record in consumer:
                txn.append("totals", record.value)
            txn.commit_offsets("grp", consumer.positions)
        consumer.seek_to_committed()
        assert list(consumer) == []
        source.delete_topic("orders")
        source.create_topic("orders", 2)
        write(source, 3, 9)
        consumer.seek_to_committed()
        assert numbers(consumer) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("reset", "found"), [("earliest", [7, 8, 9]), ("latest", [10])])
def test_where_the_log_start_has_passed_the_position_the_reset_says_where_to_begin(
    source: kstore.Store, reader: kstore.Store, own: kstore.Store, reset: Any, found: list[int]
) -> None:
    write(source, 0, 10)
    own.commit_offsets("grp", {("orders", 0): 5, ("orders", 1): 0})
    source.log("orders", 0).delete_records(7)
    with pytest.raises(kstore.OffsetOutOfRangeError, match=r"offset 5 .* 7 to 10"):
        reader.consumer("grp", "orders", positions=own, auto_offset_reset="none")
    with reader.consumer("grp", "orders", positions=own, auto_offset_reset=reset) as consumer:
        if reset == "latest":
            consumer.commit()
            assert own.committed_offsets("grp")["orders", 0] == 10
            write(source, 10, 11)
        assert numbers(consumer) == found


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_follower_that_retention_overtakes_goes_on_at_the_start_or_is_told(
    source: kstore.Store, reader: kstore.Store, own: kstore.Store, reset: Any
) -> None:
    own.commit_offsets("grp", {("orders", 0): 0, ("orders", 1): 0})
    write(source, 0, 4)
    with reader.consumer("grp", "orders", positions=own, auto_offset_reset=reset, follow=True, timeout=0) as consumer:
        assert next(consumer).offset == 0
        source.log("orders", 0).roll()
        write(source, 4, 6)
        source.log("orders", 0).delete_records(5)
        if reset == "earliest":
            assert numbers(consumer)[-1] == 5
            consumer.commit()
            assert own.committed_offsets("grp")["orders", 0] == 6
        else:
            with pytest.raises(kstore.OffsetOutOfRangeError):
                list(consumer)
            consumer.seek("orders", 0, 5)
            assert numbers(consumer) == [5]


def test_positions_do_not_expire_while_their_consumer_is_open(
    source: kstore.Store, reader: kstore.Store, tmp_path: Path
) -> None:
    now = [10**12]
    week = 7 * 24 * 3_600_000
    with kstore.Store.open(tmp_path / "own", background=False, clock=lambda: now[0]) as own:
        write(source, 0, 3)
        with reader.consumer("grp", "orders", positions=own) as consumer:
            list(consumer)
            consumer.commit()
            now[0] += 2 * week
            own.run_housekeeping()
            assert own.committed_offsets("grp") == {("orders", 0): 3}
        now[0] += 2 * week
        own.run_housekeeping()
        assert own.committed_offsets("grp") == {}


# --- two processes ----------------------------------------------------------------------------------------------------

TAILER = """
import sys
import kstore

source, own, stop_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
with kstore.Store.open(source, "r") as store, kstore.Store.open(own) as mine:
    with store.consumer("tailer", "orders", positions=mine) as consumer:
        while True:
            records = consumer.poll(60, max_records=10)
            assert records, "nothing came"
            consumer.commit()
            print(*[int(record.value) for record in records], flush=True)
            if int(records[-1].value) == stop_at:
                break
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_tailer_elsewhere_reads_all_once_through_its_own_death_and_the_writers(tmp_path: Path, killed: bool) -> None:
    """A tailer commits before it prints: what a killed one has committed is not read again, and nothing is left out."""
    source, own = tmp_path / "source", tmp_path / "own"
    seen: list[int] = []

    def tail(stop_at: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", TAILER, str(source), str(own), str(stop_at)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def append(writer: Puppet, first: int, end: int) -> None:
        code = f"[store.append('orders', b'%d' % i, partition=0) for i in range({first}, {end})] and None"
        assert writer.do(f"answer = {code}") is None

    prelude = (f"store = kstore.Store.open({str(source)!r})",)
    with Puppet(*prelude, "store.create_topic('orders', 2)") as writer:
        append(writer, 0, 25)
        with tail(24) as first:
            assert first.stdout is not None
            seen += [int(number) for line in first.stdout for number in line.split()]
        assert first.returncode == 0
        with tail(-1) as second:  # waits for more than there is
            assert second.stdout is not None
            append(writer, 25, 30)
            while seen[-1] < 29:
                seen += map(int, second.stdout.readline().split())
            second.kill() if killed else second.terminate()
    # The writer was killed when its block ended.
    with Puppet(*prelude) as writer:
        append(writer, 30, 40)
        with tail(39) as third:
            assert third.stdout is not None
            seen += [int(number) for line in third.stdout for number in line.split()]
        assert third.returncode == 0
    assert seen == list(range(40))
    with kstore.Store.open(own, "r") as positions:
        assert json.loads(json.dumps(positions.committed_offsets("tailer")["orders", 0])) == 40
