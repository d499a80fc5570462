"""Writes the stubs of the compiled modules from their sources: `make docs`. A test notices when the two part.

A stub has what Python sees of a `.pyx` and its `.pxd`: signatures, classes, attributes, constants, enums, docstrings.
C types give Python's (`int64_t offset` is an `int`), and an annotation says what they do not (`list rows: list[int]`).
The compiler ignores annotations, as setup.py has it. Their names are imported from where the source has them from, else
from STANDARD, else from the module of kstore that defines such a class or alias. Comments say what Cython has no place
for:

- `# type: X` at the end of a line gives the type of an attribute or a constant, what a cpdef function returns, or one
  more base of a class. An attribute that has one is readable in Python, whatever Cython makes of it.
- `# stub: line` is a line of the stub, such as an overload or an alias. Definitions of the same name are left out.

A private name is in the stub where all its types are known; a private class where another derives from it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from Cython.CodeWriter import ExpressionWriter
from Cython.Compiler import ExprNodes, Nodes
from Cython.Compiler.AutoDocTransforms import AnnotationWriter
from Cython.Compiler.Errors import CompileError
from Cython.Compiler.TreeFragment import parse_from_strings

REPOSITORY = Path(__file__).parents[1]
SOURCES = sorted((REPOSITORY / "kstore").rglob("*.pyx"))

STANDARD = {
    "_typeshed": "ReadableBuffer StrPath WriteableBuffer",
    "collections.abc": "Callable Hashable Iterable Iterator Mapping Sequence",
    "contextlib": "AbstractContextManager",
    "datetime": "datetime",
    "enum": "IntEnum IntFlag",
    "types": "TracebackType",
    "typing": "Any Final Generic Literal NamedTuple Protocol Self SupportsIndex TypeAlias TypeVar final overload",
    "typing_extensions": "disjoint_base",
    "weakref": "ReferenceType",
}
IMPORTS = {name: f"from {module} import {name}" for module, names in STANDARD.items() for name in names.split()} | {
    "np": "import numpy as np",
    "npt": "import numpy.typing as npt",
    "os": "import os",
    "threading": "import threading",
}

INTEGER = re.compile(r"u?int(\d+_t)?|Py_ssize_t|size_t|short|long|char|pid_t")
OTHER_TYPES = {"bint": "bool", "double": "float", "void": "None"}
VAGUE = {"object", "list", "dict", "set", "tuple", "type"}  # and so in want of an annotation

# Special methods whose signature is always the same; of one, Cython has a name of its own.
SPECIAL = {
    "__bytes__": "__bytes__(self) -> bytes",
    "__del__": "__del__(self) -> None",
    "__eq__": "__eq__(self, other: object, /) -> bool",
    "__exit__": "__exit__(self, kind: type[BaseException] | None, error: BaseException | None,"
    " trace: TracebackType | None, /) -> None",
    "__getbuffer__": "__buffer__(self, flags: int, /) -> memoryview",
    "__hash__": "__hash__(self) -> int",
    "__len__": "__len__(self) -> int",
}
LEFT_OUT = {"__dealloc__", "__releasebuffer__", "__slots__"} | set(dir(object)) - {"__init__", "__eq__", "__hash__"}


class Vague(Exception):
    """A type is said neither by the declaration nor by an annotation."""


def main() -> None:
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")


def stubs() -> dict[Path, str]:
    """Each stub as it has to be, by its path."""
    with tempfile.TemporaryDirectory() as folder:
        drafts = {path.with_suffix(".pyi"): Path(folder, f"{path.stem}.pyi") for path in SOURCES}
        for path, draft in zip(SOURCES, drafts.values(), strict=True):
            draft.write_text(Module(path).stub(), encoding="utf-8")
        for action in (["check", "--fix-only", "--select=I"], ["format"]):
            ruff = [sys.executable, "-m", "ruff", *action, "--quiet", f"--config={REPOSITORY / 'pyproject.toml'}"]
            subprocess.run([*ruff, folder], check=True)
        return {path: draft.read_text(encoding="utf-8") for path, draft in drafts.items()}


class Source:
    """A parsed file: its statements, and its comments for the stub."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.read_text(encoding="utf-8").splitlines()
        level = "module_pxd" if path.suffix == ".pxd" else None
        self.tree = parse_from_strings(path.stem, "\n".join(self.lines) + "\n", level=level)
        classes = [node for node in statements(self.tree.body) if isinstance(node, Nodes.CClassDefNode) and node.body]
        self.classes = {node.class_name: node for node in classes}

    def type_comment(self, node: Any) -> str | None:
        """The type in the comment on the line of a declaration, below its decorators."""
        rest = self.lines[getattr(node, "lhs", node).pos[1] - 1 :]
        found = re.search(r"  # type: ([^#]*[^# ])", next(line for line in rest if not line.lstrip().startswith("@")))
        return found[1] if found else None

    def stub_lines(self, owner: Any) -> dict[int, str]:
        """The lines of the stub that comments give, for the module or for a class in it, by their numbers."""
        lines: dict[int, str] = {}
        above = self.tree
        starts = {node.pos[1]: node for node in self.classes.values()}
        for number, line in enumerate(self.lines, 1):
            above = starts.get(number, above)
            if (found := re.fullmatch(r"( *)# stub: (.*)", line)) and owner is (above if found[1] else self.tree):
                lines[number] = found[2]
        return lines


class Module:
    """A `.pyx` and its `.pxd`."""

    def __init__(self, path: Path) -> None:
        self.sources = [Source(each) for each in (path.with_suffix(".pxd"), path) if each.exists()]
        self.bases = {base for source in self.sources for node in source.classes.values() for base in base_names(node)}

    def stub(self) -> str:
        """The stub, but for its layout and the order of its imports."""
        body = "\n".join(line for source in self.sources for line in self.members(source, source.tree))
        doc = self.sources[-1].tree.doc
        return "\n".join([*(quoted(doc.partition("\n\n")[0]) if doc else []), *self.imports(body), body, ""])

    def imports(self, body: str) -> Iterator[str]:
        """The imports that `body` needs."""
        nodes = list(ast.walk(ast.parse(body)))
        used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        known = IMPORTS | {name: line for source in self.sources for name, line in imported(source.tree)}
        for name in sorted(used - bound(nodes) - set(dir(builtins))):
            modules = definitions().get(name, [])
            if name not in known and len(modules) != 1:
                raise LookupError(f"{self.sources[-1].path}: {name} is in {modules}; `# stub: from ...` can tell")
            yield known.get(name) or f"from {modules[0]} import {name}"

    def members(self, source: Source, owner: Any) -> Iterator[str]:
        """The lines for the statements of a module or class, those of the comments before what follows them."""
        stub_lines = source.stub_lines(owner)
        given = bound(ast.parse("\n".join(stub_lines.values())).body)
        for node in statements(owner.body):
            yield from (stub_lines.pop(number) for number in sorted(stub_lines) if number < node.pos[1])
            name = name_of(node)
            if name not in given:
                try:
                    yield from self.member(source, node, owner)
                except Vague:
                    if not name.startswith("_") or name.endswith("__"):
                        raise SyntaxError(f"{source.path}:{node.pos[1]}: {name} has a type that is not said") from None
        yield from stub_lines.values()

    def member(self, source: Source, node: Any, owner: Any) -> Iterable[str]:
        """The lines for one statement."""
        comment = source.type_comment(node)
        match node:
            case Nodes.CClassDefNode():
                return self.compiled_class(source, node)
            case Nodes.PyClassDefNode():
                head = f"class {node.name}({', '.join(expression(base) for base in node.bases.args)}):"
                return suite(head, docstring(node), self.members(source, node))
            case Nodes.CEnumDefNode() if node.create_wrapper:
                items = [f"{item.name} = {expression(item.value)}" for item in node.items]
                return suite(f"class {node.name}({comment or 'IntEnum'}):", docstring(node), items)
            case Nodes.CVarDefNode():
                return attributes(node, comment)
            case Nodes.DefNode() if node.name not in LEFT_OUT and (node.name != "__cinit__" or creates(node, owner)):
                return function(node, owner is not source.tree)
            case Nodes.CFuncDefNode() if node.overridable:
                returned = comment or python_type(node.base_type.name)
                head = f"def {name_of(node)}({arguments(node.declarator, owner is not source.tree)}) -> {returned}:"
                return suite(head, docstring(node))
            case Nodes.SingleAssignmentNode(lhs=ExprNodes.NameNode()):
                return assignment(node, comment)
            case Nodes.ExprStatNode(expr=ExprNodes.NameNode()) if node.expr.annotation:
                return [f"{node.expr.name}: {written(node.expr.annotation)}"]
            case Nodes.ExprStatNode(expr=ExprNodes.UnicodeNode()):
                return quoted(node.expr.value)
        return []

    def compiled_class(self, source: Source, node: Any) -> Iterator[str]:
        """A class, its attributes in the `.pxd` first; it comes where its methods are."""
        name = node.class_name
        parts = [(each, each.classes[name]) for each in self.sources if name in each.classes]
        if source is not parts[-1][0] or (name.startswith("_") and name not in self.bases):
            return
        nodes = [part for _, part in parts]
        bases = list(dict.fromkeys(base for part in nodes for base in base_names(part)))
        if any(expression(each.decorator) == "cython.final" for part in nodes for each in part.decorators or ()):
            yield "@final"
        elif not bases or any(is_data(each) for part in nodes for each in statements(part.body)):
            yield "@disjoint_base"
        bases += [comment for each, part in parts if (comment := each.type_comment(part))]
        docs = next((docstring(part) for part in nodes if part.doc), [])
        yield from suite(f"class {name}({', '.join(bases)}):", docs, *(self.members(*part) for part in parts))


def attributes(node: Any, comment: str | None) -> Iterator[str]:
    """The attributes of a compiled class that Python sees."""
    for each in node.declarators if comment or node.visibility in {"public", "readonly"} else ():
        type_ = comment or python_type(node.base_type.name)
        if node.visibility == "public":
            yield from [f"{each.name}: {type_}", *docstring(node)]
        else:
            yield from ["@property", *suite(f"def {each.name}(self) -> {type_}:", docstring(node))]


def assignment(node: Any, comment: str | None) -> Iterator[str]:
    name, value = node.lhs.name, literal(node.rhs)
    if node.lhs.annotation:
        yield f"{name}: {written(node.lhs.annotation)} = {value}"
    elif name == "__all__":
        yield f"{name} = {value}"
    elif name == "__match_args__":
        yield f"{name}: Final = {value}"
    elif name.isupper() and comment is None:
        if not isinstance(constant := value and ast.literal_eval(value), str | int | float):
            raise Vague
        yield f"{name}: Final[{type(constant).__name__}]"
    elif comment:
        yield f"{name}: Final[{comment}]" if name.isupper() else f"{name}: {comment}"


def function(node: Any, is_method: bool) -> Iterator[str]:
    """A `def` with its decorators."""
    decorators = [expression(each.decorator) for each in node.decorators or ()]
    is_setter = any(each.endswith(".setter") for each in decorators)
    name = "__new__" if node.name == "__cinit__" else node.name
    if name in SPECIAL:
        head = SPECIAL[name]
    else:
        returned = {"__init__": "None", "__new__": "Self"}.get(name) or written(node.return_type_annotation)
        if not returned and not is_setter:
            raise Vague
        becomes_method = any(each.startswith("cython.binding") for each in decorators)
        head = f"{name}({arguments(node, is_method, becomes_method)}) -> {returned or None}"
    yield from (f"@{each}" for each in decorators if each == "property" or is_setter)
    yield from suite(f"def {head}:", docstring(node))


def creates(node: Any, owner: Any) -> bool:
    """Whether `__cinit__` says what an object of its class is made from."""
    return len(node.args) > 1 and not node.star_arg and "__init__" not in map(name_of, statements(owner.body))


def arguments(node: Any, is_method: bool, becomes_method: bool = False) -> str:
    """The parameters of a function; the object is Any of one that Python makes a method."""
    star = getattr(node, "star_arg", None)
    starstar = getattr(node, "starstar_arg", None)
    before, behind = [], []
    for number, each in enumerate(node.args):
        name, c_type = each.declarator.name, each.base_type.name
        if not name:  # a name that stands alone is a type to the parser
            name, c_type = c_type, None
        if number == 0 and is_method:
            text = "cls" if name_of(node) == "__cinit__" else "self"
        elif number == 0 and becomes_method and not c_type:
            text = f"{name}: Any"
        else:
            is_optional = isinstance(each.default, ExprNodes.NoneNode)
            type_ = written(each.annotation) or python_type(c_type) + " | None" * is_optional
            text = f"{name}: {type_}" + (f" = {literal(each.default) or '...'}" if each.default else "")
        (behind if each.kw_only else before).append(text)
        if number + 1 == getattr(node, "num_posonly_args", 0):
            before.append("/")
    if star:
        before.append(f"*{star.name}: {written(star.annotation) or 'object'}")
    elif behind:
        before.append("*")
    if starstar:
        behind.append(f"**{starstar.name}: {written(starstar.annotation) or 'object'}")
    return ", ".join(before + behind)


def python_type(c_type: str | None) -> str:
    if c_type is None or c_type in VAGUE:
        raise Vague
    return "int" if INTEGER.fullmatch(c_type) else OTHER_TYPES.get(c_type, c_type)


def written(annotation: Any) -> str | None:
    return AnnotationWriter().write(annotation) if annotation else None


def expression(node: Any) -> str:
    return str(ExpressionWriter().write(node))


def literal(node: Any) -> str | None:
    """A literal as it stands in the source; None for what is to be computed."""
    try:
        ast.literal_eval(text := expression(node))
    except (CompileError, SyntaxError, ValueError):
        return None
    return text


def docstring(node: Any) -> list[str]:
    return quoted(node.doc) if getattr(node, "doc", None) else []


def quoted(text: str) -> list[str]:
    text = inspect.cleandoc(text).rstrip()
    end = '\n"""' if "\n" in text or text.endswith('"') else '"""'
    return [f'{"r" * (chr(92) in text)}"""{text}{end}']


def suite(head: str, *bodies: Iterable[str]) -> Iterator[str]:
    lines = [line for body in bodies for line in body]
    yield head if lines else f"{head} ..."
    yield from (textwrap.indent(line, "    ") for line in lines)


def statements(body: Any) -> list[Any]:
    """The statements in the body of a module or class."""
    if isinstance(body, Nodes.StatListNode):
        return [inner for each in body.stats for inner in statements(each)]
    return [body]


def name_of(node: Any) -> str:
    """What a statement defines; "" for a statement of another kind."""
    if isinstance(node, Nodes.CFuncDefNode | Nodes.CVarDefNode):
        node = node.declarator if isinstance(node, Nodes.CFuncDefNode) else node.declarators[0]
        while not hasattr(node, "name"):
            node = node.base
    node = getattr(node, "lhs", node)
    return str(getattr(node, "name", None) or getattr(node, "class_name", ""))


def base_names(node: Any) -> list[str]:
    return [expression(base) for base in node.bases.args] if node.bases else []


def is_data(node: Any) -> bool:
    """Whether a statement of a compiled class makes its objects larger."""
    return isinstance(node, Nodes.CVarDefNode) and not isinstance(node.declarators[0], Nodes.CFuncDeclaratorNode)


def imported(tree: Any) -> Iterator[tuple[str, str]]:
    """The names that a source imports and cimports, each with the line for the stub."""
    for node in statements(tree.body):
        if isinstance(node, Nodes.FromCImportStatNode):
            yield from ((name, f"from {node.module_name} import {name}") for _, name, *_ in node.imported_names)
        elif isinstance(node, Nodes.FromImportStatNode):
            yield from ((name, f"from {node.module.module_name.value} import {name}") for name, _ in node.items)


def bound(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that statements bind."""
    names: set[str] = set()
    for node in nodes:
        match node:
            case ast.ClassDef(name) | ast.FunctionDef(name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
                names.add(name)
            case ast.ImportFrom():
                names |= {each.name for each in node.names}
    return names


@cache
def definitions() -> dict[str, list[str]]:
    """The modules of kstore that define a class or alias, by its name."""
    found: dict[str, list[str]] = {}
    for path in [*(REPOSITORY / "kstore").rglob("*.py"), *SOURCES]:
        module = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        for groups in re.findall(r"(?m)^(?:cdef )?class (\w+)|^ *(\w+): TypeAlias", text):
            found.setdefault("".join(groups), []).append(module)
    return found


if __name__ == "__main__":
    main()
