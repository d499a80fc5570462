"""`kstore config`, and the options by which every subcommand takes settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kstore import cli
from kstore.cli import command_options
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import KAFKA_RETENTION_MS, LogConfig, from_properties
from kstore.errors import ConfigError

ROWS = (*LogConfig.settings, *BrokerConfig.settings)


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """What `kstore config` prints, when all goes well."""
    assert cli.main(["config", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out.splitlines()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["config", *arguments]) in (1, 2)
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_every_setting_has_its_line_with_what_is_allowed_and_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    found = {line.split()[0]: line for line in lines(capsys) if line}
    for row in ROWS:
        assert row.range in found[row.name]
        assert row.shown_default in found[row.name]
    assert len(found) == len(ROWS) + 1  # both tables' headings begin alike


@pytest.mark.parametrize("name", ["retention.ms", "retention_ms", "log.retention.hours"])
def test_a_setting_is_told_in_full_under_any_of_its_names(capsys: pytest.CaptureFixture[str], name: str) -> None:
    (row,) = (row for row in ROWS if row.name == "retention.ms")
    told = " ".join(" ".join(lines(capsys, name)).split())
    for fact in (row.name, row.range, row.shown_default, row.doc, row.danger, row.applies, "log.retention.minutes"):
        assert fact in told


def test_json_has_every_fact_of_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads("\n".join(lines(capsys, "--json")))
    assert [each["name"] for each in found] == [row.name for row in ROWS]
    (retention,) = (each for each in found if each["name"] == "retention.ms")
    assert (retention["default"], retention["kafka_default"]) == (-1, KAFKA_RETENTION_MS)
    assert {"name": "log.retention.hours", "unit": "hours"} in retention["broker_names"]


def test_what_is_given_is_resolved_and_its_warnings_told(capsys: pytest.CaptureFixture[str]) -> None:
    printed = lines(capsys, "--config", "log.retention.minutes=10", "-c", "log.cleaner.threads=0")
    assert printed[:2] == ["retention.ms=600000", "log.cleaner.threads=0"]
    assert [line.split(" (")[0] for line in printed[2:]] == [
        "# warning: log.cleaner.threads = 0: nothing is compacted, and Kafka 5 will refuse it",
        "# warning: retention.ms = 600000 ms",
    ]


def test_settings_that_are_named_are_told_whether_given_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    printed = lines(capsys, "-c", "segment.bytes=99", "internal.segment.bytes", "log.segment.bytes", "segment.ms")
    assert printed == ["internal.segment.bytes=", "segment.bytes=99", "segment.ms=604800000"]
    found = json.loads("\n".join(lines(capsys, "-c", "segment.bytes=99", "segment.bytes", "--json")))
    assert found == {"settings": {"segment.bytes": 99}, "warnings": []}


def test_a_servers_properties_count_and_what_comes_later_wins(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("node.id=1\nlog.segment.bytes=5000\nlog.retention.hours=168\n")
    assert lines(capsys, "-c", str(path)) == ["segment.bytes=5000", f"retention.ms={KAFKA_RETENTION_MS}"]
    assert lines(capsys, "-c", str(path), "-c", "segment.bytes=6000", "segment.bytes") == ["segment.bytes=6000"]
    path.write_text("log.retention.hours=200\n")
    assert from_properties(path) == {"log.retention.hours": "200"}


@pytest.mark.filterwarnings("ignore:.*names no retention:kstore.ConfigWarning")
@pytest.mark.parametrize("text", ["log.retention.hours=5\nlog.roll.ms=9\n", "log.segment.bytes=77", "", "a=b"])
def test_a_file_means_as_a_mapping_what_it_means_as_a_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.properties"
    path.write_text(text)
    assert LogConfig.resolve(from_properties(path)) == LogConfig.resolve(path)
    assert BrokerConfig.resolve(from_properties(path)) == BrokerConfig.resolve(path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["retenton.ms"], "unknown setting 'retenton.ms'; did you mean 'retention.ms'?"),
        (["-c", "retenton.ms=5"], "unknown setting 'retenton.ms' = '5'; did you mean 'retention.ms'?"),
        (["-c", "retention.ms=x"], "retention.ms = 'x' is no long"),
        (["-c", "/no/such/file"], "/no/such/file"),
        (["--nothing"], "--nothing"),
        (["-c"], "expected one argument"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    error = refusal(capsys, *arguments)
    assert told in error
    assert error.startswith("kstore config: ")
    assert error.count("\n") == 1


def test_help_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["config", "--help"])
    assert caught.value.code == 0
    assert "NAME=VALUE" in capsys.readouterr().out


# The options that others share


def parser() -> command_options.Parser:
    made = command_options.Parser("retain")
    command_options.add_config(made)
    command_options.add_settings(made, "retention.ms", "retention.bytes", "log.retention.check.interval.ms")
    return made


def test_an_option_of_a_setting_is_checked_by_its_row_and_explained_by_it() -> None:
    asked = parser().parse_args(["--retention-ms", "5", "-c", "segment.bytes=99"])
    assert command_options.given(asked) == {"retention.ms": "5", "segment.bytes": "99"}
    assert command_options.given(parser().parse_args([])) is None
    with pytest.raises(ConfigError, match="--retention-ms = '-2' is out of range: at least -1 is allowed"):
        parser().parse_args(["--retention-ms=-2"])
    told = " ".join(parser().format_help().split())
    for row in ROWS:
        if row.name in ("retention.ms", "retention.bytes"):
            assert " ".join(row.help.split()) in told


def test_what_comes_later_on_the_command_line_wins() -> None:
    for order in (["-c", "retention.ms=7", "--retention-ms=5"], ["--retention-ms=7", "-c", "retention.ms=5"]):
        assert command_options.given(parser().parse_args(order)) == {"retention.ms": "5"}
    first = parser().parse_args(["-c", "retention.ms=7"])
    assert command_options.given(first) == {"retention.ms": "7"}
    assert command_options.given(parser().parse_args([])) is None


def test_a_setting_that_does_nothing_is_marked_in_the_list_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [line for line in lines(capsys) if "(does nothing)" in line]
    idle = [each.name for each in (*LogConfig.settings, *BrokerConfig.settings) if each.idle]
    assert [line.split(" ")[0] for line in listed] == idle
    assert "  does nothing here: a log here has one replica" in lines(capsys, "min.insync.replicas")
    assert not any("does nothing" in line for line in lines(capsys, "retention.ms"))
    (facts,) = json.loads("\n".join(lines(capsys, "min.insync.replicas", "--json")))
    assert facts["does_nothing"] == "a log here has one replica"
