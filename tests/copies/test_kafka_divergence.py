"""Where a follower truncates: kstore's functions and Kafka's own classes say the same of random leader epochs.

The leader's half is judged by Kafka's `Partition`, the follower's by its `AbstractFetcherThread`, both over its
`LeaderEpochFileCache` (SEMANTICS 10.3, 10.5, 10.7, 10.9, 10.20, 10.21, 10.22).
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kstore.copies.replication.divergence import Ends, find_common_end, find_diverging, find_restart, find_truncation
from kstore.errors import OffsetOutOfRangeError
from kstore.files.epochs import EpochEntry, LeaderEpochCache
from tests.kafka.kafka_followers import Followers
from tests.kafka.kafka_followers import followers as followers
from tests.kafka.kafka_jvm import START_MS, KafkaError

pytestmark = pytest.mark.kafka

END = 20  # of the longest logs
Entries = list[tuple[int, int]]


class Outline(NamedTuple):
    """A log without its records."""

    epochs: Entries
    start: int
    end: int

    def ends(self, high_watermark: int = 0) -> Ends:
        return Ends(LeaderEpochCache("unwritten", self.epochs), self.start, self.end, high_watermark)

    def as_case(self) -> dict[str, Any]:
        return self._asdict()


def draw_outline(rng: random.Random) -> Outline:
    """Any log: up to six epochs, the first of which may be that of a batch below its start."""
    start = rng.choice((0, 0, rng.randint(0, END)))
    end = rng.randint(start, END)
    count = min(rng.randint(0, 6), end - start + 1)
    offsets = sorted(rng.sample(range(start, end + 1), count))
    epochs = sorted(rng.sample(range(10), count))
    return Outline(list(zip(epochs, offsets, strict=True)), start, end)


def draw_pair(rng: random.Random) -> tuple[Outline, Outline]:
    """A leader and a follower: any two, or two that were copies of each other once, the leader in the newest epoch."""
    leader, follower = draw_outline(rng), draw_outline(rng)
    if rng.random() < 0.7:
        common = rng.randint(0, END)
        shared = [entry for entry in leader.epochs if entry[1] <= common]
        latest = shared[-1][0] if shared else -1
        own = [entry for entry in follower.epochs if entry[0] > latest and entry[1] > common]
        end = max([common, follower.end, *(offset for _, offset in own)])
        follower = Outline(shared + own, min(leader.start, common), end)
        newest = max((epoch for epoch, _ in leader.epochs + follower.epochs), default=-1) + 1
        last = max([leader.end, *(offset + 1 for _, offset in leader.epochs)])
        leader = Outline([*leader.epochs, (newest, last)], leader.start, last + rng.randint(0, 3))
    return leader, follower


def as_case(leader: Outline, follower: Outline) -> dict[str, Any]:
    return {"leader": leader.as_case(), "follower": follower.as_case(), "offset": follower.end}


def steps(leader: Outline, follower: Outline) -> list[tuple[Any, ...]]:
    """What a follower does by our functions until it may fetch, in the words of `Followed`; ends in "stays" where it
    asks the same again without end."""
    cache, end, done = LeaderEpochCache("unwritten", follower.epochs), follower.end, []
    leading = leader.ends()
    while True:
        own = Ends(cache, follower.start, end, end)
        try:
            diverging = find_diverging(leading, end, cache.latest_epoch)
        except OffsetOutOfRangeError:
            restart = find_restart(leading, end)
            if restart.fully:
                done.append(("fully", restart.offset))
                cache = LeaderEpochCache("unwritten")
            elif restart.offset < end:
                done.append(("truncate", restart.offset, True))
                cache.truncate_from_end(restart.offset)
            else:
                return [*done, ("stays", end)]
            end = restart.offset
            continue
        if diverging is None:
            return done
        offset, complete = find_truncation(diverging, own)
        done.append(("truncate", offset, complete))
        end = min(end, offset)
        cache.truncate_from_end(end)


def test_an_epoch_ends_where_kafkas_cache_says(followers: Followers, rng: random.Random) -> None:
    cases = []
    for _ in range(3000):
        case: dict[str, Any] = draw_outline(rng).as_case()
        case["epochs"] = [
            *case["epochs"],
            *((rng.randint(0, 10), rng.randint(0, END)) for _ in range(rng.randint(0, 2))),
        ]
        case["asked"] = list(range(-1, 12))
        for cut in ("cut_end", "cut_start"):
            if rng.random() < 0.4:
                case[cut] = rng.randint(0, END + 1)
        cases.append(case)
    for case, kafka in zip(cases, followers.call("ends", cases=cases), strict=True):
        cache = LeaderEpochCache("unwritten", case["epochs"])
        if "cut_end" in case:
            cache.truncate_from_end(case["cut_end"])
        if "cut_start" in case:
            cache.truncate_from_start(case["cut_start"])
        assert [list(entry) for entry in cache.entries] == kafka["epochs"], case
        ends = [list(cache.find_end_offset(epoch, case["end"])) for epoch in case["asked"]]
        assert ends == kafka["ends"], case


def test_a_fetch_diverges_where_kafkas_partition_says(
    followers: Followers, rng: random.Random, root: Path, record_property: pytest.RecordProperty
) -> None:
    log = followers.open(root / "events-0")
    log.append_as_follower(
        b"".join(followers.encode([(START_MS, None, b"v")], base_offset=i, leader_epoch=0) for i in range(END))
    )
    followers.lead(log, 0)
    counts = {"read": 0, "diverging": 0, "out of range": 0}
    for start in (0, 1, 7, END - 1, END):
        log.call("delete_records", offset=start)
        for _ in range(20):
            leader = draw_outline(rng)._replace(start=start, end=END)
            log.call("set_epochs", epochs=leader.epochs)
            for _ in range(20):
                fetch = (rng.randint(0, END + 2), rng.choice((None, *range(10))))
                try:
                    theirs: Any = followers.fetch(log, *fetch)
                except KafkaError as refused:
                    theirs = refused.name
                try:
                    ours: Any = find_diverging(leader.ends(), *fetch)
                except OffsetOutOfRangeError:
                    ours = "OffsetOutOfRangeException"
                assert ours == theirs, (leader, fetch)
                counts["out of range" if isinstance(ours, str) else "diverging" if ours else "read"] += 1
    assert min(counts.values()) > 100
    record_property("fetches beside Kafka's partition", sum(counts.values()))


def test_an_answer_leads_where_kafkas_fetcher_truncates(followers: Followers, rng: random.Random) -> None:
    cases, answers = [], []
    for _ in range(2000):
        follower = draw_outline(rng)
        answer = EpochEntry(rng.choice((-1, *range(10))), rng.choice((-1, rng.randint(0, END + 5))))
        watermark = rng.randint(0, follower.end)
        cases.append({"follower": follower.as_case(), "offset": watermark, "epoch": answer.epoch, "end": answer.offset})
        answers.append(list(find_truncation(answer, follower.ends(watermark))))
    for case, ours, theirs in zip(cases, answers, followers.call("answers", cases=cases), strict=True):
        assert theirs == ["truncate", *ours], case


def test_all_steps_of_a_follower_are_those_of_kafkas_fetcher(
    followers: Followers, rng: random.Random, record_property: pytest.RecordProperty
) -> None:
    pairs = [draw_pair(rng) for _ in range(2000)]
    cases = [
        {"leader": leader.as_case(), "follower": follower.as_case(), "offset": follower.end}
        for leader, follower in pairs
    ]
    lengths = []
    for (leader, follower), theirs in zip(pairs, followers.truncations(cases), strict=True):
        ours = steps(leader, follower)
        stays = ours[-1:] == [("stays", theirs.fetch_offset)]
        if not follower.epochs:  # Kafka's follower without epochs begins with a truncation to its high watermark
            ours = [("truncate", follower.end, True), *ours]
        assert theirs.truncations == (ours[:-1] if stays else ours), (leader, follower)
        assert theirs.events[-1:] == ([] if stays else [("fetch", theirs.fetch_offset, theirs.fetch_offset)]) or stays
        lengths.append(len(theirs.truncations))
        assert find_common_end(leader.ends(), follower.ends()).offset == theirs.fetch_offset, (leader, follower)
    for length in range(3):
        record_property(f"followers that truncate {length} times", lengths.count(length))
    assert max(lengths) >= 3


def test_a_fetcher_that_asks_before_it_fetches_truncates_to_the_same_offsets(
    followers: Followers, rng: random.Random
) -> None:
    """As brokers did before answers to fetches had a diverging epoch: for logs that were copies of each other."""
    pairs = list(itertools.islice((pair for pair in iter(lambda: draw_pair(rng), None) if pair[1].epochs), 500))
    cases = [
        {"leader": leader.as_case(), "follower": follower.as_case(), "offset": follower.end}
        for leader, follower in pairs
    ]
    old = followers.truncations([{**case, "truncate_on_fetch": False} for case in cases])
    for (leader, follower), theirs in zip(pairs, old, strict=True):
        own = follower.ends(follower.end)
        ours: list[tuple[Any, ...]] = []
        complete = False
        while not complete and own.epochs.latest_epoch is not None:
            answer = leader.ends().epochs.find_end_offset(own.epochs.latest_epoch, leader.end)
            offset, complete = find_truncation(answer, own)
            ours.append(("truncate", offset, complete))
            own = own._replace(log_end_offset=min(own.log_end_offset, offset))
            own.epochs.truncate_from_end(own.log_end_offset)
        if not complete:  # no epochs are left: to the high watermark, which is where it stands
            ours.append(("truncate", own.log_end_offset, True))
        assert theirs.events[: len(ours)] == ours, (leader, follower)
