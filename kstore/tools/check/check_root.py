"""Checks the files of a data directory that belong to no partition: checkpoints, topics, records of bulk loads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from kstore.config.log_config import LogConfig
from kstore.errors import ConfigError, StorageError
from kstore.files import checkpoint, follower_file, load_files, names, topic_files
from kstore.store import catalog
from kstore.tools.check.findings import Findings

__all__ = ["check_root"]


def check_root(root: str, beside: Sequence[str], findings: Findings) -> None:
    """Check the files of a data directory that belong to no partition; `beside` are the other roots of the check."""
    listing = catalog.look([root])
    present = {entry.key for entry in listing.entries}
    for path in listing.passed_over:
        what = "no partition's directory; a broker would not start here"
        if os.path.islink(path):
            what = "a symbolic link: kstore does not follow it, a broker does"
        findings.add(path, "FORMAT 1.1", what, severity="note")
    for path in listing.deleted:
        findings.add(path, "FORMAT 1.2", "a partition that awaits its removal", severity="note")
    for name in checkpoint.ROOT_CHECKPOINTS:
        path = os.path.join(root, name)
        offsets: checkpoint.Offsets = {}
        with findings.reading(path, "FORMAT 11", "write it anew from the logs"):
            offsets = checkpoint.read_offsets(root, name)
        elsewhere = []
        for (topic, partition), offset in offsets.items():
            if offset < 0:
                findings.add(path, "FORMAT 11", f"{topic}-{partition}: offset {offset} is negative", offset=offset,
                             repair="write it anew from the logs")  # fmt: skip
            elif (topic, partition) not in present and topic != names.METADATA_TOPIC:
                elsewhere.append(f"{topic}-{partition}")
        if elsewhere:
            which = ", ".join(elsewhere[:5]) + ("" if len(elsewhere) <= 5 else ", ...")
            what = f"lines of {len(elsewhere)} partitions that are not here: {which}"
            findings.add(path, "SEMANTICS 13.8", what, severity="note")
    _check_loads(root, findings)
    _check_role(root, findings)
    path = os.path.join(root, topic_files.TOPICS_FILE)
    topics = None
    how = "write it anew from its whole lines, the partitions and the store's other directories"
    with findings.reading(path, "", how):
        topics = topic_files.read_topics([root]).topics
    if topics is not None:
        _check_topics(path, topics, present, findings)
        _check_missing(root, topics, present.union(entry.key for entry in catalog.look(beside).entries), findings)


def _check_loads(root: str, findings: Findings) -> None:
    """Check the record of a pending bulk load and the list of finished loads."""
    path = os.path.join(root, load_files.COMMIT_FILE)
    how = "put back a copy, or move it away to give the load up: some of its records may be in the logs then"
    with findings.reading(path, "", how):
        record = load_files.read_commit(root)
        if record is not None:
            findings.add(path, "", str(record), severity="note")
    how = "write it anew from its whole lines; a load it no longer names can be taken in twice"
    with findings.reading(os.path.join(root, load_files.LOADS_FILE), "", how):
        load_files.read_done([root])


def _check_role(root: str, findings: Findings) -> None:
    path = os.path.join(root, follower_file.FOLLOWER_FILE)
    with findings.reading(path, "", "kstore.replicate into this directory writes it anew"):
        follows = follower_file.read_role(root)
        if follows is not None:
            findings.add(path, "", str(follows), severity="note")


def _check_topics(
    path: str, records: Mapping[str, topic_files.TopicRecord], present: set[checkpoint.Partition], findings: Findings
) -> None:
    for name, record in records.items():
        if record.state != "live":
            what = f"topic {name} is {record.state}: the next opening of the store finishes that"
            findings.add(path, "", what, severity="note")
            continue
        try:
            LogConfig().for_topic(record.config)
        except ConfigError as error:
            how = "nothing: a later release of kstore may know it; Store.update_topic_config takes it back"
            findings.add(path, "", f"topic {name}: {error}: its logs do not open", repair=how)
        for partition in sorted(partition for topic, partition in present if topic == name):
            if partition >= record.partitions:
                what = f"topic {name} has {record.partitions} partitions, and {name}-{partition} is here"
                findings.add(path, "", what, severity="note")


def _check_missing(
    root: str, records: Mapping[str, topic_files.TopicRecord], present: set[checkpoint.Partition], findings: Findings
) -> None:
    """Report the partitions of present topics that a checkpoint file names and that have no directory."""
    try:
        missing = topic_files.missing_partitions([root], records, present, {topic for topic, _ in present})
    except StorageError:
        return  # `check_root` has reported the error
    for topic, partition, _, offset in missing:
        what = f"the directory is missing: the checkpoint files know of offset {offset} in it"
        findings.add(os.path.join(root, f"{topic}-{partition}"), "SEMANTICS 13.8", what, offset=offset,
                     repair=f"make it anew, empty, to go on at offset {offset}")  # fmt: skip
