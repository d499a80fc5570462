"""The names of the subcommands, with a line about each, and the modules that run them. Imports nothing."""

from __future__ import annotations

__all__ = ["COMMANDS", "module_of"]

COMMANDS: dict[str, str] = {
    "adopt": "append what Spark has staged in an object store",
    "append": "append lines or JSON lines from standard input",
    "backup": "back up a directory of logs to an object store, once or continuously",
    "become-leader": "let a follower take over, with a new leader epoch",
    "cat": "print the records of a partition or a topic",
    "compact": "clean logs by key now, or say what that would do, and why nothing is cleaned",
    "completion": "print a script that completes commands and options in bash, zsh or fish",
    "config": "list settings, or print the values in force, with warnings",
    "delete-records": "delete the records of a partition or a topic below an offset or a time",
    "describe": "show the contents of a directory of logs, a topic or a partition",
    "dump": "print log, index and snapshot files as Kafka's dump tool does",
    "explain": "say why segments and records are still there, when they go, and why a disk is full",
    "export": "write records to Parquet, Arrow, CSV or JSON lines files",
    "groups": "show consumer groups with positions and lag; set or delete positions",
    "ingest": "append the rows of CSV, JSON lines, Parquet or Arrow files",
    "offsets": "print where partitions start, end, or reach a time",
    "plan": "say what settings do under a load: disk, lifetimes, segments, and what to change",
    "repair": "repair damaged logs, after saying what would be lost",
    "replicate": "copy a directory of logs, once or continuously",
    "restore": "restore a directory of logs from a backup, as of any time it covers",
    "retain": "delete old segments now, or say which would be deleted and why",
    "tail": "print the last records, and new ones as they are appended",
    "topics": "list topics with sizes and settings; create, change or delete one",
    "truncate": "cut a partition at an offset",
    "ui": "show a directory of logs in a browser",
    "verify": "check logs and their files for errors",
}


def module_of(name: str) -> str:
    """Return the name of the module whose `run` is a subcommand."""
    return f"kstore.cli.commands.{name.replace('-', '_')}_command"
