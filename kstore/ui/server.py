"""`Server`: serves the pages with uvicorn on a thread of its own."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable
from errno import EIO
from typing import Any, Self

from kstore.base import optional
from kstore.errors import ConfigError, StorageError
from kstore.ui.access import Access
from kstore.ui.app import application
from kstore.ui.live_events import LiveEvents
from kstore.ui.page_templates import USER
from kstore.ui.patience import impatient
from kstore.ui.viewed_store import ViewedStore

__all__ = ["LOOPBACK", "Server", "is_loopback"]

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 100
_PATIENCE_S = 10.0
_STOP_S = 3


class Server:
    """Serves the pages of a store from `start` until `stop`; a context manager does both. Not thread-safe."""

    def __init__(
        self,
        viewed: ViewedStore,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        interval: float = 1.0,
        patience: float = _PATIENCE_S,
    ) -> None:
        """Listen on a port of `host`, a free one if `port` is 0; live pages look at the logs every `interval` seconds.

        A connection is closed if no whole request comes for `patience` seconds, or up to twice as many.

        Raises `ConfigError` if a library is missing, `StorageError` if the address cannot be used.
        """
        uvicorn = optional.uvicorn(USER)
        self.token = secrets.token_urlsafe(32)
        self._live = LiveEvents(viewed, interval=interval)
        self._socket = _listen(host, port)
        try:
            self.host, self.port = host, int(self._socket.getsockname()[1])
            access = Access(self.token, _hosts(host, self.port), _is_wildcard(host), f"kstore-ui-{self.port}")
            app = application(viewed, access, live=self._live)
            config = uvicorn.Config(
                app,
                http=impatient(patience),
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                log_level="critical",  # clients without the token could fill the terminal with warnings
                access_log=False,  # it would have the token
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=_STOP_S,
            )
            self._server = uvicorn.Server(config)
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._run, name="kstore-ui", daemon=True)

    @property
    def base(self) -> str:
        """The address of the pages without the token, such as `http://127.0.0.1:8000`."""
        return f"http://{_in_address(self.host)}:{self.port}"

    def address(self, page: str = "/") -> str:
        """Return the address that opens a page, which may have parameters."""
        return f"{self.base}{page}{'&' if '?' in page else '?'}token={self.token}"

    def start(self) -> Self:
        """Begin to answer requests."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop answering requests, end the streams, and close the socket. Idempotent."""
        self._live.stop()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        serve: Callable[..., Any] = self._server.serve
        asyncio.run(serve(sockets=[self._socket]))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host's addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(MAX_CONNECTIONS)
    except OSError as error:
        made.close()
        raise StorageError(error.errno or EIO, error.strerror or str(error), f"{host}:{port}") from None
    except OverflowError:
        made.close()
        raise ConfigError(f"the port is {port}; 0 to 65535 is allowed") from None
    return made


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _hosts(host: str, port: int) -> frozenset[str]:
    """Return the values of `Host` that lead to this server."""
    names = {_in_address(host).lower()}
    if is_loopback(host) or _is_wildcard(host):
        names |= {"127.0.0.1", "localhost", "[::1]"}
    return frozenset(f"{name}:{port}" for name in names) | (frozenset(names) if port == 80 else frozenset())


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
