"""Any order of operations on a log gives what a list would give: a state machine against `model.Model`.

After every step the records, marks, segments and index entries are compared, as the writer sees them and as a reader
in mode "r" beside it does. A crash is a copy of the directory without a close, with or without a torn tail.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import kstore
from kstore import Record
from kstore.files import checkpoint
from kstore.log.writing import _appender
from tests.conftest import BUDGET, ManualClock
from tests.support.model import Model, ModelBatch
from tests.support.verifying import errors, unsound

SETTINGS = {
    "segment_bytes": st.sampled_from([200, 300, 1000, 1 << 20]),
    "index_interval_bytes": st.sampled_from([0, 1, 100, 4096]),
    "segment_index_bytes": st.sampled_from([24, 48, 100, 4096]),
    "segment_ms": st.sampled_from([1, 1000, 1 << 40]),
}
VALUES = st.sampled_from([None, b"", b"v", b"x" * 40, bytes(100)])
KEYS = st.sampled_from([None, b"", b"key"])
HEADERS = st.sampled_from([(), (("h", None),), (("a", b"1"), ("b", b""))])
# The moving clock never refuses one; -1 is none. Not 0: a time entry (0, 0) is all zeros, as one never written.
TIMESTAMPS = st.sampled_from([-1, 1, 5, 10, 11, 1000, 5000])
ROWS = st.tuples(KEYS, VALUES, TIMESTAMPS, HEADERS)
TAILS = st.sampled_from([b"", b"\0", bytes(17), bytes(18), bytes(5000), b"\xff" * 40, b"torn"])


@contextmanager
def no_room(*, after: int | None) -> Iterator[None]:
    """A disk that is full after so many writes of a batch or of index entries; None: that has room."""
    writes = itertools.count()

    def hook(fd: int, data: memoryview, position: int) -> int:
        if next(writes) >= after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, position)

    _appender.set_pwrite_hook(hook if after is not None else None)
    try:
        yield
    finally:
        _appender.set_pwrite_hook(None)


class LogMachine(RuleBasedStateMachine):
    """One log, its model, a reader beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="kstore-machine-"))
        self.life = 0
        self.clock = ManualClock()
        self.model = Model()
        self.config: dict[str, int] = {}
        self.log: kstore.Log | None = None
        self.epoch = 0

    @property
    def path(self) -> Path:
        return self.home / f"life-{self.life}" / "events-0"

    def open(self) -> kstore.Log:
        self.log = kstore.Log.open(self.path, clock=self.clock, **self.config)
        self.reader = kstore.Log.open(self.path, mode="r")
        return self.log

    @initialize(config=st.fixed_dictionaries({}, optional=SETTINGS))
    def begin(self, config: dict[str, int]) -> None:
        self.config = {"segment_bytes": 1000, "segment_index_bytes": 4096, **config}
        self.open()

    def teardown(self) -> None:
        if self.log is not None:
            self.log.close()
            self.reader.close()
            self.it_is_sound()
            with kstore.Log.open(self.path, clock=self.clock, **self.config) as log:
                log.append(b"next", timestamp=self.clock.now)
            self.it_is_sound()
        shutil.rmtree(self.home)

    def it_is_sound(self) -> None:
        """`verify` and `repair` agree with the log that what it wrote is sound."""
        assert unsound(self.path) == []

    @property
    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self.log.segments]

    # Appends.

    @rule(row=ROWS, sync=st.booleans())
    def append(self, row: tuple, sync: bool) -> None:
        key, value, timestamp, headers = row
        expected = self.model.end
        record = Record(expected, timestamp, key, value, headers)
        assert self.log.append(value, key, timestamp=timestamp, headers=headers or None, sync=sync) == expected
        self.model.append([ModelBatch(expected, expected, (record,))])

    @rule(rows=st.lists(ROWS, max_size=8), batch_bytes=st.sampled_from([1, 90, 150, 200]),
          codec=st.sampled_from(["none", "none", "gzip", "lz4"]))  # fmt: skip
    def append_many(self, rows: list[tuple], batch_bytes: int, codec: str) -> None:
        first = self.model.end
        try:
            info = self.log.append_many(rows, batch_bytes=batch_bytes, compression=codec)
        except kstore.RecordBatchTooLargeError as error:
            info = error.appended
        count = info.last_offset + 1 - first if info.last_offset >= 0 else 0
        records = [
            Record(first + i, timestamp, key, value, headers)
            for i, (key, value, timestamp, headers) in enumerate(rows[:count])
        ]
        # How records fall into batches is the packer's business; that they are all in some batch is ours.
        batches = list(self.log.read_batches(first)) if count else []
        assert [record for batch in batches for record in batch] == records
        assert info.max_timestamp == max((record.timestamp for record in records), default=-1)
        self.model.append(ModelBatch(b.base_offset, b.last_offset, tuple(b)) for b in batches)
        assert self.log.log_end_offset == first + count

    @rule(sizes=st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 7]), st.integers(1, 3)), min_size=1, max_size=3),
          row=ROWS, newer=st.booleans())  # fmt: skip
    def append_as_follower(self, sizes: list[tuple[int, int]], row: tuple, newer: bool) -> None:
        self.epoch += newer
        key, value, timestamp, headers = row
        batches, data, base = [], b"", self.model.end
        for gap, count in sizes:
            base += gap
            encoded = kstore.encode_batch([(key, value, timestamp, headers)] * count, base_offset=base,
                                          partition_leader_epoch=self.epoch)  # fmt: skip
            if len(data) + len(encoded) > self.config["segment_bytes"]:
                break
            data += encoded
            records = tuple(Record(base + i, timestamp, key, value, headers) for i in range(count))
            batches.append(ModelBatch(base, base + count - 1, records))
            base += count
        if not batches:
            return
        self.log.append_as_follower(data)
        self.model.append(batches)

    @rule(way=st.sampled_from(["append", "append_many", "append_columns"]), distance=st.sampled_from([-1, 0, 0, 1]),
          rows=st.lists(ROWS, min_size=1, max_size=8), codec=st.sampled_from(["none", "none", "gzip", "lz4"]),
          no_room_after=st.sampled_from([None, None, None, 0, 1, 2]))  # fmt: skip
    def append_expecting(
        self, way: str, distance: int, rows: list[tuple], codec: str, no_room_after: int | None
    ) -> None:
        """One batch at the log end if that is what is expected; after anything else the log is as it was."""
        end = self.model.end
        expected = max(end + distance, 0)
        rows = rows[:1] if way == "append" else rows
        call = partial(self.log.append_many, rows, atomic=True, compression=codec)
        if way == "append":
            [(key, value, timestamp, headers)] = rows
            call = partial(self.log.append, value, key, timestamp=timestamp, headers=headers or None)
        elif way == "append_columns":
            keys, values, timestamps, headers = ([row[i] for row in rows] for i in range(4))
            call = partial(self.log.append_columns, values, keys=keys, timestamps=timestamps, headers=headers,
                           compression=codec)  # fmt: skip
        allowed: tuple[type[Exception], ...] = (kstore.RecordTooLargeError, kstore.RecordBatchTooLargeError)
        if expected != end:
            allowed += (kstore.UnexpectedOffsetError,)
        if no_room_after is not None:
            allowed += (kstore.StorageError,)
        with no_room(after=no_room_after):
            try:
                call(expected_offset=expected)
                refusal = None
            except allowed as error:
                refusal = error
        if refusal is not None:
            assert self.log.log_end_offset == end
            if isinstance(refusal, kstore.UnexpectedOffsetError):
                assert (refusal.expected, refusal.actual) == (expected, end)
            return
        assert expected == end
        records = tuple(Record(end + i, timestamp, key, value, headers)
                        for i, (key, value, timestamp, headers) in enumerate(rows))  # fmt: skip
        self.model.append([ModelBatch(end, end + len(rows) - 1, records)])
        assert [batch.last_offset for batch in self.log.read_batches(end)] == [end + len(rows) - 1]

    @rule()
    def refuse(self) -> None:
        with pytest.raises((kstore.RecordTooLargeError, kstore.RecordBatchTooLargeError)):
            self.log.append(bytes(1 << 21))

    # Whatever else changes it.

    @rule()
    def roll(self) -> None:
        base = self.log.roll()
        assert base == self.bases[-1]
        assert base == self.model.end

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def housekeeping(self) -> None:
        self.log.run_housekeeping()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(max(self.bases[0] - 3, 0), self.model.end + 1))
        if not self.may_cut_to(offset):
            return
        bases = self.bases
        assert self.log.truncate_to(offset) == self.model.truncate(offset, bases)
        self.reloaded(anew=offset < bases[0])

    def may_cut_to(self, offset: int) -> bool:
        """Whether the model says what a truncation leaves."""
        return True

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.model.end + 20) | st.just(2**40))
        self.log.truncate_fully_and_start_at(offset)
        self.model.restart(offset)
        self.reloaded(anew=True)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        before = data.draw(st.integers(-1, self.model.end))
        self.model.delete(self.model.end if before == -1 else before)
        assert self.log.delete_records(before) == self.model.start

    @rule(keep_bytes=st.sampled_from([-1, 0, 100, 300, 1000]), keep_ms=st.sampled_from([-1, -1, 0, 1000, 10**6]))
    def retain(self, keep_bytes: int, keep_ms: int) -> None:
        self.log.update_config(retention_bytes=keep_bytes, retention_ms=keep_ms)
        segments, total = list(self.log.segments), sum(segment.size_bytes for segment in self.log.segments)
        gone = []
        while len(segments) > 1 and segments[0].next_offset <= self.model.start:
            gone.append(segments.pop(0))
        for by_size in (True, False):
            total = sum(segment.size_bytes for segment in segments)
            while segments and (len(segments) > 1 or segments[0].size_bytes):
                first = segments[0]
                written_ms = Path(first.path).stat().st_mtime_ns // 1_000_000
                newest = first.max_timestamp if first.max_timestamp >= 0 else written_ms
                if by_size and not 0 <= keep_bytes <= total - first.size_bytes:
                    break
                if not by_size and not 0 <= keep_ms < self.clock.now - newest:
                    break
                total -= first.size_bytes
                gone.append(segments.pop(0))
        went = self.log.apply_retention()  # the active one has been given its closing time entry
        entries = [segment.time_index_entries for segment in went]
        assert went == [
            replace(segment, is_active=False, time_index_entries=count)
            for segment, count in zip(gone, entries, strict=True)
        ]
        if gone:
            self.model.delete(gone[-1].next_offset)
            self.model.drop_segments(self.bases[0])
        self.log.update_config(retention_bytes=-1, retention_ms=-1)

    @rule(by=st.sampled_from([1, 999, 60_000, 10**7, -5000]))
    def move_clock(self, by: int) -> None:
        self.clock.advance(by)

    @rule(name=st.sampled_from(sorted(SETTINGS)), data=st.data())
    def configure(self, name: str, data: st.DataObject) -> None:
        self.config[name] = data.draw(SETTINGS[name])
        self.log.update_config(**{name: self.config[name]})

    # The end of a life, and the next.

    @rule()
    def reopen(self) -> None:
        bases = self.bases
        self.log.close()
        self.reader.close()
        self.it_is_sound()
        self.model.reopen(bases)
        log = self.open()
        assert log.recovery.cut_bytes == 0
        if log.log_end_offset > 0 and not log.recovery.segments_dropped:
            assert log.recovery.clean
        self.reloaded(anew=False)

    @rule(tail=TAILS, lost=st.sampled_from(["", "index", "timeindex", "zero", "snapshot", "snapshots", "torn"]))
    def crash(self, tail: bytes, lost: str) -> None:
        bases = self.bases
        active = Path(self.log.segments[-1].path)
        old = self.path.parent
        self.life += 1
        shutil.copytree(old, self.path.parent)
        self.log.close()
        self.reader.close()
        shutil.rmtree(old)
        file = self.path / active.name
        with open(file, "ab") as out:
            out.write(tail)
        if lost == "zero":
            for kind in (".index", ".timeindex"):
                index = file.with_suffix(kind)
                index.write_bytes(bytes(index.stat().st_size))
        elif lost in ("snapshots", "torn"):
            for snapshot in self.path.glob("*.snapshot"):
                snapshot.write_bytes(snapshot.read_bytes()[:-1]) if lost == "torn" else snapshot.unlink()
        elif lost:
            file.with_suffix(f".{lost}").unlink(missing_ok=True)
        start = self.model.start
        self.model.reopen(bases)
        with kstore.Log.open(self.path, mode="r") as reader:
            if self.model.end >= start:
                assert list(reader.read()) == self.model.records()
        log = self.open()
        assert not log.recovery.clean
        assert log.recovery.cut_bytes == len(tail)
        assert log.recovery.leftovers_removed == sorted(log.recovery.leftovers_removed)
        self.reloaded(anew=False)

    def reloaded(self, *, anew: bool) -> None:
        """What the log knows of producers it has read again; with `anew` there is nothing to be read."""

    # What must hold.

    @precondition(lambda self: self.log is not None)
    @invariant()
    def it_is_what_the_model_is(self) -> None:
        self.marks_and_records_are_the_models()
        self.a_read_from_anywhere_begins_there()
        self.times_are_found()
        self.segments_and_their_indexes_are_sound()
        self.checkpoints_say_nothing_that_is_not_so()
        assert errors(self.path) == []

    def marks_and_records_are_the_models(self) -> None:
        model = self.model
        for log in (self.log, self.reader):
            assert (log.log_start_offset, log.high_watermark) == (model.start, log.log_end_offset)
            assert list(log.read()) == model.records()
        assert self.log.log_end_offset == model.end
        self.committed_records_are_the_models()

    def committed_records_are_the_models(self) -> None:
        for log in (self.log, self.reader):
            assert log.last_stable_offset == log.log_end_offset

    def a_read_from_anywhere_begins_there(self) -> None:
        model = self.model
        for offset in {model.start, (model.start + model.end) // 2, max(model.end - 1, model.start), model.end}:
            for log in (self.log, self.reader):
                if offset > log.log_end_offset:
                    continue  # truncated inside a batch: the reader's end is where the data ends
                assert list(log.read(offset)) == model.records(offset)
                if offset < log.log_end_offset:
                    found = log.get(offset)
                    assert found == next(
                        (record for record in model.records(offset)[:1] if record.offset == offset), None
                    )
                fetched = log.fetch(offset, 1)
                expected = next((b for b in model.batches if b.last_offset >= offset), None)
                if expected is None:
                    assert len(fetched.records) == 0
                else:
                    assert fetched.offset == expected.base_offset
        with pytest.raises(kstore.OffsetOutOfRangeError):
            self.log.read(model.end + 1)
        with pytest.raises(kstore.OffsetOutOfRangeError):
            self.log.get(model.end)
        if model.start:
            with pytest.raises(kstore.OffsetOutOfRangeError):
                self.log.read(model.start - 1)

    def times_are_found(self) -> None:
        for log in (self.log, self.reader):
            for timestamp in (1, 10, 11, 12, 5000, 5001):
                assert log.offset_for_timestamp(timestamp) == self.model.offset_for_timestamp(timestamp)
            assert log.max_timestamp() == self.model.max_timestamp()

    def segments_and_their_indexes_are_sound(self) -> None:
        segments = self.log.segments
        bases = [segment.base_offset for segment in segments]
        assert bases == sorted(set(bases))
        assert [segment.next_offset for segment in segments] == [*bases[1:], self.model.end]
        assert [segment.is_active for segment in segments] == [False] * (len(bases) - 1) + [True]
        for segment in segments:
            data = Path(segment.path).read_bytes()
            assert len(data) == segment.size_bytes
            places, position = {}, 0
            maximum = -1
            for batch in kstore.decode_batches(data):
                places[position] = batch.last_offset
                position += batch.size_bytes
                maximum = max(maximum, batch.max_timestamp)
            assert segment.max_timestamp == maximum
            index = Path(segment.path).with_suffix(".index").read_bytes()[: 8 * segment.offset_index_entries]
            for relative, at in struct.iter_unpack(">ii", index):
                assert places[at] == segment.base_offset + relative
            times = Path(segment.path).with_suffix(".timeindex").read_bytes()[: 12 * segment.time_index_entries]
            entries = list(struct.iter_unpack(">qi", times))
            assert entries == sorted(entries)
            if not segment.is_active:
                assert len(index) == Path(segment.path).with_suffix(".index").stat().st_size
                assert (entries[-1][0] if entries else -1) == maximum

    def checkpoints_say_nothing_that_is_not_so(self) -> None:
        lines = checkpoint.read_offsets(self.path.parent, "recovery-point-offset-checkpoint")
        assert lines.get(("events", 0), 0) <= self.model.end


def test_any_order_of_operations_gives_what_a_list_gives(no_syncs: None) -> None:
    shape = settings(max_examples=max(int(120 * BUDGET), 1), stateful_step_count=25, report_multiple_bugs=False)
    run_state_machine_as_test(LogMachine, settings=shape)
