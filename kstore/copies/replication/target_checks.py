"""Checks whether a directory may become a follower of another, before the first byte of the directory is changed.

Invariant: nothing is replicated into a directory with data unless both are known to hold copies of one store.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from kstore.copies.replication.follower_partition import refuse_newer_epochs
from kstore.copies.replication.leader_directory import LeaderStore
from kstore.disk import fs
from kstore.errors import ReplicationError, StorageError, UnknownTopicOrPartitionError
from kstore.files import checkpoint, names
from kstore.files.epochs import LeaderEpochCache
from kstore.files.follower_file import FollowerRole, read_role_to_replace
from kstore.store.store import Store

_LONGEST_CHAIN = 100


def refuse(leader: LeaderStore, target: Sequence[str], topics: Collection[str] | None) -> None:
    """Raise `ReplicationError` if `target` cannot follow this leader with these topics (None: all)."""
    refuse_same(leader.paths, target)
    _refuse_ring(leader.paths, target)
    present = [path for path in target if fs.exists(path)]
    if present:
        with Store.open(present, "r") as own:
            roles = [role for path in present if (role := _role_of(path)) is not None]
            _refuse_other_data(leader, own, topics, is_follower=any(role.source == leader.paths for role in roles))


def refuse_same(source: Sequence[str], target: Sequence[str]) -> None:
    """Refuse a source and a target that are the same directory, or lie one inside the other."""
    for theirs in source:
        for own in target:
            if theirs == own:
                raise ReplicationError(f"{own} is the source and the target; a copy needs another directory")
            if _is_inside(theirs, own) or _is_inside(own, theirs):
                raise ReplicationError(f"of the source {theirs} and the target {own} one lies in the other")


def _refuse_ring(source: Sequence[str], target: Sequence[str]) -> None:
    """Refuse a source that follows the target, directly or through others."""
    chain, paths = list(source[:1]), list(source)
    for _ in range(_LONGEST_CHAIN):
        roles = [role for path in paths if (role := _role_of(path)) is not None]
        if not roles:
            return
        paths = [os.path.realpath(path) for path in roles[0].source]
        chain.append(paths[0])
        for path in paths:
            if path in target:
                raise ReplicationError(
                    f"{target[0]} cannot follow {source[0]}, which follows it ({' follows '.join(chain)}): a ring"
                )


def _role_of(path: str) -> FollowerRole | None:
    try:
        return read_role_to_replace(path)
    except StorageError:
        return None


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _refuse_other_data(leader: LeaderStore, own: Store, topics: Collection[str] | None, *, is_follower: bool) -> None:
    theirs = leader.topics()
    for topic in own.topics:
        if topic in leader.unreadable:
            raise leader.unreadable[topic]
        selected = topics is None or topic in topics
        if topic not in theirs or not selected:
            if is_follower:
                continue  # the topic was copied before
            what = "is not to be copied" if topic in theirs else "is not in the source"
            raise ReplicationError(
                f"{own.paths[0]} is no follower of {leader.paths[0]} yet, and its topic {topic} {what}: replicate into "
                f"another directory, or delete the topic there"
            )
        own_id, their_id = own.topic_id(topic), theirs[topic].topic_id
        if own_id is not None and their_id is not None and own_id != their_id:
            raise ReplicationError(
                f"topic {topic} of {own.paths[0]} has the id {checkpoint.format_topic_id(own_id)}, and that of "
                f"{leader.paths[0]} has {checkpoint.format_topic_id(their_id)}: another topic of the same name. "
                f"{another_topic(topic, own)}"
            )
        for number in own.partitions(topic):
            if number in theirs[topic].numbers:
                try:
                    _refuse_epochs(leader, own, topic, number)
                except (UnknownTopicOrPartitionError, StorageError):
                    if topic in leader.topics():
                        raise
                    break  # the leader has deleted the topic


def another_topic(topic: str, own: Store) -> str:
    """Return a hint for the case that `own` has copied another topic of this name."""
    return (
        f"Replicate into another directory, or name the other topics (topics=, --topic): {own.paths[0]} then keeps "
        f"what it has of {topic}"
    )


def _refuse_epochs(leader: LeaderStore, own: Store, topic: str, number: int) -> None:
    name = names.partition_name(topic, number)
    path = next((path for root in own.paths if fs.exists(path := os.path.join(root, name))), name)
    latest = LeaderEpochCache.open(os.path.join(path, names.LEADER_EPOCH_CHECKPOINT), create=False).latest_epoch
    if latest is not None:
        log = leader.partition(topic, number)
        log.ends()
        refuse_newer_epochs(log.newest_epoch, latest, path)
