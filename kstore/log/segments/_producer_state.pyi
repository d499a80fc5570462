"""The state of a log's producers: epochs and last batches (SEMANTICS 9)."""

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

    Not thread-safe: the log's mutex guards it. `open` may be read from any thread.
    """
    @property
    def open(self) -> OpenTransactions: ...
    def __len__(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def clear(self) -> None:
        """Forget all producers."""
    def stage(
        self, data: ReadableBuffer, position: int, base_offset: int, origin: int, transaction_version: int | None = None
    ) -> tuple[int, int, int] | None:
        """Check and stage the v2 batch at `position` of `data`, which is to get `base_offset`.

        A batch without a producer passes and is not staged. A client's batch that the log already has is not staged
        either: its (first offset, last offset, timestamp) are returned, otherwise None. `publish` applies staged
        batches. Raises `OutOfOrderSequenceError`, `InvalidProducerEpochError`, `InvalidTxnStateError`,
        `TransactionCoordinatorFencedError`, `InvalidRecordError` for a control record that does not parse, and
        `ValueError` for a marker without a transaction version.
        """
    def aborted(self) -> list[tuple[int, int, int, int]]:
        """Return (producer id, first, last, last stable offset) of each staged aborted transaction (SEMANTICS 9.14)."""
    def write_all(
        self,
        commit: Callable[[ReadableBuffer, int, bool, bool], tuple[int, int]],
        data: ReadableBuffer,
        first_offset: int,
        origin: int,
    ) -> tuple[int, int]:
        """Write as many of several data batches as fit into one write. Return (code, bytes taken).

        The first batch gets `first_offset`. Batches are staged up to the first that the log already has or that is
        refused. `commit` (an appender's) writes them, up to the first that needs a new segment; the written ones are
        published. If the very first is repeated or refused, nothing is taken, and `stage` says which. Compiled.
        """
    def publish(self) -> None:
        """Apply the staged batches, whose bytes are in the log now (SEMANTICS 9.4)."""
    def drop(self) -> None:
        """Discard the staged batches."""
    def write(
        self, commit: Callable[[ReadableBuffer, int, bool, bool], tuple[int, int]], data: ReadableBuffer, follower: bool
    ) -> int:
        """Write the staged batches with `commit` (an appender's); publish them if written, else drop them.

        Return the code of `commit`. Compiled, so that no interrupt can come between the write and `publish`.
        """
    def replay(
        self, fd: int, position: int, end: int, start_offset: int, path: str | None = None
    ) -> list[tuple[int, int, int, int]]:
        """Apply the batches of `[position, end)` of a file from `start_offset` on, as a follower (SEMANTICS 9.26).

        Stop at the first bytes that are no whole, framed batch. Skip a control batch that does not parse. Return the
        transactions that these batches abort, as `aborted` does. Raises `StorageError`.
        """
    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers silent for `expiration_ms`, unless in a transaction (SEMANTICS 9.21). Return how many."""
    def snapshot(self) -> bytes:
        """Return the contents of a snapshot file (FORMAT 10), sorted by producer id."""
    def load(self, data: bytes, now_ms: int, expiration_ms: int) -> bool:
        """Load a snapshot, without expired producers (SEMANTICS 9.26). Change nothing and return False if unsound."""
    def states(self) -> list[tuple[int, int, int, int, int, tuple[tuple[int, int, int, int, int], ...]]]:
        """Return all producers, sorted by id: (id, epoch, coordinator epoch, timestamp, open transaction, batches).

        The open transaction is its first offset, or -1. Each kept batch is (first sequence, last sequence, first
        offset, last offset, timestamp).
        """
    def state(
        self, producer_id: int
    ) -> tuple[int, int, int, int, int, tuple[tuple[int, int, int, int, int], ...]] | None:
        """Return one producer, as in `states`, or None for an unknown id."""

def marker_batch(
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    coordinator_epoch: int,
    log_append_time: bool = False,
) -> bytearray:
    """Return the control batch that ends a transaction, without its offset (FORMAT 4)."""
