"""Large batches, which are decoded piece by piece: room for keys and values is made as the columns before needed it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore import CorruptRecordError, Log

MIB = 1 << 20
SHAPES = {
    "longer keys": ((8, 200), (200, 8)),
    "longer values": ((200, 8), (8, 200)),
    "keys at last": ((-1, 100), (100, -1)),
    "keys of a tenth of a piece": ((8, 100), (7000, 100)),
}


def pairs(key: int, value: int, count: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Keys and values of these sizes, which say their number; -1 for none."""
    for number in range(count):
        yield tuple(None if size < 0 else (b"%d" % number)[:size].ljust(size, b".") for size in (key, value))  # type: ignore[misc]


def made(path: Path, shape: str) -> Log:
    """A log of batches of 1 MiB: of the one shape for longer than three chunks, then of the other."""
    log = Log.open(path / "t-0", segment_bytes=1 << 30, max_message_bytes=2 * MIB)
    for key, value in SHAPES[shape]:
        log.append_many(pairs(key, value, 15 * MIB // (max(key, 0) + max(value, 0))), batch_bytes=MIB)
    return log


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_keys_and_values_that_outgrow_those_of_the_chunk_before_are_all_there(
    tmp_path: Path, shape: str, threads: int
) -> None:
    with made(tmp_path, shape) as log:
        chunks = list(log.iter_columns(threads=threads))
        assert len(chunks) > 6
        keys = [key for chunk in chunks for key in chunk.keys]
        values = [value for chunk in chunks for value in chunk.values]
        assert list(zip(keys, values, strict=True)) == [(record.key, record.value) for record in log.read()]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_pieces_are_forgotten_where_the_checksum_at_the_end_does_not_hold(tmp_path: Path, shape: str) -> None:
    with made(tmp_path, shape) as log:
        *_, last = log.read_batches()
        end, path = last.base_offset, Path(log.segments[0].path)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        rows: list[tuple[int, bytes | None, bytes | None]] = []
        chunks = log.iter_columns(threads=1)
        with pytest.raises(CorruptRecordError):
            rows += (
                row for chunk in chunks for row in zip(chunk.offsets.tolist(), chunk.keys, chunk.values, strict=True)
            )
        wanted = [(record.offset, record.key, record.value) for record in log.read(end_offset=end)]
        assert rows == wanted
