"""Jobs in an object store: adopted once, whatever dies meanwhile; a manifest is a stranger's, and is never believed."""

from __future__ import annotations

import copy
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kstore import Store
from kstore.errors import BackupError, ConfigError, KStoreError, StorageError
from kstore.objects import staged_objects
from kstore.objects.open_objects import open_objects
from tests.support.microbatches import Child, Fate
from tests.support.objectserver import BUCKET, Proxy, Request, S3Server, options
from tests.support.staging import leftovers
from tests.support.uploading import (
    TOPIC,
    change,
    keys_below,
    manifest_of,
    rows_of,
    stage_for,
    stored,
    upload_job,
    values,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.usefixtures("no_syncs"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    """A staging URL on this machine."""
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log directory with one record."""
    with Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("before")
        store.append("before", b"1")
    return tmp_path / "data"


def adopt(root: Path, url: str, **how: Any) -> Any:
    with Store.open(root, background=False) as store:
        return store.adopt(url, **how)


def is_refused(store: Store, url: str) -> bool:
    """Whether an adoption raises one of kstore's errors, with a text that can be shown."""
    try:
        store.adopt(url)
    except (KStoreError, ValueError) as error:
        return len(str(error)) < 2000
    return False


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_job_in_an_object_store_is_adopted_once(server: S3Server, root: Path) -> None:
    stage, storage = f"s3://{BUCKET}/once", options(server.port)
    url = upload_job(stage, storage)
    first = adopt(root, url, storage=storage)
    assert (first.records, first.offsets) == (200, {(TOPIC, 0): (0, 100), (TOPIC, 1): (0, 100)})
    assert adopt(root, url, storage=storage).duplicate
    assert stored(root) == values(2, 100)
    assert keys_below(stage, storage) == []
    assert leftovers(root) == []


def test_a_version_of_an_application_is_adopted_once(bucket: str, root: Path) -> None:
    urls = [upload_job(bucket, txn=("load", version)) for version in (2, 1, 2, 3)]
    assert [adopt(root, url).duplicate for url in urls] == [False, True, True, False]
    assert keys_below(bucket) == []
    with Store.open(root) as store, pytest.raises(ConfigError, match="those of the job"):
        store.adopt(urls[0], txn=("load", 9))


def test_large_files_are_sent_in_parts_and_become_segments(server: S3Server, root: Path) -> None:
    stage, storage = f"s3://{BUCKET}/large", options(server.port)
    made = stage_for(stage, storage)
    rows = rows_of(0, 600)
    wide = rows.set_column(1, "value", pa.array([bytes([number % 256]) * 40_000 for number in range(600)]))
    (first, second) = made.write([wide])
    assert first.bytes > 8 << 20
    with Store.open(root, background=False) as store:
        done = store.adopt([first, second], staging_dir=stage, storage=storage)
        assert done.records == 600
        assert [segment.size_bytes for segment in store.log(TOPIC, 0).segments] == [first.bytes, 0]
        last = store.log(TOPIC, 0).read(299)
        assert [record.value for record in last] == [bytes([598 % 256]) * 40_000]
        assert store.adopt([first, second], staging_dir=stage, storage=storage).duplicate
    assert keys_below(stage, storage) == []
    assert leftovers(root) == []


def test_objects_of_dead_attempts_go_with_their_job_and_others_stay(bucket: str, root: Path) -> None:
    made = stage_for(bucket)
    made.write([rows_of(0, 10)])  # an attempt that died before its driver knew of it
    (alive, other) = made.write([rows_of(0, 10)])
    job = Path(bucket.removeprefix("file://")) / made.job
    (job / "notes.txt").write_text("somebody's")
    with Store.open(root, background=False) as store:
        assert store.adopt([alive, other], staging_dir=bucket).records == 10
    assert keys_below(bucket) == [f"{made.job}/notes.txt"]


def test_jobs_without_a_manifest_are_removed_after_a_week(bucket: str) -> None:
    stage_for(bucket).write([rows_of(0, 10)])
    url = upload_job(bucket)
    week = staged_objects.STALE_MS + 60_000
    now = int(time.time() * 1000)
    with open_objects(bucket) as objects:
        assert staged_objects.remove_stale(objects, now_ms=now) == []
        assert len(staged_objects.remove_stale(objects, now_ms=now + week)) == 1
        assert {key.partition("/")[0] for key in keys_below(bucket)} == {url.rpartition("/")[2]}


def _row(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda manifest: change(manifest["rows"][0])


BAD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another version": lambda m: m.update(version=2),
    "another job": lambda m: m.update(job="0" * 32),
    "no rows": lambda m: m.pop("rows"),
    "an unknown field": lambda m: m.update(more=1),
    "a version without end": lambda m: m.update(application="a", application_version=2**63),
    "a key outside": _row(lambda row: row.update(attempt="../task-0-" + "0" * 32)),
    "a key below": _row(lambda row: row.update(attempt="task-0-" + "0" * 32 + "/x")),
    "an absolute key": _row(lambda row: row.update(attempt="/etc/task-0-" + "0" * 32)),
    "no attempt": _row(lambda row: row.update(attempt="manifest")),
    "a topic outside": _row(lambda row: row.update(topic="../x")),
    "an internal topic": _row(lambda row: row.update(topic="__consumer_offsets")),
    "a partition too many": _row(lambda row: row.update(partition=2)),
    "many partitions": _row(lambda row: row.update(partitions=2**31)),
    "more records": _row(lambda row: row.update(records=row["records"] + 1)),
    "fewer bytes": _row(lambda row: row.update(bytes=row["bytes"] - 1)),
    "a file that is too large": _row(
        lambda row: (row.update(bytes=2**31), row["segments"][0].__setitem__(2, 2**31)),
    ),
    "a longer segment": _row(
        lambda row: (row.update(bytes=row["bytes"] + 1), row["segments"][0].__setitem__(2, row["bytes"])),
    ),
    "a gap in the object": _row(lambda row: row["segments"][0].__setitem__(4, 1)),
    "another object": _row(lambda row: row["segments"][0].__setitem__(3, 7)),
    "another checksum": _row(lambda row: row["segments"][0].__setitem__(5, 7)),
    "other offsets": _row(
        lambda row: (row.update(records=3), row["segments"][0].__setitem__(1, 3)),
    ),
    "a first offset": _row(lambda row: row["segments"][0].__setitem__(0, 1)),
    "a row twice": lambda m: m["rows"].append(m["rows"][0]),
    "text as a number": _row(lambda row: row.update(partition="0")),
    "settings that are none": _row(lambda row: row.update(config="[1]")),
}


@pytest.mark.parametrize("name", BAD)
def test_a_manifest_that_no_job_wrote_changes_nothing(bucket: str, root: Path, name: str) -> None:
    url = upload_job(bucket)
    before, keys = content(root), keys_below(bucket)
    manifest = manifest_of(url)
    BAD[name](manifest)
    change(url, manifest)
    with Store.open(root, background=False) as store, pytest.raises((BackupError, ValueError, StorageError)) as caught:
        store.adopt(url)
    assert isinstance(caught.value, KStoreError | ValueError)
    assert stored(root) == []
    assert {name: data for name, data in content(root).items() if name in before} == before
    assert leftovers(root) == []
    assert keys_below(bucket) == keys


def test_any_value_in_any_field_of_a_jobs_manifest_is_refused_clearly(bucket: str, root: Path) -> None:
    """Or is harmless: whatever is accepted is appended as it was staged."""
    strange = [None, True, -1, 2**64, 1.5, "", "..", "\0", "\udc80", "x" * 5000, [], [[]], {"a": 1}]
    url = upload_job(bucket)
    good = manifest_of(url)
    places: list[tuple[str, ...]] = [(name,) for name in good] + [("rows", name) for name in good["rows"][0]]
    with Store.open(root, background=False) as store:
        for place in places:
            for value in strange:
                bad = copy.deepcopy(good)
                (bad["rows"][0] if len(place) > 1 else bad)[place[-1]] = value
                if bad == good or (place == ("rows",) and value == []):
                    continue
                if place[-1] in ("config", "application") and value is None:
                    continue
                change(url, bad)
                if is_refused(store, url):
                    continue
                assert place[-1] in ("max_timestamp", "batches", "task", "application_version")
                url = upload_job(bucket)
                good = manifest_of(url)
        for text in (b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"version": 1, "version": 1}'):
            change(url, text)
            with pytest.raises(BackupError, match=r"manifest\.json"):
                store.adopt(url)


def test_objects_that_are_missing_swapped_or_cut_change_nothing(bucket: str, root: Path) -> None:
    url = upload_job(bucket)
    job = Path(url.removeprefix("file://"))
    one, two = sorted(job.glob("task-*"))
    first, second = one.read_bytes(), two.read_bytes()
    flipped = bytearray(first)
    flipped[len(first) // 2] ^= 1
    damaged = [(first[:-1], second), (first + b"x", second), (second[: len(first)], second), (bytes(flipped), second)]
    for new in damaged:
        one.write_bytes(new[0])
        two.write_bytes(new[1])
        with pytest.raises(BackupError, match=r"task-0-[0-9a-f]{32}\.0 in .* manifest says"):
            adopt(root, url)
        assert (stored(root), leftovers(root)) == ([], [])
    one.unlink()
    with pytest.raises(BackupError, match=f"{one.name} in .* is missing"):
        adopt(root, url)
    one.write_bytes(first)
    assert adopt(root, url).records == 200


def test_bytes_that_fit_the_manifest_and_are_no_batches_change_nothing(bucket: str, root: Path) -> None:
    from kstore._core import crc32c

    url = upload_job(bucket)
    (path, *_) = Path(url.removeprefix("file://")).glob("task-*")
    manifest = manifest_of(url)
    data = bytearray(path.read_bytes())
    data[70] ^= 1  # in a record: the checksum of its batch is wrong
    path.write_bytes(data)
    for row in manifest["rows"]:
        for segment in row["segments"] if row["attempt"] == path.name.removesuffix(".0") else ():
            segment[5] = crc32c(bytes(data[segment[4] : segment[4] + segment[2]]))
    change(url, manifest)
    with pytest.raises(BackupError, match="has no sound batch at 0"):
        adopt(root, url)
    assert (stored(root), leftovers(root)) == ([], [])


def test_more_bytes_than_the_disk_has_are_refused_before_any_is_fetched(bucket: str, root: Path) -> None:
    url = upload_job(bucket, tasks=1)
    manifest = manifest_of(url)
    size, count = 2**31 - 1, 4000
    manifest["rows"] = manifest["rows"][:1]
    row = manifest["rows"][0]
    row.update(records=count, bytes=size * count)
    row["segments"] = [[n, n + 1, size, 0, n * size, 0] for n in range(count)]
    change(url, manifest)
    (path,) = Path(url.removeprefix("file://")).glob("task-*")
    os.truncate(path, size * count)  # a hole of eight terabytes
    with pytest.raises(StorageError, match="are free"):
        adopt(root, url)
    assert leftovers(root) == []


def test_rows_may_lead_only_below_the_staging_url_that_the_caller_names(bucket: str, root: Path) -> None:
    made = stage_for(bucket)
    rows = made.write([rows_of(0, 10)])
    with Store.open(root, background=False) as store:
        with pytest.raises(ConfigError, match="staging_dir must name its URL"):
            store.adopt(rows)
        with pytest.raises(ConfigError, match="is not JOB/task-"):
            store.adopt(rows, staging_dir=f"{bucket}/deeper")
        with pytest.raises(ConfigError, match="all must be of one job"):
            store.adopt([*rows, *stage_for(bucket).write([rows_of(1, 10)])], staging_dir=bucket)
        assert store.adopt(rows, staging_dir=bucket).records == 10


@pytest.mark.parametrize("url", ["s3://", "s3://bucket", "ftp://x/y/z", "memory://x/y", "s3://b/../x", "s3://b/x?y=z"])
def test_what_is_no_url_of_a_job_is_refused(root: Path, url: str) -> None:
    with Store.open(root, background=False) as store, pytest.raises(ConfigError, match=r"is no URL|is not the|allowed"):
        store.adopt(url)


def test_an_adoption_that_is_killed_anywhere_is_repeated_without_loss(
    bucket: str, tmp_path: Path, rng: random.Random
) -> None:
    """The process is killed before one of its calls that change a file."""
    made = 0
    while True:
        root = tmp_path / f"data-{made}"
        url = upload_job(bucket, count=6)

        def life(told: int, at: int = made, root: Path = root, url: str = url) -> None:
            Fate(at, told).install()
            adopt(root, url)

        ended = Child(life).end()[0]
        done = adopt(root, url)
        assert stored(root) == values(2, 6), ended
        assert (keys_below(bucket), leftovers(root)) == ([], []), ended
        if ended.code == 0:
            assert done.duplicate
            break
        assert ended.code == -signal.SIGKILL
        made += rng.randint(5, 15)
    assert made > 20


def test_a_command_that_is_killed_at_any_request_is_repeated_without_loss(server: S3Server, tmp_path: Path) -> None:
    stage = f"s3://{BUCKET}/killed"
    plain = options(server.port)
    for number in (1, 3, 4, 6):  # the manifest, the listing, an object, what is deleted
        root, url = tmp_path / f"data-{number}", upload_job(stage, plain, count=6)
        processes: list[subprocess.Popen[bytes]] = []

        def kill(request: Request, at: int = number, of: list[subprocess.Popen[bytes]] = processes) -> None:
            if request.number == at:
                of[0].kill()
                of[0].wait()

        with Proxy(server.port, kill) as proxy:
            settings = {**options(proxy.port), "allow_http": "true"}
            settings.pop("client_options")
            command = [sys.executable, "-m", "kstore", "adopt", url, "--to", str(root)]
            command += [f"--option={name}={value}" for name, value in settings.items()]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            code = processes[0].wait()
        assert adopt(root, url, storage=plain).duplicate in (True, False)
        assert stored(root) == values(2, 6)
        assert (keys_below(stage, plain), leftovers(root)) == ([], [])
        assert code == -signal.SIGKILL
