"""A backup under faults: at each request, at each kill, beside a second writer, it restores and loses nothing.

Small stores with every kind of change (`backedup.World`) are backed up into objects in memory that fail by a plan, so
that each single request of a backup's life is failed in each way in turn. What a restore must give is a model: the
picture of the store at the last round that was acknowledged.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore.copies.backups import backup_writer, round_changes
from kstore.objects.backup_state import History
from kstore.objects.open_objects import open_objects
from tests.support import backupkills
from tests.support.backedup import Picture, picture_of
from tests.support.backuplife import ROUNDS, WINDOW_SECONDS, Life, check_restored
from tests.support.faultyobjects import CHANGES, FaultyObjects, MemoryObjects
from tests.support.objectserver import Fault, Request

pytestmark = pytest.mark.usefixtures("no_syncs")

KINDS = ("refused", "lost", "late", "half")


def a_life(home: Path, seed: str, **how: object) -> Life:
    return Life(home, seed, FaultyObjects(MemoryObjects(), **how))  # type: ignore[arg-type]


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory in memory where there is one: these tests make and remove thousands of files."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def much_is_sent_beside(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of active segments go in objects of their own in one run, in those of rounds in another."""
    monkeypatch.setattr(round_changes, "BESIDE_BYTES", rng.choice((300, 900, 16 << 20)))


@pytest.fixture(autouse=True)
def what_is_left_is_looked_for_often(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_writer, "SWEEP_PAUSE_MS", rng.choice((1, 1000, 100_000)))


@pytest.fixture
def seed(rng: random.Random) -> str:
    return f"{rng.getrandbits(32):08x}"


def test_after_each_request_of_a_backups_life_the_objects_restore(
    home: Path, rng: random.Random, budget: Callable[[float], float], record_property: Callable[[str, int], None]
) -> None:
    """Each request could be the last one: a crash there leaves these objects."""
    end = time.monotonic() + budget(4)
    looks = 0
    kinds: Counter[str] = Counter()
    for run in itertools.count():
        life = a_life(home / f"life-{run}", f"{rng.getrandbits(32):08x}")
        life.objects.then = lambda request, life=life: life.look() if request.kind in CHANGES else None
        for _ in range(ROUNDS):
            life.change(8)
            life.clock.advance(rng.choice((1000, int(WINDOW_SECONDS * 700))))
            life.round()
        life.close()
        life.look()
        looks += life.looks
        kinds.update(request.kind for request in life.objects.seen)
        shutil.rmtree(life.home)
        if time.monotonic() > end:
            break
    assert min(kinds[kind] for kind in ("create", "update")) > 0, kinds
    record_property("restores between two requests", looks)


def test_a_fault_of_each_kind_at_each_request_leaves_the_round_taken_or_repeated(
    home: Path, seed: str, budget: Callable[[float], float], record_property: Callable[[str, int], None]
) -> None:
    clean = a_life(home / "clean", seed)
    live_through(clean)
    requests = clean.objects.seen
    assert {"create", "update", "delete"} <= {request.kind for request in requests}
    places = [(request.number, kind) for request in requests for kind in KINDS]
    failed: Counter[str] = Counter()
    end = time.monotonic() + budget(6)
    random.Random(seed).shuffle(places)
    for number, kind in places:
        if time.monotonic() > end:
            break
        life = a_life(home / "life", seed)
        life.objects.plan = lambda request, number=number, kind=kind: Fault(kind) if request.number == number else None
        try:
            live_through(life)
        except BaseException as error:
            error.add_note(f"{kind} at {requests[number]}, world {seed}")
            raise
        failed[kind] += 1
        shutil.rmtree(life.home)
    record_property("requests failed", failed.total())
    record_property("requests of that life", len(requests))


def test_faults_at_many_requests_delay_a_backup_and_lose_nothing(
    home: Path, rng: random.Random, budget: Callable[[float], float], record_property: Callable[[str, int], None]
) -> None:
    end = time.monotonic() + budget(4)
    faults = 0
    for run in itertools.count():
        life = a_life(home / f"life-{run}", f"{rng.getrandbits(32):08x}")
        chance = rng.choice((0.03, 0.1, 0.2))  # with 0.3 a round of fifteen requests took hundreds

        def plan(request: Request, chance: float = chance) -> Fault | None:
            return Fault(rng.choice(KINDS)) if rng.random() < chance else None

        life.objects.plan = plan
        for _ in range(ROUNDS * 2):
            life.change(rng.choice((0, 1, 12)))
            life.clock.advance(rng.choice((0, 1000, int(WINDOW_SECONDS * 400))))
            faults += rounds_until_taken(life, release=rng.random() < 0.5)
        life.objects.plan = None
        life.change()
        life.round()
        life.objects.release()
        life.look()
        life.close()
        shutil.rmtree(life.home)
        if time.monotonic() > end:
            break
    record_property("rounds repeated", faults)


def live_through(life: Life) -> None:
    """Some rounds, each repeated until it is taken; whatever failed, the objects restore."""
    for number in range(ROUNDS):
        life.change()
        for _ in range(5):
            life.world.update_table()
        life.world.store.compact("table", roll=True)  # drops what the rounds before have sent
        life.clock.advance(int(WINDOW_SECONDS * 400))
        rounds_until_taken(life, release=number % 2 == 0)
    life.objects.release()
    life.look()
    life.close()


def rounds_until_taken(life: Life, *, release: bool) -> int:
    """Repeat a round until it is acknowledged, looking after each failure; how many failed."""
    for failures in range(200):
        try:
            life.round()
        except kstore.BackupFencedError:
            raise
        except kstore.BackupError:
            life.look()
            if release and life.objects.release():
                life.look()
        else:
            life.look()
            return failures
    raise AssertionError("200 rounds in a row failed")


def test_the_state_that_a_restore_falls_back_to_stays_while_segments_cannot_be_sent(home: Path, seed: str) -> None:
    """For longer than the restore window: what it was made of is deleted only after a newer whole state."""
    life = a_life(home / "life", seed)
    for _ in range(3):
        life.change()
        life.round()
    life.objects.plan = lambda request: Fault("refused") if is_of_plain(request.key) else None
    for _ in range(12):
        life.world.update_table()
        life.world.store.compact("table", roll=True)
        life.change()
        life.clock.advance(int(WINDOW_SECONDS * 400))
        with contextlib.suppress(kstore.BackupError):
            life.round()
        life.look()
    life.objects.plan = None
    rounds_until_taken(life, release=False)
    life.close()


def is_of_plain(key: str) -> bool:
    """Whether it is a sealed segment of one topic: the others come through."""
    return key.startswith("plain-") and ".log" in key


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def killed() -> Iterator[subprocess.Popen[str]]:
    """backupkills.py, which lives life after life."""
    with subprocess.Popen(
        [sys.executable, backupkills.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        yield started
        assert started.stdin is not None
        started.stdin.close()


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_process_killed_at_each_request_leaves_a_backup_that_the_next_continues(
    home: Path,
    seed: str,
    killed: subprocess.Popen[str],
    done: bool,
    budget: Callable[[float], float],
    record_property: Callable[[str, int], None],
) -> None:
    """Each life is killed one request later than the one before, up to one that reaches its end; in between another
    life goes on with the directory and the backup, and is not killed."""
    store, url = home / "store", home / "backup"
    store.mkdir()
    kills = 0
    end = time.monotonic() + budget(4)
    for number in itertools.count():
        at = number // 2 if number % 2 else -1
        order = {"home": str(store), "url": str(url), "seed": seed, "life": number, "at": at, "done": done,
                 "rounds": 2 if number % 2 else 1}  # fmt: skip
        ended = live(killed, order)
        assert not (store / "fault").exists(), (store / "fault").read_text()
        acknowledged = backupkills.pictures(store, backupkills.ACKNOWLEDGED)
        begun = backupkills.pictures(store, backupkills.UNDER_WAY)
        assert ended["killed"] or not begun
        check_restored(open_objects(str(url)), home / "restored", acknowledged, begun)
        kills += bool(ended["killed"])
        if (number % 2 and not ended["killed"]) or (kills > 5 and time.monotonic() > end):
            break
    assert kills > 5
    record_property("kills at requests", kills)


def live(process: subprocess.Popen[str], order: dict[str, object]) -> dict[str, object]:
    """A life, and how it ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    answer: dict[str, object] = json.loads(process.stdout.readline())
    return answer


# --- two writers ------------------------------------------------------------------------------------------------------


def test_a_writer_that_stalls_at_any_request_while_another_takes_over_is_fenced(
    home: Path, seed: str, budget: Callable[[float], float], record_property: Callable[[str, int], None]
) -> None:
    """The first writer's request reaches the objects only after the second one's rounds: a machine that slept."""
    first = a_life(home / "clean", seed)
    live_through(first)
    # It has taken its generation with the first change of the manifest: before that it is the newer one.
    begun = next(request.number for request in first.objects.seen if request.kind == "update")
    numbers = [request.number for request in first.objects.seen[begun + 1 :]]
    random.Random(seed).shuffle(numbers)
    end = time.monotonic() + budget(6)
    fenced = 0
    for number in numbers:
        if fenced and time.monotonic() > end:
            break
        fenced += stall(home / "run", seed, number)
        shutil.rmtree(home / "run")
    assert fenced > 0
    record_property("writers fenced", fenced)


def stall(home: Path, seed: str, number: int) -> int:
    """Two writers of one backup, of which the first stalls at a request; 1 if it was fenced."""
    home.mkdir()
    objects = MemoryObjects()
    old = Life(home / "old", seed, FaultyObjects(objects))
    new: list[Life] = []

    def take_over(request: Request) -> Fault | None:
        if request.number == number:
            shutil.copytree(old.world.root, home / "new" / "data")
            life = Life(home / "new", f"{seed} of the new one", FaultyObjects(objects))
            life.clock.now = old.clock.now
            new.append(life)
            for _ in range(random.Random(number).choice((1, 2, 6))):
                life.change()
                life.round()
                life.look()
                life.clock.advance(random.Random(number).choice((0, int(WINDOW_SECONDS * 600))))
        return None

    old.objects.plan = take_over
    try:
        live_until_fenced(old, new)
    except BaseException as error:
        error.add_note(f"world {seed}, stalled at request {number}")
        raise
    if not new:
        return 0
    [life] = new
    life.look()
    for _ in range(3):
        life.change()
        life.clock.advance(int(WINDOW_SECONDS * 400))
        life.round()
        life.look()
    life.close()
    return 1


def live_until_fenced(old: Life, new: list[Life]) -> None:
    for _ in range(ROUNDS):
        old.change()
        old.clock.advance(int(WINDOW_SECONDS * 400))
        try:
            old.round()
        except kstore.BackupFencedError:
            break
    if new:
        new[0].look()
        old.world.append()
        with pytest.raises(kstore.BackupFencedError):
            old.round()
        new[0].look()
    old.abandon()


def test_two_writers_in_turns_end_with_one_and_a_backup_that_restores(home: Path, rng: random.Random) -> None:
    """Each that is fenced begins again, as a supervisor would start it; late requests of all of them arrive."""
    objects = MemoryObjects()
    lives = [Life(home / "one", f"{rng.getrandbits(32)}", FaultyObjects(objects))]
    lives[0].round()
    shutil.copytree(home / "one" / "data", home / "two" / "data")
    lives.append(Life(home / "two", f"{rng.getrandbits(32)}", FaultyObjects(objects)))
    taken = fenced = 0
    for life in lives:
        life.objects.plan = lambda request: Fault("late") if rng.random() < 0.1 else None
    allowed: list[Picture] = [lives[0].picture()]  # acknowledged last, and those of rounds begun since, of both
    for number in range(1000):
        if number >= 80 and taken and fenced:  # with bad luck none of 80 goes through
            break
        life = rng.choice(lives)
        life.change(4)
        allowed.append(life.picture())
        try:
            life.round()
        except kstore.BackupFencedError:
            fenced += 1
            life.abandon()
        except kstore.BackupError:
            life.objects.release()
        else:
            taken += 1
            del allowed[:-1]
        if taken and rng.random() < 0.3:
            kstore.restore(objects.copy(), home / "restored")
            found = picture_of(home / "restored")
            shutil.rmtree(home / "restored")
            differences = [each.unlike(found) for each in allowed]
            is_whole = History.read(objects).newest().caught_up
            assert not is_whole or any(not each for each in differences), differences
    assert taken > 0
    assert fenced > 0
    for life in lives:
        life.abandon()


# --- points in time ---------------------------------------------------------------------------------------------------


def test_a_restore_to_any_time_gives_what_had_been_acknowledged_by_then(
    home: Path, rng: random.Random, budget: Callable[[float], float], record_property: Callable[[str, int], None]
) -> None:
    end = time.monotonic() + budget(4)
    points = 0
    for run in itertools.count():
        life = a_life(home / f"life-{run}", f"{rng.getrandbits(32):08x}")
        spans = []  # of the times from the end of each round to the beginning of the next one
        for _ in range(25):
            life.change(rng.choice((1, 5, 12)))
            spans.append(life.clock.now)
            life.round()
            life.clock.advance(rng.randrange(1000, 3000))
        life.close()
        spans.append(life.clock.now)
        kept = [
            number for number, (at, _) in enumerate(life.acknowledged) if at > life.clock.now - WINDOW_SECONDS * 900
        ]
        for number in rng.sample(kept, min(6, len(kept))):
            at, expected = life.acknowledged[number]
            until = rng.choice((at, spans[number + 1] - 1, rng.randrange(at, spans[number + 1])))
            kstore.restore(life.objects.inner, home / "restored", until=until)
            found = picture_of(home / "restored")
            shutil.rmtree(home / "restored")
            assert expected.unlike(found) == [], (number, until)
            points += 1
        shutil.rmtree(life.home)
        if time.monotonic() > end:
            break
    record_property("points in time restored", points)


def test_a_restore_to_offsets_gives_the_records_below_them(home: Path, rng: random.Random) -> None:
    """And the markers of transactions that were decided and whose markers the cut took away."""
    life = a_life(home / "life", f"{rng.getrandbits(32):08x}")
    for _ in range(10):
        life.change()
        life.round()
    life.close()
    at, last = life.acknowledged[-1]
    for _ in range(12):
        chosen = {
            place: rng.randint(partition.start, partition.end)
            for place, partition in last.partitions.items()
            if not place[0].startswith("__") and rng.random() < 0.5
        }
        kstore.restore(life.objects.inner, home / "restored", until=at + 1000, offsets=chosen)
        found = picture_of(home / "restored")
        shutil.rmtree(home / "restored")
        for place, partition in last.partitions.items():
            offset = chosen.get(place, partition.end)
            kept = [data for data in partition.batches if next_offset(data) <= offset]
            batches = found.partitions[place].batches
            assert [*batches[: len(kept)]] == kept, (place, offset)
            if not place[0].startswith("__"):
                assert all(is_marker(data) for data in batches[len(kept) :]), (place, offset)


def is_marker(batch: bytes) -> bool:
    [decoded] = kstore.decode_batches(batch)
    return decoded.is_control


def next_offset(batch: bytes) -> int:
    """One past the last offset of a batch."""
    [decoded] = kstore.decode_batches(batch)
    return decoded.next_offset
