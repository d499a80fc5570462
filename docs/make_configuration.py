"""Writes `docs/configuration.md` from the tables of settings: `make docs`. A test compares the page with the code."""

from __future__ import annotations

from pathlib import Path

from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import LogConfig
from kstore.config.settings import BrokerName, Setting, readable

HEAD = """\
# Configuration

Every setting of Kafka 4.3.0 that concerns storage, under Kafka's name. `docs/make_configuration.py` writes this page
from the tables with which the code checks values (`kstore/config/log_config.py`, `kstore/config/broker_config.py`). On
a command line `kstore config` prints the same, and `kstore config --config retention.ms=600000` the resulting values.

## Where settings are given

- `kstore.Log.open(path, segment_bytes=...)` and `kstore.LogConfig(segment_bytes=...)` take the names of the log
  settings below, with underscores. A log without a store does not store them: give them each time it is opened.
- `config=` takes a `LogConfig`, a mapping with Kafka's topic names (`segment.bytes`) and broker names
  (`log.segment.bytes`), or the path of a broker's `server.properties`. In that file only broker names count; other
  names are ignored. A topic's name (`retention.ms`) or a misspelt broker's name (`log.retention.huors`) causes a
  `kstore.ConfigWarning` with the line.
- `kstore.LogConfig.from_kafka(...)` takes a mapping or a path too; with a mapping it starts from Kafka's defaults.
- `kstore.Store.open(paths, ...)` takes the same, and the settings of a store. They apply to every topic that does not
  have its own, and are not stored either. A topic's own settings, with topic names only, are stored.

A topic's setting takes precedence over the store's, which takes precedence over the default. Within one mapping the
topic's name takes precedence over the broker's names, and these in the order given below: `ms`, `minutes`, `hours`. An
overridden value must still be valid.

An unknown name or an invalid value raises a `ConfigError` with the name, the value, the allowed values, and the nearest
known name.

Two defaults are not Kafka's. `retention.ms` is -1, for ever, unless any of its names is given; only `from_kafka` with a
mapping uses Kafka's seven days. If a `server.properties` has no retention, nothing is deleted by age, and a
`ConfigWarning` says that a broker would delete. And `segment.bytes` may always be as small as 14.

A setting that has no effect here is marked "does nothing here", with the reason. It is checked and kept, and naming it
causes a `kstore.ConfigWarning`.

"Takes effect" says when a change to an open log (`log.update_config(segment_bytes=...)`) takes effect, as in Kafka.

"""

TOGETHER = """
## Settings that are dangerous together

Some settings are each valid, but together have a surprising effect. A `kstore.ConfigWarning` says so, once, with the
numbers, when a log or a store is opened for writing, when a topic is created, and when settings change.
`LogConfig.warnings()` returns the same sentences without opening anything. Defaults alone cause no warning.

"""

EXAMPLES: tuple[dict[str, str], ...] = (
    {"segment.index.bytes": "65536", "index.interval.bytes": "1024"},
    {"segment.bytes": "1000000", "max.message.bytes": "2000000"},
    {"segment.bytes": "16384", "index.interval.bytes": "16384"},
    {"segment.jitter.ms": "604800000"},
    {"retention.ms": "600000"},
    {"retention.bytes": "100000000"},
    {"retention.ms": "600000", "segment.ms": "600000", "message.timestamp.after.max.ms": "86400000"},
    {"retention.ms": "604800000", "cleanup.policy": "compact"},
    {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"},
)

LOG = """
## Settings of a log

A topic takes them under the topic's name, a store under any of the names.
"""

STORE = """
## Settings of a store

They have only the broker's name and apply from the opening of the store; no topic can override them.
"""


def main() -> None:
    Path(__file__).with_name("configuration.md").write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the whole document."""
    return "".join(
        (
            HEAD,
            summary("of a log", LogConfig.settings),
            "\n",
            summary("of a store", BrokerConfig.settings),
            TOGETHER,
            *map(warning, EXAMPLES),
            LOG,
            *map(section, LogConfig.settings),
            STORE,
            *map(section, BrokerConfig.settings),
        )
    )


def summary(kind: str, settings: tuple[Setting, ...]) -> str:
    """Return a table with a line for each setting."""
    lines = [f"| setting {kind} | unit | allowed | default |", "|---|---|---|---|"]
    for setting in settings:
        default = setting.shown_default + (" (does nothing here)" if setting.idle else "")
        cells = (setting.unit or setting.kind, setting.range, default)
        lines.append(f"| [`{setting.name}`](#{setting.attribute}) | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def warning(settings: dict[str, str]) -> str:
    """Return the warnings for a log with these settings."""
    messages = LogConfig.resolve(settings).warnings()
    assert messages, settings
    named = ", ".join(f"`{name}={value}`" for name, value in settings.items())
    return f"- {named}\n" + "".join(f"  - {message}.\n" for message in messages)


def section(setting: Setting) -> str:
    """Return the section of a setting: its facts, one per line, its effect, and the danger of changing it."""
    facts = [f"`{setting.name}`: {setting.kind}{unit_of(setting.unit)}, {setting.range}"]
    facts += [f"a broker's `{at.name}`{differences(setting, at)}" for at in setting.broker_names]
    facts.append(f"default: {readable(setting.default, setting.unit)}")
    if setting.kafka_default != setting.default:
        facts[-1] += f"; Kafka's: {readable(setting.kafka_default, setting.unit)}"
    if setting.applies:
        facts.append(f"takes effect: with {setting.applies}")
    if setting.idle:
        facts.append(f"does nothing here: {setting.idle}")
    lines = "".join(f"- {fact}\n" for fact in facts)
    return f"\n### {setting.attribute}\n\n{lines}\n{setting.doc}\n\n**Careful:** {setting.danger}\n"


def differences(setting: Setting, at: BrokerName) -> str:
    """Return how a broker's name differs from the topic's."""
    found = []
    if at.kind and at.kind != setting.kind:
        found.append(at.kind)
    if at.unit:
        found.append(f"in {at.unit}")
    if setting.range_of(at) != setting.range:
        found.append(setting.range_of(at))
    if at.negative_is is not None:
        found.append(f"any other negative value counts as {at.negative_is}")
    return ": " + ", ".join(found) if found else ""


def unit_of(unit: str) -> str:
    return f" in {unit}" if unit else ""


if __name__ == "__main__":
    main()
