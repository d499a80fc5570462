"""Parses kstore's own small JSON files as untrusted input: checks size, depth, names, types and ranges.

Errors name the file and the field. Invariant: any bytes result in an object of the expected form or a `StorageError`.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from typing import Any

from kstore.base.numbers import LONG_MAX
from kstore.disk import fs
from kstore.errors import StorageError

__all__ = ["Fields", "malformed", "parse", "read"]

MAX_PATH = 4096
MAX_TEXT = 1000
REPAIR = "'kstore repair' says how to go on"


def read(path: str, most_bytes: int, version: int, advice: str = REPAIR) -> Fields | None:
    """Return the object in a file without its `version`, which must be the given one; None if there is no file.

    Raises `StorageError` if the file is larger than `most_bytes`, has no JSON object, or has another version. The error
    for a malformed file ends with `advice`.
    """
    try:
        data = fs.read_file(path, most_bytes=most_bytes)
    except fs.MissingFileError:
        return None
    except StorageError as error:
        if error.errno == errno.EFBIG:
            raise malformed(path, str(error.strerror), advice) from None
        raise
    try:
        fields = Fields(parse(data), path, advice=advice)
    except (ValueError, RecursionError) as error:
        raise malformed(path, str(error)[:200], advice) from None
    file_version = fields.integer("version", 0, LONG_MAX)
    if file_version != version:
        raise StorageError(errno.EBADMSG, f"version {file_version} of this file; {version} is known", path)
    return fields


def parse(data: bytes) -> Any:
    """Parse JSON strictly (RFC 8259): UTF-8, no duplicate names, no NaN. Raises `ValueError` or `RecursionError`."""
    return json.loads(data.decode(), object_pairs_hook=_no_name_twice, parse_constant=_no_constant)


def malformed(path: str, what: str, advice: str = REPAIR) -> StorageError:
    """Return the error for a malformed file. Records depend on such files, so nothing in them is guessed."""
    return StorageError(errno.EBADMSG, f"malformed: {what}; {advice}", path)


class Fields:
    """The fields of one object of a file. Each method takes a field by its name; `end` refuses fields not taken.

    `where` is the place of the object in the file, for example `shares[0].`; errors end with `advice`. Not thread-safe.
    """

    def __init__(self, parsed: Any, path: str, where: str = "", advice: str = REPAIR) -> None:
        self.path = path
        self.where = where
        self.advice = advice
        if not isinstance(parsed, dict):
            what = f"{where.rstrip('.') or 'the file'} holds {_shown(parsed)}, not an object"
            raise malformed(path, what, advice)
        self._left = dict(parsed)

    def has(self, name: str) -> bool:
        """Return whether there is a field of this name that was not taken."""
        return name in self._left

    def take(self, name: str) -> Any:
        """Take a field of any type."""
        if name not in self._left:
            raise malformed(self.path, f"{self.where}{name} is missing", self.advice)
        return self._left.pop(name)

    def integer(self, name: str, low: int, high: int) -> int:
        """Take a whole number in `[low, high]`."""
        value = self.take(name)
        if type(value) is not int or not low <= value <= high:
            raise self.refusal(name, value, f"a whole number from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """Take true or false."""
        value = self.take(name)
        if type(value) is not bool:
            raise self.refusal(name, value, "true or false")
        return value

    def text(self, name: str) -> str:
        """Take text of at most `MAX_TEXT` characters."""
        return self.text_of(name, self.take(name))

    def text_of(self, name: str, value: Any) -> str:
        """Return `value`, which is at `name`, if it is text."""
        if not isinstance(value, str) or len(value) > MAX_TEXT or not is_text(value):
            raise self.refusal(name, value, f"text of at most {MAX_TEXT} characters, without NUL and lone surrogates")
        return value

    def file_path(self, name: str) -> str:
        """Take an absolute path without `.`, `..` and `//`."""
        return self.path_of(name, self.take(name))

    def path_of(self, name: str, value: Any) -> str:
        """Return `value`, which is at `name`, if it is such a path."""
        if not isinstance(value, str) or not is_plain_path(value):
            raise self.refusal(name, value, "an absolute path without '.', '..', '//' and NUL")
        return value

    def items(self, name: str) -> list[tuple[str, Any]]:
        """Take a list; return its items, each with its place in this object, for example `segments[2]`."""
        value = self.take(name)
        if not isinstance(value, list):
            raise self.refusal(name, value, "a list")
        return [(f"{name}[{number}]", item) for number, item in enumerate(value)]

    def objects(self, name: str) -> Iterator[Fields]:
        """Take a list of objects."""
        for place, item in self.items(name):
            yield Fields(item, self.path, f"{self.where}{place}.", self.advice)

    def mapping(self, name: str) -> dict[str, Any]:
        """Take an object whose names are data."""
        value = self.take(name)
        if not isinstance(value, dict):
            raise self.refusal(name, value, "an object")
        for key in value:
            self.text_of(f"{name}'s name", key)
        return value

    def refusal(self, name: str, value: Any, wanted: str) -> StorageError:
        """Return the error for a field that does not have the `wanted` form."""
        return malformed(self.path, f"{self.where}{name} is {_shown(value)}; {wanted} is needed", self.advice)

    def end(self) -> None:
        """Raise `StorageError` if the object has a field that this release does not know."""
        for name in self._left:
            raise malformed(self.path, f"{self.where}{_shown(name)} is no field of this version", self.advice)


def is_plain_path(path: str) -> bool:
    """Return whether `path` is an absolute path that the system could open, without `.`, `..` or `//` in it."""
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return path.startswith("/") and os.path.normpath(path) == path and b"\0" not in encoded and len(encoded) <= MAX_PATH


def is_text(text: str) -> bool:
    """Return whether the text can be written as UTF-8 and has no NUL."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if type(value) is int:
        return str(value) if value.bit_length() < 200 else f"a number of {value.bit_length()} bits"
    return ascii(value) if not isinstance(value, str) or len(value) <= 100 else f"{value[:100]!a}..."


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{ascii(twice)[:60]} is there twice")
    return fields


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
