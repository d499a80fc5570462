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

Every name that `import kstore` gives, and every method of a log and of a store, each with the first sentence of its
docstring. Attributes that an opening sets, such as `log.path` and `log.recovery`, are below the methods of their class.
`help(kstore.Log.append)` shows the rest: arguments, errors, thread safety. Exceptions have
[a page of their own](errors.md). `docs/make_names.py` writes this page.
"""

OWNERS = {
    "Log": "one partition directory: a log by itself, or `store.log(topic, partition)`",
    "Store": "topics, and all that concerns several partitions",
    "Consumer": "a group's way through topics, made by `store.consumer`",
    "Producer": "appends that are stored once however often they are tried, made by `store.producer()`",
    "TransactionalProducer": "transactions, made by `store.producer(transactional_id=...)`",
    "Backup": "a backup that runs, made by `kstore.backup`",
    "Replication": "a follower that is kept open, made by `kstore.replicate`",
}


def is_exception(value: object) -> bool:
    """Whether it is an exception or a warning."""
    return isinstance(value, type) and issubclass(value, BaseException)


def sentence(value: Any) -> str:
    """The first sentence of a docstring, without citations of rules."""
    return sentence_of(inspect.getdoc(value) or "")


def sentence_of(text: str) -> str:
    """The first sentence of a text, as it stands in a table."""
    text = " ".join(text.split("\n\n")[0].split())
    text = re.sub(r" ?\((?:see )?(?:SEMANTICS|FORMAT)[^)]*\)", "", text)
    return re.split(r"(?<=[.]) (?=[A-Z`])", text)[0].replace("|", "\\|")


def public(owner: type) -> list[str]:
    """The methods and properties that a class documents itself or inherits from a class of kstore."""
    names = (name for name in dir(owner) if not name.startswith("_"))
    return [name for name in names if inspect.getdoc(inspect.getattr_static(owner, name, None) or getattr(owner, name))]


def attributes(owner: type) -> list[tuple[str, str]]:
    """The attributes that a class of Python declares with a docstring below each, and their sentences."""
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
    """The lines of a table of names."""
    return ["| name | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows), ""]


def page() -> str:
    """The page's text."""
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
