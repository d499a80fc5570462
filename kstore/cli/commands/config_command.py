"""`kstore config`: lists the settings, or prints the values in force if some are given."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from kstore.base.terminal import escaped
from kstore.cli import command_options
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import LogConfig
from kstore.config.settings import Setting, text

__all__ = ["run"]

_ABOUT = """\
List the settings of logs and stores, or describe some of them in full. With --config: print the values that are in
force when these are given, with warnings about effects that may surprise."""
_EXAMPLES = """examples:
  kstore config
  kstore config retention.ms log.roll.hours
  kstore config --config server.properties --config segment.bytes=16384
"""


def run(arguments: list[str]) -> int:
    parser = command_options.Parser("config", _ABOUT, _EXAMPLES)
    parser.add_argument("names", metavar="NAME", nargs="*", help="a setting, by Kafka's topic or broker name")
    command_options.add_config(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parsed = parser.parse_args(arguments)
    rows = [command_options.find(name) for name in parsed.names]
    settings = command_options.given(parsed)
    if settings is None:
        _list(rows, parsed.json)
    else:
        _resolve(settings, rows, parsed.json)
    return 0


# The settings


def _list(rows: list[Setting], as_json: bool) -> None:
    if as_json:
        print(json.dumps([_facts(row) for row in rows or _all_rows()], indent=2))
    elif rows:
        print("\n\n".join(map(_in_full, rows)))
    else:
        _table("settings of a log, by topic", LogConfig.settings)
        print()
        _table("settings of a store", BrokerConfig.settings)


def _all_rows() -> tuple[Setting, ...]:
    return (*LogConfig.settings, *BrokerConfig.settings)


def _table(title: str, rows: Iterable[Setting]) -> None:
    lines = [(title, "unit", "allowed", "default")]
    _columns([*lines, *((_marked(row), row.unit or row.kind, row.range, row.shown_default) for row in rows)])


def _marked(row: Setting) -> str:
    return f"{row.name} (does nothing)" if row.idle else row.name


def _columns(lines: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _in_full(row: Setting) -> str:
    lines = [f"{row.name}: {row.kind}, {row.range}{f', in {row.unit}' if row.unit else ''}"]
    lines.append(f"default: {row.shown_default}")
    lines += [f"a broker's {at.name}{f', in {at.unit}' if at.unit else ''}" for at in row.broker_names]
    if row.applies:
        lines.append(f"takes effect with {row.applies}")
    if row.idle:
        lines.append(f"does nothing here: {row.idle}")
    lines += [row.doc.replace("`", ""), f"Careful: {row.danger.replace('`', '')}"]
    width = max(40, min(shutil.get_terminal_size().columns, 100))
    first, *rest = lines
    return "\n".join(
        [first, *(textwrap.fill(line, width, initial_indent="  ", subsequent_indent="  ") for line in rest)]
    )


def _facts(row: Setting) -> dict[str, Any]:
    return {
        "name": row.name,
        "attribute": row.attribute,
        "kind": row.kind,
        "unit": row.unit or None,
        "allowed": row.range,
        "default": row.default,
        "kafka_default": row.kafka_default,
        "broker_names": [{"name": at.name, "unit": at.unit or row.unit or None} for at in row.broker_names],
        "applies": row.applies or None,
        "does_nothing": row.idle or None,
        "doc": row.doc,
        "danger": row.danger,
    }


# The values in force


def _resolve(settings: dict[str, str], rows: list[Setting], as_json: bool) -> None:
    config, broker = LogConfig.resolve(settings), BrokerConfig.resolve(settings)
    explicit = config.explicit | broker.explicit
    shown = rows or [row for row in _all_rows() if row.attribute in explicit]
    values = {row.name: getattr(config if row in LogConfig.settings else broker, row.attribute) for row in shown}
    warnings = (*broker.warnings(), *config.warnings(broker))
    if as_json:
        print(json.dumps({"settings": values, "warnings": warnings}, indent=2))
        return
    for name, value in values.items():
        print(f"{name}={'' if value is None else escaped(text(value))}")
    for warning in warnings:
        print(f"# warning: {escaped(warning)}")
