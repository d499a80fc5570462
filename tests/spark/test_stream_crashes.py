"""A stream from a topic into a topic, with drivers that die at every step: the sink is the source, record for record.

Most tests need no Spark: `tests.support.microbatches` takes the steps of its driver. The last ones kill real drivers.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from kstore import Store
from kstore.files import load_files
from kstore.spark.stream_sink import WrittenBatch
from kstore.tools.check.verify import verify
from tests.conftest import BUDGET, SEED
from tests.spark import spark_session
from tests.support import microbatches
from tests.support.faultfs import DATA_LOST, KEPT, LOST, NAMES_LOST, FaultFS, shuffled
from tests.support.microbatches import Query, feed, live, live_apart, read, start

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.usefixtures("no_syncs"),
]


def query(world: Path, letter: str = "a", **how: int | float | str) -> Query:
    """A query whose id begins with the letter; its checkpoint is named after it."""
    name = uuid.uuid5(uuid.NAMESPACE_URL, letter)
    return Query(world / "logs", world / f"checkpoint-{letter}", f"{letter}{str(name)[1:]}", **how)  # type: ignore[arg-type]


def check(*queries: Query) -> None:
    """Each query has put each record of the source into the sink once, and those of a partition in their order."""
    given = {value for values in read(queries[0].root, "in") for value in values}
    found = read(queries[0].root, "out")
    counts = Counter(value for values in found for value in values)
    wanted = Counter(f"{one.id[0]}:".encode() + value for one in queries for value in given)
    assert counts - wanted == Counter(), "more than was given"
    assert wanted - counts == Counter(), "less than was given"
    for values in found:
        places = [value.replace(b":", b"-").split(b"-") for value in values]
        for of in {(letter, partition) for letter, partition, _ in places}:
            offsets = [int(offset) for letter, partition, offset in places if (letter, partition) == of]
            assert offsets == sorted(offsets)


def check_after(*queries: Query) -> None:
    """Nothing is left of the batches, and every file is sound."""
    check(*queries)
    staging = queries[0].staging
    assert list(staging.glob("*")) == []
    assert not (queries[0].root / load_files.COMMIT_FILE).exists()
    report = verify([queries[0].root])
    assert report.errors == 0, report


def place_of(path: str, one: Query) -> str:
    """Where a driver was killed, without what changes from batch to batch."""
    call, _, name = path.partition(" ")
    if name.startswith(str(one.staging)):
        return f"{call} staged {name.rpartition('.')[2]}" if "." in Path(name).name else f"{call} staged"
    path = Path(name).relative_to(one.root.parent)
    return f"{call} {path.parent if path.stem.isdecimal() and path.suffix == '.tmp' else path}"


def test_a_driver_killed_before_any_change_of_a_batch_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.store.bulk_loads.commit.THREADS", 1)  # the same calls in the same order
    monkeypatch.setattr("kstore.spark.task_attempt.SYNC_THREADS", 1)
    one = query(tmp_path, most=100)
    at, places = 0, set()
    while True:
        feed(one.root, 4)
        life = live(one, at)
        if life.code == 0:
            break
        assert life.code == -signal.SIGKILL, life
        places.add(place_of(life.place, one))
        again = live(one)
        assert again.code == 0, f"killed before {life.place}: {again.error}"
        check(one)
        # What tasks stage is private until the commit: ordinarily some of these calls stand for all.
        at += 3 if BUDGET <= 1 and "staged" in place_of(life.place, one) else 1
    check_after(one)
    assert places >= {
        "make_directory staged",
        "append staged log",
        "rename logs/kstore-commit.json.tmp",  # decides the load
        "append logs/out-0/00000000000000000000.log",
        "append logs/out-1/00000000000000000000.log",  # between two partitions
        "open logs/kstore-loads.json.tmp",
        "rename logs/kstore-loads.json.tmp",
        "unlink logs/kstore-commit.json",
        "rmdir staged",
        "rename checkpoint-a/offsets",
        "open checkpoint-a/commits",  # between our commit and Spark's
        "rename checkpoint-a/commits",
    }


@pytest.mark.parametrize("victim", ["task", "commit"])
def test_a_process_of_spark_killed_alone_fails_the_query_and_a_restart_goes_on(tmp_path: Path, victim: str) -> None:
    one = query(tmp_path, most=100)
    feed(one.root, 4)
    assert live(one).code == 0
    at = 0
    while True:
        feed(one.root, 4)
        life = live_apart(one, {victim: at})
        if life.code == 0:
            break
        assert f"the process of the {victim} ended: -9" in life.error
        again = live(one)
        assert again.code == 0, f"killed before {life.place}: {again.error}"
        check(one)
        at += 1 if BUDGET > 1 else 5
    assert at > 15
    check_after(one)


@pytest.mark.parametrize("renamed", [False, True], ids=["appended", "renamed"])
def test_a_power_cut_at_any_step_of_two_batches_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    if renamed:
        monkeypatch.setitem(Store.adopt.__kwdefaults__, "rename_bytes", 1)
    world, kept = tmp_path / "world", tmp_path / "kept"
    one = query(world, most=10)
    feed(one.root, 10)  # the first batch creates the sink
    with FaultFS(world) as disk:
        first = disk.step
        one.run()
    check_after(one)
    assert one.commits.batches() == [0, 1]
    world.rename(kept)
    rng = random.Random(f"{SEED}:power")
    plans = [KEPT, LOST, DATA_LOST, NAMES_LOST, shuffled(rng)]
    # Ordinarily some steps meet some plan; with a greater budget every step meets every plan.
    stride = 1 if BUDGET > 1 else 20
    for number, step in enumerate(range(first + rng.randrange(stride), disk.step + 1, stride)):
        for plan in plans if BUDGET > 1 else [plans[number % len(plans)]]:
            disk.crash_image(world, step, plan)
            life = live(one)
            assert life.code == 0, f"step {step} of {disk.step}, {plan}: {life.error}"
            check_after(one)
            shutil.rmtree(world)


def test_a_committer_that_outlives_its_driver_changes_nothing_twice(tmp_path: Path) -> None:
    one = query(tmp_path, most=100)
    feed(one.root, 4)
    assert live(one).code == 0
    outcomes = set()
    at = 0
    while True:
        feed(one.root, 4)
        old = start(one, at, signal.SIGSTOP)
        if not old.is_stopped():
            break
        new = live(one)  # while the old one is in the middle of something
        os.kill(old.pid, signal.SIGCONT)
        last, _ = old.end()
        outcomes.add((new.code, last.code))
        again = live(one)
        assert again.code == 0, f"stopped before {last.place}: {again.error}"
        check(one)
        at += 1 if BUDGET > 1 else 6
    assert old.end()[0].code == 0
    assert (1, 0) in outcomes  # the new one found the store locked
    assert {code for code, _ in outcomes} == {0, 1}
    check_after(one)


def test_a_batch_that_meets_a_lock_is_kept_and_committed_by_the_restart(tmp_path: Path) -> None:
    one = query(tmp_path, most=100)
    feed(one.root, 4)
    with Store.open(one.root, background=False):
        life = live(one)
        [manifest] = one.staging.glob("*/manifest.json")
        assert f"locked by process {os.getpid()}: '{one.root}/.lock'" in life.error
        assert str(manifest) in life.error
        staged = set(one.staging.rglob("*"))
        assert len(list(one.staging.rglob("out-?"))) > 0
        assert live(one).code == 1
        assert set(one.staging.rglob("*")) == staged  # restarts do not fill the disk
    assert live(one).code == 0
    check_after(one)


def test_a_batch_that_meets_a_lock_is_committed_once_by_the_process_that_holds_it(tmp_path: Path) -> None:
    one = query(tmp_path, most=100)
    feed(one.root, 4)
    with Store.open(one.root, background=False) as store:
        assert live(one).code == 1
        [manifest] = one.staging.glob("*/manifest.json")
        store.adopt(json.loads(manifest.read_bytes()), txn=(one.application, 0))
        assert live(one).code == 1  # stages the batch again
    check(one)
    assert live(one).code == 0
    check_after(one)


def test_a_batch_that_spark_has_not_journaled_as_done_changes_nothing_again(tmp_path: Path) -> None:
    one = query(tmp_path)
    feed(one.root, 10)
    assert live(one).code == 0
    before = read(one.root, "out")
    (one.commits.path / str(one.commits.latest())).unlink()
    assert live(one).code == 0
    assert read(one.root, "out") == before
    shutil.rmtree(one.commits.path)
    assert live(one).code == 0
    assert read(one.root, "out") == before
    feed(one.root, 1)
    assert live(one).code == 0
    check_after(one)


def test_a_checkpoint_restored_from_an_old_copy_is_refused(tmp_path: Path) -> None:
    one = query(tmp_path)
    feed(one.root, 4)
    assert live(one).code == 0
    shutil.copytree(one.checkpoint, tmp_path / "copy")
    feed(one.root, 10)
    assert live(one).code == 0
    before = read(one.root, "out")
    one.checkpoint.rename(tmp_path / "newest")
    (tmp_path / "copy").rename(one.checkpoint)
    life = live(one)
    assert "its checkpoint is older than the logs" in life.error
    assert read(one.root, "out") == before
    shutil.rmtree(one.checkpoint)
    (tmp_path / "newest").rename(one.checkpoint)
    assert live(one).code == 0
    check_after(one)


def test_a_query_whose_checkpoint_was_deleted_is_warned_of_what_it_repeats(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = query(tmp_path), query(tmp_path, "b")
    feed(one.root, 4)
    with caplog.at_level(logging.WARNING, "kstore"):
        one.run()
        assert caplog.text == ""
        two.run()
    [told] = caplog.messages
    assert told.startswith(f"{one.root}: query {two.id} is new here, and the topic out has records: if its checkpoint")
    check_after(one, two)


def test_a_new_query_whose_first_batch_has_no_row_is_warned_with_its_first_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = query(tmp_path), query(tmp_path, "b")
    feed(one.root, 4)
    one.run()
    two.writer().commit([WrittenBatch((), two.id, 0)], 0)  # as of a windowed aggregate
    with microbatches.in_task(0, two.id, 1):
        row = pa.record_batch({"key": pa.array([None], pa.binary()), "value": pa.array([b"x"], pa.binary())})
        message = two.writer().write(iter([row]))
    two.writer().commit([message], 1)
    [told] = caplog.messages
    assert "is new here" in told


def test_the_call_that_commits_a_kept_batch_names_its_staging_directory(tmp_path: Path) -> None:
    one = query(tmp_path, staging_dir=str(tmp_path / "staged"))
    feed(one.root, 1)
    with Store.open(one.root, background=False) as store:
        error = live(one).error
        call = error[error.index("store.adopt(") :].splitlines()[0]
        eval(call, {"store": store, "json": json, "open": lambda path: io.StringIO(Path(path).read_text())})
    check(one)


def test_another_query_finishes_a_batch_whose_driver_was_killed(tmp_path: Path) -> None:
    one, two = query(tmp_path, most=100), query(tmp_path, "b", most=100)
    feed(one.root, 4)
    assert live(one, f"append {one.root}/out").code == -signal.SIGKILL
    assert (one.root / load_files.COMMIT_FILE).exists()
    assert live(two).code == 0
    check(one, two)
    assert live(one).code == 0
    check_after(one, two)


def test_random_lives_of_two_queries_lose_and_repeat_nothing(
    tmp_path: Path,
    rng: random.Random,
    budget: Callable[[float], float],
    record_property: Callable[[str, object], None],
) -> None:
    ends = time.monotonic() + budget(5)
    lives: Counter[str] = Counter()
    for number in itertools.count():
        world = tmp_path / str(number)
        one_history(world, rng, lives)
        shutil.rmtree(world)
        if time.monotonic() > ends:
            break
    for name, count in lives.items():
        record_property(f"streams: {name}", count)


EVENTS = ["fed", "killed", "torn", "task killed", "committer killed", "abort killed", "locked", "forgotten"]


def one_history(world: Path, rng: random.Random, lives: Counter[str]) -> None:
    """Twelve events of two queries, then a life of each to the end."""
    queries = [query(world, letter, most=rng.choice([4, 20])) for letter in "ab"]
    root = queries[0].root
    feed(root, 5)
    told = []
    for _ in range(12):
        one = rng.choice(queries)
        event = rng.choice(
            ["fed", "killed", "killed", "torn", "task killed", "committer killed", "locked", "forgotten"]
        )
        at = int(rng.expovariate(1 / 60))
        told.append(f"{one.id[0]} {event} {at}")
        lives[event] += 1
        match event:
            case "fed":
                feed(root, rng.randrange(1, 6))
            case "killed" | "torn":
                life = live(one, at, torn=event == "torn")
                assert life.code in (0, -signal.SIGKILL), (told, life.error)
            case "task killed" | "committer killed" | "abort killed":
                step = "commit" if event == "committer killed" else "task"
                life = live_apart(one, {step: at} | ({"abort": at // 4} if event == "abort killed" else {}))
                assert life.code == 0 or "ended: -9" in life.error, (told, life.error)
            case "locked":
                with Store.open(root, background=False) as store:
                    life = live(one)
                    assert life.code == 0 or "LogLockedError" in life.error, (told, life.error)
                    waiting = list(one.staging.glob(f"{one.id}-*/manifest.json"))
                    assert bool(waiting) == (life.code == 1)
                    if waiting and rng.random() < 0.5:
                        batch = int(waiting[0].parent.name.rpartition("-")[2])
                        store.adopt(json.loads(waiting[0].read_bytes()), txn=(one.application, batch))
            case "forgotten":
                last = one.commits.latest()
                if last is not None and last == one.offsets.latest():
                    (one.commits.path / str(last)).unlink()
    feed(root, 1)  # a last batch of each, which removes what is left of those before
    for one in queries:
        life = live(one)
        assert life.code == 0, (told, life.error)
    try:
        check_after(*queries)
    except AssertionError as error:
        error.add_note("; ".join(told))
        raise


DRIVER = """
import os, sys
os.environ["KSTORE_TEST_DRIVER"] = str(os.getpid())
from tests.spark.spark_session import start, to_its_end
root, checkpoint = sys.argv[1:]
spark = start()
stream = (
    spark.readStream.format("kstore").option("subscribe", "in").option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 8).load(root)
    .selectExpr("key", "concat(cast('a:' as binary), value) as value")
)
print("started", flush=True)

def begin():
    return (
        stream.writeStream.format("kstore").option("topic", "out").option("partitions", 2)
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start(root)
    )

for _ in sys.stdin:
    try:
        to_its_end(begin)
        print("done", flush=True)
    except Exception as error:
        print("failed", str(error)[:2000].replace("\\n", " "), flush=True)
"""


class Driver:
    """A driver of Spark in a process group of its own, which runs a query each time that it is told to."""

    def __init__(self, world: Path, one: Query) -> None:
        self.doom = world / "doom"
        script = world / "driver.py"
        script.write_text(DRIVER)
        doomed = str(Path(microbatches.__file__).parent / "doomed")
        given = os.environ | spark_session.environment()
        with (world / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, script, one.root, one.checkpoint],
                env=given | {"PYTHONPATH": f"{doomed}:{given['PYTHONPATH']}", "KSTORE_TEST_DOOM": str(self.doom)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._answer() == "started", (world / "driver.log").read_text()[-8000:]

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(self, killed_after: float | None = None) -> str:
        """Run the query: "done", "failed ...", or "" if the driver was killed."""
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        timer = None if killed_after is None else threading.Timer(killed_after, self.kill)
        if timer is not None:
            timer.start()
        answer = self._answer()
        if timer is not None:
            timer.cancel()
            timer.join()
        return answer

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self.process.communicate()


# The step, before which call, and whether the driver dies with the process that takes the step.
TELLING: list[tuple[str, int | str, bool]] = [
    ("write", "append", False),
    ("commit", "append", False),  # the load is decided, and nothing of it is in the sink
    ("commit", "end", True),  # Spark has not noted the batch yet
]


@pytest.mark.spark
@spark_session.limits_batches
def test_real_drivers_that_are_killed_and_restarted_lose_and_repeat_nothing(
    tmp_path: Path, rng: random.Random, record_property: Callable[[str, object], None]
) -> None:
    one = query(tmp_path)
    deaths = TELLING if BUDGET <= 1 else [random_death(rng) for _ in range(round(30 * BUDGET))]
    driver = Driver(tmp_path, one)
    told = []
    try:
        for number, (step, at, whole) in enumerate(deaths):
            if number % 10 == 0:
                feed(one.root, 40 if BUDGET > 1 else 8)
            driver.doom.write_text(json.dumps({"step": step, "at": at, "whole": whole}))
            answer = driver.run(rng.uniform(0, 4) if step == "any moment" else None)
            told.append(f"{step} {at} {whole}: {answer}")
            is_dead = not driver.doom.exists()
            if step != "any moment":
                assert is_dead == (answer != "done"), told
                assert (answer == "") == (is_dead and whole), told
            assert is_dead or BUDGET > 1
            if answer == "":
                driver.close()
                driver = Driver(tmp_path, one)
            if number % 10 == 9 or number == len(deaths) - 1:
                driver.doom.unlink(missing_ok=True)
                assert driver.run() == "done", told
                check(one)
        check_after(one)
    except BaseException as error:
        error.add_note("\n".join(told))
        raise
    finally:
        driver.close()
    record_property("streams: deaths of real processes", len(deaths))


def random_death(rng: random.Random) -> tuple[str, int | str, bool]:
    step = rng.choice(["latest", "pieces", "write", "commit", "commit", "any moment"])
    at = "end" if rng.random() < 0.2 else int(rng.expovariate(1 / 25))
    return step, at, rng.random() < 0.3
