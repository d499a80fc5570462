"""Backups on a real S3 server, over a network that fails requests before, in and after the server's work."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

import kstore
from kstore.copies.backups.backup import Backup
from kstore.copies.backups.backup_source import StoreSource
from kstore.objects.open_objects import open_objects
from tests.conftest import ManualClock
from tests.support import backupkills
from tests.support.backedup import Picture, World, picture, picture_of
from tests.support.backuplife import check_restored
from tests.support.objectserver import BUCKET, Fault, Proxy, Request, S3Server, options

STATUS = (500, 503, 429)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server with an empty bucket, for the tests of this file."""
    with S3Server() as started:
        yield started


def a_store(port: int) -> S3Store:
    return S3Store(BUCKET, **options(port), retry_config={"max_retries": 0})  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("kind", "before_release", "after_release"),
    [
        ("refused", False, False),
        ("status", False, False),
        ("lost", True, True),
        ("late", False, True),
    ],
)
def test_the_proxy_fails_a_request_before_or_after_the_server_has_done_it(
    server: S3Server, kind: str, before_release: bool, after_release: bool
) -> None:
    key = f"proxy/{kind}"
    direct = a_store(server.port)
    with Proxy(server.port, lambda request: Fault(kind)) as proxy:
        through = a_store(proxy.port)
        with pytest.raises(BaseError):
            obstore.put(through, key, b"value", mode="create")
        assert [request[:] for request in proxy.seen] == [(0, "create", key)]
        assert is_there(direct, key) == before_release
        assert proxy.release() == (kind == "late")
        assert is_there(direct, key) == after_release
        proxy.plan = None
        if after_release:
            with pytest.raises(AlreadyExistsError):
                obstore.put(through, key, b"other", mode="create")
        assert proxy.counts() == ({"create": 2} if after_release else {"create": 1})


def test_the_proxy_cuts_an_answer(server: S3Server) -> None:
    obstore.put(a_store(server.port), "proxy/cut", b"value" * 100)
    with Proxy(server.port, lambda request: Fault("cut")) as proxy, pytest.raises(BaseError):
        bytes(obstore.get(a_store(proxy.port), "proxy/cut").bytes())


# --- backups ----------------------------------------------------------------------------------------------------------


def reached(port: int, *, retries: int = 0) -> dict[str, Any]:
    """Options of a backup for the server on this port."""
    quick = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=5), "base": 2}
    retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=10), "backoff": quick}
    return {**options(port), "retry_config": retry}


@pytest.fixture
def url(server: S3Server, request: pytest.FixtureRequest) -> str:
    """A prefix that no other test has."""
    return f"s3://{BUCKET}/{request.node.name.partition('[')[0]}"


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.parametrize("retries", [0, 3])
def test_a_network_that_fails_one_request_in_twenty_only_delays_a_backup(
    server: S3Server, url: str, tmp_path: Path, clock: ManualClock, rng: random.Random, retries: int
) -> None:
    """Refused, lost, cut short, answered with 500, 503 and 429; with and without retries of obstore's own."""
    url += f"/{retries}"

    def plan(request: Request) -> Fault | None:
        if rng.random() >= 0.05:
            return None
        return rng.choice((*map(Fault, ("refused", "lost", "cut", "late")), *(Fault("status", n) for n in STATUS)))

    world = World(tmp_path / "data", rng, clock)
    with Proxy(server.port) as proxy:
        with closing_whatever_fails(
            kstore.backup(world.store, url, every=3600, options=reached(proxy.port, retries=retries))
        ) as backup:
            proxy.plan = plan
            for _ in range(6):
                for _ in range(10):
                    world.step()
                again(backup.flush)
            proxy.plan = None
            backup.flush()
        expected = picture(world.store)
        proxy.plan = plan
        through = reached(proxy.port, retries=retries)
        again(lambda: kstore.restore(url, tmp_path / "restored", options=through))
        proxy.plan = None
        proxy.release()
    world.close()
    assert expected.unlike(picture_of(tmp_path / "restored")) == []
    kstore.restore(url, tmp_path / "once more", options=reached(server.port))
    assert expected.unlike(picture_of(tmp_path / "once more")) == []


def again(do: Callable[[], object]) -> None:
    """Do it until it does not fail."""
    for _ in range(100):
        try:
            do()
        except kstore.BackupFencedError:
            raise
        except kstore.BackupError:
            continue
        return
    raise AssertionError("failed 100 times in a row")


@contextlib.contextmanager
def closing_whatever_fails(backup: kstore.Backup) -> Iterator[kstore.Backup]:
    yield backup
    backup.close()


@pytest.mark.usefixtures("no_syncs")
def test_a_round_is_two_requests_for_any_number_of_changed_partitions(
    server: S3Server, url: str, tmp_path: Path
) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store, Proxy(server.port) as proxy:
        store.create_topic("orders", 40)
        for number in range(40):
            store.append("orders", b"first", partition=number)
        how: Any = {"every": 3600, "window": 100, "options": reached(proxy.port), "background": False}
        with Backup(StoreSource(store), url, **how) as backup:
            backup.flush()
            for changed in (1, 40, 0):
                proxy.seen.clear()
                for number in range(changed):
                    store.append("orders", b"value", partition=number)
                backup.flush()
                assert proxy.counts() == ({"create": 1, "update": 1} if changed else {})


@pytest.mark.usefixtures("no_syncs")
def test_a_process_killed_amid_requests_to_a_server_leaves_what_the_next_continues(
    server: S3Server, url: str, tmp_path: Path, rng: random.Random
) -> None:
    """The kill comes while the server has the request: it is done, or it never was."""
    home = tmp_path / "home"
    home.mkdir()
    with (
        subprocess.Popen(
            [sys.executable, backupkills.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
        Proxy(server.port) as proxy,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        kills = 0
        last: list[Picture] = []
        begun: list[Picture] = []
        for number in range(12):
            proxy.seen.clear()
            at, kind = rng.randrange(14), rng.choice(("refused", "lost"))

            def plan(request: Request, at: int = at, kind: str = kind) -> Fault | None:
                if request.number != at:
                    return None
                os.kill(int((home / "pid").read_text()), signal.SIGKILL)
                return Fault(kind)

            proxy.plan = plan
            order = {"home": str(home), "url": url, "options": options(proxy.port), "seed": url, "life": number,
                     "at": -1, "done": False, "rounds": 2}  # fmt: skip
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            ended = json.loads(process.stdout.readline())
            proxy.plan = None
            assert not (home / "fault").exists(), (home / "fault").read_text()
            kills += ended["killed"]
            acknowledged = backupkills.pictures(home, backupkills.ACKNOWLEDGED)
            if acknowledged != last:
                last, begun = acknowledged, []
            # The request of a process that was killed may be done when the next one runs: all rounds since count.
            begun += backupkills.pictures(home, backupkills.UNDER_WAY)
            if acknowledged:
                with open_objects(url, reached(server.port)) as objects:
                    check_restored(objects, tmp_path / "restored", acknowledged, begun)
        process.stdin.close()
    assert kills > 0


def test_a_bucket_that_is_not_there_is_named(server: S3Server, tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data") as store:
        store.create_topic("orders")
        with (
            pytest.raises(kstore.BackupError, match="no such bucket"),
            kstore.backup(store, "s3://missing/prefix", every=3600, options=reached(server.port)) as backup,
        ):
            backup.flush()
    with pytest.raises(kstore.BackupError, match="no such bucket"):
        kstore.restore("s3://missing/prefix", tmp_path / "restored", options=reached(server.port))


def test_a_file_of_one_part_is_one_request(server: S3Server) -> None:
    """An index or a snapshot costs no multipart upload, which is three requests at least."""
    with Proxy(server.port) as proxy, open_objects(f"s3://{BUCKET}/parts", options(proxy.port)) as objects:
        for parts, requests in (([], 1), ([b"x"], 1), ([b"x", b"y"], 3)):
            proxy.seen.clear()
            objects.requests.clear()
            objects.put_parts("orders-0/00000000000000000000.log", parts)
            assert len(proxy.seen) == objects.requests["put"] == requests
            found = objects.read("orders-0/00000000000000000000.log")
            assert found is not None
            assert found.data == b"".join(parts)


def is_there(store: S3Store, key: str) -> bool:
    return any(found["path"] == key for chunk in obstore.list(store, "proxy") for found in chunk)
