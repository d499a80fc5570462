"""How results and open things show themselves: on one short line, whatever names and bytes they have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kstore

NASTY = "\x1b[31m\n\r\u202e"
LONG = b"\n" + b"x" * 100_000


def test_everything_that_is_answered_is_one_short_line(root: Path) -> None:
    group, transactional_id = NASTY + "g" * 5000, NASTY + "t" * 5000
    with kstore.Store.open(root, background=False) as store:
        names = [f"topic-{number}" for number in range(20)]
        for name in names:
            store.create_topic(name)
        headers = [(NASTY + "h" * 1000, LONG[:5000]), ("none", None)] * 10
        where = store.append(names[0], LONG, LONG, headers=headers)
        log = store.log(names[0], 0)
        info = log.append_many([b"x"] * 100)
        producer = store.producer(transactional_id=transactional_id)
        transaction = producer.transaction()
        consumer = store.consumer(group, names)
        record = next(consumer)
        shown = [
            log, store, where, info, *log.segments, record, next(log.read()), next(log.read_batches()),
            log.read_columns(), log.read_columns().values, log.read_columns(columns=["headers"]).headers,
            log.fetch(0, 10**6), log.fetch(0, 10**6, isolation="read_committed"), log.latest(), store.table(names[0]),
            log.max_timestamp(), store.producer(), producer, transaction, consumer, log.recovery, log.config,
            kstore.BrokerConfig(), kstore.LogConfig(retention_ms=5), log.compaction_outlook(), log.retention_outlook(),
            *log.producer_states(),
        ]  # fmt: skip
        log.update_config(cleanup_policy="compact")
        shown.append(log.compact(roll=True))
        for one in shown:
            text = repr(one)
            assert text.isprintable(), text
            assert len(text) < 1200, text
            assert type(one).__name__ in text
        transaction.abort()
    for one in (log, store):
        assert "closed" in repr(one)


@pytest.mark.parametrize(("size", "shown"), [(63, "b'{}'"), (64, "b'{}'"), (65, "b'{}'... (65 bytes)"), (0, "b''")])
def test_bytes_are_cut_after_64_with_their_number(size: int, shown: str) -> None:
    text = shown.format("x" * min(size, 64))
    record = kstore.Record(1, 2, b"x" * size, b"x" * size)
    assert repr(record) == f"Record(offset=1, timestamp=2, key={text}, value={text}, headers=())"
    consumed = kstore.ConsumerRecord("t", 0, 1, 2, b"x" * size, None, [("h", b"x" * size)])
    assert repr(consumed) == (
        f"ConsumerRecord(topic='t', partition=0, offset=1, timestamp=2, key={text}, value=None, "
        f"headers=(('h', {text}),))"
    )


@pytest.mark.parametrize(("count", "shown"), [(1, "(('h', None),)"), (2, "(('h', None), ('h', None))")])
def test_few_headers_are_shown_as_python_writes_them(count: int, shown: str) -> None:
    assert repr(kstore.Record(1, 2, headers=[("h", None)] * count)).endswith(f"headers={shown})")


def test_many_headers_are_counted() -> None:
    four = ", ".join(["('h', b'v')"] * 4)
    assert repr(kstore.Record(1, 2, headers=[("h", b"v")] * 4)).endswith(f"headers=({four}))")
    assert repr(kstore.Record(1, 2, headers=[("h", b"v")] * 5)).endswith(f"headers=({four}, ... 5 headers))")


def test_a_log_whose_directory_has_gone_can_be_shown(root: Path) -> None:
    with kstore.Log.open(root / "t-0") as log:
        log.append_many([b"x"] * 5)
    reader, store = kstore.Log.open(root / "t-0", "r"), kstore.Store.open(root, "r")
    assert "[0, 5)" in repr(reader)
    shutil.rmtree(root)
    assert "t-0" in repr(reader)
    assert str(root) in repr(store)


def test_batches_say_their_offsets(root: Path) -> None:
    with kstore.Log.open(root / "t-0") as log:
        log.append_many([b"x"] * 3)
        log.append_many([b"x"] * 4)
        sizes = [batch.size_bytes for batch in log.read_batches()]
        assert [repr(batch) for batch in log.read_batches()] == [
            f"<RecordBatch base_offset=0 last_offset=2 magic=2 size_bytes={sizes[0]} compression=none>",
            f"<RecordBatch base_offset=3 last_offset=6 magic=2 size_bytes={sizes[1]} compression=none>",
        ]
