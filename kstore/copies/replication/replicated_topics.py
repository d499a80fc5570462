"""Creates, configures and deletes a follower's topics, so that they match the leader's.

Invariant: a topic is deleted only if the leader has deleted it, not if a directory of the leader is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from kstore.base.times import is_settled
from kstore.copies.replication import target_checks
from kstore.copies.replication.leader_directory import LeaderStore, LeaderTopic
from kstore.disk import fs
from kstore.errors import InconsistentTopicIdError, KStoreError
from kstore.files import checkpoint
from kstore.store.leadership import Follower
from kstore.store.store import Store

logger = logging.getLogger("kstore")


class CopiedTopics:
    """Keeps a follower's topics like the leader's. For one thread."""

    def __init__(self, leader: LeaderStore, store: Store, follower: Follower, selected: Collection[str] | None) -> None:
        self._leader = leader
        self._store = store
        self._follower = follower
        self._selected = selected
        self._known: dict[str, LeaderTopic] = {}
        self._looked: tuple[int, ...] = ()
        self.failures: dict[str, Exception] = {}
        """By topic, why its partitions are not copied."""

    def look(self) -> bool:
        """Apply the leader's changes to topics since the last `look`; return whether any partition came or went."""
        times = tuple(fs.stat(path).st_mtime_ns for path in self._leader.paths)
        if times == self._looked and not self.failures:
            return False
        is_sure = all(is_settled(each) for each in times)  # checked before reading, which may take long
        changed = self._bring()
        self._looked = times if is_sure else ()
        return changed

    def partitions(self) -> list[tuple[str, int]]:
        return [(topic, number) for topic, found in self._known.items() for number in found.numbers]

    def _bring(self) -> bool:
        def is_selected(topic: str) -> bool:
            return self._selected is None or topic in self._selected

        theirs = self._leader.topics()
        changed = False
        for topic, found in theirs.items():
            if not is_selected(topic):
                continue
            known = self._known.get(topic)
            if known == found and topic not in self.failures:
                continue
            try:
                self._copy(topic, found)
            except (KStoreError, ValueError) as error:
                self._fail(topic, error)
                changed |= self._known.pop(topic, None) is not None
            else:
                self.failures.pop(topic, None)
                changed |= known is None or known.numbers != found.numbers
                self._known[topic] = found
        for topic, reason in self._leader.unreadable.items():
            if is_selected(topic):
                self._fail(topic, reason)
                changed |= self._known.pop(topic, None) is not None
        for topic in self._store.topics:
            if topic not in theirs and is_selected(topic):
                changed |= self._delete(topic)
        for topic in list(self.failures):
            if topic not in {*theirs, *self._leader.unreadable, *self._store.topics}:
                del self.failures[topic]
        return changed

    def _copy(self, topic: str, found: LeaderTopic) -> None:
        own_id = self._store.topic_id(topic) if topic in self._store.topics else None
        topic_id = found.topic_id or own_id or checkpoint.new_topic_id()
        if own_id is not None and own_id != topic_id:
            raise InconsistentTopicIdError(
                f"topic {topic} has the id {checkpoint.format_topic_id(topic_id)} in the leader, and in the follower "
                f"{checkpoint.format_topic_id(own_id)}: it was deleted and made again. "
                f"{target_checks.another_topic(topic, self._store)}"
            )
        self._follower.copy_topic(topic, topic_id, count=found.partitions, numbers=found.numbers, config=found.config)

    def _delete(self, topic: str) -> bool:
        if not self._leader.has_deleted(topic):
            return False
        logger.info("topic %s: deleted, as the leader has deleted it", topic)
        self._follower.delete_topic(topic)
        self._known.pop(topic, None)
        return True

    def _fail(self, topic: str, error: Exception) -> None:
        if str(self.failures.get(topic)) != str(error):
            logger.error("topic %s is not copied: %s", topic, error)
        self.failures[topic] = error
