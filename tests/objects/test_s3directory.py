"""The S3 server over directories, and the answers that a proxy before it falsifies, as obstore sees them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import S3Store

from tests.support.objectserver import Fault, Proxy, options
from tests.support.s3directory import S3Directory, Served, serial_depth

BUCKET = "logs"
DATA = bytes(range(200))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Directory]:
    root = tmp_path_factory.mktemp("s3")
    inner = root / BUCKET / "a" / "t-0"
    inner.mkdir(parents=True)
    (inner / "x&y.log").write_bytes(DATA)
    (inner / "other.log").write_bytes(DATA[::-1])
    many = root / BUCKET / "many"
    many.mkdir()
    for number in range(1201):
        (many / f"{number:04}").write_bytes(b"m")
    with S3Directory(root) as started:
        yield started


def a_store(port: int) -> S3Store:
    return S3Store(BUCKET, **options(port), retry_config={"max_retries": 0})  # type: ignore[arg-type]


KEY = "a/t-0/x&y.log"


def test_ranges_etags_and_listings_are_those_of_s3(server: S3Directory) -> None:
    store = a_store(server.port)
    found = obstore.get(store, KEY)
    etag = found.meta["e_tag"]
    assert bytes(found.bytes()) == DATA
    assert bytes(obstore.get_range(store, KEY, start=3, end=7)) == DATA[3:7]
    assert bytes(obstore.get_range(store, KEY, start=190, length=100)) == DATA[190:]
    assert bytes(obstore.get(store, KEY, options={"range": {"suffix": 5}}).bytes()) == DATA[-5:]
    assert bytes(obstore.get(store, KEY, options={"if_match": etag}).bytes()) == DATA
    assert obstore.head(store, KEY)["size"] == 200
    with pytest.raises(PreconditionError):
        obstore.get(store, KEY, options={"if_match": '"another"'})
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "a/none")
    pages = [each["path"] for page in obstore.list(store, "many") for each in page]
    assert pages == [f"many/{number:04}" for number in range(1201)]
    after = [each["path"] for page in obstore.list(store, "many", offset="many/1198") for each in page]
    assert after == ["many/1199", "many/1200"]
    assert obstore.list_with_delimiter(store)["common_prefixes"] == ["a", "many"]


def test_a_listing_sees_what_was_written_before_it(server: S3Directory, tmp_path: Path) -> None:
    root = tmp_path / "bucket"
    root.mkdir()
    with S3Directory(tmp_path) as other:
        store = S3Store("bucket", **options(other.port))  # type: ignore[arg-type]
        for number in range(20):
            (root / str(number)).write_bytes(b"")
            assert sum(len(page) for page in obstore.list(store)) == number + 1


def test_requests_are_remembered_with_their_bytes(server: S3Directory) -> None:
    server.forget()
    store = a_store(server.port)
    obstore.get_range(store, KEY, start=0, end=10)
    obstore.head(store, KEY)
    told = [(each.kind, each.key, each.status, each.sent_bytes) for each in server.requests()]
    assert told == [("get", f"{BUCKET}/{KEY}", 206, 10), ("head", f"{BUCKET}/{KEY}", 200, 0)]


def test_the_serial_depth_counts_requests_that_do_not_overlap() -> None:
    times = [(0, 2), (1, 3), (2, 4), (3.5, 5), (4, 6)]
    requests = [Served("get", "", 200, float(begun), float(ended), 0) for begun, ended in times]
    assert serial_depth(requests) == 3


@pytest.mark.parametrize("kind", ["short", "altered", "swapped", "whole", "moved", "shifted"])
def test_the_proxy_falsifies_an_answer(server: S3Directory, kind: str) -> None:
    """obstore refuses some of them; what it lets through is not what was asked for."""
    with Proxy(server.port, lambda request: Fault(kind, key="a/t-0/other.log")) as proxy:
        store = a_store(proxy.port)
        try:
            found = bytes(obstore.get_range(store, KEY, start=10, end=20))
        except BaseError:
            assert kind in ("short", "whole", "moved")
        else:
            expected = {"short": DATA[10:15], "swapped": DATA[::-1][10:20], "shifted": DATA[20:30]}
            assert found == expected.get(kind, DATA[10:15] + bytes([DATA[15] ^ 0x80]) + DATA[16:20])


def test_the_proxy_answers_what_was_answered_before(server: S3Directory) -> None:
    with Proxy(server.port) as proxy:
        store = a_store(proxy.port)
        proxy.remembering = True
        before = sum(len(page) for page in obstore.list(store, "a"))
        proxy.remembering = False
        proxy.plan = lambda request: Fault("stale")
        assert sum(len(page) for page in obstore.list(store, "a")) == before
        assert sum(len(page) for page in obstore.list(store, "many")) == 1201
