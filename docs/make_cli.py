"""Writes `docs/cli.md`: every command with its real output. `make docs` runs it, and a test compares page and code.

The commands run on a small store with a fixed clock, so that the output is always the same.
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
from kstore.cli import usage

SHOWN_AT = "/srv"
"""The directory that the page shows in place of the real one."""

SHOWN_AS = {
    r"backup [0-9a-f]{32}": "backup 1f7c0a1b5d3e4c2f9a8b7c6d5e4f3a2b",
    r"as of 2[-0-9T:.]+Z": "as of 2026-11-22T12:00:00.000Z",
    r"round [0-9]+, as of": "round 2, as of",
    r"[0-9]+ rounds?, [0-9]+ requests?, [0-9.]+ (B|KiB) sent": "2 rounds, 15 requests, 2.4 KiB sent",
    r"fetched in [0-9.]+ s": "fetched in 0.1 s",
}
"""What a backup draws, takes from the clock, or does in one round or in two, and what the page shows in its place."""

HEAD = """\
# The command line

`kstore` (also `python -m kstore`) reads and changes the directories of a broker or a store, without a JVM. The output
on this page is that of the commands themselves (`docs/make_cli.py`); a test compares the two.

A command takes a data directory (a broker's `log.dirs`, a store's path), a topic in it as `DIR/TOPIC`, or a partition
as `DIR/TOPIC-P`, the name of its directory; `replicate`, `become-leader`, `backup` and `restore` take data directories
alone. A command that only reads takes no lock and changes nothing, so a broker or a store may write the directory
meanwhile.

For all commands:

- `--help` says more about a command, with examples.
- `--json` prints JSON, under names that do not change. Bytes are text where they are UTF-8, else base64 under the name
  with `_base64` after it.
- Times are ISO 8601, in UTC where no zone is given (`2013-06-01`, `2013-06-01T12:00+02:00`), milliseconds since the
  epoch, or `-1h`, `-30m`, `-2d`.
- The exit code is 0 for success, 1 for an error or damage, 2 for a command line that cannot be understood, 130 after
  Ctrl-C. `dump --files` alone has the exit codes of Kafka's tool.
- An error is one line on standard error; with `--debug` it is a traceback, for a report.
- On a terminal there are colours (not with `NO_COLOR`), and a command that takes more than a second shows how far it
  is, with a bar where rich is installed (`pip install kstore[cli]`).

| command | what it does |
|---|---|
"""

MADE = """
The examples read a store that this program makes:

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
        "The contents at three levels: a directory, a topic, a partition with its segments. `size` is "
        "that of the log files in use, `on disk` what everything takes, as `du` counts it. `first codecs` are "
        "those of each segment's first batch; `--codecs` reads every batch's header.",
        "$ kstore describe data",
        "$ kstore describe data/orders-0",
    ),
    "cat": (
        "Prints records, a line each: from an offset (`--offset`), from a time on (`--from`), the last ones "
        "(`--last`), up to an offset or a time; those of a topic partition by partition. The command ends when the "
        "reader of its output does, as with `head`. `--isolation read_committed` leaves out records of open and of "
        "aborted transactions.",
        "$ kstore cat data/orders-0 --max 2",
        "$ kstore cat data/orders --from 2013-06-01T08:55 --format '%t-%p %o %T %k=%s\\n'",
        "The fields of `--format` are those of kcat: `%t` topic, `%p` partition, `%o` offset, `%T` "
        "timestamp, `%k` key, `%s` value, `%K` and `%S` their lengths (-1 for null), `%R` the value's length "
        "as 4 bytes, `%h` headers.",
        "$ kstore cat data/orders-1 --last 1 --json",
        "With `--latest` it prints the newest record of each key alone, of the committed ones; with `--as-of` as it "
        "was at a time ([compaction](compaction.md) says how).",
        "$ kstore cat data/orders-0 --latest --as-of 2013-06-01T08:20 --format '%o %k %s\\n'",
    ),
    "tail": (
        "Prints the last records, ten of each partition unless `-n` is given. With `-f` it waits for more, and "
        "ends at Ctrl-C, or after `--timeout` seconds without a new record.",
        "$ kstore tail -n 1 data/orders",
        "$ kstore tail -f -n 1 --timeout 0.1 data/orders-0 --key-separator ' '",
    ),
    "offsets": (
        "Prints where partitions start (`earliest`), end (`latest`), have their greatest timestamp "
        "(`max-timestamp`), or the first offset whose timestamp is at or after a time; in the form of Kafka's "
        "get-offsets tool.",
        "$ kstore offsets data",
        "$ kstore offsets data --time 2013-06-01T08:30",
        "$ kstore offsets data/orders-0 --time max-timestamp --json",
    ),
    "append": (
        "Appends a record for each line of standard input, to a partition (made if it is missing) or to a topic, "
        "where the key decides about the partition as in Kafka's producer. The records are on the disk when the "
        "command ends.",
        "$ printf 'customer-3:sixty\\ncustomer-5:sixty-one\\n' | kstore append data/orders --key-separator :",
        '$ printf \'{"key": "a", "value": "1", "timestamp": 1370073600000}\\n\' | kstore append elsewhere/log-0 --json',
        "$ kstore cat elsewhere/log-0 --format '%o %T %k %s\\n'",
    ),
    "ingest": (
        "Appends a record for each row of CSV files (compressed or not), JSON lines, Parquet and Arrow files, or of "
        "standard input. The value is the row as JSON, or one column (`--value-column`); the key decides about the "
        "partition. An error of a whole file, such as a missing column, is reported before anything is appended. A bad "
        "row ends the command, which says what was stored before (`--check` reads all rows first). NaN and "
        "infinite numbers are written as null, with a warning. CSV, Parquet and "
        "Arrow need PyArrow: `pip install kstore[arrow]`.",
        "$ printf 'tea,grams,at\\nassam,100,2013-06-01T11:00\\n\"oolong, dark\",50.5,2013-06-01T11:01\\n' > teas.csv",
        "$ kstore ingest teas.csv --to elsewhere --topic teas --key-column tea --timestamp-column at",
        "$ kstore cat elsewhere/teas --format '%o %T %k %s\\n'",
        "$ printf 'tea,grams,at\\nassam,100,2013-06-01T11:02\\nsencha\\n' > more.csv",
        "$ kstore ingest teas.csv more.csv --to elsewhere --topic teas --key-column tea --timestamp-column at",
    ),
    "export": (
        "Writes records to a Parquet, Arrow or JSON lines file, from an offset or a time on, in the columns that are "
        "given. The file gets its name only when it is complete. `--text` makes keys and values text in Parquet and "
        "Arrow files. `kstore ingest` reads such a file with `--key-column key --value-column value "
        "--timestamp-column timestamp --headers-column headers`.",
        "$ kstore export data/orders --to orders.jsonl --from 2013-06-01T08:58 --columns partition,offset,key,value",
        "$ cat orders.jsonl",
        "$ kstore export data/orders-0 --to orders.jsonl",
    ),
    "dump": (
        "Prints the text of Kafka's dump tool, line by line: logs, indexes, snapshots, the coordinators' topics. With "
        "`--files` alone it stops where that tool stops.",
        "$ kstore dump --files data/orders-0/00000000000000000000.log --print-data-log --max-bytes 200",
        "$ kstore dump --files data/orders-0/00000000000000000000.index,data/orders-0/00000000000000000000.timeindex",
        "Kafka's tool does not have these: a directory, a topic or a partition in place of files; JSON; a range of "
        "offsets or of times, found through the indexes. They report damage and go on after it.",
        "$ kstore dump data/orders-1 --offset 33 --print-data-log",
        "$ kstore dump data/orders --from 2013-06-01T08:58 --until 2013-06-02 --deep-iteration --json",
    ),
    "retain": (
        "Runs one pass of retention now, by the topic's own settings, or by others to see what they would delete. "
        "With `--dry-run` nothing is deleted.",
        "$ kstore retain data --dry-run --retention-bytes 900",
    ),
    "compact": (
        "Cleans logs by key now, whatever the dirty ratio and the lags say: of each key the newest record stays, with "
        "its offset ([compaction](compaction.md)). With `--dry-run` nothing is written, and the numbers are exact; "
        "`next` says what a store's housekeeping would clean, and when.",
        "$ kstore compact data/orders-0 --cleanup-policy compact --dry-run",
    ),
    "verify": (
        "Checks everything that can be wrong: each batch, each entry of each index, borders of segments, names, "
        "checkpoints, snapshots, leftovers. Nothing is changed. In the example one byte is damaged.",
        "$ kstore verify data",
        "$ printf x | dd of=data/orders-0/00000000000000000000.log bs=1 seek=400 conv=notrunc status=none",
        "$ kstore verify data",
        "$ kstore verify --json data",
    ),
    "repair": (
        "Prints what would be kept and lost, and changes nothing. With `--yes` it first copies all files that change "
        "into a backup (`--backup DIR`, which is new or empty, else a new directory beside the data directory), and "
        "then mends them. Sound batches after a bad one stay, with their offsets. A directory in use is refused.",
        "Where batches are out of order, the offsets are put in order in the way that cuts the fewest batches. A "
        "flip of one bit of an offset is undone where the other batches of the file, or its name and its neighbours,"
        " tell the offset. Batches of a block that was written to a wrong place are cut.",
        "A `.log` file under a wrong name, as after a copy by hand, is renamed to the offset of its first batch; its"
        " batches stay as they are. A file goes into the backup, with its indexes, if other files hold each of its "
        "batches, byte for byte, or if it is empty amid the offsets of another; and, as lost, if nothing tells where"
        " its one batch belongs. The end of a segment is cut where the segments behind it hold each of its batches. "
        "Segments that hold different batches at the same offsets stay as they are, and the error is left. A record "
        "that a compaction had removed from the newer files stays where an older file beside them holds it.",
        "$ kstore repair data",
        "$ kstore repair data --yes --backup backup",
        "$ kstore cat data/orders-0 --max 4 --format '%o %k\\n'",
        "$ kstore verify data",
    ),
    "replicate": (
        "Makes a directory a follower of another one, which a store or a broker may write meanwhile "
        "([copies](copies.md)): the same batches at the same offsets with the same leader epochs. With `--follow` it "
        "goes on, and shows for each partition how many records, bytes and milliseconds the follower is behind: as a "
        "table on a terminal, else in lines, or as JSON lines. It tells a source that no process writes from one that "
        "is gone. Ctrl-C and SIGTERM end it cleanly.",
        "$ kstore replicate elsewhere copy",
        "$ printf 'sencha\\n' | kstore append copy/teas",
    ),
    "become-leader": (
        "Makes a follower the leader: each partition gets a new leader epoch that begins at its log end. A store that "
        "leads already gets new epochs, too.",
        "$ kstore become-leader copy",
        "What the old leader alone has is cut when it follows the new one. `--save-truncated` keeps it.",
        "$ printf 'sencha\\n' | kstore append elsewhere/teas",
        "$ kstore replicate copy elsewhere --save-truncated cut",
    ),
    "backup": (
        "Sends a directory of logs to an object store, or to another directory: S3, GCS, Azure "
        "(`pip install kstore[backup]`). A store or a broker may write it meanwhile; what is sent has been flushed. "
        "Again it sends what is new, and with `--follow` it goes on, a round every second. Where a second writer sends "
        "to the same URL, the older one ends with an error.",
        "$ kstore backup elsewhere --to sent",
        "$ kstore backup elsewhere --to nowhere://bucket",
    ),
    "restore": (
        "Makes a directory of logs out of a backup: as it was last backed up, as it was at a time (`--until`), or up "
        "to given offsets. What will be done is printed first; `--dry-run` does no more. The directory has to be "
        "missing or empty.",
        "$ kstore restore sent restored --until-offset teas-0=2",
        "$ kstore restore sent elsewhere",
    ),
    "config": (
        "Describes the settings, by Kafka's names. With `--config` it prints the values in force, and warnings.",
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
    """The whole document."""
    table = "".join(f"| [`kstore {name}`](#kstore-{name}) | {what} |\n" for name, what in cli.COMMANDS.items())
    parts = [HEAD, table, MADE, f"```python\n{DATA}```\n"]
    columns = {"COLUMNS": "100"}  # else the width of the terminal would show
    blocks = unittest.mock.patch.object(usage, "on_disk", _in_blocks)
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
    """An empty directory to be in."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as root:
        os.chdir(root)
        try:
            yield os.path.realpath(root)
        finally:
            os.chdir(before)


def _shown(step: str, root: str) -> str:
    """A paragraph, or a command with what it prints."""
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
    """The bytes that a file has on a disk of 4 KiB blocks, so that the page is the same on every file system."""
    return -(-found.st_size // 4096) * 4096 if stat.S_ISREG(found.st_mode) else 4096


def _run(line: str) -> tuple[str, int]:
    """Run a line of a shell, in this process as far as it is a command of ours: what is printed, and the exit code."""
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
