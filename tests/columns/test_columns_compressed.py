"""Batches on their way through a codec: compressed without the GIL, to the bytes that `compress` makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.base.threads import Task
from kstore.codec import compression
from kstore.codec._pack import Packer
from kstore.columns import _column_encoder
from kstore.errors import RecordTooLargeError
from kstore.log.batch_pipeline import OrderedWork
from tests.conftest import ManualClock

HEADER = 61
KINDS: dict[str, Callable[[Any, int], bytes]] = {
    "zeros": lambda rng, size: bytes(size),
    "noise": lambda rng, size: rng.randbytes(size),
    "words": lambda rng, size: b" ".join(rng.choice((b"read", b"write", b"flush")) for _ in range(size // 5)),
}
LEVELS = {"lz4": (None, 9, 1, 3, 12, 17), "zstd": (None, -5, 1, 3, 9)}


def draft(values: list[bytes], batch_bytes: int = 1 << 30) -> Packer:
    packer = Packer(batch_bytes, 1 << 30, now_ms=0, draft=True)
    packer.pack(iter(values))
    return packer


def spare() -> Packer:
    return Packer(1, 1, now_ms=0)


@pytest.mark.parametrize("size", [0, 1, 1000, 65_000, 65_536, 131_072, 131_100, 400_000])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", LEVELS)
def test_sections_are_those_that_compress_makes(codec: str, kind: str, size: int, rng: Any) -> None:
    plain = draft([KINDS[kind](rng, size)])
    for level in LEVELS[codec]:
        packed = spare()
        _column_encoder.compress(plain, packed, compression.type_id(codec), level)
        expected = compression.compress(compression.type_id(codec), bytes(plain.buffer)[HEADER:], level)
        assert bytes(packed.buffer)[HEADER:] == expected, level


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_each_of_many_batches_gets_the_header_that_a_packer_with_the_codec_writes(codec: str, rng: Any) -> None:
    values = [rng.randbytes(rng.randrange(2000)) + bytes(rng.randrange(2000)) for _ in range(300)]
    number = compression.type_id(codec)
    whole = Packer(10_000, 1 << 20, number, now_ms=7)
    whole.pack(iter((None, value, 7, None) for value in values))
    plain, packed, made = draft([], 10_000), spare(), Packer(10_000, 1 << 20, number, now_ms=7)
    plain.pack(iter((None, value, 7, None) for value in values))
    _column_encoder.compress(plain, packed, number, None)
    _column_encoder.put_compressed(made, plain, packed)
    assert bytes(made.buffer) == bytes(whole.buffer)
    assert len(packed) == 0


def test_a_packer_that_holds_something_is_refused_as_a_target_and_keeps_it() -> None:
    plain, packed = draft([b"value"]), draft([b"other"])
    with pytest.raises(ValueError, match="holds"):
        _column_encoder.compress(plain, packed, compression.LZ4, None)
    assert bytes(packed.buffer) == bytes(draft([b"other"]).buffer)
    packed.clear()
    _column_encoder.compress(plain, packed, compression.LZ4, None)
    made, size = draft([b"before"]), len(packed)
    with pytest.raises(ValueError, match="bytes before"):
        _column_encoder.put_compressed(made, plain, packed)
    assert (bytes(made.buffer), len(packed)) == (bytes(draft([b"before"]).buffer), size)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_with_the_gil_and_without_it_the_same_batches_are_made(
    tmp_path: Path, clock: ManualClock, codec: Any, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [rng.randbytes(rng.randrange(300)) + bytes(rng.randrange(300)) for _ in range(3000)]
    written = []
    for natively in (True, False):
        monkeypatch.setattr(_column_encoder, "natively", natively)
        with kstore.Log.open(tmp_path / f"events-{natively:d}", clock=clock) as log:
            log.append_columns(values, compression=codec, threads=2, batch_bytes=5000)
            written.append([bytes(batch) for batch in log.read_batches()])
    assert written[0] == written[1]


def test_a_section_that_got_larger_than_a_batch_can_be_is_refused() -> None:
    """Noise of 2 GiB gets larger; here the length before the section says so, as that of a real one does."""
    plain, packed = draft([b"value"]), spare()
    _column_encoder.compress(plain, packed, compression.LZ4, None)
    with packed.buffer as section:
        section[8:12] = (0x8000_0100).to_bytes(4, "big")
    with pytest.raises(RecordTooLargeError, match=f"a batch of {0x8000_0100 + 12} bytes"):
        _column_encoder.put_compressed(Packer(100, 1 << 31, compression.LZ4, now_ms=0), plain, packed)


def test_an_interrupt_ends_the_call_before_older_works_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.base.threads.Workers.submit", lambda self, work: Task(work))
    followed: list[int] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    def call() -> None:
        with OrderedWork(2) as work:
            for number in range(10):
                work.do(interrupted if number == 3 else bool, lambda _, number=number: followed.append(number))

    with pytest.raises(KeyboardInterrupt):
        call()
    assert followed == [0, 1, 2]


def test_sections_of_other_batches_are_refused() -> None:
    plain, packed = draft([b"one", b"two"], 1), spare()
    _column_encoder.compress(draft([b"one"]), packed, compression.ZSTD, None)
    with pytest.raises(ValueError, match="1 sections for 2 batches"):
        _column_encoder.put_compressed(Packer(100, 100, compression.ZSTD, now_ms=0), plain, packed)


def test_the_calling_thread_does_what_no_thread_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the threads never come to it; the order of what follows is that of the works all the same."""
    monkeypatch.setattr("kstore.base.threads.Workers.submit", lambda self, work: Task(work))
    done: list[str] = []
    with OrderedWork(3) as work:
        for number in range(20):
            work.do(
                lambda number=number: done.append(f"work {number}"), lambda _, number=number: done.append(str(number))
            )
    assert [name for name in done if not name.startswith("work")] == [str(number) for number in range(20)]
    assert [name for name in done if name.startswith("work")] == [f"work {number}" for number in range(20)]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("codec", ["lz4", "zstd", "gzip"])
def test_batches_that_are_too_large_when_compressed_are_split_among_those_that_fit(
    tmp_path: Path, clock: ManualClock, codec: Any, threads: int, rng: Any
) -> None:
    """A batch of noise gets larger, so it is split in two."""
    values = [bytes(1000) if number // 20 % 3 else rng.randbytes(1000) for number in range(600)]
    limit = len(draft(values[:20]))
    with kstore.Log.open(tmp_path / "events-0", clock=clock, max_message_bytes=limit) as log:
        log.append_columns(values, compression=codec, threads=threads, timestamps=clock.now)
        assert [record.value for record in log.read()] == values
        counts = log.batch_table()["count"].tolist()
    assert counts == [10, 10, 20, 20] * 10
