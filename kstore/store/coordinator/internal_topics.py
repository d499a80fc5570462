"""`InternalTopics`: the partitions of `__consumer_offsets` and `__transaction_state`, and how names map to them.

A partition's directory is created with the first write to it. Invariant: the number of partitions is decided once, when
the topic is first written, and kept in the file of topics; otherwise a name could later belong to another partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from kstore.codec.coordinator.group_records import partition_of_name
from kstore.files import checkpoint
from kstore.files.topic_files import TopicRecord
from kstore.log.log import Log
from kstore.store.catalog import Entry
from kstore.store.metadata import Metadata, id_on_disk
from kstore.store.read_only_logs import Logs
from kstore.store.topic_record import TopicFile

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

SEGMENT_BYTES = 256 << 10
"""`segment.bytes` of a new internal topic unless the broker's settings name one: only closed segments are compacted,
and an opening reads all uncompacted records (`internal-segments` in docs/compatibility.md).
"""


class InternalTopics:
    """The logs in which a store's coordinators keep their records. Thread-safe."""

    def __init__(self, metadata: Metadata, logs: Logs, topic_file: TopicFile) -> None:
        self._metadata = metadata
        self._logs = logs
        self._topic_file = topic_file

    def log(self, topic: str, name: str) -> Log | None:
        """Return the log that a group or a transactional id belongs to; None if it does not exist."""
        partitions = self.partitions(topic)
        entry = partitions.get(partition_of_name(name, self._count(topic, partitions)))
        return None if entry is None else self._logs.log(entry)

    def logs(self, topic: str) -> list[Log]:
        """Return the existing logs of an internal topic."""
        return [self._logs.log(entry) for entry in self.partitions(topic).values()]

    def log_to_write(self, topic: str, name: str) -> Log:
        """Return the log that a group or a transactional id belongs to, and create it if it does not exist."""
        return self.log(topic, name) or self._create(topic, name)

    def partitions(self, topic: str) -> Mapping[int, Entry]:
        """Return the existing partitions of an internal topic."""
        catalog = self._metadata.current()
        return catalog.partitions(topic) if topic in catalog else {}

    def _count(self, topic: str, partitions: Mapping[int, Entry]) -> int:
        """Return the number of partitions, from the topic's record, the broker's settings, or the directories."""
        record = self._metadata.table.find(topic, id_on_disk(partitions))
        if record is not None:
            return max(record.partitions, *partitions, 1)
        broker = self._metadata.broker
        name = "offsets_topic_num_partitions" if topic == OFFSETS_TOPIC else "transaction_state_log_num_partitions"
        count: int = getattr(broker, name)
        if not partitions or name in broker.explicit:
            return max(count, max(partitions, default=-1) + 1)
        numbers = sorted(partitions)  # a broker has made them: all are here, unless another broker has some
        return len(numbers) if numbers == list(range(len(numbers))) else max(count, numbers[-1] + 1)

    def _create(self, topic: str, name: str) -> Log:
        metadata, manager = self._metadata, self._logs.leading()
        with metadata.changing:
            partitions = self.partitions(topic)
            count = self._count(topic, partitions)
            number = partition_of_name(name, count)
            if number not in partitions:
                topic_id = id_on_disk(partitions)
                record = metadata.table.find(topic, topic_id)
                if record is None or record.state != "live":
                    config = dict(metadata.overrides(topic)) if partitions else self._broker_config(topic)
                    record = TopicRecord(topic_id or checkpoint.new_topic_id(), count, config, "live")
                    self._topic_file.record(topic, record)
                manager.partitions.refuse_files_in_the_way(topic, [number])
                created = manager.partitions.make(topic, [number], record.topic_id, metadata.catalog.entries)
                metadata.forget_config(topic)
                metadata.catalog.add(created)
            return manager.log(metadata.catalog.partitions(topic)[number])

    def _broker_config(self, topic: str) -> dict[str, str]:
        """Return the settings that a broker gives a new internal topic, with smaller segments."""
        broker = self._metadata.broker
        if topic == OFFSETS_TOPIC:
            name, compression = "offsets_topic_segment_bytes", "producer"
        else:
            name, compression = "transaction_state_log_segment_bytes", "uncompressed"
        size = getattr(broker, name) if name in broker.explicit else SEGMENT_BYTES
        return {"cleanup.policy": "compact", "compression.type": compression, "segment.bytes": str(size)}
