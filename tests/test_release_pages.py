"""README, CHANGELOG and the page on stability: what they say of this release is so."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import kstore
from tests.support.pages import anchors
from tests.test_docs import REPOSITORY, cited_tests, text_of

README, CHANGELOG = REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md"
STABILITY = REPOSITORY / "docs" / "stability.md"
PYPROJECT = tomllib.loads(text_of(REPOSITORY / "pyproject.toml"))
PROJECT = PYPROJECT["project"]
SOURCES = [path for path in (REPOSITORY / "kstore").rglob("*") if path.suffix in {".py", ".pyx", ".pxd"}]


# --- README -----------------------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_its_first_example_has_eight_lines() -> None:
    assert len(text_of(README).splitlines()) <= 130
    (example,) = re.findall(r"^```python\n(.*?)^```", text_of(README), re.MULTILINE | re.DOTALL)
    assert len([line for line in example.splitlines() if line]) == 8


def test_the_readme_installs_this_version_with_the_extras_that_there_are() -> None:
    text = text_of(README)
    assert f"kstore-{PROJECT['version']}-*.whl" in text
    (listed,) = re.findall(r"with extras: ([\w, ]+)", text)
    assert set(listed.split(", ")) == set(PROJECT["optional-dependencies"])
    asked = {extra for found in re.findall(r"'(?:\.|kstore)\[([\w,]+)\]'", text) for extra in found.split(",")}
    assert asked <= set(PROJECT["optional-dependencies"])
    assert {"numpy", "cramjam"} == {re.split(r"[<>=]", each)[0] for each in PROJECT["dependencies"]}


def test_a_store_locks_its_directory_and_a_lone_log_its_partition(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("orders", partitions=1)
        for partition in ("orders-0", "orders-1", "other-0"):
            with pytest.raises(kstore.LogLockedError):
                kstore.Log.open(tmp_path / partition)
        with kstore.Log.open(tmp_path / "orders-0", mode="r"), kstore.Store.open(tmp_path, mode="r"):
            pass
    with kstore.Log.open(tmp_path / "orders-0"), kstore.Log.open(tmp_path / "orders-1"):
        for path, opened in ((tmp_path / "orders-0", kstore.Log.open), (tmp_path, kstore.Store.open)):
            with pytest.raises(kstore.LogLockedError):
                opened(path)


def test_the_four_defaults_that_are_not_kafkas(tmp_path: Path) -> None:
    assert kstore.LogConfig().retention_ms == -1
    assert kstore.LogConfig(segment_bytes=1000).segment_bytes == 1000
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("t")
        where = store.append("t", b"v")
        with store.consumer("g", "t") as consumer:
            assert [record.offset for record in consumer] == [where.offset]
            consumer.commit()
        with store.producer(transactional_id="p"):
            pass
        internal = {path.name.rpartition("-")[0] for path in tmp_path.glob("__*")}
        assert len(internal) == 2
        assert {store.topic_config(topic).segment_bytes for topic in internal} == {256 << 10}
    assert inspect.signature(kstore.Store.consumer).parameters["auto_offset_reset"].default == "earliest"


def rows_of(path: Path) -> list[list[str]]:
    """The cells of the rows of a page's table of crashes, without the heading."""
    table = text_of(path).split("| after | ", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_table_of_crashes_is_the_one_whose_rows_name_their_tests() -> None:
    found = rows_of(README)
    assert len(found) == 5
    assert found == [row[:3] for row in rows_of(REPOSITORY / "docs" / "promises.md")]


@pytest.mark.parametrize(
    "path", [README, CHANGELOG, STABILITY, REPOSITORY / "docs" / "README.md"], ids=lambda path: path.name
)
def test_a_link_into_a_page_leads_to_a_heading(path: Path) -> None:
    for page, place in re.findall(r"\]\(([^)#\s:]*\.md)?#([^)\s]+)\)", text_of(path)):
        target = path.parent / page if page else path
        assert place in anchors(target), f"{page}#{place}"


# --- CHANGELOG --------------------------------------------------------------------------------------------------------


def test_the_changelog_begins_with_this_version_and_its_day() -> None:
    headings = re.findall(r"^## (.*)$", text_of(CHANGELOG), re.MULTILINE)
    newest, *released = headings
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading) for heading in released)
    assert re.fullmatch(r"\d+\.\d+\.\d+ \((\d{4}-\d\d-\d\d|not released)\)", newest)
    assert headings[0].split()[0] == PROJECT["version"]
    assert len(headings) == len(set(headings)) >= 2


def test_the_changelog_is_a_page_and_marks_changes_of_the_files() -> None:
    text = text_of(CHANGELOG)
    assert len(text.splitlines()) <= 130
    assert text.count("**[disk]**") >= 5


# --- stability --------------------------------------------------------------------------------------------------------


def test_the_page_on_stability_names_tests_that_are_there() -> None:
    assert len(cited_tests(text_of(STABILITY))) >= 8


def test_the_status_of_the_classifiers_is_the_one_that_the_page_explains() -> None:
    (status,) = re.findall(r'"(Development Status) (\d)"', text_of(STABILITY))
    assert f"{status[0]} :: {status[1]} - Beta" in PROJECT["classifiers"]


def test_nothing_is_deprecated_as_the_page_says() -> None:
    deprecated = [path for path in SOURCES if "DeprecationWarning" in text_of(path)]
    assert ("Nothing is deprecated today." in text_of(STABILITY)) == (deprecated == [])


def test_no_module_declares_that_it_needs_no_gil() -> None:
    builds = [*SOURCES, REPOSITORY / "setup.py"]
    assert [path for path in builds if "freethreading_compatible" in text_of(path)] == []
