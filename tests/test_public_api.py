"""The public API: what `kstore` exports is complete, nothing else shows, and settings are typed by name."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import pytest

import kstore
import kstore.spark
from kstore.config.settings import Settings
from tests.test_docs import REPOSITORY, text_of

CLASSES = sorted(
    (each for name in kstore.__all__ if isinstance(each := getattr(kstore, name), type)), key=lambda each: each.__name__
)


COMPILED = type(kstore.Log.append)  # a function of a compiled module


def public_functions(owner: type) -> Iterator[tuple[str, FunctionType]]:
    """The methods and properties of a class that have no underscore, those of its bases in kstore included."""
    for name, member in inspect.getmembers_static(owner):
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if not name.startswith("_") and isinstance(function, FunctionType | COMPILED):
            yield name, function


def names_in(annotation: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(annotation)) if isinstance(node, ast.Name)}


def answers_of(owner: type) -> Iterator[tuple[str, str, str]]:
    """The name and type of each public attribute and call of a class, and the module that writes the type down."""
    for name, function in public_functions(owner):
        yield name, str(function.__annotations__.get("return", "")), function.__module__
    for name, kind in inspect.get_annotations(owner).items():
        if not name.startswith("_"):
            yield name, str(kind), owner.__module__


OURS = {
    name
    for module in list(sys.modules.values())
    if module.__name__.partition(".")[0] == "kstore"
    for name, value in vars(module).items()
    if isinstance(value, type) and value.__module__.startswith("kstore.")
}


def is_ours(name: str, module: str) -> bool:
    """Whether an annotation names a class of kstore; one that only type checkers import is known by its name alone."""
    value = vars(sys.modules[module]).get(name)
    return name in OURS if value is None else isinstance(value, type) and value.__module__.startswith("kstore.")


@pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.__name__)
def test_what_a_public_call_answers_is_exported(owner: type) -> None:
    unknown = {
        (name, each)
        for name, kind, module in answers_of(owner)
        for each in names_in(kind) - set(kstore.__all__)
        if is_ours(each, module)
    }
    assert unknown == set()


def test_all_names_are_there_once_and_are_ours() -> None:
    assert len(kstore.__all__) == len(set(kstore.__all__))
    for name in kstore.__all__:
        assert getattr(kstore, name).__module__.startswith("kstore"), name


def test_every_error_is_exported() -> None:
    assert set(kstore.errors.__all__) <= set(kstore.__all__)


def test_only_public_names_show() -> None:
    shown = dir(kstore)
    assert {name for name in shown if name.startswith("_")} == {"__version__"}
    assert {name for name in shown if isinstance(getattr(kstore, name), ModuleType)} == {"config", "errors"}
    assert set(kstore.__all__) < set(shown)


STARTS = """
import sys
import kstore
assert not [name for name in sys.modules if name.startswith(("kstore.log", "kstore.store", "kstore.copies"))]
with kstore.Log.open(sys.argv[1]) as log:
    log.append_many([b"value"] * 3, compression="zstd")
    assert [record.offset for record in log.read()] == [0, 1, 2]
with kstore.Store.open(sys.argv[2]) as store:
    store.create_topic("t", 1)
    store.append("t", b"value")
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"numpy", "pyarrow", "asyncio", "obstore", "pytest"}))
"""


def test_a_program_waits_for_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    run = [sys.executable, "-c", STARTS, str(tmp_path / "events-0"), str(tmp_path / "store")]
    ended = subprocess.run(run, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "\n", "")


def test_the_results_of_spark_jobs_are_the_stores() -> None:
    assert kstore.spark.Adopted is kstore.Adopted
    assert kstore.spark.Staged is kstore.Staged


def test_the_version_is_that_of_the_package() -> None:
    assert kstore.__version__ == version("kstore")
    with pytest.raises(AttributeError, match="no attribute 'versio'"):
        kstore.versio  # type: ignore[attr-defined]  # noqa: B018


# --- settings by name -------------------------------------------------------------------------------------------------


def test_the_settings_as_keywords_are_those_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "docs")
    made = importlib.import_module("make_keywords")
    assert text_of(made.MODULE) == made.module(), "make docs writes it anew"


RIGHT = """
from contextlib import aclosing
import kstore
log = kstore.Log.open("d/t-0", segment_bytes=1 << 20, retention_ms="600000", preallocate=True, clock=lambda: 0)
log.update_config(flush_ms=5)
store = kstore.Store.open("d", log_retention_check_interval_ms=1000, segment_bytes=100, background=False)
store.create_topic("t", 2, segment_bytes=100, cleanup_policy=["compact", "delete"])
store.update_config(retention_ms=-1)
print(kstore.LogConfig(min_cleanable_dirty_ratio=0.5).replace(segment_ms=1).warnings(kstore.BrokerConfig()))
log.append(b"v", headers={"a": b"b"})
log.append(b"v", headers=[("a", b"b"), ("a", None)])
log.append_many([(b"k", b"v", None, {"a": b"b"})])
store.append("t", b"v", headers={"a": b"b"})
with store.producer() as producer, store.producer(transactional_id="x") as transactions:
    producer.append("t", b"v", headers={"a": b"b"})
    with transactions.transaction() as transaction:
        transaction.append("t", b"v", headers={"a": b"b"})
async def reads() -> None:
    async with aclosing(log.aread()) as records, aclosing(store.aread("t")) as more:
        print([record.offset async for record in records], [record.topic async for record in more])
    async with aclosing(log.aread_columns()) as chunks:
        print([chunk.next_offset async for chunk in chunks])
    await log.aappend(b"v", headers={"a": b"b"})
print(log.recovery.cut_bytes, kstore.__version__, kstore.CorruptRecordError, kstore.decode_batches(b""))
"""
WRONG = {
    'kstore.Log.open("d/t-0", segment_byte=1)': '"segment_byte" for "open" of "Log"',
    'kstore.Log.open("d/t-0", segment_bytes=[1])': 'Argument "segment_bytes" to "open" of "Log"',
    'kstore.Log.open("d/t-0").update_config(flush_mss=1)': '"flush_mss" for "update_config" of "Log"',
    'kstore.Store.open("d", log_retention_check_interval=1)': '"log_retention_check_interval" for "open" of "Store"',
    'kstore.Store.open("d").create_topic("t", segment_byte=1)': '"segment_byte" for "create_topic" of "Store"',
    'kstore.Store.open("d").update_config(segment_byte=1)': '"segment_byte" for "update_config" of "Store"',
    "kstore.LogConfig(segment_byte=1)": '"segment_byte" for "LogConfig"',
    "kstore.LogConfig().replace(segment_byte=1)": '"segment_byte" for "replace" of "LogConfig"',
    "kstore.BrokerConfig(segment_bytes=1)": '"segment_bytes" for "BrokerConfig"',
    "kstore.Misspelt": 'Module has no attribute "Misspelt"',
}


def test_a_misspelt_setting_is_an_error_of_the_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(RIGHT + "\n".join(WRONG) + "\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", program],
        cwd=tmp_path,
        env={"MYPYPATH": str(REPOSITORY), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = [line.partition(": error: ") for line in done.stdout.splitlines() if ": error: " in line]
    first = RIGHT.count("\n") + 1
    assert [place.rpartition(":")[2] for place, _, _ in said] == [str(first + at) for at in range(len(WRONG))]
    for (_, _, message), expected in zip(said, WRONG.values(), strict=True):
        assert expected in message


def test_a_topics_settings_may_be_keywords(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path, background=False) as store:
        store.create_topic("t", config={"segment.bytes": 100, "retention.ms": 5}, segment_bytes=200)
        config = store.topic_config("t")
        assert (config.segment_bytes, config.retention_ms) == (200, 5)
        with pytest.raises(kstore.ConfigError, match=r"segment_byte.*segment_bytes"):
            store.create_topic("u", segment_byte=100)  # type: ignore[call-arg]
        assert "u" not in store.topics


# --- what an editor shows ---------------------------------------------------------------------------------------------


@cache
def module_source(module: str) -> ast.Module:
    """A module as an editor reads it: a compiled one as its stub."""
    file = Path(sys.modules[module].__file__ or "")
    source = file if file.suffix == ".py" else file.parent / f"{file.name.partition('.')[0]}.pyi"
    return ast.parse(text_of(source))


def source_of(owner: type) -> ast.ClassDef:
    """The class as an editor reads it."""
    found = [node for node in ast.walk(module_source(owner.__module__)) if isinstance(node, ast.ClassDef)]
    return next(node for node in found if node.name == owner.__name__)


def words_by_name(body: list[ast.stmt]) -> Iterator[tuple[str, bool]]:
    """The public names of a class body (attributes, methods, properties), and whether each has words."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name, told = node.name, ast.get_docstring(node) is not None
        elif isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            name, told = ast.unparse(node.target), isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        else:
            continue
        if not name.startswith("_"):
            yield name, told


def public_bases(owner: type) -> list[type]:
    return [base for base in owner.__mro__ if base.__module__.startswith("kstore")]


@pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.__name__)
def test_every_public_name_of_a_class_has_words(owner: type) -> None:
    rows = owner.settings if issubclass(owner, Settings) else ()
    settings = {setting.attribute for setting in rows}  # keywords.py has their words
    found = [each for base in public_bases(owner) for each in words_by_name(source_of(base).body)]
    assert {name for name, _ in found} - {name for name, told in found if told} - settings == set()
    assert owner.__doc__


@pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.__name__)
def test_attributes_are_declared_where_an_editor_looks(owner: type) -> None:
    """Not in `__slots__` alone, and not by an assignment in a method."""
    declared = {name for base in owner.__mro__ for name in vars(base) | inspect.get_annotations(base)}
    assigned = {
        node.attr
        for base in public_bases(owner)
        for node in ast.walk(source_of(base))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    slots = {name for base in public_bases(owner) for name in getattr(base, "__slots__", ())}
    annotated = {
        node.target.id
        for base in public_bases(owner)
        for node in source_of(base).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert {name for name in assigned | slots if not name.startswith("_")} - annotated - (declared - slots) == set()


def test_the_stubs_are_those_that_the_sources_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "docs")
    stubs = importlib.import_module("make_stubs").stubs()
    assert set(stubs) == set((REPOSITORY / "kstore").rglob("*.pyi"))
    assert [path for path, text in stubs.items() if text_of(path) != text] == [], "make docs writes them anew"


@pytest.mark.parametrize("path", sorted((REPOSITORY / "kstore").rglob("*.pyi")), ids=lambda path: path.stem)
def test_every_function_of_a_compiled_module_has_words(path: Path) -> None:
    body = ast.parse(text_of(path)).body
    owners = [("", body), *((node.name, node.body) for node in body if isinstance(node, ast.ClassDef))]
    bare = [
        f"{owner}.{node.name}"
        for owner, nodes in owners
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and not node.decorator_list
        and ast.get_docstring(node) is None
    ]
    assert bare == []


def every_module() -> Iterator[ModuleType]:
    for module in pkgutil.walk_packages(kstore.__path__, "kstore."):
        if module.name != "kstore.__main__":
            yield importlib.import_module(module.name)


def classes_in(module: ModuleType) -> list[type]:
    return [each for each in vars(module).values() if isinstance(each, type)]


def compiled_methods() -> Iterator[Any]:
    """The methods that compiled classes of kstore define, those with underscores too."""
    for module in every_module():
        if str(module.__file__).endswith(tuple(EXTENSION_SUFFIXES)):
            members = [member for owner in classes_in(module) for member in vars(owner).values()]
            yield from (each for each in members if isinstance(each, COMPILED | MethodDescriptorType))


def test_no_class_takes_a_function_of_c_for_a_method() -> None:
    """It is none: called on an object, it would not be given the object."""
    owners = {each for module in every_module() for each in classes_in(module) if each.__module__.startswith("kstore.")}
    assert len(owners) > 100
    functions = [
        (owner, name)
        for owner in owners
        for name, member in vars(owner).items()
        if isinstance(member, BuiltinFunctionType) and name not in ("__new__", "_new_member_")
    ]
    assert functions == []


def test_a_compiled_method_refuses_an_object_of_another_class() -> None:
    """One that took it for an object of its own would read memory that is not there, and end the process."""
    methods = list(compiled_methods())
    assert len(methods) > 100
    for method in methods:
        for other in (None, object(), b"abc"):
            with pytest.raises(TypeError):
                method(other)
