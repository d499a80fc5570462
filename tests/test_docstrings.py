"""Public docstrings have Google's sections, which say each argument, result and error that the signature has.

Ruff's rules D check the form of the modules in Python. These tests read stubs, too, and compare names with signatures.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
import kstore.spark
import kstore.testing
from tests.test_docs import text_of

SECTIONS = ("Args", "Returns", "Yields", "Raises", "Example", "Attributes")
SHARED = re.compile(r"[Aa]rguments of\s+`(\w+)`")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def source_of(module: str) -> Path:
    """The file that an editor shows: a compiled module's stub."""
    file = Path(sys.modules[module].__file__ or "")
    return file if file.suffix == ".py" else file.parent / f"{file.name.partition('.')[0]}.pyi"


def public_functions() -> Iterator[tuple[str, Function, str | None]]:
    """Every public function and method as its source has it: once, where it is defined."""
    seen = set()
    for package in (kstore, kstore.spark, kstore.testing):
        for name in package.__all__:
            value = getattr(package, name)
            owners = value.__mro__ if isinstance(value, type) else [value]
            for owner in owners:
                module = getattr(owner, "__module__", None)
                if module is None or not module.startswith("kstore") or (module, owner.__name__) in seen:
                    continue
                seen.add((module, owner.__name__))
                importlib.import_module(module)
                for node in ast.parse(text_of(source_of(module))).body:
                    if isinstance(node, Function) and node.name == owner.__name__:
                        yield name, node, None
                    elif isinstance(node, ast.ClassDef) and node.name == owner.__name__:
                        for each in [*node.body, *compiled_methods(owner, node)]:
                            if isinstance(each, Function) and not each.name.startswith("_"):
                                yield f"{owner.__name__}.{each.name}", each, owner.__name__


def compiled_methods(owner: type, node: ast.ClassDef) -> Iterator[ast.stmt]:
    """Methods such as `Log.append`, which the class takes from a compiled module: `append = _append.append`."""
    for each in node.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Attribute):
            method = getattr(owner, each.value.attr, None)
            if inspect.isfunction(method) or type(method).__name__ == "cython_function_or_method":
                body = ast.parse(text_of(source_of(method.__module__))).body
                yield from (found for found in body if isinstance(found, Function) and found.name == method.__name__)


def parameters(node: Function, is_method: bool) -> list[str]:
    """The names that a caller may write: `self`, `cls` and names with an underscore are not."""
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    if is_method and not any(ast.unparse(each) == "staticmethod" for each in node.decorator_list):
        names = names[1:]
    if given.vararg is not None:
        names.append(f"*{given.vararg.arg}")
    if given.kwarg is not None:
        names.append(f"**{given.kwarg.arg}")
    return [name for name in names if not name.startswith("_")]


def sections(node: Function) -> dict[str, str]:
    """The sections of a docstring by name, and "" for what comes before the first."""
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    parts = re.split(rf"^({'|'.join(SECTIONS)}):$", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def documented(node: Function) -> list[str]:
    return re.findall(r"^    (\*{0,2}\w+): ", sections(node).get("Args", ""), re.MULTILINE)


FUNCTIONS = {name: (node, owner) for name, node, owner in public_functions()}


def is_property(node: Function) -> bool:
    return any("property" in ast.unparse(each) or ".setter" in ast.unparse(each) for each in node.decorator_list)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_names_every_argument_in_order(name: str) -> None:
    """Or names a call of the same class or module whose arguments it takes."""
    node, owner = FUNCTIONS[name]
    wanted, found = parameters(node, owner is not None), documented(node)
    others = SHARED.findall(ast.get_docstring(node) or "")
    shared = [documented(FUNCTIONS[f"{owner}.{other}" if owner else other][0]) for other in others]
    elsewhere = {each for names in shared for each in names}
    assert found == [each for each in wanted if each in found], "in another order, or not in the signature"
    assert [each for each in wanted if each not in found and each not in elsewhere] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_says_what_a_call_returns(name: str) -> None:
    node, _ = FUNCTIONS[name]
    returned = ast.unparse(node.returns) if node.returns else "None"
    if is_property(node) or returned in ("None", "Self", "NoReturn"):
        return
    assert {"Returns", "Yields"} & set(sections(node)), f"it returns {returned}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_of_a_call_stand_in_their_section(name: str) -> None:
    assert not re.search(r"\bRaises `", ast.get_docstring(FUNCTIONS[name][0]) or "")
