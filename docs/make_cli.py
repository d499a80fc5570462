"""Writes `docs/cli.md`: every command with its real output. `make docs` runs it, and a test compares page and code.

The commands run on a small store with a fixed clock, so the output never changes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kstore import cli
from kstore.store import disk_usage

SHOWN_AT = "/srv"
"""The directory that the page shows instead of the real one."""

SHOWN_AS = {
    r"backup [0-9a-f]{32}": "backup 1f7c0a1b5d3e4c2f9a8b7c6d5e4f3a2b",
    r"as of 2[-0-9T:.]+Z": "as of 2026-11-22T12:00:00.000Z",
    r"\b20(2[6-9]|[3-9][0-9])-[-0-9T:.]+Z": "2026-11-22T12:00:00.000Z",
    r"round [0-9]+, as of": "round 2, as of",
    r"[0-9]+ rounds?, [0-9]+ requests?, [0-9.]+ (B|KiB) sent": "2 rounds, 15 requests, 2.4 KiB sent",
    r"fetched in [0-9.]+ s": "fetched in 0.1 s",
    r"[0-9.]+ (B|[KMGT]iB) free": "41.5 GiB free",
}
"""Output that differs from run to run and from disk to disk, and its replacement on the page."""

HEAD = """\
# The command line

`kstore` (also `python -m kstore`) reads and changes the directories of a broker or a store, without a JVM.
`docs/make_cli.py` writes this page with the real output; a test compares the two.

A command takes a data directory (a broker's `log.dirs`, a store's path), a topic in it as `DIR/TOPIC`, or a partition
as `DIR/TOPIC-P`, the name of its directory. `replicate`, `become-leader`, `backup` and `restore` take only data
directories. A command that only reads takes no lock and changes nothing, so a broker or a store may write to the
directory at the same time.

`cat`, `describe`, `dump`, `explain`, `export`, `groups`, `offsets`, `plan --like`, `tail`, `topics`, `ui` and `verify`
also read a prefix of an object store where it lies: a backup, a plain copy of a log directory, or a broker's tier. They
take its URL (`s3://bucket/prefix`, `gs://`, `az://`, `file:///path`), or the directory that has a backup; a topic, a
partition and a file are named as in a directory: `s3://bucket/prefix/orders-0`. What they read is one state, that of
the start. A command that would change logs refuses such a URL. The options are the same in all of them:

- `--option NAME=VALUE`: a setting of the object store, as in `backup` and `restore`. Credentials are taken from where
  the provider's own tools find them.
- `--cache DIR`: keeps what is fetched in a directory, for the next commands.
- `--backup-until TIME`: the state of a backup at this time, as with `restore --until`. `describe`, `offsets` and
  `verify` also call it `--until`.
- `--with-deleted`: also what retention has deleted, as long as the backup has it.

`cat` and `export` have `--explain`: it prints how many requests and bytes the reading takes, and ends.

For all commands:

- `--help` describes the command, with examples.
- `--json` prints JSON, with names that do not change. Bytes are text if they are UTF-8, otherwise base64 under a name
  that ends in `_base64`.
- Times are ISO 8601, in UTC if they have no zone (`2013-06-01`, `2013-06-01T12:00+02:00`), milliseconds since the
  epoch, or `-1h`, `-30m`, `-2d`.
- The exit code is 0 for success, 1 for an error or damage, 2 for an invalid command line, 3 if `ingest --rejects`
  rejected rows and stored the others, 130 after Ctrl-C. `dump --files` has the exit codes of Kafka's tool.
- An error is one line on standard error; with `--debug` it is a traceback, for a report.
- On a terminal there are colours (not with `NO_COLOR`), and after a second the command's progress, with a bar if rich
  is installed (`pip install kstore[cli]`).

| command | what it does |
|---|---|
"""

MADE = """
The examples read the store of this program:

"""

DATA = """\
import kstore

EIGHT = 1_370_073_600_000  # 2013-06-01T08:00Z
TEN = EIGHT + 2 * 3_600_000
with kstore.Store.open("data", background=False, clock=lambda: TEN) as store:
    settings = {"segment.bytes": "2000", "index.interval.bytes": "500", "segment.index.bytes": "1200"}
    store.create_topic("orders", 2, config=settings, topic_id="b3JkZXJzLW9mLXRlYS0xMw")
    for number in range(60):
        store.append(
            "orders",
            b'{"order": %d, "tea": "%s"}' % (number, (b"assam", b"sencha", b"oolong")[number % 3]),
            key=b"customer-%d" % (number % 7),
            timestamp=EIGHT + number * 60_000,
        )
"""

SECTIONS: dict[str, tuple[str, ...]] = {
    "describe": (
        "The contents at three levels: a directory, a topic, a partition with its segments. `size` is the size of "
        "the log files in use, `on disk` that of all files, as `du` counts it. `first codecs` are those of each "
        "segment's first batch; with `--codecs` all batch headers are read. With `--svg` the command prints a picture "
        "of one partition: its segments, and how the two indexes of one of them lead into its `.log` file, as in "
        "[log.svg](log.svg) (`kstore describe data/orders-0 --svg > orders-0.svg`). The positions of Spark's "
        "streaming queries with `groupId` and of exports with `--group`, and their lag, follow the partitions "
        "([lag](spark.md#lag-and-positions)).",
        "$ kstore describe data",
        "$ kstore describe data/orders-0",
    ),
    "explain": (
        "Why data is still there ([the page about it](explain.md)). Of a data directory or a topic: what takes the "
        "space, what the next check of retention deletes, what holds the rest, and which settings would free it.",
        "$ kstore explain data --at 2013-06-01T10:00",
        "Of a partition: why each segment was rolled, why it stays, and when it goes. The settings are those that a "
        "store keeps for the topic, and those given with `-c`; of a broker's directory with `-c server.properties`. "
        "`--at` explains for another time than now.",
        "$ kstore explain data/orders-0 -c retention.ms=3600000 --at 2013-06-01T09:45",
        "With `--offset` or `--time` also of one record: where it lies, how a lookup finds it, and what happens to it. "
        "`--html FILE` writes all of it with pictures into one file, `--all` shows all rows of long tables.",
        "$ kstore explain data/orders-0 --offset 12 -c retention.ms=3600000 --at 2013-06-01T09:45",
    ),
    "plan": (
        "What settings do under a load, before they are changed ([the page about it](explain.md)). `--like` measures "
        "the load of a topic and takes the settings that a store keeps for it; `--wish` compares with other settings. "
        "`--html FILE` writes a page with pictures.",
        "$ kstore plan -c retention.ms=600000 -c segment.bytes=16384 --rate 0.2 --record-bytes 150",
        "$ kstore plan --like data/orders --wish segment.ms=300000 --wish retention.ms=600000",
    ),
    "ui": (
        "Serves pages about a directory of logs to a browser on this machine, until Ctrl-C "
        "([in the browser](explain.md#in-the-browser)): `kstore ui data`. It needs the extra `ui`: `pip install "
        "kstore[ui]`.",
    ),
    "cat": (
        "Prints records, one per line: from an offset (`--offset`), from a time (`--from`), the last ones "
        "(`--last`), up to an offset or a time; for a topic one partition after the other. The command ends when the "
        "reader of its output ends, for example `head`. `--isolation read_committed` omits records of open and of "
        "aborted transactions.",
        "$ kstore cat data/orders-0 --max 2",
        "$ kstore cat data/orders --from 2013-06-01T08:55 --format '%t-%p %o %T %k=%s\\n'",
        "The fields of `--format` are those of kcat: `%t` topic, `%p` partition, `%o` offset, `%T` timestamp, `%k` "
        "key, `%s` value, `%K` and `%S` their lengths (-1 for null), `%R` the value's length as 4 bytes, `%h` "
        "headers.",
        "$ kstore cat data/orders-1 --last 1 --json",
        "With `--latest` it prints only the newest committed record of each key; add `--as-of` for the newest at a "
        "given time ([compaction](compaction.md) says how).",
        "$ kstore cat data/orders-0 --latest --as-of 2013-06-01T08:20 --format '%o %k %s\\n'",
        "`--key` prints only the records with exactly this key, `--grep` those whose value has a match of a regular "
        "expression, both on bytes. `--last` counts before them, `--max` after them.",
        "$ kstore cat data/orders --key customer-3 --grep 'oolong|assam' --max 2",
    ),
    "tail": (
        "Prints the last records of each partition, ten unless `-n` is given. With `-f` it waits for more, until "
        "Ctrl-C or until no new record has come for `--timeout` seconds.",
        "$ kstore tail -n 1 data/orders",
        "$ kstore tail -f -n 1 --timeout 0.1 data/orders-0 --key-separator ' '",
    ),
    "offsets": (
        "Prints the first offset of partitions (`earliest`), their end (`latest`), the offset of the greatest "
        "timestamp (`max-timestamp`), or the first offset whose timestamp is at or after a time; in the format of "
        "Kafka's get-offsets tool.",
        "$ kstore offsets data",
        "$ kstore offsets data --time 2013-06-01T08:30",
        "$ kstore offsets data/orders-0 --time max-timestamp --json",
    ),
    "groups": (
        "Shows consumer groups: their positions, and their lag, which is the log end offset minus the position as "
        "`kafka-consumer-groups` prints it ([lag](metrics.md#lag)). A store may be writing. `--reset-to` sets "
        "positions to `earliest`, `latest`, an offset or a time, `--shift-by` moves them, `--delete` deletes them; "
        "with `--dry-run` nothing changes. A position outside of the log is moved into it. `--topic` and `--partition` "
        "choose partitions, and `--topic` also adds a topic that the group has not read. A store in use is refused "
        "then. Positions of streaming queries and exports are shown by `kstore describe`.",
        "$ printf 'assam\\nsencha\\noolong\\n' | kstore append shop/teas-0",
        "$ kstore groups shop billing --reset-to 1 --topic teas",
        "$ kstore groups shop",
        "$ kstore groups shop billing",
        "$ kstore groups shop billing --shift-by -5 --dry-run",
        "$ kstore groups shop billing --delete",
    ),
    "topics": (
        "Lists topics with their sizes and the settings that the store keeps for them. `records` counts offsets from "
        "the log start to the log end. `--create`, `--alter` and `--delete` change a topic; without `--yes` a deletion "
        "only says what would be lost. A store in use is refused then.",
        "$ kstore topics data orders",
        "$ kstore topics shop clicks --create --partitions 4 -c segment.bytes=1048576",
        "$ kstore topics shop clicks --alter --partitions 6 --unset segment.bytes",
        "$ kstore topics shop teas --delete",
        "$ kstore topics shop teas --delete --yes",
    ),
    "append": (
        "Appends a record for each line of standard input, to a partition (created if it is missing) or to a topic. "
        "In a topic the key decides the partition, as in Kafka's producer. The records are on the disk when the "
        "command ends.",
        "$ printf 'customer-3:sixty\\ncustomer-5:sixty-one\\n' | kstore append data/orders --key-separator :",
        '$ printf \'{"key": "a", "value": "1", "timestamp": 1370073600000}\\n\' | kstore append elsewhere/log-0 --json',
        "$ kstore cat elsewhere/log-0 --format '%o %T %k %s\\n'",
    ),
    "adopt": (
        "Appends a job that Spark's tasks have staged in an object store with `ks.upload` to the logs of this machine, "
        "once ([with Spark](spark.md#without-a-shared-file-system)): `kstore adopt s3://bucket/stage/JOB --to data`.",
    ),
    "ingest": (
        "Appends a record for each row of CSV files (compressed or not), JSON lines, Parquet and Arrow files, or of "
        "standard input. The value is the row as JSON, or one column (`--value-column`); the key decides the "
        "partition. An error in a whole file, such as a missing column, is reported before anything is appended. A "
        "bad row ends the command, which prints how much was stored (`--check` reads all rows first). NaN and "
        "infinite numbers become null, with a warning. CSV, Parquet and Arrow need PyArrow: `pip install "
        "kstore[arrow]`. A second run appends everything again, except with `--once`, which loads each file once, or "
        "`--txn`, which loads all files of a run once, by a name and a version. Such a load is there as a whole or "
        "not at all, also after a crash. With `--rejects` rows that are refused are set aside, and do not end the "
        "command.",
        "$ printf 'tea,grams,at\\nassam,100,2013-06-01T11:00\\n\"oolong, dark\",50.5,2013-06-01T11:01\\n' > teas.csv",
        "$ kstore ingest teas.csv --to elsewhere --topic teas --key-column tea --timestamp-column at",
        "$ kstore cat elsewhere/teas --format '%o %T %k %s\\n'",
        "$ printf 'tea,grams,at\\nassam,100,2013-06-01T11:02\\nsencha\\n' > more.csv",
        "$ kstore ingest teas.csv more.csv --to elsewhere --topic teas --key-column tea --timestamp-column at",
        "$ kstore ingest teas.csv more.csv --to loaded --topic teas --once --rejects rejects.jsonl",
        "$ cat rejects.jsonl",
        "$ kstore ingest teas.csv more.csv --to loaded --topic teas --once --rejects rejects.jsonl",
        "$ kstore ingest teas.csv --to loaded --topic daily --txn teas:20130601",
        "$ kstore ingest teas.csv --to loaded --topic daily --txn teas:20130601",
    ),
    "export": (
        "Writes records with the given columns to a Parquet, Arrow, CSV or JSON lines file, which gets its name only "
        "when it is complete. `--from` and `--until` choose records by their timestamps, wherever they are in the log; "
        "with `--by-position` they are two places in the log, and late records between them count. `--text` makes keys "
        "and values text in Parquet and Arrow files; in CSV they always are. `kstore ingest` reads such a file with "
        "`--key-column key --value-column value --timestamp-column timestamp`, and `--headers-column headers` if it is "
        "not CSV.",
        "$ kstore export data/orders --to orders.jsonl --from 2013-06-01T08:58 --columns partition,offset,key,value",
        "$ cat orders.jsonl",
        "$ kstore export data/orders-0 --to orders.jsonl",
        "With `--group` each run goes on where the last one ended, so that every record is exported at least once. The "
        "positions are in a file beside the directory ([format](format.md#groupjson)), and move when the exported file "
        "has its name.",
        "$ kstore export elsewhere/teas --to first.csv --group nightly --columns offset,timestamp,key",
        "$ cat first.csv",
        "$ kstore export elsewhere/teas --to second.csv --group nightly --columns offset,timestamp,key",
        "With `--partition-by date` it makes a directory of Parquet files, `days/date=2013-06-01/part-0.parquet` and "
        "so on, which appears as a whole; `topic` and `partition` can be parts of the path, too.",
    ),
    "dump": (
        "Prints the text of Kafka's dump tool, line by line: logs, indexes, snapshots, the coordinators' topics. "
        "With only `--files` it stops where that tool stops.",
        "$ kstore dump --files data/orders-0/00000000000000000000.log --print-data-log --max-bytes 200",
        "$ kstore dump --files data/orders-0/00000000000000000000.index,data/orders-0/00000000000000000000.timeindex",
        "Kafka's tool lacks these: a directory, a topic or a partition instead of files; JSON; a range of offsets or "
        "of times, found through the indexes. With them the command reports damage and continues.",
        "$ kstore dump data/orders-1 --offset 33 --print-data-log",
        "$ kstore dump data/orders --from 2013-06-01T08:58 --until 2013-06-02 --deep-iteration --json",
    ),
    "retain": (
        "Runs one pass of retention now, with the topic's own settings, or with others to see what they would "
        "delete. With `--dry-run` nothing is deleted.",
        "$ kstore retain data --dry-run --retention-bytes 900",
    ),
    "compact": (
        "Cleans logs by key now, regardless of the dirty ratio and the lags: the newest record of each key is kept, "
        "with its offset ([compaction](compaction.md)). With `--dry-run` nothing is written, and the numbers are "
        "exact; `next` shows what a store's housekeeping would clean, and when.",
        "$ kstore compact data/orders-0 --cleanup-policy compact --dry-run",
    ),
    "delete-records": (
        "Deletes the records of a partition, or of each partition of a topic, below an offset or a time, as "
        "`kafka-delete-records` does: it raises the log start. The next pass of retention deletes the segments below "
        "it. With `--dry-run` nothing changes.",
        "$ kstore delete-records data/orders --before 2013-06-01T08:10 --dry-run",
    ),
    "truncate": (
        "Cuts the records of a partition at and above an offset. A batch is cut as a whole. With `--dry-run` nothing "
        "changes.",
        "$ kstore truncate data/orders-0 --to 20 --dry-run",
    ),
    "verify": (
        "Checks everything that can be wrong: batches, index entries, borders of segments, names, checkpoints, "
        "snapshots, leftover files. It changes nothing. In the example one byte is damaged.",
        "$ kstore verify data",
        "$ printf x | dd of=data/orders-0/00000000000000000000.log bs=1 seek=400 conv=notrunc status=none",
        "$ kstore verify data",
        "$ kstore verify --json data",
    ),
    "repair": (
        "Prints what would be kept and lost, and changes nothing. With `--yes` it first copies all files that it "
        "will change into a backup (`--backup DIR`, a new or empty directory; by default a new one beside the data "
        "directory), and then repairs them. Sound batches after a bad one are kept, with their offsets. A directory "
        "in use is refused.",
        "Batches that are out of order are put in order with the fewest cuts. A flipped bit in an offset is "
        "corrected if the other batches of the file, or its name and its neighbours, determine the offset. Batches "
        "of a block that was written to a wrong place are cut.",
        "A `.log` file with a wrong name, for example after a manual copy, is renamed to the offset of its first "
        "batch; its batches are not changed. A file and its indexes are moved into the backup if other files have "
        "all of its batches, byte for byte, or if it is empty and lies within the offsets of another file. A file "
        "with one batch whose place is unknown is moved too, and reported as lost. The end of a segment is cut if "
        "the segments after it have all of its batches. Segments with different batches at the same offsets are not "
        "changed, and the error remains. A record that a compaction removed from newer files is kept if an older "
        "file beside them has it.",
        "$ kstore repair data",
        "$ kstore repair data --yes --backup backup",
        "$ kstore cat data/orders-0 --max 4 --format '%o %k\\n'",
        "$ kstore verify data",
    ),
    "replicate": (
        "Makes a directory a follower of another one, to which a store or a broker may write at the same time "
        "([copies](copies.md)): the same batches at the same offsets with the same leader epochs. With `--follow` it "
        "continues, and shows for each partition how many records, bytes and milliseconds the follower is behind: as "
        "a table on a terminal, otherwise as lines or JSON lines. It distinguishes a source without a writer from a "
        "missing one. Ctrl-C and SIGTERM end it cleanly.",
        "$ kstore replicate elsewhere copy",
        "$ printf 'sencha\\n' | kstore append copy/teas",
    ),
    "become-leader": (
        "Makes a follower the leader: each partition gets a new leader epoch that starts at its log end. A store "
        "that is already a leader gets new epochs too.",
        "$ kstore become-leader copy",
        "When the old leader follows the new one, records that only the old leader has are cut. `--save-truncated` "
        "saves them.",
        "$ printf 'sencha\\n' | kstore append elsewhere/teas",
        "$ kstore replicate copy elsewhere --save-truncated cut",
    ),
    "backup": (
        "Sends a directory of logs to an object store (S3, GCS, Azure; `pip install kstore[backup]`) or to another "
        "directory. A store or a broker may write to it at the same time; only flushed records are sent. A second "
        "run sends only new data; with `--follow` the command continues, one round per second. If a second writer "
        "sends to the same URL, the older one ends with an error.",
        "$ kstore backup elsewhere --to sent",
        "$ kstore backup elsewhere --to nowhere://bucket",
        "The commands that read also read a backup:",
        "$ kstore cat sent/teas --max 2",
        "$ kstore export sent/teas --to teas.csv --explain",
        "$ kstore verify sent",
        "$ kstore append s3://bucket/prefix/teas-0",
    ),
    "restore": (
        "Creates a directory of logs from a backup: its last state, its state at a time (`--until`), or up to given "
        "offsets. The command prints what it will do; with `--dry-run` it then stops. The directory must be missing "
        "or empty.",
        "$ kstore restore sent restored --until-offset teas-0=2",
        "$ kstore restore sent elsewhere",
    ),
    "completion": (
        "Prints a script that completes commands, their options and paths in bash, zsh or fish. The shell loads it "
        "from a file: `kstore completion bash > ~/.local/share/bash-completion/completions/kstore`; for zsh "
        "`_kstore` in a directory of `$fpath`; for fish `~/.config/fish/completions/kstore.fish`.",
    ),
    "config": (
        "Describes the settings, by Kafka's names. With `--config` it prints the effective values, and warnings.",
        "$ kstore config segment.bytes",
    ),
}

TAIL = """
## Mistakes

"""
MISTAKES = (
    "$ kstore cat data/oders",
    "$ kstore ofsets data",
    "$ kstore cat data/orders-0 --ofset 3",
    "$ kstore cat data/orders-0 --offset 1000",
)


def main() -> None:
    Path(__file__).with_name("cli.md").write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the whole document."""
    table = "".join(f"| [`kstore {name}`](#kstore-{name}) | {what} |\n" for name, what in cli.COMMANDS.items())
    parts = [HEAD, table, MADE, f"```python\n{DATA}```\n"]
    columns = {"COLUMNS": "100"}  # otherwise the page would depend on the terminal's width
    blocks = unittest.mock.patch.object(disk_usage, "on_disk", _in_blocks)
    with _a_place() as root, unittest.mock.patch.dict(os.environ, columns), blocks:
        exec(compile(DATA, "docs/cli.md", "exec"), {})
        for name, section in SECTIONS.items():
            parts.append(f"\n## kstore {name}\n")
            parts += [_shown(step, root) for step in section]
        parts.append(TAIL.rstrip("\n") + "\n")
        parts += [_shown(step, root) for step in MISTAKES]
    return "".join(parts)


@contextlib.contextmanager
def _a_place() -> Iterator[str]:
    """Change to a new empty directory and yield its path."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as root:
        os.chdir(root)
        try:
            yield os.path.realpath(root)
        finally:
            os.chdir(before)


def _shown(step: str, root: str) -> str:
    """Return a paragraph, or a command with its output."""
    if not step.startswith("$ "):
        return "\n" + "\n".join(_wrapped(step)) + "\n"
    printed, code = _run(step[2:])
    for pattern, shown in SHOWN_AS.items():
        printed = re.sub(pattern, shown, printed)
    lines = printed.replace(root, SHOWN_AT).splitlines()
    if code:
        lines.append(f"[exit code {code}]")
    return "\n" + "".join(f"    {line}".rstrip() + "\n" for line in [step, *lines])


def _wrapped(text: str, width: int = 120) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line


def _in_blocks(found: os.stat_result) -> int:
    """Return the size of a file on a disk with 4 KiB blocks, so that the page is the same on every file system."""
    return -(-found.st_size // 4096) * 4096 if stat.S_ISREG(found.st_mode) else 4096


def _run(line: str) -> tuple[str, int]:
    """Run a shell line, a kstore command in this process. Returns the output and the exit code."""
    feeding, pipe, command = line.rpartition(" | ")
    words = shlex.split(command)
    if words[0] != "kstore":
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
        return done.stdout + done.stderr, 0
    fed = subprocess.run(feeding, shell=True, capture_output=True, check=True).stdout if pipe else b""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    before: Any = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(fed), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = cli.main(words[1:])
    finally:
        sys.stdin = before
    return printed.buffer.getvalue().decode(), code  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
