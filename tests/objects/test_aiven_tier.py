"""A prefix that Aiven's plugin wrote becomes the files that the broker had, each byte of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import BackupError
from kstore.objects.aiven_tier import looks_like_aiven, read_aiven
from kstore.objects.open_objects import open_objects
from kstore.objects.remote_state import RemotePartition, RemoteState, SegmentFacts
from tests.support.aiven_writer import Segment, name_of, objects_of, segment_from
from tests.support.tiers import bytes_of, log_of, put

Golden = Callable[[str], Path]

CANARY = ((0, 107), (107, 215), (215, 323), (323, 400))
TX = ((0, 91), (91, 209), (209, 256))


def canary(golden: Golden) -> list[Segment]:
    directory = golden("canary-16k") / "dir" / "canary-0"
    return [segment_from(directory, base, end) for base, end in CANARY]


def state_of(root: Path, *objects: dict[str, bytes], **how: Any) -> RemoteState:
    store = put(root, *objects)
    return read_aiven(store, list(store.list()), **how)


def partition_of(state: RemoteState) -> RemotePartition:
    return state.partitions["events", 0]


@pytest.mark.parametrize("chunk", [None, 1 << 20, 4096, 1000])
@pytest.mark.parametrize(("name", "place", "spans"), [("canary-16k", "canary-0", CANARY), ("transactions", "tx-0", TX)])
def test_files_have_the_bytes_that_the_broker_had(
    tmp_path: Path, golden: Golden, name: str, place: str, spans: tuple[tuple[int, int], ...], chunk: int | None
) -> None:
    directory = golden(name) / "dir" / place
    segments = [segment_from(directory, base, end) for base, end in spans]
    written = [objects_of(segment, number=at, chunk=chunk) for at, segment in enumerate(segments)]
    objects = put(tmp_path / "tier", *written)
    found = partition_of(read_aiven(objects, list(objects.list())))
    expected = {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "partition.metadata"}
    their = {name: bytes_of(objects, file) for name, file in found.files.items() if name != "partition.metadata"}
    assert their == expected
    assert bytes_of(objects, found.files["partition.metadata"]).endswith(b"topic_id: lZ6vvmajTWKDBUTV6SQAtQ")
    assert found.segments == {each.base: SegmentFacts(each.end, each.max_timestamp) for each in segments}
    assert (found.log_start_offset, found.end_offset) == (0, spans[-1][1])


def test_a_tier_in_memory_is_read_below_a_prefix(golden: Golden) -> None:
    with open_objects("memory://") as objects:
        for key, data in objects_of(canary(golden)[0], prefix="some/prefix/", chunk=4096).items():
            objects.put_new(key, data)
        listing = list(objects.list())
        assert looks_like_aiven(listing)
        found = partition_of(read_aiven(objects, listing))
        assert log_of(objects, found) == canary(golden)[0].log


def test_checkpoints_tell_the_marks(tmp_path: Path, golden: Golden) -> None:
    state = state_of(tmp_path / "tier", *(objects_of(each) for each in canary(golden)[1:]))
    assert state.files["log-start-offset-checkpoint"].content == b"0\n1\nevents 0 107\n"
    assert state.files["replication-offset-checkpoint"].content == b"0\n1\nevents 0 400\n"


def test_objects_of_other_names_are_no_partitions(tmp_path: Path, golden: Golden) -> None:
    segment = canary(golden)[0]
    store = put(
        tmp_path / "tier",
        objects_of(segment),
        objects_of(segment, topic="other-topic-1", partition=12),
        {"events-0/00000000000000000000.log": b"", "readme.txt": b"", f"events-{'x' * 22}/00/{'0' * 20}.log": b""},
    )
    assert list(read_aiven(store, list(store.list())).partitions) == [("events", 0), ("other-topic-1", 12)]


def test_only_the_manifests_of_the_asked_partition_are_read(tmp_path: Path, golden: Golden) -> None:
    segments = canary(golden)
    store = put(tmp_path / "tier", *(objects_of(each, partition=number) for number in (0, 1, 2) for each in segments))
    listing = list(store.list())
    store.requests.clear()
    state = read_aiven(store, listing, only=("events", 1))
    assert list(state.partitions) == [("events", 1)]
    assert store.requests["get"] == len(segments) + 1


def test_a_partition_that_is_not_there_is_not_in_the_state(tmp_path: Path, golden: Golden) -> None:
    assert not state_of(tmp_path / "tier", objects_of(canary(golden)[0]), only=("events", 7)).partitions


@pytest.mark.parametrize("lacking", [".log", ".indexes", ".rsm-manifest"])
def test_segments_that_lack_an_object_are_left_out(tmp_path: Path, golden: Golden, lacking: str) -> None:
    first, second, *_ = canary(golden)
    unfinished = {key: data for key, data in objects_of(second).items() if not key.endswith(lacking)}
    state = state_of(tmp_path / "tier", objects_of(first), unfinished)
    assert list(partition_of(state).segments) == [0]
    assert any("not finished" in note and "00000000000000000107" in note for note in state.notes)


def test_an_empty_manifest_is_not_finished(tmp_path: Path, golden: Golden) -> None:
    objects = objects_of(canary(golden)[0])
    state = state_of(tmp_path / "tier", objects, dict.fromkeys(list(objects)[2:], b""))
    assert not state.partitions
    assert "events-0: left out, since it has no finished segment" in state.notes


@pytest.mark.parametrize("chunk", [None, 4096])
@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_objects_of_another_size_are_left_out(tmp_path: Path, golden: Golden, suffix: str, chunk: int | None) -> None:
    first, second, *_ = canary(golden)
    objects = objects_of(second, chunk=chunk)
    key = next(key for key in objects if key.endswith(suffix))
    state = state_of(tmp_path / "tier", objects_of(first), objects, {key: objects[key][:-1]})
    assert list(partition_of(state).segments) == [0]
    assert any(f"{key} has {len(objects[key]) - 1} bytes; its manifest says" in note for note in state.notes)


def test_a_manifest_that_is_deleted_meanwhile_is_left_out(tmp_path: Path, golden: Golden) -> None:
    first, second, *_ = canary(golden)
    store = put(tmp_path / "tier", objects_of(first), objects_of(second))
    listing = list(store.list())
    gone = next(info.key for info in listing if info.key.endswith(".rsm-manifest") and "107-" in info.key)
    (tmp_path / "tier" / gone).unlink()
    assert list(partition_of(read_aiven(store, listing)).segments) == [0]


def test_a_segment_in_the_middle_that_is_missing_is_told(tmp_path: Path, golden: Golden) -> None:
    first, _, third, _ = canary(golden)
    state = state_of(tmp_path / "tier", objects_of(first), objects_of(third))
    assert "events-0: no segment has the offsets 107 to 214" in state.notes


def test_a_topic_that_was_created_again_is_read_once(tmp_path: Path, golden: Golden) -> None:
    first, second, *_ = canary(golden)
    old, new = objects_of(first, topic_id=name_of(99)), objects_of(second)
    put(tmp_path / "tier", old, new)
    for key in old:
        os.utime(tmp_path / "tier" / key, (1_000_000_000, 1_000_000_000))
    state = state_of(tmp_path / "tier")
    assert list(partition_of(state).segments) == [107]
    assert any("several ids" in note for note in state.notes)


def test_the_tiers_of_two_brokers_are_refused(tmp_path: Path, golden: Golden) -> None:
    first = canary(golden)[0]
    with pytest.raises(BackupError, match="several brokers begin with 'a/', 'b/'"):
        state_of(tmp_path / "tier", objects_of(first, prefix="a/"), objects_of(first, prefix="b/"))


def test_the_state_says_that_it_is_a_guess(tmp_path: Path, golden: Golden) -> None:
    state = state_of(tmp_path / "tier", objects_of(canary(golden)[0]))
    assert "__remote_log_metadata" in state.notes[0]
    assert state.layout == "tiered storage of Aiven's plugin"
