"""Checks that the site has every public name, with a signature and a text, and needs no network: `make site` runs it.

It compares the built pages with the package that Python imports. The entries are written from the sources
(docs/public_names.py).
"""

from __future__ import annotations

import html
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, is_typeddict

PACKAGES = ("kstore", "kstore.spark", "kstore.testing")


def public_names() -> Iterator[tuple[str, Any]]:
    """Yield the full name and the value of each public name, and of what each public class has of its own."""
    public: dict[Any, str] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and value in public:
                continue  # the same class in another package
            public[value] = f"{package}.{name}"
    for value, full in public.items():
        yield full, value
        if not isinstance(value, type):
            continue
        others = [base for base in value.__mro__ if base is not value and base in public]
        if is_typeddict(value):  # it does not tell its bases
            others += [each for each in public if is_typeddict(each) and annotations_of(each) < annotations_of(value)]
        foreign = [base for base in value.__mro__ if not base.__module__.startswith("kstore")]
        for name in {*dir(value), *annotations_of(value)}:
            if name.startswith("_") or any(hasattr(base, name) or name in annotations_of(base) for base in others):
                continue
            if not any(name in vars(base) for base in foreign) and name not in ("settings",):
                yield f"{full}.{name}", inspect.getattr_static(value, name, None)


def annotations_of(owner: type) -> set[str]:
    """Return the attributes that a class and its bases declare."""
    return {name for base in owner.__mro__ for name in inspect.get_annotations(base)}


def entries(site: Path) -> dict[str, tuple[str, str]]:
    """Return the text of the signature and of the words of each entry."""
    found = {}
    for page in (site / "reference").glob("*.html"):
        parts = re.split(r'<dt class="sig sig-object py" id="([^"]+)">', page.read_text(encoding="utf-8"))
        for full, part in zip(parts[1::2], parts[2::2], strict=True):
            head, words = re.split(r"</dt>\s*<dd>", part, maxsplit=1)
            found[full] = text_of(head), text_of(words.partition("</dd>")[0].partition("<dl")[0])
    return found


def text_of(source: str) -> str:
    """Return HTML without its elements."""
    return html.unescape(re.sub(r"<[^>]+>", "", source))


def faults_of(full: str, value: Any, found: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Yield what a name's entry lacks."""
    if full not in found:
        yield "no entry"
        return
    head, words = found[full]
    if len(words.split()) < 2:
        yield "no text"
    function = getattr(value, "__func__", value)
    if isinstance(value, property):
        if ": " not in head:
            yield "no type"
        return
    if isinstance(value, type) or not callable(function):
        return
    if "→" not in head:
        yield "no type of the result"
    is_method = full.rpartition(".")[0] not in PACKAGES and not isinstance(value, staticmethod)
    for parameter in list(inspect.signature(function).parameters.values())[is_method:]:
        name = rf"(?<!\w){parameter.name}: "
        has_default = (
            parameter.default is not parameter.empty and head.count("→") == 1
        )  # of several signatures one has it
        if not re.search(name, head):
            yield f"no type of {parameter.name}"
        elif has_default and not re.search(f"{name}[^:]* = ", head):
            yield f"no default of {parameter.name}"
        if parameter.kind is parameter.KEYWORD_ONLY and not re.search(rf"\*(,|\w).*{name}", head, re.DOTALL):
            yield f"{parameter.name} is not shown to be given by its name"


def main(site: Path) -> None:
    """Check a built site, and exit with what is wrong."""
    found, faults = entries(site), []
    names = dict(public_names())
    script = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(script.removeprefix("Search.setIndex(").removesuffix(")"))
    searched = {f"{owner}.{each[-1]}" for owner, objects in index["objects"].items() for each in objects}
    for full, value in sorted(names.items(), key=lambda item: item[0]):
        faults += [f"{full}: {fault}" for fault in faults_of(full, value, found)]
        if full not in searched:
            faults.append(f"{full}: the search does not find it")
    for page in site.rglob("*.html"):
        loaded = r'<(?:script|img|iframe)[^>]* src="https?:[^"]*|<link(?![^>]*rel="canonical")[^>]* href="https?:[^"]*'
        faults += [f"{page.name}: loads {each}" for each in re.findall(loaded, page.read_text(encoding="utf-8"))]
    print(f"{site}: {len(names)} public names", *faults, sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
