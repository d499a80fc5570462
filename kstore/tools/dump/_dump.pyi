"""The lines of the dump tool: from a log's batches to text or JSON, without a Python object for a record."""

from collections.abc import Callable
from typing import final

from _typeshed import ReadableBuffer, StrPath
from typing_extensions import disjoint_base

@disjoint_base
class LogText:
    """Text of the batches of one `.log` file, handed to `write` piece by piece.

    `deep` asks for record lines, `contents` for keys and values in them, `metadata` for what stands before those.
    `control(key, value)` gives the text of a control record, `decode(offset, key, value)` that of a record's key and
    value (None: they are text already); both answer in bytes.
    `gaps` maps the offset before each gap to the one after it. After an error, `flush` hands over the text that was
    printed before it.

    With `tolerant` the walk stops at bytes that are no sound v2 batch instead of printing them or raising, and `gaps`
    stays empty; `print_batch` prints them as a batch nevertheless. An error is then about the records of the batch at
    `position`, of `needed` bytes; `settle` ends the line that was begun, and the walk may go on behind the batch.
    Not thread-safe.
    """
    @property
    def gaps(self) -> dict[int, int]: ...
    @property
    def disorder(self) -> list[tuple[int, int, int, int]]:
        """With `tolerant`: position, base offset, last offset and the last offset before, where offsets do not rise."""
    @property
    def stop(self) -> str:
        """Why `feed` came back: "more" (bytes needed), "end" (of the batches), "legacy" or "short" (what is next).

        With `tolerant` also "unsound" (a batch whose CRC, format or size does not hold) or "lost" (no batch can be here).
        """
    @property
    def needed(self) -> int:
        """How many bytes the next batch has, when `stop` is not "end"."""
    @property
    def position(self) -> int:
        """The position of the batch that was read last."""
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
        """Print the batches in the first `size` bytes of `data`, which stand at `position` of a file of `end` bytes.

        Returns how many bytes that were; `stop` says why it ended. Raises `CorruptRecordError` where Kafka's tool stops.
        """
    def short_batch(self, header: ReadableBuffer, position: int, size: int) -> None:
        """Print the line of a batch too small for its header, from the 61 bytes at its start."""
    def print_batch(self, data: ReadableBuffer, position: int) -> None:
        """Print at least 61 bytes as a v2 batch; the line says whether its CRC holds."""
    def between(self, start_offset: int, end_offset: int) -> None:
        """Print only batches and records with offsets in `[start_offset, end_offset)`."""
    def settle(self) -> None:
        """End the line that an error has interrupted."""
    def put(self, text: bytes) -> None:
        """Print `text` as it is."""
    def follow(self, offset: int) -> None:
        """Note the offset of a record that the caller has printed."""
    def flush(self) -> None:
        """Hand over the text printed so far."""

@final
class LogJson(LogText):
    """The batches, or with `deep` their records, as JSON objects, one on each line.

    `file` is a member of each, as JSON. `control` gives a control record's value as JSON, `decode` the members for a
    key and a value. `settle` removes a line that an error has interrupted. Not thread-safe.
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
        """Remove the line that an error has interrupted."""

def java_text(data: bytes) -> bytes:
    """Make valid UTF-8 of any bytes, with a replacement character where Java's decoder puts one; thread-safe."""
