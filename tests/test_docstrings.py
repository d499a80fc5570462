"""Public docstrings have Google's sections, which say each argument, result and error that the signature has.

Ruff's rules D check the form of the modules in Python. These tests read stubs, too, and compare names with signatures.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import kstore
import kstore.spark
import kstore.testing
from tests.test_public_api import COMPILED, module_source, source_of

SECTIONS = ("Args", "Returns", "Yields", "Raises", "Example", "Attributes")
SHARED = re.compile(r"\barguments of\s+`(\w+(?:\.\w+)?)`")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def owners() -> Iterator[Any]:
    """The public functions and classes of kstore, and the bases of these classes: each once."""
    values = [getattr(package, name) for package in (kstore, kstore.spark, kstore.testing) for name in package.__all__]
    every = (each for value in values for each in (value.__mro__ if isinstance(value, type) else [value]))
    return iter({each: None for each in every if (getattr(each, "__module__", None) or "").startswith("kstore")})


def public_functions() -> Iterator[tuple[str, Function, str | None]]:
    """Every public function and method as its source has it: once, where it is defined."""
    for owner in owners():
        if not isinstance(owner, type):
            yield owner.__name__, function_of(owner), None
            continue
        for node in (*source_of(owner).body, *map(function_of, compiled_methods(owner))):
            if isinstance(node, Function) and not node.name.startswith("_"):
                yield f"{owner.__name__}.{node.name}", node, owner.__name__


def function_of(function: Any) -> Function:
    """A function of a module as its source has it."""
    body = module_source(function.__module__).body
    return next(node for node in body if isinstance(node, Function) and node.name == function.__name__)


def compiled_methods(owner: type) -> Iterator[Any]:
    """Methods such as `Log.append`, which a class of Python takes from a compiled module."""
    return (each for each in vars(owner).values() if isinstance(each, COMPILED) and each.__module__ != owner.__module__)


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


def sections(node: Function | ast.ClassDef | ast.Module) -> dict[str, str]:
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
    """Or names another call whose arguments it takes: "Takes the arguments of `read`"."""
    node, owner = FUNCTIONS[name]
    wanted, found = parameters(node, owner is not None), documented(node)
    others = SHARED.findall(ast.get_docstring(node) or "")
    known = [FUNCTIONS.get(other) or FUNCTIONS[f"{owner}.{other}"] for other in others]
    elsewhere = {argument for other, _ in known for argument in documented(other)}
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
