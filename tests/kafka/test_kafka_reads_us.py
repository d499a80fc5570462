"""Kafka reads us: its dump tool, index checks and record classes on directories that kstore wrote.

Each directory is checked by `accepted`: every record comes back as it was given, every index entry points where it
says, and the tool finds nothing to complain about, nor anything to mend.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.conftest import ManualClock
from tests.kafka.kafka_jvm import Kafka
from tests.kafka.kafka_sides import contents
from tests.support.staging import stage_task

pytestmark = pytest.mark.kafka

Given = tuple[bytes | None, bytes | None, int, Any]
Accepted = Callable[[Path, Iterable[Given]], list[str]]

ROLLS = [
    ("size", {"internal_segment_bytes": 4000}),
    ("time", {"segment_ms": 20}),
    ("offset_index_full", {"index_interval_bytes": 0, "segment_index_bytes": 160}),
    ("time_index_full", {"index_interval_bytes": 0, "segment_index_bytes": 160}),
]


@pytest.fixture
def accepted(kafka: Kafka, tmp_path: Path) -> Accepted:
    """`accepted(directory, given)`: Kafka finds the given records and no fault; the names of its .log files."""

    def check(directory: Path, given: Iterable[Given]) -> list[str]:
        copy = tmp_path / "copy" / directory.name
        shutil.copytree(directory, copy)
        lines = kafka.records(copy)
        assert all(line.get("valid") for line in lines), [line for line in lines if not line.get("valid")]
        assert [_given(line) for line in lines] == [
            (key, value, ts, list(headers or ())) for key, value, ts, headers in given
        ]
        logs = sorted(copy.glob("*.log"))
        dumped = kafka.dump("--deep-iteration", "--print-data-log", "--files", ",".join(map(str, logs)))
        assert (dumped.code, _complaints(dumped.err)) == (0, [])
        assert dumped.out.count("| offset: ") == len(lines)
        assert "isvalid: false" not in dumped.out
        for path in sorted([*copy.glob("*.index"), *copy.glob("*.timeindex")]):
            if path.stat().st_size == 0:
                continue
            sane = kafka.dump("--index-sanity-check", "--files", path)
            assert (sane.code, sane.out, sane.err) == (0, f"Dumping {path}\n{path} passed sanity check.\n", "")
            verified = kafka.dump("--verify-index-only", "--files", path)
            assert (verified.code, verified.out, verified.err) == (0, f"Dumping {path}\n", "")
        for path in copy.glob("*.snapshot"):
            assert kafka.dump("--files", path) == (0, f"Dumping {path}\n", "")
        assert contents(copy) == contents(directory)
        return [path.name for path in logs]

    return check


def _complaints(err: str) -> list[str]:
    """What the tool found, but for the first batch of each file, which it always holds against an offset of -1."""
    lines = err.splitlines()
    return [line for line in lines if not line.startswith(("Non-consecutive offsets in ", "  -1 is followed by "))]


def _given(line: dict[str, Any]) -> tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]:
    def decode(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    headers = [(name, decode(data)) for name, data in line["headers"]]
    return decode(line["key"]), decode(line["value"]), line["timestamp"], headers


def rows(count: int, start: int, step: int = 1) -> list[Given]:
    """Records of every shape: null and empty keys and values, headers, growing values."""
    shapes: list[tuple[bytes | None, bytes | None, Any]] = [
        (None, b"value", None),
        (b"key", b"", None),
        (b"", b"v" * 300, [("name", b"x"), ("", None)]),
        (b"k" * 70, None, None),
        (None, None, [("n\u00e4me \u2603", b"")]),
    ]
    return [
        (key, value, start + i // 3 * step, headers)
        for i, (key, value, headers) in ((i, shapes[i % len(shapes)]) for i in range(count))
    ]


@pytest.mark.parametrize(("reason", "settings"), ROLLS, ids=[reason for reason, _ in ROLLS])
def test_kafka_accepts_segments_rolled_for(
    partition: Path, clock: ManualClock, accepted: Accepted, reason: str, settings: dict[str, int]
) -> None:
    step = 0 if reason == "offset_index_full" else 3 if reason == "time_index_full" else 9
    given = [
        (key, value, clock.now + i * step // 3, headers) for i, (key, value, _, headers) in enumerate(rows(100, 0))
    ]
    with kstore.Log.open(partition, clock=clock, **settings) as log:
        for key, value, timestamp, headers in given:
            log.append(value, key, timestamp=timestamp, headers=headers)  # type: ignore[arg-type]
        assert {segment.roll_reason for segment in log.segments[1:]} == {reason}
    assert len(accepted(partition, given)) >= 3


def test_kafka_accepts_segments_rolled_for_offset_range_and_by_hand(
    kafka: Kafka, partition: Path, clock: ManualClock, accepted: Accepted
) -> None:
    with kstore.Log.open(partition, clock=clock) as log:
        log.append(b"first", timestamp=clock.now)
        log.append_as_follower(
            kstore.encode_batch([(None, b"far", clock.now, None)], base_offset=2**31, partition_leader_epoch=0)
        )
        log.roll()
        log.append(b"last", timestamp=clock.now)
        assert [segment.roll_reason for segment in log.segments] == [None, "offset_range", "explicit"]
    given = [(None, value, clock.now, None) for value in (b"first", b"far", b"last")]
    assert accepted(partition, given) == [f"{base:020d}.log" for base in (0, 2**31, 2**31 + 1)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("count", [1, 7, 2000])
def test_kafka_reads_what_we_compress(
    partition: Path, clock: ManualClock, accepted: Accepted, codec: str, count: int
) -> None:
    given = rows(count, clock.now)
    with kstore.Log.open(partition, clock=clock) as log:
        log.append_many(given_as_records(given), compression=codec, batch_bytes=50_000)
    accepted(partition, given)


def given_as_records(given: Iterable[Given]) -> list[tuple[Any, ...]]:
    return [(key, value, timestamp, headers) for key, value, timestamp, headers in given]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
@pytest.mark.parametrize("level", ["least", "most"])
def test_kafka_reads_every_level(
    partition: Path, clock: ManualClock, accepted: Accepted, codec: str, level: str
) -> None:
    levels = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}[codec]
    given = rows(100, clock.now)
    settings = {"compression_type": codec, f"compression_{codec}_level": levels[level == "most"]}
    with kstore.Log.open(partition, clock=clock, **settings) as log:
        log.append_many(given_as_records(given))
    accepted(partition, given)


def test_kafka_accepts_a_log_that_lived(partition: Path, clock: ManualClock, accepted: Accepted) -> None:
    given = rows(60, clock.now)
    settings = {"internal_segment_bytes": 3000, "index_interval_bytes": 200}
    with kstore.Log.open(partition, clock=clock, **settings) as log:
        log.append_many(given_as_records(given[:40]), batch_bytes=400)
        log.truncate_to(30)
        start = log.log_end_offset
    with kstore.Log.open(partition, clock=clock, **settings) as log:
        kept = [tuple(record)[1:] for record in log.read()]
        log.append_many(given_as_records(given[40:]), batch_bytes=400, compression="zstd")
        log.delete_records(10)
        log.flush()
    assert len(kept) <= start
    accepted(partition, [(key, value, ts, headers) for ts, key, value, headers in kept] + given[40:])


def test_kafka_accepts_segments_that_a_bulk_load_brought(tmp_path: Path, accepted: Accepted) -> None:
    root = tmp_path / "logs"
    settings = {"segment_bytes": 3000, "index_interval_bytes": 200}
    given = rows(150, 1000)
    with kstore.Store.open(root, background=False, clock=ManualClock(), **settings) as store:
        store.create_topic("t", 1)
        store.append_many("t", given[:30])
        staged = [
            stage_task(root, task, "t", {0: given[first : first + 40]}, partitions=1, batch_bytes=500, **settings)
            for task, first in enumerate((30, 70))
        ]
        store.adopt([*staged[0], *staged[1]], rename_bytes=1)
        store.append_many("t", given[110:])
    assert len(accepted(root / "t-0", given)) >= 6
