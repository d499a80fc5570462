"""An S3 server in a process of its own that serves the directories below one as buckets, for reading, and fast.

moto copies every body several times; here the system sends files from the page cache, so that what reads is measured
and not the server. Each request waits for `latency` seconds first, and all bodies together keep to `bandwidth` bytes a
second. GET with ranges and `If-Match`, HEAD, and ListObjectsV2 are answered as S3 answers them; whoever writes, writes
into the directory. Each request is remembered with its times. The process ends with its standard input.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from stat import S_ISREG
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

HOST = "127.0.0.1"
CONTROL = "/-/"  # no bucket has a name of one character
PAGE = 1000  # keys of one answer to a listing, as S3 has it
CHUNK_BYTES = 256 << 10
BURST_SECONDS = 0.01
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class Served(NamedTuple):
    """One request that was answered. Times are those of `time.monotonic`, which all processes share."""

    kind: str  # "get", "head" or "list"
    key: str  # with its bucket; of a listing, the prefix
    status: int
    begun: float
    ended: float
    sent_bytes: int


def serial_depth(requests: Iterable[Served]) -> int:
    """How many requests came one after the other: the longest chain in which each begins after another has ended."""
    depth, last = 0, 0.0
    for request in sorted(requests, key=lambda each: each.ended):
        if request.begun >= last:
            depth, last = depth + 1, request.ended
    return depth


class S3Directory:
    """The server's process."""

    def __init__(self, directory: Path, *, latency: float = 0.0, bandwidth: float = 0.0) -> None:
        """Serve the directories below this one; a bandwidth of 0 has no bound."""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(directory), str(latency), str(bandwidth)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the S3 server ended with {self._process.wait()}")
        self.port = int(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def set(self, *, latency: float, bandwidth: float) -> None:
        """Change what slows requests that come from now on."""
        self._ask(f"set?latency={latency}&bandwidth={bandwidth}")

    def forget(self) -> None:
        """Forget the requests so far."""
        self._ask("forget")

    def requests(self) -> list[Served]:
        """The requests that were answered since `forget`, in the order of their ends."""
        return [Served(*each) for each in json.loads(self._ask("requests"))]

    def stop(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, what: str) -> bytes:
        with urllib.request.urlopen(f"http://{HOST}:{self.port}{CONTROL}{what}", timeout=60) as answer:
            found: bytes = answer.read()
        return found


# --- in its process ---------------------------------------------------------------------------------------------------


class _Pace:
    """Gives the bytes of all connections their times, so that together they keep to a bandwidth. Thread-safe."""

    def __init__(self, latency: float, bandwidth: float) -> None:
        self.latency, self.bandwidth = latency, bandwidth
        self._free = 0.0
        self._lock = threading.Lock()

    def wait_for(self, size: int) -> None:
        """Return when so many bytes may have been sent."""
        if not self.bandwidth:
            return
        now = time.monotonic()
        with self._lock:
            self._free = max(self._free, now - BURST_SECONDS) + size / self.bandwidth
            due = self._free
        if due > now:
            time.sleep(due - now)


class _Entry(NamedTuple):
    name: str
    size: int
    modified_ns: int
    etag: str


class _Buckets:
    """The directories: their files as objects."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._listed: dict[str, tuple[int, list[_Entry], list[str]]] = {}
        self._pages: dict[str, list[tuple[str, _Entry | None]]] = {}

    def path(self, key: str) -> str | None:
        return None if any(part in ("", ".", "..") for part in key.split("/")) else f"{self.root}/{key}"

    def keys(self, bucket: str, prefix: str, delimiter: str) -> list[tuple[str, _Entry | None]]:
        """The keys below a prefix in order, with their entries; common prefixes have none."""
        return sorted(self._keys(bucket, prefix.rpartition("/")[0], prefix, delimiter), key=lambda pair: pair[0])

    def _keys(self, bucket: str, directory: str, prefix: str, delimiter: str) -> Iterator[tuple[str, _Entry | None]]:
        files, directories = self._inside(f"{self.root}/{bucket}/{directory}".rstrip("/"))
        above = f"{directory}/" if directory else ""
        for entry in files:
            if f"{above}{entry.name}".startswith(prefix):
                yield f"{above}{entry.name}", entry
        for name in directories:
            if f"{above}{name}/".startswith(prefix):
                if delimiter:
                    yield f"{above}{name}/", None
                else:
                    yield from self._keys(bucket, f"{above}{name}", prefix, delimiter)

    def _inside(self, path: str) -> tuple[list[_Entry], list[str]]:
        """The files and directories of a directory, which are looked at again when it has changed."""
        try:
            changed = Path(path).stat().st_mtime_ns
            known = self._listed.get(path)
            if known is not None and known[0] == changed:
                return known[1], known[2]
            files, directories = [], []
            with os.scandir(path) as entries:
                for each in entries:
                    if each.is_dir():
                        directories.append(each.name)
                    else:
                        stat = each.stat()
                        files.append(_Entry(each.name, stat.st_size, stat.st_mtime_ns, _etag(stat)))
        except OSError:
            return [], []
        if time.time_ns() - changed > 1_000_000_000:  # later changes cannot have the same time
            self._listed[path] = changed, files, directories
        return files, directories

    def page(self, query: dict[str, str], bucket: str) -> tuple[list[tuple[str, _Entry | None]], str]:
        """One answer's worth of keys, and the token of the next; empty at the end."""
        token = query.get("continuation-token", "")
        after, _, listing = token.partition(" ")
        found = self._pages.get(listing) if token else None
        if found is None:
            found = self.keys(bucket, query.get("prefix", ""), query.get("delimiter", ""))
            listing = str(len(self._pages))
            after = after or query.get("start-after", "")
        begin = bisect.bisect_right(found, after, key=lambda pair: pair[0]) if after else 0
        end = begin + min(int(query.get("max-keys", PAGE)), PAGE)
        if end >= len(found):
            return found[begin:], ""
        self._pages[listing] = found
        return found[begin:end], f"{found[end - 1][0]} {listing}"


def _etag(stat: os.stat_result) -> str:
    return f'"{stat.st_mtime_ns:x}-{stat.st_size:x}-{stat.st_ino:x}"'


class _Requests:
    """The requests that were answered. Thread-safe."""

    def __init__(self) -> None:
        self._served: list[Served] = []
        self._under_way = 0
        self._changed = threading.Condition()

    @contextmanager
    def one(self) -> Iterator[Callable[[Served], None]]:
        """Remember one request."""
        with self._changed:
            self._under_way += 1
        try:
            yield self._served.append
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def all(self) -> list[Served]:
        """All of them; a client may have its answer a moment before the request is remembered."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, timeout=1)
            return list(self._served)

    def forget(self) -> None:
        self.all()
        self._served.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    pace: _Pace
    buckets: _Buckets
    requests: _Requests

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith(CONTROL):
            self._control(self.path.removeprefix(CONTROL))
            return
        with self.requests.one() as note:
            note(self._serve())

    do_HEAD = do_GET

    def _serve(self) -> Served:
        begun = time.monotonic()
        time.sleep(self.pace.latency)
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        key = unquote(parts.path).strip("/")
        if "list-type" in query:
            kind, (status, sent) = "list", self._list(key, query)
            key = f"{key}/{query.get('prefix', '')}"
        else:
            kind, (status, sent) = self.command.lower(), self._object(key)
        return Served(kind, key, status, begun, time.monotonic(), sent)

    def _list(self, bucket: str, query: dict[str, str]) -> tuple[int, int]:
        if not Path(self.buckets.root, bucket).is_dir():
            return self._refuse(404, "NoSuchBucket")
        found, token = self.buckets.page(query, bucket)
        lines = ['<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult>', f"<Name>{escape(bucket)}</Name>"]
        lines += [f"<KeyCount>{len(found)}</KeyCount><IsTruncated>{str(bool(token)).lower()}</IsTruncated>"]
        if token:
            lines.append(f"<NextContinuationToken>{escape(token)}</NextContinuationToken>")
        for key, entry in found:
            if entry is None:
                lines.append(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>")
            else:
                modified = datetime.fromtimestamp(entry.modified_ns // 1_000_000 / 1000, UTC)
                lines.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{modified:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>"
                    f"<ETag>{escape(entry.etag)}</ETag><Size>{entry.size}</Size></Contents>"
                )
        return self._answer(200, "".join((*lines, "</ListBucketResult>")).encode(), "application/xml")

    def _object(self, key: str) -> tuple[int, int]:
        path = self.buckets.path(key)
        try:
            fd = os.open(path or "", os.O_RDONLY)
        except OSError:
            return self._refuse(404, "NoSuchKey")
        try:
            stat = os.fstat(fd)
            if not S_ISREG(stat.st_mode):
                return self._refuse(404, "NoSuchKey")
            wanted = self.headers.get("If-Match")
            if wanted not in (None, "*", _etag(stat)):
                return self._refuse(412, "PreconditionFailed")
            begin, end, status = 0, stat.st_size, 200
            if (match := _RANGE.fullmatch(self.headers.get("Range", ""))) and match[0] != "bytes=-":
                status = 206
                if match[1]:
                    begin, end = int(match[1]), min(int(match[2]) + 1 if match[2] else end, end)
                else:
                    begin = max(end - int(match[2]), 0)
                if begin >= end:
                    return self._refuse(416, "InvalidRange")
            self.send_response_only(status)
            self.send_header("ETag", _etag(stat))
            self.send_header("Last-Modified", formatdate(stat.st_mtime, usegmt=True))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(end - begin))
            if status == 206:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{stat.st_size}")
            self.end_headers()
            return status, 0 if self.command == "HEAD" else self._send(fd, begin, end)
        finally:
            os.close(fd)

    def _send(self, fd: int, begin: int, end: int) -> int:
        at = begin
        try:
            while at < end:
                self.pace.wait_for(min(CHUNK_BYTES, end - at))
                until = min(at + CHUNK_BYTES, end)
                while at < until:
                    sent = os.sendfile(self.connection.fileno(), fd, at, until - at)
                    if not sent:
                        raise ConnectionError
                    at += sent
        except OSError:  # the client has gone, or the file is shorter now
            self.close_connection = True
        return at - begin

    def _refuse(self, status: int, code: str) -> tuple[int, int]:
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{code}</Message></Error>'
        return self._answer(status, body.encode(), "application/xml")

    def _answer(self, status: int, body: bytes, kind: str) -> tuple[int, int]:
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return status, 0
        self.pace.wait_for(len(body))
        self.wfile.write(body)
        return status, len(body)

    def _control(self, what: str) -> None:
        name, _, query = what.partition("?")
        answer: object = None
        if name == "set":
            for each, (value,) in parse_qs(query).items():
                setattr(self.pace, each, float(value))
        elif name == "forget":
            self.requests.forget()
        else:
            answer = self.requests.all()
        body = json.dumps(answer).encode()
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: object, address: object) -> None:
        """A client that went away is no news."""


def counts(requests: Iterable[Served]) -> Counter[str]:
    """How many requests of each kind there were."""
    return Counter(each.kind for each in requests)


def main(directory: str, latency: str, bandwidth: str) -> None:
    """Serve until standard input ends; the port is the one line on standard output."""
    shared = {"pace": _Pace(float(latency), float(bandwidth)), "buckets": _Buckets(directory), "requests": _Requests()}
    server = _Server((HOST, 0), type("Handler", (_Handler,), shared))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
