"""Files of a directory that comes from a stranger: each field of each file that kstore reads, wrong in every way.

Whatever the files say, a call gives an answer or an error of kstore's that names the file; nothing outside of the roots
and of their staging directories is made, changed or removed. Links and devices are in test_links.py.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore import KStoreError, Log, StorageError, Store, UnknownTopicOrPartitionError, cli
from kstore import spark as ks
from kstore.errors import ConfigError, InvalidTopicError, NotLeaderError
from kstore.files import gap_files, json_file, load_files
from kstore.store.bulk_loads.commit import BulkLoads
from kstore.store.bulk_loads.load_manifest import Staged
from kstore.tools.check.repair_root import plan_root
from kstore.tools.check.verify import verify
from tests.support.staging import leftovers, records, stage_task

DEEP = "[" * 100_000

ODD: list[Any] = [
    None,
    True,
    -2,
    2**63,
    10**4000,
    1.5,
    1e308,
    "",
    "x",
    "..",
    "../../outside",
    "/",
    "/etc",
    "/proc/self/fd/0",
    "a\0b",
    "/a\0b",
    "\ud800",
    "/\ud800",
    "x" * 100_000,
    "/" + "x" * 100_000,
    [],
    [[]],
    [None],
    {},
    {"x": 1},
]
"""Values for any field; a field may take one of them by chance, as long as nothing else happens."""


def ids(value: object) -> str:
    return f"{type(value).__name__}-{value!a:.20}"


@pytest.fixture(autouse=True)
def fast(no_syncs: None) -> None:
    pass


class World:
    """A directory with two roots, `one` and `two`, a neighbour and an outside that must stay as they are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = path / "one"
        self.outside = path / "outside" / "job" / "task-0-x"
        (self.outside / "t-0").mkdir(parents=True)
        (self.outside / "t-0" / "00000000000000000000.log").write_bytes(b"precious")
        (path / "other.kstore-staging" / "job" / "task-1").mkdir(parents=True)
        with Store.open(self.root, background=False) as store:
            store.create_topic("t", config={"retention.ms": "-1"})
            store.append("t", b"first", partition=0)

    def tree(self) -> dict[str, bytes | None]:
        """All there is outside of the root and its staging directory."""
        own = (str(self.root), f"{self.root}{load_files.STAGING}")
        return {
            str(path): path.read_bytes() if path.is_file() else None
            for path in self.path.rglob("*")
            if not f"{path}/".startswith(tuple(f"{each}/" for each in own))
        }

    def use(self) -> None:
        """Everything that reads the files of a root and its partition."""
        for mode in ("r", "a"):
            with Store.open(self.root, mode, background=False) as store:  # type: ignore[arg-type]
                for topic in store.topics:
                    store.topic_config(topic)
                    for number in store.partitions(topic):
                        list(store.log(topic, number).read())
                if mode == "a":
                    store.append("t", b"more", partition=0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "world")
    before = made.tree()
    yield made
    assert made.tree() == before


def outcome(act: Callable[[], object]) -> KStoreError | None:
    """The error of kstore's that a call ends with, None without one; every other error fails the test."""
    try:
        act()
    except KStoreError as error:
        text = str(error)
        assert len(text) < 3000, len(text)
        return error
    return None


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value in a JSON document."""
    yield at
    if isinstance(value, dict):
        for name, each in value.items():
            yield from paths_of(each, (*at, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from paths_of(each, (*at, number))


def changed(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """A document with another value at one place."""
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = changed(copy[at[0]], at[1:], new)
    return copy


def without(value: Any, at: tuple[Any, ...]) -> Any:
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(at) == 1:
        del copy[at[0]]
    else:
        copy[at[0]] = without(copy[at[0]], at[1:])
    return copy


# kstore-commit.json


ROOT = "/kstore-test/one"  # stands for the root's path in what is listed before there is a root

COMMIT: dict[str, Any] = {
    "version": 1,
    "load": "0123",
    "primary": ROOT,
    "roots": [ROOT],
    "root": ROOT,
    "decides": True,
    "application": "a",
    "application_version": 1,
    "directories": [f"{ROOT}.kstore-staging/job/task-0-x"],
    "shares": [
        {
            "root": ROOT,
            "topic": "t",
            "partition": 0,
            "renames": True,
            "leader_epoch": 0,
            "segments": [
                {
                    "directory": f"{ROOT}.kstore-staging/job/task-0-x/t-0",
                    "staged_base": 0,
                    "bytes": 100,
                    "base_offset": 1,
                    "next_offset": 2,
                    "first_crc": 1,
                }
            ],
        }
    ],
}


def put_commit(world: World, content: Any) -> Path:
    path = world.root / load_files.COMMIT_FILE
    path.write_text(json.dumps(content).replace(ROOT, str(world.root)))
    return path


@pytest.mark.parametrize("at", list(paths_of(COMMIT)), ids=lambda at: ".".join(map(str, at)) or "all")
def test_any_value_in_any_field_of_a_commit_record_touches_nothing_outside(world: World, at: tuple[Any, ...]) -> None:
    outside = str(world.outside)
    for new in [*ODD, outside, f"{outside}/t-0", f"{world.root}.kstore-staging/job/../../../outside/job/task-0-x"]:
        path = put_commit(world, changed(COMMIT, at, new))
        error = outcome(world.use)
        assert (
            error is None or str(path) in str(error) or load_files.COMMIT_FILE in str(error) or "staged" in str(error)
        )
        outcome(lambda: Log.open(world.root / "t-0").close())
        outcome(lambda: verify([world.root]))
        outcome(lambda: plan_root(str(world.root)))
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("at", [at for at in paths_of(COMMIT) if at and isinstance(at[-1], str)], ids=str)
def test_a_field_that_is_missing_from_a_commit_record_is_named(world: World, at: tuple[Any, ...]) -> None:
    path = put_commit(world, without(COMMIT, at))
    error = outcome(world.use)
    assert isinstance(error, StorageError)
    assert f"{at[-1]} is missing" in str(error)
    assert error.filename == str(path)


@pytest.mark.parametrize("at", [(), ("shares", 0), ("shares", 0, "segments", 0)], ids=str)
def test_a_field_that_this_version_does_not_know_is_refused(world: World, at: tuple[Any, ...]) -> None:
    content: Any = COMMIT
    for each in at:
        content = content[each]
    put_commit(world, changed(COMMIT, at, {**content, "more": 1}))
    with pytest.raises(StorageError, match="'more' is no field of this version"):
        world.use()


@pytest.mark.parametrize(
    ("at", "value", "named"),
    [
        (("directories",), ["{outside}"], "directories[0]"),
        (("directories",), ["{world}/other.kstore-staging/job/task-1"], "directories[0]"),
        (("directories",), ["{root}.kstore-staging/job/../../../outside/job/task-0-x"], "directories[0]"),
        (("directories",), ["{root}.kstore-staging/job"], "directories[0]"),
        (("directories",), ["{root}.kstore-staging/job/t-0"], "directories[0]"),
        (("directories",), ["{root}.kstore-staging/job/task-0-x/t-0"], "directories[0]"),
        (("directories",), ["{root}/t-0"], "directories[0]"),
        (("directories",), ["outside/job/task-0-x"], "directories[0]"),
        (("directories",), ["/a\0b"], "directories[0]"),
        (("directories",), ["/\ud800"], "directories[0]"),
        (("shares", 0, "segments", 0, "directory"), "{outside}/t-0", "shares[0].segments[0].directory"),
        (("shares", 0, "segments", 0, "directory"), "{root}.kstore-staging/job/task-0-x", "segments[0].directory"),
        (("shares", 0, "segments", 0, "directory"), "{root}.kstore-staging/job/task-0-x/t-1", "segments[0].directory"),
        (("shares", 0, "segments", 0, "first_crc"), 2**32, "shares[0].segments[0].first_crc"),
        (("shares", 0, "segments", 0, "next_offset"), 1, "shares[0].segments[0].next_offset"),
        (("shares", 0, "topic"), "../../outside/x", "shares[0].topic"),
        (("shares", 0, "topic"), "..", "shares[0].topic"),
        (("shares", 0, "partition"), -1, "shares[0].partition"),
        (("primary",), "{world}/outside", "primary"),
    ],
)  # fmt: skip
def test_a_commit_record_that_leads_elsewhere_is_refused_with_its_field(
    world: World, at: tuple[Any, ...], value: Any, named: str
) -> None:
    text = json.dumps(value).replace("{root}", str(world.root)).replace("{world}", str(world.path))
    path = put_commit(world, changed(COMMIT, at, json.loads(text.replace("{outside}", str(world.outside)))))
    for _ in range(2):  # and it stays
        with pytest.raises(StorageError) as error:
            Store.open(world.root, background=False)
        assert named in str(error.value)
        assert error.value.filename == str(path)
    assert cli.main(["repair", "--yes", str(world.root)]) in (0, 1)
    assert cli.main(["retain", str(world.root)]) == 1


def test_roots_that_the_caller_did_not_name_get_no_record_and_lose_none(world: World) -> None:
    for name in ("outside", "other.kstore-staging"):
        (world.path / name / load_files.COMMIT_FILE).write_text("{}")
    before = world.tree()
    put_commit(world, {**COMMIT, "shares": [], "directories": [], "roots": [ROOT, str(world.path / "outside")]})
    with Store.open(world.root, background=False) as store:
        assert store.adopt([], txn=("a", 1)).duplicate
    assert world.tree() == before
    for name in ("outside", "other.kstore-staging"):
        (world.path / name / load_files.COMMIT_FILE).unlink()


@pytest.mark.parametrize("at", ["", "/job", "/job/task-0-x", "/job/task-0-x/t-0"])
def test_a_link_on_the_way_to_staged_files_is_not_followed(world: World, at: str) -> None:
    link = Path(f"{world.root}.kstore-staging{at}")
    link.parent.mkdir(parents=True, exist_ok=True)
    target = {"": world.path / "outside", "/job": world.path / "outside" / "job"}
    link.symlink_to(target.get(at, world.outside if at != "/job/task-0-x/t-0" else world.outside / "t-0"))
    put_commit(world, COMMIT)
    with pytest.raises(StorageError, match="a symbolic link is here") as error:
        world.use()
    assert error.value.filename == str(link)
    put_commit(world, {**COMMIT, "shares": []})
    if at != "/job/task-0-x/t-0":
        with pytest.raises(StorageError, match="a symbolic link is here"):
            world.use()
    else:  # it is removed, and what it leads to is not
        world.use()
        assert not link.is_symlink()


# A manifest


def row(world: World, **changes: Any) -> Staged:
    fields: dict[str, Any] = {
        "job": "job", "directory": str(world.outside), "task": 0, "topic": "t", "partition": 0, "partitions": 1,
        "records": 1, "batches": 1, "bytes": 8, "max_timestamp": 1, "segments": "[[0, 1, 8]]",
    }  # fmt: skip
    return Staged(**{**fields, **changes})


@pytest.mark.parametrize("done", [False, True], ids=["new", "done"])
@pytest.mark.parametrize("as_mapping", [False, True])
def test_a_manifest_that_names_another_directory_removes_nothing(world: World, done: bool, as_mapping: bool) -> None:
    with Store.open(world.root, background=False) as store:
        if done:
            store.adopt([], txn=("a", 1))
        for directory in (world.outside, world.path / "other.kstore-staging" / "job" / "task-1"):
            made = row(world, directory=str(directory))
            manifest = [{name: getattr(made, name) for name in Staged.__slots__}] if as_mapping else [made]
            with pytest.raises(ConfigError, match="staging_dir names another one"):
                store.adopt(manifest, txn=("a", 1))
            with pytest.raises(ConfigError, match="staging_dir names another one"):
                ks.discard(store, manifest)


@pytest.mark.parametrize("at", ["", "/job", "/job/task-0-x", "/job/task-0-x/t-0"])
def test_a_manifest_that_leads_through_a_link_removes_nothing(world: World, at: str) -> None:
    link = Path(f"{world.root}.kstore-staging{at}")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to({"": world.path / "outside", "/job": world.path / "outside" / "job"}.get(at, world.outside))
    manifest = [row(world, directory=f"{world.root}.kstore-staging/job/task-0-x")]
    with Store.open(world.root, background=False) as store:
        store.adopt([], txn=("a", 1))
        for txn in (("a", 1), ("a", 2)):
            with pytest.raises(StorageError, match="a symbolic link is here"):
                store.adopt(manifest, txn=txn)
        ks.discard(store, manifest)


@pytest.mark.parametrize("name", Staged.__slots__)
def test_any_value_in_any_field_of_a_manifest_is_refused_clearly(world: World, name: str) -> None:
    (world.root.with_name("one.kstore-staging") / "job" / "task-0-x").mkdir(parents=True)
    with Store.open(world.root, background=False) as store:
        for new in ODD:
            made = {"directory": f"{world.root}.kstore-staging/job/task-0-x", name: new}
            with pytest.raises((KStoreError, ValueError)) as error:
                store.adopt([row(world, **made)])
            assert type(error.value) is ValueError or isinstance(error.value, KStoreError)
            assert len(str(error.value)) < 3000


@pytest.mark.parametrize("segments", [DEEP, "[[0, 1]]", "[[0, 1.0, 1]]", "[[true, 2, 1]]", "{}", "[[0, 1, 9e99]]", "1"])
def test_a_manifest_with_wrong_segments_is_refused(world: World, segments: str) -> None:
    directory = f"{world.root}.kstore-staging/job/task-0-x"
    with Store.open(world.root, background=False) as store, pytest.raises(ValueError, match="manifest"):
        store.adopt([row(world, directory=directory, segments=segments)])


def test_a_staging_directory_that_the_caller_names_is_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = world.path / "elsewhere"
    manifest = stage_task(elsewhere, 0, "t", {0: records(0, 0, 5)}, partitions=1)
    staging = f"{elsewhere}.kstore-staging"
    with pytest.raises(ConfigError, match="staging_dir"):
        ks.commit(world.root, manifest)
    with monkeypatch.context() as patch:
        patch.setattr(BulkLoads, "_carry_out", lambda *_: (_ for _ in ()).throw(StorageError(5, "the disk fails")))
        with pytest.raises(StorageError, match="the disk fails"):
            ks.commit(world.root, manifest, staging_dir=staging)
    with pytest.raises(StorageError, match="staging_dir names another one"):
        Store.open(world.root, background=False)
    with Store.open(world.root, background=False, staging_dir=staging) as store:
        assert [each.value for each in store.read("t")] == [b"first", *(value for _, value in records(0, 0, 5))]
    assert leftovers(elsewhere) == []
    Path(staging).rmdir()


def test_only_directories_of_tasks_are_removed_from_a_job(world: World) -> None:
    job = Path(f"{world.root}.kstore-staging") / "job"
    (job / "task-0-x").mkdir(parents=True)
    (job / "mine").mkdir()
    ks.discard(world.root, job="job")
    assert [path.name for path in job.iterdir()] == ["mine"]
    assert ks.staging.remove_stale([str(world.root)], str(job.parent), now=1e12) == []
    assert (job / "mine").exists()


# kstore-loads.json, kstore-gaps.json, kstore-topics.json, kstore-follower.json


def topics_file(content: Any) -> str:
    if not isinstance(content, dict):
        return json.dumps(content)
    crc = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    return json.dumps({**content, "crc32": crc})


TOPIC_ID = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
TOPICS: dict[str, Any] = {
    "version": 1,
    "generation": 7,
    "topics": {"t": {"topic_id": TOPIC_ID, "partitions": 1, "config": {"retention.ms": "1"}, "state": "live"}},
}
LOADS: dict[str, Any] = {"version": 1, "applications": {"a": 1}, "loads": ["0123"]}
GAPS: dict[str, Any] = {"version": 1, "gaps": [[1, 2]]}
ROLE: dict[str, Any] = {"version": 1, "source": ["/srv/leader"], "topics": ["t"]}

FILES: dict[str, tuple[dict[str, Any], Callable[[Any], str]]] = {
    "kstore-topics.json": (TOPICS, topics_file),
    "kstore-loads.json": (LOADS, json.dumps),
    "t-0/kstore-gaps.json": (GAPS, json.dumps),
    "kstore-follower.json": (ROLE, json.dumps),
}


@pytest.mark.parametrize(
    ("name", "at"), [(name, at) for name, (content, _) in FILES.items() for at in paths_of(content)], ids=str
)
def test_any_value_in_any_field_of_a_file_gives_an_answer_or_an_error_that_names_it(
    world: World, name: str, at: tuple[Any, ...]
) -> None:
    content, text = FILES[name]
    path = world.root / name
    for new in ODD:
        path.write_text(text(changed(content, at, new)))
        error = outcome(world.use)
        assert (
            error is None
            or str(path) in str(error)
            or isinstance(error, ConfigError | InvalidTopicError | NotLeaderError)
        )
        outcome(lambda: gap_files.read_gaps(world.root / "t-0"))
        outcome(lambda: verify([world.root]))
        outcome(lambda: plan_root(str(world.root)))


@pytest.mark.parametrize(
    ("name", "at"), [(name, at) for name, (content, _) in FILES.items() for at in paths_of(content) if at], ids=str
)
def test_a_name_that_is_there_twice_is_refused(world: World, name: str, at: tuple[Any, ...]) -> None:
    if not isinstance(at[-1], str):
        return
    content, text = FILES[name]
    once = f"{json.dumps(at[-1])}: "
    (world.root / name).write_text(text(content).replace(once, f"{once}0, {once}", 1))
    read = gap_files.read_gaps if "gaps" in name else lambda root: Store.open(root, background=False).close()
    with pytest.raises(StorageError, match="is there twice") as error:
        read(world.root / "t-0" if "gaps" in name else world.root)
    assert error.value.filename == str(world.root / name)


@pytest.mark.parametrize("data", [b"", b"\xff", b"NaN", DEEP.encode(), b'{"version": NaN}', b"1" * 5000, b"[]", b"{}"])
@pytest.mark.parametrize("name", [*FILES, load_files.COMMIT_FILE])
def test_any_bytes_in_a_file_of_ours_are_refused_with_its_path(world: World, name: str, data: bytes) -> None:
    (world.root / name).write_bytes(data)
    read = gap_files.read_gaps if "gaps" in name else lambda root: Store.open(root, background=False).close()
    with pytest.raises(StorageError) as error:
        read(world.root / "t-0" if "gaps" in name else world.root)
    assert error.value.filename == str(world.root / name)
    outcome(lambda: plan_root(str(world.root)))
    assert cli.main(["repair", "--yes", "--backup", str(world.root / "backup"), str(world.root)]) in (0, 1)


@pytest.mark.parametrize(
    "name",
    [
        *FILES,
        load_files.COMMIT_FILE,
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "kstore-leader-epochs",
        "t-0/leader-epoch-checkpoint",
        "t-0/partition.metadata",
    ],
)
def test_a_file_of_a_terabyte_is_refused_before_it_is_read(world: World, name: str) -> None:
    path = world.root / name
    path.touch()
    os.truncate(path, 1 << 40)

    def use() -> None:
        gap_files.read_gaps(world.root / "t-0")
        with Store.open(world.root, background=False) as store:
            store.topic_id("t")
            store.log("t", 0)

    with pytest.raises(StorageError, match="bytes that are allowed") as error:
        use()
    assert error.value.filename == str(path)


def test_partitions_that_a_file_or_a_name_makes_up_take_no_memory(world: World) -> None:
    content = json.loads(json.dumps(TOPICS))
    content["topics"]["t"]["partitions"] = 2**31 - 1
    (world.root / "kstore-topics.json").write_text(topics_file(content))
    (world.root / "t-0" / "partition.metadata").unlink()
    (world.root / "u-2147483647").mkdir()
    with Store.open(world.root, background=False) as store:
        for topic in ("t", "u"):
            with pytest.raises(UnknownTopicOrPartitionError, match="has a partition 214748364"):
                store.append(topic, b"x")
        assert [each.value for each in store.read("t")] == [b"first"]


@pytest.mark.parametrize(("partitions", "topics"), [(100_001, 1), (2**31 - 1, 1), (50_001, 2)])
def test_directories_are_not_made_by_the_million_because_a_file_says_so(
    world: World, partitions: int, topics: int
) -> None:
    record = {"topic_id": TOPIC_ID, "partitions": partitions, "config": {}, "state": "creating"}
    content = {"version": 1, "generation": 9, "topics": {f"x{number}": record for number in range(topics)}}
    (world.root / "kstore-topics.json").write_text(topics_file(content))
    with pytest.raises(StorageError, match="partitions are being created; 100000 are allowed"):
        Store.open(world.root, background=False)


# Text files of Kafka's


CHECKPOINTS = [
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
]
ODD_WORDS = [b"", b"-1", b"9" * 5000, b"1.0", b"\0", b"\xff", b"\xed\xa0\x80", b"x" * 100_000, b"../x", b"0 0"]


@pytest.mark.parametrize("word", ODD_WORDS, ids=ids)
@pytest.mark.parametrize("field", range(5))
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_any_word_in_a_checkpoint_gives_an_answer_or_an_error_that_names_it(
    world: World, name: str, field: int, word: bytes
) -> None:
    words = [b"0", b"1", b"t", b"0", b"1"]
    words[field] = word
    path = world.root / name
    path.write_bytes(b"%b\n%b\n%b %b %b\n" % tuple(words))
    error = outcome(world.use)
    assert error is None or str(path) in str(error) or "t-0" in str(error)
    outcome(lambda: verify([world.root]))
    outcome(lambda: plan_root(str(world.root)))


@pytest.mark.parametrize("word", ODD_WORDS, ids=ids)
@pytest.mark.parametrize("field", range(4))
def test_any_word_in_any_field_of_an_epochs_file_gives_an_answer_or_an_error(
    world: World, field: int, word: bytes
) -> None:
    words = [b"0", b"1", b"0", b"0"]
    words[field] = word
    path = world.root / "t-0" / "leader-epoch-checkpoint"
    path.write_bytes(b"%b\n%b\n%b %b\n" % tuple(words))
    error = outcome(world.use)
    assert error is None or str(path) in str(error)
    outcome(lambda: verify([world.root]))
    outcome(lambda: plan_root(str(world.root)))


@pytest.mark.parametrize("word", [*ODD_WORDS, b"AAAAAAAAAAAAAAAAAAAAAA", b"=" * 22], ids=ids)
@pytest.mark.parametrize("field", range(4))
def test_any_word_in_any_field_of_partition_metadata_gives_an_answer_or_an_error(
    world: World, field: int, word: bytes
) -> None:
    words = [b"version", b"0", b"topic_id", TOPIC_ID.encode()]
    words[field] = word
    path = world.root / "t-0" / "partition.metadata"
    path.write_bytes(b"%b: %b\n%b: %b" % tuple(words))
    error = outcome(lambda: (Store.open(world.root, "r").topic_id("t"), world.use()))
    assert error is None or str(path) in str(error)
    outcome(lambda: verify([world.root]))
    outcome(lambda: plan_root(str(world.root)))


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\xff" * 10, DEEP.encode(), b"1" * 5000, b'{"brokerEpoch": 1e999}', b"x" * 100_000]
)
def test_a_mark_of_a_clean_shutdown_may_say_anything(world: World, data: bytes) -> None:
    (world.root / ".kafka_cleanshutdown").write_bytes(data)
    world.use()


# Names


@pytest.mark.parametrize(
    "name",
    ["\x1b[31m-0", "a b-0", "..-0", "t-99999999999999999999", "t-" + "9" * 200, "\udcff-0", "é-0", "t\n-0", "-0"],
    ids=ids,
)
def test_a_directory_with_any_name_is_passed_over(world: World, name: str) -> None:
    (world.root / name).mkdir()
    world.use()
    outcome(lambda: verify([world.root]))
    outcome(lambda: plan_root(str(world.root)))
    assert cli.main(["describe", str(world.root)]) == 0
    assert cli.main(["verify", "--notes", str(world.root)]) == 0


@pytest.mark.parametrize(
    "name",
    ["9" * 200 + ".log", "99999999999999999999.log", "1.log", "\udcff.log", "00000000000000000001\n.log", "x.deleted"],
    ids=ids,
)
def test_a_file_with_any_name_in_a_partition_gives_an_answer_or_an_error(world: World, name: str) -> None:
    (world.root / "t-0" / name).touch()
    outcome(world.use)
    outcome(lambda: verify([world.root]))
    outcome(lambda: plan_root(str(world.root)))
    assert cli.main(["describe", str(world.root)]) in (0, 1)
    assert cli.main(["verify", "--notes", str(world.root)]) in (0, 1)


@pytest.mark.parametrize("value", [{"a": 1}, [1], "x" * 500, 10**300, None, "\ud800"])
def test_an_error_shows_a_wrong_value_and_not_all_of_it(value: Any) -> None:
    with pytest.raises(StorageError, match="number is ") as error:
        json_file.Fields({"number": value}, "/file").integer("number", 0, 1)
    assert len(str(error.value)) < 400
