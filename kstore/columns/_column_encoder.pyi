"""The encoder for columns: packs their rows into batches, without the GIL and without an object for each row."""

from collections.abc import Iterable
from typing import Any, final

from kstore.codec._pack import Packer
from kstore.columns._arrow import Column

@final
class Rows:
    """The next `count` rows of each column, which are packed together.

    Takes the columns, each with the number of its first row. No record has `keys` or `headers` if these are None; all
    get `time` if `times` is None. `at` rows have been packed; errors number the rows from `first` on. Not thread-safe.
    """
    @property
    def at(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def first(self) -> int: ...
    def __init__(
        self,
        values: Column,
        value_at: int,
        keys: Column | None,
        key_at: int,
        times: Column | None,
        time_at: int,
        headers: Column | None,
        header_at: int,
        *,
        count: int,
        first: int,
        time: int,
    ) -> None: ...

def pack(packer: Packer, rows: Rows, limit_bytes: int) -> bool:
    """Pack rows until the packer has `limit_bytes` of finished batches; return False once all rows are packed.

    The last batch remains open until `close`; errors drop it. Raises `InvalidRecordError`, `InvalidTimestampError` or
    `RecordTooLargeError` with the number of a refused row, `InvalidColumnError` for an unsound row.
    """

def close(packer: Packer) -> None:
    """Finish the open batch, if there is one."""

def memory(packer: Packer) -> int:
    """Return the bytes of memory that the packer has for batches, in use or not."""

def shrink(packer: Packer) -> int:
    """Release the memory that the packer does not use; return the number of bytes that it keeps."""

def hand_over(packer: Packer, spare: Packer) -> None:
    """Move the finished batches to the empty `spare`, and take its memory for the next batches.

    The packer keeps its open batch. Different threads may then use the two packers.
    """

def compress(plain: Packer, packed: Packer, codec: int, level: int | None) -> None:
    """Compress the record sections of `plain`'s finished batches into the empty `packed`; any thread may call it.

    Space for a batch header precedes each section; only the header's length field is written.
    """

natively: bool

def put_compressed(packer: Packer, plain: Packer, packed: Packer) -> None:
    """Write the batches of `plain` into the empty `packer`, with the sections that `compress` made; empties `packed`.

    Splits a batch that is too large. Raises `RecordTooLargeError` for a record that exceeds a batch even when
    compressed; the packer then has the batches before it.
    """

def header_sections(what: str, rows: Iterable[Any], first: int) -> Column:
    """Return a column of headers; each row is pairs, a dict, or None, as in `append_many`."""
