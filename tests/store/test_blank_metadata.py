"""`partition.metadata` without content, as a power cut or an unfinished copy leaves it, beside sound records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kstore
from kstore import Store, cli
from kstore.errors import StorageError
from kstore.files import checkpoint

BLANK = [b"", bytes(43)]
METADATA = "partition.metadata"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A topic of two partitions and one of one, each partition with a record."""
    path = tmp_path / "data"
    with Store.open(path, background=False) as store:
        store.create_topic("pair", 2, config={"segment.bytes": 20_000})
        store.create_topic("lone", config={"segment.bytes": 20_000})
        store.create_topic("other")
        for topic, number in (("pair", 0), ("pair", 1), ("lone", 0), ("other", 0)):
            store.append(topic, b"kept", key=b"k", partition=number)
    return path


def empty(root: Path, content: bytes) -> list[Path]:
    """Leave no content in the metadata of a partition of "pair", and of the only one of "lone"."""
    blank = [root / "pair-0" / METADATA, root / "lone-0" / METADATA]
    for path in blank:
        path.write_bytes(content)
    return blank


@pytest.mark.parametrize("content", BLANK, ids=("empty", "zeros"))
def test_blank_partition_metadata_counts_as_missing_and_one_warning_names_it(
    root: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    # docs/compatibility.md: `empty-metadata`
    blank = empty(root, content)
    with Store.open(root, background=False) as store:
        for _ in range(3):
            store.commit_offsets("group", {("lone", 0): 1, ("pair", 0): 1})
        assert store.committed_offsets("group")["lone", 0] == 1
        assert store.append("lone", b"more").offset == 1
        assert store.topic_config("lone").segment_bytes == 20_000
        assert store.stats()["refused"] == {}
    told = [message for message in caplog.messages if "counts as missing" in message]
    assert sorted(told) == sorted(set(told))
    assert all(any(str(path) in message for path in blank) for message in told)
    assert any(str(blank[1]) in message for message in told)


@pytest.mark.parametrize("content", BLANK, ids=("empty", "zeros"))
def test_settings_write_blank_partition_metadata_anew(root: Path, content: bytes) -> None:
    with Store.open(root, "r") as store:
        ids = {topic: store.topic_id(topic) for topic in store.topics}
    blank = empty(root, content)
    with Store.open(root, background=False) as store:
        for topic in ("pair", "lone"):
            store.update_topic_config(topic, {"retention.ms": "-1"})
            store.add_partitions(topic, 3)
            assert store.topic_id(topic) == ids[topic]
    found = [checkpoint.read_partition_metadata(path.parent) for path in blank]
    assert [each and each.topic_id for each in found] == [ids["pair"], ids["lone"]]


@pytest.mark.parametrize("content", BLANK, ids=("empty", "zeros"))
def test_describe_shows_a_partition_whose_metadata_is_blank_and_says_so(
    root: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    empty(root, content)
    assert cli.main(["describe", str(root), "--json"]) == 0
    shown = {f"{each['topic']}-{each['partition']}": each for each in json.loads(capsys.readouterr().out)["partitions"]}
    assert {name: each["log_end_offset"] for name, each in shown.items()} == dict.fromkeys(shown, 1)
    assert [name for name, each in shown.items() if each["topic_id"] is None] == ["lone-0", "pair-0"]
    assert [name for name, each in shown.items() if each["warning"]] == ["lone-0", "pair-0"]
    for path in (root, root / "lone-0"):
        assert cli.main(["describe", str(path)]) == 0
        assert "partition.metadata is empty" in capsys.readouterr().out
    assert cli.main(["cat", str(root / "lone-0")]) == 0
    assert capsys.readouterr().out == "kept\n"


@pytest.mark.parametrize("content", BLANK, ids=("empty", "zeros"))
def test_a_follower_and_a_backup_take_topics_whose_metadata_is_blank(
    root: Path, tmp_path: Path, content: bytes
) -> None:
    with Store.open(root, background=False) as store, kstore.backup(store, f"file://{tmp_path}/backup") as backup:
        backup.flush()
    empty(root, content)
    kstore.replicate(root, tmp_path / "copy")
    with Store.open(root, background=False) as store, kstore.backup(store, f"file://{tmp_path}/backup") as backup:
        store.append("lone", b"more")
        backup.flush()
    kstore.restore(f"file://{tmp_path}/backup", tmp_path / "restored")
    for path, records in ((tmp_path / "copy", 1), (tmp_path / "restored", 2)):
        with Store.open(path, "r") as store:
            assert store.topics == ("lone", "other", "pair")
            assert sum(1 for _ in store.read("lone")) == records
            assert store.topic_id("lone") is not None


def test_a_topic_whose_id_cannot_be_read_keeps_no_other_from_a_follower(root: Path, tmp_path: Path) -> None:
    (root / "lone-0" / METADATA).write_text("garbage")
    for _ in range(2):
        with pytest.raises(StorageError, match="lone-0"):
            kstore.replicate(root, tmp_path / "copy")
        with Store.open(tmp_path / "copy", "r") as store:
            assert store.topics == ("other", "pair")
            assert sum(1 for _ in store.read("pair")) == 2


@pytest.mark.parametrize("content", [*BLANK, b"garbage"], ids=("empty", "zeros", "garbage"))
def test_repair_writes_metadata_anew_where_the_id_is_known(root: Path, tmp_path: Path, content: bytes) -> None:
    with Store.open(root, "r") as store:
        ids = {topic: store.topic_id(topic) for topic in store.topics}
    empty(root, content)
    assert cli.main(["verify", str(root)]) == 1
    assert cli.main(["verify", str(root / "lone-0" / METADATA)]) == 1
    assert cli.main(["repair", str(root), "--yes", "--backup", str(tmp_path / "removed")]) == 0
    assert cli.main(["verify", str(root)]) == 0
    found = {name: checkpoint.read_partition_metadata(root / name) for name in ("pair-0", "lone-0")}
    assert found["pair-0"] is not None
    assert found["pair-0"].topic_id == ids["pair"]
    # What is malformed may name another topic than the record of that name, which then counts as nobody's.
    lone = found["lone-0"]
    assert (lone is None) if content == b"garbage" else (lone is not None and lone.topic_id == ids["lone"])
    assert (tmp_path / "removed" / "lone-0" / METADATA).read_bytes() == content
