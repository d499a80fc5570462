"""The metrics: their names, units, labels and meanings. docs/metrics.md lists them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kstore.base.stats import HistogramStats


class Family(NamedTuple):
    """One metric, with a value for each set of labels."""

    name: str
    """The name in OpenTelemetry, such as "kstore.log.size"."""

    kind: Literal["gauge", "counter", "histogram"]
    unit: str
    """A base unit ("bytes", "seconds"), which ends the name in Prometheus; the counted things in braces; or ""."""

    labels: tuple[str, ...]
    text: str

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, without the suffixes of counters and histograms."""
        name = self.name.replace(".", "_")
        return f"{name}_{self.unit}" if self.unit in ("bytes", "seconds") else name

    @property
    def ucum(self) -> str:
        return {"bytes": "By", "seconds": "s"}.get(self.unit, self.unit or "1")


class Sample(NamedTuple):
    """One value of a metric."""

    family: Family
    labels: tuple[str, ...]
    value: float | HistogramStats


PLACE = ("topic", "partition")

LOG_START = Family("kstore.log.start_offset", "gauge", "", PLACE, "The lowest offset that can be read.")
LOG_END = Family("kstore.log.end_offset", "gauge", "", PLACE, "The offset of the next record.")
LOG_RECOVERY_POINT = Family(
    "kstore.log.recovery_point", "gauge", "", PLACE, "The offset below which a power failure loses nothing."
)
LOG_SEGMENTS = Family("kstore.log.segments", "gauge", "{segment}", PLACE, "Segments, the active one included.")
LOG_SIZE = Family("kstore.log.size", "gauge", "bytes", PLACE, "Size of the batches in all segments.")
LOG_DIRTY = Family(
    "kstore.log.dirty_ratio", "gauge", "", PLACE, "Share of a compacted log that has not been compacted yet."
)
LOG_FAILED = Family("kstore.log.failed", "gauge", "", PLACE, "1 if a partition cannot be written.")

STORE_TOPICS = Family("kstore.store.topics", "gauge", "{topic}", (), "Topics.")
STORE_PARTITIONS = Family("kstore.store.partitions", "gauge", "{partition}", (), "Partitions, open or not.")
STORE_OPEN_LOGS = Family("kstore.store.open_logs", "gauge", "{partition}", (), "Partitions that are open.")
STORE_FOLLOWER = Family("kstore.store.follower", "gauge", "", (), "1 for a follower, 0 for a leader.")
STORE_FAILURES = Family("kstore.store.failures", "gauge", "", (), "Things that housekeeping could not do.")
DIRECTORY_OFFLINE = Family("kstore.directory.offline", "gauge", "", ("directory",), "1 for a directory that failed.")
DIRECTORY_FULL = Family("kstore.directory.full", "gauge", "", ("directory",), "1 if the last write hit a full disk.")

SYNC = Family("kstore.sync.duration", "histogram", "seconds", ("directory",), "How long each sync of a log took.")
SYNC_CALLERS = Family(
    "kstore.sync.callers", "histogram", "{call}", ("directory",), "How many calls of flush each sync served."
)
TASK = Family(
    "kstore.task.duration", "histogram", "seconds", ("task",), "How long each run of a task of housekeeping took."
)
CLEANING = Family("kstore.cleaning.duration", "histogram", "seconds", (), "How long each cleaning of a log took.")

GROUP_LAG = Family(
    "kstore.group.lag", "gauge", "{record}", ("group", *PLACE), "Offsets between a group's position and the log end."
)

FOLLOWER_LAG = Family(
    "kstore.replication.lag", "gauge", "{record}", PLACE, "Offsets that the follower lacked when it last polled."
)
FOLLOWER_LAG_BYTES = Family("kstore.replication.lag_size", "gauge", "bytes", PLACE, "The size of these records.")
FOLLOWER_LAG_TIME = Family(
    "kstore.replication.lag_time", "gauge", "seconds", PLACE, "How long the follower has lacked records."
)
FOLLOWER_FAILED = Family("kstore.replication.failed", "gauge", "", PLACE, "1 if a partition cannot be copied.")

BACKUP_LAG = Family(
    "kstore.backup.lag", "gauge", "{record}", PLACE, "Offsets that were not backed up at the last round."
)
BACKUP_ROUNDS = Family("kstore.backup.rounds", "counter", "{round}", (), "Rounds.")
BACKUP_REQUESTS = Family("kstore.backup.requests", "counter", "{request}", ("kind",), "Requests to the object store.")
BACKUP_SENT = Family("kstore.backup.sent", "counter", "bytes", (), "Bytes that were sent.")
BACKUP_LAST = Family(
    "kstore.backup.last_success_timestamp",
    "gauge",
    "seconds",
    (),
    "Time since the epoch at which everything was last backed up.",
)
BACKUP_FAILED = Family("kstore.backup.failed", "gauge", "", (), "1 if the last round failed.")

FAMILIES: tuple[Family, ...] = tuple(value for value in list(vars().values()) if type(value) is Family)
