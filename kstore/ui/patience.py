"""A protocol of uvicorn that closes connections on which no request comes.

Uvicorn itself waits for ever for the first request of a connection and for the rest of one that has begun, so that a
client without the token could use up all connections.
"""

from __future__ import annotations

from asyncio import Transport
from typing import Any

from kstore.base import optional
from kstore.ui.page_templates import USER

__all__ = ["impatient"]


def impatient(patience: float) -> type[Any]:
    """Return a protocol that waits `patience` to twice as many seconds for each request of a connection.

    Raises `ConfigError` if uvicorn is missing.
    """
    base: Any = optional.uvicorn(USER, "uvicorn.protocols.http.h11_impl").H11Protocol

    class Impatient(base):  # type: ignore[misc]
        """One connection. Used by one event loop."""

        def connection_made(self, transport: Transport) -> None:
            super().connection_made(transport)
            self._answered: Any = None  # the request that was answered last when the connection was looked at
            self._next_look = self.loop.call_later(patience, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            self._next_look.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            is_busy = self.cycle is not None and not self.cycle.response_complete
            if not is_busy and self.cycle is self._answered:
                self.transport.abort()
                return
            self._answered = self if is_busy else self.cycle
            self._next_look = self.loop.call_later(patience, self._look)

    return Impatient
