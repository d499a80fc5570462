"""The guide, the cookbook and the queries: every block runs as it stands, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import pages
from tests.test_docs import ANALYTICS, COOKBOOK, GUIDE


@pytest.mark.parametrize("title", pages.sections(GUIDE))
def test_a_section_of_the_guide_runs_as_it_stands(title: str, tmp_path: Path) -> None:
    pages.run(GUIDE, title, tmp_path)


@pytest.mark.parametrize("title", pages.sections(COOKBOOK))
def test_a_recipe_runs_as_it_stands(title: str, tmp_path: Path) -> None:
    pages.run(COOKBOOK, title, tmp_path)


@pytest.mark.parametrize("title", pages.sections(ANALYTICS))
def test_a_query_runs_as_it_stands(title: str, tmp_path: Path) -> None:
    pages.run(ANALYTICS, title, tmp_path)


PAGE = """# A page

## First
```python
print("one", 2)
```
```text
one ...
```
```console
$ printf 'a\\nb\\n' > file; cat file
a
b
$ cat missing
... No such file or directory
[exit code 1]
```

## Second
```python
print("one")
```
```text
two
```
"""


def test_a_page_that_shows_what_is_not_printed_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert list(pages.sections(page)) == ["First", "Second"]
    (tmp_path / "first").mkdir()
    pages.run(page, "First", tmp_path / "first")
    with pytest.raises(AssertionError, match=r"page.md, Second[^$]*the page says\s+two\s+and this is printed\s+one\s"):
        pages.run(page, "Second", tmp_path)
