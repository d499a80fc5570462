"""The site: every page and every public name has one place in it. `make site` builds it and checks what was built."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.test_docs import REPOSITORY, text_of

DOCS = REPOSITORY / "docs"
INDEX, FIRST_PAGE = DOCS / "index.md", DOCS / "README.md"
PAGES = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")} - {"index", "README"}


def navigation(text: str) -> list[str]:
    """The pages of the toctrees of a page."""
    return [
        line
        for block in re.findall(r"^```{toctree}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]


def test_every_page_has_one_place_in_the_navigation() -> None:
    assert sorted(navigation(text_of(INDEX))) == sorted(PAGES)


def test_every_page_of_the_reference_has_one_place_in_its_navigation() -> None:
    shown = navigation(text_of(DOCS / "reference" / "index.md"))
    assert sorted(shown) == sorted(path.stem for path in (DOCS / "reference").glob("*.rst"))


def test_the_first_page_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w/-]+)\.md[)#]", text_of(FIRST_PAGE)))
    assert {page for page in PAGES if page.rpartition("/")[0] != "rules"} | {"rules/README"} == linked


@pytest.mark.parametrize("package", ["kstore", "kstore.spark", "kstore.testing"])
def test_every_public_name_has_one_entry_in_the_reference(package: str) -> None:
    pages = "".join(map(text_of, (DOCS / "reference").glob("*.rst")))
    entries = re.findall(rf"^\.\. public:: {re.escape(package)}\.(\w+)$", pages, re.MULTILINE)
    assert sorted(entries) == sorted(importlib.import_module(package).__all__)
