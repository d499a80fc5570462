"""tests/testcases.md: every case is counted once, and every test that is said to hold one exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.test_docs import REPOSITORY, table_after, text_of

PAGE = REPOSITORY / "tests" / "testcases.md"
CASES = 681
CITATION = re.compile(r"\b([A-Z]\w+Test)\.(\w+)")


@cache
def functions(file: str) -> dict[str, str]:
    """The docstrings of a test file's functions."""
    tree = ast.parse(next((REPOSITORY / "tests").rglob(file)).read_text())
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}


@cache
def rows() -> list[tuple[str, str, str]]:
    """(class, holder or reason, case) of the page, in its order."""
    found = []
    for section in text_of(PAGE).split("\n### ")[1:]:
        name, table = section.split("\n", 1)
        for line in table.strip().splitlines()[2:]:
            holder, cases = (cell.strip() for cell in line.strip("|").split(" | "))
            found += [(name, holder.strip("`"), case) for case in re.findall(r"`([^`]+)`", cases)]
    return found


def test_every_case_is_there_once_and_the_counts_are_right() -> None:
    found = rows()
    assert len({(name, case) for name, _, case in found}) == len(found) == CASES
    counts: dict[str, list[int]] = {}
    for name, holder, _ in found:
        kind = 1 if "::" in holder else 2 if holder.startswith("later: ") else 3
        for row in (counts.setdefault(name, [0] * 4), counts.setdefault("all", [0] * 4)):
            row[0] += 1
            row[kind] += 1
    told = table_after(PAGE, "counts")
    assert {row[0]: [int(cell) for cell in row[1:]] for row in told} == counts
    assert len(told) == len(counts)


def test_every_test_that_holds_a_case_exists_and_every_reason_is_explained() -> None:
    reasons = {row[0] for row in table_after(PAGE, "reasons")}
    used = Counter(holder for _, holder, _ in rows())
    for holder in used:
        if "::" in holder:
            file, function = holder.split("::")
            assert function in functions(file), holder
        else:
            assert holder in reasons
    assert reasons <= set(used)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "tests").rglob("test_*.py")), ids=lambda path: path.stem)
def test_a_test_cites_the_cases_that_the_page_says_it_holds(path: Path) -> None:
    cited = {
        (*citation, f"{path.name}::{function}")
        for function, docstring in functions(path.name).items()
        for citation in CITATION.findall(docstring)
    }
    told = {(name, case, holder) for name, holder, case in rows() if holder.startswith(f"{path.name}::")}
    assert told <= cited
    known = {(name, case) for name, _, case in rows()}
    assert {(name, case) for name, case, _ in cited} <= known
