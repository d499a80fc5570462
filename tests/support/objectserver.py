"""An S3 server in a process of its own, and a proxy before it that loses, delays and refuses requests by a plan.

`S3Server` runs moto's server on the loopback address, on a port that the system chooses; it ends with its process's
standard input, so that none outlives a test run. `Proxy` stands before it in the test's process and asks a plan about
each request. The faults are those of a network: a request may fail before the server has it, or after it has done it.
"""

from __future__ import annotations

import http.client
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

HOST = "127.0.0.1"
BUCKET = "backups"


class Request(NamedTuple):
    """One request that a proxy got: its number from 0, its kind and the key that it names."""

    number: int
    kind: str  # "get", "put", "create", "update", "delete", "head" or "list"
    key: str


class Fault(NamedTuple):
    """What a proxy does to a request.

    "refused" closes the connection before the server has heard of it, "lost" after the server has done it, and "cut"
    in the middle of the answer's body. "status" answers `status` in the server's stead. "late" closes the connection,
    and the server gets the request when `Proxy.release` is called. Before any of it, `delay` seconds pass.

    Answers that look right and are not: "short" has half the body and the length of that half, "altered" has one byte
    that is another, "swapped" is about the object `key`, "stale" is what the same request was answered when the proxy
    was `remembering`. Of a range, "whole" answers 200 with the whole object, "moved" the next bytes and says so, and
    "shifted" the next bytes as if they were those asked for; a request without a range is passed on.
    """

    kind: str = "passed"
    status: int = 503
    delay: float = 0.0
    key: str = ""


Plan = Callable[[Request], Fault | None]
_Answer = tuple[int, list[tuple[str, str]], bytes]


class S3Server:
    """moto's S3 server in a process of its own, with one bucket."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the S3 server ended with {self._process.wait()}; is moto[s3,server] installed?")
        self.port = int(line)
        self.bucket = BUCKET
        self.make_bucket(BUCKET)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def make_bucket(self, name: str) -> None:
        """Make a bucket, by a request of its own."""
        request = urllib.request.Request(f"http://{HOST}:{self.port}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=60):
            pass

    def stop(self) -> None:
        """End the process, and with it all its buckets."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()


def options(port: int) -> dict[str, object]:
    """What obstore needs to know to reach a server, or a proxy before it, on this port."""
    return {
        "endpoint": f"http://{HOST}:{port}",
        "access_key_id": "test",
        "secret_access_key": "test",
        "region": "us-east-1",
        "client_options": {"allow_http": True},
    }


class Proxy:
    """An HTTP server on a port of its own that passes requests on, or fails them as `plan` says. Thread-safe."""

    def __init__(self, port: int, plan: Plan | None = None) -> None:
        """Stand before the server on `port`."""
        self.upstream = port
        self.plan = plan
        self.seen: list[Request] = []
        self.remembering = False
        self._known: dict[tuple[str, str, str], _Answer] = {}
        self._late: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = _Server((HOST, 0), handler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def counts(self) -> dict[str, int]:
        """How many requests of each kind there were."""
        with self._lock:
            kinds = [request.kind for request in self.seen]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def release(self) -> int:
        """Let the server have the late requests, in their order; how many there were."""
        with self._lock:
            late, self._late = self._late, []
        for send in late:
            send()
        return len(late)

    def close(self) -> None:
        """Let go of the port and of every connection."""
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()
        self._thread.join()

    def ask(self, kind: str, key: str) -> Fault | None:
        """Count a request; what is to be done to it."""
        with self._lock:
            request = Request(len(self.seen), kind, key)
            self.seen.append(request)
        return None if self.plan is None else self.plan(request)

    def answered(self, method: str, path: str, span: str, answer: _Answer, *, stale: bool) -> _Answer:
        """Remember an answer if told to; return it, or the remembered one in its stead."""
        with self._lock:
            if self.remembering:
                self._known[method, path, span] = answer
            return self._known.get((method, path, span), answer) if stale else answer

    def keep(self, send: Callable[[], object]) -> None:
        """Remember a late request."""
        with self._lock:
            self._late.append(send)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._open: set[socket.socket] = set()

    def process_request(self, request: socket.socket, address: object) -> None:  # type: ignore[override]
        self._open.add(request)
        super().process_request(request, address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        for each in list(self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: object, address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: Proxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        method, path, headers = self.command, self.path, dict(self.headers.items())
        kind, key = _kind_and_key(method, path, headers)
        fault = self.proxy.ask(kind, key) or Fault()
        span = headers.get("Range", headers.get("range", ""))
        if fault.kind == "swapped" and key:
            path = path.replace(quote(key), quote(fault.key))
        if fault.kind in ("whole", "moved", "shifted"):
            headers = {name: value for name, value in headers.items() if name.lower() != "range"}
            if fault.kind != "whole" and span:
                headers["Range"] = _next_range(span)

        def send() -> _Answer:
            connection = http.client.HTTPConnection(HOST, self.proxy.upstream, timeout=60)
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

        if fault.delay:
            time.sleep(fault.delay)
        if fault.kind == "late":
            self.proxy.keep(send)
        if fault.kind in ("refused", "late"):
            return self._hang_up()
        if fault.kind == "status":
            return self._answer(fault.status, [], b"")
        answer = self.proxy.answered(method, self.path, span, send(), stale=fault.kind == "stale")
        if fault.kind == "lost":
            return self._hang_up()
        status, answer_headers, answer_body = _falsified(answer, fault, span)
        return self._answer(status, answer_headers, answer_body, cut=fault.kind == "cut")

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of a HEAD request: the length of what a GET would answer
            elif name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self._hang_up()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on


def _kind_and_key(method: str, path: str, headers: dict[str, str]) -> tuple[str, str]:
    """What a request of the S3 protocol is about; the key is that below the bucket."""
    parts = urlsplit(path)
    query = parse_qs(parts.query, keep_blank_values=True)
    key = unquote(parts.path).lstrip("/").partition("/")[2]
    if method == "GET" and "list-type" in query:
        return "list", query.get("prefix", [""])[0]
    if method == "POST" and "delete" in query:
        return "delete", key
    names = {name.lower() for name in headers}
    if method == "PUT":
        return ("create" if "if-none-match" in names else "update" if "if-match" in names else "put"), key
    return method.lower(), key


def _next_range(span: str) -> str:
    """The range of as many bytes behind those of a range; of an open one, all but its first byte."""
    first, _, last = span.removeprefix("bytes=").partition("-")
    if not first:
        return f"bytes=-{int(last) + 1}"
    return f"bytes={int(last) + 1}-{2 * int(last) + 1 - int(first)}" if last else f"bytes={int(first) + 1}-"


def _falsified(answer: _Answer, fault: Fault, span: str) -> _Answer:
    """The answer that the client gets in the place of the server's."""
    status, headers, body = answer
    middle = len(body) // 2
    if fault.kind == "short":
        body = body[:middle]
        headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
    if fault.kind == "altered" and body:
        body = body[:middle] + bytes([body[middle] ^ 0x80]) + body[middle + 1 :]
    if fault.kind == "shifted" and span and status == 206:
        headers = [
            (name, re.sub(r"\d+-\d+", span.removeprefix("bytes="), value) if name.lower() == "content-range" else value)
            for name, value in headers
        ]
    return status, headers, body


def _serve() -> None:
    """Run moto's server until standard input ends; its port is the one line on standard output."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ, start_response):  # type: ignore[no-untyped-def]
        """A conditional put looks and writes: nothing may come in between."""
        with lock:
            return [b"".join(app(environ, start_response))]

    server = make_server(HOST, 0, one_at_a_time, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve()
