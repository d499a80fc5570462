"""Sphinx's directive `public`: the reference of public names, from the signatures and docstrings of the sources.

    .. public:: kstore.Log kstore.Store

Users know these names from `kstore`; they are defined in deeper modules, some of which are compiled. So a name is
looked up in the imported package, and its signature and docstring are read from the source, or from the stub of a
compiled module. Single backquotes in a docstring become a link if they contain a public name, as seen from where the
docstring stands.
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext import napoleon
from sphinx.util.docutils import SphinxDirective
from sphinx.util.parsing import nested_parse_to_nodes

PACKAGES = ("kstore", "kstore.spark", "kstore.testing")
TYPES = Path(__file__).parent / "reference" / "types.rst"
NONE: Mapping[str, ast.expr] = MappingProxyType({})
SHOWN_BASES = {"NamedTuple", "TypedDict", *vars(builtins)}
SECTIONS = napoleon.Config(napoleon_use_param=True, napoleon_use_rtype=True)
Function = ast.FunctionDef | ast.AsyncFunctionDef


# --- sources ----------------------------------------------------------------------------------------------------------


def source_of(module: str) -> Path:
    """Return the file that has the signatures and docstrings of a module: of a compiled one its stub."""
    file = Path(importlib.import_module(module).__file__ or "")
    return file if file.suffix == ".py" else file.parent / f"{file.name.partition('.')[0]}.pyi"


@cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(source_of(module).read_text(encoding="utf-8"))


@cache
def origins(package: str) -> dict[str, str]:
    """Return the module from which a package imports each of its names."""
    imports = [node for node in ast.walk(tree_of(package)) if isinstance(node, ast.ImportFrom)]
    found = {alias.name: str(node.module) for node in imports for alias in node.names if alias.name != "*"}
    return dict.fromkeys(importlib.import_module("kstore.errors").__all__, "kstore.errors") | found


def documented(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt, str]]:
    """Return the name, node and docstring, "" if there is none, of what a module or a class defines."""
    body = [each for node in body for each in (node.body if is_for_type_checkers(node) else [node])]
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                yield name, node, ast.get_docstring(node) or ""
            case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
                match after:
                    case ast.Expr(ast.Constant(str(text))):
                        yield name, node, "\n".join(map(str.strip, text.strip().splitlines()))
                    case _:
                        yield name, node, ""


def is_for_type_checkers(node: ast.stmt) -> bool:
    """Return whether only a type checker executes a statement."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def definition(module: str, name: str) -> tuple[Any, str]:
    """Return the node and the docstring of a name of a module; of overloads the first that has one."""
    found = [(node, text) for each, node, text in documented(tree_of(module).body) if each == name]
    return next(((node, text) for node, text in found if text), found[0])


class Member(NamedTuple):
    """What a class has under a public name: where it is defined, and its docstring."""

    node: Any
    text: str
    module: str
    variables: dict[str, ast.expr]
    """The types that the class has chosen for the variables of a generic base."""
    overloads: list[Function]


def settings_of(owner: type) -> dict[str, Any]:
    """Return the rows of a table of settings by their attributes; no rows for another class."""
    rows = getattr(owner, "settings", ())
    return {row.attribute: row for row in rows} if isinstance(rows, tuple) else {}


def members(owner: type) -> dict[str, Member]:
    """Return what a class defines or takes from a private base under public names, if it has a docstring.

    Special methods with a docstring are public. As in Python, a name without a docstring has that of its base.
    """
    found: dict[str, Member] = {}
    settings = {name: row.doc for name, row in settings_of(owner).items()}
    for kind in owner.__mro__:
        if not kind.__module__.startswith("kstore.") or (kind is not owner and kind in public_values()):
            continue
        variables = chosen_types(owner, kind)
        for name, node, text in documented(definition(kind.__module__, kind.__name__)[0].body):
            if name.startswith("_") and not name.endswith("__"):
                continue
            module, function = kind.__module__, getattr(owner, name, None)
            if isinstance(node, ast.Assign) and name.startswith("__"):
                continue
            if isinstance(node, ast.Assign) and callable(function):  # a method of another module
                module = function.__module__
                node, text = definition(module, function.__name__)
            text = text or settings.get(name, "")
            if name not in found:
                found[name] = Member(node, text, module, variables, [])
            elif text and not found[name].text:
                found[name] = found[name]._replace(text=text)
            if is_overload(node):
                found[name].overloads.append(node)
    return {name: member for name, member in found.items() if member.text}


def is_overload(node: ast.stmt) -> bool:
    """Return whether a function is one of the signatures of a call that has several."""
    return isinstance(node, Function) and "overload" in map(ast.unparse, node.decorator_list)


def chosen_types(owner: type, base: type) -> dict[str, ast.expr]:
    """Return the types that a class gives a generic base: R is `Record` in `LogTable(KeyedRows[Record])`."""
    found: dict[str, list[ast.expr]] = {"Generic": [], base.__name__: []}
    for node in (each for kind in (base, owner) for each in definition(kind.__module__, kind.__name__)[0].bases):
        match node:
            case ast.Subscript(ast.Name(name), types) if name in found:
                found[name] = types.elts if isinstance(types, ast.Tuple) else [types]
    return {ast.unparse(name): chosen for name, chosen in zip(found["Generic"], found[base.__name__], strict=False)}


@cache
def public_values() -> dict[Any, str]:
    """Return the full public name of each class and function; of one that two packages have, the first."""
    found: dict[Any, str] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            found.setdefault(getattr(module, name), f"{package}.{name}")
    return found


@cache
def public_names() -> set[str]:
    """Return every name that has an entry."""
    values = {full: value for value, full in public_values().items()}
    own = {f"{full}.{name}" for full, value in values.items() if isinstance(value, type) for name in members(value)}
    return {*PACKAGES, *values, *own}


# --- signatures -------------------------------------------------------------------------------------------------------


@cache
def kept_aliases() -> set[str]:
    """Return the aliases that a page explains; in place of any other, signatures show what it stands for."""
    return set(re.findall(r"signature-type:: \S+ (\w+)", TYPES.read_text(encoding="utf-8")))


@cache
def aliases(module: str) -> dict[str, tuple[ast.expr, str]]:
    """Return the aliases of types that a module defines or imports from one of kstore, and where each is defined."""
    found: dict[str, tuple[ast.expr, str]] = {}
    for node in ast.walk(tree_of(module)):
        match node:
            case ast.ImportFrom(str(other), names) if other.startswith("kstore."):
                imported = {alias.name for alias in names}
                found |= {name: one for name, one in defined_aliases(other).items() if name in imported}
    return found | defined_aliases(module)


@cache
def defined_aliases(module: str) -> dict[str, tuple[ast.expr, str]]:
    """Return the aliases of types that a module defines."""
    found: dict[str, tuple[ast.expr, str]] = {}
    for name, node, _ in documented(tree_of(module).body):
        match node:
            case ast.Assign(value=value) | ast.AnnAssign(ast.Name(), ast.Name("TypeAlias"), ast.expr() as value):
                is_type = isinstance(value, ast.Subscript | ast.BinOp) and re.fullmatch("_?[A-Z][a-z]+[A-Za-z]*", name)
                if is_type and name not in kept_aliases():
                    found[name] = value, module
    return found


class Spelled(ast.NodeTransformer):
    """Replaces aliases of types by what they stand for, and `_core.Record` by `Record`."""

    def __init__(self, module: str, variables: Mapping[str, ast.expr]) -> None:
        self.module, self.variables = module, variables

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.variables:
            return self.variables[node.id]
        if node.id not in aliases(self.module):
            return node
        value, module = aliases(self.module)[node.id]
        return Spelled(module, {}).visit(copy.deepcopy(value))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name(node.attr) if f"kstore.{node.attr}" in public_names() else node


def spelled(node: ast.AST | None, module: str, variables: Mapping[str, ast.expr] = NONE) -> str:
    """Return the text of an annotation, or of parameters."""
    return "" if node is None else ast.unparse(Spelled(module, variables).visit(copy.deepcopy(node)))


def signature(node: Function, module: str, variables: Mapping[str, ast.expr] = NONE, *, is_bound: bool) -> str:
    """Return the parameters and the result of a call as its caller sees them."""
    arguments = copy.deepcopy(node.args)
    if is_bound:
        (arguments.posonlyargs or arguments.args).pop(0)
    for defaults in (arguments.defaults, arguments.kw_defaults):
        defaults[:] = [named_value(each, module) for each in defaults]
    returned = f" -> {spelled(node.returns, module, variables)}" if node.returns else ""
    return f"({spelled(arguments, module, variables)}){returned}"


def named_value(node: ast.expr | None, module: str) -> ast.expr | None:
    """Return a default as its value, if it is the name of a constant."""
    value = getattr(importlib.import_module(module), node.id, None) if isinstance(node, ast.Name) else None
    return ast.Constant(value) if isinstance(value, int | float | str) else node


# --- entries ----------------------------------------------------------------------------------------------------------


def rendered(text: str, scope: tuple[str, ...], own: Iterable[str] = ()) -> list[str]:
    """Return a docstring as reStructuredText; `scope` is where names are looked up, `own` are names of parameters."""

    def link(found: re.Match[str]) -> str:
        words, after = found[1], "\\ " if found.string[found.end() :][:1].isalnum() else ""
        for outer in scope if words not in own else ():
            if f"{outer}{words}" in public_names():
                return f":py:obj:`{words} <{outer}{words}>`{after}"
        if claims_to_be_public(words):
            return f":py:obj:`{words}`{after}"  # a warning
        return f"``{words}``{after}"

    parts = re.split(r"(?m)^(Example:\n(?:(?: .*)?\n)*(?: .*)?)", text)
    for place in range(0, len(parts), 2):
        prose = re.sub(r"(?<!`)`([^`]+)`(?!`)", link, parts[place])
        prose = re.sub(r"\bSEMANTICS (\d+\.\d+\w?)", r":ref:`SEMANTICS \1 <\1>`", prose)
        prose = re.sub(r"\bdocs/([\w/-]+)\.md\b", r":doc:`\g<0> </\1>`", prose)
        # A type before the colon, which would otherwise be the first words.
        parts[place] = re.sub(r"(?m)^((?:Returns|Yields):\n +)", r"\1object: ", prose)
    lines = str(napoleon.GoogleDocstring("".join(parts), SECTIONS, what="function")).splitlines()
    return [line.replace("*object* -- ", "") for line in lines if not line.startswith(":rtype:")]


def claims_to_be_public(words: str) -> bool:
    """Return whether words look like a public name: one of `kstore`, a member of a public class, an error."""
    owner = re.fullmatch(r"([A-Z]\w+)\.\w+", words)
    is_member = owner is not None and f"kstore.{owner[1]}" in public_names()
    is_error = words.endswith(("Error", "Warning")) and words.isidentifier() and words not in vars(builtins)
    return is_member or is_error or re.fullmatch(r"kstore(\.\w+)+", words) is not None


def entry(kind: str, head: str, options: dict[str, str], body: Iterable[str]) -> list[str]:
    """Return a directive of the Python domain."""
    told = [f"   :{name}: {value}".rstrip() for name, value in options.items() if value is not None]
    return [f".. py:{kind}:: {head}", *told, "", *(f"   {line}".rstrip() for line in body), ""]


def member_entry(owner: type, full: str, name: str, member: Member) -> list[str]:
    """Return the entry of a method, property or attribute."""
    node, text, module, variables, overloads = member
    scope = scopes(full)
    if is_property(node):
        return entry("property", name, {"type": spelled(node.returns, module, variables)}, rendered(text, scope))
    if isinstance(node, Function):
        decorators = {ast.unparse(each) for each in node.decorator_list}
        kinds = {each: "" for each in ("classmethod", "staticmethod") if each in decorators}
        kinds |= {"async": ""} if isinstance(node, ast.AsyncFunctionDef) else {}
        is_bound = "staticmethod" not in kinds
        heads = [name + signature(each, module, variables, is_bound=is_bound) for each in overloads or [node]]
        return entry("method", "\n   ".join(heads), kinds, rendered(text, scope, parameters(node)))
    setting = settings_of(owner).get(name)
    value = repr(setting.default) if setting else ast.unparse(node.value) if node.value else None
    options = {"type": spelled(node.annotation, module, variables), "value": value}
    return entry("attribute", name, options, rendered(text, scope))


def scopes(full: str) -> tuple[str, ...]:
    """Return where a name in the docstring of `full` is looked up: beside it, in its package, in `kstore`."""
    return f"{full}.", f"{full.rpartition('.')[0]}.", "kstore.", ""


def is_property(node: Any) -> bool:
    """Return whether a node is a property's."""
    return isinstance(node, Function) and any("property" in ast.unparse(each) for each in node.decorator_list)


def parameters(node: Function) -> set[str]:
    """Return the names of a call's parameters."""
    return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}


def class_entry(owner: type, full: str) -> list[str]:
    """Return the entry of a class and of its members: methods first, then properties and attributes."""
    node, text = definition(owner.__module__, owner.__name__)
    found = members(owner)
    found.pop("__init__", None)
    start, start_text = next(
        ((each, words) for name, each, words in documented(node.body) if name == "__init__"), (None, "")
    )
    head, own = owner.__name__, parameters(start) if start else set()
    if start and "Args:" in text + start_text:
        head += signature(start, owner.__module__, is_bound=True).partition(" -> ")[0]
    bases = shown_bases(owner)
    body = [f"Bases: {', '.join(f':py:obj:`{base}`' for base in bases)}", ""] if bases else []
    for words in (text, start_text):
        body += [*rendered(words, scopes(full), own), ""]
    calls = [
        name for name, member in found.items() if isinstance(member.node, Function) and not is_property(member.node)
    ]
    names = [*calls, *(name for name in found if name not in calls)]
    if len(names) > 10:
        body += ["In this class: " + ", ".join(f":py:obj:`{name} <{full}.{name}>`" for name in names), ""]
    for name in names:
        body += member_entry(owner, full, name, found[name])
    return entry("exception" if issubclass(owner, BaseException) else "class", head, {}, body)


def shown_bases(owner: type) -> list[str]:
    """Return the bases of a class that a user knows; of a private base in place of it its bases."""
    found: list[str] = []
    private = {base.__name__: base for base in owner.__bases__ if base.__module__.startswith("kstore.")}
    for base in map(ast.unparse, definition(owner.__module__, owner.__name__)[0].bases):
        if f"kstore.{base}" in public_names() or base in SHOWN_BASES:
            found.append(base)
        elif base in private:
            found += shown_bases(private[base])
    return found


def public_entry(full: str) -> list[str]:
    """Return the entry of a public name."""
    package, _, name = full.rpartition(".")
    module = origins(package)[name]
    value = getattr(importlib.import_module(package), name)
    node, text = definition(module, name)
    if isinstance(value, type) and public_values()[value] != full:
        same = public_values()[value]
        return entry("class", name, {"no-index-entry": ""}, [f"The same class as :py:obj:`{same}`."])
    if isinstance(value, type):
        return class_entry(value, full)
    if isinstance(node, Function):
        head = name + signature(node, module, is_bound=False)
        return entry("function", head, {}, rendered(text, scopes(full), parameters(node)))
    return entry("data", name, {"value": repr(value)}, rendered(text, scopes(full)))


class Public(SphinxDirective):
    """The directive `public`, whose arguments are full public names."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the entries."""
        found: list[nodes.Node] = []
        for full in self.arguments[0].split():
            package, _, name = full.rpartition(".")
            self.env.note_dependency(source_of(origins(package)[name]))
            self.env.note_dependency(__file__)
            lines = [f".. py:currentmodule:: {package}", "", *public_entry(full)]
            found += nested_parse_to_nodes(self.state, StringList(lines, source=f"the docstrings of {full}"))
        return found


class SignatureType(SphinxDirective):
    """The directive `signature-type`: a name that only signatures use, by its module; the content says what it is."""

    required_arguments = 2
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the entry."""
        module, name = self.arguments
        self.env.note_dependency(source_of(module))
        node, _ = definition(module, name)
        means = {} if isinstance(node, ast.ClassDef) else {"canonical": ast.unparse(node.value)}
        lines = entry("type", name, means, self.content)
        return nested_parse_to_nodes(self.state, StringList([".. py:currentmodule:: None", "", *lines], source=name))


def qualify(app: Sphinx, page: nodes.document) -> None:
    """Give the types in signatures their full names; of one of Python only the text is shown.

    Sphinx looks for any name that ends so, and would link `bytes` to an attribute of this name.
    """
    for link in list(page.findall(addnodes.pending_xref)):
        if link.get("refdomain") != "py":
            continue
        target = link["reftarget"]
        full = [f"{package}.{target}" for package in PACKAGES if f"{package}.{target}" in public_names()]
        if target in vars(builtins):
            link.replace_self(link.children)
        elif full:
            link["reftarget"] = full[0]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("public", Public)
    app.add_directive("signature-type", SignatureType)
    app.connect("doctree-read", qualify)
    return {"parallel_read_safe": True}
