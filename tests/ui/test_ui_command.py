"""`kstore ui` as a process: it prints the address, serves until a signal, and refuses what it cannot serve."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import kstore
from kstore.cli import main


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of the command, and the address that it prints."""
    command = [sys.executable, "-m", "kstore", "ui", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def fetch(address: str, cookie: str = "") -> tuple[int, str, str]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.request("GET", f"{parts.path}?{parts.query}", headers={"Cookie": cookie} if cookie else {})
    answer = connection.getresponse()
    found = answer.status, answer.getheader("set-cookie", "").partition(";")[0], answer.read().decode()
    connection.close()
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_address_opens_the_page_and_a_signal_ends_the_server(root: Path, number: signal.Signals) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1)
    with running(str(root)) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        status, cookie, _ = fetch(address)
        assert status == 303
        status, _, text = fetch(address.partition("?")[0], cookie)
        assert status == 200
        assert "orders-0" in text
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert errors.splitlines() == ["kstore ui: open the address in a browser; Ctrl-C ends the server"]


def test_a_partition_leads_to_its_own_page(root: Path) -> None:
    with kstore.Log.open(root / "orders-0") as log:
        log.append(b"x")
    with running(f"{root}/orders-0", "-c", "retention.ms=60000") as (_, address):
        assert "/partition/orders/0?token=" in address
        _, cookie, _ = fetch(address)
        assert "kept by retention.ms" in fetch(address.partition("?")[0], cookie)[2]


def test_a_topic_leads_to_its_partitions(root: Path) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1)
        store.create_topic("clicks", partitions=1)
    with running(f"{root}/orders") as (_, address):
        _, cookie, _ = fetch(address)
        text = fetch(address.partition("&")[0], cookie)[2]
        assert "orders-0" in text
        assert "clicks-0" not in text
        assert str(root) in text


def test_a_backup_is_shown_like_a_directory(root: Path, tmp_path: Path) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("orders", partitions=1)
        store.append("orders", b"x", key=b"k")
    assert main(["backup", str(root), "--to", f"file://{tmp_path}/backup"]) == 0
    with running(f"file://{tmp_path}/backup") as (_, address):
        _, cookie, _ = fetch(address)
        base = address.partition("/?")[0]
        assert "orders-0" in fetch(f"{base}/", cookie)[2]
        for way in ("", "/records", "/record?offset=0", "/batches", "/producers", "/check?run=yes"):
            status, _, text = fetch(f"{base}/partition/orders/0{way}", cookie)
            assert status == 200
            assert 'class="problem"' not in text


def test_a_host_that_others_can_reach_is_warned_about(root: Path) -> None:
    with running(str(root), "--host", "0.0.0.0") as (process, address):
        assert address.startswith("http://0.0.0.0:")
        process.send_signal(signal.SIGINT)
        assert "warning: other machines can reach" in process.communicate(timeout=60)[1]


def test_a_directory_that_is_not_there_is_an_error(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", str(root / "nothing" / "there")]) == 1
    assert capsys.readouterr().err.startswith("kstore ui: ")


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_a_port_that_is_none_is_refused(root: Path, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", str(root), f"--port={port}"]) == 2
    assert "--port" in capsys.readouterr().err


def test_a_host_that_is_none_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", str(root), "--host", "203.0.113.7"]) == 1
    assert "203.0.113.7" in capsys.readouterr().err


def test_a_missing_library_names_the_extra(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["ui", str(root)]) == 1
    assert "pip install 'kstore[ui]'" in capsys.readouterr().err
