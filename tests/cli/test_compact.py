"""`kstore compact`: what it says it would do is what it does, and it says why nothing is cleaned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import cli
from kstore.cli.progress import Progress

STATS = [field for field in asdict(kstore.CompactionStats(*[0] * 16)) if field not in ("dry_run", "seconds")]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`run(path, "--json")`: what `kstore compact` prints; `code=1`: its complaint."""

    def go(*arguments: object, code: int = 0) -> str:
        assert cli.main(["compact", *map(str, arguments)]) == code
        printed = capsys.readouterr()
        assert bool(printed.err) == bool(code)
        return printed.err if code else printed.out

    return go


@pytest.fixture
def data(root: Path) -> Path:
    """Topic `accounts` of two partitions, compacted and dirty, and `events`, which is not compacted."""
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("accounts", 2, config={"cleanup.policy": "compact", "segment.bytes": "2000"})
        store.create_topic("events", 1, config={"segment.bytes": "2000"})
        for number in range(2):
            log = store.log("accounts", number)
            for value in range(200):
                log.append(None if value % 20 == 19 else b"value %d" % value, b"key %d" % (value % 15))
        for _ in range(200):
            store.append("events", b"value", b"key")
    return root


def files(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def tables(root: Path) -> dict[int, list[Any]]:
    with kstore.Store.open(root, "r") as store:
        return {number: list(store.log("accounts", number).latest()) for number in (0, 1)}


def of(printed: str) -> dict[str, dict[str, Any]]:
    return {f"{each['topic']}-{each['partition']}": each for each in json.loads(printed)["partitions"]}


def test_a_dry_run_changes_nothing_and_says_what_is_done_then(data: Path, run: Callable[..., str]) -> None:
    before, wanted = files(data), tables(data)
    trial = of(run(data, "--dry-run", "--json"))
    assert files(data) == before
    done = of(run(data, "--json"))
    assert list(done) == list(trial) == ["accounts-0", "accounts-1"]
    for name, each in done.items():
        assert each["error"] is None
        assert {field: each["stats"][field] for field in STATS} == {
            field: trial[name]["stats"][field] for field in STATS
        }
        assert each["stats"]["records_after"] < each["stats"]["records_before"]
        assert trial[name]["stats"]["dry_run"]
        assert not each["stats"]["dry_run"]
        sizes = sum(path.stat().st_size for path in (data / name).glob("*.log"))
        assert sizes == before_bytes(before, name) - each["stats"]["bytes_before"] + each["stats"]["bytes_after"]
    assert tables(data) == wanted


def before_bytes(before: dict[str, tuple[int, int]], name: str) -> int:
    return sum(size for path, (size, _) in before.items() if path.startswith(f"{name}/") and path.endswith(".log"))


def test_the_text_has_the_numbers_of_the_json(data: Path, run: Callable[..., str]) -> None:
    trial = of(run(data, "--dry-run", "--json", "--topic", "accounts"))["accounts-1"]["stats"]
    text = run(data, "--dry-run").split("accounts-1\n")[1]
    assert f"records: {trial['records_before']:,} before, {trial['records_after']:,} after" in text
    assert f"bytes: {trial['bytes_before']:,} before, {trial['bytes_after']:,} after" in text
    assert f"tombstones: {trial['tombstones_kept']:,} kept, {trial['tombstones_removed']:,} removed" in text
    assert f"would be cleaned: offsets 0 to {trial['first_dirty_offset'] - 1}, {trial['keys']} keys, 1 round" in text
    assert "1 partition passed over: cleanup.policy has not 'compact'" in text
    assert re.search(r"KiB would be saved in 2 partitions$", text.strip())


def test_a_second_run_has_nothing_to_do_and_says_why(data: Path, run: Callable[..., str]) -> None:
    run(data)
    text = run(data)
    assert "nothing could be cleaned from offset" in text
    assert "active segment" in text
    assert "next: " in text
    rolled = run(data, "--roll", "--topic", "accounts")
    assert "nothing could be cleaned" not in rolled
    with kstore.Store.open(data, "r") as store:
        for number in (0, 1):
            log = store.log("accounts", number)
            assert log.segments[-1].size_bytes == 0
            assert len({record.key for record in log.read()}) == len(list(log.read()))


def test_one_partition_is_compacted_by_the_settings_of_its_store(data: Path, run: Callable[..., str]) -> None:
    other = before_bytes(files(data), "accounts-1")
    text = run(data / "accounts-0")
    assert text.startswith("accounts-0\n  cleaned: offsets 0 to ")
    assert before_bytes(files(data), "accounts-1") == other


def test_a_log_whose_policy_is_another_is_an_error_where_it_was_named(data: Path, run: Callable[..., str]) -> None:
    for arguments in ([data / "events-0"], [data, "--topic", "events"], [data / "events-0", "--dry-run"]):
        error = run(*arguments, code=1)
        assert "kstore compact: events-0: cleanup.policy is delete" in error
    assert "cleaned: " in run(data / "events-0", "--cleanup-policy", "compact")


def test_an_error_of_one_partition_does_not_stop_the_others(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = data / "accounts-0" / "00000000000000000000.log"
    damaged = bytearray(log.read_bytes())
    damaged[80] ^= 1
    log.write_bytes(damaged)
    assert cli.main(["compact", str(data), "--json"]) == 1
    printed = capsys.readouterr()
    found = of(printed.out)
    assert found["accounts-0"]["stats"] is None
    assert "kstore repair" in found["accounts-0"]["error"] or "CRC" in found["accounts-0"]["error"]
    assert found["accounts-1"]["stats"]["records_after"] < found["accounts-1"]["stats"]["records_before"]
    assert "kstore compact: accounts-0: " in printed.err


def test_records_without_a_key_are_counted(root: Path, run: Callable[..., str]) -> None:
    with kstore.Log.open(root / "mixed-0", segment_bytes=500) as log:
        for number in range(40):
            log.append(b"value", None if number % 4 == 0 else b"key")
    path, policy = root / "mixed-0", ("--cleanup-policy", "compact")
    trial = of(run(path, *policy, "--dry-run", "--json"))["mixed-0"]["stats"]
    text = run(path, *policy, "--dry-run")
    assert trial["keyless_dropped"] > 0
    assert f"records without a key: {trial['keyless_dropped']} would be dropped" in text
    assert f"records without a key: {trial['keyless_dropped']} dropped" in run(path, *policy)


def test_mistakes_on_the_command_line_are_named(data: Path, run: Callable[..., str]) -> None:
    assert "--roll and --dry-run exclude each other" in run(data, "--roll", "--dry-run", code=2)
    assert "--topic goes with a data directory" in run(data / "accounts-0", "--topic", "accounts", code=1)
    assert "there is no topic 'none'" in run(data, "--topic", "none", code=1)
    assert "there is no partition" in run(data / "none", code=1)
    assert "PATH" in run(code=2)


def test_a_writer_that_has_the_directory_is_named_and_a_dry_run_works_beside_it(
    data: Path, run: Callable[..., str]
) -> None:
    with kstore.Store.open(data, background=False):
        assert "kstore compact: " in run(data, code=1)
        assert "would be cleaned" in run(data, "--dry-run")


def test_it_shows_how_far_it_is(data: Path, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, after a second: test_progress.py shows that; here, what the bar is told."""
    reached: list[tuple[int, int | None]] = []
    monkeypatch.setattr(Progress, "reach", lambda self, done, total=None: reached.append((done, total)))
    trial = of(run(data, "--dry-run", "--json"))
    assert reached
    reached.clear()
    run(data)
    assert reached == sorted(reached, key=lambda pair: pair[0])
    assert all(total is not None and 0 < done <= total for done, total in reached)
    assert reached[-1][0] == reached[-1][1]
    assert reached[-1][0] >= sum(each["stats"]["bytes_before"] for each in trial.values())


def test_a_topic_is_its_partitions_each_once(data: Path, run: Callable[..., str]) -> None:
    whole = json.loads(run(data, "--topic", "accounts", "--dry-run", "--json"))
    found = json.loads(run(data / "accounts", data / "accounts-1", "--dry-run", "--json"))
    for each in (*whole["partitions"], *found["partitions"]):
        del each["stats"]["seconds"], each["outlook"]
    assert found == whole
    wanted = tables(data)
    assert "2 partitions" in run(data / "accounts")
    assert tables(data) == wanted
    assert not json.loads(run(data / "accounts", "--dry-run", "--json"))["records_before"]


def test_a_topic_has_no_topics(data: Path, run: Callable[..., str]) -> None:
    before = files(data)
    told = run(data / "accounts", "--topic", "events", code=1)
    assert told.endswith(f"--topic goes with a data directory, and {data}/accounts is a topic's\n")
    assert f"{data}/nothing: there is no partition, topic" in run(data / "accounts", data / "nothing", code=1)
    assert files(data) == before
