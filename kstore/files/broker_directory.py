"""Log directories that a broker wrote: how they are marked, and what is not known of their settings."""

from __future__ import annotations

import os
from collections.abc import Iterable

from kstore.disk import fs

__all__ = ["BROKER_FILE", "is_of_broker", "of_brokers"]

BROKER_FILE = "meta.properties"
"""The file by which a broker marks its log directories."""


def is_of_broker(root: str) -> bool:
    """Return whether a broker has written a log directory."""
    return fs.exists(os.path.join(root, BROKER_FILE))


def of_brokers(roots: Iterable[str], effect: str = "", setting: str | None = None) -> str:
    """Return that brokers wrote the directories, so that their settings are not known, and how to give them.

    `effect` is a sentence about what Kafka's defaults would do. `setting` is the setting that matters.
    """
    sentences = [
        f"A broker wrote {', '.join(roots)}, and its settings are not in the directory: they are in its "
        "server.properties, and those of a topic in the metadata of its cluster.",
        effect,
        'Give the settings with config="server.properties", on the command line with -c server.properties'
        + ("." if setting is None else f", or one with -c {setting}=VALUE."),
    ]
    return " ".join(filter(None, sentences))
