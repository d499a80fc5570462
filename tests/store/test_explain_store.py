"""`Store.explain`: why a disk is full, and that each remedy frees what it promises."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import kstore
from kstore import cli
from kstore.errors import UnknownTopicOrPartitionError
from kstore.explained.explained_disk import DiskExplanation, ExplainedPartition, Remedy
from kstore.files import load_files
from tests.conftest import ManualClock

pytestmark = [pytest.mark.usefixtures("no_syncs"), pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")]

HOUR, DAY = 3_600_000, 86_400_000
YEAR_2030 = 1_893_456_000_000
LATE = "message.timestamp.after.max.ms"


def fill(root: Path, clock: ManualClock) -> None:
    """Ten days of five topics: each is kept by something else."""
    with kstore.Store.open(root, background=False, clock=clock, segment_bytes=4000) as store:
        store.create_topic("unlimited", 2)
        store.create_topic("huge", config={"segment.bytes": "10000000", "segment.ms": 30 * DAY, "retention.ms": DAY})
        store.create_topic("ahead", config={"retention.ms": DAY, LATE: 10**15})
        store.create_topic("sized", config={"retention.bytes": 20_000})
        store.create_topic("keyed", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.95})
        store.run_housekeeping()
        for number in range(200):
            clock.advance(DAY // 20)
            late = YEAR_2030 if number == 43 else None
            store.append("unlimited", bytes(500), partition=int(number % 3 == 0))
            store.append("huge", bytes(300))
            store.append("ahead", bytes(300), timestamp=late)
            store.append("sized", bytes(300))
            store.append("keyed", bytes(300), key=b"%d" % (number % 30))
            if number == 100:
                store.compact("keyed", roll=True)


@pytest.fixture
def data(root: Path, clock: ManualClock) -> Path:
    fill(root, clock)
    return root


def explained(root: Path, clock: ManualClock, **how: Any) -> DiskExplanation:
    with kstore.Store.open(root, "r", clock=clock, segment_bytes=4000) as store:
        return store.explain(**how)


def of(found: DiskExplanation, topic: str, partition: int = 0) -> ExplainedPartition:
    [one] = [each for each in found.partitions if (each.topic, each.partition) == (topic, partition)]
    return one


def remedies(found: DiskExplanation, topic: str) -> dict[str, Remedy]:
    return {remedy.setting: remedy for remedy in found.remedies if remedy.topic == topic}


def held(partition: ExplainedPartition) -> dict[str, int]:
    return {each.cause: each.size_bytes for each in partition.held}


def segments_held(partition: ExplainedPartition) -> dict[str, int]:
    return {cause: count for cause, count in held(partition).items() if cause != "deleted"}


def test_each_topic_is_held_by_its_own_cause(data: Path, clock: ManualClock) -> None:
    found = explained(data, clock)
    assert {topic: max(segments_held(of(found, topic)).items(), key=itemgetter(1))[0] for topic in found.topics} == {
        "unlimited": "no_limit",
        "huge": "retention.ms",
        "ahead": "earlier_segment",
        "sized": "retention.bytes",
        "keyed": "policy",
    }
    future = next(each for each in of(found, "ahead").held if each.cause == "future_record")
    assert "a record is from 2030-01-01T00:00:00.000Z, ahead of the clock" in future.explanation
    assert "until 2030-01-02T00:00:00.001Z" in future.explanation
    policy = next(each for each in of(found, "keyed").held if each.cause == "policy")
    assert "cleanup.policy is compact" in policy.explanation
    assert "no more than min.cleanable.dirty.ratio 0.95" in policy.explanation
    [active] = of(found, "huge").held
    assert active.explanation.startswith("the active segment 0: retention.ms keeps 1 day, the first until ")
    why = "neither retention.ms (not given) nor retention.bytes sets a limit"
    assert of(found, "unlimited").held[0].explanation.endswith(why)


def test_what_is_held_and_what_goes_next_is_all_of_the_log(data: Path, clock: ManualClock) -> None:
    clock.advance(HOUR)
    found = explained(data, clock)
    with kstore.Store.open(data, "r", clock=clock, segment_bytes=4000) as store:
        for each in found.partitions:
            log = store.log(each.topic, each.partition)
            assert each.log_bytes == sum(segment.size_bytes for segment in log.segments)
            with kstore.Log.open(each.path, "r", config=log.config, clock=clock) as alone:
                expired = sum(deletion.size_bytes for deletion in alone.plan_retention())
            assert each.expired_bytes == expired
            assert sum(segments_held(each).values()) + expired == each.log_bytes
            assert each.segments == len(log.segments)
    assert of(found, "sized").expired_bytes > 0
    assert of(found, "ahead").expired_bytes > 0


def test_the_space_is_what_describe_counts(data: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]) -> None:
    staged = Path(f"{data}{load_files.STAGING}") / "job" / "file"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(bytes(10_000))
    with kstore.Store.open(data, background=False, clock=clock) as store:
        store.delete_topic("sized")
    found = explained(data, clock)
    assert cli.main(["describe", str(data), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert found.disk_bytes == described["disk"]["total_bytes"]
    assert found.topics == {topic: facts["disk"]["total_bytes"] for topic, facts in described["topics"].items()}
    assert [*found.topics.values()] == sorted(found.topics.values(), reverse=True)
    assert [each.disk_bytes for each in found.partitions] == sorted(
        (facts["disk"]["total_bytes"] for facts in described["partitions"]), reverse=True
    )
    others = {each.cause: each.size_bytes for each in found.others}
    assert others["staged"] == described["disk"]["staged_bytes"]
    in_partitions = sum(held(each).get("deleted", 0) for each in found.partitions)  # by the compaction
    assert others["deleted"] + in_partitions == described["disk"]["deleted_bytes"] > in_partitions > 0
    assert sum(others.values()) == found.other_bytes
    assert found.free_bytes is not None
    assert found.free_bytes > 0


def test_a_store_that_writes_explains_like_one_that_reads(data: Path, clock: ManualClock) -> None:
    reading = explained(data, clock)
    before = {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file()}
    with kstore.Store.open(data, background=False, clock=clock, segment_bytes=4000) as store:
        store.log("huge", 0)  # open; all others are read
        writing = store.explain()
        assert store.stats()["open_logs"] == 1
    assert before == {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for each, other in zip(writing.partitions, reading.partitions, strict=True):
        assert (each.path, each.log_bytes, held(each)) == (other.path, other.log_bytes, held(other))
    assert writing.remedies == reading.remedies


def test_deleted_files_are_held_until_they_are_unlinked(data: Path, clock: ManualClock) -> None:
    with kstore.Store.open(data, background=False, clock=clock, segment_bytes=4000) as store:
        [*_, last] = store.log("sized", 0).apply_retention()
        found = of(store.explain(), "sized")
        deleted = next(each for each in found.held if each.cause == "deleted")
        assert deleted.size_bytes > last.size_bytes
        assert found.expired_bytes == 0
        assert "file.delete.delay.ms keeps them until 2023-11-24T22:14:20.000Z" in deleted.explanation
        clock.advance(61_000)
        store.run_housekeeping()
        assert "deleted" not in held(of(store.explain(), "sized"))


def test_a_partition_that_cannot_be_read_has_an_error_and_the_others_none(data: Path, clock: ManualClock) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    (data / "huge-0" / "00000000000000000000.log").write_bytes(b"\1" * 5000)
    (data / "recovery-point-offset-checkpoint").write_text("0\n1\nhuge 0 100\n")
    found = explained(data, clock)
    assert [each.topic for each in found.partitions if each.error is not None] == ["huge"]
    broken = of(found, "huge")
    assert broken.disk_bytes > 0
    assert (broken.log_bytes, broken.held) == (0, ())
    assert "huge-0 cannot be read: " in str(found)
    assert held(of(found, "unlimited"))
    assert remedies(found, "unlimited")


def test_a_topic_is_explained_alone(data: Path, clock: ManualClock) -> None:
    found = explained(data, clock, topic="unlimited")
    assert [*found.topics] == ["unlimited"]
    assert found.disk_bytes == sum(each.disk_bytes for each in found.partitions) == found.topics["unlimited"]
    assert (found.other_bytes, found.others) == (0, ())
    assert {remedy.topic for remedy in found.remedies} == {"unlimited"}
    with pytest.raises(UnknownTopicOrPartitionError):
        explained(data, clock, topic="none")


def test_the_moment_to_explain_for_may_be_given(data: Path, clock: ManualClock) -> None:
    now = of(explained(data, clock), "huge")
    later = of(explained(data, clock, at=clock() + 2 * DAY), "huge")
    assert (now.expired_bytes, later.expired_bytes) == (0, now.log_bytes)


def test_progress_is_told_and_may_end_the_call(data: Path, clock: ManualClock) -> None:
    told: list[tuple[int, int]] = []
    explained(data, clock, progress=lambda done, total: told.append((done, total)))
    assert told == [(number, 6) for number in range(6)]

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explained(data, clock, progress=stop)


def test_the_facts_are_json_and_the_text_names_every_topic(data: Path, clock: ManualClock) -> None:
    found = explained(data, clock)
    again = json.loads(json.dumps(found.to_dict()))
    assert again["partitions"][0]["held"][0]["cause"] == found.partitions[0].held[0].cause
    assert [remedy["setting"] for remedy in again["remedies"]] == [remedy.setting for remedy in found.remedies]
    for topic in found.topics:
        assert f"{topic}-0" in str(found)


def test_an_empty_store_has_nothing_to_explain(root: Path, clock: ManualClock) -> None:
    found = explained(root, clock)
    assert (found.partitions, found.remedies, dict(found.topics), found.note) == ((), (), {}, None)
    assert "no partition is here" in str(found)


# --- remedies ---------------------------------------------------------------------------------------------------------


def test_a_record_of_2030_leaves_only_the_size_as_a_remedy(data: Path, clock: ManualClock) -> None:
    assert [setting.partition("=")[0] for setting in remedies(explained(data, clock), "ahead")] == ["retention.bytes"]


def test_a_shorter_age_is_a_remedy_only_if_it_frees_more(data: Path, clock: ManualClock) -> None:
    found = remedies(explained(data, clock), "unlimited")
    ages = {name: remedy.freed_bytes for name, remedy in found.items() if "," not in name and ".ms" in name}
    assert f"retention.ms={30 * DAY}" not in ages  # the topic is ten days old
    assert len(set(ages.values())) == len(ages) > 1
    assert sorted(ages.values()) == [ages[name] for name in sorted(ages, key=lambda name: -int(name.split("=")[1]))]


def test_at_most_five_remedies_are_told_for_a_topic_the_best_first(data: Path, clock: ManualClock) -> None:
    found = explained(data, clock)
    assert [remedy.freed_bytes for remedy in found.remedies] == sorted(
        (remedy.freed_bytes for remedy in found.remedies), reverse=True
    )
    assert max(len(remedies(found, topic)) for topic in found.topics) <= 5


def deleted_bytes(root: Path, clock: ManualClock, topic: str, config: dict[str, str] | None = None) -> int:
    """The bytes that the next check deletes of a topic, after these settings were stored."""
    with kstore.Store.open(root, background=False, clock=clock, segment_bytes=4000) as store:
        store.update_topic_config(topic, config or {})
        logs = [store.log(topic, partition) for partition in store.partitions(topic)]
        return sum(segment.size_bytes for log in logs for segment in log.apply_retention())


def append_to_all(root: Path, clock: ManualClock, topic: str, config: dict[str, str] | None = None) -> None:
    with kstore.Store.open(root, background=False, clock=clock, segment_bytes=4000) as store:
        store.update_topic_config(topic, config or {})
        for partition in store.partitions(topic):
            store.append(topic, b"one more", partition=partition)


def settings_of(remedy: Remedy) -> dict[str, str]:
    return dict(pair.split("=") for pair in remedy.setting.split(","))


def freed(root: Path, clock: ManualClock, remedy: Remedy, tmp_path: Path) -> int:
    """What a remedy really frees: of two copies one gets the setting."""
    copies = [tmp_path / "with", tmp_path / "without"]
    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
    if remedy.from_ms is None:
        return deleted_bytes(copies[0], clock, remedy.topic, settings_of(remedy)) - deleted_bytes(
            copies[1], clock, remedy.topic
        )
    now = clock()
    append_to_all(copies[0], clock, remedy.topic, settings_of(remedy))
    append_to_all(copies[1], clock, remedy.topic)
    clock.advance(remedy.from_ms - 1 - now)
    for copy in copies:
        append_to_all(copy, clock, remedy.topic)  # as appends go on, an active segment never becomes old as a whole
    clock.advance(1)
    found = deleted_bytes(copies[0], clock, remedy.topic) - deleted_bytes(copies[1], clock, remedy.topic)
    clock.advance(now - remedy.from_ms)
    return found


def test_a_remedy_frees_what_it_promises(data: Path, clock: ManualClock, tmp_path: Path) -> None:
    found = explained(data, clock)
    tried = 0
    for remedy in found.remedies:
        if not remedy.is_at_most:
            tried += 1
            assert (remedy, freed(data, clock, remedy, tmp_path)) == (remedy, remedy.freed_bytes)
    assert tried > 5
    [roll] = [remedy for remedy in found.remedies if remedy.topic == "huge"]
    assert (roll.setting, roll.freed_bytes) == (f"segment.ms={DAY}", of(found, "huge").log_bytes)
    assert roll.from_ms == clock() + DAY + 1


def test_a_cleaning_frees_at_most_what_is_promised(data: Path, clock: ManualClock, tmp_path: Path) -> None:
    [remedy] = remedies(explained(data, clock), "keyed").values()
    assert (remedy.setting, remedy.is_at_most) == ("min.cleanable.dirty.ratio=0", True)
    with kstore.Store.open(data, background=False, clock=clock, segment_bytes=4000) as store:
        [stats] = store.compact("keyed").values()
    assert 0 < stats.bytes_before - stats.bytes_after <= remedy.freed_bytes


def test_remedies_of_random_logs_free_what_they_promise(
    tmp_path: Path, clock: ManualClock, rng: Random, budget: Callable[[float], float]
) -> None:
    tried = 0
    for number in range(max(2, int(budget(4)))):
        random = Random(rng.random())
        root = tmp_path / f"data{number}"
        now = clock()
        with kstore.Store.open(root, background=False, clock=clock, segment_bytes=4000) as store:
            config: dict[str, object] = {"segment.ms": random.choice((HOUR, DAY, 30 * DAY)), LATE: 10**15}
            if random.random() < 0.6:
                config["retention.ms"] = random.choice((HOUR, 3 * DAY, 20 * DAY))
            if random.random() < 0.4:
                config["retention.bytes"] = random.randrange(0, 60_000)
            partitions = random.randint(1, 3)
            store.create_topic("t", partitions, config=config)
            for _ in range(random.randrange(1, 150)):
                clock.advance(random.choice((0, HOUR, 10 * HOUR, DAY)))
                skew = random.choice((0, 0, 0, 0, -3 * DAY, HOUR))
                store.append("t", bytes(random.randrange(900)), timestamp=clock() + skew)
        for remedy in explained(root, clock).remedies:
            tried += 1
            found = freed(root, clock, remedy, tmp_path)
            if remedy.from_ms is None or partitions == 1:
                assert (remedy, found) == (remedy, remedy.freed_bytes)
            else:  # in the meantime, other partitions' segments are rolled sooner, too
                assert (remedy, found >= remedy.freed_bytes) == (remedy, True)
        clock.advance(now - clock())
    assert tried


# --- a broker's directory ---------------------------------------------------------------------------------------------


def test_of_a_brokers_directory_it_says_that_its_settings_are_not_known(
    golden: Callable[[str], Path], clock: ManualClock
) -> None:
    root = golden("retention") / "after-restart"
    clock.advance(YEAR_2030 - clock())
    found = explained(root, clock)
    assert found.note is not None
    assert found.note.startswith(f"A broker wrote {root}, and its settings are not in the directory")
    total = sum(each.log_bytes for each in found.partitions)
    default = f"With Kafka's default of retention.ms = {7 * DAY} ms (7 d) a check would delete"
    assert f"{default} 6 segments, {total} bytes, in 2 partitions. " in found.note
    assert "-c server.properties" in found.note
    assert found.note in str(found)
    with kstore.Store.open(root, "r", clock=clock, config={"log.retention.hours": "168"}) as store:
        known = store.explain()
    assert known.note == f"No process has {root} open for writing now, so nothing checks it."
    assert sum(each.expired_bytes for each in known.partitions) == total
    clock.advance(-10 * 365 * DAY)
    assert "a check would delete nothing yet" in (explained(root, clock).note or "")
