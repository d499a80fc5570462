"""`kstore plan`: settings under a load, today's against wished ones, the load of a topic; text, JSON and a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kstore
from tests.conftest import ManualClock
from tests.support.printed import Printed

pytestmark = [pytest.mark.usefixtures("no_syncs"), pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")]

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
STORY = ["--rate", "0.2", "--record-bytes", "150", "-c", "segment.bytes=16384", "-c", "retention.ms=600000"]


@pytest.fixture
def data(root: Path) -> Path:
    """`orders` in two partitions, the second with three times as much; `keyed` is compacted, `plain` not."""
    clock = ManualClock(NOON)
    with kstore.Store.open(root, background=False, clock=clock) as store:
        store.create_topic("orders", 2, config={"retention.ms": 10 * MINUTE, "segment.bytes": "65536"})
        store.create_topic("keyed", config={"cleanup.policy": "compact"})
        store.create_topic("plain")
        store.create_topic("empty")
        for number in range(600):
            clock.advance(10_000)
            if number % 3 == 0:
                store.append("orders", b"x" * 50, partition=0)
            store.append("orders", b"x" * 50, partition=1)
            store.append("plain", b"x" * 50)
            store.append("keyed", b"x" * 50, key=b"%d" % (number * 7 % 20))
    return root


def test_a_load_and_settings_make_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    found = Printed(capsys, "plan", *STORY)
    assert (found.code, found.err) == (0, "")
    plan = kstore.plan(rate=0.2, record_bytes=150, segment_bytes=16384, retention_ms=600_000)
    assert found.out == f"{plan}\n"
    assert "25 min" in found.out


def test_wished_settings_stand_beside_todays(capsys: pytest.CaptureFixture[str]) -> None:
    wishes = ["--wish", "segment.ms=300000", "--wish", "log.retention.check.interval.ms=60000"]
    found = Printed(capsys, "plan", *STORY, *wishes, "--json").json
    assert found["today"]["life_ms"]["most"] == 24 * MINUTE
    assert found["wished"]["life_ms"]["most"] < 18 * MINUTE
    assert found["wished"]["settings"]["segment.bytes"] == 16384  # what is not wished is as today
    assert found["wished"]["settings"]["segment.ms"] == 5 * MINUTE
    assert found["measured"] is None
    text = Printed(capsys, "plan", *STORY, *wishes).out
    assert re.search(r"^segment\.ms +7 days +5 minutes$", text, re.MULTILINE)
    assert "what to change, today:" in text


def test_a_file_may_be_wished(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("log.retention.minutes=60\nlog.segment.bytes=1048576\n")
    found = Printed(capsys, "plan", *STORY, "--wish", tmp_path / "server.properties", "--json").json
    assert found["wished"]["settings"]["retention.ms"] == HOUR
    assert found["wished"]["settings"]["segment.bytes"] == 1 << 20


def test_all_of_the_load_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--rate=100", "--record-bytes=99.5", "--batch-records=10", "--keys=50", "--skew=10m", "--idle=22:00-06:00"]
    found = Printed(capsys, "plan", *load, "--idle=12:00-13:00", "--duration=2d", "--json").json["today"]
    assert found["duration_ms"] == 2 * DAY
    assert found["load"] == {
        "rate": 100.0,
        "record_bytes": 99.5,
        "batch_records": 10,
        "skew_ms": 10 * MINUTE,
        "idle": [[0, 6 * HOUR], [12 * HOUR, 13 * HOUR], [22 * HOUR, DAY]],
        "keys": 50,
    }


def test_the_load_of_a_partition_is_measured_with_its_settings(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Printed(capsys, "plan", "--like", data / "orders-0", "--json").json
    assert found["measured"]["load"]["rate"] == pytest.approx(1 / 30, rel=0.02)
    assert found["today"]["settings"]["retention.ms"] == 10 * MINUTE
    assert found["today"]["load"] == found["measured"]["load"]
    assert found["measured"]["path"].endswith("orders-0")
    text = Printed(capsys, "plan", "--like", data / "orders-0").out
    assert text.startswith(f"measured on {data}/orders-0: 200 offsets from 2013-06-01T12:00:10.000Z to ")


def test_of_a_topic_the_busiest_partition_is_measured(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Printed(capsys, "plan", "--like", data / "orders", "--json").json["measured"]
    assert found["path"].endswith("orders-1")
    assert found["load"]["rate"] == pytest.approx(0.1, rel=0.02)


def test_a_topic_in_an_object_store_is_measured_too(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore")
    local, remote = (
        Printed(capsys, "plan", "--like", f"{at}/orders", "--json").json for at in (data, f"file://{data}")
    )
    assert remote["today"] == local["today"]


def test_options_replace_what_was_measured_and_wishes_the_topics_settings(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Printed(
        capsys, "plan", "--like", data / "orders", "--rate", 5, "--wish", "retention.ms=60000", "--json"
    ).json
    assert found["today"]["load"]["rate"] == 5
    assert found["today"]["load"]["record_bytes"] == found["measured"]["load"]["record_bytes"]
    assert found["today"]["settings"]["retention.ms"] == 10 * MINUTE
    assert found["wished"]["settings"]["retention.ms"] == MINUTE
    assert found["wished"]["settings"]["segment.bytes"] == 65536


def test_the_keys_of_a_compacted_topic_are_measured(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Printed(capsys, "plan", "--like", data / "keyed", "--duration=365d")
    assert "keys: the last 600 records have 20 of them" in found.out
    assert "20 keys" in found.out
    assert "cleanings: " in found.out


def test_nothing_is_changed_by_measuring(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert Printed(capsys, "plan", "--like", data / "orders").code == 0
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_a_page_is_written_into_one_file(data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    found = Printed(capsys, "plan", "--like", data / "orders", "--wish", "segment.ms=60000", "--html", page)
    assert found.out == f"written: {page}\n"
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert text.count("<svg") == 1
    assert "A plan of a log like" in text
    assert "segment.ms = 1 minute" in text


def test_a_brokers_directory_brings_a_note_about_its_settings(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "meta.properties").write_text("version=1\n")
    found = Printed(capsys, "plan", "--like", data / "plain-0")
    assert "note: A broker wrote" in found.out
    assert "deletes nothing by age; Kafka's deletes after 7 days" in found.out
    assert "-c server.properties" in found.out
    assert Printed(capsys, "plan", "--like", data / "plain-0", "--json").json["note"].startswith("A broker wrote")
    for arguments in ((data / "plain-0", "-c", "retention.ms=60000"), (data / "keyed-0",)):
        assert "A broker wrote" not in Printed(capsys, "plan", "--like", *arguments).out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "one of --rate and --like is needed"),
        (["--rate", "0"], 2, "it is 0; it must be above 0"),
        (["--rate", "x"], 2, "'x' is no number"),
        (["--rate", "1", "--idle", "22-6"], 2, "a part of a day is written like '22:00-06:00'"),
        (["--rate", "1", "--record-bytes", "10"], 2, "68 to 2147483647 are possible"),
        (["--rate", "1", "--duration", "never"], 2, "'never' is no time"),
        (["--rate", "1", "-c", "segment.byte=1"], 1, "did you mean 'segment.bytes'?"),
        (["--rate", "1", "--wish", "segment.bytes=x"], 1, "segment.bytes"),
        (["--rate", "1", "-c", "cleanup.policy=compact"], 1, "a plan needs keys"),
        (["--rate", "1", "--wish", "cleanup.policy=compact"], 1, "a plan needs keys"),
        (["--rate", "1", "--json", "--html", "x"], 2, "not allowed with"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Printed(capsys, "plan", *arguments)
    assert (found.code, found.out) == (code, "")
    assert said in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("empty-0", "no record with a timestamp, so its load cannot be measured"),
        ("empty", "no record with a timestamp, so its load cannot be measured"),
        ("nothing", "there is no partition, topic or directory of logs of this name"),
        (".", "is a directory of logs: name a topic or a partition of it"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    path: str, said: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Printed(capsys, "plan", "--like", data / path)
    assert found.code == 1
    assert said in found.err
