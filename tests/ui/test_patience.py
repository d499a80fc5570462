"""Connections on which no request comes are closed, so that they do not keep others from the pages."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kstore
from tests.ui.conftest import Pages


@pytest.fixture
def hurried(root: Path, pages: Callable[..., Pages]) -> Pages:
    kstore.Log.open(root / "orders-0").close()
    return pages(root, connection_patience=0.05)


@contextmanager
def connected(pages: Pages, sent: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", pages.server.port), timeout=60) as raw:
        raw.sendall(sent)
        yield raw


def rest(raw: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    received = b""
    try:
        while data := raw.recv(1 << 16):
            received += data
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: ", b"GET / HTTP/1.1\r\nX: 1\r\n"])
def test_a_connection_without_a_whole_request_is_closed(hurried: Pages, sent: bytes) -> None:
    with connected(hurried, sent) as raw:
        assert rest(raw) == b""


def test_a_connection_that_begins_a_second_request_is_closed(hurried: Pages) -> None:
    with connected(hurried, b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP") as raw:
        assert rest(raw).startswith(b"HTTP/1.1 403")


def test_a_stream_is_not_closed(hurried: Pages) -> None:
    with kstore.Log.open(hurried.viewed.store.paths[0] + "/orders-0") as log:
        events = hurried.events("/live/partition/orders/0")
        events.next()
        with connected(hurried, b"") as raw:
            rest(raw)  # takes longer than the patience
        log.append(b"more")
        events.until(lambda event: event["values"]["end"] == "1")
