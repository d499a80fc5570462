"""Writes `docs/settings.md` from the rows of `LogConfig`: `make docs`. A test notices when the two part."""

from __future__ import annotations

from pathlib import Path

from kstore.config import LogConfig
from kstore.settings import Setting, text

HEAD = """\
# Settings of a log

Give them to `kstore.Log.open(path, segment_bytes=...)` under the names below, as a `kstore.LogConfig`, or under Kafka's
own names through `kstore.LogConfig.from_kafka(...)`, which takes a mapping or the path of a broker's
`server.properties`. Where several of a broker's names set the same thing, the first of them below wins, as in Kafka. An
unknown name, or a value out of its range, is a `ConfigError` that says what is allowed.

A log's settings are not stored with it: give them each time it is opened.
"""


def main() -> None:
    Path(__file__).with_name("settings.md").write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole document."""
    return HEAD + "".join(section(setting) for setting in LogConfig.settings)


def section(setting: Setting) -> str:
    """One setting: its facts on a line each, what it does, and what happens to who turns it."""
    facts = [f"Kafka's name: `{setting.name}`"]
    if setting.broker_names:
        facts[0] += "; a broker's: " + ", ".join(f"`{name.name}`" for name in setting.broker_names)
    facts.append(f"{setting.unit or setting.kind}: {setting.range}; default {shown(setting.default)}")
    if setting.kafka_default != setting.default:
        facts[-1] += f" (Kafka's: {shown(setting.kafka_default)})"
    lines = "".join(f"- {fact}\n" for fact in facts)
    return f"\n## {setting.attribute}\n\n{lines}\n{setting.doc}\n\n**Careful:** {setting.danger}\n"


def shown(value: object) -> str:
    return "none" if value is None else f"`{text(value)}`"


if __name__ == "__main__":
    main()
