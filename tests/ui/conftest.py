"""A server over real logs, asked with `http.client`: the fixture `pages`."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kstore
from kstore.ui.server import Server
from kstore.ui.viewed_store import ViewedStore


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Events:
    """The events of a stream, read one after another."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._answer = connection.getresponse()
        self.status = self._answer.status

    def next(self) -> dict[str, Any]:
        """The content of the next event; comments are left out."""
        while True:
            line = self._answer.readline()
            assert line, "the stream has ended"
            if line.startswith(b"data: "):
                found: dict[str, Any] = json.loads(line[6:])
                return found

    def until(self, is_it: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first event of which this holds."""
        while not is_it(event := self.next()):
            pass
        return event

    def rest(self) -> bytes:
        """What comes until the server ends the stream."""
        return self._answer.read()

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


class Pages:
    """A server and a client that has its cookie."""

    def __init__(self, server: Server, viewed: ViewedStore) -> None:
        self.server, self.viewed = server, viewed
        self.host = f"127.0.0.1:{server.port}"
        self.cookie = f"kstore-ui-{server.port}={server.token}"
        self._streams: list[Events] = []

    def ask(self, path: str, method: str = "GET", *, cookie: str | None = "", **headers: str) -> Answer:
        """One request; `cookie` replaces the right one, None leaves it out. Underscores in names become dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if cookie is not None:
            sent.setdefault("Cookie", cookie or self.cookie)
        connection.putrequest(method, path, skip_host="Host" in sent)
        for name, value in sent.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)

    def read(self, path: str) -> str:
        """The HTML of a page that must be there."""
        answer = self.ask(path)
        assert answer.status == 200, answer
        return answer.text

    def events(self, path: str) -> Events:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        connection.request("GET", path, headers={"Cookie": self.cookie})
        self._streams.append(Events(connection))
        return self._streams[-1]

    def close(self) -> None:
        """Close what a test has left open."""
        for stream in self._streams:
            stream.close()


@contextmanager
def serving() -> Iterator[Callable[..., Pages]]:
    """`serve(root)`: the pages of a directory, which look at the logs very often; they stop when the block ends."""
    with ExitStack() as stack:

        def serve(root: Path, **options: Any) -> Pages:
            options.setdefault("clock", lambda: time.time_ns() // 1_000_000)
            of_server = {"patience": options.pop("connection_patience", 60.0)}
            viewed = ViewedStore([str(root)], patience=30, **options)
            stack.callback(viewed.close)
            server = stack.enter_context(Server(viewed, interval=0.01, **of_server))
            made = Pages(server, viewed)
            stack.callback(made.close)
            return made

        yield serve


@pytest.fixture
def pages() -> Iterator[Callable[..., Pages]]:
    """`pages(root)`: the pages of a directory; they stop when the test ends."""
    with serving() as serve:
        yield serve


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The pages of a directory with five records in `orders-0`, for tests that change nothing in it."""
    root = tmp_path_factory.mktemp("orders")
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1)
        for number in range(5):
            store.append("orders", b"value %d" % number, key=b"k")
    with serving() as serve:
        yield serve(root)
