"""`kstore retain`: what goes and why, on a data directory, a topic, one partition; and nothing else."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

import kstore
from kstore import cli
from tests.support.printed import Printed

pytestmark = pytest.mark.usefixtures("no_syncs")

HOUR = 3_600_000


def hours_ago(hours: int) -> int:
    """The timestamp of that time before now: the commands take the machine's clock."""
    return time.time_ns() // 1_000_000 - hours * HOUR


@pytest.fixture
def data(root: Path) -> Path:
    """`orders` in two partitions, whose segments are 3, 2, 1 and 0 hours old; `kept` has settings of its own."""
    with kstore.Store.open(root, background=False, segment_bytes=500) as store:
        store.create_topic("orders", partitions=2)
        store.create_topic("kept", config={"retention.ms": "-1"})
        for topic, number in (("orders", 0), ("orders", 1), ("kept", 0)):
            for hours in (3, 2, 1, 0):
                for _ in range(5):
                    store.log(topic, number).append(bytes(32), timestamp=hours_ago(hours))
    return root


def bases(partition: Path) -> list[int]:
    return sorted(int(path.stem) for path in partition.glob("*.log"))


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_dry_run_says_what_would_go_and_changes_nothing(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(data)
    found = Printed(capsys, "retain", data, "--dry-run", "--retention-ms", 2 * HOUR - HOUR // 2)
    assert (found.code, found.err) == (0, "")
    assert contents(data) == before
    lines = found.out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "kept-0", "orders-0", "orders-1", "4 segments would be deleted, 2000 bytes, in 3 partitions",
    ]  # fmt: skip
    gone = [line for line in lines if "would delete: " in line]
    assert len(gone) == 4
    assert gone[0].startswith("  would delete: segment 0, offsets 0 to 4, 500 bytes (time): its newest record is from ")
    assert "retention.ms keeps 5400000 ms (1 h 30 min)" in gone[0]
    stays = [line for line in lines if line.startswith("  kept: ")]
    assert len(stays) == 3
    assert "retention.ms = -1 sets no limit" in stays[0]
    assert stays[1].startswith("  kept: segment 10 and all after it: the log start 0 is below its end 15; ")
    assert "; it is deleted from " in stays[1]


@pytest.mark.parametrize("where", ["store", "partition"])
@pytest.mark.parametrize("setting", ["retention.ms", "log.retention.ms"])
def test_a_setting_that_the_topic_has_of_its_own_is_not_used_and_the_output_says_so(
    data: Path, capsys: pytest.CaptureFixture[str], where: str, setting: str
) -> None:
    path = data if where == "store" else data / "kept-0"
    before = bases(data / "kept-0")
    found = Printed(capsys, "retain", path, "-c", f"{setting}=1")
    assert found.out.splitlines()[:2] == [
        "kept-0",
        "  not used: the given retention.ms=1; the topic has retention.ms=-1 of its own, which is used",
    ]
    assert found.out.count("not used") == 1
    assert bases(data / "kept-0") == before
    facts = Printed(capsys, "retain", path, "-c", f"{setting}=1", "--json").json["partitions"]
    assert {each["topic"]: each["own_settings"] for each in facts}["kept"] == {"retention.ms": -1}


def test_a_given_setting_that_is_the_default_is_said_to_be_unused_too(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kstore.Store.open(data, background=False) as store:
        store.update_topic_config("kept", {"retention.ms": 3 * HOUR})
    found = Printed(capsys, "retain", data, "--topic", "kept", "--retention-ms", -1, "--dry-run")
    assert f"  not used: the given retention.ms=-1; the topic has retention.ms={3 * HOUR} of its own" in found.out


def test_no_setting_is_called_unused_where_the_topic_has_none_or_the_same(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        "not used" not in Printed(capsys, "retain", data, "--topic", "orders", "--retention-ms", HOUR, "--dry-run").out
    )
    assert "not used" not in Printed(capsys, "retain", data, "--retention-ms", -1, "--dry-run").out
    assert "not used" not in Printed(capsys, "retain", data, "--dry-run").out


def test_what_a_dry_run_says_is_what_a_run_does_and_the_files_are_gone(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = (data, "-c", "retention.bytes=1000", "--json")
    planned = Printed(capsys, "retain", *how, "--dry-run").json
    done = Printed(capsys, "retain", *how)
    assert (done.code, done.err) == (0, "")
    assert (planned.pop("dry_run"), done.json["dry_run"]) == (True, False)
    for key, value in planned.items():
        if key != "partitions":
            assert done.json[key] == value
    assert (planned["segments"], planned["bytes"]) == (6, 3000)
    for dry, wet in zip(planned["partitions"], done.json["partitions"], strict=True):
        assert (dry["deleted"], dry["error"], dry["path"]) == (wet["deleted"], wet["error"], wet["path"])
        assert (dry["stays"]["base_offset"], dry["stays"]["bytes_left"]) == (10, 500)
    for name in ("orders-0", "orders-1", "kept-0"):
        assert bases(data / name) == [10, 15]
        assert list((data / name).glob("*.deleted")) == []
        with kstore.Log.open(data / name, mode="r") as log:
            assert log.log_start_offset == 10


def test_only_the_topics_that_are_named_are_gone_through(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Printed(capsys, "retain", data, "--topic", "orders", "--retention-bytes", 0)
    assert found.code == 0
    assert [line for line in found.out.splitlines() if not line.startswith(" ")] == [
        "orders-0", "orders-1", "8 segments deleted, 4000 bytes, in 2 partitions",
    ]  # fmt: skip
    assert bases(data / "orders-0") == bases(data / "orders-1") == [20]
    assert bases(data / "kept-0") == [0, 5, 10, 15]


@pytest.mark.parametrize("dry", [True, False])
def test_one_partition_directory_is_gone_through_alone(
    data: Path, capsys: pytest.CaptureFixture[str], dry: bool
) -> None:
    found = Printed(
        capsys, "retain", data / "orders-1", "--retention-ms", HOUR // 2, *(["--dry-run"] if dry else []), "--json"
    )
    assert (found.code, found.err) == (0, "")
    [partition] = found.json["partitions"]
    assert [deletion["reason"] for deletion in partition["deleted"]] == ["time"] * 3
    assert bases(data / "orders-1") == ([0, 5, 10, 15] if dry else [15])
    assert bases(data / "orders-0") == [0, 5, 10, 15]


def test_what_a_store_keeps_for_a_topic_comes_before_what_is_given(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (data / "kept-0", data):
        found = Printed(capsys, "retain", path, "--retention-ms", 0, "--dry-run", "--json").json
        assert [each["deleted"] for each in found["partitions"] if each["topic"] == "kept"] == [[]]


def test_without_settings_only_what_lies_below_the_log_start_goes(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kstore.Store.open(data, background=False) as store:
        store.log("orders", 0).delete_records(7)
    found = Printed(capsys, "retain", data)
    assert found.out.splitlines()[-1] == "1 segment deleted, 500 bytes, in 3 partitions"
    assert "it ends at offset 5, and the log starts at 7" in found.out
    assert bases(data / "orders-0") == [5, 10, 15]


def test_a_brokers_file_brings_its_settings(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("log.retention.minutes=90\nlog.dirs=/elsewhere\n")
    found = Printed(capsys, "retain", data, "--topic=orders", "-c", properties)
    assert found.out.splitlines()[-1] == "4 segments deleted, 2000 bytes, in 2 partitions"


def test_several_data_directories_are_one_store(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.move(data / "orders-1", other / "orders-1")
    found = Printed(capsys, "retain", data, other, "--retention-bytes", 0)
    assert found.code == 0
    assert found.out.splitlines()[-1] == "12 segments deleted, 6000 bytes, in 3 partitions"


def test_a_partition_that_cannot_be_read_is_one_line_and_the_others_are_shown(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    log = data / "orders-0" / "00000000000000000015.log"
    log.write_bytes(b"\1" * 500)
    found = Printed(capsys, "retain", data, "--retention-bytes", 1000, "--json")
    assert found.code == 1
    assert [each["error"] is None for each in found.json["partitions"]] == [True, False, True]
    assert found.err.count("\n") == 1
    assert found.err.startswith("kstore retain: orders-0: ")
    assert bases(data / "orders-0") == [0, 5, 10, 15]
    assert bases(data / "orders-1") == [10, 15]


def test_while_another_process_has_the_store_it_is_locked_and_a_dry_run_is_not(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kstore.Store.open(data, background=False):
        for path in (data, data / "orders-0"):
            found = Printed(capsys, "retain", path)
            assert (found.code, found.out, found.err.count("\n")) == (1, "" if path == data else found.out, 1)
            assert "lock" in found.err
            assert Printed(capsys, "retain", path, "--dry-run").code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--dry-run"], "PATH"),
        (["missing"], "missing"),
        (["empty"], "there is no partition in"),
        (["data", "--topic", "nothing"], "there is no topic 'nothing'"),
        (["data/orders-0", "--topic", "orders"], "--topic goes with a data directory"),
        (["data", "--retention-ms", "-2"], "retention-ms"),
        (["data", "-c", "no.such=1"], "no.such"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_made(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    (data.parent / "empty").mkdir()
    monkeypatch.chdir(data.parent)
    before = contents(data.parent)
    found = Printed(capsys, "retain", *arguments)
    assert (found.code, found.out, found.err.count("\n")) == (2 if told == "PATH" else 1, "", 1)
    assert told in found.err
    assert contents(data.parent) == before


def test_a_data_directory_may_be_named_like_a_partition(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data.rename(tmp_path / "kafka-logs-1")
    found = Printed(capsys, "retain", tmp_path / "kafka-logs-1", "--dry-run")
    assert found.out.splitlines()[-1] == "0 segments would be deleted, 0 bytes, in 3 partitions"


def test_help_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["retain", "--help"])
    assert caught.value.code == 0
    assert "--dry-run" in capsys.readouterr().out


def test_a_topic_is_its_partitions(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limit = ["--retention-ms", 2 * HOUR - HOUR // 2]
    whole = Printed(capsys, "retain", data, "--topic", "orders", "--dry-run", "--json", *limit).json
    found = Printed(capsys, "retain", data / "orders", data / "orders-1", "--dry-run", "--json", *limit).json
    for each, other in zip(found["partitions"], whole["partitions"], strict=True):
        assert [each[name] for name in ("topic", "partition", "path")] == [
            other[name] for name in ("topic", "partition", "path")
        ]
        assert [gone["base_offset"] for gone in each["deleted"]] == [gone["base_offset"] for gone in other["deleted"]]
    assert found["segments"] == whole["segments"] > 0
    assert Printed(capsys, "retain", data / "orders", *limit).code == 0
    assert Printed(capsys, "retain", data, "--topic", "orders", "--dry-run", "--json", *limit).json["segments"] == 0


def test_a_path_that_names_nothing_is_told_and_nothing_is_deleted(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(data)
    for path in (data / "nothing", data / "orders-2", data.parent / "none" / "orders"):
        found = Printed(capsys, "retain", data, path, "--retention-ms", 0)
        assert (found.code, found.out, found.err.count("\n")) == (1, "", 1)
        assert str(path) in found.err
    assert "--topic goes with a data directory" in Printed(capsys, "retain", data / "orders", "--topic", "kept").err
    assert contents(data) == before


def test_kstores_default_is_named_on_a_brokers_directory(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "broker" not in Printed(capsys, "retain", data, "--dry-run").out
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    for path in (data, data / "orders", data / "orders-0"):
        printed = Printed(capsys, "retain", path, "--dry-run")
        assert printed.code == 0
        for told in (f"A broker wrote {data}, and its settings are not", "604800000 ms (7 d)", "-c server.properties"):
            assert told in printed.out.splitlines()[0]
        assert "(7 d)" in Printed(capsys, "retain", path, "--dry-run", "--json").json["note"]
    settings = data.parent / "server.properties"
    settings.write_text("log.retention.hours=2\nlog.dirs=/elsewhere\n")
    for given in (["-c", settings], ["--retention-ms", 2 * HOUR], ["-c", "log.retention.minutes=120"]):
        printed = Printed(capsys, "retain", data, "--dry-run", "--topic", "orders", *given)
        assert "A broker wrote" not in printed.out
        assert "would delete" in printed.out
    settings.write_text("log.dirs=/elsewhere\n")  # which leaves the broker's default
    assert "(7 d)" in Printed(capsys, "retain", data, "--dry-run", "-c", settings).out


def test_a_kept_segment_of_a_broker_is_told_with_what_kafkas_default_would_delete(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    with kstore.Log.open(data / "orders-0", segment_bytes=500) as log:
        for days in (20, 9, 2):
            for _ in range(5):
                log.append(bytes(32), timestamp=hours_ago(24 * days))
        log.delete_records(20)
        assert len(log.apply_retention()) == 4
    found = Printed(capsys, "retain", data, "--dry-run", "--topic", "orders")
    kept = [line for line in found.out.splitlines() if line.startswith("  kept: ")]
    kafkas = "with Kafka's default of retention.ms = 604800000 ms (7 d) a check would delete"
    assert "retention.ms is not given, and kstore's default sets no limit" in kept[0]
    assert kept[0].endswith(f"; {kafkas} 2 segments, 1000 bytes, offsets 20 to 29")
    assert kept[1].endswith(f"; {kafkas} nothing yet")
    assert f"{kafkas} 2 segments, 1000 bytes, offsets 20 to 29. " in found.out.splitlines()[0]
    [first, second] = Printed(capsys, "retain", data, "--dry-run", "--topic", "orders", "--json").json["partitions"]
    assert [each["base_offset"] for each in first["kafka_default"]] == [20, 25]
    assert second["kafka_default"] == []
    by_name = Printed(
        capsys, "retain", data, "--dry-run", "--topic", "orders", "--retention-ms", 7 * 24 * HOUR, "--json"
    ).json
    assert by_name["segments"] == 2
    assert by_name["note"] is None
    assert {each["kafka_default"] for each in by_name["partitions"]} == {None}
    assert Printed(capsys, "retain", data, "--dry-run", "--topic", "kept", "--json").json["note"] is None


def test_compact_says_that_a_brokers_policy_is_not_in_its_directory(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    assert cli.main(["compact", str(data), "--dry-run"]) == 0
    assert "No cleanup.policy is given" in capsys.readouterr().out
    assert cli.main(["compact", str(data), "--dry-run", "--json"]) == 0
    assert "cleanup.policy" in json.loads(capsys.readouterr().out)["note"]
    assert cli.main(["compact", str(data), "--dry-run", "--cleanup-policy", "compact"]) == 0
    assert "A broker wrote" not in capsys.readouterr().out
