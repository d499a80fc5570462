"""Hostile values in every parameter and path, and hostile text in a log, lead to a page with that text escaped."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

import kstore
from kstore.files.stream_positions import POSITIONS
from tests.ui.conftest import Pages

PARTITION = "/partition/orders/0"
PARAMETERS = {
    "/": ("topic", "sort", "page"),
    "/groups": ("group", "page"),
    "/disk": ("page",),
    "/plan": ("rate", "record_bytes", "batch_records", "idle", "keys", "days", "segment.bytes", "other.segment.ms"),
    PARTITION: ("axis", "page", "segment"),
    f"{PARTITION}/records": ("offset", "time", "key", "match"),
    f"{PARTITION}/record": ("offset",),
    f"{PARTITION}/batches": ("offset",),
    f"{PARTITION}/producers": ("page",),
    f"{PARTITION}/check": ("run", "segment"),
}
HOSTILE = [
    "../../../etc/passwd",
    "..%2f..%2fetc",
    "/etc/passwd",
    "\x00",
    "a\x00b",
    "-1",
    "9" * 18,
    "9" * 19,
    "9" * 5000,
    "-" + "9" * 400,
    "1e9",
    "0x",
    "0xzz",
    "\N{FULLWIDTH DIGIT ONE}",
    "1_000",
    "NaN",
    "-1h",
    "-999999999w",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59.999999-23:59",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "💩" * 200,
    "a" * 4000,
]


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, names in PARAMETERS.items() for name in names])
def test_hostile_values_of_a_parameter_are_refused_or_escaped(orders: Pages, path: str, name: str) -> None:
    for value in HOSTILE:
        answer = orders.ask(f"{path}?{name}={quote(value, errors='surrogatepass')}")
        assert answer.status in (200, 400, 403, 404), (value, answer)
        assert "<script>" not in answer.text
        assert "<img" not in answer.text
        assert "root:" not in answer.text
        assert ">49<" not in answer.text
        if answer.status == 400:
            assert re.search(r'role="alert">\S[^<]{10,}', answer.text), value


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("/", "page", "0"),
        ("/", "page", "x"),
        ("/", "sort", "rate"),
        (PARTITION, "segment", "-1"),
        (PARTITION, "axis", "space"),
        (f"{PARTITION}/records", "offset", "9" * 19),
        (f"{PARTITION}/records", "time", "yesterday"),
        (f"{PARTITION}/records", "key", "0xzz"),
        (f"{PARTITION}/records", "key", "k" * 1001),
        (f"{PARTITION}/record", "offset", ""),
        (f"{PARTITION}/batches", "offset", "1.5"),
        (f"{PARTITION}/check", "run", "maybe"),
        ("/plan", "rate", "x"),
        ("/plan", "days", "9999"),
        ("/plan", "segment.bytes", "-5"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(orders: Pages, path: str, name: str, value: str) -> None:
    answer = orders.ask(f"{path}?{name}={value}")
    assert answer.status == 400
    assert re.search(rf'role="alert">{name}\b', answer.text)


@pytest.mark.parametrize(
    "path",
    [
        "/partition/orders/1",
        "/partition/orders/00000000000000",
        "/partition/orders/-1",
        "/partition/orders/x",
        "/partition/orders/%EF%BC%91",
        "/partition/orders/9999999999",
        "/partition/nothing/0",
        "/partition/../0",
        "/partition/%2e%2e/0",
        "/partition/..%2f..%2fetc/0",
        "/partition/orders%00/0",
        "/partition/orders-0/0",
        "/partition/./0",
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/",
        "/etc/passwd",
        "/partition/orders/0/record?offset=5",
        "/partition/orders/0?segment=3",
        "/%00",
        "/%ff",
    ],
)
def test_what_is_not_there_is_not_found(orders: Pages, path: str) -> None:
    answer = orders.ask(path)
    assert answer.status == 404
    assert "def application" not in answer.text


def test_a_request_that_is_not_http_ends_without_harm(orders: Pages) -> None:
    with socket.create_connection(("127.0.0.1", orders.server.port), timeout=60) as raw:
        raw.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    assert orders.read("/")


SCRIPT = "<script>window.pwned=1</script>"
BREAKING = [
    SCRIPT,
    "\"'><img src=x onerror='window.pwned=1'>",
    "</code></td><script>",
    "]]>",
    "{{7*7}}",
    "\u202egnp.exe",
]


def test_text_from_a_log_is_escaped_wherever_it_appears(root: Path, pages: Callable[[Path], Pages]) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("onerror.script-x_1", partitions=1)
        for text in BREAKING:
            data = text.encode()
            store.append(
                "onerror.script-x_1", b'{"a": "%s"}' % data.replace(b'"', b"'"), key=data, headers=[(text, data)]
            )
            store.append("onerror.script-x_1", data, key=b"\xff" + data)
        store.commit_offsets(SCRIPT, {("onerror.script-x_1", 0): 3, ("gone", 0): 1}, metadata=SCRIPT)
    positions = root.parent / f"{root.name}{POSITIONS}"
    positions.mkdir()
    (positions / "<img src=x>.json").write_text(SCRIPT)
    orders = pages(root)
    place = "/partition/onerror.script-x_1/0"
    ways = ["", "/records", "/batches", "/producers", "/check?run=yes", f"/records?key={quote(SCRIPT)}"]
    texts = {way: orders.read(place + way) for way in ways}
    texts |= {f"{offset}": orders.read(f"{place}/record?offset={offset}") for offset in range(2 * len(BREAKING))}
    texts |= {path: orders.read(path) for path in ("/", "/groups", "/disk")}
    for way, text in texts.items():
        assert re.findall(r"<(script|img)\b[^>]*>", text) == ["script"], way
        assert '<script src="/static/live.js" defer></script>' in text
        assert not re.search(r"<[^>]*\son\w+=", re.sub(r'"[^"]*"', '""', text)), way
        assert not re.search(r"<[^>]*\sstyle=", text), way
        assert "{{" not in text.replace("{{7*7}}", ""), way
        assert "\u202e" not in text, way
    assert "&lt;script&gt;window.pwned=1&lt;/script&gt;" in texts["/records"]
    assert "&lt;script&gt;window.pwned=1&lt;/script&gt;" in texts["0"]
    assert "&lt;script&gt;window.pwned=1&lt;/script&gt;" in texts["/groups"]
    assert "&lt;img src=x&gt;" in texts["/groups"]


def test_a_bug_in_a_page_is_told_on_the_page_and_nowhere_else(
    orders: Pages, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a \x1b[31m<script>")

    monkeypatch.setattr("kstore.ui.directory_pages.directory_rows", fail)
    answer = orders.ask("/")
    assert answer.status == 500
    assert "RuntimeError: a \\x1b[31m&lt;script&gt;" in answer.text
    assert "Traceback" in answer.text
    assert caplog.text == ""
