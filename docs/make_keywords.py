"""Writes `kstore/config/keywords.py` from the tables of settings: `make docs`. A test notices when the two part."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import LogConfig
from kstore.config.settings import Setting

MODULE = Path(__file__).parents[1] / "kstore" / "config" / "keywords.py"

HEAD = '''\
"""The settings as keyword arguments, for type checkers and editors. Made by docs/make_keywords.py; do not edit.

mypy and pyright report `Log.open(path, segment_byte=1)` as an error, and an editor shows what a setting does. Any value
may also be text, as in a properties file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex, TypedDict


class LogSettings(TypedDict, total=False):
    """The settings of one log, which `Log.open`, `LogConfig` and `Store.create_topic` accept."""

'''

STORE = '''

class BrokerSettings(TypedDict, total=False):
    """The settings of a store that no topic overrides, which `BrokerConfig` accepts."""

'''

BOTH = '''

class StoreSettings(LogSettings, BrokerSettings, total=False):
    """The settings that `Store.open` accepts: those of the store, and the defaults for its topics."""
'''

TYPES = {
    "bool": "bool | str",
    "int": "SupportsIndex | str",
    "long": "SupportsIndex | str",
    "double": "float | str",
    "string": "str",
    "list": "Sequence[str]",
}


def main() -> None:
    MODULE.write_text(module(), encoding="utf-8")


def module() -> str:
    """The whole source."""
    return "".join((HEAD, *keys(LogConfig.settings), STORE, *keys(BrokerConfig.settings), BOTH))


def keys(settings: Iterable[Setting]) -> Iterable[str]:
    """Each setting as a key with its type, and what it does."""
    for setting in settings:
        kind = TYPES[setting.kind] + (" | None" if setting.nullable else "")
        words = setting.help.replace("%%", "%")
        if setting.idle:
            words += f" Does nothing here: {setting.idle}."
        lines = textwrap.wrap(f'"""{words}', 116, break_long_words=False, break_on_hyphens=False)
        end = '"""\n' if len(lines[-1]) <= 113 else '\n"""\n'
        text = "\n".join(lines) + end
        yield f"    {setting.attribute}: {kind}\n" + textwrap.indent(text, "    ")


if __name__ == "__main__":
    main()
