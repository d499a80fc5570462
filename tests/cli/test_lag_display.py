"""The lag of a copy on the screen: a table with rich, lines without, JSON lines; and commands that end at a signal."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kstore.cli import command_options, output
from kstore.cli.commands.lag_display import LINE_SECONDS, TABLE_SECONDS, Lag, LagDisplay, lags_of, total_of
from kstore.cli.stopping import Stopping

BEHIND = Lag("orders-0", 90, 100, 10, 2048, 35, None)
SOUND = Lag("orders-1", 100, 100, 0, 0, 0, None)
FAILED = Lag("orders-2", None, None, None, None, None, "another topic id")


def facts_of(lag: Lag) -> dict[str, Any]:
    return {
        "log_end_offset": lag.log_end_offset,
        "leader_log_end_offset": lag.leader_log_end_offset,
        "lag_records": lag.records,
        "lag_bytes": lag.size_bytes,
        "lag_ms": lag.milliseconds,
        "failure": lag.failure,
    }


def test_lags_are_read_out_of_the_stats() -> None:
    lags = [BEHIND, SOUND, FAILED, SOUND._replace(name="orders-10"), SOUND._replace(name="orders-x-0")]
    assert lags_of({lag.name: facts_of(lag) for lag in reversed(lags)}) == lags
    assert lags_of({}) == []
    assert lags_of({"t-0": {"failure": ""}}) == [Lag("t-0", *[None] * 6)]


@pytest.mark.parametrize(
    ("lags", "told"),
    [
        ([], "0 partitions, caught up"),
        ([SOUND], "1 partition, caught up"),
        ([SOUND, BEHIND], "2 partitions, 10 records (2.0 KiB, 35 ms) behind"),
        ([BEHIND, BEHIND._replace(name="x-0", records=1000, milliseconds=4)], "1,010 records (4.0 KiB, 35 ms) behind"),
        ([SOUND, FAILED], "2 partitions, caught up, 1 partition failed"),
    ],
)
def test_all_lags_are_one_line(lags: list[Lag], told: str) -> None:
    assert told in total_of(lags)


def test_lines_are_printed_for_what_has_moved_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with LagDisplay(as_json=False) as display:
        assert display.seconds == LINE_SECONDS
        display.show({}, [BEHIND, SOUND, FAILED], "all")
        assert capsys.readouterr().out.splitlines() == [
            "orders-0: at offset 90 of 100, 10 records (2.0 KiB, 35 ms) behind",
            "orders-1: caught up at offset 100",
            "orders-2: failed at offset ?: another topic id",
            "all",
        ]
        display.show({}, [BEHIND._replace(milliseconds=1035), SOUND, FAILED], "all")
        assert capsys.readouterr().out == ""
        display.show({}, [BEHIND._replace(log_end_offset=100, records=0), SOUND, FAILED], "gone")
        assert capsys.readouterr().out.splitlines() == ["orders-0: caught up at offset 100", "gone"]
        display.tell("orders-0: cut\x1b[2J")
        assert capsys.readouterr().out == "orders-0: cut\\x1b[2J\n"


def test_json_is_a_line_a_look_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with LagDisplay(as_json=True, seconds=0.25) as display:
        assert display.seconds == 0.25
        display.tell("orders-0: cut")
        for _ in range(2):
            display.show({"source": "followed"}, [SOUND], "all")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"source": "followed"}] * 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def look(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard output a terminal from here on."""
    found = Terminal()
    monkeypatch.setattr(sys, "stdout", found)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("LINES", "12")
    return found


def test_a_terminal_has_a_table_that_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    screen = look(monkeypatch)
    with output.guarded(), LagDisplay(as_json=False) as display:
        assert display.seconds == TABLE_SECONDS
        display.show({}, [SOUND, BEHIND, FAILED], "the source is gone")
        first = screen.getvalue()
        display.tell("orders-0: cut [red]x[/red]\x1b]0;evil\x07")
        display.show({}, [SOUND, BEHIND._replace(records=5)], "caught up")
    assert "leader's log end" in first
    assert first.index("orders-2") < first.index("orders-0") < first.index("orders-1")
    assert "another topic id" in first
    assert "the source is gone" in first
    rest = screen.getvalue()[len(first) :]
    assert "\x1b[2K" in rest  # the cursor went up and cleared the first table
    assert "cut [red]x[/red]\\x1b]0;evil\\x07" in rest
    assert "caught up" in rest


def test_a_table_that_is_too_long_shows_the_partitions_that_are_behind_most(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    screen = look(monkeypatch)
    lags = [SOUND._replace(name=f"t-{number}", records=number) for number in range(20)]
    with output.guarded(), LagDisplay(as_json=False) as display:
        display.show({}, lags, "all")
        shown = screen.getvalue()
    assert [name for name in ("t-19", "t-14", "t-13", "t-0") if name in shown] == ["t-19", "t-14"]
    assert "and 14 partitions more" in shown


def test_columns_of_what_is_not_known_of_any_partition_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    screen = look(monkeypatch)
    with output.guarded(), LagDisplay(as_json=False, ends=("backed up to", "log end")) as display:
        display.show({}, [Lag("t-0", 90, 100, 10, None, None, None)], "all")
    heading = next(line for line in screen.getvalue().splitlines() if "backed up to" in line)
    assert "records behind" in heading
    assert "bytes behind" not in heading
    assert total_of([Lag("t-0", 90, 100, 10, None, None, None)]) == "1 partition, 10 records behind"


@pytest.mark.parametrize("why", ["no rich", "dumb"])
def test_a_terminal_without_rich_or_cursor_has_lines(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    screen = look(monkeypatch)
    if why == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    else:
        for name in ("rich", "rich.live", "rich.console"):
            monkeypatch.setitem(sys.modules, name, None)
    with LagDisplay(as_json=False) as display:
        display.show({}, [SOUND], "all")
    assert screen.getvalue() == "orders-1: caught up at offset 100\nall\n"


# Signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_a_command_after_what_it_is_doing(number: int, code: int) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    with Stopping() as stopping:
        assert not stopping.wait(0)
        os.kill(os.getpid(), number)
        assert stopping.wait(60)
        assert {each: signal.getsignal(each) for each in before} == before  # a second one ends it at once
        assert stopping.exit_code == code
    assert {each: signal.getsignal(each) for each in before} == before


def test_without_a_signal_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stopping() as stopping:
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    assert stopping.exit_code == 0


def test_another_thread_than_the_main_one_takes_no_signals() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def go() -> None:
        with Stopping() as stopping:
            found.append((signal.getsignal(signal.SIGTERM) == before, stopping.wait(0)))

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    assert found == [(True, False)]


SLOW_TO_END = """
import sys, time
from kstore.cli.stopping import Stopping
with Stopping() as stopping:
    print("ready", flush=True)
    stopping.wait(60)
    print("ending", flush=True)
    time.sleep(60)
"""


def test_a_second_signal_ends_the_process_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", SLOW_TO_END], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in ("ready\n", "ending\n"):
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGTERM)
        assert process.wait(50) == -signal.SIGTERM


# Times as arguments


@pytest.mark.parametrize(
    ("text", "seconds"), [("1", 1), ("0.5", 0.5), ("500ms", 0.5), ("2m", 120), ("12h", 43_200), ("30d", 2_592_000)]
)
def test_a_time_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert command_options.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0ms", "-1", "1y", "x", "1e9", "nan", "inf", "36501d", "9" * 12])
def test_no_time_at_all_and_one_beyond_a_hundred_years_are_refused(text: str) -> None:
    parser = command_options.Parser("x")
    parser.add_argument("--every", type=command_options.duration)
    with pytest.raises(command_options.UsageError, match="--every"):
        parser.parse_args([f"--every={text}"])


def test_the_longest_time_is_a_hundred_years() -> None:
    assert command_options.duration("36500d") == 36_500 * 86_400


def test_the_modules_of_the_copies_are_not_imported_by_other_commands(tmp_path: Path) -> None:
    module = "kstore.cli.commands.replicate_command"
    program = f"import sys, kstore.cli\nkstore.cli.main(['--help'])\nprint('{module}' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "False"
