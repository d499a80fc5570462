"""The door to object stores: the same promises of a directory, of memory and of a real S3 server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.copies.backups.source_partition import ChangedMeanwhileError, Part
from kstore.errors import BackupError, ConfigError
from kstore.objects import object_store as objects_module
from kstore.objects.local_objects import LocalObjects
from kstore.objects.object_store import ObjectChangedError, Objects
from kstore.objects.open_objects import open_objects, url_of
from tests.support.objectserver import BUCKET, S3Server, options

KEY = "orders-0/00000000000000000000.log"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


@pytest.fixture(params=["directory", "file URL", "memory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Objects]:
    if request.param == "s3":
        server = request.getfixturevalue("server")
        url = f"s3://{BUCKET}/{tmp_path.name}"
        found = open_objects(url, options(server.port))
    else:
        url = {
            "directory": str(tmp_path / "backup"),
            "file URL": f"file://{tmp_path}/backup%20of%20mine",
            "memory": f"memory://{tmp_path.name}",
        }[request.param]
        found = open_objects(url, create=True)
    with found:
        yield found


def test_an_object_is_new_or_not_written(objects: Objects) -> None:
    assert objects.read(KEY) is None
    assert objects.size(KEY) is None
    assert objects.put_new(KEY, b"one")
    assert not objects.put_new(KEY, b"two")
    found = objects.read(KEY)
    assert found is not None
    assert found.data == b"one"
    assert objects.size(KEY) == 3
    assert objects.requests["put"] == 2
    assert objects.sent_bytes == 6


def test_a_manifest_is_replaced_only_where_it_is_the_one_that_was_read(objects: Objects) -> None:
    first = objects.replace("kstore-backup.json", b"1", None)
    with pytest.raises(ObjectChangedError):
        objects.replace("kstore-backup.json", b"x", None)
    second = objects.replace("kstore-backup.json", b"2", first)
    with pytest.raises(ObjectChangedError):
        objects.replace("kstore-backup.json", b"x", first)
    read = objects.read("kstore-backup.json")
    assert read == (b"2", second)
    objects.delete(["kstore-backup.json"])
    with pytest.raises(ObjectChangedError):
        objects.replace("kstore-backup.json", b"x", second)


def test_of_many_writers_at_once_one_replaces_the_manifest(objects: Objects) -> None:
    tag = objects.replace("kstore-backup.json", b"0", None)
    done: list[int] = []

    def write(number: int) -> None:
        try:
            objects.replace("kstore-backup.json", b"%d" % number, tag)
        except ObjectChangedError:
            return
        done.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = objects.read("kstore-backup.json")
    assert read is not None
    assert [b"%d" % number for number in done] == [read.data]


def test_a_large_object_goes_and_comes_in_parts(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [bytes([number]) * (5 << 20) for number in range(3)]
    whole = b"".join(parts)
    objects.put_parts(KEY, iter(parts))
    assert objects.size(KEY) == len(whole)
    assert b"".join(objects.stream(KEY, 0, len(whole))) == whole
    assert b"".join(objects.stream(KEY, 3, len(whole) - 7)) == whole[3:-4]
    assert objects.read_range(KEY, (5 << 20) - 1, 2) == b"\0\1"
    assert objects.read_range(KEY, len(whole) - 1, 100) == b"\2"
    assert objects.sent_bytes == len(whole)


def test_an_upload_that_fails_leaves_no_object(objects: Objects) -> None:
    def parts() -> Iterator[bytes]:
        yield b"x" * 100
        raise OSError("the file went away")

    with pytest.raises(OSError, match="the file went away"):
        objects.put_parts(KEY, parts())
    assert objects.read(KEY) is None
    assert list(objects.list()) == []


def test_objects_are_listed_and_deleted(objects: Objects) -> None:
    keys = [KEY, "orders-0/00000000000000000000.index", "kstore-backup-00000000000000000001.round"]
    for key in keys:
        objects.put_new(key, b"12345")
    assert sorted((info.key, info.size) for info in objects.list()) == sorted((key, 5) for key in keys)
    objects.delete([*keys[:2], "orders-1/00000000000000000000.log"])
    assert [(info.key, info.size) for info in objects.list()] == [(keys[2], 5)]


def test_an_object_that_is_not_there_is_named(objects: Objects) -> None:
    with pytest.raises(BackupError, match=KEY):
        objects.read_range(KEY, 0, 1)
    with pytest.raises(BackupError, match=KEY):
        list(objects.stream(KEY, 0, 1))


def test_an_object_that_is_too_large_is_refused(objects: Objects) -> None:
    objects.put_new(KEY, b"12345")
    assert objects.read(KEY, most_bytes=5) is not None
    with pytest.raises(BackupError, match=r"5 bytes|larger than"):
        objects.read(KEY, most_bytes=4)


@pytest.mark.parametrize("key", ["../x", "a/../../x", "a/b/c", "/etc/x", "", "a//b", "./x", "a\0b"])
def test_a_name_that_leads_out_of_the_directory_is_refused(tmp_path: Path, key: str) -> None:
    local = LocalObjects(str(tmp_path / "backup"), create=True)
    with pytest.raises(BackupError, match="no name of an object"):
        local.put_new(key, b"")
    assert not (tmp_path / "x").exists()


def test_a_link_in_a_backup_is_not_followed(tmp_path: Path) -> None:
    local = LocalObjects(str(tmp_path / "backup"), create=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "backup/orders-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackupError, match="orders-0"):
        local.put_new(KEY, b"x")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="there is no directory"):
        open_objects(str(tmp_path / "backup"))
    assert not (tmp_path / "backup").exists()


def test_options_of_the_http_client_stand_beside_those_of_the_object_store(server: S3Server) -> None:
    given = options(server.port)
    del given["client_options"]
    found = open_objects(f"s3://{BUCKET}/flat", {**given, "allow_http": "true", "timeout": "20s"})
    found.put_new("kstore-backup.json", b"{}")
    assert found.read("kstore-backup.json") is not None


def test_a_bucket_that_is_not_there_is_told(server: S3Server) -> None:
    found = open_objects("s3://elsewhere/prefix", options(server.port))
    for act in (
        lambda: found.read(KEY),
        lambda: found.put_new(KEY, b""),
        lambda: found.replace(KEY, b"", None),
        lambda: found.put_parts(KEY, [b"x"]),
    ):
        with pytest.raises(BackupError, match="there is no such bucket"):
            act()


def test_missing_credentials_are_told(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    given = {**options(server.port), "retry_config": {"max_retries": 0}}
    del given["access_key_id"], given["secret_access_key"]
    # Where nothing else is said, credentials are asked of the machine's own metadata service.
    given["metadata_endpoint"] = "http://127.0.0.1:9"
    with pytest.raises(BackupError, match="the credentials, or there are none"):
        open_objects(f"s3://{BUCKET}/prefix", given).read(KEY)


def test_urls_of_other_schemes_and_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(BackupError, match="begins with 'ftp'"):
        open_objects("ftp://host/path")
    with pytest.raises(BackupError, match="no file on this machine"):
        open_objects("file://host/path")
    with pytest.raises(ConfigError, match="cannot be opened with these options"):
        open_objects("s3://bucket/prefix", {"no_such_option": 1})
    with pytest.raises(TypeError, match="must be a str"):
        open_objects(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("endpoint", ["no-url", "", "http://", "http://a b"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="the URL of a server is needed"):
        open_objects(f"s3://{BUCKET}/prefix", {**options(9), "endpoint": endpoint})


def test_a_panic_of_obstore_is_an_error_about_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: value for name, value in options(9).items() if name != "endpoint"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no-url")
    objects = open_objects(f"s3://{BUCKET}/prefix", given)
    for request in (
        lambda: objects.read(KEY),
        lambda: list(objects.list()),
        lambda: objects.put_new(KEY, b""),
        lambda: objects.put_parts(KEY, [b"a", b"b"]),
        lambda: objects.replace(KEY, b"", None),
        lambda: objects.delete([KEY]),
    ):
        with pytest.raises(ConfigError, match="an endpoint begins with"):
            request()


def test_an_endpoint_without_tls_needs_an_option() -> None:
    given = {name: value for name, value in options(9).items() if name != "client_options"}
    with pytest.raises(BackupError, match="allow_http"):
        open_objects(f"s3://{BUCKET}/prefix", given).read(KEY)


def test_a_url_is_shown_without_credentials() -> None:
    assert open_objects("memory://user:secret@name").url == "memory://name"
    assert open_objects("memory://user@name").url == "memory://name"


def test_a_container_in_a_url_is_no_user() -> None:
    url = "abfss://container@account.dfs.core.windows.net/prefix"
    assert open_objects(url, {"account_key": "c2VjcmV0"}).url == url
    assert open_objects(url.replace("@", ":secret@"), {"account_key": "c2VjcmV0"}).url == url


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"pip install 'kstore\[backup\]'"):
        open_objects("s3://bucket/prefix")
    assert open_objects(str(tmp_path)).url == str(tmp_path)  # a directory needs no extra


def test_objects_that_are_open_are_taken_as_they_are(tmp_path: Path) -> None:
    found = open_objects(str(tmp_path))
    assert open_objects(found) is found
    assert objects_module.PART_BYTES == 8 << 20


def test_parts_go_to_a_directory_only_where_nothing_is(tmp_path: Path) -> None:
    local = LocalObjects(str(tmp_path / "backup"), create=True)
    assert local.parts_are_new
    assert local.put_new_parts(KEY, [b"one", b"two"])
    assert not local.put_new_parts(KEY, [b"x"])
    found = local.read(KEY)
    assert found is not None
    assert found.data == b"onetwo"
    assert len(list(local.list())) == 1


def test_parts_to_an_object_store_are_announced_instead(tmp_path: Path) -> None:
    memory = open_objects(f"memory://{tmp_path.name}")
    assert not memory.parts_are_new
    with pytest.raises(NotImplementedError):
        memory.put_new_parts(KEY, [b"one"])


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/prefix/", "memory://there", "file:///tmp/x", "some/where"])
def test_the_url_of_objects_is_known_without_opening_them(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = url.replace("/tmp", str(tmp_path))
    with open_objects(url, create=True) as objects:
        assert url_of(url) == objects.url == url_of(objects)
    assert "secret" not in url_of(url)


def test_an_object_of_a_file_that_has_become_shorter_is_not_written(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    objects = LocalObjects(str(tmp_path / "objects"), create=True)
    with source.open("rb") as file:
        assert objects.put_new_parts("whole", [Part(file.fileno(), str(source), 2, 10)])
        with pytest.raises(ChangedMeanwhileError, match="has 10 of the 11 bytes"):
            objects.put_new_parts("shorter", [Part(file.fileno(), str(source), 2, 11)])
        part = Part(file.fileno(), str(source), 2, 11)
        with pytest.raises(ChangedMeanwhileError, match="has 10 of the 11 bytes"):
            list(part.read())
    assert objects.read_range("whole", 0, 20) == b"23456789"
    assert [path.name for path in (tmp_path / "objects").iterdir() if path.is_file() and "lock" not in path.name] == [
        "whole"
    ]
