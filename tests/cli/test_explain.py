"""`kstore explain`: a partition, a record of it, a topic, a data directory; as text, JSON and a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore import cli
from tests.conftest import ManualClock
from tests.support.printed import Printed

pytestmark = [pytest.mark.usefixtures("no_syncs"), pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")]

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
MINUTE, HOUR = 60_000, 3_600_000


@pytest.fixture
def data(root: Path) -> Path:
    """`orders` in two partitions, an order each minute until noon; `kept` has a setting of its own."""
    clock = ManualClock(NOON - HOUR)
    settings = {"segment.bytes": "2000", "index.interval.bytes": "500", "segment.index.bytes": "1200"}
    with kstore.Store.open(root, background=False, clock=clock) as store:
        store.create_topic("orders", 2, config=settings)
        store.create_topic("kept", config={"retention.ms": 10 * MINUTE})
        for number in range(60):
            store.append("orders", b"order %02d" % number, partition=number % 2)
            store.append("kept", b"kept")
            clock.advance(MINUTE)
    return root


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    return lambda *arguments: Printed(capsys, "explain", *arguments)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


Explain = Callable[..., Printed]


def test_a_partition_is_explained_and_nothing_changes(data: Path, explain: Explain) -> None:
    before = contents(data)
    found = explain(data / "orders-0", "-c", "retention.ms=600000", "--at", "2013-06-01T12:01")
    assert (found.code, found.err) == (0, "")
    assert contents(data) == before
    lines = found.out.splitlines()
    assert lines[0] == f"orders-0 at {data / 'orders-0'}, at 2013-06-01T12:01:00.000Z"
    assert "  settings: " in found.out
    assert "retention.ms=600000" in found.out
    rows = lines[lines.index(next(line for line in lines if line.startswith("segment "))) + 1 :]
    assert "waits for the next check" in rows[0]
    assert "active" in rows[1]


def test_json_has_the_facts_under_their_names(data: Path, explain: Explain) -> None:
    at = ["--at", "2013-06-01T12:00"]
    found = explain(data / "kept-0", "--json", *at).json
    with kstore.Store.open(data, "r") as store:
        facts = store.log("kept", 0).explain(at=NOON)
    assert found == json.loads(json.dumps(facts.to_dict()))
    assert found["settings"]["retention.ms"] == 10 * MINUTE
    assert found["at_ms"] == NOON
    assert found["record"] is None


def test_a_topics_own_settings_have_precedence_over_those_given(data: Path, explain: Explain) -> None:
    for path in (data / "kept-0", data / "orders-0"):
        found = explain(path, "--json", "-c", "retention.ms=1", "-c", "log.segment.delete.delay.ms=7").json
        assert found["settings"]["retention.ms"] == (10 * MINUTE if path.name == "kept-0" else 1)
        assert found["settings"]["file.delete.delay.ms"] == 7


def test_a_brokers_file_brings_its_settings(data: Path, tmp_path: Path, explain: Explain) -> None:
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    properties = tmp_path / "server.properties"
    properties.write_text("log.retention.hours=168\nlog.retention.check.interval.ms=7000\nlog.dirs=/elsewhere\n")
    for path in (data, data / "orders-0"):
        assert f"A broker wrote {data}, and its settings are not in the directory" in explain(path).out
        assert "retention.ms = 604800000 ms (7 d)" in explain(path).out
        assert "A broker wrote" in explain(path, "--json").json["note"]
        assert "A broker wrote" not in explain(path, "-c", properties).out
    assert explain(data / "orders-0", "-c", properties, "--json").json["checks"]["interval_ms"] == 7000


def test_a_record_is_explained_by_its_offset_with_the_walk_to_it(data: Path, explain: Explain) -> None:
    found = explain(data / "orders-0", "--offset", 20)
    assert found.code == 0
    lines = found.out.splitlines()
    start = lines.index("record at offset 20, timestamp 2013-06-01T11:40:00.000Z")
    facts = explain(data / "orders-0", "-o", 20, "--json").json["record"]
    assert lines[start + 2] == (f"how a lookup finds it, with {facts['bytes_scanned']} bytes read before its batch:")
    assert [step["what"] for step in facts["steps"]] == ["segment", "offset_index", "scan", "batch"]
    [entry] = [step["found"] for step in facts["steps"] if step["what"] == "offset_index"]
    with kstore.Log.open(data / "orders-0", "r") as log:
        batch = next(iter(log.read_batches(entry[0])))
        assert batch.last_offset == entry[0]
        assert log.fetch(entry[0], 1).position == entry[1]
        assert facts["batch_position"] == log.fetch(20, 1).position
    told = lines.index("what happens to it:") + 1
    assert lines[told : lines.index("", told)] == [f"  - {sentence}" for sentence in facts["future"]]


def test_a_record_is_explained_by_its_time(data: Path, explain: Explain) -> None:
    for time in ("2013-06-01T11:20", "2013-06-01T11:19:00.001", str(NOON - 40 * MINUTE)):
        record = explain(data / "orders-0", "--time", time, "--json").json["record"]
        assert record["offset"] == 10
        assert record["steps"][1]["what"] == "time_index"
    assert "time index: " in explain(data / "orders-0", "--time", "2013-06-01T11:20").out


def test_a_record_that_is_not_there_is_told(data: Path, explain: Explain) -> None:
    assert explain(data / "orders-0", "--offset", 30).code == 1
    assert (
        "offset 30 is not in the log, which starts at 0 and ends at 30"
        in explain(data / "orders-0", "--offset", 30).err
    )
    late = explain(data / "orders-0", "--time", "2013-06-02")
    assert (late.code, late.err) == (1, "kstore explain: no record is from 2013-06-02 or later\n")
    with kstore.Store.open(data, background=False) as store:
        store.update_topic_config("orders", {"cleanup.policy": "compact"})
        store.append_many("orders", [(b"key", b"1"), (b"key", b"2")], partition=0)
        store.compact("orders", roll=True)
    gap = explain(data / "orders-0", "--offset", 5)
    assert gap.code == 1
    assert gap.err == "kstore explain: no batch has offset 5: a cleaning has left a gap there\n"


def test_a_directory_and_a_topic_are_explained_as_a_disk(data: Path, explain: Explain) -> None:
    at = ["--at", "2013-06-01T14:00"]
    whole = explain(data, *at)
    assert (whole.code, whole.err) == (0, "")
    assert whole.out.splitlines()[0].startswith(f"{data}: ")
    assert "what would free space:" in whole.out
    facts = explain(data, "--json", *at).json
    with kstore.Store.open(data, "r") as store:
        expected = json.loads(json.dumps(store.explain(at=NOON + 2 * HOUR).to_dict()))
    assert {**facts, "free_bytes": 0} == {**expected, "free_bytes": 0}
    topic = explain(data / "orders", "--json", *at).json
    assert [each["partition"] for each in topic["partitions"]] == [0, 1]
    assert topic["topics"] == {"orders": facts["topics"]["orders"]}


def test_all_rows_are_shown_if_asked_for(data: Path, explain: Explain) -> None:
    with kstore.Store.open(data, background=False, segment_bytes=200) as store:
        for number in range(20):
            store.create_topic(f"t{number:02}")
            store.append(f"t{number:02}", b"")
        for _ in range(30):
            store.append("t00", bytes(100))
    assert "--all shows them" in explain(data).out
    assert "--all" not in explain(data, "--all").out
    assert "--all shows them" in explain(data / "t00-0").out
    assert "--all" not in explain(data / "t00-0", "--all").out


def test_a_page_is_one_file(data: Path, tmp_path: Path, explain: Explain) -> None:
    for name, arguments in (("disk", [data]), ("log", [data / "orders-0"]), ("record", [data / "orders-0", "-o", 3])):
        file = tmp_path / f"{name}.html"
        found = explain(*arguments, "--html", file)
        assert (found.code, found.out) == (0, f"written: {file}\n")
        page = file.read_text()
        assert page.startswith("<!DOCTYPE html>")
        assert "<svg" in page
        assert "orders" in page
    assert explain(data, "--html", tmp_path / "missing" / "x.html").code == 1
    (tmp_path / "pages").mkdir()
    assert "is a directory" in explain(data, "--html", tmp_path / "pages").err
    assert not list(tmp_path.glob("*.tmp"))


def test_a_partition_that_cannot_be_read_is_one_line_and_the_others_are_shown(data: Path, explain: Explain) -> None:
    [*_, log] = sorted((data / "orders-0").glob("*.log"))
    log.write_bytes(b"\1" * log.stat().st_size)
    found = explain(data)
    assert found.code == 1
    assert found.err.startswith("kstore explain: orders-0: ")
    assert found.err.count("\n") == 1
    assert "orders-1" in found.out
    assert [each["partition"] for each in explain(data, "--json").json["partitions"] if each["error"]] == [0]


def test_an_empty_directory_has_nothing_to_explain(tmp_path: Path, explain: Explain) -> None:
    (tmp_path / "empty").mkdir()
    found = explain(tmp_path / "empty")
    assert found.code == 0
    assert "no partition is here" in found.out


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "PATH"),
        (["data/orders-0", "--offset", "1", "--time", "0"], 2, "not allowed with"),
        (["data/orders-0", "--json", "--html", "x"], 2, "not allowed with"),
        (["data/orders-0", "--offset", "-1"], 2, "0 is the least"),
        (["data/orders-0", "--time", "never"], 1, "'never' is no time"),
        (["data/orders-0", "--at", "never"], 1, "'never' is no time"),
        (["data/orders-0", "-c", "no.such=1"], 1, "no.such"),
        (["data", "--offset", "1"], 1, "--offset explains a record of one partition"),
        (["data/orders", "--time", "0"], 1, "--time explains a record of one partition"),
        (["data/nothing"], 1, "there is no partition, topic or directory of logs of this name"),
        (["missing/x/y"], 1, "missing/x"),
        (["data/orders-0", "--backup-until", "0"], 2, "--backup-until goes with a URL"),
    ],
)
def test_a_mistake_is_one_line(
    data: Path, explain: Explain, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, told: str
) -> None:
    monkeypatch.chdir(data.parent)
    found = explain(*arguments)
    assert (found.code, found.out, found.err.count("\n")) == (code, "", 1)
    assert told in found.err


def test_names_in_a_path_control_no_terminal(data: Path, tmp_path: Path, explain: Explain) -> None:
    hostile = tmp_path / "a\x1b[31m\u202e"
    shutil.copytree(data, hostile)
    for path in (hostile, hostile / "orders-0"):
        found = explain(path, "-c", "retention.ms=1")
        assert found.code == 0
        assert not {"\x1b", "\u202e"} & set(found.out + found.err)
        assert "a\\x1b[31m\\u202e" in found.out.splitlines()[0]
    written = explain(hostile, "--html", hostile / "x.html")
    assert "\x1b" not in written.out
    assert "\x1b" not in (hostile / "x.html").read_text()


def test_while_another_process_writes_it_is_explained_too(data: Path, explain: Explain) -> None:
    with kstore.Store.open(data, background=False) as store:
        for path in (data, data / "orders-0"):
            assert explain(path).code == 0
        assert "No process has" not in explain(data).out
        store.append("orders", b"more", partition=0)
    assert f"No process has {data} open for writing now" in explain(data).out


def test_a_prefix_is_explained_where_it_lies(data: Path, explain: Explain) -> None:
    pytest.importorskip("obstore")
    url = f"file://{data}"
    here, there = explain(data, "--json").json, explain(url, "--json").json
    assert there["free_bytes"] is None
    sizes = [
        {each["path"].rpartition("/")[2]: each["log_bytes"] for each in found["partitions"]} for found in (here, there)
    ]
    assert sizes[0] == sizes[1]
    mine, theirs = (explain(f"{at}/orders-0", "-o", 20, "--json").json["record"] for at in (data, url))
    for record in (mine, theirs):
        for step in record["steps"]:
            step["path"] = step["path"].rpartition("/")[2]
    assert mine == theirs


def test_help_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["explain", "--help"])
    assert caught.value.code == 0
    assert "--offset" in capsys.readouterr().out
