"""Failovers beside Kafka: its logs, partitions and fetcher live the same histories, and every byte is the same.

Leaders are Kafka's `Partition`, followers its `AbstractFetcherThread`; each cut is at the same offset, and after each
step batches, log start, log end and leader epochs are alike (SEMANTICS 10.3, 10.20, 10.21, 10.22, 10.23, 10.24).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import SEED
from tests.kafka.kafka_followers import Followers, KafkaReplica
from tests.kafka.kafka_followers import followers as followers
from tests.support.failovers import Failovers, live, live_many
from tests.support.replicas import KstoreReplica, Watch

pytestmark = pytest.mark.kafka


def test_failovers_go_as_kafkas_do(
    followers: Followers,
    tmp_path: Path,
    budget: Callable[[float], float],
    monkeypatch: pytest.MonkeyPatch,
    no_syncs: None,
    record_property: Callable[[str, object], None],
) -> None:
    """Excused is `follower-inside-a-batch`."""
    watch = Watch(monkeypatch)

    def one(number: int) -> Failovers:
        theirs: list[KafkaReplica] = []

        def beside(ours: KstoreReplica) -> KafkaReplica:
            theirs.append(KafkaReplica(followers, ours.root.with_name(f"kafka{len(theirs)}"), ours))
            return theirs[-1]

        history = live(f"{SEED}:{number}", tmp_path / str(number), watch, unique_epochs=True, beside=beside)
        history.counts["excused"] = sum(replica.excused for replica in theirs)
        return history

    counts = live_many(one, budget(12))
    record_property("histories of failovers beside Kafka", counts["histories"])
    for kind in ("elections", "truncations", "tails lost", "excused"):
        record_property(f"{kind} beside Kafka", counts[kind])
