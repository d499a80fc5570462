"""The encoder for columns: their rows go into a `Packer`'s batches, without the GIL and without an object for each."""

from collections.abc import Iterable
from typing import Any, final

from kstore.codec._pack import Packer
from kstore.columns._arrow import Column

@final
class Rows:
    """The next `count` rows of each column, packed in step.

    Takes the columns, each with the number of its first row; None for `keys` or `headers` means that no record has
    them, for `times` that all get `time`. `at` counts the packed rows, `first` is the first row's number in errors.
    Not thread-safe.
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
    """Pack rows until `limit_bytes` of finished batches are in the packer; False once all rows are in.

    The last batch stays open for further rows, until `close`. A refused row raises `InvalidRecordError`,
    `InvalidTimestampError` or `RecordTooLargeError` with its number, an unsound one `InvalidColumnError`; the open
    batch is then dropped.
    """

def close(packer: Packer) -> None:
    """Finish the open batch, if there is one."""

def memory(packer: Packer) -> int:
    """The bytes of memory that the packer has for batches, in use or not."""

def shrink(packer: Packer) -> int:
    """Give back the memory that the packer does not use; returns how many bytes it keeps."""

def hand_over(packer: Packer, spare: Packer) -> None:
    """Move the finished batches to `spare`, which is empty, and take its memory for the next ones.

    The packer goes on with its open batch. Both may then be used by different threads.
    """

def compress(plain: Packer, packed: Packer, codec: int, level: int | None) -> None:
    """Compress the record sections of `plain`'s finished batches into `packed`, which is empty; may run in any thread.

    Each section lies behind room for the header of its batch, which has nothing but the batch's length.
    """

natively: bool

def put_compressed(packer: Packer, plain: Packer, packed: Packer) -> None:
    """Write the batches of `plain` into `packer`, which is empty, with the sections that `compress` made of them.

    A batch that is too large is split. Raises `RecordTooLargeError` for a record that is larger than a batch may be
    even when compressed; the batches before it are in the packer. `packed` is empty then.
    """

def header_sections(what: str, rows: Iterable[Any], first: int) -> Column:
    """A column of headers from the forms that `append_many` accepts: for each record pairs, a dict, or None."""
