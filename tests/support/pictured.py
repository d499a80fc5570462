"""What every picture must be: sound XML of ASCII without scripts, whose texts are inside it and not on each other."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from typing import NamedTuple

from kstore.explained import svg

SVG = "{http://www.w3.org/2000/svg}"
SURE = 0.8  # `svg.width_of` returns the width in wide fonts; so much of it is filled in any


class Label(NamedTuple):
    """A text of a picture, and the place that it takes."""

    text: str
    left: float
    right: float
    top: float
    bottom: float


def labels(picture: str) -> list[Label]:
    """The texts of a picture, in order."""
    return [_label(each) for each in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def texts(picture: str) -> list[str]:
    """The texts of a picture, in order, without their places."""
    return [label.text for label in labels(picture)]


def _label(element: ElementTree.Element) -> Label:
    text, size = element.text or "", float(element.attrib["font-size"])
    x, y = float(element.attrib["x"]), float(element.attrib["y"])
    wide = svg.width_of(text, size, bold="font-weight" in element.attrib)
    anchor = element.attrib.get("text-anchor", "start")
    left = {"start": x, "middle": x - wide / 2, "end": x - wide}[anchor]
    return Label(text, left, left + wide, y - 0.72 * size, y + 0.2 * size)


def check(picture: str, *, links: int = 0) -> str:
    """Raise AssertionError unless the picture is sound; return it."""
    assert picture.isascii()
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    names = [element.tag.removeprefix(SVG) for element in root.iter()]
    assert not {"script", "foreignObject", "image", "use", "animate", "set"} & set(names)
    attributes = [name for element in root.iter() for name in element.attrib]
    assert [name for name in attributes if name.startswith("on") or "style" in name] == []
    assert names.count("a") == links
    assert re.findall(r"(?:src|xlink:href|@import)", picture) == []
    assert [found for found in re.findall(r"url\(([^)]*)\)", picture) if not found.startswith("#")] == []
    _check_identifiers(root)
    _check_places(picture, root)
    return picture


def _check_identifiers(root: ElementTree.Element) -> None:
    """Every identifier is there once, and whatever refers to one refers to one that is there."""
    found = Counter(element.attrib["id"] for element in root.iter() if "id" in element.attrib)
    assert [name for name, count in found.items() if count > 1] == []
    used = {element.attrib["marker-end"][5:-1] for element in root.iter() if "marker-end" in element.attrib}
    used |= {root.attrib["aria-labelledby"], root.attrib["aria-describedby"]}
    assert used <= set(found)
    assert root.attrib["role"] in ("img", "group")


def _check_places(picture: str, root: ElementTree.Element) -> None:
    """All is inside of the view box, and no text lies on another one."""
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    shown = labels(picture)
    assert [
        each for each in shown if each.left < 0 or each.right > width + 1 or each.top < 0 or each.bottom > height
    ] == []
    for box in root.iter(f"{SVG}rect"):
        x, y = float(box.attrib.get("x", 0)), float(box.attrib.get("y", 0))
        assert x >= 0
        assert x + float(box.attrib["width"]) <= width + 1
        assert y >= 0
        assert y + float(box.attrib["height"]) <= height + 1
    by_line = sorted(map(_surely, shown), key=lambda each: each.top)
    for number, one in enumerate(by_line):
        for other in by_line[number + 1 :]:
            if other.top >= one.bottom:
                break
            assert one.right <= other.left or other.right <= one.left, f"{one.text!r} lies on {other.text!r}"


def _surely(label: Label) -> Label:
    """The place that a text takes in any font, without a margin."""
    middle, half = (label.left + label.right) / 2, (label.right - label.left) / 2 * SURE
    return label._replace(left=middle - half, right=middle + half, top=label.top + 1, bottom=label.bottom - 1)
