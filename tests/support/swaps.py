"""Swaps on a disk that may lose renames: a log of which one group is cleaned, and images of the subsets of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import kstore
from tests.conftest import ManualClock
from tests.support.cleaning import clean, open_log
from tests.support.faultfs import Fate, FaultFS, Link, Plan, SyncDirectory, Unlink

MOST_SUBSETS = 24  # looked at before each sync; others with another seed


def story(log: kstore.Log, clock: ManualClock, *, transactions: bool = True) -> None:
    """Three groups' worth of segments, with tombstones, a producer, an aborted and a committed transaction."""
    for number in range(60):
        clock.advance(1)
        log.append(None if number % 11 == 0 else b"%d" % number * 10, key=b"key %d" % (number % 7))
        if transactions and number % 20 == 5:
            with_producer(log, number, commit=number < 40)
    log.append_many([(b"many %d" % (number % 4), b"value") for number in range(12)])
    log.roll()
    log.flush()


def with_producer(log: kstore.Log, number: int, *, commit: bool) -> None:
    log.append_many(
        [(b"key 1", b"in transaction %d" % number)],
        producer_id=5,
        producer_epoch=0,
        base_sequence=number // 20,
        transactional=True,
    )
    log.append_marker(5, 0, commit=commit)


def committed(log: kstore.Log) -> dict[bytes, bytes | None]:
    """The newest committed record of each key; tombstones are absent, as a cleaning may drop them."""
    rows: dict[bytes, bytes | None] = {}
    offsets = []
    for record in log.read(log.log_start_offset, isolation="read_committed"):
        rows[bytes(record.key or b"")] = record.value and bytes(record.value)
        offsets.append(record.offset)
    assert offsets == sorted(set(offsets)), "an offset is there twice, or out of order"
    return {key: value for key, value in rows.items() if value is not None}


def subsets(names: list[Any], rng: random.Random) -> Iterator[frozenset[int]]:
    """Which of these unsynced names survive: every subset of a few, else small and large ones and some by chance."""
    ids = [id(name) for name in names]
    every = (frozenset(kept) for size in range(len(ids) + 1) for kept in combinations(ids, size))
    if 2 ** len(ids) <= MOST_SUBSETS:
        yield from every
        return
    for one in ids:
        yield frozenset(ids) - {one}
        yield frozenset({one})
    for _ in range(MOST_SUBSETS // 4):
        yield frozenset(each for each in ids if rng.random() < 0.5)


def check_subsets(
    disk: FaultFS,
    since: int,
    images: Path,
    rng: random.Random,
    look: Callable[[Path], None],
) -> int:
    """Look at the image of every subset of the renames before each sync of the directory; how many those were."""
    images.mkdir()
    looked, pending = 0, []
    for step, op in enumerate([*disk.trace, None]):
        if isinstance(op, Link | Unlink):
            pending.append(op)
        if not (op is None or isinstance(op, SyncDirectory)) or step < since or not pending:
            if isinstance(op, SyncDirectory):
                pending = []
            continue
        renames = [name for name in pending if step >= since]
        for kept in subsets(renames, rng):
            plan = Plan("subset", lambda _: Fate.KEPT, lambda name, kept=kept: id(name) in kept)  # type: ignore[misc]
            image = disk.crash_image(images / f"{step}-{looked}", step, plan)
            look(image)
            looked += 1
        pending = []
    return looked


def swap_one_group(
    root: Path, clock: ManualClock, *, segments: int, transactions: bool = True
) -> tuple[FaultFS, int, dict[bytes, Any], int]:
    """A log of which one group is cleaned to so many new segments; the trace, and where the swap begins."""
    with open_log(root, clock, internal_segment_bytes=900 if segments == 1 else 100_000) as log:
        if segments == 1:
            story(log, clock, transactions=transactions)
        else:
            for number in range(60):
                log.append(b"value", key=b"key %d" % (number % 59))
            log.roll()
            log.flush()
        expected, end = committed(log), log.log_end_offset
    with FaultFS(root) as disk, open_log(root, clock, internal_segment_bytes=100_000) as log:
        if segments > 1:
            log.update_config(segment_index_bytes=320 // segments)
        since = disk.step
        stats = clean(log)
        assert (stats.segments_before > 2) == (segments == 1)
        assert stats.segments_after == segments
        until = disk.step
    del disk.trace[until:]
    return disk, since, expected, end
