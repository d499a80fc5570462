"""What a caller may get wrong: each a clear error that names the argument, and the log is as it was."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
import kstore.spark
from tests.conftest import ManualClock

LONG_MAX = 2**63 - 1
NO_INTEGERS: list[Any] = [True, 1.0, math.nan, "1", b"1", [], object()]
HUGE = [2**63, 2**64, -(2**63) - 1, -(2**80)]


@pytest.fixture
def log(partition: Path, clock: ManualClock) -> Iterator[kstore.Log]:
    with kstore.Log.open(partition, clock=clock) as found:
        found.append_many([b"0", b"1", b"2"])
        yield found


def contents(log: kstore.Log) -> list[tuple[Any, ...]]:
    return [tuple(record) for record in log.read()]


def refuses(log: kstore.Log, error: type[BaseException], match: str, call: Callable[[], object]) -> None:
    """The call raises exactly this class, and nothing has changed."""
    before = contents(log), log.log_start_offset, log.log_end_offset, Path(log.segments[0].path).read_bytes()
    with pytest.raises(error, match=match) as caught:
        call()
    assert type(caught.value) is error
    assert before == (contents(log), log.log_start_offset, log.log_end_offset, Path(log.segments[0].path).read_bytes())


INTEGERS: dict[str, Callable[[kstore.Log, Any], object]] = {
    "offset": lambda log, value: log.read(value),
    "offset ": lambda log, value: log.read_batches(value),
    "offset  ": lambda log, value: log.fetch(value, 100),
    "end_offset": lambda log, value: log.read(0, end_offset=value),
    "start_timestamp": lambda log, value: log.read(start_timestamp=value),
    "max_bytes": lambda log, value: log.fetch(0, value),
    "timestamp": lambda log, value: log.offset_for_timestamp(value),
    "timestamp ": lambda log, value: log.append(b"x", timestamp=value),
    "leader_epoch": lambda log, value: log.append(b"x", leader_epoch=value),
    "leader_epoch ": lambda log, value: log.append_many([b"x"], leader_epoch=value),
    "leader_epoch  ": lambda log, value: log.append_batch(kstore.encode_batch([b"x"]), leader_epoch=value),
    "leader_epoch   ": lambda log, value: log.append_as_follower(b"", leader_epoch=value),
    "batch_bytes": lambda log, value: log.append_many([b"x"], batch_bytes=value),
    "offset   ": lambda log, value: log.truncate_to(value),
    "offset    ": lambda log, value: log.truncate_fully_and_start_at(value),
    "log_start_offset": lambda log, value: log.truncate_fully_and_start_at(5, log_start_offset=value),
    "before_offset": lambda log, value: log.delete_records(value),
}


@pytest.mark.parametrize("value", NO_INTEGERS, ids=lambda value: f"{type(value).__name__} {str(value)[:3]}")
@pytest.mark.parametrize("name", INTEGERS)
def test_what_is_no_integer_is_a_type_error_that_names_the_argument(log: kstore.Log, name: str, value: Any) -> None:
    refuses(log, TypeError, rf"^{name.strip()} must be an int", lambda: INTEGERS[name](log, value))


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("name", [name for name in INTEGERS if name != "max_bytes"])
def test_a_number_of_more_than_64_bits_is_refused_by_name(log: kstore.Log, name: str, value: int) -> None:
    before = contents(log)
    with pytest.raises(ValueError, match=rf"{name.strip()}.*{value}|offset {value} is not in the log"):
        INTEGERS[name](log, value)
    assert contents(log) == before


@pytest.mark.parametrize("value", [3, LONG_MAX])
def test_the_greatest_numbers_are_taken(log: kstore.Log, value: int) -> None:
    assert len(list(log.read(0, end_offset=value))) == 3
    assert log.offset_for_timestamp(LONG_MAX) is None
    assert list(log.read(start_timestamp=LONG_MAX)) == []
    assert len(log.fetch(0, value + 2**70).records) > 0
    assert not log.truncate_to(value)
    log.append_many([b"x"], batch_bytes=value)


@pytest.mark.parametrize("value", [math.nan, -1, -0.001, -math.inf])
def test_a_timeout_that_is_no_time_is_refused(log: kstore.Log, value: float) -> None:
    refuses(log, ValueError, "^timeout is", lambda: log.read(follow=True, timeout=value))


@pytest.mark.parametrize("value", ["1", True, [], b""])
def test_a_timeout_that_is_no_number_is_refused(log: kstore.Log, value: Any) -> None:
    refuses(log, TypeError, "^timeout must be", lambda: log.read(follow=True, timeout=value))


@pytest.mark.parametrize("value", [math.inf, 1e300, 10**30, 0, None])
def test_any_time_is_a_timeout(log: kstore.Log, value: Any) -> None:
    assert next(iter(log.read(follow=True, timeout=value))).offset == 0


@pytest.mark.parametrize("value", [1, 1.5, True, [], object()])
def test_a_value_or_key_that_is_no_buffer_is_a_type_error(log: kstore.Log, value: Any) -> None:
    refuses(log, TypeError, "^value must be bytes-like", lambda: log.append(value))
    refuses(log, TypeError, "^key must be bytes-like", lambda: log.append(b"", value))
    refuses(log, TypeError, "record 0 ", lambda: log.append_many([value]))
    refuses(log, TypeError, "of record 0 ", lambda: log.append_many([(b"", value)]))


def test_text_is_refused_with_what_to_do(log: kstore.Log) -> None:
    for call in (
        lambda: log.append("x"),  # type: ignore[arg-type]
        lambda: log.append(b"x", "k"),  # type: ignore[arg-type]
        lambda: log.append_many(["x"]),
        lambda: log.append(b"x", headers=[("a", "b")]),  # type: ignore[list-item]
        lambda: log.append_batch("x"),  # type: ignore[arg-type]
    ):
        refuses(log, TypeError, "encode", call)


@pytest.mark.parametrize("records", [b"abc", "abc", bytearray(b"x"), 5, None])
def test_records_that_are_one_value_are_no_iterable(log: kstore.Log, records: Any) -> None:
    refuses(log, TypeError, "^records must be an iterable", lambda: log.append_many(records))


@pytest.mark.parametrize(
    "headers", [[1], ["ab"], [("a",)], [("a", b"x", 1)], [(b"a", b"x")], [(None, b"")], [("a", 1)]]
)
def test_headers_of_a_wrong_shape_are_a_type_error(log: kstore.Log, headers: Any) -> None:
    refuses(log, TypeError, "header", lambda: log.append(b"x", headers=headers))


def test_a_record_that_is_refused_leaves_the_batches_before_it_and_says_so(log: kstore.Log) -> None:
    with pytest.raises(kstore.InvalidTimestampError, match="record 2") as caught:
        log.append_many([b"a", b"b", (None, b"c", -2, None)], batch_bytes=1)
    assert caught.value.appended is not None
    assert (caught.value.appended.first_offset, caught.value.appended.last_offset) == (3, 3)
    assert log.log_end_offset == 4


@pytest.mark.parametrize(("stamp", "taken"), [(-2, False), (-1, True), (0, True), (LONG_MAX, True)])
def test_timestamps_are_taken_from_none_to_the_greatest(log: kstore.Log, stamp: int, taken: bool) -> None:
    log.update_config(message_timestamp_after_max_ms=LONG_MAX)
    if taken:
        assert log.append(b"x", timestamp=stamp) == 3
        assert [record.timestamp for record in log.read(3)] == [stamp]
    else:
        refuses(log, kstore.InvalidTimestampError, str(stamp), lambda: log.append(b"x", timestamp=stamp))


@pytest.mark.parametrize(("before", "after", "stamp", "taken"), [
    (10, LONG_MAX, -10, True), (10, LONG_MAX, -11, False), (LONG_MAX, 10, 10, True), (LONG_MAX, 10, 11, False),
])  # fmt: skip
def test_timestamps_too_far_from_the_clock_are_refused(
    partition: Path, clock: ManualClock, before: int, after: int, stamp: int, taken: bool
) -> None:
    """SEMANTICS 1.17, the limits themselves included."""
    limits = {"message_timestamp_before_max_ms": before, "message_timestamp_after_max_ms": after}
    with kstore.Log.open(partition, clock=clock, **limits) as log:
        for call in (
            lambda: log.append(b"x", timestamp=clock.now + stamp),
            lambda: log.append_many([(None, b"x", clock.now + stamp, None)]).last_offset,
        ):
            if taken:
                call()
            else:
                with pytest.raises(kstore.InvalidTimestampError, match=r"10 ms|ms after|ms before"):
                    call()
        assert log.log_end_offset == (2 if taken else 0)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_value_over_the_limit_is_refused_with_both_numbers(partition: Path, extra: int) -> None:
    with kstore.Log.open(partition, max_message_bytes=500) as log:
        value = b"x" * (500 - 70 + extra)
        if extra == 0:
            assert log.append(value) == 0
            assert log.append_many([value]).last_offset == 1
        else:
            for call in (lambda: log.append(value), lambda: log.append_many([value])):
                with pytest.raises(kstore.RecordTooLargeError, match=r"501.*500"):
                    call()
            assert log.log_end_offset == 0


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 60, kstore.encode_batch([(None, b"x", 5, None)])[:-1]])
def test_bytes_that_hold_no_whole_batch_are_refused(log: kstore.Log, data: bytes) -> None:
    before = contents(log)
    with pytest.raises((kstore.InvalidRecordError, kstore.CorruptRecordError)):
        log.append_batch(data)
    assert contents(log) == before


def test_choices_that_are_unknown_are_named_with_those_that_are_known(log: kstore.Log) -> None:
    refuses(log, ValueError, "isolation.*read_committed", lambda: log.read(isolation="x"))  # type: ignore[arg-type]
    batch = kstore.encode_batch([b"x"])
    refuses(log, ValueError, "origin.*coordinator", lambda: log.append_batch(batch, origin="x"))  # type: ignore[arg-type]
    refuses(log, kstore.UnsupportedCompressionError, "lzma.*zstd", lambda: log.append_many([b""], compression="lzma"))
    refuses(log, ValueError, "not both", lambda: log.read(0, start_timestamp=0))
    refuses(log, TypeError, "target", lambda: log.fetch(0, 100).send_to("x"))  # type: ignore[arg-type]
    refuses(log, kstore.ConfigError, "segment_bytes", lambda: log.update_config(segment_bytes=0))
    refuses(log, kstore.ConfigError, "no_such", lambda: log.update_config(no_such=0))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"mode": "w"}, "mode"),
        ({"config": 1}, "config must"),
        ({"config": []}, "config must"),
        ({"clock": 1}, "clock must"),
        ({"max_decompressed_bytes": 0}, "max_decompressed_bytes"),
        ({"max_decompressed_bytes": "1"}, "max_decompressed_bytes"),
        ({"segment_bytes": 1.5}, "segment_bytes"),
        ({"clock": lambda: 1.5}, "clock"),
        ({"clock": lambda: 2**63}, "clock"),
    ],
)
def test_opening_names_the_argument_that_it_refuses(partition: Path, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match) as caught:
        kstore.Log.open(partition, **arguments)
    assert not isinstance(caught.value, OverflowError)
    kstore.Log.open(partition).close()  # no lock was kept


@pytest.mark.parametrize("path", [1, None, b"events-0", 1.5, []])
def test_a_path_that_is_none_is_a_type_error(path: Any) -> None:
    with pytest.raises(TypeError, match="path must be"):
        kstore.Log.open(path)


@pytest.mark.parametrize(
    "name",
    ["noname", "a b-0", "..-0", ".-0", "-0", "x-", "x-y", "x-2147483648", "y" * 250 + "-0", "é-0", "lost+found"],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_directory_whose_name_is_no_partitions_is_refused_and_not_made(root: Path, name: str, mode: Any) -> None:
    with pytest.raises(kstore.InvalidTopicError):
        kstore.Log.open(root / name, mode)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_path_that_is_a_file_or_below_one_is_a_storage_error_with_that_path(root: Path, mode: Any) -> None:
    (root / "events-0").write_bytes(b"precious")
    for path in (root / "events-0", root / "events-0" / "deep-0"):
        with pytest.raises(kstore.StorageError) as caught:
            kstore.Log.open(path, mode)
        assert str(root) in str(caught.value.filename)
    assert (root / "events-0").read_bytes() == b"precious"


def test_a_directory_that_is_missing_is_not_made_for_reading(root: Path) -> None:
    with pytest.raises(kstore.StorageError, match="no such") as caught:
        kstore.Log.open(root / "events-0", "r")
    assert isinstance(caught.value, FileNotFoundError)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("what", ["root", "partition"])
def test_a_directory_that_may_not_be_written_is_a_storage_error_and_may_be_read(partition: Path, what: str) -> None:
    with kstore.Log.open(partition) as log:
        log.append(b"x")
    target = partition.parent if what == "root" else partition
    for path in (partition.parent, partition, *partition.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o666)
    script = (
        "import errno, os, sys, kstore\n"
        "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        f"with kstore.Log.open({str(partition)!r}, 'r') as log: assert [r.value for r in log.read()] == [b'x']\n"
        f"try: log = kstore.Log.open({str(partition)!r})\n"
        "except kstore.StorageError as error: print(error.errno == errno.EACCES, error.filename)\n"
    )
    for path in partition.parents:  # pytest keeps its directories to itself, and that user must get through
        if path.is_relative_to(tempfile.gettempdir()) and path != Path(tempfile.gettempdir()):
            path.chmod(0o755)
    if os.geteuid() != 0:
        target.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
    )
    target.chmod(0o755)
    if "PermissionError" in done.stderr or "No module" in done.stderr or "can't open" in done.stderr:
        pytest.skip(f"another user cannot run Python here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True ")
    assert str(partition.parent) in done.stdout


@pytest.mark.parametrize("name", ["segment_bytes", "index_interval_bytes", "max_message_bytes", "segment_ms"])
def test_a_setting_that_changes_bites_when_it_does_in_kafka(partition: Path, clock: ManualClock, name: str) -> None:
    """SEMANTICS 13.13: the index interval with the next segment, the others with the next append."""
    with kstore.Log.open(partition, clock=clock, index_interval_bytes=1 << 20) as log:
        for _ in range(3):
            log.append(b"x" * 50)
        if name == "segment_bytes":
            log.update_config(segment_bytes=400)
            log.append(b"x" * 50)
            assert len(log.segments) == 2
        elif name == "max_message_bytes":
            log.update_config(max_message_bytes=100)
            with pytest.raises(kstore.RecordTooLargeError):
                log.append(b"x" * 50)
        elif name == "segment_ms":
            log.update_config(segment_ms=5)
            log.append(b"x", timestamp=clock.now + 6)
            assert len(log.segments) == 2
        else:
            log.update_config(index_interval_bytes=0)
            log.append(b"x" * 50)
            assert log.segments[0].offset_index_entries == 0
            log.roll()
            for _ in range(3):
                log.append(b"x" * 50)
            assert log.segments[1].offset_index_entries == 2


def test_a_clock_that_goes_backwards_does_no_harm(partition: Path, clock: ManualClock) -> None:
    with kstore.Log.open(partition, clock=clock, segment_ms=1000, file_delete_delay_ms=10, flush_ms=10) as log:
        for step in (0, -5_000_000, 10, -(10**12), 10**12, -1):
            clock.advance(step)
            log.append(b"x")
            log.append(b"y", timestamp=-1)
            log.run_housekeeping()
        assert [record.offset for record in log.read()] == list(range(12))
        log.truncate_to(2)
        clock.now = 0
        log.append(b"z")
        assert log.log_end_offset == 3
    with kstore.Log.open(partition, clock=clock) as log:
        assert [record.value for record in log.read()] == [b"x", b"y", b"z"]


PATHS: dict[str, Callable[[str, str], object]] = {
    "Log.open": lambda path, _: kstore.Log.open(f"{path}/events-0"),
    "Log.open, config": lambda path, good: kstore.Log.open(f"{good}/events-0", config=path),
    "Store.open": lambda path, _: kstore.Store.open(path),
    "Store.open, several": lambda path, good: kstore.Store.open([good, path]),
    "LogConfig.from_kafka": lambda path, _: kstore.LogConfig.from_kafka(path),
    "replicate, source": lambda path, good: kstore.replicate(path, good),
    "replicate, target": lambda path, good: kstore.replicate(good, path),
    "backup": lambda path, good: _with_store(good, lambda store: kstore.backup(store, path)),
    "backup, file URL": lambda path, good: _with_store(good, lambda store: kstore.backup(store, f"file:///{path}")),
    "restore, backup": lambda path, good: kstore.restore(path, good),
    "restore, directory": lambda path, good: kstore.restore(good, path),
    "adopt": lambda path, good: _with_store(good, lambda store: store.adopt([], staging_dir=path)),
    "spark.commit": lambda path, _: kstore.spark.commit(path, []),
    "spark.stage": lambda path, _: kstore.spark.stage(path, topic="t"),
}


def _with_store(path: str, call: Callable[[kstore.Store], object]) -> None:
    with kstore.Store.open(path, background=False) as store:
        call(store)


@pytest.mark.parametrize("call", PATHS.values(), ids=PATHS)
def test_a_path_with_a_null_character_is_an_error_that_shows_it(
    call: Callable[[str, str], object], tmp_path: Path
) -> None:
    with pytest.raises(kstore.KStoreError, match=r"a\\x00b.*null character"):
        call("a\0b", str(tmp_path / "good"))
