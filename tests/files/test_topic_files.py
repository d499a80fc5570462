"""topics.py: what a store knows of its topics outlives crashes and damage, and is the same in every directory."""

from __future__ import annotations

import errno
import json
import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import InvalidTopicError, StorageError
from kstore.files import checkpoint, topic_files
from kstore.files.topic_files import TOPICS_FILE, TopicRecord, TopicTable, read_topics
from tests.support.faultfs import PLANS, FaultFS

ID = uuid.UUID("63a52449-28e4-4b3a-b103-83ef65f1437f")
OTHER_ID = uuid.UUID("73a52449-28e4-4b3a-b103-83ef65f1437f")
ORDERS = TopicRecord(ID, 4, {"segment.bytes": "16384", "cleanup.policy": "compact,delete"})


def change(root: Path, **fields: Any) -> None:
    """Change a file of topics by hand, so that its checksum still holds."""
    content = json.loads((root / TOPICS_FILE).read_text())
    content.update(fields)
    content.pop("crc32")
    content["crc32"] = topic_files._checksum(content)
    (root / TOPICS_FILE).write_text(json.dumps(content))


# What is kept


def test_a_root_without_a_file_has_no_topics(root: Path) -> None:
    table = read_topics([root])
    assert (table.generation, table.topics, table.behind) == (0, {}, ())
    assert list(root.iterdir()) == []


def test_topics_that_were_written_are_read_back(root: Path) -> None:
    written = read_topics([root]).put("orders", ORDERS).put("a.b-c_d", TopicRecord(OTHER_ID, 1)).write([root])
    found = read_topics([root])
    assert found == written
    assert found.generation == 1
    assert found.topics["orders"] == ORDERS
    assert found.topics["a.b-c_d"] == TopicRecord(OTHER_ID, 1, {}, "live")


def test_the_file_is_text_with_a_line_for_each_topic_and_lies_alone_in_the_root(root: Path) -> None:
    TopicTable().put("orders", ORDERS).put("b", TopicRecord(OTHER_ID, 1, state="deleting")).write([root])
    assert [path.name for path in root.iterdir()] == [TOPICS_FILE]
    assert (root / TOPICS_FILE).read_text().splitlines()[1:] == [
        f'"b": {{"config": {{}}, "partitions": 1, "state": "deleting", "topic_id": "{_text_of(OTHER_ID)}"}},',
        '"orders": {"config": {"cleanup.policy": "compact,delete", "segment.bytes": "16384"}, "partitions": 4, '
        f'"state": "live", "topic_id": "{_text_of(ID)}"}}',
        "}}",
    ]


def _text_of(topic_id: uuid.UUID) -> str:
    return checkpoint.format_topic_id(topic_id)


SETTING = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
TOPICS = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,20}", fullmatch=True)
RECORDS = st.builds(
    TopicRecord,
    topic_id=st.uuids(version=4),
    partitions=st.integers(1, 1000) | st.just(2**31 - 1),
    config=st.dictionaries(SETTING, SETTING, max_size=3),
    state=st.sampled_from(["live", "creating", "deleting"]),
    extra=st.dictionaries(
        st.text(max_size=8).filter(lambda key: key not in ("topic_id", "partitions", "config", "state")),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        max_size=2,
    ),
).filter(lambda record: record.state != "creating" or record.partitions <= 1000)


@given(st.dictionaries(TOPICS, RECORDS, max_size=4))
def test_any_topics_are_read_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, records: dict[str, TopicRecord]
) -> None:
    root = tmp_path_factory.mktemp("root")
    table = TopicTable()
    for name, record in records.items():
        table = table.put(name, record)
    table.write([root])
    assert read_topics([root]).topics == records


def test_a_removed_topic_is_gone_and_the_others_stay(root: Path) -> None:
    TopicTable().put("orders", ORDERS).put("b", TopicRecord(OTHER_ID, 1)).write([root])
    read_topics([root]).remove("orders").remove("never there").write([root])
    assert list(read_topics([root]).topics) == ["b"]


def test_a_table_does_not_change_when_another_is_made_of_it() -> None:
    one = TopicTable().put("orders", ORDERS)
    two = one.remove("orders")
    assert list(one.topics) == ["orders"]
    assert list(two.topics) == []


def test_what_another_release_has_added_is_kept(root: Path) -> None:
    TopicTable().put("orders", ORDERS).write([root])
    fields = {"topic_id": _text_of(ID), "partitions": 4, "config": {"new.setting": "7"}, "placement": [0, 1]}
    change(root, topics={"orders": fields}, cluster={"id": "x"})
    table = read_topics([root])
    assert table.topics["orders"].state == "live"
    table.put("b", TopicRecord(OTHER_ID, 1)).write([root])
    content = json.loads((root / TOPICS_FILE).read_text())
    assert content["cluster"] == {"id": "x"}
    assert content["topics"]["orders"] == {**fields, "state": "live"}
    assert read_topics([root]).topics["orders"].config == {"new.setting": "7"}


def test_a_record_whose_directories_have_another_id_is_stale() -> None:
    table = TopicTable().put("orders", ORDERS)
    assert table.find("orders", ID) == ORDERS
    assert table.find("orders") == ORDERS  # without a partition.metadata there is nothing to compare
    assert table.find("orders", OTHER_ID) is None
    assert table.find("other", ID) is None


# What is refused


def test_a_name_that_kafka_forbids_is_refused() -> None:
    with pytest.raises(InvalidTopicError):
        TopicTable().put("a/b", ORDERS)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic_id": uuid.UUID(int=0)},
        {"topic_id": uuid.UUID(int=1)},
        {"topic_id": "Y6UkSSjkSzqxA4PvZfFDfw"},
        {"partitions": 0},
        {"partitions": 2**31},
        {"partitions": True},
        {"partitions": 1.0},
        {"state": "gone"},
        {"config": {"segment.bytes": 16384}},
    ],
)
def test_a_record_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"reserved|partitions|state|config"):
        TopicRecord(**{"topic_id": ID, "partitions": 1} | fields)


def test_more_topics_than_the_file_may_hold_are_refused_before_anything_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TopicTable().put("orders", ORDERS).write([root])
    size = (root / TOPICS_FILE).stat().st_size
    monkeypatch.setattr(topic_files, "MAX_FILE_BYTES", size)
    table.write([root])
    with pytest.raises(StorageError) as caught:
        table.put("b", TopicRecord(OTHER_ID, 1)).write([root])
    assert caught.value.errno == errno.EFBIG
    assert read_topics([root]).topics == table.topics
    monkeypatch.setattr(topic_files, "MAX_FILE_BYTES", size - 1)
    with pytest.raises(StorageError, match="are allowed"):
        read_topics([root])


# Damage


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 300,
        b"\xff\xfe",
        b"{}",
        b"[]",
        b"null",
        b"7" * 10_000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"version": 1, "version": 1}',
        b'{"version": NaN}',
        b'{"version": 1e999, "crc32": 0}',
        b'{"version": 1, "generation": 1, "topics": {}, "crc32": 0}',
        b'{"version": 1, "generation": 1, "topics": {}}',
        b'{"crc32": "\\ud800"}',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_damaged_file_is_an_error_that_names_it_and_stays_as_it_is(root: Path, text: bytes) -> None:
    path = root / TOPICS_FILE
    path.write_bytes(text)
    with pytest.raises(StorageError, match="damaged") as caught:
        read_topics([root])
    assert caught.value.filename == str(path)
    assert path.read_bytes() == text


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 0},
        {"version": None},
        {"version": "1"},
        {"generation": 0},
        {"generation": "1"},
        {"generation": None},
        {"topics": []},
        {"topics": {"a/b": {}}},
        {"topics": {"a": []}},
        {"topics": {"a": {"topic_id": "x", "partitions": 1, "config": {}}}},
        {"topics": {"a": {"topic_id": "A" * 22, "partitions": 1, "config": {}}}},
        {"topics": {"a": {"topic_id": "Y6UkSSjkSzqxA4PvZfFDfw", "partitions": 0, "config": {}}}},
        {"topics": {"a": {"topic_id": "Y6UkSSjkSzqxA4PvZfFDfw", "partitions": 1, "config": []}}},
        {"topics": {"a": {"topic_id": "Y6UkSSjkSzqxA4PvZfFDfw", "partitions": 1, "config": {"a": 1}}}},
        {"topics": {"a": {"topic_id": "Y6UkSSjkSzqxA4PvZfFDfw", "partitions": 1, "config": {}, "state": []}}},
    ],
    ids=str,
)
def test_content_that_makes_no_sense_is_damage_even_if_its_checksum_holds(root: Path, fields: dict[str, Any]) -> None:
    TopicTable().write([root])
    change(root, **fields)
    with pytest.raises(StorageError, match="damaged"):
        read_topics([root])


def test_every_flipped_bit_is_noticed_or_changes_nothing(root: Path) -> None:
    TopicTable().put("orders", ORDERS).write([root])
    path = root / TOPICS_FILE
    sound, table = path.read_bytes(), read_topics([root])
    silent = 0
    for at in range(len(sound)):
        for bit in range(8):
            path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :])
            try:
                assert read_topics([root]) == table
                silent += 1  # a blank into another blank
            except StorageError:
                pass
    assert silent < 100


def test_every_cut_is_noticed(root: Path) -> None:
    TopicTable().put("orders", ORDERS).write([root])
    path = root / TOPICS_FILE
    sound = path.read_bytes().rstrip()
    for size in range(len(sound)):
        path.write_bytes(sound[:size])
        with pytest.raises(StorageError):
            read_topics([root])


@given(st.binary(max_size=80) | st.text(max_size=40).map(lambda text: json.dumps({"topics": text}).encode()))
def test_any_bytes_are_topics_or_a_storage_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / TOPICS_FILE).write_bytes(data)
    with pytest.raises(StorageError):
        read_topics([root])


def test_a_file_of_a_later_version_is_an_error_even_beside_a_known_one(root: Path, tmp_path: Path) -> None:
    TopicTable().put("orders", ORDERS).write([root, tmp_path])
    change(tmp_path, version=2)
    for roots in ([tmp_path], [root, tmp_path], [tmp_path, root]):
        with pytest.raises(StorageError, match="later release"):
            read_topics(roots)


# Several roots


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    for each in found:
        each.mkdir()
    return found


def test_every_root_has_the_same_file(roots: list[Path]) -> None:
    TopicTable().put("orders", ORDERS).write(roots)
    assert len({(each / TOPICS_FILE).read_bytes() for each in roots}) == 1


def test_the_highest_generation_holds_and_the_next_write_brings_the_others_up(roots: list[Path]) -> None:
    table = TopicTable().put("orders", ORDERS).write(roots)
    table.put("b", TopicRecord(OTHER_ID, 1)).write(roots[1:2])
    (roots[2] / TOPICS_FILE).unlink()
    found = read_topics(roots)
    assert list(found.topics) == ["orders", "b"] or sorted(found.topics) == ["b", "orders"]
    assert found.behind == (str(roots[0]), str(roots[2]))
    found.write(roots)
    assert read_topics(roots).behind == ()
    assert read_topics(roots[2:]).topics == found.topics


def test_damage_in_one_root_is_logged_while_another_is_sound(
    roots: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    TopicTable().put("orders", ORDERS).write(roots)
    (roots[0] / TOPICS_FILE).write_bytes(b"\0" * 100)
    with caplog.at_level(logging.WARNING, logger="kstore"):
        found = read_topics(roots)
    assert list(found.topics) == ["orders"]
    assert found.behind == (str(roots[0]),)
    assert [str(roots[0]) in record.getMessage() for record in caplog.records] == [True]


def test_damage_beside_a_root_without_a_file_is_an_error(roots: list[Path]) -> None:
    (roots[1] / TOPICS_FILE).write_bytes(b"\0" * 100)
    with pytest.raises(StorageError, match="damaged"):
        read_topics(roots)


def test_two_files_of_one_generation_that_differ_are_logged_and_the_first_holds(
    roots: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    TopicTable().put("first", ORDERS).write(roots[:1])
    TopicTable().put("second", ORDERS).write(roots[1:2])
    with caplog.at_level(logging.WARNING, logger="kstore"):
        assert list(read_topics(roots).topics) == ["first"]
    assert "same generation" in caplog.text


# Crashes and failing disks


def test_a_crash_at_any_point_leaves_no_older_table_than_was_written(roots: list[Path], tmp_path: Path) -> None:
    roots = roots[:2]
    reached: list[int] = []
    with FaultFS(tmp_path) as disk:
        states = [read_topics(roots)]
        for table in (
            lambda t: t.put("orders", ORDERS),
            lambda t: t.put("b", TopicRecord(OTHER_ID, 1, state="creating")),
            lambda t: t.remove("orders"),
        ):
            states.append(table(states[-1]).write(roots))
            reached.append(disk.step)
        assert len(disk.trace) >= 3 * 2 * 5
    images = tmp_path.parent / f"{tmp_path.name}-images"
    images.mkdir()
    seen = set()
    for step, _, image in disk.crash_images(images, *PLANS, since=4):  # its roots are there by then
        found = read_topics([image / each.name for each in roots])
        durable = sum(step >= at for at in reached)
        assert found.generation in (durable, durable + 1)
        assert found.topics == states[found.generation].topics
        seen.add(found.generation)
    assert seen == {0, 1, 2, 3}


CALLS = ("open", "pwrite", "fsync", "rename", "sync_directory")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("partial", [0, 50])
def test_a_failing_disk_is_a_storage_error_and_leaves_the_old_table_or_the_new(
    roots: list[Path], tmp_path: Path, call: str, partial: int
) -> None:
    table = TopicTable().put("orders", ORDERS).write(roots)
    new = table.remove("orders")
    for after in range(len(roots)):
        with FaultFS(tmp_path) as disk:
            disk.fail(call, error=errno.EIO, after=after, partial=partial)
            with pytest.raises(StorageError) as caught:
                new.write(roots)
            assert caught.value.errno == errno.EIO
        assert read_topics(roots).topics in (table.topics, new.topics)
    assert read_topics(roots[:1]).topics == new.topics or after == 0


@pytest.mark.parametrize("call", CALLS[:-1])
@pytest.mark.parametrize("partial", [0, 50])
def test_a_root_without_room_is_behind_and_one_with_room_holds_the_table(
    roots: list[Path], tmp_path: Path, call: str, partial: int
) -> None:
    table = TopicTable().put("orders", ORDERS).write(roots)
    new = table.remove("orders")
    for full in range(len(roots)):
        with FaultFS(tmp_path) as disk:
            disk.fail(call, error=errno.ENOSPC, path=str(roots[full] / "*"), partial=partial)
            written = new.write(roots)
        assert written.behind == (str(roots[full]),)
        assert read_topics(roots) == written
        assert read_topics([roots[full]]).topics == table.topics
        assert not list(tmp_path.glob("*/*.tmp")) or call == "rename"
        written = written.write(roots)
        assert written.behind == read_topics(roots).behind == ()
        table = table.write(roots)


def test_a_table_that_no_root_has_room_for_changes_nothing(roots: list[Path], tmp_path: Path) -> None:
    table = TopicTable().put("orders", ORDERS).write(roots)
    with FaultFS(tmp_path) as disk:
        disk.fail("pwrite", error=errno.EDQUOT, times=-1)
        with pytest.raises(StorageError) as caught:
            table.remove("orders").write(roots)
        assert (caught.value.errno, caught.value.filename) == (errno.EDQUOT, str(roots[0] / "kstore-topics.json"))
    assert read_topics(roots) == table


def test_what_a_failed_write_has_left_never_wins_over_what_was_written_after_it(
    roots: list[Path], tmp_path: Path
) -> None:
    one, two = roots[:2]
    table = TopicTable().put("orders", ORDERS).write([one, two])
    with FaultFS(tmp_path) as disk:
        disk.fail("rename", after=1)
        with pytest.raises(StorageError):
            table.remove("orders").write([one, two])
    table.put("b", TopicRecord(OTHER_ID, 1)).write([two])  # the first root is out of service by now
    assert set(read_topics([one, two]).topics) == {"orders", "b"}
