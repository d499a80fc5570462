"""The sources of an append to a topic: an iterable of records, or columns.

Invariant: with the same seed and the same records, both sources lead to the same batches in each partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from kstore.base import arguments
from kstore.base.numbers import INT_MAX
from kstore.codec._pack import Packer
from kstore.columns import _column_encoder
from kstore.columns.column_input import ColumnInput
from kstore.log.batch_packer import PACK_BYTES
from kstore.store.topics._column_partitioner import ColumnSplitter
from kstore.store.topics._partitioner import Splitter


class Records:
    """An iterable of records."""

    splitter = Splitter
    packs_compressed = True
    threads = 1

    def __init__(self, records: Iterable[Any]) -> None:
        self._records = records

    def blocks(self, now_ms: int) -> list[Iterator[Any]]:
        """Return the arguments of `Splitter.pack`: one iterator of all records."""
        return [arguments.iterator("records", self._records)]


class ColumnArguments:
    """The columns that a caller gave, and how many threads compress them."""

    splitter = ColumnSplitter
    packs_compressed = False

    def __init__(
        self, values: Any, keys: Any = None, timestamps: Any = None, headers: Any = None, threads: int = 1
    ) -> None:
        self._columns = values, keys, timestamps, headers
        self.threads = threads

    def blocks(self, now_ms: int) -> ColumnInput:
        """Return the arguments of `ColumnSplitter.pack`: the rows of all columns, block by block."""
        return ColumnInput(*self._columns, now_ms)

    def digest(self) -> object:
        """Return a hash of the rows; if the rows can be read only once, return an object that equals no other.

        If a row is refused, the hash covers the rows before it and the error.
        """
        if not all(map(_is_repeatable, self._columns)):
            return object()
        found = sha256()
        packer = Packer(1, INT_MAX, now_ms=_NO_TIME)  # one record a batch: a refused row drops no other row
        try:
            for rows in self.blocks(_NO_TIME):
                while _column_encoder.pack(packer, rows, PACK_BYTES):
                    _hash(found, packer)
            _column_encoder.close(packer)
        except Exception as error:
            found.update(f"{type(error).__name__}: {error}".encode(errors="surrogatepass"))
        _hash(found, packer)
        return found.digest()


_NO_TIME = -2  # replaces the time of the append: no record can have this timestamp


def _is_repeatable(column: Any) -> bool:
    """Return whether a column can be read again; an Arrow stream without a length can be read only once."""
    is_stream = hasattr(column, "__arrow_c_stream__") and not hasattr(column, "__arrow_c_array__")
    return not is_stream or hasattr(column, "__len__")


def _hash(found: Any, packer: Packer) -> None:
    with packer.buffer as encoded:
        found.update(encoded)
    packer.clear()
