"""Restores: what a backup held as of a round, a time or some offsets is a store again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.copies.backups import finish_restore
from kstore.errors import BackupError, StorageError, UnknownTopicOrPartitionError
from kstore.files import checkpoint, restore_mark
from kstore.files.restore_mark import Progress
from tests.conftest import ManualClock
from tests.support.backedup import SETTINGS, World, picture, picture_of
from tests.support.handmade import HandmadeBackup

pytestmark = pytest.mark.usefixtures("no_syncs")

STEPS = 60
NOW_MS = 1_700_000_000_000


class Source:
    """A store and a backup of it. `round` backs it up, a second later each time."""

    def __init__(self, path: Path) -> None:
        self.store = kstore.Store.open(path / "data", background=False, **SETTINGS)
        self.backup = HandmadeBackup(path / "backup")
        self.url = str(self.backup.path)
        self.into = path / "restored"
        self.time_ms = NOW_MS

    def round(self, **fields: Any) -> int:
        self.time_ms += 1000
        return self.backup.round(self.store, self.time_ms, **fields)

    def restore(self, **choices: Any) -> kstore.Restored:
        return kstore.restore(self.url, self.into, **choices)

    def restored(self) -> kstore.Store:
        return kstore.Store.open(self.into, background=False, **SETTINGS)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    """A store with a topic `t` of two partitions, and a backup without a round."""
    found = Source(tmp_path)
    found.store.create_topic("t", 2)
    yield found
    found.store.close()


def values(store: kstore.Store, topic: str = "t", **choices: Any) -> list[bytes]:
    return sorted(record.value or b"" for record in store.read(topic, **choices))


def files_below(path: Path) -> dict[str, int]:
    return {str(file.relative_to(path)): file.stat().st_size for file in path.rglob("*") if file.is_file()}


# --- times and rounds -------------------------------------------------------------------------------------------------


def test_random_restore_points_are_what_the_store_was(tmp_path: Path, rng: random.Random, clock: ManualClock) -> None:
    world = World(tmp_path / "data", rng, clock)
    backup = HandmadeBackup(tmp_path / "backup", catalog_every=4)
    pictures = {}
    for _ in range(STEPS):
        world.step()
        if rng.random() < 0.3 or not pictures:
            number = backup.round(world.store, clock.now)
            pictures[clock.now] = number, picture(world.store)
        clock.advance(10)
    world.close()
    for turn, (time_ms, (number, was)) in enumerate(rng.sample(sorted(pictures.items()), min(6, len(pictures)))):
        root = tmp_path / f"restored-{turn}"
        done = kstore.restore(str(backup.path), root, until=time_ms + rng.randrange(10))
        assert (done.round, done.time_ms) == (number, time_ms)
        assert picture_of(root).unlike(was) == []
        with kstore.Store.open(root, background=False, **SETTINGS) as store:
            for name in store.topics:
                if not name.startswith("__"):
                    store.append(name, b"later", b"k")
            for name in backedup_ids(store):
                with store.producer(transactional_id=name).transaction() as txn:
                    txn.append("plain", b"later")


def backedup_ids(store: kstore.Store) -> list[str]:
    return ["loader", "mover"] if "__transaction_state" in store.topics else []


def test_a_time_means_the_last_round_up_to_it_by_when_it_was_backed_up(source: Source, tmp_path: Path) -> None:
    for number in range(10):
        # The records' own timestamps say nothing.
        source.store.append("t", b"%d" % number, partition=0, timestamp=NOW_MS - number * 10**6)
        source.round()
    times = [NOW_MS + 1000 * number for number in range(1, 11)]
    for number, time_ms in enumerate(times, 1):
        for until in (time_ms, time_ms + 999):
            done = source.restore(until=until, dry_run=True)
            assert (done.round, done.time_ms) == (number, time_ms)
            assert done.partitions["t", 0].log_end_offset == number
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=times[4])
    assert source.restore(until=moment, dry_run=True).round == 5
    assert source.restore(until=moment.astimezone(), dry_run=True).round == 5
    assert source.restore(until=times[-1] + 10**9, dry_run=True).round == 10
    assert source.restore(dry_run=True).round == 10
    with pytest.raises(BackupError, match=f"restored to 2023-11-14T22:13:20.999Z: .*22:13:21.000Z on .{times[0]} ms"):
        source.restore(until=times[0] - 1)
    with pytest.raises(ValueError, match="without a time zone"):
        source.restore(until=datetime(2026, 1, 1))
    assert not source.into.exists()


def test_what_is_older_than_the_oldest_catalog_is_no_longer_kept(source: Source) -> None:
    for number in range(7):
        source.store.append("t", b"%d" % number, partition=0)
        source.round()
    first, second = source.backup.manifest.catalogs
    source.backup.write(catalogs=(first._replace(rounds=()), second))
    for number in range(1, 4):
        (source.backup.path / f"kstore-backup-{number:020d}.round").rename(source.backup.path / f"gone-{number}")
    (source.backup.path / "gone-3").rename(source.backup.path / f"kstore-backup-{3:020d}.round")  # the tail is in it
    assert source.restore(until=NOW_MS + 3000, dry_run=True).round == 3
    with pytest.raises(BackupError, match=rf"kept from 2023-11-14T22:13:23.000Z on \({NOW_MS + 3000} ms\)"):
        source.restore(until=NOW_MS + 2999)
    assert source.restore(offsets={("t", 0): 1}, dry_run=True).round == 3


def test_a_round_under_way_is_restored_only_while_there_is_no_whole_one(source: Source) -> None:
    source.store.append("t", b"1", partition=0)
    source.round(caught_up=False)
    done = source.restore(dry_run=True)
    assert (done.round, done.caught_up) == (1, False)
    source.round()
    for _ in range(5):
        source.round(caught_up=False)
    done = source.restore(dry_run=True)
    assert (done.round, done.caught_up) == (2, True)
    assert source.restore(until=NOW_MS + 1999, dry_run=True).round == 1


def test_no_backup_or_one_without_a_round_is_a_clear_error(source: Source, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r"there is no backup in .*kstore-backup.json is missing"):
        source.restore()
    source.backup.write()
    with pytest.raises(BackupError, match="has no round yet"):
        source.restore()
    with pytest.raises(BackupError, match="there is no directory"):
        kstore.restore(str(tmp_path / "nowhere"), source.into)
    source.round()
    text = (source.backup.path / "kstore-backup.json").read_text()
    (source.backup.path / "kstore-backup.json").write_text(text.replace('"version":1', '"version":2'))
    with pytest.raises(BackupError, match="has version 2; this release of kstore knows version 1"):
        source.restore()
    assert not source.into.exists()


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_every_offset_cuts_at_the_start_of_its_batch(source: Source, tmp_path: Path, rng: random.Random) -> None:
    log = source.store.log("t", 0)
    while len(log.segments) < 4 or log.segments[-1].size_bytes < 800:
        log.append_many([b"v" * rng.choice((1, 90))] * rng.choice((1, 3, 7)))
    source.round()
    batches = [(batch.base_offset, batch.next_offset, bytes(batch)) for batch in log.read_batches()]
    for cut in [*rng.sample(range(log.log_end_offset + 1), 12), 0, log.log_end_offset]:
        kept = [data for _, next_offset, data in batches if next_offset <= cut]
        end = max([next_offset for _, next_offset, _ in batches if next_offset <= cut], default=0)
        into = tmp_path / f"cut-{cut}"
        if into.exists():
            continue
        foreseen = kstore.restore(source.url, into, offsets={("t", 0): cut}, dry_run=True)
        done = kstore.restore(source.url, into, offsets={("t", 0): cut})
        assert foreseen.partitions == done.partitions
        assert done.partitions["t", 0].log_end_offset == end
        with kstore.Store.open(into, background=False, **SETTINGS) as store:
            found = store.log("t", 0)
            assert [bytes(batch) for batch in found.read_batches()] == kept
            assert found.append(b"next") == end
            for record in found.read():
                assert found.offset_for_timestamp(record.timestamp) is not None
        verified = kstore.Log.open(into / "t-0", "r")
        assert verified.log_end_offset == end + 1


def test_offsets_outside_of_the_log_are_refused(source: Source) -> None:
    log = source.store.log("t", 0)
    log.append_many([b"v"] * 10)
    log.delete_records(4)
    source.round()
    for cut in (3, 11):
        with pytest.raises(BackupError, match=f"t-0 has the offsets from 4 up to 10 .* cannot be restored up to {cut}"):
            source.restore(offsets={("t", 0): cut})
    for place in (("t", 2), ("u", 0)):
        with pytest.raises(UnknownTopicOrPartitionError, match=f"{place[0]}-{place[1]}, which is not in the backup"):
            source.restore(offsets={place: 1})
    for wrong in ({"t": 1}, {("t", 0): "1"}, {("t", True): 1}, [("t", 0)]):
        with pytest.raises(TypeError):
            source.restore(offsets=wrong)
    assert not source.into.exists()
    # Inside of the first batch, which begins below the log's start: nothing is left of it.
    done = source.restore(offsets={("t", 0): 7})
    assert done.partitions["t", 0][:2] == (4, 4)
    with source.restored() as store:
        assert values(store) == []
        assert store.log("t", 0).append(b"next") == 4


def test_the_others_are_as_of_the_first_round_that_has_the_offsets(source: Source) -> None:
    for number in range(12):
        source.store.append("t", b"%d" % number, partition=0)
        source.store.append("t", b"other %d" % number, partition=1)
        source.round()
    for cut in range(1, 13):
        done = source.restore(offsets={("t", 0): cut}, dry_run=True)
        assert done.round == cut
        assert done.partitions["t", 1].log_end_offset == cut
    done = source.restore(offsets={("t", 0): 2}, until=NOW_MS + 5000, dry_run=True)
    assert (done.round, done.partitions["t", 0].log_end_offset, done.partitions["t", 1].log_end_offset) == (5, 2, 5)


def test_positions_above_the_end_of_a_log_that_is_cut_come_down_to_it(source: Source) -> None:
    for number in range(10):
        source.store.append("t", b"%d" % number, partition=number % 2)
    source.store.commit_offsets("g", {("t", 0): 4, ("t", 1): 5, ("elsewhere", 0): 77}, "noted")
    source.store.commit_offsets("h", {("t", 0): 1, ("t", 1): 900})
    source.round()
    source.restore(offsets={("t", 0): 2})
    with source.restored() as store:
        positions = store.committed_offsets("g")
        assert positions == {("t", 0): 2, ("t", 1): 5, ("elsewhere", 0): 77}
        assert positions["t", 0].metadata == "noted"
        assert store.committed_offsets("h") == {("t", 0): 1, ("t", 1): 900}  # as it was: t-1 is whole
        read = [record.value for record in store.consumer("g", "t", auto_offset_reset="none")]
        assert read == []


# --- topics -----------------------------------------------------------------------------------------------------------


def test_some_topics_come_with_the_internal_ones(source: Source) -> None:
    source.store.create_topic("u", config={"segment.bytes": "1400"})
    source.store.append("t", b"t")
    source.store.append("u", b"u")
    source.store.commit_offsets("g", {("u", 0): 1})
    source.round()
    source.restore(topics="u")
    assert not (source.into / "t-0").exists()
    with source.restored() as store:
        assert store.topics == ("__consumer_offsets", "u")
        assert store.topic_id("u") == source.store.topic_id("u")
        assert store.topic_config("u").segment_bytes == 1400
        assert values(store, "u") == [b"u"]
        assert store.committed_offsets("g") == {("u", 0): 1}
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic 'v' as of round 1"):
        kstore.restore(source.url, source.into.with_name("other"), topics=["u", "v"])
    with pytest.raises(UnknownTopicOrPartitionError, match="t-0, which is not restored"):
        kstore.restore(source.url, source.into.with_name("other"), topics=["u"], offsets={("t", 0): 0})


# --- the directory ----------------------------------------------------------------------------------------------------


def test_a_directory_that_holds_anything_else_is_refused_and_stays_as_it_is(source: Source) -> None:
    source.round()
    source.into.mkdir()
    for name in ("notes.txt", "t-0", ".hidden", "kstore-topics.json"):
        (source.into / name).write_bytes(b"mine")
        for dry_run in (True, False):
            with pytest.raises(BackupError, match=f"is not empty: it holds '{name}'"):
                source.restore(dry_run=dry_run)
        assert files_below(source.into).keys() - {".lock"} == {name}
        (source.into / name).unlink()
    source.restore()
    with pytest.raises(BackupError, match="is not empty"):
        source.restore()
    with pytest.raises(BackupError, match="lie in one another"):
        kstore.restore(source.url, source.backup.path / "inside")
    with pytest.raises(BackupError, match="lie in one another"):
        kstore.restore(source.url, source.backup.path.parent)
    with pytest.raises(StorageError):
        kstore.restore(source.url, source.backup.path.parent / "data" / "t-0" / f"{0:020d}.log")


def test_a_dry_run_writes_nothing_and_says_what_the_restore_then_does(source: Source) -> None:
    for number in range(60):
        source.store.append("t", b"%d" % number * 30)
    source.round()
    foreseen = source.restore(dry_run=True)
    assert not source.into.exists()
    done = source.restore()
    assert foreseen.partitions == done.partitions
    assert (foreseen.files, foreseen.bytes, foreseen.round) == (done.files, done.bytes, done.round)
    assert foreseen.fetched_bytes == 0
    assert done.fetched_bytes == done.bytes
    for (topic, number), partition in done.partitions.items():
        assert partition.bytes == sum(size for _, size in partition.files)
        assert partition.files
        for name, size in partition.files:
            assert name.endswith(".snapshot") or (source.into / f"{topic}-{number}" / name).stat().st_size == size


def test_progress_is_told_in_bytes_up_to_all_of_them(source: Source) -> None:
    source.store.append_many("t", [b"v" * 100] * 60)
    source.round()
    told: list[tuple[int, int]] = []
    done = source.restore(progress=lambda *said: told.append(said))
    assert [at for at, _ in told] == sorted(at for at, _ in told)
    assert {total for _, total in told} == {done.bytes}
    assert told[-1][0] == done.bytes


def test_a_restore_over_an_unfinished_one_of_another_round_or_choice_is_refused(source: Source) -> None:
    source.store.append("t", b"v", partition=0)
    source.round()
    source.into.mkdir()
    into = str(source.into)
    done = source.restore(dry_run=True)
    restore_mark.write_progress(into, Progress("c" * 32, done.round, "x", complete=False))
    with pytest.raises(BackupError, match=f"of another backup, {'c' * 32} into .* is not finished"):
        source.restore()
    restore_mark.write_progress(into, Progress(done.backup, done.round, "x", complete=False))
    with pytest.raises(BackupError, match=r"a restore with other choices into .* is not finished"):
        source.restore()
    (source.into / restore_mark.RESTORE_FILE).write_bytes(b"damaged")
    with pytest.raises(StorageError, match="malformed"):
        source.restore()
    assert files_below(source.into).keys() - {".lock"} == {restore_mark.RESTORE_FILE}


def test_a_restore_goes_on_with_the_round_that_it_began_with(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.store.append("t", b"first", partition=0)
    source.round()

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        source.restore(progress=stop)
    source.store.append("t", b"second", partition=0)
    source.round()
    with pytest.raises(StorageError, match="not finished"):
        source.restored()
    with pytest.raises(BackupError, match="other choices"):
        source.restore(until=NOW_MS + 2000)
    (source.into / "t-0" / "notes.txt").write_bytes(b"mine")
    with pytest.raises(BackupError, match=r"holds 't-0/notes.txt', which is not of this restore"):
        source.restore()
    (source.into / "t-0" / "notes.txt").unlink()
    assert source.restore().round == 1
    with source.restored() as store:
        assert values(store) == [b"first"]


def test_a_restore_stopped_when_all_files_were_there_ends_without_the_backup(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(80):
        source.store.append("t", b"%d" % number * 30, partition=0)
    source.round()

    def stop(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(finish_restore, "open_once", stop)
        with pytest.raises(InterruptedError):
            source.restore(offsets={("t", 0): 60})
    moved = source.backup.path.rename(source.backup.path.parent / "moved")
    with pytest.raises(BackupError, match="no directory"):
        source.restore()  # another choice: only the backup knows which one that is
    with monkeypatch.context() as patched:
        patched.setattr(finish_restore, "remove_state", stop)
        with pytest.raises(InterruptedError):
            source.restore(offsets={("t", 0): 60})
    done = source.restore(offsets={("t", 0): 60})
    assert (done.round, done.fetched_bytes, done.partitions["t", 0].log_end_offset) == (1, 0, 60)
    assert not {restore_mark.RESTORE_FILE, finish_restore.STATE_FILE} & files_below(source.into).keys()
    with source.restored() as store:
        assert len(values(store)) == 60
    moved.rename(source.backup.path)


def test_a_missing_or_damaged_list_of_a_restore_is_reported_or_read_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.store.append("t", b"v", partition=0)
    source.round()

    def stop(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(finish_restore, "open_once", stop)
        with pytest.raises(InterruptedError):
            source.restore()
    (source.into / finish_restore.STATE_FILE).write_bytes(b"damaged")
    with pytest.raises(BackupError, match=finish_restore.STATE_FILE):
        source.restore()
    (source.into / finish_restore.STATE_FILE).unlink()
    assert source.restore().fetched_bytes == 0


def test_whole_files_are_not_fetched_again_and_others_are(source: Source) -> None:
    for number in range(80):
        source.store.append("t", b"%d" % number * 30, partition=0)
    source.round()
    seen = 0

    def stop(done: int, total: int) -> None:
        nonlocal seen
        seen = done
        if done > total // 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        source.restore(progress=stop, threads=1)
    logs = sorted((source.into / "t-0").glob("*.log"), key=lambda path: -path.stat().st_size)
    damaged = logs[0].read_bytes()
    logs[0].write_bytes(bytes([damaged[0] ^ 1]) + damaged[1:])
    done = source.restore(threads=1)
    assert 0 < done.fetched_bytes < done.bytes
    assert done.fetched_bytes > done.bytes - seen  # the damaged one, too
    with source.restored() as store:
        assert values(store) == values(source.store)


def test_checkpoints_say_that_all_is_flushed_and_the_directory_was_left_in_order(source: Source) -> None:
    for number in range(30):
        source.store.append("t", b"%d" % number * 30, partition=0)
    source.store.log("t", 0).delete_records(3)
    source.round()
    source.restore()
    for name, offset in (
        (checkpoint.RECOVERY_POINTS, 30),
        (checkpoint.HIGH_WATERMARKS, 30),
        (checkpoint.LOG_STARTS, 3),
    ):
        assert checkpoint.read_offsets(source.into, name)["t", 0] == offset
    assert checkpoint.find_clean_marker(source.into) is not None
    assert not (source.into / restore_mark.RESTORE_FILE).exists()
    with source.restored() as store:
        assert store.log("t", 0).recovery.clean
