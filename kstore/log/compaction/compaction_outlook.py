"""Explains why nothing of a log is cleaned, or what is cleaned next and when: in words, and as numbers.

Based on the results of `dirtiness`. Invariant: the time is that of the first pass that selects the log if nothing more
is appended; a search over the times at which anything changes finds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kstore.base import times
from kstore.base.numbers import LONG_MAX
from kstore.codec import header
from kstore.errors import CorruptRecordError, StorageError
from kstore.files import checkpoint
from kstore.log.compaction.dirtiness import Dirtiness, closed_from, survey, timestamp_of
from kstore.log.writing.cleaning_guard import State
from kstore.log.writing.writer import Writer
from kstore.types import CompactionOutlook

if TYPE_CHECKING:
    from kstore.config.log_config import LogConfig
    from kstore.log.reading.read_only_view import ReadOnlyView


class Transaction(NamedTuple):
    """An open transaction: its producer id, its first offset, and the timestamp of its first record, if known."""

    producer_id: int | None
    first_offset: int
    since_ms: int | None


def first_dirty_line(view: Writer | ReadOnlyView) -> int | None:
    if isinstance(view, Writer):
        return view.housekeeping.housekeeper.first_dirty(view.partition)
    return checkpoint.read_offset(view.root, checkpoint.CLEANER_OFFSETS, view.partition)


def outlook(view: Writer | ReadOnlyView, config: LogConfig, now_ms: int) -> CompactionOutlook:
    """Return why nothing is cleaned, or which part will be cleaned and when; changes nothing."""
    line = first_dirty_line(view)
    dirtiness = survey(view, config, now_ms, line)
    transaction = _transaction(view, dirtiness) if dirtiness.bound == "open transaction" else None
    due_ms = _due_ms(view, config, now_ms, line) if config.compacts else None
    oldest, youngest = dirtiness.oldest, dirtiness.youngest
    cleaning = view.cleaning if isinstance(view, Writer) else None
    failure = None if cleaning is None or cleaning.failure is None else cleaning.failure
    told = None if failure is None else f"{type(failure).__name__}: {failure}"
    if config.compacts:
        sentences = [
            *_of_state(State.NONE if cleaning is None else cleaning.state),
            *_of_dirty_part(dirtiness, config),
            *_of_bound(dirtiness, transaction, config, now_ms),
            *_of_force(dirtiness, config, now_ms),
            _of_due(due_ms, now_ms),
        ]
        if told is not None:
            sentences.append(f"the last cleaning failed, and is tried again with the next pass: {told}")
    else:
        sentences = [f"cleanup.policy is {','.join(config.cleanup_policy) or 'empty'}, so nothing is compacted"]
    is_held = dirtiness.bound == "min.compaction.lag.ms" and youngest is not None
    return CompactionOutlook(
        explanation="; ".join(sentences),
        due_ms=due_ms,
        first_dirty_offset=dirtiness.first_dirty_offset,
        first_uncleanable_offset=dirtiness.first_uncleanable_offset,
        clean_bytes=dirtiness.clean_bytes,
        cleanable_bytes=dirtiness.cleanable_bytes,
        ratio=dirtiness.ratio,
        held_offset=youngest.offset if is_held and youngest is not None else None,
        held_timestamp=youngest.timestamp if is_held and youngest is not None else None,
        forced_ms=None if oldest is None else oldest.timestamp + config.max_compaction_lag_ms + 1,
        transaction_producer_id=None if transaction is None else transaction.producer_id,
        transaction_offset=None if transaction is None else transaction.first_offset,
        transaction_since_ms=None if transaction is None else transaction.since_ms,
        failure=told,
    )


# The due time.


def _due_ms(view: Writer | ReadOnlyView, config: LogConfig, now_ms: int, line: int | None) -> int | None:
    """Return the first time from now on at which the log is eligible, or None for never.

    As time passes, more becomes cleanable and never less, so a bisection over the times of any change finds it.
    """

    def is_eligible(at_ms: int) -> bool:
        return survey(view, config, at_ms, line).is_eligible(config.min_cleanable_dirty_ratio)

    moments = sorted({moment_ms for moment_ms in _changes(view, config, line, now_ms) if moment_ms > now_ms})
    number = bisect_left([now_ms, *moments], True, key=is_eligible)
    return [now_ms, *moments, None][number]


def _changes(view: Writer | ReadOnlyView, config: LogConfig, line: int | None, now_ms: int) -> Sequence[int]:
    """Return the times at which a segment becomes old enough, or the log is forced."""
    dirtiness = survey(view, config, now_ms, line)
    moments = []
    if config.min_compaction_lag_ms > 0:
        dirty = closed_from(view.segments, dirtiness.first_dirty_offset)
        moments += [timestamp_of(view, segment)[0] + config.min_compaction_lag_ms for segment in dirty]
    if dirtiness.oldest is not None:
        moments.append(dirtiness.oldest.timestamp + config.max_compaction_lag_ms + 1)
    return moments


# The open transaction.


def _transaction(view: Writer | ReadOnlyView, dirtiness: Dirtiness) -> Transaction:
    """Return the transaction that begins at the last stable offset, with its producer and time as far as known."""
    offset = dirtiness.stable_offset
    with suppress(StorageError):  # a log that refuses writes
        offset, producer_id = min(view.open_transactions(), default=(offset, None))
        return Transaction(producer_id, offset, _first_timestamp(view, offset))
    return Transaction(None, offset, _first_timestamp(view, offset))


def _first_timestamp(view: Writer | ReadOnlyView, offset: int) -> int | None:
    """Return the timestamp of the first record of the batch that holds `offset`; None if it cannot be read."""
    segments = view.segments
    number = segments.floor(offset)
    if number < 0:
        return None
    segment = segments.items[number]
    with suppress(CorruptRecordError, StorageError):
        place = segment.find_batch(offset, view.readable_bytes(segment))
        if place is not None and place.magic >= 2:
            timestamp = header.BASE_TIMESTAMP.of(segment.file.read(place.position, header.BASE_TIMESTAMP.end))
            return timestamp if timestamp >= 0 else None
    return None


# As sentences.


def _of_state(state: State) -> Sequence[str]:
    if state in (State.IN_PROGRESS, State.ABORTED):
        return ["it is being cleaned now"]
    return ["its cleaning is paused while the log is changed otherwise"] if state is State.PAUSED else []


def _of_dirty_part(dirtiness: Dirtiness, config: LogConfig) -> Sequence[str]:
    sentences = []
    if dirtiness.reset:
        sentences.append(f"{dirtiness.reset}, so cleaning begins at the log start")
    first, end = dirtiness.first_dirty_offset, dirtiness.first_uncleanable_offset
    if dirtiness.active_base_offset <= first:
        return [*sentences, "no closed segment is dirty"]
    if dirtiness.ratio is None or not dirtiness.cleanable_bytes:
        return [*sentences, f"nothing from the first dirty offset {first} on is cleanable"]
    least, total = config.min_cleanable_dirty_ratio, dirtiness.clean_bytes + dirtiness.cleanable_bytes
    share = f"{dirtiness.cleanable_bytes} of {total} bytes ({dirtiness.ratio:.4g})"
    compared = "more than" if dirtiness.ratio > least else "no more than"
    bound = f"{compared} min.cleanable.dirty.ratio {least:.4g}"
    return [*sentences, f"offsets {first} to {end - 1} are dirty and cleanable: {share}, {bound}"]


def _of_bound(dirtiness: Dirtiness, transaction: Transaction | None, config: LogConfig, now_ms: int) -> Sequence[str]:
    end = dirtiness.first_uncleanable_offset
    if transaction is not None:
        who = "an open transaction"
        if transaction.producer_id is not None:
            who = f"the transaction of producer id {transaction.producer_id}"
        since = "" if transaction.since_ms is None else f", open since {_when(transaction.since_ms, now_ms)},"
        begins = f"that begins at offset {transaction.first_offset}{since}"
        return [f"nothing from offset {end} on is cleaned: {who} {begins} has to end first"]
    youngest = dirtiness.youngest
    if dirtiness.bound == "min.compaction.lag.ms" and youngest is not None:
        due_ms = youngest.timestamp + config.min_compaction_lag_ms
        if youngest.of_file:
            what = f"its records have no timestamps, and its file was written {_when(youngest.timestamp, now_ms)}"
        else:
            what = f"the record at offset {youngest.offset} is from {_when(youngest.timestamp, now_ms)}"
        lag = f"min.compaction.lag.ms = {times.span(config.min_compaction_lag_ms)}"
        return [f"{lag} holds segment {youngest.base_offset} and all behind it until {times.show(due_ms)}: {what}"]
    return [f"the active segment, from offset {dirtiness.active_base_offset} on, is never cleaned"]


def _of_force(dirtiness: Dirtiness, config: LogConfig, now_ms: int) -> Sequence[str]:
    if dirtiness.oldest is None or config.max_compaction_lag_ms >= LONG_MAX:
        return []
    forced_ms = dirtiness.oldest.timestamp + config.max_compaction_lag_ms + 1
    lag = f"max.compaction.lag.ms = {times.span(config.max_compaction_lag_ms)}"
    since = f"since {times.show(forced_ms)}" if forced_ms <= now_ms else f"from {times.show(forced_ms)} on"
    oldest = dirtiness.oldest
    first = f"the first batch of segment {oldest.base_offset} is from {times.show(oldest.timestamp)}"
    return [f"{lag} has it cleaned {since}, whatever the ratio: {first}"]


def _of_due(due_ms: int | None, now_ms: int) -> str:
    if due_ms is None:
        return "no pass selects it before more is appended or a transaction ends"
    if due_ms <= now_ms:
        return "the next pass of a cleaner selects it"
    return f"a pass selects it from {times.show(due_ms)} on"


def _when(ms: int, now_ms: int) -> str:
    ago = f"{times.span(now_ms - ms)} ago" if ms <= now_ms else f"{times.span(ms - now_ms)} ahead of the clock"
    return f"{times.show(ms)} ({ago})"
