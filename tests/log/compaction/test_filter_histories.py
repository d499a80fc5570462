"""The second pass over whole logs: random ones beside a slow cleaner, those of a broker, and damaged ones."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import CorruptRecordError
from kstore.files._producer_snapshot import parse_snapshot
from kstore.files.txnindex import parse_txn_index
from kstore.log.compaction._cleaned_transactions import CleanedTransactions
from kstore.log.compaction._filter import BatchFilter, CleanedChunk
from kstore.log.compaction._newest_records import NewestRecords
from tests.conftest import examples
from tests.golden.goldensets import copy_set
from tests.log.compaction.test_filter import clean
from tests.support.batches import CODECS, resealed
from tests.support.dirtylogs import NOW, dirty_log
from tests.support.slowcleaner import decoded, split

SEEDS = st.integers(0, 1 << 62)


@given(seed=SEEDS)
def test_any_log_is_cleaned_as_the_slow_cleaner_does(seed: int) -> None:
    draw = random.Random(seed)
    log = dirty_log(draw, draw.choice([1, 4, 30]), codecs=draw.choice([("none",), CODECS]))
    first = draw.randrange(len(log.batches)) if draw.random() < 0.7 else 0
    base, last = (getattr(decoded(log.batches[first]), name) for name in ("base", "last"))
    ends = [decoded(batch).last + 1 for batch in log.batches]
    last_records = {pid: (draw.choice([offset, -1, ends[0] - 1]), 1) for pid, offset in log.last_data.items()}
    done = clean(
        *log.batches[first:],
        clean_part=log.batches[:first],
        first_dirty=draw.randint(base, last),
        aborted=log.aborted,
        now=NOW,
        retention=draw.choice([0, 1000, 1 << 50]),
        first_uncleanable=draw.choice([ends[-1], ends[len(ends) // 2], 1 << 62]),
        last=last_records,
        keeps_old_tombstones=draw.random() < 0.5,
        chunk=draw.choice([None, 1, 100, 5000]),
    )
    # Another round over what is left, later: nothing of the first depends on bytes that only producers write.
    left = [batch for batch in done.output if batch]
    if left:
        clean(*left, aborted=done.retained, now=NOW + draw.choice([0, 999, 1000]), last=last_records)


@given(seed=SEEDS)
def test_a_log_is_cleaned_alike_whatever_the_sizes_of_the_chunks(seed: int) -> None:
    """MemoryRecordsTest.testFilterToWithUndersizedBuffer."""
    log = dirty_log(random.Random(seed), 8)
    whole = clean(*log.batches, aborted=log.aborted)
    for chunk in (1, 64, 1000):
        assert clean(*log.batches, aborted=log.aborted, chunk=chunk).output == whole.output


@given(seed=SEEDS)
def test_a_second_round_with_nothing_new_changes_nothing(seed: int) -> None:
    """MemoryRecordsTest.testFilterToAlreadyCompactedLog: offsets that are not dense stay as they are."""
    log = dirty_log(random.Random(seed), 8, codecs=("none", "lz4"))
    once = clean(*log.batches, aborted=log.aborted, now=NOW - 100)
    if once.output:
        again = clean(*once.output, aborted=once.retained, now=NOW - 50)
        assert log.aborted or again.kept == once.kept


# ---- Logs of a broker


@pytest.mark.parametrize("topic", ["compact-short-0", "compact-long-0"])
def test_the_batches_of_a_broker_become_what_its_cleaner_made_of_them(topic: str, tmp_path: Path) -> None:
    root = copy_set("compaction", tmp_path)
    lines = (root / "after" / "cleaner-offset-checkpoint").read_text().splitlines()
    (end,) = (int(line.split()[2]) for line in lines if line.startswith(topic.rpartition("-")[0]))

    def batches(stage: str) -> list[bytes]:
        logs = sorted((root / stage / topic).glob("*.log"))
        return [batch for path in logs if int(path.stem) < end for batch in split(path.read_bytes())]

    indexes = sorted((root / "before" / topic).glob("*.txnindex"))
    aborted = [entry for path in indexes for entry in parse_txn_index(path.read_bytes()) if entry.last_offset < end]
    snapshot = sorted((root / "before" / topic).glob("*.snapshot"))[-1]
    last = {each.producer_id: (each.last_offset, each.producer_epoch) for each in parse_snapshot(snapshot.read_bytes())}
    expected = [decoded(batch) for batch in batches("after")]
    (horizon,) = {batch.horizon for batch in expected if batch.horizon is not None}
    retention = 100 if "short" in topic else 86400000
    done = clean(
        *batches("before"),
        aborted=aborted,
        now=horizon - retention,
        retention=retention,
        first_uncleanable=end,
        last=last,
        capacity=5033164,
    )
    assert [batch.contents for batch in done.batches] == [batch.contents for batch in expected]
    plain = [
        (mine, theirs.data) for mine, theirs in zip(done.output, expected, strict=True) if not theirs.attributes & 7
    ]
    assert [mine for mine, _ in plain] == [theirs for _, theirs in plain]
    kept = [
        entry
        for path in sorted((root / "after" / topic).glob("*.txnindex"))
        for entry in parse_txn_index(path.read_bytes())
    ]
    assert done.retained == [entry for entry in kept if entry.last_offset < end]


# ---- Any bytes


def _clean_anything(data: bytes, draw: random.Random) -> None:
    """Clean bytes that may be anything, as the clean part and as the dirty part; an error says where."""
    newest, transactions = NewestRecords(50, draw.choice([0, 10, 1 << 41])), CleanedTransactions()
    with contextlib.suppress(CorruptRecordError):
        newest.add(data, transactions, path="x.log", position=0, max_decompressed_bytes=1 << 20)
    for scanned in (False, True):
        made = BatchFilter(
            newest,
            CleanedTransactions(),
            now_ms=NOW,
            delete_retention_ms=1000,
            first_uncleanable_offset=draw.choice([5, 1 << 62]),
            max_decompressed_bytes=1 << 20,
        )
        made.set_last_records({0: (3, 1), 1: (-1, 1), 2: (9, 0)})
        outcome = _outcome(made, data, scanned=scanned)
        if isinstance(outcome, CorruptRecordError):
            assert outcome.path == "x.log"
            assert 7 <= outcome.position <= 7 + len(data)
        elif isinstance(outcome, ValueError):
            assert "has not seen" in str(outcome)
        else:
            assert 0 <= outcome.taken <= len(data)
            new = [batch for batch in split(bytes(outcome.output)) if batch not in data]
            assert all(decoded(batch).magic == 2 for batch in new)
            continue
        assert "begin another" in str(_outcome(made, data, scanned=scanned))


def _outcome(made: BatchFilter, data: bytes, *, scanned: bool) -> CleanedChunk | ValueError:
    try:
        return made.clean(data, scanned=scanned, path="x.log", position=7, keeps_old_tombstones=False)
    except ValueError as error:
        return error


@given(seed=SEEDS)
def test_any_change_of_a_log_gives_sound_batches_or_an_error_that_says_where(seed: int) -> None:
    draw = random.Random(seed)
    data = bytearray(b"".join(dirty_log(draw, draw.choice([1, 5])).batches))
    for _ in range(draw.choice([1, 1, 3])):
        at = draw.randrange(len(data))
        kind = draw.randrange(5)
        if kind == 0:
            data[at] = draw.randrange(256)
        elif kind == 1:
            del data[at : at + draw.randrange(1, 20)]
        elif kind == 2:
            data[at:at] = draw.randbytes(draw.randrange(1, 20))
        elif kind == 3:
            data[at : at + 4] = draw.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", bytes(4)])
        else:
            del data[at:]
        if not data:
            return
    _clean_anything(bytes(data), draw)


@given(seed=SEEDS)
def test_any_change_below_a_checksum_that_holds_gives_sound_batches_or_an_error(seed: int) -> None:
    draw = random.Random(seed)
    batches = dirty_log(draw, draw.choice([1, 4]), old=False).batches
    changed = []
    for batch in batches:
        data = bytearray(batch)
        for _ in range(draw.choice([0, 1, 2])):
            at = draw.randrange(21, len(data))
            data[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        changed.append(resealed(data))
    _clean_anything(b"".join(changed), draw)


@examples(0.3)
@given(data=st.binary(max_size=300), seed=SEEDS)
def test_bytes_of_any_kind_are_no_batches(data: bytes, seed: int) -> None:
    _clean_anything(data, random.Random(seed))
