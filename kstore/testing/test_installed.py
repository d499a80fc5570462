"""Tests of an installed kstore, without the repository: `pytest --pyargs kstore.testing.test_installed`, in seconds.

They show that a build works on a machine: they call the compiled modules and each codec. What kstore promises is tested
in the repository.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy
import pytest

import kstore
from kstore.testing import Crashes, ManualClock

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def test_every_module_imports_and_the_gil_is_on() -> None:
    for module in pkgutil.walk_packages(kstore.__path__, "kstore."):
        importlib.import_module(module.name)
    assert getattr(sys, "_is_gil_enabled", lambda: True)()  # a free-threaded Python switches it on


def test_records_are_read_after_a_reopen(tmp_path: Path) -> None:
    with kstore.Log.open(str(tmp_path / "events-0"), segment_bytes=4096) as log:
        for number in range(100):
            timestamp = 1_700_000_000_000 + number
            offset = log.append(b"value %d" % number, key=b"key", timestamp=timestamp, headers=[("trace", b"abc")])
            assert offset == number
        log.flush()
    with kstore.Log.open(str(tmp_path / "events-0"), mode="r") as log:
        assert len(log.segments) > 1
        assert [record.value for record in log.read(98)] == [b"value 98", b"value 99"]
        found = log.offset_for_timestamp(1_700_000_000_042)
        assert found is not None
        assert found.offset == 42


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_each_codec_are_read_as_written(tmp_path: Path, codec: str) -> None:
    values = [b"value %d " % number * 20 for number in range(2000)]
    with kstore.Log.open(str(tmp_path / "events-0")) as log:
        log.append_many(values, compression=codec)
        assert [record.value for record in log.read()] == values
        assert log.read_columns(columns=("value",)).values.to_pylist() == values
        assert {batch.compression for batch in log.read_batches()} == {codec}


def test_what_was_flushed_survives_power_cuts(kstore_crash: Crashes) -> None:
    for crash in kstore_crash("power"):
        flushed = []
        with crash.log() as log:
            flushed.append(log.append(b"value", sync=True))
        with crash.reopened() as log:
            assert [record.offset for record in log.read()][: len(flushed)] == flushed


def test_columns_are_read_as_appended(tmp_path: Path) -> None:
    with kstore.Log.open(str(tmp_path / "ticks-0")) as log:
        log.append_columns(numpy.array([b"bid", b"ask"]), keys=[b"EUR", None], timestamps=1_700_000_000_000)
        columns = log.read_columns(columns=("offset", "timestamp", "key", "value"))
        assert columns.offsets.tolist() == [0, 1]
        assert columns.keys.to_pylist() == [b"EUR", None]


def test_a_compacted_topic_keeps_the_newest_of_each_key(tmp_path: Path) -> None:
    clock = ManualClock()
    with kstore.Store.open(str(tmp_path), background=False, clock=clock) as store:
        store.create_topic("accounts", partitions=1, config={"cleanup.policy": "compact"})
        store.append_many("accounts", [(b"anna", b"1"), (b"bert", b"2"), (b"anna", b"3")])
        store.compact("accounts", roll=True)
        assert [(record.key, record.value) for record in store.read("accounts")] == [(b"bert", b"2"), (b"anna", b"3")]
        assert store.table("accounts")[b"anna"].value == b"3"


def test_an_aborted_transaction_is_not_read_as_committed(tmp_path: Path) -> None:
    with kstore.Store.open(str(tmp_path), background=False) as store:
        store.create_topic("orders", partitions=2)
        with store.producer(transactional_id="loader") as producer:
            with contextlib.suppress(ZeroDivisionError), producer.transaction() as transaction:
                transaction.append("orders", b"aborted")
                raise ZeroDivisionError
            with producer.transaction() as transaction:
                transaction.append("orders", b"committed")
        assert [record.value for record in store.read("orders", isolation="read_committed")] == [b"committed"]


def test_the_command_line_dumps_a_segment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with kstore.Log.open(str(tmp_path / "events-0")) as log:
        log.append_many([b"value"], compression="gzip")
    (segment,) = (tmp_path / "events-0").glob("*.log")
    (script,) = entry_points(group="console_scripts", name="kstore")
    assert script.load()(["dump", "--files", str(segment), "--print-data-log"]) == 0
    assert "payload: value" in capfd.readouterr().out
