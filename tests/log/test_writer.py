"""The compiled appender: its limits are roll.py's, and what fails leaves everything as it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore import encode_batch
from kstore.codec import _batches
from kstore.log.segments import roll
from kstore.log.writing import _appender, active_segment
from tests.support.rolling import reason


class Files:
    """An appender on three real files."""

    def __init__(self, directory: Path, **limits: int) -> None:
        self.paths = [directory / name for name in ("log", "index", "timeindex")]
        self.fds = [os.open(path, os.O_RDWR | os.O_CREAT) for path in self.paths]
        self.appender = _appender.Appender(lambda: self.now)
        self.now = 1000
        self.appender.configure(
            max_message_bytes=1 << 20,
            before_max_ms=2**63 - 1,
            after_max_ms=2**63 - 1,
            log_append_time=False,
            key_required=False,
            plain=True,
        )
        self.limits = roll.RollLimits(
            **{"segment_bytes": 1 << 30, "wait_ms": 1 << 40, "offset_entries": 1000, "time_entries": 1000, **limits}
        )
        self.attach()

    def attach(self, **tail: int) -> None:
        start = {
            "base_offset": 0, "size": 0, "next_offset": 0, "offset_entries": 0, "time_entries": 0,
            "last_time_entry": -1, "max_timestamp": -1, "max_timestamp_offset": 0, "first_timestamp": -1,
            "created_ms": self.now,
        }  # fmt: skip
        self.appender.attach(log_fd=self.fds[0], offset_fd=self.fds[1], time_fd=self.fds[2], **{**start, **tail})
        self.appender.limit(
            segment_bytes=self.limits.segment_bytes,
            wait_ms=self.limits.wait_ms,
            offset_entries=self.limits.offset_entries,
            time_entries=self.limits.time_entries,
            index_interval_bytes=0,
        )
        self.appender.epoch_assigned = True
        self.appender.busy = False

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    found = Files(tmp_path)
    yield found
    found.close()
    _appender.set_pwrite_hook(None)


small = st.integers(0, 40)


@given(
    size=small, append=st.integers(70, 120), segment_bytes=st.integers(60, 200), wait=small, first=st.integers(-1, 40),
    stamp=st.integers(-1, 80), now=st.integers(1000, 1080), offset_entries=small, time_entries=small,
    base=st.sampled_from([0, 5, 2**31 - 2]), next_offset=st.sampled_from([2**31 - 1, 2**31, 2**32 + 3, 2**31 + 5]),
)  # fmt: skip
def test_the_appender_rolls_for_the_reason_that_the_rule_names(
    tmp_path_factory: pytest.TempPathFactory, size: int, append: int, segment_bytes: int, wait: int, first: int,
    stamp: int, now: int, offset_entries: int, time_entries: int, base: int, next_offset: int,
) -> None:  # fmt: skip
    """SEMANTICS 2.2."""
    files = Files(tmp_path_factory.mktemp("roll"), segment_bytes=segment_bytes, wait_ms=wait, offset_entries=20,
                  time_entries=20)  # fmt: skip
    try:
        files.attach(base_offset=base, size=size, next_offset=next_offset, offset_entries=offset_entries,
                     time_entries=time_entries, first_timestamp=first, created_ms=1000)  # fmt: skip
        data = bytearray(encode_batch([(None, b"v" * (append - 69), stamp, None)]))
        files.now = now
        code, _ = files.appender.commit(data, 0, False)
        expected = reason(
            files.limits,
            base_offset=base,
            size_bytes=size,
            waited_ms=stamp - first if first >= 0 else now - 1000,
            offset_entries=offset_entries,
            time_entries=time_entries,
            append_bytes=len(data),
            append_last_offset=next_offset,
        )
        assert active_segment.ROLL_REASONS.get(code) == expected
    finally:
        files.close()


@pytest.mark.parametrize("failing", range(6))
def test_a_write_that_fails_leaves_files_and_counters_as_they_were(files: Files, failing: int) -> None:
    """An append never fails after its record is in."""
    for _ in range(3):
        files.appender.append(b"x" * 50, None, 5)
    before = [path.read_bytes() for path in files.paths]
    state = (files.appender.size, files.appender.next_offset, files.appender.offset_entries)
    calls = 0

    def hook(fd: int, data: memoryview, position: int) -> int:
        nonlocal calls
        calls += 1
        if calls > failing:
            raise OSError(errno.ENOSPC, "full")
        return os.pwrite(fd, data, position)

    _appender.set_pwrite_hook(hook)
    data = bytearray(b"".join(encode_batch([(None, b"y" * 50, 100 + i, None)]) for i in range(600)))
    if failing < 5:
        with pytest.raises(kstore.StorageError) as caught:
            files.appender.commit(data, 0, False)
        assert caught.value.errno == errno.ENOSPC
        assert (files.appender.size, files.appender.next_offset, files.appender.offset_entries) == state
        assert files.paths[0].read_bytes() == before[0]
        entries = files.appender.offset_entries * 8
        assert files.paths[1].read_bytes()[:entries] == before[1][:entries]
    _appender.set_pwrite_hook(None)
    assert files.appender.append(b"z", None, 5) == state[1]


def test_a_short_write_is_finished(files: Files) -> None:
    _appender.set_pwrite_hook(lambda fd, data, position: os.pwrite(fd, bytes(data)[:7], position))
    assert files.appender.append(b"x" * 100, b"k", 5) == 0
    _appender.set_pwrite_hook(None)
    [batch] = kstore.decode_batches(files.paths[0].read_bytes())
    assert [(r.key, r.value) for r in batch] == [(b"k", b"x" * 100)]


def test_a_lone_record_is_the_batch_that_the_codec_writes(files: Files) -> None:
    for value, key in ((b"v", b"k"), (None, b""), (b"", None), (b"x" * 300, b"y" * 70)):
        files.attach()
        for fd in files.fds:
            os.ftruncate(fd, 0)
        files.appender.leader_epoch = 3
        files.appender.append(value, key, 77)
        assert files.paths[0].read_bytes() == encode_batch([(key, value, 77, None)], partition_leader_epoch=3)


def test_any_buffer_is_taken_as_bytes(files: Files) -> None:
    buffers = (bytearray(b"abc"), memoryview(b"abc"), memoryview(b"aXbXcX")[::1][:3], memoryview(b"aXbXcX")[::2])
    for offset, value in enumerate(buffers):
        assert files.appender.append(value, None, 1) == offset
        assert files.paths[0].read_bytes().endswith(bytes(value) + b"\0")  # no headers
    with pytest.raises(TypeError, match="encode"):
        files.appender.append("abc", None, 1)
    with pytest.raises(TypeError, match="int"):
        files.appender.append(3, None, 1)


def test_bytes_that_are_no_whole_batches_are_refused(files: Files) -> None:
    batch = encode_batch([b"x"])
    for data in (batch[:-1], batch + b"x", b"\0" * 61, batch[:16]):
        with pytest.raises(ValueError):
            files.appender.commit(bytearray(data), 0, False)
    assert files.appender.size == 0


def test_an_appender_that_is_busy_or_detached_says_so(files: Files) -> None:
    files.appender.busy = True
    assert files.appender.append(b"x", None, 1) == _appender.Code.BUSY
    files.appender.busy = False
    files.appender.detach()
    assert files.appender.append(b"x", None, 1) == _appender.Code.BUSY


@given(st.binary(max_size=200), st.integers(0, 80))
def test_whole_batches_walks_any_bytes(data: bytes, cut: int) -> None:
    whole, _ = _batches.whole_batches(data)
    assert 0 <= whole <= len(data)
    batches = encode_batch([b"a"]) + encode_batch([b"b"])
    size = len(batches) // 2
    whole, missing = _batches.whole_batches(batches[: len(batches) - cut])
    assert whole == (len(batches) - cut) // size * size
    assert (missing == 0) == (cut in (0, size))
