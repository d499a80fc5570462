"""The offsets of a stream: for each partition the offset of the next record, and the ids of the topics.

The JSON form is that of Spark's Kafka source, `{"topic": {"0": 23}}`, with one more name for the ids of the topics.
Spark writes it to the query's checkpoint and compares it as text. Invariant: equal offsets have the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from kstore.base.numbers import INT_MAX, LONG_MAX
from kstore.errors import ConfigError
from kstore.files import names
from kstore.spark.option_reader import Partition

TOPIC_IDS = "$topicIds"  # no topic can have this name


@dataclass(frozen=True)
class StreamOffsets:
    """The next offset of each partition, and the ids that the topics had; topics without an id are left out."""

    ends: Mapping[Partition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Parse the form of `to_json`; raise `ConfigError` for any other value, as it comes from a checkpoint."""
        if not isinstance(value, dict):
            raise _malformed(value)
        ends: dict[Partition, int] = {}
        ids: dict[str, str] = {}
        for topic, by_number in value.items():
            if not isinstance(by_number, dict):
                raise _malformed({topic: by_number})
            if topic == TOPIC_IDS:
                ids = by_number
                continue
            try:
                names.check_topic(topic)
            except ValueError:
                raise _malformed({topic: by_number}) from None
            for number, offset in by_number.items():
                if not (number.isdecimal() and number.isascii() and len(number) <= 10 and int(number) <= INT_MAX):
                    raise _malformed({topic: {number: offset}})
                if type(offset) is not int or not 0 <= offset <= LONG_MAX:
                    raise _malformed({topic: {number: offset}})
                ends[topic, int(number)] = offset
        if any(type(topic_id) is not str for topic_id in ids.values()):
            raise _malformed({TOPIC_IDS: ids})
        return cls(ends, ids)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return the offsets by topic and number, in this order, as Spark stores them."""
        by_topic: dict[str, dict[str, Any]] = {}
        for topic, number in sorted(self.ends):
            by_topic.setdefault(topic, {})[str(number)] = self.ends[topic, number]
        if self.topic_ids:
            by_topic[TOPIC_IDS] = dict(sorted(self.topic_ids.items()))
        return by_topic


def _malformed(value: Any) -> ConfigError:
    return ConfigError(
        f'the checkpoint has an offset that kstore did not write: {str(value)[:300]}; {{"topic": {{"0": 23}}}} is '
        f"expected. Is it the checkpoint of a query with another source?"
    )


def share_out(backlogs: Mapping[Partition, int], most: int | None) -> dict[Partition, int]:
    """Return how many offsets of each partition come next: all, or `most` in proportion to the backlogs.

    The result adds up to `most`, or to the sum of the backlogs if that is smaller. The parts that rounding down leaves
    over go to partitions that would get nothing, so that a small backlog does not wait for a large one to end, and then
    to those with the largest remainders.
    """
    total = sum(backlogs.values())
    if most is None or total <= most:
        return dict(backlogs)
    shares = {partition: size * most // total for partition, size in backlogs.items()}
    left = most - sum(shares.values())
    remainders = {partition: size * most % total for partition, size in backlogs.items()}
    has_more = (partition for partition in backlogs if remainders[partition])
    for partition in sorted(has_more, key=lambda each: (shares[each] > 0, -remainders[each], each))[:left]:
        shares[partition] += 1
    return shares
