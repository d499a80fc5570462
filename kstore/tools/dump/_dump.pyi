"""Prints v2 batches and their records as text or JSON, without a Python object for each record (DUMP 3)."""

from collections.abc import Callable
from typing import final

from _typeshed import ReadableBuffer, StrPath
from typing_extensions import disjoint_base

@disjoint_base
class LogText:
    """Prints the batches of one `.log` file as text, and passes the text to `write` piece by piece.

    `deep` prints record lines, `contents` the keys and values in them, `metadata` the part of such a line before the
    key. `control(key, value)` returns the text of a control record, `decode(offset, key, value)` the texts of a
    record's key and value, all as bytes; without `decode`, keys and values are text already. `gaps` maps the offset
    before each gap to the offset after it. After an error, `flush` writes the text printed before it.

    With `tolerant` the walk stops at bytes that are no sound v2 batch instead of printing them or raising, and `gaps`
    is empty; `print_batch` can still print them as a batch. An error is then about the records of the batch at
    `position`, which has `needed` bytes; `settle` ends the unfinished line, and the walk may continue after the batch.
    Not thread-safe.
    """
    @property
    def gaps(self) -> dict[int, int]: ...
    @property
    def disorder(self) -> list[tuple[int, int, int, int]]:
        """With `tolerant`: position, base and last offset, and last offset before it, of each batch out of order."""
    @property
    def stop(self) -> str:
        """Why `feed` returned: "more" (bytes needed), "end" (of the batches), "legacy" or "short" (kind of the next batch).

        "legacy" is format 0 or 1, "short" is a batch smaller than its header. With `tolerant` also "unsound" (a batch with
        a wrong CRC, format or size) or "lost" (no batch can start here).
        """
    @property
    def needed(self) -> int:
        """The size of the next batch, if `stop` is not "end"."""
    @property
    def position(self) -> int:
        """The position of the last batch that was read."""
    last_offset: int
    """With `tolerant`: the last offset of the last sound batch."""
    def __init__(
        self,
        write: Callable[[memoryview], object],
        *,
        path: StrPath | None,
        control: Callable[[bytes | None, bytes | None], bytes],
        decode: Callable[[int, bytes | None, bytes | None], tuple[bytes | None, bytes | None]] | None = None,
        deep: bool = False,
        contents: bool = False,
        metadata: bool = True,
        tolerant: bool = False,
    ) -> None: ...
    def feed(self, data: ReadableBuffer, size: int, position: int, end: int) -> int:
        """Print the batches in the first `size` bytes of `data`, which are at `position` of a file of `end` bytes.

        Returns the size of those batches; `stop` says why it ended. Raises `CorruptRecordError` if Kafka's tool stops.
        """
    def short_batch(self, header: ReadableBuffer, position: int, size: int) -> None:
        """Print the line of a batch that is smaller than its header, from the 61 bytes at its start."""
    def print_batch(self, data: ReadableBuffer, position: int) -> None:
        """Print at least 61 bytes as a v2 batch; the line says whether its CRC matches."""
    def between(self, start_offset: int, end_offset: int) -> None:
        """Print only batches and records with offsets in `[start_offset, end_offset)`."""
    def settle(self) -> None:
        """End the line that an error interrupted."""
    def put(self, text: bytes) -> None:
        """Print `text` as it is."""
    def follow(self, offset: int) -> None:
        """Record the offset of a record that the caller has printed."""
    def flush(self) -> None:
        """Pass the text printed so far to `write`."""

@final
class LogJson(LogText):
    """Prints the batches, or with `deep` their records, as JSON objects, one on each line.

    `file` is a member of each object, as JSON. `control` returns a control record's value as JSON, `decode` the members
    for a key and a value. Not thread-safe.
    """
    def __init__(
        self,
        write: Callable[[memoryview], object],
        *,
        file: bytes,
        path: StrPath | None,
        control: Callable[[bytes | None, bytes | None], bytes],
        decode: Callable[[int, bytes | None, bytes | None], bytes] | None = None,
        deep: bool = False,
        contents: bool = False,
        metadata: bool = True,
        tolerant: bool = True,
    ) -> None: ...
    def settle(self) -> None:
        """Remove the line that an error interrupted."""

def java_text(data: bytes) -> bytes:
    """Return any bytes as valid UTF-8, with replacement characters as from Java's decoder; thread-safe."""
