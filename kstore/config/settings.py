"""The parts of a table of settings: its rows, the parsing of values as Kafka parses properties, and the base class.

Precedence of the names of a setting: the topic's name, then the broker's names in their order, then the default.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar

from kstore.base import arguments
from kstore.base.arguments import nearest
from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.disk import fs
from kstore.errors import ConfigError

logger = logging.getLogger("kstore")


Kind = Literal["bool", "int", "long", "double", "string", "list"]
HOURS = 3_600_000
MINUTES = 60_000
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?[fFdD]?")


_ANY = {
    "bool": "true or false",
    "int": "any 32-bit integer",
    "long": "any 64-bit integer",
    "list": "a list without an empty element",
}


@dataclass(frozen=True, slots=True)
class BrokerName:
    """A name of a log's setting in a broker's properties; unit, kind and range are given if they differ."""

    name: str
    unit: str = ""
    factor: int = 1  # multiplier from this name's unit to the setting's
    kind: Kind | None = None
    minimum: int | None = None
    also: tuple[int, ...] = ()
    negative_is: int | None = None  # replaces every negative value


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `default` is kstore's, `kafka_default` Kafka's; they differ in one row."""

    name: str
    kind: Kind
    default: Any
    kafka_default: Any
    broker_names: tuple[BrokerName, ...]
    unit: str
    minimum: float | None = None
    maximum: float | None = None
    also: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    applies: str = ""
    doc: str = ""
    danger: str = ""
    idle: str = ""
    """Why the setting does nothing here; "" if it has an effect."""

    @property
    def nullable(self) -> bool:
        return self.default is None

    @property
    def attribute(self) -> str:
        """The name in Python: Kafka's name with underscores instead of dots."""
        return self.name.replace(".", "_")

    @property
    def range(self) -> str:
        """The allowed values, in words."""
        return self.range_of(BrokerName(self.name))

    def range_of(self, at: BrokerName) -> str:
        """Return the values that are allowed under one of the names, in words."""
        if at.minimum is not None:
            return "".join(f"{value} or " for value in at.also) + f"at least {at.minimum}"
        if self.choices:
            choices = ", ".join(self.choices)
            return f"a list out of {choices}" if self.kind == "list" else f"one of {choices}"
        if self.minimum is None and self.maximum is None:
            return _ANY.get(self.kind, f"any {self.kind}")
        also = "".join(f"{value} or " for value in self.also)
        if self.maximum is None:
            return f"{also}at least {self.minimum}"
        return f"{also}{self.minimum} to {self.maximum}"

    @property
    def shown_default(self) -> str:
        """The default in words, and Kafka's if it differs."""
        default = readable(self.default, self.unit)
        other = "" if self.kafka_default == self.default else f", Kafka's {readable(self.kafka_default, self.unit)}"
        return default + other

    @property
    def help(self) -> str:
        """The help of an option for this setting: its effect, range, unit and default."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.doc} [{self.range}{unit}; default {self.shown_default}]".replace("`", "").replace("%", "%%")

    def parse(self, value: object, name: str | None = None) -> Any:
        """Convert a value from text, or check one of the setting's type; raise `ConfigError` for a bad value."""
        name = name or self.attribute
        if value is None and self.nullable:
            return None
        parsed = self.convert(value, BrokerName(name))
        self.check(parsed, name, value)
        return parsed

    def convert(self, value: object, at: BrokerName) -> Any:
        """Return the value in the type of this name, without a check of its range."""
        kind = at.kind or self.kind
        try:
            return _PARSERS[kind](value)
        except (TypeError, ValueError, OverflowError) as error:
            reason = f"is no {kind}: {error}; {self.range_of(at)} is allowed"
            raise _bad(at.name, value, reason, at.unit or self.unit) from None

    def from_broker(self, value: object, at: BrokerName, *, wins: bool) -> Any:
        """Return the value of a broker's name in the setting's unit; if not `wins`, only check it as a broker does."""
        if value is None and self.nullable:
            return None
        parsed = self.convert(value, at)
        if at.negative_is is not None and parsed < 0:
            parsed = at.negative_is
        # A broker checks the range of each name, except of a retention's name that another name overrides.
        bound = at.minimum is not None and (wins or at.negative_is is None)
        if bound and parsed not in at.also and parsed < (at.minimum or 0):
            raise _bad(at.name, value, f"is out of range: {self.range_of(at)} is allowed", at.unit or self.unit)
        if not wins:
            return parsed
        if parsed not in at.also:
            parsed *= at.factor
        self.check(parsed, at.name, value)
        return parsed

    def check(self, parsed: Any, name: str, value: object) -> None:
        """Raise a `ConfigError` if the parsed value is out of range."""
        if self.choices:
            for one in parsed if self.kind == "list" else (parsed,):
                if one not in self.choices:
                    near = nearest(str(one), self.choices)
                    raise _bad(name, value, f"is not {self.range}{near}", self.unit)
        elif not isinstance(parsed, str | tuple) and parsed not in self.also:
            low, high = self.minimum, self.maximum
            if not ((low is None or parsed >= low) and (high is None or parsed <= high) and parsed == parsed):
                raise _bad(name, value, f"is out of range: {self.range} is allowed", self.unit)


def setting(
    name: str,
    kind: Kind,
    default: Any,
    unit: str = "",
    *,
    kafka_default: Any = ...,
    broker: str | tuple[BrokerName | str, ...] = (),
    **more: Any,
) -> Setting:
    """Make a setting from its names, default and range; `row` adds the texts about it."""
    given = (broker,) if isinstance(broker, str) else broker
    names = tuple(BrokerName(each) if isinstance(each, str) else each for each in given)
    return Setting(name, kind, default, default if kafka_default is ... else kafka_default, names, unit, **more)


def row(setting: Setting, *, doc: str, danger: str, applies: str = "") -> Any:
    """Make the field of a table for a setting, with the texts about it."""
    told = dataclasses.replace(setting, doc=doc, danger=danger, applies=applies)
    return dataclasses.field(metadata={"setting": told})


def _bad(name: str, value: object, what: str, unit: str) -> ConfigError:
    return ConfigError(f"{name} = {shortened(value)} {what}{f' (unit: {unit})' if unit else ''}")


def unknown(name: object, names: Iterable[str], value: object = ...) -> ConfigError:
    """Make the error for an unknown name, and the value that was given for it.

    A broker's name, such as log.retention.ms, leads to the topic's name.
    """
    shown = "" if value is ... else f" = {shortened(value)}"
    known, given = set(names), str(name)
    bare = given.removeprefix("log.").removeprefix("log_")
    near = "" if bare in known else nearest(given, known, cutoff=0.9)
    return ConfigError(f"unknown setting {shortened(name)}{shown}{near or nearest(bare, known)}")


def shortened(value: object) -> str:
    """Return the `repr` of a value, cut after 200 characters."""
    shown = repr(value)
    return shown if len(shown) <= 200 else shown[:200] + "…"


# Values


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text not in ("true", "false"):
        raise ValueError("true or false is allowed")
    return text == "true"


def _parse_integer(limit: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str):
            if not _INTEGER.fullmatch(value.strip()):
                raise ValueError("an integer is needed")
            number = int(value.strip())
        elif isinstance(value, bool):
            raise TypeError("a bool is no number")
        else:
            number = operator.index(value)  # type: ignore[arg-type]  # raises TypeError for anything else
        if not -limit - 1 <= number <= limit:
            raise ValueError(f"the type holds {-limit - 1} to {limit}")
        return number

    return parse


def _parse_double(value: object) -> float:
    if isinstance(value, bool):
        raise TypeError("a bool is no number")
    if isinstance(value, str):
        text = value.strip()
        if not _DOUBLE.fullmatch(text):
            raise ValueError("a number is needed")
        return float(text.rstrip("fFdD"))
    return float(value)  # type: ignore[arg-type]  # likewise


def _parse_string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a str is needed, not {type(value).__name__}")
    return value


def _parse_list(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        items = re.split(r"\s*,\s*", value.strip()) if value.strip() else []
    elif isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview):
        items = [_parse_string(item) for item in value]
    else:
        raise TypeError(f"a list of str is needed, not {type(value).__name__}")
    if not all(items):
        raise ValueError("an element is empty")
    unique = tuple(dict.fromkeys(items))
    if len(unique) != len(items):
        logger.warning("the list %r has an element twice; it counts once", value)
    return unique


_PARSERS: dict[Kind, Callable[[object], Any]] = {
    "bool": _parse_bool,
    "int": _parse_integer(INT_MAX),
    "long": _parse_integer(LONG_MAX),
    "double": _parse_double,
    "string": _parse_string,
    "list": _parse_list,
}


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's properties text: comments, the three separators, continued lines, escapes. Any text is valid."""
    return {name: value for _, name, value in _properties(text)}


def _properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each property with the number of the line on which it starts."""
    lines = iter(enumerate(re.split(r"\r\n|\r|\n", text), 1))
    for number, line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        parts = [line]
        while (len(parts[-1]) - len(parts[-1].rstrip("\\"))) % 2:
            parts[-1] = parts[-1][:-1]
            parts.append(next(lines, (0, ""))[1].lstrip(" \t\f"))
        line = "".join(parts)
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        if match is not None:
            yield number, _unescape(match[1]), _unescape(match[2])


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", plain, text, flags=re.DOTALL)


def read_properties(path: str | os.PathLike[str]) -> dict[str, tuple[str, int]]:
    """Read a file of Java properties; return the value and the line number of each name.

    Raises `StorageError` if the file cannot be read.
    """
    text = fs.read_file(arguments.path("config", path), follow=True).decode("latin-1")
    return {name: (value, line) for line, name, value in _properties(text)}


# The objects

_S = TypeVar("_S", bound="Settings")


class Settings:
    """The base class of `LogConfig` and `BrokerConfig`: immutable settings, defined by a table, compared by value.

    Thread-safe.
    """

    __slots__ = ()
    settings: ClassVar[tuple[Setting, ...]] = ()
    _by_attribute: ClassVar[dict[str, Setting]] = {}
    explicit: frozenset[str]
    """The names of the settings that were given, as Python writes them."""

    def replace(self, **settings: object) -> Self:
        """Return a copy with some settings changed; these count as explicit.

        Args:
            **settings: The new values under their names in Python; text is parsed as in a properties file.

        Returns:
            The copy, or this object if there is nothing to change.

        Raises:
            ConfigError: If a name is unknown, a value is bad, or the settings do not fit together.

        Example:
            >>> kstore.LogConfig().replace(segment_bytes="1048576").segment_bytes
            1048576
        """
        if not settings:
            return self
        changed = {name: self._find(name, value).parse(value) for name, value in settings.items()}
        values = {setting.attribute: getattr(self, setting.attribute) for setting in self.settings}
        return self._make(values | changed, self.explicit | changed.keys())

    @classmethod
    def knows(cls, name: str) -> bool:
        """Return whether a setting of this name exists.

        Args:
            name: A name in Python, such as `segment_bytes`.

        Returns:
            True if it exists.

        Example:
            >>> kstore.LogConfig.knows("segment_bytes"), kstore.BrokerConfig.knows("segment_bytes")
            (True, False)
        """
        return name in cls._by_attribute

    def to_kafka(self) -> dict[str, str]:
        """Return the explicit settings under Kafka's names.

        Returns:
            A dict of text by name, without settings that are None; `from_kafka` reads it back.

        Example:
            >>> kstore.LogConfig(segment_bytes=1 << 20, cleanup_policy="compact").to_kafka()
            {'segment.bytes': '1048576', 'cleanup.policy': 'compact'}
        """
        rows = (setting for setting in self.settings if setting.attribute in self.explicit)
        return {
            setting.name: text(value) for setting in rows if (value := getattr(self, setting.attribute)) is not None
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in sorted(self.explicit))
        return f"{type(self).__name__}({shown})"

    @classmethod
    def _defaults(cls, *, kafka: bool = False) -> dict[str, Any]:
        return {row.attribute: row.kafka_default if kafka else row.default for row in cls.settings}

    @classmethod
    def _find(cls, name: str, value: object) -> Setting:
        if name not in cls._by_attribute:
            raise unknown(name, cls._by_attribute, value)
        return cls._by_attribute[name]

    @classmethod
    def _make(cls: type[_S], values: Mapping[str, Any], explicit: Iterable[str]) -> _S:
        made = cls.__new__(cls)
        made._fill(values, explicit)
        return made

    def _fill(self, values: Mapping[str, Any], explicit: Iterable[str]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "explicit", frozenset(explicit))
        self._check_together()

    def _check_together(self) -> None:
        """Raise a `ConfigError` for settings that are each in range but do not fit together."""

    @classmethod
    def _from_names(cls: type[_S], named: Mapping[str, object], start: Mapping[str, Any], *, topic: bool = True) -> _S:
        """Parse the settings that have a known name; without `topic`, only the broker's names are known."""
        values = dict(start)
        explicit = []
        for setting in cls.settings:
            own = (BrokerName(setting.name),) if topic else ()
            names = [at for at in (*own, *setting.broker_names) if at.name in named]
            for at in reversed(names):  # each value must be valid; the first is in force
                values[setting.attribute] = setting.from_broker(named[at.name], at, wins=at is names[0])
            if names:
                explicit.append(setting.attribute)
        return cls._make(values, explicit)


def refuse_unknown(call: Callable[..., object], settings: Mapping[str, object], *tables: type[Settings]) -> None:
    """Raise `ConfigError` for a keyword that is not in these tables; suggest a keyword that `call` takes."""
    for name, value in settings.items():
        if not any(table.knows(name) for table in tables):
            known = {attribute for table in tables for attribute in table._by_attribute}
            raise unknown(name, known | arguments.names_of(call), value)


def text(value: object) -> str:
    """Write a value as in a properties file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


_STEPS = {
    "milliseconds": ((24 * HOURS, "days"), (HOURS, "hours"), (MINUTES, "minutes"), (1000, "seconds")),
    "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")),
}


def readable(value: object, unit: str) -> str:
    """Write a value for people: as `text` does, and in the largest unit that divides it."""
    if value is None:
        return "none"
    if value == LONG_MAX or value == sys.float_info.max:
        return "unlimited"
    for size, name in _STEPS.get(unit, ()):
        if isinstance(value, int) and value >= size and value % size == 0:
            return f"{value} ({value // size} {name if value > size else name.rstrip('s')})"
    return text(value) or "empty"


def table(cls: type[_S]) -> type[_S]:
    """Collect the rows of a finished dataclass as its `settings`."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # a dataclass by the time this runs
    cls.settings = tuple(field.metadata["setting"] for field in fields if "setting" in field.metadata)
    cls._by_attribute = {setting.attribute: setting for setting in cls.settings}
    return cls


def check_known(named: Mapping[str, object], names: frozenset[str]) -> Mapping[str, object]:
    """Return the mapping; raise `ConfigError` if one of its names is not known."""
    for name in named:
        if name not in names:
            raise unknown(name, names, named[name])
    return named
