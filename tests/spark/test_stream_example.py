"""The pipeline of `examples/streams_spark.py`: files, a topic, counts per window, stopped in the middle."""

from __future__ import annotations

import json
import runpy
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.files.stream_positions import read_positions
from tests.spark.spark_session import limits_batches
from tests.spark.spark_session import spark as spark

pytestmark = pytest.mark.spark

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "streams_spark.py"))


@limits_batches  # before it, the query that counts has one batch, and writes no day that this batch ends
def test_the_pipeline_stores_and_counts_each_row_once_over_a_restart(spark: Any, tmp_path: Path) -> None:
    EXAMPLE["run"](spark, tmp_path, EXAMPLE["made_up"](3, 1000))
    [positions] = read_positions(str(tmp_path / "data"))
    assert sum(positions.offsets.values()) == 3 * 1000


def written(directory: Path, rows: list[tuple[str, int, datetime]]) -> None:
    """Make a store whose topic `flights` has these rows, and whose topic `days` is empty."""
    shutil.rmtree(directory / "data", ignore_errors=True)
    with kstore.Store.open(directory / "data", background=False) as store:
        for topic in ("flights", "days"):
            store.create_topic(topic)
        for carrier, distance, at in rows:
            store.append("flights", json.dumps({"carrier": carrier, "distance": distance}).encode(), timestamp=at)


def test_the_pipeline_notices_a_row_that_is_lost_or_stored_twice(tmp_path: Path) -> None:
    rows = EXAMPLE["made_up"](1, 3)[0]
    EXAMPLE["arrive"](tmp_path, [rows], 0)
    for stored in (rows[:2], [*rows, rows[0]]):
        written(tmp_path, stored)
        with pytest.raises(AssertionError):
            EXAMPLE["compare"](tmp_path, timedelta(days=1))
    written(tmp_path, rows)
    EXAMPLE["compare"](tmp_path, timedelta(days=1))
