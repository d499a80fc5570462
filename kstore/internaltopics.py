"""The topics in which a broker's coordinators keep what they know, as a store keeps them: half of the face of `Store`.

`__consumer_offsets` and `__transaction_state`: which partition a name belongs to, and the directories, each of which
is made when it is first written. The hardest rule: how many partitions there are is decided once, when the topic is
first written, and kept in the file of topics; a name would be looked for elsewhere otherwise.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kstore import checkpoint
from kstore.grouprecords import partition_of_name
from kstore.topics import TopicRecord

if TYPE_CHECKING:
    import threading

    from kstore.brokerconfig import BrokerConfig
    from kstore.catalog import Catalog, Entry
    from kstore.config import LogConfig
    from kstore.keeper import Keeper
    from kstore.log import Log
    from kstore.topics import TopicTable

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"


class InternalTopics:
    """Where a store's internal topics are; see `Store` about threads."""

    _admin: threading.RLock
    _broker: BrokerConfig
    _catalog: Catalog
    _configs: dict[str, LogConfig]
    _table: TopicTable
    _current: Callable[[], Catalog]
    _id_on_disk: Callable[[Mapping[int, Entry]], uuid.UUID | None]
    _open_log: Callable[[Entry], Log]
    _overrides: Callable[[str], Mapping[str, str]]
    _record: Callable[[str, TopicRecord | None], None]
    _writing: Callable[[], Keeper]

    def _internal_log(self, topic: str, name: str) -> Log | None:
        """The log that a group or a transactional id belongs to; None while it is not there."""
        there = self._internal_partitions(topic)
        entry = there.get(partition_of_name(name, self._internal_count(topic, there)))
        return None if entry is None else self._open_log(entry)

    def _internal_logs(self, topic: str) -> list[Log]:
        """All logs of an internal topic that are there."""
        return [self._open_log(entry) for entry in self._internal_partitions(topic).values()]

    def _internal_log_to_write(self, topic: str, name: str) -> Log:
        """The log that a group or a transactional id belongs to, made if it is not there."""
        return self._internal_log(topic, name) or self._make_internal(topic, name)

    def _internal_partitions(self, topic: str) -> Mapping[int, Entry]:
        catalog = self._current()
        return catalog.partitions(topic) if topic in catalog else {}

    def _internal_count(self, topic: str, there: Mapping[int, Entry]) -> int:
        """How many partitions an internal topic has: as was written down, else as is set, else as it looks."""
        record = self._table.find(topic, self._id_on_disk(there))
        if record is not None:
            return max(record.partitions, *there, 1)
        name = "offsets_topic_num_partitions" if topic == OFFSETS_TOPIC else "transaction_state_log_num_partitions"
        count: int = getattr(self._broker, name)
        if not there or name in self._broker.explicit:
            return max(count, max(there, default=-1) + 1)
        numbers = sorted(there)  # a broker's: all of its partitions, unless others have some
        return len(numbers) if numbers == list(range(len(numbers))) else max(count, numbers[-1] + 1)

    def _make_internal(self, topic: str, name: str) -> Log:
        keeper = self._writing()
        with self._admin:
            there = self._internal_partitions(topic)
            count = self._internal_count(topic, there)
            number = partition_of_name(name, count)
            if number not in there:
                topic_id = self._id_on_disk(there)
                record = self._table.find(topic, topic_id)
                if record is None or record.state != "live":
                    config = dict(self._overrides(topic)) if there else self._internal_config(topic)
                    record = TopicRecord(topic_id or checkpoint.new_topic_id(), count, config, "live")
                    self._record(topic, record)
                keeper.refuse_files_in_the_way(topic, [number])
                made = keeper.make(topic, [number], record.topic_id, self._catalog.entries())
                self._configs.pop(topic, None)
                self._catalog.add(made)
            return self._open_log(self._catalog.partitions(topic)[number])

    def _internal_config(self, topic: str) -> dict[str, str]:
        """The settings that a broker gives an internal topic."""
        broker = self._broker
        if topic == OFFSETS_TOPIC:
            size, compression = broker.offsets_topic_segment_bytes, "producer"
        else:
            size, compression = broker.transaction_state_log_segment_bytes, "uncompressed"
        return {"cleanup.policy": "compact", "compression.type": compression, "segment.bytes": str(size)}
