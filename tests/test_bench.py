"""What bench/ writes and compares by itself: bench/results, the tables of docs/, and counts of instructions."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
BENCH = REPOSITORY / "bench"


def module_of_bench(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
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
    assert "## `bench/bench_log.py`" in lines
    assert "## `bench/bench_kafka.py`" not in lines
    assert any("commit abc of 2025-12-31" in line and "KSTORE_BENCH_SCALE=0.25" in line for line in tables.about(RUN))
    assert "Skipped: no cargo." in list(tables.about(RUN))


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


PAGE = """above
<!-- bench_log.py: begin -->
old
<!-- bench_log.py: end -->
<!-- rows of bench:
how fast? | speed
-->

| old |

below
"""
SHOWN = """above
<!-- bench_log.py: begin -->

From the run of [`make bench`](../bench/results/bench.md) on 1 January 2026, 00:00 UTC:

TABLE

<!-- bench_log.py: end -->
<!-- rows of bench:
how fast? | speed
-->

| | kstore | time of others / kstore's time |
|---|---|---|
| speed | 3.00 M/s | peer 3.00 |

below
"""


def test_a_run_replaces_its_results_and_the_parts_of_pages_that_show_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = module_of_bench("tables", monkeypatch)
    monkeypatch.setattr(tables, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    page, run, results = tmp_path / "docs" / "page.md", tmp_path / "bench.json", tmp_path / "results" / "bench.md"
    page.write_text(PAGE)
    results.write_text("old")
    run.write_text(json.dumps(RUN))
    for _ in range(2):
        tables.main(run)
        table = "\n".join(tables.by_file(RUN)["bench_log.py"])
        assert page.read_text() == SHOWN.replace("TABLE", table)
        assert results.read_text().startswith("# Results of `make bench`\n\nMachine: a processor; 2 processors")
        assert f"## `bench/bench_log.py`\n\n{table}\n" in results.read_text()


def test_a_page_that_asks_for_what_no_run_has_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = module_of_bench("tables", monkeypatch)
    with pytest.raises(SystemExit, match="bench has no question 'how slow"):
        tables.refreshed("<!-- rows of bench:\nhow slow?\n-->\n\n")
    with pytest.raises(SystemExit, match=r"no results of bench_none\.py"):
        tables.refreshed("<!-- bench_none.py: begin --><!-- bench_none.py: end -->")


@pytest.mark.parametrize(
    "path", [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_a_page_shows_the_figures_of_the_results(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = module_of_bench("tables", monkeypatch)
    assert tables.refreshed(path.read_text(encoding="utf-8")) == path.read_text(encoding="utf-8")


def test_a_path_that_takes_4_percent_more_is_named_and_one_that_takes_2_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instructions = module_of_bench("instructions", monkeypatch)
    known = {"a": 100.0, "b": 100.0, "c": 100.0, "gone": 5.0}
    lines, grown = instructions.compared(known, {"a": 104.0, "b": 102.0, "c": 50.0, "new": 7.0})
    assert grown == ["a: 100.0 -> 104.0 instructions, +4.0%, allowed is 3%"]
    assert len(lines) == 5


def test_each_row_that_the_notes_name_is_in_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = module_of_bench("tables", monkeypatch)
    rows = {question for run in ("bench", "bench-all") for question in tables.answers(run)}
    notes = tables.without_threads(" ".join((BENCH / "NOTES.md").read_text(encoding="utf-8").split()))
    named = re.findall(r"\brow \"([^\"]+)\"", notes)
    assert len(named) >= 8
    assert set(named) - rows == set()
