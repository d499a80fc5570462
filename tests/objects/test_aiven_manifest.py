"""Any bytes at all in place of a manifest give a segment that fits its objects, or an error that names the manifest."""

from __future__ import annotations

import base64
import copy
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import BackupError
from kstore.files.epochs import EpochEntry
from kstore.objects.aiven_manifest import MOST_CHUNKS, AivenId, AivenManifest, Place, parse
from kstore.objects.aiven_tier import read_aiven
from kstore.objects.remote_state import ObjectRange
from tests.support.aiven_writer import TOPIC_ID, encode_sizes, name_of, objects_of, segment_from
from tests.support.tiers import put

KEY = AivenId("events", TOPIC_ID, 42, 100, name_of(7))
WHERE = "x.rsm-manifest in s3://bucket"

Damage = Callable[[dict[str, Any]], object]


def packed(data: bytes) -> str:
    return base64.b64encode(bytes(cramjam.zstd.compress(data))).decode()


def plain() -> dict[str, Any]:
    """A manifest with the fields that the plugin's documents have, in their order."""
    return {
        "version": "1",
        "chunkIndex": {
            "type": "fixed",
            "originalChunkSize": 100,
            "originalFileSize": 1050,
            "transformedChunkSize": 100,
            "finalTransformedChunkSize": 50,
        },
        "segmentIndexes": {
            "offset": {"position": 0, "size": 8},
            "timestamp": {"position": 8, "size": 12},
            "producerSnapshot": {"position": 20, "size": 10},
            "leaderEpoch": {"position": 30, "size": 9},
            "transaction": None,
        },
        "compression": False,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {"topicId": TOPIC_ID, "topicPartition": {"topic": "events", "partition": 42}},
                "id": name_of(7),
            },
            "startOffset": 100,
            "endOffset": 1000,
            "maxTimestampMs": 1000000000,
            "brokerId": 2,
            "eventTimestampMs": 2000000000,
            "segmentLeaderEpochs": {"0": 100, "2": 300, "10": 400},
        },
    }


def compressed(sizes: list[int] | None = None) -> dict[str, Any]:
    """A manifest of a log of 2,500,000 bytes in three compressed chunks."""
    made = plain()
    data = encode_sizes(sizes or [1_000_000, 1_000_010, 500_020])
    index = {"type": "variable", "originalChunkSize": 1_000_000, "originalFileSize": 2_500_000}
    made |= {"compression": True, "chunkIndex": {**index, "transformedChunks": packed(data)}}
    return made


def parsed(manifest: object) -> AivenManifest:
    return parse(json.dumps(manifest).encode(), WHERE, KEY)


def test_a_manifest_says_what_the_segment_has() -> None:
    found = parsed(plain())
    assert found == AivenManifest(
        log_bytes=1050,
        chunk_bytes=100,
        stored_sizes=None,
        indexes={
            ".index": Place(0, 8),
            ".timeindex": Place(8, 12),
            ".snapshot": Place(20, 10),
            "leader epochs": Place(30, 9),
        },
        end_offset=1001,
        max_timestamp=1_000_000_000,
        written_ms=2_000_000_000,
        epochs=(EpochEntry(0, 100), EpochEntry(2, 300), EpochEntry(10, 400)),
    )
    assert list(found.log_ranges("x.log", "tag")) == [ObjectRange("x.log", 0, 1050, 1050, etag="tag")]
    assert (found.stored_bytes, found.indexes_bytes) == (1050, 39)


def test_each_compressed_chunk_is_a_range() -> None:
    found = parsed(compressed())
    assert list(found.log_ranges("x.log", None)) == [
        ObjectRange("x.log", 0, 1_000_000, 1_000_000, is_zstd=True),
        ObjectRange("x.log", 1_000_000, 1_000_010, 1_000_000, is_zstd=True),
        ObjectRange("x.log", 2_000_010, 500_020, 500_000, is_zstd=True),
    ]
    assert found.stored_bytes == 2_500_030


def test_sizes_of_chunks_are_decoded_as_the_plugin_encodes_them() -> None:
    # Count, base, bytes for each value, the values without the last one, and the last one in four bytes.
    data = bytes.fromhex("00000003 000f4240 01 00 0a 0007a134")
    manifest = compressed()
    manifest["chunkIndex"]["transformedChunks"] = packed(data)
    assert parsed(manifest).stored_sizes == [1_000_000, 1_000_010, 500_020]


@pytest.mark.parametrize("count", [1, 2, 3, 300])
def test_sizes_of_any_width_are_decoded(count: int) -> None:
    chosen = random.Random(count)
    for most in (1, 255, 256, 65_536, 1 << 24, 2**31 - 1):
        sizes = [chosen.randint(1, most) for _ in range(count)]
        manifest = compressed(sizes)
        manifest["chunkIndex"] |= {"originalChunkSize": 10, "originalFileSize": 10 * count}
        assert parsed(manifest).stored_sizes == sizes


def test_other_fields_of_the_metadata_are_passed_over() -> None:
    manifest = plain()
    manifest["remoteLogSegmentMetadata"] |= {"state": "COPY_SEGMENT_STARTED", "customMetadata": {}, "txnIdxEmpty": True}
    assert parsed(manifest) == parsed(plain())


def test_an_encrypted_segment_is_refused_with_the_reason() -> None:
    manifest = plain() | {"encryption": {"dataKey": "key1:abcd", "aad": "CgsMDQ=="}}
    manifest["chunkIndex"] |= {"transformedChunkSize": 128, "finalTransformedChunkSize": 78}
    with pytest.raises(
        BackupError, match=r"x\.rsm-manifest in .* is encrypted; only a broker that has the .* private key"
    ):
        parsed(manifest)


@pytest.mark.parametrize("version", ["2", 1, None, "", {}])
def test_another_version_is_refused(version: object) -> None:
    with pytest.raises(
        BackupError, match=r"x\.rsm-manifest .* has version .*; this release of kstore knows version '1'"
    ):
        parsed(plain() | {"version": version})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("remoteLogSegmentId.topicIdPartition.topicPartition.topic", "other", "'events' as in its key"),
        ("remoteLogSegmentId.topicIdPartition.topicPartition.topic", "vents", "key.prefix must end with a slash"),
        ("remoteLogSegmentId.topicIdPartition.topicPartition.partition", 41, "42 as in its key"),
        ("remoteLogSegmentId.topicIdPartition.topicId", name_of(1), "as in its key"),
        ("remoteLogSegmentId.id", name_of(1), "as in its key"),
        ("startOffset", 99, "100 as in its key"),
        ("startOffset", 100.0, "100 as in its key"),
        ("endOffset", 99, "from 100 to"),
        ("endOffset", 2**63, "from 100 to"),
        ("maxTimestampMs", -2, "from -1 to"),
        ("segmentLeaderEpochs", {}, "at least one epoch"),
        ("segmentLeaderEpochs", {"0": 99}, "in 100 to 1000"),
        ("segmentLeaderEpochs", {"0": 1001}, "in 100 to 1000"),
        ("segmentLeaderEpochs", {"0": 100, "1": 100}, "above 100"),
        ("segmentLeaderEpochs", {"-1": 100}, "an epoch above"),
        ("segmentLeaderEpochs", {"2147483648": 100}, "an epoch above"),
        ("segmentLeaderEpochs", {"1" * 500: 100}, "an epoch above"),
        ("segmentLeaderEpochs", [], "an object"),
    ],
)
def test_metadata_of_another_segment_are_refused(field: str, value: object, says: str) -> None:
    manifest = plain()
    *path, name = field.split(".")
    inner = manifest["remoteLogSegmentMetadata"]
    for each in path:
        inner = inner[each]
    inner[name] = value
    with pytest.raises(BackupError, match=f"{WHERE} is malformed: .*{says}"):
        parsed(manifest)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"type": "other"}, "'fixed' or 'variable' is needed"),
        ({"type": None}, "'fixed' or 'variable' is needed"),
        ({"originalChunkSize": 0}, "from 1 to"),
        ({"originalFileSize": 0}, "from 1 to"),
        ({"originalFileSize": -5}, "from 1 to"),
        ({"originalFileSize": 2**31}, "from 1 to"),
        ({"originalFileSize": True}, "from 1 to"),
        ({"originalFileSize": 10**50}, "from 1 to"),
        ({"transformedChunkSize": 128}, "they are not compressed"),
        ({"finalTransformedChunkSize": 100}, "they are not compressed"),
        ({"later": 1}, "no field of this version"),
    ],
)
def test_wrong_chunks_are_refused(changes: dict[str, Any], says: str) -> None:
    manifest = plain()
    manifest["chunkIndex"] |= changes
    with pytest.raises(BackupError, match=says):
        parsed(manifest)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(3),
        bytes(4),
        bytes.fromhex("00000002 00000001 01 00 00000001"),
        bytes.fromhex("00000003 000f4240 01 00 0a 0007a1"),
        bytes.fromhex("00000003 000f4240 01 00 0a 0007a13400"),
        bytes.fromhex("00000003 000f4240 00 0007a134"),
        bytes.fromhex("00000003 000f4240 05 0000000000 0000000000 0007a134"),
        bytes.fromhex("00000003 00000000 01 00 0a 0007a134"),
        bytes.fromhex("00000003 000f4240 01 00 0a ffffffff"),
        bytes.fromhex("ffffffff 000f4240 01 00 0a 0007a134"),
    ],
)
def test_wrong_sizes_of_chunks_are_refused(data: bytes) -> None:
    manifest = compressed()
    manifest["chunkIndex"]["transformedChunks"] = packed(data)
    with pytest.raises(BackupError, match=r"transformedChunks is .* needed"):
        parsed(manifest)


@pytest.mark.parametrize("text", ["", "====", "not base64!", "AAAA", None, 7, "AAAA" * 200])
def test_sizes_that_are_not_packed_are_refused(text: object) -> None:
    manifest = compressed()
    manifest["chunkIndex"]["transformedChunks"] = text
    with pytest.raises(BackupError, match="transformedChunks is"):
        parsed(manifest)


MOST = {"originalChunkSize": 1, "originalFileSize": 2**31 - 1}
FIXED = {**MOST, "type": "fixed", "transformedChunkSize": 2**31 - 1, "finalTransformedChunkSize": 1}


@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        MOST,
        FIXED,
        {"originalChunkSize": 2**31 - 1, "originalFileSize": 2**31 - 1},
        {"transformedChunks": packed(bytes(64 << 20))},
    ],
)
def test_a_manifest_that_claims_much_takes_little_memory(changes: dict[str, Any], is_compressed: bool) -> None:
    manifest = compressed() | {"compression": is_compressed}
    manifest["chunkIndex"] |= changes
    data = json.dumps(manifest).encode()
    assert len(data) < 10_000
    tracemalloc.start()
    try:
        if changes or not is_compressed:
            with pytest.raises(BackupError):
                parse(data, WHERE, KEY)
        else:
            parse(data, WHERE, KEY)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_the_most_chunks_are_read_and_one_more_is_not() -> None:
    manifest = compressed([9] * MOST_CHUNKS)
    manifest["chunkIndex"] |= {"originalChunkSize": 10, "originalFileSize": 10 * MOST_CHUNKS}
    assert len(list(parsed(manifest).log_ranges("x", None))) == MOST_CHUNKS
    manifest["chunkIndex"] |= {"originalFileSize": 10 * MOST_CHUNKS + 1}
    with pytest.raises(BackupError, match="at most 65536 chunks"):
        parsed(manifest)


def places_in(value: object) -> Iterator[tuple[dict[str, Any] | list[Any], Any]]:
    """Every place of a JSON value that can be damaged."""
    for key, inner in list(value.items()) if isinstance(value, dict) else ():
        assert isinstance(value, dict)
        yield value, key
        yield from places_in(inner)


def parsed_or_none(data: bytes) -> AivenManifest | None:
    """The manifest, or None after an error that names it."""
    error: BackupError
    try:
        return parse(data, WHERE, KEY)
    except BackupError as raised:
        error = raised
    assert str(error).startswith(WHERE)
    return None


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 0, 2**31 - 1, 2**31, 2**63, 10**400]),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


@given(data=st.data())
def test_random_damage_leads_to_a_segment_or_a_clear_error(data: st.DataObject) -> None:
    manifest = data.draw(st.sampled_from([plain(), compressed()]))
    manifest = copy.deepcopy(manifest)
    for _ in range(data.draw(st.integers(1, 3))):
        places = list(places_in(manifest))
        if not places:
            break
        holder, key = data.draw(st.sampled_from(places))
        if data.draw(st.booleans(), label="drop"):
            del holder[key]
        else:
            holder[key] = data.draw(JUNK)
    found = parsed_or_none(json.dumps(manifest).encode())
    if found is None:
        return
    ranges = list(found.log_ranges("x", None))
    assert sum(each.length for each in ranges) == found.log_bytes
    assert sum(each.stored_bytes for each in ranges) == found.stored_bytes
    assert all(each.length > 0 and each.stored_bytes > 0 for each in ranges)
    assert found.end_offset > KEY.base_offset


@given(data=st.binary(max_size=200), at=st.integers(0, 2000), is_cut=st.booleans())
def test_random_bytes_lead_to_a_segment_or_a_clear_error(data: bytes, at: int, is_cut: bool) -> None:
    text = json.dumps(plain()).encode()
    damaged = text[: at % len(text)] + data + (b"" if is_cut else text[at % len(text) + len(data) :])
    parsed_or_none(damaged)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"1", b"[" * 100_000, b'{"version":"1","version":"1"}', b"\xff\xfe"]
)
def test_what_is_no_manifest_is_an_error(data: bytes) -> None:
    with pytest.raises(BackupError, match=r"^x\.rsm-manifest"):
        parse(data, WHERE, KEY)


def test_a_malformed_manifest_is_named_by_the_read(tmp_path: Path, golden: Callable[[str], Path]) -> None:
    objects = objects_of(segment_from(golden("canary-16k") / "dir" / "canary-0", 0, 107))
    key = next(key for key in objects if key.endswith("rsm-manifest"))
    store = put(tmp_path / "tier", objects, {key: objects[key][:100]})
    with pytest.raises(BackupError, match=f"^{key} in .* is malformed"):
        read_aiven(store, list(store.list()))


def test_a_manifest_of_many_bytes_is_not_read(tmp_path: Path, golden: Callable[[str], Path]) -> None:
    objects = objects_of(segment_from(golden("canary-16k") / "dir" / "canary-0", 0, 107))
    key = next(key for key in objects if key.endswith("rsm-manifest"))
    store = put(tmp_path / "tier", objects, {key: b" " * (2 << 20)})
    with pytest.raises(BackupError, match=key):
        read_aiven(store, list(store.list()))


@pytest.mark.parametrize("chunk", [None, 4096])
def test_damaged_logs_and_epochs_are_errors_when_they_are_read(
    tmp_path: Path, golden: Callable[[str], Path], chunk: int | None
) -> None:
    objects = objects_of(segment_from(golden("canary-16k") / "dir" / "canary-0", 0, 107), chunk=chunk)
    key = next(key for key in objects if key.endswith("indexes"))
    store = put(tmp_path / "tier", objects, {key: b"\xff" * len(objects[key])})
    with pytest.raises(BackupError, match=r"the leader epochs of .*\.log in .* is malformed"):
        read_aiven(store, list(store.list()))
