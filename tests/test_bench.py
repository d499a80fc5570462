"""What bench/ writes and compares by itself: the tables of docs/performance.md, and counts of instructions."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")


def module_of_bench(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(REPOSITORY / "bench")
    return importlib.import_module(name)


def result(contestant: str, seconds: list[float], **more: Any) -> dict[str, Any]:
    question = {"text": "how fast?", "unit": "rate", "limit": 2e6, "against": [["peer", 2.0]]}
    about = {"contestant": contestant, "operations": 3_000_000, "size_bytes": 300_000_000, "rounds": seconds}
    return {"question": question, **about, "asked_by": "bench_log.py", **more}


RUN = {
    "run": {
        "machine": "a processor",
        "processors": 2,
        "memory_gib": 8,
        "date": "1 January 2026, 00:00 UTC",
        "commit": "abc",
        "commit_date": "2025-12-31",
        "command": "make bench",
        "minutes": 9,
        "scale": 0.25,
        "threads": 2,
        "load_before": 0.1,
        "load_after": 1.1,
        "failed": [],
        "skipped": ["no cargo"],
    },
    "results": [result("peer", [3.0, 3.0, 3.3], asked_by="bench_kafka.py"), result("kstore", [1.0, 1.0, 1.5])],
}


def test_a_table_says_medians_best_spread_real_sizes_and_whether_limits_were_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = module_of_bench("tables", monkeypatch)
    lines = list(tables.tables(RUN))
    asked = "met: at least 2 M/s; met: 3.00 times peer, at least 2"
    assert f"| **how fast?** | kstore | 3.00 M/s | 3.00 M/s | 50% | 3,000,000, 300.0 MB |  | {asked} |" in lines
    assert "|  | peer | 1.00 M/s | 1.00 M/s | 10% | 3,000,000, 300.0 MB | 3.00x |  |" in lines
    assert "### `bench/bench_log.py`" in lines
    assert "### `bench/bench_kafka.py`" not in lines
    assert any("commit abc of 2025-12-31" in line and "KSTORE_BENCH_SCALE=0.25" in line for line in tables.about(RUN))
    assert "Left out: no cargo." in list(tables.about(RUN))


def test_what_is_missed_is_told_with_its_share_of_what_was_asked_and_of_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = module_of_bench("tables", monkeypatch)
    bounds = [result("bound: copies", [1.0]), result("bound: copies and writes", [1.8])]
    run = {**RUN, "results": [result("peer", [2.4]), result("kstore", [2.0]), *bounds]}
    asked = "at least 2 M/s; 1.20 times peer, at least 2"  # 1.5 M/s is, and the peer's 1.25 M/s twice
    assert f"| how fast? | {asked} | 0.60 | 0.67 | 0.90 | copies and writes |" in list(tables.missed(run))
    assert list(tables.missed(RUN)) == []
    run["results"][2:] = []
    assert f"| how fast? | {asked} | 0.60 |  |  |  |" in list(tables.missed(run))


def test_the_tables_of_a_run_take_the_place_of_those_before_and_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = module_of_bench("tables", monkeypatch)
    once = tables.written(PAGE, "bench", ["| old |"])
    again = tables.written(once, "bench", ["| new |"])
    assert "| new |" in again
    assert "| old |" not in again
    before, after = "<!-- bench: begin -->", "<!-- bench: end -->"
    assert again.partition(before)[0] == PAGE.partition(before)[0]
    assert again.partition(after)[2] == PAGE.partition(after)[2]
    with pytest.raises(SystemExit, match="no page has a place for another"):
        tables.written(PAGE, "another", [])


def test_a_page_that_names_a_file_of_bench_gets_its_table_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = module_of_bench("tables", monkeypatch)
    run, guide, page = tmp_path / "bench.json", tmp_path / "guide.md", tmp_path / "performance.md"
    run.write_text(json.dumps(RUN))
    guide.write_text("above\n<!-- bench_log.py: begin -->\nold\n<!-- bench_log.py: end -->\nbelow\n")
    page.write_text("<!-- bench: begin -->\nold\n<!-- bench: end -->\n")
    monkeypatch.setattr(tables, "DOCS", tmp_path)
    monkeypatch.setattr(tables, "PAGE", page)
    tables.main(run)
    text = guide.read_text()
    assert text.startswith("above\n<!-- bench_log.py: begin -->\n")
    assert text.endswith("<!-- bench_log.py: end -->\nbelow\n")
    assert "| **how fast?** | kstore |" in text
    assert "`make bench` on 1 January 2026" in text
    assert "old" not in text
    assert "| **how fast?** | kstore |" in page.read_text()


def test_a_path_that_takes_4_percent_more_is_named_and_one_that_takes_2_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instructions = module_of_bench("instructions", monkeypatch)
    known = {"a": 100.0, "b": 100.0, "c": 100.0, "gone": 5.0}
    lines, grown = instructions.compared(known, {"a": 104.0, "b": 102.0, "c": 50.0, "new": 7.0})
    assert grown == ["a: 100.0 -> 104.0 instructions, +4.0%, allowed is 3%"]
    assert len(lines) == 5


def test_each_row_that_the_page_names_is_in_its_tables() -> None:
    """Once a run has been written into it; how many threads the rows have is the machine's."""
    section = re.sub(
        r"\d+ threads", "threads", PAGE.partition("<!-- bench: begin -->")[2].partition("<!-- bench: end -->")[0]
    )
    rows = set(re.findall(r"^\| \*\*(.+?)\*\* \|", section, re.MULTILINE))
    named = re.findall(r"\brow \"([^\"]+)\"", re.sub(r"\d+ threads", "threads", " ".join(PAGE.split())))
    assert len(named) >= 8
    assert rows == set() or set(named) - rows == set()
