"""Writes `docs/names.md`: every public name with the first sentence of its docstring. `make docs` runs it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import kstore

PAGE = Path(__file__).parent / "names.md"

HEAD = """# Public names

All public names of `kstore`, and the methods of its main classes, with the first sentence of their docstrings.
Attributes such as `log.path` and `log.recovery` are below the methods of their class. `help(kstore.Log.append)` shows
the rest: arguments, errors, thread safety. Exceptions are on [another page](errors.md). `docs/make_names.py` writes
this page.
"""

OWNERS = {
    "Log": "one partition, from `kstore.Log.open` or `store.log(topic, partition)`",
    "Store": "topics, and operations on several partitions",
    "Consumer": "reads topics for a group, from `store.consumer`",
    "Producer": "appends that are stored once even if they are retried, from `store.producer()`",
    "TransactionalProducer": "transactions, from `store.producer(transactional_id=...)`",
    "Backup": "a running backup, from `kstore.backup`",
    "Replication": "an open follower, from `kstore.replicate`",
}


def is_exception(value: object) -> bool:
    """Return whether a value is an exception or a warning."""
    return isinstance(value, type) and issubclass(value, BaseException)


def sentence(value: Any) -> str:
    """Return the first sentence of a docstring, without citations of rules."""
    return sentence_of(inspect.getdoc(value) or "")


def sentence_of(text: str) -> str:
    """Return the first sentence of a text, escaped for a table."""
    text = " ".join(text.split("\n\n")[0].split())
    text = re.sub(r" ?\((?:see )?(?:SEMANTICS|FORMAT)[^)]*\)", "", text)
    return re.split(r"(?<=[.]) (?=[A-Z`])", text)[0].replace("|", "\\|")


def public(owner: type) -> list[str]:
    """Return the documented methods and properties of a class, inherited ones included."""
    names = (name for name in dir(owner) if not name.startswith("_"))
    return [name for name in names if inspect.getdoc(inspect.getattr_static(owner, name, None) or getattr(owner, name))]


def attributes(owner: type) -> list[tuple[str, str]]:
    """Return the attributes with a docstring that a Python class declares, and the first sentence of each."""
    found: dict[str, str] = {}
    for kind in owner.__mro__:
        if not kind.__module__.startswith("kstore") or not str(inspect.getmodule(kind).__file__).endswith(".py"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
        for one, following in pairwise(body):
            is_told = isinstance(one, ast.AnnAssign) and isinstance(following, ast.Expr)
            if is_told and not one.target.id.startswith("_"):
                found.setdefault(one.target.id, sentence_of(following.value.value))
    return sorted(found.items())


def table(rows: list[tuple[str, str]]) -> list[str]:
    """Return the lines of a table of names."""
    return ["| name | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows), ""]


def page() -> str:
    """Return the page's text."""
    values = {name: getattr(kstore, name) for name in kstore.__all__}
    functions = [(name, sentence(value)) for name, value in values.items() if not isinstance(value, type)]
    classes = [
        (name, sentence(value)) for name, value in values.items() if isinstance(value, type) and not is_exception(value)
    ]
    lines = [HEAD, "## Functions", "", *table(functions), "## Classes", "", *table(classes)]
    for name, what in OWNERS.items():
        owner = getattr(kstore, name)
        rows = [(member, sentence(getattr(owner, member))) for member in public(owner)]
        rows += [row for row in attributes(owner) if row[0] not in public(owner)]
        lines += [f"## `{name}`", "", f"{what[0].upper()}{what[1:]}.", "", *table(rows)]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
