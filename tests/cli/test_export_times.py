"""`kstore export --from` and `--until`: by the times of the records, or with `--by-position` by places in the log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore import cli
from tests.conftest import examples

pytestmark = pytest.mark.usefixtures("no_syncs")

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
HOUR = 3_600_000


def offsets_in(path: Path) -> list[int]:
    return [json.loads(line)["offset"] for line in path.read_text().splitlines()]


@pytest.fixture
def shuffled(root: Path) -> Path:
    """A record of each hour from NOON on, late ones among them; the last two offsets are of old records."""
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("late")
        for hour in (0, 2, 1, 4, 3, 6, 5, 0, 3):
            store.append("late", b"%d" % hour, timestamp=NOON + hour * HOUR)
    return root / "late-0"


@pytest.mark.parametrize(
    ("arguments", "by_time", "by_position"),
    [
        (["--from", "2"], [1, 3, 4, 5, 6, 8], [1, 2, 3, 4, 5, 6, 7, 8]),
        (["--until", "4"], [0, 1, 2, 4, 7, 8], [0, 1, 2]),
        (["--from", "1", "--until", "4"], [1, 2, 4, 8], [1, 2]),
        (["--from", "3", "--until", "4"], [4, 8], []),
        (["--from", "3", "--until", "6"], [3, 4, 6, 8], [3, 4]),
        (["--from", "6", "--until", "3"], [], []),
        (["--from", "9"], [], []),
        (["--until", "9"], list(range(9)), list(range(9))),
        (["--until", "4", "--until-offset", "5"], [0, 1, 2, 4], [0, 1, 2]),
        (["--from", "2", "--until-offset", "4"], [1, 3], [1, 2, 3]),
        (["--until", "4", "--offset", "2"], [2, 4, 7, 8], [2]),
    ],
)
def test_times_choose_records_wherever_they_are_and_by_position_places(
    shuffled: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    by_time: list[int],
    by_position: list[int],
) -> None:
    hours = {"--from", "--until"}
    times = [
        str(NOON + int(word) * HOUR) if before in hours else word
        for before, word in zip(["", *arguments], arguments, strict=False)
    ]
    for more, expected in (([], by_time), (["--by-position"], by_position)):
        path = tmp_path / f"{len(more)}.jsonl"
        assert cli.main(["export", str(shuffled), "--to", str(path), *times, *more, "--columns", "offset"]) == 0
        assert offsets_in(path) == expected
        assert f": {len(expected)} records, " in capsys.readouterr().out


def test_a_position_without_a_time_is_refused(
    shuffled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", str(shuffled), "--to", str(tmp_path / "x.jsonl"), "--by-position"]) == 2
    assert "--from or --until" in capsys.readouterr().err


@examples(0.5)
@given(
    hours=st.lists(st.integers(0, 9), max_size=30),
    ends=st.tuples(st.none() | st.integers(0, 10), st.none() | st.integers(0, 10)),
)
def test_exactly_the_records_of_a_range_of_times_come_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hours: list[int], ends: tuple[int | None, int | None]
) -> None:
    shutil.rmtree(tmp_path, ignore_errors=True)
    tmp_path.mkdir()
    with kstore.Log.open(tmp_path / "d" / "t-0", segment_bytes=300, index_interval_bytes=50) as log:
        for hour in hours:
            log.append(b"x", timestamp=NOON + hour)
    since, until = ends
    given = [] if since is None else ["--from", str(NOON + since)]
    given += [] if until is None else ["--until", str(NOON + until)]
    path = tmp_path / "x.jsonl"
    assert cli.main(["export", str(tmp_path / "d" / "t"), "--to", str(path), *given]) == 0
    capsys.readouterr()
    assert offsets_in(path) == [
        offset
        for offset, hour in enumerate(hours)
        if (since is None or hour >= since) and (until is None or hour < until)
    ]
