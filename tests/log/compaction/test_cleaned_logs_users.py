"""What stands above the readers takes a cleaned log as it is: stores, groups, scans by Spark, the command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore import cli
from tests.conftest import examples
from tests.support.compacted import NOW, HandMade, SegmentFiles, drawn, fresh, write

pytestmark = pytest.mark.usefixtures("no_syncs")

a_log = given(st.integers(0, 2**32), st.integers(1, 14), st.integers(1, 3))


@contextlib.contextmanager
def written(made: HandMade) -> Iterator[Path]:
    """A root with the log as partition `events-0`, recovered once, so that its producers are known."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write(made, root / "events-0", recovery_point=0)
        kstore.Log.open(root / "events-0", cleanup_policy="compact", index_interval_bytes=200).close()
        yield root


def run(*arguments: object) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out):
        assert cli.main([str(each) for each in arguments]) == 0
    out.seek(0)
    return out.read()


def pairs(records: Any) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records]


@pytest.mark.parametrize("mode", ["a", "r"])
@examples(0.3)
@a_log
def test_a_store_and_its_groups_read_it(mode: Literal["a", "r"], seed: int, batches: int, passes: int) -> None:
    rng, made = drawn(seed, batches, passes)
    offset = rng.randint(0, made.end)
    with written(made) as root, kstore.Store.open(root, mode=mode) as store:
        expected = [(r.offset, r.value) for r in made.records(offset)]
        assert pairs(store.read("events", offsets={0: offset})) == expected
        assert pairs(store.read("events", offsets={0: offset}, merge="timestamp")) == expected
        columns = store.read_columns("events", offsets={0: offset}, max_records=rng.choice((1, 5)))
        assert [at for _, chunk in columns for at in chunk.offsets.tolist()] == [at for at, _ in expected]
        committed = [(r.offset, r.value) for r in made.records(committed=True)]
        assert pairs(store.read("events", isolation="read_committed")) == committed
        if mode == "r":
            return
        half = len(committed) // 2
        with store.consumer("g", "events", isolation="read_committed") as consumer:
            assert pairs(next(consumer) for _ in range(half)) == committed[:half]
            consumer.commit()
        with store.consumer("g", "events", isolation="read_committed") as consumer:
            assert pairs(consumer) == committed[half:]


@examples(0.3)
@a_log
def test_a_follower_goes_on_behind_it(seed: int, batches: int, passes: int) -> None:
    _, made = drawn(seed, batches, passes)
    with (
        written(made) as root,
        kstore.Log.open(root / "events-0", cleanup_policy="compact") as log,
        kstore.Log.open(root / "events-0", "r") as other,
    ):
        followers = [each.read(follow=True, timeout=60) for each in (log, other)]
        for follower in followers:
            assert pairs(next(follower) for _ in made.records()) == [(r.offset, r.value) for r in made.records()]
        offset = log.append(b"next", key=b"k")
        for follower in followers:
            assert next(follower).offset == offset == made.end


@examples(0.3)
@a_log
def test_the_command_line_tells_of_it(seed: int, batches: int, passes: int) -> None:
    _, made = drawn(seed, batches, passes)
    with written(made) as root:
        told = json.loads(run("describe", root / "events-0", "--json"))
        assert str(made.end) in json.dumps(told)
        lines = [json.loads(line) for line in run("cat", root / "events-0", "--json").splitlines()]
        assert [line["offset"] for line in lines] == [r.offset for r in made.records()]
        run("export", root / "events-0", "--to", root / "x.jsonl")
        exported = [json.loads(line) for line in (root / "x.jsonl").read_text().splitlines()]
        assert [line["offset"] for line in exported] == [r.offset for r in made.records()]
        for segment in made.segments:
            text = run("dump", "--print-data-log", "--files", root / "events-0" / f"{segment.base:020d}.log")
            assert text.count("baseOffset:") == len(segment.batches)
            assert text.count("| offset:") == sum(len(each.records) for each in segment.batches)
        run("retain", root / "events-0", "--dry-run")


@examples(0.3)
@a_log
def test_a_scan_by_spark_gives_its_records(seed: int, batches: int, passes: int) -> None:
    pytest.importorskip("pyarrow")
    from kstore.spark.integer_set import IntegerSet
    from kstore.spark.pushdown import NO_FILTERS, Filters
    from kstore.spark.scanning import Scan, plan
    from kstore.spark.spark_options import ReadOptions

    rng, made = drawn(seed, batches, passes)
    with written(made) as root:
        given = {"subscribe": "events", "minPartitions": str(rng.choice((1, 4, 9)))}
        isolation = rng.choice(("read_committed", "read_uncommitted"))
        expected = made.records(committed=isolation == "read_committed")
        times = sorted({r.timestamp for r in expected} | {NOW})
        filters = NO_FILTERS
        if rng.random() < 0.5:
            filters = Filters(
                timestamps=IntegerSet(tuple(sorted(rng.sample(times, min(len(times), rng.choice((1, 2)))))))
            )
        options = ReadOptions.parse({**given, "isolation": isolation})
        pieces = plan(root, options, min_partitions=options.min_partitions, filters=filters)
        scan = Scan(options.columns, options.isolation, options.fail_on_data_loss, filters=filters)
        rows = [row for piece in pieces for batch in scan.batches(piece) for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == [r.offset for r in expected if r.timestamp in filters.timestamps]


def test_retention_deletes_segments_of_0_bytes_and_by_the_times_that_are_left() -> None:
    rng = random.Random(7)
    made = fresh(rng, 40)
    bare = HandMade([SegmentFiles(s.base) for s in made.segments[:3]] + made.segments[3:], made.end)
    with written(bare) as root:
        for path in (root / "events-0").iterdir():
            os.utime(path, (NOW / 1000, NOW / 1000))
        settings: dict[str, Any] = {"cleanup_policy": "compact,delete", "retention_ms": 1000}
        with kstore.Log.open(root / "events-0", clock=lambda: NOW + 10**9, **settings) as log:
            last = log.segments[-1].base_offset
            assert log.segments[0].size_bytes == 0
            log.apply_retention()
            assert log.log_start_offset >= last
            assert log.log_end_offset == made.end
