"""Writes `docs/configuration.md` from the tables of settings: `make docs`. A test notices when page and code part."""

from __future__ import annotations

from pathlib import Path

from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import LogConfig
from kstore.config.settings import BrokerName, Setting, readable

HEAD = """\
# Configuration

Every setting of Kafka 4.3.0 that concerns storage, under Kafka's names. What follows is printed from the tables that
the code checks values with and makes its errors of (`kstore/config/log_config.py`, `kstore/config/broker_config.py`);
on a command line `kstore config` prints the same, and `kstore config --config retention.ms=600000` what that comes to.

## Where settings are given

- `kstore.Log.open(path, segment_bytes=...)` and `kstore.LogConfig(segment_bytes=...)` take the names of the log's
  settings below, with underscores. A lone log's settings are not stored with it: give them each time it is opened.
- `config=` takes a `LogConfig`, a mapping under Kafka's topic names (`segment.bytes`) and broker names
  (`log.segment.bytes`), or the path of a broker's `server.properties`, of which only the broker's names count. Other
  names are passed over there. One that is a topic's (`retention.ms`), or nearly one that counts
  (`log.retention.huors`), is a `kstore.ConfigWarning` with its line.
- `kstore.LogConfig.from_kafka(...)` takes a mapping or a path too; with a mapping it starts from Kafka's defaults.
- `kstore.Store.open(paths, ...)` takes the same, and the settings of a store besides. They hold for every topic that
  has no setting of its own, and are not stored either. A topic's own settings, under topic names alone, are stored.

A topic's setting wins over the store's, that over the default. Within one mapping the topic's name wins over the
broker's names, and those over each other in the order in which they stand below: `ms` over `minutes` over `hours`. A
name that is overruled must be sound all the same.

An unknown name, or a value that is no value of its kind or out of its range, is a `ConfigError` that says the name, the
value, what is allowed, and the nearest name that is known.

Two defaults are not Kafka's. `retention.ms` is -1, for ever, unless it is named in any of its forms; only `from_kafka`
with a mapping brings Kafka's seven days. A `server.properties` without a retention deletes nothing by age here, and a
`ConfigWarning` says that a broker would. And `segment.bytes` may be as small as 14 everywhere.

A setting that does nothing here is marked "does nothing here", with the reason. It is checked and kept, and naming it
is a `kstore.ConfigWarning`.

"Takes effect" says when a change of an open log's setting does (`log.update_config(segment_bytes=...)`), as in Kafka.

"""

TOGETHER = """
## Settings that are dangerous together

Some settings are allowed one by one and have together an effect that may surprise. A `kstore.ConfigWarning` says so,
once, with the numbers, when a log or a store is opened for writing, when a topic is created, and when settings change.
`LogConfig.warnings()` gives the same sentences without opening anything. Defaults alone are no reason to warn.

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

A topic has them under the topic's name, a store under any of the names.
"""

STORE = """
## Settings of a store

No topic can override these; they have the broker's name alone, and hold from the opening of the store on.
"""


def main() -> None:
    Path(__file__).with_name("configuration.md").write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole document."""
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
    """A table with a line for each setting."""
    lines = [f"| setting {kind} | unit | allowed | default |", "|---|---|---|---|"]
    for setting in settings:
        default = setting.shown_default + (" (does nothing here)" if setting.idle else "")
        cells = (setting.unit or setting.kind, setting.range, default)
        lines.append(f"| [`{setting.name}`](#{setting.attribute}) | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def warning(settings: dict[str, str]) -> str:
    """The warnings for a log with these settings."""
    messages = LogConfig.resolve(settings).warnings()
    assert messages, settings
    named = ", ".join(f"`{name}={value}`" for name, value in settings.items())
    return f"- {named}\n" + "".join(f"  - {message}.\n" for message in messages)


def section(setting: Setting) -> str:
    """One setting: its facts on a line each, what it does, and the danger of changing it."""
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
    """In what a broker's name differs from the topic's."""
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
