"""Datasets of a backup, of a plain copy and of a directory have the same rows, and take few requests of the former.

The requests are counted where they are made; a directory stands for the object store.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

import kstore
from kstore.errors import ConfigError, InvalidTimestampError
from kstore.log import lateness
from kstore.objects.object_reader import RUN_BYTES
from tests.conftest import SEED, examples
from tests.support import predicates
from tests.support.predicates import LATENESS, Condition, conditions

pytestmark = pytest.mark.usefixtures("no_syncs")

T = 1_700_000_000_000
HOURS = 60
RECORDS = 40  # of an hour, which is a segment
TIME, OFFSET, KEY = pc.field("timestamp"), pc.field("offset"), pc.field("key")
PLACES = ("backup", "copy")


def place(root: Path) -> None:
    """Back up the store `root`/data, and copy it."""
    with kstore.Store.open(root / "data", background=False) as store, kstore.backup(store, str(root / "backup")):
        pass
    shutil.copytree(root / "data", root / "copy")


def source(root: Path, kind: str) -> str:
    """A path or a URL; a backup is found in a directory without a scheme."""
    return f"file://{root}/copy" if kind == "copy" else str(root / kind)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("asked")
    predicates.fill(root / "data", int(SEED, 16))
    place(root)
    return root


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic with a segment for each hour, in the order of time but for a minute."""
    root = tmp_path_factory.mktemp("hours")
    choose = random.Random(SEED)
    with kstore.Store.open(root / "data", background=False) as store:
        store.create_topic("t", config={"index.interval.bytes": 500})
        log = store.log("t", 0)
        for hour in range(HOURS):
            moments = [at_ms(hour + n / RECORDS) - choose.randrange(60_000) for n in range(RECORDS)]
            log.append_many([(b"k%d" % (n % 3), b"x" * 100, moment, ()) for n, moment in enumerate(moments)])
            log.roll()
        log.append_many([(b"k0", b"last", at_ms(HOURS), ())])
    place(root)
    return root


def at_ms(hour: float) -> int:
    return int(T + hour * 3_600_000)


def at(hour: float) -> Any:
    return pa.scalar(at_ms(hour), pa.timestamp("ms", "UTC"))


def within(first: float, last: float) -> Any:
    return (at(first) <= TIME) & (at(last) > TIME)


class Counted:
    """A dataset, and the requests since the last look."""

    def __init__(self, url: str, **how: Any) -> None:
        self.dataset: Any = kstore.dataset(url, "t", **how)
        self._store = self.dataset._table.source._store
        self._prefix = self._store._opened.prefix
        self._seen = self._prefix.objects.requests.total()

    def look(self) -> int:
        now = self._prefix.objects.requests.total()
        before, self._seen = self._seen, now
        return int(now - before)


@pytest.fixture(scope="module", params=[{}, {"max_lateness": LATENESS}, {"isolation": "read_committed"}], ids=str)
def views(asked: Path, request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """The same dataset at each place, and its frame of Polars."""
    kinds = ("data", *PLACES)
    return {
        kind: (
            kstore.dataset(source(asked, kind), "events", **request.param),
            kstore.scan_polars(source(asked, kind), "events", **request.param),
        )
        for kind in kinds
    }


@given(condition=conditions())
@examples(0.1)
def test_all_places_give_the_same_rows_for_any_condition(views: Mapping[str, Any], condition: Condition) -> None:
    found = {}
    for kind, (dataset, frame) in views.items():
        try:
            table = dataset.to_table(filter=condition.pyarrow)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:  # PyArrow has no function for these types
            table = type(error)
        found[kind] = table, frame.filter(condition.polars).collect()
    wanted, wanted_frame = found.pop("data")
    for table, frame in found.values():
        assert table == wanted
        assert frame.equals(wanted_frame)


def test_all_places_have_the_same_newest_records(asked: Path) -> None:
    tables = [kstore.dataset(source(asked, kind), "events", latest=True).to_table() for kind in ("data", *PLACES)]
    assert tables[0].num_rows
    assert all(table == tables[0] for table in tables)


@pytest.mark.parametrize("kind", PLACES)
def test_an_hour_takes_its_segments_and_few_requests(hours: Path, kind: str) -> None:
    counted = Counted(source(hours, kind), max_lateness=60_000)
    condition = within(30, 32)
    cost = counted.dataset.cost(condition)
    planned = counted.look()
    # A plain copy says by a file for each segment how new it is, of which a search by halves reads some.
    assert planned <= (6 if kind == "backup" else 10 + 2 * HOURS.bit_length())
    table = counted.dataset.to_table(filter=condition)
    assert counted.look() <= 3
    assert table == kstore.dataset(hours / "data", "t").to_table(filter=condition)
    assert 2 <= cost.requests <= 3
    assert 2 * RECORDS * 100 < cost.bytes < 4 * RECORDS * 200


@pytest.mark.parametrize("kind", PLACES)
def test_without_a_promise_only_the_lower_bound_saves_requests(hours: Path, kind: str) -> None:
    counted = Counted(source(hours, kind))
    counted.dataset.to_table(filter=at(HOURS - 2) <= TIME)
    assert counted.look() <= (6 if kind == "backup" else HOURS + 6)
    assert counted.dataset.cost(within(1, 2)).requests >= HOURS - 2


def test_segments_that_a_backup_knows_to_be_older_are_left_out(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t")
        for number in range(12):
            store.append("t", b"x", timestamp=at_ms(100 if number in (2, 9) else number / 10))
            store.log("t", 0).roll()
    place(tmp_path)
    counted = Counted(source(tmp_path, "backup"))
    condition = at(50) <= TIME
    assert counted.dataset.cost(condition).requests == 2
    assert counted.dataset.to_table(["offset"], condition).column(0).to_pylist() == [2, 9]


@pytest.mark.parametrize("kind", PLACES)
def test_a_range_of_offsets_takes_one_segment(hours: Path, kind: str) -> None:
    counted = Counted(source(hours, kind))
    condition = (OFFSET >= 10 * RECORDS + 3) & (OFFSET < 10 * RECORDS + 9)
    assert counted.dataset.cost(condition).requests == 1
    assert counted.dataset.count_rows(filter=condition) == 6
    assert counted.look() <= 4


def test_a_search_by_halves_asks_few_of_the_small_files_of_a_copy(hours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lateness, "FEW_SEGMENTS", 1)
    with kstore.Store.open(source(hours, "copy"), "r") as store:
        log, objects = store.log("t", 0), store._opened.prefix.objects  # type: ignore[union-attr]
        for hour in (0, 1, HOURS // 2, HOURS - 1, HOURS + 5):
            before = objects.requests.total()
            offset = lateness.start_by(log, at_ms(hour), 60_000)
            assert objects.requests.total() - before <= HOURS.bit_length() + 2
            older = list(log.read(0, end_offset=offset))
            assert all(record.timestamp < at_ms(hour) for record in older)
            assert len(older) >= min(hour - 2, HOURS - 2) * RECORDS


@pytest.mark.parametrize("kind", PLACES)
def test_a_record_with_a_time_in_the_future_is_an_error(tmp_path: Path, kind: str) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t")
        for number in range(20):
            moment = at_ms(1000 if number == 5 else number)
            store.append("t", b"x", timestamp=moment)
            store.log("t", 0).roll()
        store.append("t", b"x", timestamp=at_ms(20))
    place(tmp_path)
    dataset = kstore.dataset(source(tmp_path, kind), "t", max_lateness=0)
    with pytest.raises(InvalidTimestampError, match="max_lateness"):
        dataset.count_rows(filter=within(1, 100))


def test_a_large_segment_is_read_by_large_requests_that_were_told_before(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t")
        store.append_many("t", ((b"k", b"x" * 1000) for _ in range(40_000)), batch_bytes=16_000)
    place(tmp_path)
    counted = Counted(source(tmp_path, "copy"))
    cost = counted.dataset.cost()
    counted.look()
    assert cost.bytes >= 40_000_000
    assert cost.requests <= cost.bytes / RUN_BYTES + 5
    assert counted.dataset.to_table(columns=["key"]).num_rows == 40_000
    assert counted.look() <= cost.requests + 2


def test_a_dataset_of_a_directory_costs_nothing(hours: Path) -> None:
    assert kstore.dataset(hours / "data", "t").cost() == (0, 0)
    assert kstore.dataset(source(hours, "copy"), "t", latest=True).cost(within(1, 2)).requests >= HOURS


def test_a_dataset_is_frozen_until_its_store_is_refreshed(tmp_path: Path) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t")
        store.append("t", b"1", timestamp=T)
        with kstore.backup(store, str(tmp_path / "backup")):
            pass
        frozen = kstore.dataset(tmp_path / "backup", "t")
        with kstore.Store.open(tmp_path / "backup", "r") as looked:
            fresh = kstore.dataset(looked, "t")
            store.append("t", b"2", timestamp=T)
            with kstore.backup(store, str(tmp_path / "backup")):
                pass
            assert (frozen.count_rows(), fresh.count_rows()) == (1, 1)
            looked.refresh()
            assert (frozen.count_rows(), fresh.count_rows()) == (1, 2)


def test_options_of_a_url_are_refused_for_a_directory(hours: Path) -> None:
    for given_source in (hours / "data", hours / "data" / "t-0"):
        with pytest.raises(ConfigError, match="cache is given, and "):
            kstore.dataset(given_source, cache="cache")
    with kstore.Store.open(hours / "data", "r") as store, pytest.raises(ConfigError, match="with_deleted"):
        kstore.scan_polars(store, "t", with_deleted=True)


def test_a_frame_of_a_url_reads_only_the_rows_of_its_head(hours: Path) -> None:
    frame = kstore.scan_polars(source(hours, "backup"), "t", until=2**50)
    assert frame.filter(pl.col("key") == b"k1").head(2).select("offset").collect()["offset"].to_list() == [1, 4]
