"""One log is brought to another's, whatever happens to it (SEMANTICS 10.20 to 10.23)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.copies.replication import common_batch
from kstore.copies.replication.leader_directory import LeaderLog, Piece
from kstore.errors import CorruptRecordError, RecordBatchTooLargeError, ReplicationError
from kstore.log.hosted_log import HostedLog
from tests.conftest import examples
from tests.support.copied import PlainTarget, batches_of, catch_up, follower


@pytest.fixture
def source(tmp_path: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(tmp_path / "source" / "t-0", segment_bytes=4096, index_interval_bytes=200) as log:
        yield log


@pytest.fixture
def target(tmp_path: Path) -> Iterator[kstore.Log]:
    with kstore.Log.open(tmp_path / "target" / "t-0", segment_bytes=4096, index_interval_bytes=200) as log:
        yield log


def fill(log: kstore.Log, count: int, text: str = "a", size: int = 100) -> None:
    for number in range(count):
        log.append(f"{text}{number}".encode().ljust(size, b"."), timestamp=number)


def lead(log: kstore.Log, epoch: int) -> None:
    writer = HostedLog(log).writer
    with writer.gate():
        writer.assign_epoch_locked(epoch)


def same(log: kstore.Log, copy: kstore.Log) -> None:
    assert batches_of(copy) == batches_of(log)
    assert (copy.log_start_offset, copy.log_end_offset) == (log.log_start_offset, log.log_end_offset)


def test_a_follower_has_the_same_batches_over_several_segments(source: kstore.Log, target: kstore.Log) -> None:
    fill(source, 200)
    copy = follower(Path(source.path), target)
    assert catch_up(copy) == sum(len(batch) for _, batch in batches_of(source))
    same(source, target)
    assert copy.truncations == []
    assert copy.stats()["lag_records"] == 0


def test_what_comes_later_is_copied_from_where_it_went_on(source: kstore.Log, target: kstore.Log) -> None:
    fill(source, 10)
    copy = follower(Path(source.path), target)
    catch_up(copy)
    fill(source, 90, "b")
    copy.look()
    stats = copy.stats()
    assert stats["lag_records"] == 90
    assert stats["lag_bytes"] == sum(len(batch) for base, batch in batches_of(source) if base >= 10)
    catch_up(copy)
    same(source, target)


def test_a_step_ends_at_the_offset_that_it_is_given(source: kstore.Log, target: kstore.Log) -> None:
    fill(source, 30)
    copy = follower(Path(source.path), target)
    copy.look()
    copy.step(memoryview(bytearray(400)), 1 << 20, 7)
    assert 7 <= target.log_end_offset < 12
    assert not copy.is_caught_up


def test_a_divergent_tail_is_cut_by_epochs_and_kept(source: kstore.Log, target: kstore.Log, tmp_path: Path) -> None:
    """SEMANTICS 10.20, 10.21."""
    fill(source, 20)
    catch_up(follower(Path(source.path), target))
    fill(target, 60, "divergent")
    cut = [each for each in batches_of(target) if each[0] >= 20]
    lead(source, 1)
    fill(source, 5, "new")
    copy = follower(Path(source.path), target, save_truncated=str(tmp_path / "cut"))
    catch_up(copy)
    same(source, target)
    [truncation] = copy.truncations
    assert truncation[:3] == (20, 80, 60)
    assert [Path(path).parent for path in truncation.saved] == [tmp_path / "cut" / "t-0"] * len(truncation.saved)
    assert b"".join(Path(path).read_bytes() for path in truncation.saved) == b"".join(data for _, data in cut)
    assert Path(truncation.saved[0]).name == f"{20:020d}.log"


def test_what_was_kept_is_never_written_over(source: kstore.Log, target: kstore.Log, tmp_path: Path) -> None:
    fill(source, 3)
    for epoch in (1, 2):
        catch_up(follower(Path(source.path), target))
        end = target.log_end_offset
        fill(target, 2, f"divergent{epoch}")
        source.truncate_to(3)
        lead(source, epoch)
        catch_up(follower(Path(source.path), target, save_truncated=str(tmp_path)))
        assert end == 3
    names = sorted(path.name for path in (tmp_path / "t-0").iterdir())
    assert names == [f"{3:020d}.log", f"{3:020d}.log.1"]
    assert b"divergent1" in (tmp_path / "t-0" / names[0]).read_bytes()
    assert b"divergent2" in (tmp_path / "t-0" / names[1]).read_bytes()


@pytest.mark.parametrize("kept", [0, 1, 5, 19, 20])
def test_other_records_of_the_same_epoch_are_found_by_their_batches(
    source: kstore.Log, target: kstore.Log, kept: int
) -> None:
    """A leader that crashed goes on in its epoch with other records at the same offsets."""
    fill(source, 20)
    copy = follower(Path(source.path), target)
    catch_up(copy)
    source.truncate_to(kept)
    fill(source, 40, "other")
    again = follower(Path(source.path), target)
    catch_up(again)
    same(source, target)
    assert [each.offset for each in again.truncations] == ([kept] if kept < 20 else [])
    catch_up(copy)
    same(source, target)


def test_a_leader_that_is_cut_while_it_is_followed_cuts_its_follower(source: kstore.Log, target: kstore.Log) -> None:
    fill(source, 50)
    copy = follower(Path(source.path), target)
    catch_up(copy)
    source.truncate_to(30)
    catch_up(copy)
    same(source, target)
    assert [each[:3] for each in copy.truncations] == [(30, 50, 20)]


def test_a_log_start_is_followed_also_inside_of_a_batch(source: kstore.Log, target: kstore.Log) -> None:
    """SEMANTICS 10.22, 10.23, 1.24."""
    source.append_many([b"x" * 50] * 10)
    fill(source, 5)
    source.delete_records(4)
    copy = follower(Path(source.path), target)
    catch_up(copy)
    assert target.log_start_offset == 4
    assert batches_of(target) == batches_of(source)
    source.delete_records(12)
    catch_up(copy)
    assert target.log_start_offset == 12


def test_an_empty_follower_inside_of_a_batch_goes_back_to_its_beginning(source: kstore.Log, target: kstore.Log) -> None:
    """SEMANTICS 1.24."""
    source.append_many([b"x" * 50] * 10)
    source.delete_records(4)
    target.truncate_fully_and_start_at(7)
    copy = follower(Path(source.path), target)
    catch_up(copy)
    assert batches_of(target) == batches_of(source)
    assert copy.truncations == []


@pytest.mark.parametrize("beside", [3, 0])
def test_an_epoch_without_records_that_the_leader_never_had_is_dropped(
    source: kstore.Log, target: kstore.Log, beside: int
) -> None:
    """SEMANTICS 10.21: a truncation to the follower's own end; the leader has other epochs, and perhaps more records.

    Its newest epoch is known from before, so that this follower is not refused.
    """
    fill(source, 5)
    catch_up(follower(Path(source.path), target))
    HostedLog(target).begin_epoch(1)
    lead(source, 2)
    fill(source, beside, "new")
    copy = follower(Path(source.path), target)
    copy.look()
    copy.step(memoryview(bytearray(1 << 16)), 0)
    assert list(HostedLog(target).writer.epochs.entries) == [(0, 0)]
    assert copy.truncations == []
    catch_up(copy)
    assert batches_of(target) == batches_of(source)


def test_a_follower_below_the_leaders_start_begins_anew_there(source: kstore.Log, target: kstore.Log) -> None:
    """SEMANTICS 10.22."""
    fill(source, 20)
    catch_up(follower(Path(source.path), target))
    fill(source, 200, "b")
    source.delete_records(150)
    source.apply_retention()
    copy = follower(Path(source.path), target)
    catch_up(copy)
    assert target.log_start_offset == source.log_start_offset == 150
    assert [each for each in batches_of(target) if each[0] >= 150] == [
        each for each in batches_of(source) if each[0] >= 150
    ]
    assert copy.truncations == []


def test_a_newer_epoch_of_the_follower_is_refused_and_nothing_is_cut(source: kstore.Log, target: kstore.Log) -> None:
    fill(source, 5)
    catch_up(follower(Path(source.path), target))
    lead(target, 3)
    fill(target, 2)
    copy = follower(Path(source.path), target)
    copy.look()
    with pytest.raises(ReplicationError, match=r"has leader epoch 3, and the latest of the leader is 0.*other way"):
        copy.step(memoryview(bytearray(1000)), 1000)
    assert target.log_end_offset == 7


def test_a_batch_larger_than_a_piece_comes_whole_and_than_a_segment_is_refused(
    source: kstore.Log, tmp_path: Path
) -> None:
    source.append(b"y" * 3000)
    for allowed in (3100, 3000):
        with kstore.Log.open(tmp_path / str(allowed) / "t-0", segment_bytes=allowed) as target:
            copy = follower(Path(source.path), target)
            copy.look()
            if allowed == 3100:
                copy.step(memoryview(bytearray(100)), 1000)
                same(source, target)
            else:
                with pytest.raises(RecordBatchTooLargeError, match=r"t-0 cannot take.*segment.bytes allows 3000"):
                    copy.step(memoryview(bytearray(100)), 1000)
                assert target.log_end_offset == 0


def test_a_half_written_batch_at_the_end_is_not_copied(source: kstore.Log, target: kstore.Log) -> None:
    fill(source, 3)
    whole = target.path.replace("target", "source") + f"/{0:020d}.log"
    source.flush()
    with open(whole, "ab") as file:
        file.write(batches_of(source)[-1][1][:80])
    copy = follower(Path(source.path), target)
    catch_up(copy)
    assert target.log_end_offset == 3


def test_a_damaged_batch_of_the_leader_is_named_and_not_copied(source: kstore.Log, target: kstore.Log) -> None:
    fill(source, 60)
    source.flush()
    path = Path(source.path, f"{0:020d}.log")
    data = bytearray(path.read_bytes())
    data[data.index(b"a2....") + 3] ^= 1
    path.write_bytes(data)
    copy = follower(Path(source.path), target)
    copy.look()
    with pytest.raises(CorruptRecordError, match=r"source/t-0/0+\.log at position \d+: in the leader's log"):
        copy.step(memoryview(bytearray(1 << 16)), 1 << 20)
    assert target.log_end_offset <= 2


def test_a_compacted_leader_is_followed_over_its_gaps(tmp_path: Path) -> None:
    settings = {"segment_bytes": 2000, "cleanup_policy": "compact", "index_interval_bytes": 200}
    with (
        kstore.Log.open(tmp_path / "source" / "t-0", **settings) as source,
        kstore.Log.open(tmp_path / "target" / "t-0", **settings) as target,
    ):
        copy = follower(Path(source.path), target)
        for number in range(300):
            source.append_many([(f"k{(number * 7 + each) % 10}".encode(), f"{number}".encode()) for each in range(3)])
            if number % 100 == 50:
                catch_up(copy)
            if number % 60 == 30:
                source.compact(roll=number % 120 == 30)
        catch_up(follower(Path(source.path), target))
        catch_up(copy)
        ours, theirs = ({record.key: record for record in log.latest()} for log in (target, source))
        assert ours == theirs
        assert target.log_end_offset == source.log_end_offset


@examples(0.3)
@given(st.integers(0, 2**32))
def test_a_follower_ends_equal_whatever_was_done_to_its_leader(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    root = tmp_path_factory.mktemp("machine")
    settings = {"segment_bytes": rng.choice([600, 2000, 9000]), "index_interval_bytes": 150}
    source, target = (kstore.Log.open(root / name / "t-0", **settings) for name in ("source", "target"))
    copy, epoch, flushed = follower(root / "source" / "t-0", target), 0, 0

    def crash(log: kstore.Log, least: int) -> kstore.Log:
        """The process dies, and of what was not flushed some is lost."""
        end = rng.randint(least, log.log_end_offset)
        HostedLog(log).abandon()
        log._unlock()
        log = kstore.Log.open(log.path, **settings)
        log.truncate_to(end)
        return log

    for number in range(rng.randint(5, 40)):
        match rng.randrange(10):
            case 0:
                source.roll()
            case 1:
                end = rng.randint(source.log_start_offset, source.log_end_offset)
                source.truncate_to(end)
                flushed = min(flushed, end)
            case 2:
                source.delete_records(rng.randint(source.log_start_offset, source.log_end_offset))
                source.apply_retention()
            case 3:
                source.flush()
                flushed = source.log_end_offset
            case 4:
                source = crash(source, max(min(flushed, source.log_end_offset), source.log_start_offset))
            case 5:
                epoch += 1
                lead(source, epoch)
            case 6:
                target = crash(target, target.log_start_offset)
                copy = follower(root / "source" / "t-0", target, leader=copy.leader)
            case 7:
                catch_up(copy)
            case _:
                for _ in range(rng.randint(1, 6)):
                    source.append_many([f"{number} {rng.random()}".encode()] * rng.randint(1, 5))
                if rng.random() < 0.5:
                    copy.look()
                    copy.step(memoryview(bytearray(500)), rng.randint(1, 2000))
    catch_up(copy)
    start = source.log_start_offset
    theirs, ours = ([each for each in batches_of(log) if each[0] >= start] for log in (source, target))
    assert ours == theirs
    source.close()
    target.close()


def test_a_target_notes_the_high_watermark_of_the_leader(source: kstore.Log, target: kstore.Log) -> None:
    """SEMANTICS 10.23: the leader's, as its checkpoint file says it."""
    fill(source, 10)
    (Path(source.path).parent / "replication-offset-checkpoint").write_text("0\n1\nt 0 6\n")
    copy = follower(Path(source.path), target)
    catch_up(copy)
    assert isinstance(copy.target, PlainTarget)
    assert copy.target.high_watermark == 6


class ChangingLeader(LeaderLog):
    """A leader whose log `change` changes before and after each read."""

    change: Callable[[], None] | None = None

    def read(self, offset: int, most_bytes: int, buffer: memoryview) -> Piece | None:
        self._change()
        piece = super().read(offset, most_bytes, buffer)
        self._change()
        return piece

    def _change(self) -> None:
        if self.change is not None:
            self.change()


def test_a_truncation_between_the_look_and_the_read_leaves_no_cut_record(
    source: kstore.Log, target: kstore.Log
) -> None:
    """The piece that is read continues the leader's new log, and not what the follower has."""
    fill(source, 5, "old")
    leader = ChangingLeader(kstore.Log.open(source.path, "r"))
    copy = follower(Path(source.path), target, leader=leader)
    catch_up(copy)
    fill(source, 1, "old")

    def truncate() -> None:
        leader.change = None
        source.truncate_to(3)
        fill(source, 3, "new")

    copy.look()
    leader.change = truncate
    catch_up(copy)
    same(source, target)
    assert [each[:3] for each in copy.truncations] == [(3, 5, 2)]


@examples(0.1)
@given(st.integers(0, 2**32))
def test_a_follower_ends_equal_when_its_leader_changes_amid_its_reads(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    root = tmp_path_factory.mktemp("amid")
    settings = {"segment_bytes": rng.choice([600, 2000, 9000]), "index_interval_bytes": 150}
    source, target = (kstore.Log.open(root / name / "t-0", **settings) for name in ("source", "target"))
    leader = ChangingLeader(kstore.Log.open(source.path, "r"))
    copy, epochs = follower(root / "source" / "t-0", target, leader=leader), itertools.count(1)

    def change() -> None:
        if rng.random() < 0.4:
            source.truncate_to(rng.randint(max(source.log_end_offset - 12, 0), source.log_end_offset))
        if rng.random() < 0.2:
            source.roll()
        if rng.random() < 0.2:
            lead(source, next(epochs))
        for _ in range(rng.randint(0, 8)):
            value = f"{rng.random():.3f}".encode()
            source.append_many([(None, value, rng.randrange(3), None)] * rng.randint(1, 3))

    for _ in range(rng.randint(1, 12)):
        change()
        leader.change = change if rng.random() < 0.8 else None
        copy.look()
        copy.step(memoryview(bytearray(500)), rng.randint(1, 2000))
    leader.change = None
    catch_up(copy)
    assert batches_of(target) == batches_of(source)
    source.close()
    target.close()


@pytest.mark.parametrize("differ", [0, 3, 4999])
def test_a_copy_that_differs_below_equal_batches_is_mended_by_the_next_follower(
    source: kstore.Log, target: kstore.Log, differ: int
) -> None:
    fill(source, 5000, size=20)
    other = kstore.encode_batch([b"cut".ljust(20, b".")], base_offset=differ, partition_leader_epoch=0)
    for base_offset, batch in batches_of(source):
        target.append_as_follower(other if base_offset == differ else batch)
    copy = follower(Path(source.path), target)
    catch_up(copy)
    same(source, target)
    assert [each[:2] for each in copy.truncations] == [(differ, 5000)]


def test_batches_are_all_compared_once_although_the_leader_rolls_at_each_look(
    source: kstore.Log, target: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source, 3000, size=20)
    catch_up(follower(Path(source.path), target))
    monkeypatch.setattr(common_batch, "_LEAST_STRETCH", 200)
    monkeypatch.setattr(common_batch, "_ROWS_AT_ONCE", 200)
    tables: list[int] = []
    read = kstore.Log.batch_table

    def batch_table(log: kstore.Log, offset: int, **more: int) -> object:
        if log is target:
            tables.append(offset)
            if len(tables) % 5 == 0:
                fill(source, 1)
                source.roll()
        return read(log, offset, **more)

    monkeypatch.setattr(kstore.Log, "batch_table", batch_table)
    copy = follower(Path(source.path), target)
    catch_up(copy)
    same(source, target)
    assert copy.truncations == []
    assert 3000 // 200 <= len(tables) < 2 * 3000 // 200


def test_a_compacted_copy_is_cut_where_records_differ_and_not_where_cleaning_does(tmp_path: Path) -> None:
    settings = {"segment_bytes": 1000, "cleanup_policy": "compact"}
    with (
        kstore.Log.open(tmp_path / "source" / "t-0", **settings) as source,
        kstore.Log.open(tmp_path / "target" / "t-0", **settings) as target,
        kstore.Log.open(tmp_path / "other" / "t-0", **settings) as other,
    ):
        for number in range(100):
            source.append_many([(b"k%d" % (number * 7 % 10), b"%d" % number, 1, None), (b"u%d" % number, b"", 1, None)])
        for base_offset, batch in batches_of(source):
            wrong = [(b"k0", b"", 1, None), (b"u49", b"wrong", 1, None)]
            other.append_as_follower(
                kstore.encode_batch(wrong, base_offset=98, partition_leader_epoch=0) if base_offset == 98 else batch
            )
            target.append_as_follower(batch)
        source.compact(roll=True)
        copy = follower(Path(source.path), target)
        catch_up(copy)
        assert copy.truncations == []
        target.compact(roll=True)
        source.append(b"", key=b"more")
        copy = follower(Path(source.path), target)
        catch_up(copy)
        assert copy.truncations == []
        cut = follower(Path(source.path), other)
        catch_up(cut)
        assert [each.offset for each in cut.truncations] == [98]
