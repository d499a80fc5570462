"""`kstore describe`, `cat`, `tail`, `offsets` and `append`, as a new user meets them."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

import kstore
from kstore import cli
from kstore.cli import command_options, command_times, record_formats
from kstore.errors import ConfigError
from kstore.files.stream_positions import StreamPositions, write_positions
from kstore.store.topics._partitioner import partition_of
from tests.conftest import ManualClock
from tests.golden import goldensets

NOON = 1_370_088_000_000  # 2013-06-01T12:00Z
HOUR = 3_600_000


@pytest.fixture
def data(root: Path, clock: ManualClock) -> Path:
    """Two topics: `events` of two partitions, an hour between records, and `one`."""
    clock.now = NOON + 5 * HOUR
    with kstore.Store.open(root, clock=clock, background=False, segment_index_bytes=4096) as store:
        store.create_topic("events", 2, config={"segment.bytes": "200"})
        for number in range(5):
            store.log("events", 0).append(b"v%d" % number, b"k", timestamp=NOON + number * HOUR)
        store.log("events", 1).append(b"\xff", None, timestamp=NOON, headers=[("h", b"x"), ("n", None)])
        store.log("events", 1).append(None, b"gone", timestamp=NOON + 1)
        store.create_topic("one")
    return root


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., bytes]:
    """`run("cat", path)`: what the command prints when all goes well; `code=1`: its complaint."""

    def go(
        *arguments: object, code: int = 0, stdin: bytes = b"", monkeypatch: pytest.MonkeyPatch | None = None
    ) -> bytes:
        if monkeypatch is not None:
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        assert cli.main([str(each) for each in arguments]) == code
        printed = capfdbinary.readouterr()
        if code == 0:
            assert printed.err == b""
            return printed.out
        assert printed.err.count(b"\n") == 1
        return printed.err

    return go


# Looking


def test_a_directory_is_described_partition_by_partition(data: Path, run: Callable[..., bytes]) -> None:
    lines = run("describe", data).decode().splitlines()
    assert lines[1].split()[:4] == ["events-0", "0", "5", "3"]
    assert lines[1].split()[-3:] == ["2013-06-01T12:00:00.000Z", "2013-06-01T16:00:00.000Z", "none"]
    assert [line.split()[0] for line in lines[1:4]] == ["events-0", "events-1", "one-0"]
    assert lines[4].startswith("2 topics, 3 partitions, 7 offsets")


def test_a_topic_and_a_partition_are_found_by_their_path(data: Path, run: Callable[..., bytes]) -> None:
    assert len(run("describe", data / "events").splitlines()) == 5
    told = run("describe", data / "events-0", "--codecs").decode()
    assert "offsets 0 to 5" in told
    assert [line.split()[0] for line in told.splitlines()[-3:]] == ["0", "2", "4"]
    assert {line.split()[-1] for line in told.splitlines()[-3:]} == {"none"}
    assert run("describe", data / "one").decode().splitlines()[-2] == "1 topic, 1 partition, 0 offsets, 0 B"


def test_codecs_are_those_of_first_batches_or_of_every_batch(root: Path, run: Callable[..., bytes]) -> None:
    with kstore.Log.open(root / "events-0") as log:
        for codec in ("zstd", "gzip", "zstd"):
            log.append_many([b"v" * 100] * 9, compression=codec)
        log.roll()
    for arguments, heading, expected in (([], "first codec", ["zstd"]), (["--codecs"], "codecs", ["gzip", "zstd"])):
        found = json.loads(run("describe", root, "--json", *arguments))["partitions"][0]
        assert (found["codecs"], [each["codecs"] for each in found["segments"]]) == (expected, [expected, []])
        lines = run("describe", root / "events-0", *arguments).decode().splitlines()
        assert [line.split("  ")[-1] for line in lines[-3:]] == [heading, ",".join(expected), "-"]


def test_the_oldest_record_is_the_one_at_the_log_start(root: Path, run: Callable[..., bytes]) -> None:
    with kstore.Log.open(root / "events-0") as log:
        log.append_many([(None, b"v", NOON + number, ()) for number in range(5)])
        for start in (3, 5):
            log.delete_records(start)
            found = json.loads(run("describe", root, "--json"))["partitions"][0]
            expected = (NOON + 3, NOON + 4) if start == 3 else (None, None)
            assert (found["first_timestamp"], found["max_timestamp"]) == expected
            assert found["segments"][0]["first_timestamp"] == expected[0]


def test_a_log_that_ends_below_what_was_flushed_is_not_shown_as_sound(root: Path) -> None:
    with kstore.Log.open(root / "events-0") as log:
        log.append_many([b"v"] * 5)
    path = root / "events-0" / "00000000000000000000.log"
    path.write_bytes(b"garbage" * 50)
    assert cli.main(["describe", str(root)]) == 1


def test_positions_of_streams_are_described_with_their_lag(data: Path, run: Callable[..., bytes]) -> None:
    offsets = {("events", 0): 3, ("events", 1): 2, ("gone", 0): 7}
    write_positions(str(data), StreamPositions("dashboard", NOON, offsets))
    lines = [line.split() for line in run("describe", data).decode().splitlines()[-3:]]
    assert [line[:5] for line in lines] == [
        ["dashboard", "events-0", "3", "5", "2"],
        ["dashboard", "events-1", "2", "2", "0"],
        ["dashboard", "gone-0", "7", "-", "-"],
    ]
    assert lines[0][5] == "2013-06-01T12:00:00.000Z"
    [stream] = json.loads(run("describe", data / "events", "--json"))["stream_positions"]
    assert stream == {
        "group": "dashboard",
        "written_timestamp": NOON,
        "partitions": [
            {"topic": "events", "partition": 0, "position": 3, "log_end_offset": 5, "lag": 2},
            {"topic": "events", "partition": 1, "position": 2, "log_end_offset": 2, "lag": 0},
        ],
        "error": None,
    }
    [stream] = json.loads(run("describe", data / "one", "--json"))["stream_positions"]
    assert stream["partitions"] == []
    assert b"dashboard" not in run("describe", data / "one")


def test_positions_that_cannot_be_read_are_reported_and_hide_no_others(data: Path, run: Callable[..., bytes]) -> None:
    for group in ("a", "c"):
        write_positions(str(data), StreamPositions(group, NOON, {("one", 0): 0}))
    directory = Path(f"{data}.kstore-positions")
    (directory / "b\n\x1b.json").write_text("{}")
    *lines, last = run("describe", data / "one").decode().splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["a", "c"]
    assert last.startswith(r"the positions of group b\x0a\x1b cannot be read: ")
    assert "version is missing; remove it: the query writes a new one" in last
    shutil.rmtree(directory)
    directory.write_bytes(b"")
    assert "the positions of streams cannot be read: " in run("describe", data).decode().splitlines()[-1]


@pytest.mark.parametrize("name", ["delete-records", "transactions", "retention", "legacy", "crash-damaged"])
def test_directories_of_kafka_are_described_at_every_level(
    name: str, tmp_path: Path, run: Callable[..., bytes]
) -> None:
    root = goldensets.copy_set(name, tmp_path)
    for directory in sorted({path.parent for path in map(Path, goldensets.log_directories(name))}):
        whole = {
            (facts["topic"], facts["partition"]): facts
            for facts in json.loads(run("describe", root / directory, "--json"))["partitions"]
        }
        assert whole
        for topic in {topic for topic, _ in whole}:
            some = json.loads(run("describe", root / directory / topic, "--json"))["partitions"]
            assert some == [facts for key, facts in whole.items() if key[0] == topic]
        for (topic, number), facts in whole.items():
            path = root / directory / f"{topic}-{number}"
            assert json.loads(run("describe", path, "--json"))["partitions"] == [facts]
            with kstore.Log.open(path, "r") as log:
                oldest = next(iter(log.read()), None)
            if oldest is not None and oldest.timestamp >= 0:
                assert facts["first_timestamp"] == oldest.timestamp


def test_json_says_what_the_log_says(data: Path, run: Callable[..., bytes]) -> None:
    found = json.loads(run("describe", data, "--json", "--codecs"))["partitions"]
    with kstore.Store.open(data, "r") as store:
        for facts in found:
            log = store.log(facts["topic"], facts["partition"])
            assert facts["log_end_offset"] == log.log_end_offset
            assert [s["base_offset"] for s in facts["segments"]] == [s.base_offset for s in log.segments]
            assert facts["codecs"] == (["none"] if log.log_end_offset else [])
            assert facts["topic_id"] is not None


def test_a_partition_that_cannot_be_read_is_told_with_the_others(data: Path, run: Callable[..., bytes]) -> None:
    path = data / "events-0" / "00000000000000000002.log"
    path.write_bytes(path.read_bytes()[:-3])
    (data / "recovery-point-offset-checkpoint").write_text("0\n1\nevents 0 what\n")
    assert cli.main(["describe", str(data), "--json"]) == 1


@pytest.mark.parametrize("command", ["describe", "cat", "tail", "offsets"])
def test_what_is_not_there_is_one_line_and_code_1(root: Path, run: Callable[..., bytes], command: str) -> None:
    assert b"nothing" in run(command, root / "nothing", code=1)
    assert run(command, root / "no" / "where", code=1) == b"kstore %s: %s: No such file or directory\n" % (
        command.encode(), bytes(root / "no" / "where"),
    )  # fmt: skip
    (root / "file").touch()
    assert b"is a file" in run(command, root / "file", code=1)
    assert b"No such file" in run(command, root / "no" / "where", code=1)


def test_looking_changes_nothing(data: Path, run: Callable[..., bytes]) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in data.rglob("*") if p.is_file()}

    before = state()
    for command in (["describe", data], ["cat", data / "events"], ["tail", data / "events-0"], ["offsets", data]):
        run(*command)
    assert state() == before


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("latest", "events:0:5"),
        ("-1", "events:0:5"),
        ("earliest", "events:0:0"),
        ("max-timestamp", "events:0:4"),
        ("2013-06-01T13:00", "events:0:1"),
        ("2013-06-01T15:00:00.001+02:00", "events:0:2"),
        (str(NOON + HOUR + 1), "events:0:2"),
        ("2013-06-02", "events:0:"),
    ],
)
def test_offsets_are_found_by_time(data: Path, run: Callable[..., bytes], when: str, expected: str) -> None:
    assert run("offsets", data / "events-0", "--time", when).decode().splitlines() == [expected]


def test_offsets_of_a_whole_directory_as_json(data: Path, run: Callable[..., bytes]) -> None:
    found = [json.loads(line) for line in run("offsets", data, "--time", "max-timestamp", "--json").splitlines()]
    assert [(each["topic"], each["partition"], each["offset"]) for each in found] == [
        ("events", 0, 4),
        ("events", 1, 1),
        ("one", 0, None),
    ]


# Records out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [0, 1, 2, 3, 4]),
        (["--offset", "3"], [3, 4]),
        (["--offset", "5"], []),
        (["--to-offset", "2"], [0, 1]),
        (["--from", "2013-06-01T14:00"], [2, 3, 4]),
        (["--from", "2013-06-01T13:00", "--to", "2013-06-01T15:00"], [1, 2]),
        (["--from", "-1h"], []),
        (["--last", "2"], [3, 4]),
        (["--last", "0"], []),
        (["--last", "9"], [0, 1, 2, 3, 4]),
        (["--max", "2"], [0, 1]),
    ],
)
def test_records_come_from_where_they_are_asked_for(
    data: Path, run: Callable[..., bytes], arguments: list[str], expected: list[int]
) -> None:
    assert run("cat", data / "events-0", *arguments).splitlines() == [b"v%d" % number for number in expected]


def test_a_topic_comes_partition_by_partition(data: Path, run: Callable[..., bytes]) -> None:
    assert run("cat", data / "events").splitlines() == [b"v0", b"v1", b"v2", b"v3", b"v4", b"\xff", b""]


def test_formats_are_those_of_kcat(data: Path, run: Callable[..., bytes]) -> None:
    out = run("cat", data / "events-1", "--format", r"%t %p %o %T %k %s %K %S %h %%|\x41\n")
    assert out == b"events 1 0 %d  \xff -1 1 h=x,n= %%|A\nevents 1 1 %d gone  4 -1  %%|A\n" % (NOON, NOON + 1)
    assert run("cat", data / "events-1", "--format", "%R") == b"\0\0\0\1\xff\xff\xff\xff"
    assert run("cat", data / "events-0", "--max", 1, "--key-separator", "=>") == b"k=>v0\n"


@pytest.mark.parametrize("text", ["%q", "%", "\\", "\\q", "a%"])
def test_a_field_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--format"):
        record_formats.formatter(text)


def test_json_lines_tell_bytes_from_text(data: Path, run: Callable[..., bytes]) -> None:
    found = [json.loads(line) for line in run("cat", data / "events-1", "--json").splitlines()]
    assert found[0] == {
        "topic": "events", "partition": 1, "offset": 0, "timestamp": NOON, "key": None, "value_base64": "/w==",
        "headers": [{"key": "h", "value": "x"}, {"key": "n", "value": None}],
    }  # fmt: skip
    assert (found[1]["key"], found[1]["value"]) == ("gone", None)


@pytest.mark.parametrize("key", [None, b"", b'"\\\n\t\0', "\u20ac\U0001f600".encode(), b"\xff", b"\xed\xa0\x80"])
@pytest.mark.parametrize("headers", [(), (("h", b"x"), ('"', None), ("\udcff", b"\xff"))])
def test_a_json_line_is_the_record_as_json(key: bytes | None, headers: tuple[tuple[str, bytes | None], ...]) -> None:
    record = kstore.Record(7, -1, key, b"v", headers)
    line = record_formats.json_line('a"b', 3, record)
    assert json.loads(line) == record_formats.json_of('a"b', 3, record)
    assert line.count(b"\n") == 1


def test_tail_gives_ten_and_the_last_of_sparse_offsets(root: Path, run: Callable[..., bytes]) -> None:
    with kstore.Log.open(root / "events-0") as log:
        for base in range(0, 3000, 100):
            log.append_as_follower(kstore.encode_batch([b"v%d" % base], base_offset=base, partition_leader_epoch=0))
    assert run("tail", root / "events-0").splitlines() == [b"v%d" % base for base in range(2000, 3000, 100)]
    assert run("cat", root / "events-0", "--last", 3).splitlines() == [b"v2700", b"v2800", b"v2900"]


def test_tail_follows_until_nothing_has_come_for_a_while(data: Path, run: Callable[..., bytes]) -> None:
    assert run("tail", "-f", data / "events-0", "--last", 2, "--timeout", "0.05") == b"v3\nv4\n"
    assert run("tail", "-f", data / "events", "--last", 1, "--timeout", "0.05") == b"v4\n\n"


def test_a_follower_leaves_out_what_is_not_asked_for(data: Path, run: Callable[..., bytes]) -> None:
    for path in (data / "events", data / "events-0"):
        for arguments in (["--to-offset", "4"], ["--to", "2013-06-01T16:00"]):
            first = 1 if path.name == "events" else 3
            shown = run("tail", "-f", path, "--offset", first, *arguments, "--timeout", "0.05")
            assert b"v3\n" in shown
            assert b"v4" not in shown
    assert run("tail", "-f", data / "events-0", "--from", "2013-06-01T15:30", "--timeout", "0.05") == b"v4\n"
    assert run("tail", "-f", data / "events", "--from", "2013-06-01T15:30", "--timeout", "0.05") == b"v4\n"


def test_a_whole_directory_has_no_records_to_print(data: Path, run: Callable[..., bytes]) -> None:
    assert b"name a topic" in run("cat", data, code=1)


# Records in


def test_lines_become_records(root: Path, run: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "events-0"
    said = run("append", path, stdin=b"one\n\nlast without end", monkeypatch=monkeypatch)
    assert said == b"events-0: offsets 0 to 2\n"
    run("append", path, "--key-separator", ":", "--header", "h=v", stdin=b"k:a:b\n", monkeypatch=monkeypatch)
    with kstore.Log.open(path, "r") as log:
        found = [(record.key, record.value, record.headers) for record in log.read()]
    assert found == [
        (None, b"one", ()),
        (None, b"", ()),
        (None, b"last without end", ()),
        (b"k", b"a:b", (("h", b"v"),)),
    ]


def test_what_cat_prints_as_json_append_takes(
    data: Path, root: Path, run: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = run("cat", data / "events", "--json")
    run("append", root.parent / "copy" / "all-0", "--json", stdin=lines, monkeypatch=monkeypatch)
    with kstore.Store.open(data, "r") as store, kstore.Log.open(root.parent / "copy" / "all-0", "r") as copy:
        original = [r for number in (0, 1) for r in store.log("events", number).read()]
        assert [tuple(r)[1:] for r in copy.read()] == [tuple(r)[1:] for r in original]


def test_a_topics_keys_go_where_kafkas_producer_sends_them(
    data: Path, run: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("append", data / "events", "--key-separator", ":", stdin=b"a:1\nb:2\nc:3\n", monkeypatch=monkeypatch)
    with kstore.Store.open(data, "r") as store:
        there = {r.key: number for number in (0, 1) for r in store.log("events", number).read()}
        assert len(store.log("events", 0).segments) > 3, "the topic's own segment.bytes holds"
    assert {key: there[key] for key in (b"a", b"b", b"c")} == {key: partition_of(key, 2) for key in (b"a", b"b", b"c")}


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        (["--key-separator", ":"], b"a:1\nno key\n", b"line 2"),
        (["--json"], b"{}\n[]\n", b"line 2"),
        (["--json"], b'{"valu":"x"}\n', b"line 1"),
        (["--json"], b'{"value":1}\n', b"value is no text"),
        (["--json"], b'{"value_base64":"!"}\n', b"line 1"),
        (["--json"], b'{"timestamp":"x"}\n', b"timestamp"),
        (["--header", "x"], b"", b"NAME=VALUE"),
        (["--compression", "zip"], b"x\n", b"zip"),
    ],
)
def test_bad_input_is_named_by_its_line(
    root: Path, run: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch, arguments: list[str], stdin: bytes,
    complaint: bytes,
) -> None:  # fmt: skip
    assert complaint in run("append", root / "events-0", *arguments, code=1, stdin=stdin, monkeypatch=monkeypatch)


def test_nothing_is_appended_while_another_process_writes(
    root: Path, run: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.Store.open(root) as store:
        store.create_topic("events")
        assert b"locked by" in run("append", root / "events-0", code=1, stdin=b"x\n", monkeypatch=monkeypatch)
        assert store.log("events", 0).log_end_offset == 0


# Moments


def test_moments_are_read_in_every_form() -> None:
    now = 1_700_000_000_000
    for text, expected in (
        ("-1h", now - HOUR),
        ("-30m", now - HOUR // 2),
        ("-2d", now - 48 * HOUR),
        ("-0s", now),
        ("2013-06-01T12:00", NOON),
        ("2013-06-01T12:00Z", NOON),
        ("2013-06-01T14:00+02:00", NOON),
        ("20130601", NOON - 12 * HOUR),
        ("1370088000000", NOON),
        ("1969-12-31T23:59:59.999", -1),
    ):
        assert command_times.parse(text, now) == expected, text
    for text in ("", "yesterday", "-1", "-1y", "2013-13-01", "1e3"):
        with pytest.raises(ConfigError):
            command_times.parse(text, now)
    assert command_times.show(NOON) == "2013-06-01T12:00:00.000Z"
    assert command_times.show(2**62) == f"{2**62} ms"
    assert abs(command_times.parse("-0s") - time.time() * 1000) < 60_000
    assert datetime.fromisoformat(command_times.show(NOON)) == datetime(2013, 6, 1, 12, tzinfo=UTC)


def test_a_value_may_begin_with_a_dash_and_a_digit() -> None:
    parser = command_options.Parser("x")
    parser.add_argument("--from", dest="since")
    parser.add_argument("--flag", action="store_true")
    parser.add_argument("path")
    assert parser.parse_args(["--from", "-1h", "--flag", "p"]).since == "-1h"
    with pytest.raises(ConfigError):
        parser.parse_args(["--from", "--flag", "p"])


# `cat --latest`.


@pytest.fixture
def accounts(root: Path, clock: ManualClock) -> Path:
    """A topic of two partitions with keys that come again, a tombstone, a record without a key, an open transaction."""
    with kstore.Store.open(root, clock=clock, background=False) as store:
        store.create_topic("accounts", 2)
        for number in range(2):
            log = store.log("accounts", number)
            for key, value in (
                (b"a", b"1"),
                (b"b", b"2"),
                (None, b"none"),
                (b"a", b"3"),
                (b"b", None),
                (b"\x1b[2J", b"4"),
            ):
                key = key if key is None else key + b"%d" % number
                log.append(value, key, timestamp=NOON + log.log_end_offset * HOUR)
            log.append_many(
                [(b"a", b"undecided")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
            )
    return root


def test_cat_latest_prints_the_newest_record_of_each_key(accounts: Path, run: Callable[..., bytes]) -> None:
    assert run("cat", accounts / "accounts-0", "--latest").splitlines() == [b"3", b"4"]
    assert run("cat", accounts / "accounts-0", "--latest", "--max", 1, "-K", "=") == b"a0=3\n"
    assert run("cat", accounts / "accounts", "--latest", "--format", r"%p %o %s\n").splitlines() == [
        b"0 3 3", b"0 5 4", b"1 3 3", b"1 5 4",
    ]  # fmt: skip
    lines = run("cat", accounts / "accounts", "--latest", "--json").splitlines()
    assert [(line["partition"], line["key"], line["value"]) for line in map(json.loads, lines)] == [
        (0, "a0", "3"), (0, "\x1b[2J0", "4"), (1, "a1", "3"), (1, "\x1b[2J1", "4"),
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["accounts-0", "accounts"])
def test_cat_latest_goes_back_in_time(accounts: Path, run: Callable[..., bytes], path: str) -> None:
    sides = 2 if path == "accounts" else 1
    for arguments, expected in (
        (["--as-of", NOON + HOUR], [b"1", b"2"]),
        (["--as-of", "2013-06-01T13:00"], [b"1", b"2"]),
        (["--as-of", NOON - 1], []),
        (["--to-offset", 4], [b"2", b"3"]),
        (["--to-offset", 0], []),
    ):
        assert run("cat", accounts / path, "--latest", *arguments).splitlines() == expected * sides


def test_cat_latest_refuses_what_has_no_meaning_with_it(accounts: Path, run: Callable[..., bytes]) -> None:
    path = accounts / "accounts-0"
    for arguments in (
        ["--offset", 1],
        ["--from", "-1h"],
        ["--last", 1],
        ["--to", "-1h"],
        ["--as-of", 0, "--to-offset", 1],
    ):
        assert b"kstore cat:" in run("cat", path, "--latest", *arguments, code=2)
    assert b"--as-of goes with --latest" in run("cat", path, "--as-of", 0, code=2)
    assert b"the year is beyond" in run("cat", path, "--latest", "--as-of", 10**17, code=1)
    assert b"offset 99 is not in the log" in run("cat", path, "--latest", "--to-offset", 99, code=1)
    assert b"is no time" in run("cat", path, "--latest", "--as-of", "noon", code=1)
