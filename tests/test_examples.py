"""Every public call has an example in its docstring that runs as it stands, and so has every public class with methods.

A method's example goes on from the example of its class, and those of `kstore.spark` from the example of the package,
where `spark` is a session of Spark (test_spark.py runs them). Otherwise an example starts in an empty directory with
`kstore` imported and nothing else. What it leaves open is closed.
"""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import kstore
import kstore.spark
import kstore.testing
from tests.test_docs import REPOSITORY, text_of
from tests.test_docstrings import Function, compiled_methods, function_of, is_property, sections
from tests.test_public_api import module_source, public_bases, source_of

Documented = Function | ast.ClassDef | ast.Module


class Example(NamedTuple):
    """The docstrings whose examples run one after the other: of the package and the class, if any, then of the call."""

    before: list[Documented]
    node: Documented


def members(owner: type) -> dict[str, Function]:
    """The public methods and properties of a class, as an editor finds them: of overloads the one with words."""
    found: dict[str, Function] = {}
    for base in reversed(public_bases(owner)):
        for node in (*source_of(base).body, *map(function_of, compiled_methods(base))):
            if isinstance(node, Function) and not node.name.startswith("_") and ast.get_docstring(node):
                found[node.name] = node
    return found


def examples(package: ModuleType, before: list[Documented]) -> Iterator[tuple[str, Example]]:
    for name in package.__all__:
        value = getattr(package, name)
        if not isinstance(value, type):
            if callable(value):
                yield name, Example(before, function_of(value))
            continue
        owner, methods = source_of(value), members(value)
        if "Example" in sections(owner) or (methods and not issubclass(value, Exception)):
            yield name, Example(before, owner)
        for method, node in methods.items():
            if not is_property(node):
                yield f"{name}.{method}", Example([*before, owner], node)


EXAMPLES = dict([*examples(kstore, []), *examples(kstore.testing, [])])
SPARK = {
    name: example
    for name, example in examples(kstore.spark, [module_source("kstore.spark")])
    if name.partition(".")[0] not in kstore.__all__
}


def run(example: Example, names: dict[str, Any]) -> None:
    """Run an example with these names in the working directory; fail with doctest's report."""
    try:
        for node in (*example.before, example.node):
            run_docstring(ast.get_docstring(node) or "", getattr(node, "name", "example"), names)
    finally:
        for value in reversed(names.values()):
            if type(value).__module__.startswith("kstore.") and hasattr(value, "close"):
                value.close()


def run_docstring(text: str, title: str, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(text, names, title, None, None)
    test.globs = names  # doctest takes a copy
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append, clear_globs=False)
    assert not report, "".join(report)


@pytest.mark.parametrize("name", [*EXAMPLES, *SPARK])
def test_a_docstring_has_an_example(name: str) -> None:
    assert ">>> " in sections((EXAMPLES | SPARK)[name].node).get("Example", "")


@pytest.mark.filterwarnings("error::kstore.errors.ConfigWarning", "error::kstore.errors.TimestampWarning")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_it_stands(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(EXAMPLES[name], {"kstore": kstore})


def test_no_example_in_the_sources_is_left_out() -> None:
    nodes = {id(node): node for before, last in (EXAMPLES | SPARK).values() for node in (*before, last)}
    run_ones = [ast.get_docstring(node) or "" for node in nodes.values()]
    sources = [text_of(path) for kind in ("*.py", "*.pyi") for path in (REPOSITORY / "kstore").rglob(kind)]
    assert sum(text.count(">>> ") for text in run_ones) == sum(text.count(">>> ") for text in sources) > 400


def test_an_example_that_shows_what_is_not_printed_fails() -> None:
    run_docstring(">>> 1 + 1\n2", "right", {})
    with pytest.raises(AssertionError, match=r"Expected:\s+3\s+Got:\s+2"):
        run_docstring(">>> 1 + 1\n3", "wrong", {})


def test_a_method_goes_on_from_the_example_of_its_class() -> None:
    log, append = EXAMPLES["Log"], EXAMPLES["Log.append"]
    assert (log.before, append.before) == ([], [log.node])
    assert [len(SPARK[name].before) for name in ("scan", "Stage", "Stage.write")] == [1, 1, 2]
