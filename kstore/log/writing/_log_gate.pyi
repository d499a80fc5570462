"""The gate of a log: every change of the log holds it, except the fast path of `append`."""

import threading
from collections.abc import Callable
from types import TracebackType

from typing_extensions import disjoint_base

from kstore.log.writing._appender import Appender

@disjoint_base
class Gate:
    """The log's mutex and the appender's `busy` flag together: inside `with gate:` no other thread changes the log.

    Entering calls `check()`; if it raises, the mutex is released. Leaving calls `failed(error)` first if the block
    raised; then the appender stays busy if `stopped()` returns true, and the mutex is released.
    """
    def __init__(
        self,
        mutex: threading.Lock,
        appender: Appender,
        *,
        check: Callable[[], object],
        stopped: Callable[[], bool],
        failed: Callable[[BaseException], object] | None = None,
    ) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def attempt(self, action: Callable[[], object]) -> bool:
        """If no thread is inside the gate, call `action()` inside it, without `check`. Return whether it was called."""
    def wait(self, timeout: float | None = None) -> None:
        """Wait until no thread is inside, for at most `timeout` seconds."""
