"""What a log knows of its producers: epochs and last batches (SEMANTICS 9)."""

from collections.abc import Callable
from enum import IntEnum
from typing import final

from _typeshed import ReadableBuffer

from kstore.log.segments._last_stable_offset import OpenTransactions

class Origin(IntEnum):
    CLIENT = 0
    COORDINATOR = 1
    FOLLOWER = 2

@final
class ProducerTable:
    """The producers of one log.

    Not thread-safe: the log's mutex guards it. What is `open` may be asked from any thread.
    """
    @property
    def open(self) -> OpenTransactions: ...
    def __len__(self) -> int: ...
    @property
    def size_bytes(self) -> int:
        """Bytes of memory that the producers take."""
    def clear(self) -> None:
        """Forget all producers."""
    def stage(
        self, data: ReadableBuffer, position: int, base_offset: int, origin: int, transaction_version: int | None = None
    ) -> tuple[int, int, int] | None:
        """Judge the v2 batch at `position` of `data`, which is to get `base_offset`; a batch without producer passes.

        A client's batch that the log already has is not staged: the answer is then its (first offset, last offset,
        timestamp), else None. What is staged counts from `publish` on. Raises `OutOfOrderSequenceError`,
        `InvalidProducerEpochError`, `InvalidTxnStateError`, `TransactionCoordinatorFencedError`, `InvalidRecordError`
        for a control record that does not parse, and `ValueError` for a marker without a transaction version.
        """
    def aborted(self) -> list[tuple[int, int, int, int]]:
        """Of the aborted transactions that are staged: [(producer id, first, last, last stable offset)]
        (SEMANTICS 9.14).
        """
    def write_all(
        self,
        commit: Callable[[ReadableBuffer, int, bool, bool], tuple[int, int]],
        data: ReadableBuffer,
        first_offset: int,
        origin: int,
    ) -> tuple[int, int]:
        """Write the first of several data batches, as many as can be at once; (code, bytes taken).

        Batches from `first_offset` on are staged up to one that the log has already or that is refused, written with
        `commit` (an appender's) up to one that needs a new segment, and count. Nothing is taken where the first is
        such a one: `stage` says what it is. Compiled, as `write`.
        """
    def publish(self) -> None:
        """Let what was staged count: its bytes are in the log (SEMANTICS 9.4)."""
    def drop(self) -> None:
        """Forget what was staged."""
    def write(
        self, commit: Callable[[ReadableBuffer, int, bool, bool], tuple[int, int]], data: ReadableBuffer, follower: bool
    ) -> int:
        """Write what was staged with `commit` (an appender's), and let it count once it is written; the code.

        Compiled, so that no interrupt can come between the two. Where nothing was written nothing stays staged.
        """
    def replay(
        self, fd: int, position: int, end: int, start_offset: int, path: str | None = None
    ) -> list[tuple[int, int, int, int]]:
        """Take in the batches of `[position, end)` of a file from `start_offset` on, as a follower (SEMANTICS 9.26).

        Whole, framed batches are expected; at the first that is none it stops. A control batch that does not parse is
        passed over. Answers with the transactions that were aborted in them, as `aborted` does. Raises `StorageError`.
        """
    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers without open transaction whose last timestamp is so long ago (SEMANTICS 9.21); how many."""
    def snapshot(self) -> bytes:
        """The bytes of a snapshot file (FORMAT 10), in order of producer ids."""
    def load(self, data: bytes, now_ms: int, expiration_ms: int) -> bool:
        """Become what a snapshot says, without the producers that have expired; False if it is no sound one
        (SEMANTICS 9.26).
        """
    def states(self) -> list[tuple[int, int, int, int, int, tuple[tuple[int, int, int, int, int], ...]]]:
        """All producers, in order of ids: (id, epoch, coordinator epoch, timestamp, first offset of the open
        transaction or -1, ((first sequence, last sequence, first offset, last offset, timestamp) of each kept batch)).
        """
    def state(
        self, producer_id: int
    ) -> tuple[int, int, int, int, int, tuple[tuple[int, int, int, int, int], ...]] | None:
        """One producer, as in `states`; None for an id that the log does not know."""

def marker_batch(
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    coordinator_epoch: int,
    log_append_time: bool = False,
) -> bytearray:
    """The control batch that ends a transaction, as a bytearray without its offset (FORMAT 4)."""
