"""The packages of kstore and the imports between its files, read from the sources: for tests and for the picture.

An import for type checkers, a `cimport` and an `#include` count like any other: a reader follows them all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

KSTORE = Path(__file__).parents[2] / "kstore"

# From the lowest to the highest. A file imports from its own package and from packages before it.
PACKAGES = (
    "types",
    "errors",
    "base",
    "c",
    "disk",
    "config",
    "codec",
    "columns",
    "explained",
    "files",
    "objects",
    "log",
    "store",
    "planning",
    "tools",
    "copies",
    "metrics",
    "decoders",
    "datasets",
    "spark",
    "ui",
    "cli",
    "testing",
)

# Parts of a package, and files between them, in the same order. What a list does not name comes after it.
INSIDE = {
    "log": ("segments", "reading", "writing", "compaction", "explaining"),
    "store": (
        "catalog",
        "directory_choice",
        "scheduler",
        "log_directory",
        "metadata",
        "log_directories",
        "partition_directories",
        "cleaner_throttle",
        "cleaner",
        "manager",
        "read_only_logs",
        "disk_usage",
        "remedies",
        "explain_store",
        "compact_store",
        "store_stats",
        "topic_record",
        "topics",
        "table",
        "coordinator",
        "administration",
        "leadership",
        "bulk_loads",
    ),
    "tools": ("check", "dump"),
    "copies": ("replication", "backups"),
    "cli": (
        "command_names",
        "command_times",
        "command_options",
        "output",
        "command_paths",
        "progress",
        "record_formats",
        "decoded_values",
        "sources",
        "sinks",
        "rejected_rows",
        "ingested_files",
        "staged_load",
        "stopping",
        "commands",
    ),
}

# Packages that no other package needs, and those of them that each may import: the command line shows what the others
# do; metrics are exported of copies; tests verify with the tools, and register the data source with Spark.
LEAVES: dict[str, set[str]] = {
    "planning": set(),
    "tools": set(),
    "copies": set(),
    "metrics": {"copies"},
    "decoders": set(),
    "datasets": {"decoders"},
    "spark": set(),
    "ui": {"planning", "tools"},
    "cli": {"planning", "ui", "tools", "copies", "metrics", "decoders", "datasets", "spark"},
    "testing": {"tools", "spark"},
}

# Files that lie elsewhere than in the package that they belong to.
BELONGS = {"_core": "codec", "__main__": "cli"}

# The public API: it may import from every package.
PUBLIC = "__init__"


def sources() -> dict[str, list[Path]]:
    """The files of each module of the package: `log.writing.writer` to its .py, .pyx, .pxd, .c or .h files."""
    modules: dict[str, list[Path]] = {}
    for path in sorted(KSTORE.rglob("*")):
        # Cython makes the .c files outside of kstore/c.
        suffixes = {".h", ".c"} if KSTORE / "c" in path.parents else {".py", ".pyx", ".pxd"}
        if path.suffix in suffixes and "discovery" not in path.parts:
            name = ".".join(path.relative_to(KSTORE).with_suffix("").parts)
            modules.setdefault(name.removesuffix(".__init__"), []).append(path)
    return modules


def package_of(module: str) -> str:
    """The package that a module belongs to."""
    first = module.partition(".")[0]
    return BELONGS.get(first, first)


def rank(module: str) -> tuple[int, int]:
    """Where a module stands: the number of its package, and its place inside of that."""
    package = package_of(module)
    inside = INSIDE.get(package, ())
    second = module.split(".")[1] if "." in module else ""
    return PACKAGES.index(package), inside.index(second) if second in inside else len(inside)


def imports_of(path: Path, modules: Iterable[str]) -> set[str]:
    """The modules of the package that a source file imports, cimports or includes."""
    text = path.read_text(encoding="utf-8")
    known = set(modules)
    if path.suffix == ".py":
        named = python_imports(ast.parse(text))
    elif path.suffix in {".c", ".h"}:
        named = c_includes(text)
    else:
        named = cython_imports(text) | c_includes(text)
    return {nearest for name in named if (nearest := _nearest(name, known))}


def _nearest(name: str, known: set[str]) -> str:
    """The module that `name` is, or whose name it is in: `disk.fs.open` gives `disk.fs`."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def python_imports(tree: ast.AST) -> set[str]:
    """What a Python source imports of the package, without the leading `kstore.`."""
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name.removeprefix("kstore.") for alias in node.names if alias.name.startswith("kstore.")}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "kstore":
            named |= {f"{node.module}.{alias.name}".removeprefix("kstore.") for alias in node.names}
    return named


def cython_imports(text: str) -> set[str]:
    """What a Cython source imports and cimports of the package."""
    named = set(re.findall(r"^\s*c?import kstore\.([\w.]+)", text, re.MULTILINE))
    for module, names in re.findall(r"^\s*from kstore\.?([\w.]*) c?import ([^#\n]+)", text, re.MULTILINE):
        named |= {f"{module}.{name.split()[0]}".lstrip(".") for name in names.strip("() ").split(",") if name.strip()}
    return named


def c_includes(text: str) -> set[str]:
    """The headers of kstore/c that a source includes."""
    found = re.findall(r'(?:#include|cdef extern from) "([\w/]+)\.h"', text)
    return {f"c.{name.replace('/', '.')}" for name in found}


def arrows() -> Iterator[tuple[str, str]]:
    """Every import from one module of the package to another."""
    modules = sources()
    for module, paths in modules.items():
        for imported in sorted(set().union(*(imports_of(path, modules) for path in paths))):
            if imported != module:
                yield module, imported


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes of which each reaches each other one (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            circle = sorted(stack[at:])
            del stack[at:]
            if len(circle) > 1:
                found.append(circle)

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found
