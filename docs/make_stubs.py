"""Copies the docstrings of the compiled modules into their stubs, where an editor finds them: `make docs`.

A test notices when the two part. Attributes that the compiler keeps without words have theirs in the stub alone.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
STUBS = sorted((REPOSITORY / "kstore").rglob("*.pyi"))


def main() -> None:
    for path in STUBS:
        path.write_text(stub(path), encoding="utf-8")


def stub(path: Path) -> str:
    """The stub as it has to be: each public class, function and property with its words."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    module = importlib.import_module(module_of(path))
    for node, words in sorted(documented(ast.parse(text), module), key=lambda each: -each[0].lineno):
        first = node.body[0]
        at = min(each.lineno for each in (first, *getattr(first, "decorator_list", ()))) - 1
        end = '\n"""' if "\n" in words or words.endswith('"') else '"""'
        shown = textwrap.indent(f'"""{words}{end}', " " * (node.col_offset + 4)).split("\n")
        if ast.get_docstring(node) is not None:
            lines[at : first.end_lineno] = shown
        elif isinstance(node, ast.FunctionDef):  # one that ends in `...`
            lines[at : at + 1] = [lines[at].removesuffix(" ..."), *shown]
        else:
            lines[at:at] = [*shown, ""]
    return "\n".join(lines) + "\n"


def module_of(path: Path) -> str:
    """The name of the module that a stub is for."""
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)


def documented(tree: ast.AST, owner: object) -> Iterator[tuple[ast.ClassDef | ast.FunctionDef, str]]:
    """Each public definition below `tree` with the docstring that the compiled module has for it."""
    for node in getattr(tree, "body", ()):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        if any(re.fullmatch(r"overload|.*\.setter", ast.unparse(each)) for each in node.decorator_list):
            continue
        member = inspect.getattr_static(owner, node.name)
        words = words_of(getattr(member, "__func__", member), node.name)
        if words:
            yield node, words
        if isinstance(node, ast.ClassDef):
            yield from documented(node, member)


def words_of(member: object, name: str) -> str:
    """A docstring without the signature that Cython puts before it."""
    text = vars(member).get("__doc__") if isinstance(member, type) else getattr(member, "__doc__", None)
    if not isinstance(text, str):
        return ""
    first, _, rest = text.partition("\n")
    if first.startswith((f"{name}(", f"{name}:")) or f".{name}(" in first.partition(" ")[0]:
        text = rest
    return inspect.cleandoc(text).strip()


if __name__ == "__main__":
    main()
