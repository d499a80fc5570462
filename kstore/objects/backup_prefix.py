"""Reads a kstore backup as a `RemoteState`: the catalog's sealed segments, and the tail from the rounds.

The files are those that a restore of the same round would write, except for the indexes of the tail's segments, which
a restore builds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from kstore.files import checkpoint, gap_files, names
from kstore.files.load_files import LOADS_FILE
from kstore.files.topic_files import TOPICS_FILE, TopicRecord, TopicTable
from kstore.objects import deleted_segments
from kstore.objects.backup_contents import BackupState, PartitionKey, PartitionState
from kstore.objects.backup_state import History
from kstore.objects.remote_state import ObjectRange, RemoteFile, RemotePartition, RemoteState, SegmentFacts
from kstore.objects.restore_plan import PartitionPlan, PlannedFile, plan

_NS_PER_MS = 1_000_000


def read_backup(history: History, until_ms: int | None, *, with_deleted: bool) -> RemoteState:
    """Return the newest state of a backup, or its state at a time.

    With `with_deleted` the logs also have the segments that retention had deleted by then, as far as they are kept.
    """
    state = history.newest() if until_ms is None else history.at_time(until_ms)
    if with_deleted:
        state = deleted_segments.add_deleted(history, state)
    plans = plan(_last_segments(state), {}, None).partitions
    notes = () if state.caught_up else ("the first backup is not finished: some records are missing",)
    return RemoteState(
        layout="backup",
        partitions={each.key: _partition(state.partitions[each.key], each) for each in plans},
        files=_root_files(state, plans),
        number=state.number,
        time_ms=state.time_ms,
        notes=notes,
    )


def _last_segments(state: BackupState) -> BackupState:
    """Return the state with the last sealed segment of each partition: the plan of a restore needs no more of them.

    A plan takes longer than `_sealed_files`, which matters with ten thousand segments.
    """
    partitions = {key: replace(each, segments=each.segments[-1:]) for key, each in state.partitions.items()}
    return replace(state, partitions=partitions)


def _partition(state: PartitionState, planned: PartitionPlan) -> RemotePartition:
    directory = f"{planned.directory}/"
    files = dict(_sealed_files(state, directory))
    files |= {each.path.removeprefix(directory): _file(each) for each in planned.files}
    epochs = [entry for entry in state.epochs if entry.offset <= planned.end_offset]
    files[names.LEADER_EPOCH_CHECKPOINT] = RemoteFile(content=checkpoint.format_checkpoint(epochs))
    if planned.gaps:
        files[gap_files.GAPS_FILE] = RemoteFile(content=gap_files.format_gaps(planned.gaps))
    if state.topic_id:
        metadata = checkpoint.format_partition_metadata(checkpoint.parse_topic_id(state.topic_id))
        files[names.PARTITION_METADATA] = RemoteFile(content=metadata)
    return RemotePartition(
        state.topic,
        state.partition,
        files,
        dict(_segments(state, planned)),
        log_start_offset=max(
            state.log_start_offset, state.segments[0].base_offset if state.segments else planned.bases[0]
        ),
        end_offset=planned.end_offset,
    )


def _file(planned: PlannedFile) -> RemoteFile:
    ranges = tuple(ObjectRange(part.key, part.position, part.length, part.length, part.crc) for part in planned.parts)
    return RemoteFile(tuple(each for each in ranges if each.length), modified_ms=planned.modified_ns // _NS_PER_MS)


def _sealed_files(state: PartitionState, directory: str) -> Iterator[tuple[str, RemoteFile]]:
    """Yield the name and the objects of each file of the sealed segments."""
    for base, _, _, modified_ns, files, _ in state.segments:
        modified_ms = modified_ns // _NS_PER_MS
        for kind, length, crc, suffix in files:
            name = names.file_name(base, kind)
            key = f"{directory}{name}.{suffix}" if suffix else directory + name
            yield name, RemoteFile((ObjectRange(key, 0, length, length, crc),) if length else (), None, modified_ms)


def _segments(state: PartitionState, planned: PartitionPlan) -> Iterator[tuple[int, SegmentFacts]]:
    """Yield what is known of each segment by its base offset."""
    for segment in state.segments:
        yield segment.base_offset, SegmentFacts(segment.end_offset, segment.max_timestamp)
    starts = _starts(state)
    tail = planned.bases[len(state.segments[-1:]) :]
    for base, end in pairwise((*tail, planned.end_offset)):
        yield base, SegmentFacts(end, starts=starts.get(base, ()), has_indexes=False)


def _starts(state: PartitionState) -> Mapping[int, tuple[tuple[int, int], ...]]:
    """Return where chunks begin in the segments of the tail: (first offset, position)."""
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for before, chunk in pairwise(state.tail):
        if chunk.base_offset == before.base_offset:
            found[chunk.base_offset] = (*found.get(chunk.base_offset, ()), (before.end_offset, chunk.position))
    return found


def _root_files(state: BackupState, plans: tuple[PartitionPlan, ...]) -> dict[str, RemoteFile]:
    table = TopicTable()
    for topic, record in state.topics.items():
        topic_id = checkpoint.parse_topic_id(record.topic_id)
        table = table.put(topic, TopicRecord(topic_id, record.partitions, record.config))
    files = {TOPICS_FILE: replace(table, generation=1).to_bytes()} if state.topics else {}
    marks: dict[str, dict[PartitionKey, int]] = {
        checkpoint.RECOVERY_POINTS: {each.key: each.end_offset for each in plans},
        checkpoint.LOG_STARTS: {each.key: each.state.log_start_offset for each in plans if each.state.log_start_offset},
        checkpoint.HIGH_WATERMARKS: {each.key: each.state.high_watermark for each in plans},
        checkpoint.CLEANER_OFFSETS: {
            each.key: each.state.cleaned_offset for each in plans if each.state.cleaned_offset >= 0
        },
    }
    files |= {name: checkpoint.format_offsets(offsets) for name, offsets in marks.items()}
    if state.loads:
        files[LOADS_FILE] = state.loads.encode()
    return {name: RemoteFile(content=data) for name, data in files.items()}
