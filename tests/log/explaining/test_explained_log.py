"""The whole explanation: settings, who checks, what is not known, what compaction waits for; nothing changes."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import kstore
from kstore.explained.explanation import CheckTimes, Explanation
from kstore.log.hosted_log import HostedLog
from kstore.log.segments.segment import Segment
from tests.conftest import ManualClock

pytestmark = [pytest.mark.usefixtures("no_syncs"), pytest.mark.filterwarnings("ignore::kstore.ConfigWarning")]

NOW = 1_700_000_000_000
SECOND, MINUTE, DAY = 1000, 60_000, 86_400_000


def fill(partition: Path, *, records: int = 8, every: int = DAY, **settings: Any) -> None:
    """Two records in each segment; one record each day, the first eight days before NOW."""
    with kstore.Log.open(partition, clock=ManualClock(NOW), segment_bytes=250, **settings) as log:
        for number in range(records):
            log.append(b"v" * 30, key=b"k%d" % (number % 2), timestamp=NOW - (records - number) * every)


def explained(partition: Path, mode: Any = "r", **settings: Any) -> Explanation:
    with kstore.Log.open(partition, mode=mode, clock=ManualClock(NOW), **settings) as log:
        return log.explain()


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


# Nothing changes.


def test_it_changes_nothing_and_takes_no_lock(root: Path, partition: Path) -> None:
    fill(partition)
    with kstore.Log.open(partition, clock=ManualClock(NOW)) as log:
        log.append(b"v")
        before = contents(root)
        with kstore.Log.open(partition, mode="r", retention_ms=0, retention_bytes=0) as reader:
            assert reader.explain(offset=3, at=NOW + DAY).record is not None
        assert log.explain(offset=3).record is not None
        assert contents(root) == before


def test_an_empty_log_and_a_new_directory_are_explained(root: Path, partition: Path) -> None:
    partition.mkdir()
    assert explained(partition).segments == ()
    fill(partition, records=0)
    [only] = explained(partition).segments
    assert (only.holds, only.first_timestamp, only.max_timestamp, only.is_active) == (
        ("only_segment",),
        None,
        None,
        True,
    )
    with kstore.Log.open(partition, mode="r") as log, pytest.raises(kstore.OffsetOutOfRangeError):
        log.explain(offset=0)


@pytest.mark.parametrize("mode", ["a", "r"])
def test_asked_again_it_opens_no_file_again(partition: Path, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that shows a log of very many segments asks every second."""
    fill(partition, records=40)
    with kstore.Log.open(partition, mode=mode, clock=ManualClock(NOW)) as log:
        first = log.explain()
        for segment in HostedLog(log).view.segments.items[:-1]:
            segment.let_go()

        def refuse(self: Segment) -> Any:
            raise AssertionError(f"{self.path} was opened again")

        monkeypatch.setattr(Segment, "_open_file", refuse)
        assert log.explain() == first


def test_a_closed_log_explains_nothing(partition: Path) -> None:
    for mode in ("a", "r"):
        log = kstore.Log.open(partition, mode=mode)  # type: ignore[arg-type]
        log.close()
        with pytest.raises(kstore.LogClosedError):
            log.explain()


def test_it_may_be_asked_while_the_log_rolls_and_loses_segments(partition: Path) -> None:
    settings: dict[str, Any] = {"segment_bytes": 300, "retention_bytes": 3000, "file_delete_delay_ms": 0}
    with kstore.Log.open(partition, clock=ManualClock(NOW), **settings) as log:
        log.append(b"v" * 30)
        turns: SimpleQueue[bool] = SimpleQueue()

        def append() -> None:
            while turns.get():  # once for each question: a log that never stands still is never described
                log.append_many([b"v" * 30] * 10)
                log.apply_retention()
                log.run_housekeeping()

        writer = threading.Thread(target=append)
        writer.start()
        try:
            with kstore.Log.open(partition, mode="r", **settings) as reader:
                seen: set[int] = set()
                for _ in range(25):
                    for each in (log, reader):
                        turns.put(True)
                        found = each.explain(timestamp=NOW)
                        bases = [segment.base_offset for segment in found.segments]
                        ends = [segment.next_offset for segment in found.segments]
                        assert ends == [*bases[1:], found.log_end_offset]
                        assert found.record is None or bases[0] <= found.record.offset < ends[-1]
                        seen.add(ends[-1])
        finally:
            turns.put(False)
            writer.join()
        assert len(seen) > 2


def test_the_moment_may_be_a_datetime(partition: Path) -> None:
    fill(partition)
    with kstore.Log.open(partition, mode="r", clock=ManualClock(NOW), retention_ms=DAY) as log:
        assert log.explain().at_ms == NOW
        when = datetime(2023, 11, 7, 22, 13, 20, tzinfo=UTC)
        then = log.explain(at=when)
        assert then.at_ms == NOW - 7 * DAY
        assert [each.holds[0] for each in then.segments] == ["retention.ms", *["future_record"] * 3]
        assert log.explain(at=NOW + DAY).segments[-1].holds == ("check",)
        with pytest.raises(kstore.InvalidTimestampError):
            log.explain(at=datetime(2023, 11, 7))


def test_it_can_be_written_as_json(partition: Path) -> None:
    fill(partition, cleanup_policy="compact")
    with kstore.Log.open(partition, mode="r", cleanup_policy="compact") as log:
        found = json.loads(json.dumps(log.explain(offset=1).to_dict()))
    assert found["record"]["steps"][0]["what"] == "segment"
    assert found["settings"]["cleanup.policy"] == "compact"


def test_a_log_in_an_object_store_is_explained_like_its_directory(tmp_path: Path) -> None:
    fill(tmp_path / "data" / "events-0")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    settings: dict[str, Any] = {"segment_bytes": 250, "retention_ms": 3 * DAY, "clock": ManualClock(NOW)}
    with kstore.Log.open(tmp_path / "data" / "events-0", mode="r", **settings) as log:
        here = log.explain(offset=5)
    with kstore.Log.open(f"{(tmp_path / 'copy').as_uri()}/events-0", mode="r", **settings) as log:
        there = log.explain(offset=5)
    assert [replace(each, path="") for each in there.segments] == [replace(each, path="") for each in here.segments]
    assert there.record is not None
    assert here.record is not None
    assert [step.found for step in there.record.steps] == [step.found for step in here.record.steps]
    assert (there.checks.by, there.deleted, there.note) == ("caller", (), None)


# Settings.


def test_the_deciding_settings_and_those_that_were_given(partition: Path) -> None:
    fill(partition)
    found = explained(partition, retention_bytes=1000, segment_bytes=250)
    assert found.settings == {
        "segment.bytes": 250,
        "segment.ms": 7 * DAY,
        "segment.jitter.ms": 0,
        "segment.index.bytes": 10 << 20,
        "index.interval.bytes": 4096,
        "retention.bytes": 1000,
        "retention.ms": -1,
        "file.delete.delay.ms": MINUTE,
        "cleanup.policy": "delete",
    }
    assert found.given == {"retention.bytes", "segment.bytes"}
    of_compaction = {
        "delete.retention.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "max.compaction.lag.ms",
    }
    assert explained(partition, cleanup_policy="compact").settings.keys() - found.settings.keys() == of_compaction


def test_a_lone_log_is_checked_by_its_callers(partition: Path) -> None:
    fill(partition)
    for mode in ("a", "r"):
        found = explained(partition, mode, retention_ms=3 * DAY)
        assert found.checks == CheckTimes("caller", None, None)
        assert [each.latest_ms for each in found.segments] == [None] * 4
        assert [each.earliest_ms for each in found.segments] == [NOW, NOW, NOW + 1, NOW + 2 * DAY + 1]
        assert found.note is None


def test_a_store_tells_its_next_check_and_the_cleaners_next_pass(root: Path) -> None:
    clock = ManualClock(NOW)
    config = {"log.retention.check.interval.ms": MINUTE, "log.cleaner.backoff.ms": 20 * SECOND}
    with kstore.Store.open(root, clock=clock, background=False, config=config) as store:
        store.create_topic("deleted")
        store.create_topic("compacted", config={"cleanup.policy": "compact"})
        clock.advance(30 * SECOND)
        store.run_housekeeping()
        clock.advance(7 * SECOND)
        found = store.log("deleted", 0).explain()
        assert found.checks == CheckTimes("store", NOW + 90 * SECOND, MINUTE)
        assert found.settings["log.retention.check.interval.ms"] == MINUTE
        assert "log.retention.check.interval.ms" in found.given
        compacted = store.log("compacted", 0).explain()
        assert compacted.checks == CheckTimes("cleaner", NOW + 50 * SECOND, 20 * SECOND)
        assert compacted.settings["log.cleaner.backoff.ms"] == 20 * SECOND
        with kstore.Store.open(root, mode="r", config=config) as reader:
            assert reader.log("deleted", 0).explain().checks == CheckTimes("broker", None, MINUTE)
            assert reader.log("compacted", 0).explain().checks == CheckTimes("cleaner", None, 20 * SECOND)
            assert (reader.log("deleted", 0).explain().note or "").startswith(f"A store wrote {root}: the settings")
            assert reader.log("compacted", 0).explain().note is None
        with kstore.Store.open(root, mode="r", config={**config, "retention.ms": "1000"}) as reader:
            assert reader.log("deleted", 0).explain().note is None


def test_without_a_cleaner_the_retention_task_checks_compacted_logs(root: Path) -> None:
    config = {"log.cleaner.threads": 0, "cleanup.policy": "compact"}
    with kstore.Store.open(root, clock=ManualClock(NOW), background=False, config=config) as store:
        store.create_topic("compacted")
        assert store.log("compacted", 0).explain().checks == CheckTimes("store", NOW + 30 * SECOND, 5 * MINUTE)


def test_the_log_of_a_store_elsewhere_says_where_its_settings_are(root: Path) -> None:
    with kstore.Store.open(root, clock=ManualClock(NOW), background=False) as store:
        store.create_topic("orders", config={"retention.ms": "1000"})
        store.append("orders", b"v")
        found = explained(root / "orders-0")
        assert found.checks == CheckTimes("broker", None, 5 * MINUTE)
        assert found.note == (
            f"A store wrote {root}: the settings that it was opened with are not in the directory, and those of its "
            "topics are in kstore-topics.json, which only a store reads. Open the log with Store.open."
        )
    unused = f"No process has {root} open for writing now, so nothing checks it."
    assert explained(root / "orders-0", retention_ms=1000).note == unused


# A record from the future.


def test_a_record_from_2030_tells_every_record_why_it_stays(partition: Path) -> None:
    in_2030 = 1_900_000_000_000
    settings: dict[str, Any] = {"segment_bytes": 250, "segment_ms": 2**62, "retention_ms": DAY}
    settings["message_timestamp_after_max_ms"] = 2**62
    with kstore.Log.open(partition, clock=ManualClock(NOW), **settings) as log:
        for number in range(6):
            log.append(b"v" * 30, timestamp=in_2030 if number == 1 else NOW - 6 + number)
        first, second, third = (log.explain(offset=offset).record for offset in (0, 2, 5))
        assert first is not None
        assert first.future[1:4] == (
            "A record of its segment is from 2030-03-17T17:46:40.000Z, ahead of the clock, and retention.ms counts "
            "from that.",
            "It can be deleted from 2030-03-18T17:46:40.001Z on, when the newest record of its segment is older than "
            "retention.ms = 86400000 ms (1 d).",
            "A call of apply_retention deletes it.",
        )
        assert second is not None
        assert second.future[1:3] == (
            "Segment 0, which goes first, stays until 2030-03-18T17:46:40.001Z.",
            "It can be deleted from 2030-03-18T17:46:40.001Z on, when that segment goes.",
        )
        assert third is not None
        assert third.future[2] == (
            "It can be deleted from 2030-03-18T17:46:40.001Z on, when that segment goes, unless more is appended to "
            "its segment."
        )
        assert {each.earliest_ms for each in log.explain().segments} == {in_2030 + DAY + 1}


# A broker's directory.


@pytest.fixture
def brokers(root: Path) -> Path:
    (root / "meta.properties").write_text("version=1\n")
    fill(root / "events-0", every=2 * DAY)
    return root / "events-0"


def test_a_brokers_settings_are_not_known_and_its_defaults_are_told(root: Path, brokers: Path) -> None:
    found = explained(brokers)
    assert found.checks == CheckTimes("broker", None, 5 * MINUTE)
    assert [each.holds for each in found.segments] == [("no_limit",)] * 4
    assert found.note == (
        f"A broker wrote {root}, and its settings are not in the directory: they are in its server.properties, and "
        "those of a topic in the metadata of its cluster. With Kafka's default of retention.ms = 604800000 ms (7 d), "
        "the next check would delete offsets 0 to 3, in 2 of 4 segments, and segment 4 would be deleted from "
        "2023-11-15T22:13:20.001Z on and segment 6, the last, from 2023-11-19T22:13:20.001Z on, if nothing more is "
        'appended. Give the settings with config="server.properties", on the command line with -c server.properties. '
        f"No process has {root} open for writing now, so nothing checks it."
    )


def test_what_the_note_foretells_is_what_kafkas_default_does(brokers: Path) -> None:
    found = explained(brokers, config=kstore.LogConfig.from_kafka({}), segment_bytes=250)
    assert [each.holds[0] for each in found.segments] == ["check", "check", "retention.ms", "retention.ms"]
    assert [each.earliest_ms for each in found.segments] == [NOW, NOW, NOW + DAY + 1, NOW + 5 * DAY + 1]
    assert [each.latest_ms for each in found.segments] == [
        None if each.earliest_ms is None else each.earliest_ms + 5 * MINUTE for each in found.segments
    ]


@pytest.mark.parametrize("given", [{"retention_ms": -1}, {"retention_ms": DAY}, {"cleanup_policy": "compact"}])
def test_a_given_retention_needs_no_note(root: Path, brokers: Path, given: dict[str, Any]) -> None:
    assert explained(brokers, **given).note == f"No process has {root} open for writing now, so nothing checks it."
    with kstore.Store.open(root, clock=ManualClock(NOW), background=False):
        assert explained(brokers, **given).note is None


def test_the_brokers_file_gives_its_periods(brokers: Path, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("log.retention.hours=72\nlog.retention.check.interval.ms=1000\nlog.cleaner.backoff.ms=7\n")
    found = explained(brokers, config=properties)
    assert found.checks == CheckTimes("broker", None, 1000)
    assert [each.due_ms for each in found.segments][-1] == NOW + DAY + 1
    assert {"log.retention.check.interval.ms", "retention.ms"} <= found.given
    assert explained(brokers, config=properties, cleanup_policy="compact").checks == CheckTimes("cleaner", None, 7)


# Compaction and transactions.


def waits(found: Explanation) -> list[str | None]:
    return [each.compaction for each in found.segments]


def test_compaction_waits_for_the_ratio_and_for_a_roll(partition: Path) -> None:
    fill(partition)
    assert waits(explained(partition)) == [None] * 4
    settings: dict[str, Any] = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.5}
    assert waits(explained(partition, **settings)) == [
        "its offsets from 0 on are dirty; the next pass of a cleaner cleans it",
        "its offsets from 2 on are dirty; the next pass of a cleaner cleans it",
        "its offsets from 4 on are dirty; the next pass of a cleaner cleans it",
        "the active segment is never cleaned: it waits for a roll",
    ]
    with kstore.Log.open(partition, clock=ManualClock(NOW), segment_bytes=250, **settings) as log:
        log.compact()
        log.append(b"v" * 30, key=b"k0", timestamp=NOW)
        found = log.explain()
        ratio = found.compaction.ratio
        assert ratio is not None
        clean = "it is clean; cleanings of later segments drop what newer records supersede here"
        dirty = "its offsets from 6 on are dirty"
        assert waits(found) == [
            *[clean] * (len(found.segments) - 2),
            f"{dirty}; {ratio:.4g} of the log is dirty, and a pass takes it above min.cleanable.dirty.ratio = 0.5",
            "the active segment is never cleaned: it waits for a roll",
        ]
        log.update_config(min_cleanable_dirty_ratio=ratio - 0.001)
        assert waits(log.explain())[-2] == f"{dirty}; the next pass of a cleaner cleans it"


def test_compaction_waits_for_a_lag(partition: Path) -> None:
    fill(partition, every=MINUTE)
    found = explained(partition, cleanup_policy="compact", min_compaction_lag_ms=6 * MINUTE)
    held = "min.compaction.lag.ms = 360000 ms (6 min) holds offsets from 2 on until 2023-11-14T22:14:20.000Z"
    assert waits(found)[1:3] == [held, held]
    assert waits(found)[0] == "its offsets from 0 on are dirty; the next pass of a cleaner cleans it"


def test_compaction_waits_for_a_transaction_and_retention_does_not(partition: Path) -> None:
    settings: dict[str, Any] = {"cleanup_policy": "compact,delete", "segment_bytes": 250, "retention_ms": MINUTE}
    with kstore.Log.open(partition, clock=ManualClock(NOW), **settings) as log:
        for number in range(8):
            sequence = number - 3
            producer: dict[str, Any] = {}
            if sequence >= 0:
                producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
            log.append_many([(b"k", b"v" * 30, NOW + number, None)], **producer)
        found = log.explain()
        assert (found.last_stable_offset, found.log_end_offset) == (3, 8)
        wait = "nothing from offset 2 on is cleaned before the transaction of producer id 7, open since offset 3, ends"
        assert waits(found)[1:3] == [wait, wait]
        assert [each.earliest_ms for each in found.segments] == [NOW + 1 + 2 * each + MINUTE + 1 for each in range(4)]


@pytest.mark.parametrize(
    ("key", "said"), [(b"k", "No newer record of its key is below offset 1:"), (None, "It has no key, so")]
)
def test_a_record_of_a_compacted_log_is_told_what_waits_for_it(partition: Path, key: bytes | None, said: str) -> None:
    with kstore.Log.open(partition, clock=ManualClock(NOW)) as log:
        log.append(b"v", key=key)
    with kstore.Log.open(partition, mode="r", cleanup_policy="compact") as log:
        found = log.explain(offset=0).record
        assert found is not None
        assert found.future[-1].startswith(said)
