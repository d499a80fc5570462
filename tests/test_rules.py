"""Every citation of a rule, in code, tests, documents and output, leads to a rule of docs/rules; and in one form.

The form is a page's name and numbers of it: `FORMAT 2.7`, `SEMANTICS 8.4 to 8.7, 11.4`, `SEMANTICS 1.5(2a)`. How the
pages are read and cited is told in docs/rules/README.md.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_docs import REPOSITORY, table_after, text_of

PAGES = {
    name: REPOSITORY / "docs" / "rules" / f"{name.lower()}.md" for name in ("FORMAT", "SEMANTICS", "DUMP", "SPARK")
}
README = REPOSITORY / "docs" / "rules" / "README.md"
DIFFERENCES = REPOSITORY / "docs" / "compatibility.md"
MARKERS = ("golden files", "histories", "directory of logs", "besides")
FOLDERS = ("kstore", "tests", "docs", "bench", "examples")
SUFFIXES = {".py", ".pyx", ".pxd", ".pyi", ".h", ".md", ".java"}

# A space, or the end of a line of a comment or docstring and the indent of the next.
SPACE = r"(?: |\n *(?:(?:#|\*) )?)"
NUMBER = r"(?:V\d{1,2}|\d{1,2}[A-F]|\d{1,2}(?:\.(?:\d{1,2}[a-z]?|F))?)(?![\w%]|\.\d)"
LATER = r"(?:V\d{1,2}|\d{1,2}[A-F]|\d{1,2}\.\d{1,2}[a-z]?)(?![\w%]|\.\d)"
PART = r"(?:\(\w{1,2}\))*"
CITATION = re.compile(
    rf"\b({'|'.join(PAGES)}){SPACE}({NUMBER}{PART}(?:(?:,|{SPACE}to|{SPACE}and){SPACE}(?:{LATER}{PART}|\(\w\)))*)"
)
RULE = r"\d{1,2}\.\d{1,2}[a-z]?"
BARE = re.compile(rf"\({RULE}(?:(?:,| to| and) {RULE})*[);]|^\s*{RULE}(?:[:;.]?$|[:;,.] )")
ELSEWHERE = re.compile(r"\b(?:API|DESIGN|HOUSE|STYLE|TESTCASES|FORMAT|SEMANTICS|DUMP|SPARK)\.md\b|\b(?:API|DESIGN) \d")


@cache
def rules(page: str) -> frozenset[str]:
    """The numbers of a page: its sections, its numbered paragraphs and its test vectors."""
    text = re.sub(r"^```.*?^```", "", text_of(PAGES[page]), flags=re.MULTILINE | re.DOTALL)
    sections = re.findall(r"^#+ (\d+(?:\.\w+|[A-F])?)\b", text, re.MULTILINE)
    paragraphs = re.findall(r'^<a id="([\d.a-z]+)"></a>\1 ', text, re.MULTILINE)
    return frozenset([*sections, *paragraphs, *re.findall(r"^\| (V\d+) \|", text, re.MULTILINE)])


@cache
def leaves(page: str) -> list[str]:
    """The rules proper, in their order: no section that has numbered parts."""
    numbers = rules(page)
    parents = {number.partition(".")[0] for number in numbers if "." in number}
    found = [number for number in numbers if number not in parents and not re.search(r"[A-FV]", number)]
    return sorted(found, key=position)


def position(number: str) -> tuple[int, int, str]:
    """Where a rule stands on its page: `8.21a` behind `8.21`, and that behind `8.9`."""
    first, _, second = number.partition(".")
    digits = re.match(r"\d*", second)
    assert digits is not None
    return int(first), int(digits[0] or -1), second[digits.end() :]


def numbers_of(page: str, cited: str) -> Iterator[str]:
    """The numbers of one citation, a range written out: `8.4 to 8.6` is 8.4, 8.5 and 8.6."""
    found = re.findall(rf"(\bto\b)?{SPACE}?({LATER}|{NUMBER})", re.sub(r"\(\w{1,2}\)", "", cited))
    before = ""
    for to, number in found:
        if to and "." in number:
            inside = (rule for rule in leaves(page) if position(before) < position(rule) < position(number))
            yield from inside
        yield number
        before = number


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in SUFFIXES]
    return sorted(path for path in found if "data" not in path.parts and "target" not in path.parts)


def citations(text: str) -> list[tuple[str, str]]:
    """Every (page, number) that a text cites."""
    return [(page, number) for page, cited in CITATION.findall(text) for number in numbers_of(page, cited)]


def words_of(path: Path) -> list[str]:
    """The comments and docstrings of a source: one string each."""
    text = text_of(path)
    if path.suffix == ".h":
        return re.findall(r"/\*(.*?)\*/", text, re.DOTALL)
    if path.suffix != ".py":
        return [block or line for block, line in re.findall(r'"""(.*?)"""|(?m:#(.*)$)', text, re.DOTALL)]
    comments = [
        token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    defined = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return comments + [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, defined)]


PLAIN_PAGES = [REPOSITORY / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md")]
SOURCES = sources("kstore", "tests", "bench", "examples")


@pytest.mark.parametrize("path", [*sources(*FOLDERS), *PLAIN_PAGES], ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_citation_leads_to_a_rule(path: Path) -> None:
    if path == Path(__file__):
        return
    text = text_of(path)
    assert [f"{page} {number}" for page, number in citations(text) if number not in rules(page)] == []
    assert ELSEWHERE.findall(text) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_citation_names_its_page(path: Path) -> None:
    if path == Path(__file__):
        return
    assert [found[0] for words in words_of(path) if (found := BARE.search(words))] == []


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_of_its_own_rules_is_there(page: str) -> None:
    """Inside of a page a bare number is a rule of it."""
    text = re.sub(r"^```.*?^```", "", text_of(PAGES[page]), flags=re.MULTILINE | re.DOTALL)
    cited = re.findall(r"(?:\(|; |, |by |see |§)(\d{1,2}\.\d{1,2}[a-z]?)(?=\)|,\s|;\s| to )", text)
    wrong = [number for number in cited if number not in rules(page) and page == "SEMANTICS"]
    assert wrong == []


def test_a_difference_and_its_rule_have_links_to_each_other() -> None:
    text = text_of(DIFFERENCES)
    links = re.findall(
        r'^\| `(.*?)` \| <a id="(.*?)"></a>.* \[(\w+ .*?)\]\(rules/(\w+).md#(\S+)\) \|$', text, re.MULTILINE
    )
    ids = [row[0].strip("`") for marker in MARKERS for row in table_after(DIFFERENCES, marker)]
    assert [link[0] for link in links] == ids
    for name, anchor, rule, page, place in links:
        assert name == anchor
        assert citations(rule) == [(page.upper(), rule.partition(" ")[2])]
        assert f'<a id="{place}"></a>' in text_of(PAGES[page.upper()]) or page == "format"
        assert f"[`{name}`](../compatibility.md#{name})" in text_of(PAGES[page.upper()]), name
    told = [name for path in PAGES.values() for name in re.findall(r"compatibility\.md#([\w.-]+)\)", text_of(path))]
    assert sorted(told) == sorted(ids)


def test_the_rules_that_no_test_cites_are_those_that_the_page_lists() -> None:
    cited = {each for path in sources("tests") if path != Path(__file__) for each in citations(text_of(path))}
    bare = {f"{page} {number}" for page in PAGES for number in leaves(page) if (page, number) not in cited}
    listed = [f"{page} {number}" for row in table_after(README, "uncited") for page, number in citations(row[0])]
    assert len(listed) == len(set(listed))
    assert sorted(bare - set(listed)) == [], "no test cites these any more"
    assert sorted(set(listed) - bare) == [], "a test cites these: take them from the list"


def test_citations_are_found_in_every_form() -> None:
    text = """(FORMAT 2.7), [SEMANTICS 8.4 to 8.6, 11.4] SEMANTICS 1.5(2a), (3) and 1.7; 5 of 9. SEMANTICS
    # 9.24 to
    # 9.26, and 4.1. SEMANTICS V27, DUMP 3.8. FORMAT 11, 12 bytes"""
    assert [f"{page} {number}" for page, number in citations(text)] == [
        "FORMAT 2.7",
        *("SEMANTICS 8.4", "SEMANTICS 8.5", "SEMANTICS 8.6", "SEMANTICS 11.4", "SEMANTICS 1.5", "SEMANTICS 1.7"),
        *("SEMANTICS 9.24", "SEMANTICS 9.25", "SEMANTICS 9.26"),
        *("SEMANTICS V27", "DUMP 3.8", "FORMAT 11"),
    ]


@pytest.mark.parametrize("words", ["to there (11.4).", "5.4: the first", "8.4.", "8.1, 8.2: so", "(9.24 to 9.26)"])
def test_a_citation_without_a_page_is_found(words: str) -> None:
    assert BARE.search(words)


@pytest.mark.parametrize("words", ["of 4.3.0", "before 4.1", "since Spark 4.0.", "1.5 s (twice)", "SEMANTICS 5.4: so"])
def test_a_version_is_no_citation(words: str) -> None:
    assert not BARE.search(words)
