"""Names and files of `LocalTieredStorage` are read as a stranger's; test_local_tier_kafka.py has those of a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kstore.errors import BackupError
from kstore.objects.aiven_tier import looks_like_aiven
from kstore.objects.copied_prefix import looks_like_copy
from kstore.objects.local_tier import looks_like_local_tier, read_local_tier
from kstore.objects.object_store import ObjectInfo
from kstore.objects.remote_state import RemoteState
from tests.support.aiven_writer import TOPIC_ID, Batch, Segment, batches_of, indexes_of, name_of, objects_of, segment_of
from tests.support.tiers import bytes_of, log_of, put

Golden = Callable[[str], Path]

SUFFIXES = (".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint", ".txnindex")


def files_of(segment: Segment, number: int, topic: str = "events", topic_id: str = TOPIC_ID) -> dict[str, bytes]:
    """A segment as the class stores it; the base offset has no leading zeros."""
    place = f"{topic}-0-{topic_id}/{segment.base}-{name_of(number)}"
    found = {
        place + suffix: data for suffix, data in zip(SUFFIXES, indexes_of(segment), strict=True) if data is not None
    }
    return found | {place + ".log": segment.log}


@pytest.fixture
def log(golden: Golden) -> list[Batch]:
    """A log of the epochs 0, 2, 8 and 12, from the offsets 0, 27, 63 and 90 on."""
    directory = golden("epochs") / "dir" / "epochs-0"
    return batches_of(b"".join(path.read_bytes() for path in sorted(directory.glob("*.log"))))


def segments_of(log: Sequence[Batch], *spans: tuple[int, int]) -> list[Segment]:
    return [segment_of([batch for batch in log if start <= batch.base < end], log) for start, end in spans]


def state_of(root: Path, *objects: dict[str, bytes]) -> RemoteState:
    store = put(root, *objects)
    return read_local_tier(store, list(store.list()))


def test_ends_and_timestamps_are_found_in_the_files(tmp_path: Path, log: list[Batch]) -> None:
    segments = segments_of(log, (0, 27), (27, 63), (63, 118))
    store = put(tmp_path, *(files_of(each, number) for number, each in enumerate(segments)))
    found = read_local_tier(store, list(store.list())).partitions["events", 0]
    assert [facts.end_offset for facts in found.segments.values()] == [27, 63, 118]
    assert [facts.max_timestamp for facts in found.segments.values()] == [each.max_timestamp for each in segments]
    assert log_of(store, found) == b"".join(batch.data for batch in log)
    assert bytes_of(store, found.files["leader-epoch-checkpoint"]) == b"0\n4\n0 0\n2 27\n8 63\n12 90\n"
    names = {f"{each.end:020d}.snapshot" for each in segments}
    assert {name for name in found.files if name.endswith(".snapshot")} == names


def test_segments_of_two_leaders_do_not_overlap(tmp_path: Path, log: list[Batch]) -> None:
    segments = segments_of(log, (0, 63), (48, 90), (90, 118), (63, 90))
    store = put(tmp_path, *(files_of(each, number) for number, each in enumerate(segments)))
    found = read_local_tier(store, list(store.list())).partitions["events", 0]
    assert list(found.segments) == [0, 48, 90]
    assert log_of(store, found) == b"".join(batch.data for batch in log)


@pytest.mark.parametrize("lacking", [".log", ".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"])
def test_a_segment_that_lacks_a_file_is_left_out(tmp_path: Path, log: list[Batch], lacking: str) -> None:
    first, second = segments_of(log, (0, 63), (63, 118))
    part = {key: data for key, data in files_of(second, 2).items() if not key.endswith(lacking)}
    state = state_of(tmp_path, files_of(first, 1), part)
    assert list(state.partitions["events", 0].segments) == [0]
    assert any("not finished" in note and f"63-{name_of(2)}" in note for note in state.notes)


def test_another_partition_is_not_in_the_state(tmp_path: Path, log: list[Batch]) -> None:
    store = put(tmp_path, files_of(segments_of(log, (0, 63))[0], 1))
    listing = list(store.list())
    assert list(read_local_tier(store, listing, ("events", 0)).partitions) == [("events", 0)]
    assert not read_local_tier(store, listing, ("events", 1)).partitions


@pytest.mark.parametrize("suffix", [".log", ".leader_epoch_checkpoint"])
@pytest.mark.parametrize("data", [b"\xff" * 100, b"0\n1\n5 ", bytes(100)])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, log: list[Batch], suffix: str, data: bytes) -> None:
    files = files_of(segments_of(log, (0, 63))[0], 1)
    key = next(key for key in files if key.endswith(suffix))
    with pytest.raises(BackupError, match=f"^{key} in "):
        state_of(tmp_path, files, {key: data})


@pytest.mark.parametrize(
    "key",
    [
        f"events-0-{TOPIC_ID}/0-{name_of(1)}.log.tmp",
        f"events-0-{TOPIC_ID}/0-{name_of(1)}",
        f"events-0-{TOPIC_ID}/00-{name_of(1)}.log",
        f"events-0-{TOPIC_ID}/{2**63}-{name_of(1)}.leader_epoch_checkpoint",
        f"events-0-{TOPIC_ID}/0-short.leader_epoch_checkpoint",
        f"events-2147483648-{TOPIC_ID}/0-{name_of(1)}.leader_epoch_checkpoint",
        f"events-00-{TOPIC_ID}/0-{name_of(1)}.leader_epoch_checkpoint",
        f"..-0-{TOPIC_ID}/0-{name_of(1)}.leader_epoch_checkpoint",
        f"{'x' * 250}-0-{TOPIC_ID}/0-{name_of(1)}.leader_epoch_checkpoint",
        f"ev\nents-0-{TOPIC_ID}/0-{name_of(1)}.leader_epoch_checkpoint",
        f"events-0-{TOPIC_ID}/0-{name_of(1)}.leader_epoch_checkpoint\n",
        "events-0/00000000000000000000.log",
        "/",
        "",
    ],
)
def test_other_names_are_passed_over(key: str) -> None:
    listing = [ObjectInfo(key, 10)]
    assert not looks_like_local_tier(listing)


def test_layouts_are_told_apart(tmp_path: Path, log: list[Batch]) -> None:
    segment = segments_of(log, (0, 63))[0]
    copied = {"events-0/00000000000000000000.log": segment.log}
    layouts = {"local": files_of(segment, 1), "aiven": objects_of(segment), "copy": copied}
    for name, objects in layouts.items():
        listing = list(put(tmp_path / name, objects).list())
        looks = {"local": looks_like_local_tier, "aiven": looks_like_aiven, "copy": looks_like_copy}
        assert [layout for layout, look in looks.items() if look(listing)] == [name]
