"""Pages for someone who is new: every public name is on one, every exception, and what a page's examples need."""

from __future__ import annotations

import importlib
import json
import re
import zlib
from pathlib import Path
from types import ModuleType

import pytest

import kstore
from kstore.errors import StorageError
from tests.test_docs import DOCUMENTS, REPOSITORY, cited_tests, code_blocks, text_of

ERRORS = REPOSITORY / "docs" / "errors.md"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/make_names.py."""
    monkeypatch.syspath_prepend(REPOSITORY / "docs")
    return importlib.import_module("make_names")


def exceptions(made: ModuleType) -> set[str]:
    return {name for name in kstore.__all__ if made.is_exception(getattr(kstore, name))}


def test_the_page_of_public_names_has_them_all(made: ModuleType) -> None:
    text = text_of(made.PAGE)
    assert text == made.page(), "make docs writes it anew"
    named = set(re.findall(r"^\| `(\w+)` \| \S", text, re.MULTILINE))
    public = set(kstore.__all__) - exceptions(made)
    assert public | set(made.public(kstore.Log)) | set(made.public(kstore.Store)) <= named


def test_the_page_of_errors_has_every_exception_with_the_class_that_it_also_is(made: ModuleType) -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\S.*) \| (\S.*) \|$", text_of(ERRORS), re.MULTILINE)
    found = {name: also for name, also, _, _ in rows}
    assert set(found) == exceptions(made) - {"KStoreError"}
    builtins = importlib.import_module("builtins")
    for name, also in found.items():
        assert issubclass(getattr(kstore, name), getattr(kstore, also, None) or getattr(builtins, also)), name


def test_the_page_of_promises_names_tests_that_are_there() -> None:
    assert len(cited_tests(text_of(REPOSITORY / "docs" / "promises.md"))) >= 8


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_page_whose_examples_need_one_another_says_so_before_the_first(path: Path) -> None:
    if len(code_blocks(path)) > 1 and path.name not in ("testing.md",):
        assert "from top to bottom" in text_of(path).split("```python", 1)[0]


def of_version_2(name: str) -> str:
    """A file that a later release might write; that of topics has a sound checksum."""
    if name != "kstore-topics.json":
        return '{"version": 2}'
    content = {"version": 2, "generation": 1, "topics": {}}
    return json.dumps({**content, "crc32": zlib.crc32(json.dumps(content, sort_keys=True).encode())})


@pytest.mark.parametrize(
    "name", ["kstore-topics.json", "kstore-commit.json", "kstore-loads.json", "kstore-follower.json"]
)
def test_a_store_with_a_file_of_unknown_version_is_refused_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    """docs/upgrades.md: but for the mark of a clean close."""
    root = tmp_path / "data"
    with kstore.Store.open(root) as store:
        store.create_topic("t")
        store.append("t", b"v")
    (root / name).write_text(of_version_2(name))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(StorageError, match=rf"version 2 .*{name}"):
        kstore.Store.open(root)
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert before.keys() - after.keys() <= {root / ".kafka_cleanshutdown"}
    assert after == {path: data for path, data in before.items() if path in after}


def test_gaps_of_a_version_that_is_not_known_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t-0" / "kstore-gaps.json"
    with kstore.Log.open(path.parent) as log:
        log.append_many([b"one", b"two"])
        path.write_text('{"version": 2}')
        log.truncate_to(1)  # inside of the batch
        log.append(b"three")
    assert path.read_text() == '{"version": 2}'


def test_the_page_of_files_lists_every_file_that_a_store_or_a_log_writes(tmp_path: Path) -> None:
    """Also what they do not write: `meta.properties`."""
    listed = text_of(REPOSITORY / "docs" / "format.md").split("## What lies where", 1)[1].split("\n## ", 1)[0]
    source = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "kstore" / "files").rglob("*.py"))
    own = set(re.findall(r'"(kstore-[a-z-]+\.json|kstore-leader-epochs)"', source))
    assert len(own) >= 6
    with kstore.Store.open(tmp_path / "store") as store:
        store.create_topic("t", config={"retention.ms": "-1"})
        store.append("t", b"v")
    with kstore.Log.open(tmp_path / "lone" / "t-0") as log:
        log.append(b"v")
    of_store, of_log = (
        {path.name for path in (tmp_path / name).rglob("*") if path.is_file()} for name in ("store", "lone")
    )
    assert {".kafka_cleanshutdown", "partition.metadata", "kstore-topics.json"} <= of_store
    assert not of_log & {".kafka_cleanshutdown", "partition.metadata"}
    assert "meta.properties" not in of_store | of_log
    names = own | {name for name in of_store | of_log if not name[0].isdigit()}
    assert [name for name in sorted(names) if name not in listed] == []
