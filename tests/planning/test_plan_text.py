"""The text of plans, their JSON and their table."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import kstore
from kstore.explained.explained_plan import Plan
from kstore.explained.plan_text import plan_text, plans_text

DAY = 86_400_000


@pytest.fixture(scope="module")
def plan() -> Plan:
    return kstore.plan(rate=0.2, record_bytes=150, segment_bytes=16384, retention_ms=600_000)


def test_the_text_says_load_settings_ranges_and_advice(plan: Plan) -> None:
    lines = str(plan).splitlines()
    assert lines[0] == "30 days of a record each 5 seconds, 150 bytes each; 2.5 MiB a day"
    assert lines[1] == "settings: segment.bytes = 16.0 KiB, retention.ms = 10 minutes"
    assert "a record is readable for  10 min 5 s  17 min 2 s    24 min" in lines
    assert "segments in all: 4,756; why the log rolls: segment.bytes 4,755" in lines
    assert any(line.startswith("acts first: segment.bytes; the first deleted files are gone after") for line in lines)
    assert any(line.endswith("everything repeats each 9 hours 5 minutes") for line in lines)
    assert "what to change:" in lines
    assert f"- {plan.advice[0]}" in lines
    assert "notes:" in lines
    assert not str(plan).endswith("\n")


def test_a_log_that_only_grows_has_no_end() -> None:
    lines = str(kstore.plan(rate=1)).splitlines()
    assert any(line.split()[-4:] == ["no", "end", "no", "end"] for line in lines)
    assert "settings: all at their defaults" in lines
    assert any("no file goes in this time" in line for line in lines)


def test_parts_of_the_load_are_told() -> None:
    text = str(
        kstore.plan(
            rate=1000,
            record_bytes=100,
            batch_records=10,
            skew=600_000,
            idle=["22:00-06:00", "12:00-12:30"],
            keys=500,
            cleanup_policy="compact",
            segment_bytes=1 << 20,
            duration=DAY,
        )
    )
    assert text.startswith("1 day of 1,000 records a second, 100 bytes each in batches of 10; 5.2 GiB a day; ")
    assert "idle 12:00-12:30 and 22:00-06:00; timestamps up to 10 minutes behind; 500 keys" in text
    assert "cleanings: " in text


def test_two_plans_stand_side_by_side(plan: Plan) -> None:
    wished = kstore.plan(
        rate=0.2, record_bytes=150, segment_bytes=16384, retention_ms=600_000, log_retention_check_interval_ms=60_000
    )
    lines = plans_text(plan, wished).splitlines()
    header = next(line for line in lines if line.endswith("wished"))
    assert header.split() == ["today", "wished"]
    row = next(line for line in lines if line.startswith("log.retention.check.interval.ms"))
    assert row.endswith("  1 minute")
    assert "5 minutes" in row
    assert not any(line.startswith("segment.bytes ") for line in lines)  # which is the same
    life = next(line for line in lines if line.startswith("its bytes stay for"))
    assert "25 min" in life
    assert "21 min" in life
    assert not any(line.startswith("cleanings") for line in lines)
    other = kstore.plan(rate=5, duration=DAY)
    assert plans_text(plan, other, ("one", "two")).splitlines()[1].startswith("two: 1 day of 5 records a second")


def test_json_has_everything_by_name(plan: Plan) -> None:
    facts = json.loads(json.dumps(plan.to_dict()))
    assert facts["life_ms"] == {"least": 605_000, "typical": facts["life_ms"]["typical"], "most": 1_440_000}
    assert facts["given"] == ["retention.ms", "segment.bytes"]
    assert facts["settings"]["segment.bytes"] == 16384
    assert facts["segments"][0]["size_bytes"] == 109 * 150
    assert facts["roll_reasons"] == {"size": 4755}
    assert facts["load"]["rate"] == 0.2
    growing = kstore.plan(rate=1).to_dict()
    assert growing["life_ms"] is None


def test_the_table_has_a_row_for_each_segment(plan: Plan) -> None:
    table = plan.to_arrow()
    assert table.num_rows == len(plan.segments)
    assert table.column_names[:3] == ["base_offset", "next_offset", "size_bytes"]
    assert table.schema.field("deleted_ms").type == pa.duration("ms")
    assert table["offset_index_entries"][0].as_py() == plan.segments[0].offset_index_entries
    assert table["delete_reason"][0].as_py() == "time"


def test_the_text_holds_no_control_characters(plan: Plan) -> None:
    assert all(line.isprintable() for line in plan_text(plan).splitlines())
