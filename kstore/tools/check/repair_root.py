"""Repairs the files of a data directory that belong to no partition: checkpoints, topics, records of bulk loads.

Complete lines are kept. A partition whose line is lost is recovered from its files at the next opening. A topic whose
settings are lost keeps all its records until it gets settings again. Invariant: these files, which all partitions
share, are only replaced as a whole and while no process uses the directory.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import LogConfig
from kstore.disk import fs
from kstore.errors import ConfigError, StorageError
from kstore.files import checkpoint, follower_file, json_file, load_files, names, topic_files
from kstore.store import catalog
from kstore.store.coordinator.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

__all__ = ["RootPlan", "mend_root", "plan_root"]

_LINE = re.compile(rb"([a-zA-Z0-9._-]{1,249}) ([0-9]{1,10}) ([0-9]{1,18})[ \t]*")
_LOAD_LINE = re.compile(r'  ("(?:[^"\\]|\\.){1,1000}")(?:: ([0-9]{1,18}))?,?')
_KEEPS_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(slots=True)
class RootPlan:
    """All changes of a repair to the files of a data directory. Not thread-safe."""

    root: str
    steps: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)
    """Faults that are not repaired, each with what the user can do."""
    checkpoints: dict[str, checkpoint.Offsets] = field(default_factory=dict)
    topics: topic_files.TopicTable | None = None
    done: load_files.Done | None = None
    missing: dict[checkpoint.Partition, tuple[int, uuid.UUID | None]] = field(default_factory=dict)
    """Partitions without directories, each with the offset at which it continues, empty, and its topic's id."""

    @property
    def names(self) -> list[str]:
        """The files that would be rewritten."""
        return [
            *self.checkpoints,
            *([] if self.topics is None else [topic_files.TOPICS_FILE]),
            *([] if self.done is None else [load_files.LOADS_FILE]),
        ]

    @property
    def errors(self) -> int:
        return len(self.names) + len(self.by_hand) + len(self.missing)


def plan_root(root: str, roots: Sequence[str] = ()) -> RootPlan:
    """Return a plan that repairs the files of a data directory; change nothing.

    `roots` are all known directories of the store, since another directory may have a sound copy.
    """
    plan = RootPlan(root)
    others = [other for other in roots if os.path.realpath(other) != os.path.realpath(root)]
    for name in checkpoint.ROOT_CHECKPOINTS:
        try:
            checkpoint.read_offsets(root, name)
        except StorageError as error:
            if error.errno != errno.EBADMSG:
                plan.by_hand.append(f"{name}: {error.strerror}")
                continue
            lines = fs.read_file(os.path.join(root, name)).splitlines()
            whole = [match for line in lines if (match := _LINE.fullmatch(line)) and int(match[2]) < 2**31]
            plan.checkpoints[name] = {(match[1].decode(), int(match[2])): int(match[3]) for match in whole}
            plan.steps.append(f"{name}: write it anew with the {len(plan.checkpoints[name])} lines that are whole")
    _plan_topics(plan, others)
    _plan_loads(plan, others)
    _plan_role(plan)
    _plan_missing(plan, others)
    return plan


def _plan_missing(plan: RootPlan, others: Sequence[str]) -> None:
    """Find the partitions of present topics that a checkpoint file names and that have no directory."""
    if plan.errors:
        return  # the files that name partitions are damaged: the next run decides, after their repair
    table = topic_files.read_topics([plan.root])
    present = {entry.key: entry.path for entry in catalog.look([plan.root, *others]).entries}
    here = {topic: path for (topic, _), path in present.items()}
    for topic, partition, _, offset in topic_files.missing_partitions([plan.root], table.topics, present, here.keys()):
        record = table.topics.get(topic)
        plan.missing[topic, partition] = offset, _topic_id(here[topic]) if record is None else record.topic_id
        plan.steps.append(
            f"{topic}-{partition}: make the missing directory anew, empty, to go on at offset {offset}; "
            f"lost: offsets up to {offset - 1}"
        )


def _topic_id(directory: str) -> uuid.UUID | None:
    try:
        metadata = checkpoint.read_partition_metadata(directory)
    except StorageError:
        return None  # the partition's own plan reports the error
    return None if metadata is None else metadata.topic_id


def _plan_role(plan: RootPlan) -> None:
    """Report a follower's file that cannot be read: only the user knows the directory's leader."""
    try:
        follower_file.read_role(plan.root)
    except StorageError as error:
        plan.by_hand.append(
            f"{follower_file.FOLLOWER_FILE}: {error.strerror}; kstore.replicate writes it anew; without it the "
            "directory is a leader's, and has the epochs of an earlier leader"
        )


# Topics


def _plan_topics(plan: RootPlan, others: Sequence[str]) -> None:
    name = topic_files.TOPICS_FILE
    try:
        topic_files.read_topics([plan.root])
        return
    except StorageError as error:
        salvaged = topic_files.salvage(plan.root)
        if salvaged is None:
            plan.by_hand.append(f"{name}: {error.strerror}")
            return
    for other in others:
        try:
            table = topic_files.read_topics([other])
        except StorageError:
            continue
        if table.generation:
            plan.topics = table
            plan.steps.append(f"{name}: write it anew as it is in {other}")
            return
    roots = [plan.root, *others]
    ids = _topic_ids(roots)
    kept, lost = _settle_topics(salvaged, ids, topic_files.cleaned_topics(roots))
    plan.topics = topic_files.TopicTable()
    for topic, record in sorted({**kept, **lost}.items()):
        plan.topics = plan.topics.put(topic, record)
    plan.steps.append(f"{name}: write it anew; as it was: {_listed(kept)}")
    inner = {topic: record for topic, record in lost.items() if topic in topic_files.INTERNAL_CONFIGS}
    for topic, record in inner.items():
        plan.steps.append(f"{name}: {topic} gets Kafka's settings and {record.partitions} partitions")
    if len(inner) < len(lost):
        plan.steps.append(
            f"{name}: {_listed(lost.keys() - inner.keys())}: the settings are lost, or may be; retention.ms=-1 and "
            "retention.bytes=-1 keep all records until Store.update_topic_config changes them"
        )
    if not others:
        plan.steps.append(f"{name}: if another directory of the store has a sound copy, name that directory, too")


def _topic_ids(roots: Sequence[str]) -> dict[str, tuple[uuid.UUID | None, int]]:
    """Return the directories' topics, each with its id (None if no partition has it) and its number of partitions.

    Internal topics get at least the configured number of partitions, since only partitions in use have directories.
    """
    ids: dict[str, tuple[uuid.UUID | None, int]] = {}
    broker = BrokerConfig()
    most = {OFFSETS_TOPIC: broker.offsets_topic_num_partitions,
            TRANSACTIONS_TOPIC: broker.transaction_state_log_num_partitions}  # fmt: skip
    for entry in catalog.look(roots).entries:
        topic_id, count = ids.get(entry.topic, (None, most.get(entry.topic, 0)))
        if topic_id is None:
            try:
                metadata = checkpoint.read_partition_metadata(entry.path)
                topic_id = None if metadata is None else metadata.topic_id
            except StorageError:
                pass  # the partition's own plan reports the error
        ids[entry.topic] = topic_id, max(count, entry.partition + 1)
    return ids


def _settle_topics(
    salvaged: topic_files.Salvage, ids: Mapping[str, tuple[uuid.UUID | None, int]], cleaned: frozenset[str] | None
) -> tuple[dict[str, topic_files.TopicRecord], dict[str, topic_files.TopicRecord]]:
    """Return the records that are kept, and new ones for topics whose settings are lost or may be lost.

    A topic with directories but no record may never have had settings; the disk does not show this.
    """
    kept: dict[str, topic_files.TopicRecord] = {}
    lost: dict[str, topic_files.TopicRecord] = {}
    for topic, record in salvaged.topics.items():
        topic_id, count = ids.get(topic, (None, 0))
        if topic_id not in (None, record.topic_id) or not _is_valid(record.config):
            continue
        if salvaged.is_cut or topic in topic_files.INTERNAL_CONFIGS:
            kept[topic] = record
        else:
            safe = {**record.config, **_KEEPS_ALL}
            lost[topic] = topic_files.TopicRecord(record.topic_id, max(count, record.partitions), safe, record.state)
    for topic, (topic_id, count) in ids.items():
        if topic not in kept and topic not in lost:
            config = topic_files.inherited_config(topic, cleaned) or _KEEPS_ALL
            lost[topic] = topic_files.TopicRecord(topic_id or checkpoint.new_topic_id(), count, dict(config))
    return kept, lost


def _is_valid(config: Mapping[str, str]) -> bool:
    try:
        LogConfig().for_topic(config)
    except ConfigError:
        return False
    return True


def _listed(names: Collection[str]) -> str:
    return "no topic" if not names else ", ".join(sorted(names)[:10]) + (", ..." if len(names) > 10 else "")


# Bulk loads


def _plan_loads(plan: RootPlan, others: Sequence[str]) -> None:
    try:
        load_files.read_commit(plan.root)
    except StorageError as error:
        plan.by_hand.append(
            f"{load_files.COMMIT_FILE}: {error.strerror}; put back a copy of the file, or move it away to give the "
            "load up: then some partitions may have its records, and others not"
        )
    try:
        load_files.read_done([plan.root])
        return
    except StorageError as error:
        path = os.path.join(plan.root, load_files.LOADS_FILE)
        try:
            text = fs.read_file(path).decode(errors="replace")
        except StorageError:
            text = '"version": none'
        version = re.search(r'^ "version": (.*?),?$', text, re.MULTILINE)
        if version is not None and version[1] != "1":
            plan.by_hand.append(f"{load_files.LOADS_FILE}: {error.strerror}")
            return
    plan.done = _whole_loads(text)
    informed = [other for other in others if _has_done(other)]
    if informed:
        plan.done = plan.done.joined(load_files.read_done(informed))
    count = len(plan.done.applications), len(plan.done.loads)
    plan.steps.append(
        f"{load_files.LOADS_FILE}: write it anew with the {count[0]} applications and {count[1]} loads that are whole; "
        "a load that it does not name any more is appended again if it is committed again"
    )


def _has_done(root: str) -> bool:
    try:
        return load_files.read_done([root]) != load_files.Done()
    except StorageError:
        return False


def _whole_loads(text: str) -> load_files.Done:
    applications: dict[str, int] = {}
    names: list[str] = []
    for line in text.split("\n")[:-1]:
        match = _LOAD_LINE.fullmatch(line)
        try:
            if match is not None and match[2] is not None:
                applications[json_file.parse(match[1].encode())] = int(match[2])
            elif match is not None:
                names.append(json_file.parse(match[1].encode()))
        except ValueError:
            continue
    return load_files.Done(applications, tuple(names))


# Doing


def mend_root(root: str, roots: Sequence[str], backup: str) -> RootPlan:
    """Rewrite the files that can be repaired, with copies of the old ones in `backup`; return what was done.

    Raises `LogLockedError` if the directory is in use.
    """
    with fs.lock_root(root, shared=False):
        plan = plan_root(root, roots)
        changed = [*plan.names, *(checkpoint.OFFSET_CHECKPOINTS if plan.missing else [])]
        if changed:
            fs.make_directories(backup)
        for name in changed:
            if fs.exists(os.path.join(root, name)):
                fs.write_file(os.path.join(backup, name), fs.read_file(os.path.join(root, name)))
        if changed:
            fs.sync_directory(backup)
        for name, offsets in plan.checkpoints.items():
            checkpoint.write_offsets(root, name, offsets)
        if plan.topics is not None:
            plan.topics.write([root])
        if plan.done is not None:
            plan.done.write([root])
        for partition, (offset, topic_id) in plan.missing.items():
            for name in (checkpoint.RECOVERY_POINTS, checkpoint.LOG_STARTS):
                checkpoint.update_offsets(root, name, {partition: offset})
            directory = os.path.join(root, names.partition_name(*partition))
            fs.make_directory(directory)
            fs.sync_directory(root)
            if topic_id is not None:
                checkpoint.ensure_partition_metadata(directory, topic_id)
    return plan
