"""Writes `docs/cli.md`: every command with what it really prints. `make docs`; a test notices when page and code part.

The commands run on a small store whose clock stands still, so that the same comes out each time.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
import tempfile
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kstore import cli

SHOWN_AT = "/srv"
"""Where the page says that it all happened."""

HEAD = """\
# The command line

`kstore` (also `python -m kstore`) looks into a broker's or a store's directories, and works on them, without a JVM.
What stands here is printed by the commands themselves (`docs/make_cli.py`), and a test holds the page against them.

A command takes a data directory (a broker's `log.dirs`, a store's path), a topic in it as `DIR/TOPIC`, or a partition
as `DIR/TOPIC-P`, the way its directory is called. What only looks takes no lock and changes nothing, so it may look at
what a broker or a store is writing.

What holds for all of them:

- `--help` says more about a command, with examples.
- `--json`: whatever looks at something prints JSON, under names that stay; bytes are text where they are UTF-8, else
  base64 under the name with `_base64` behind it.
- Times are ISO 8601, in UTC where no zone is given (`2013-06-01`, `2013-06-01T12:00+02:00`), milliseconds since the
  epoch, or `-1h`, `-30m`, `-2d`.
- The exit code is 0 when all went well, 1 when something did not, 2 for a command line that cannot be understood, 130
  after Ctrl-C. `dump --files` alone has those of Kafka's tool.
- An error is one line on standard error; `--debug` brings the traceback, for a report.
- On a terminal, what takes over a second shows how far it is (drawn with rich: `pip install kstore[cli]`), and there
  are colours; neither of them elsewhere, and no colours with `NO_COLOR`.

| command | what it does |
|---|---|
"""

MADE = """
The examples look at a store that this makes:

"""

DATA = '''\
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
'''

SECTIONS: dict[str, tuple[str, ...]] = {
    "describe": (
        "What is there, at three levels: a directory, a topic, a partition with its segments. `first codecs` "
        "are those of each segment's first batch; `--codecs` looks at every batch's header.",
        "$ kstore describe data",
        "$ kstore describe data/orders-0",
    ),
    "cat": (
        "Records out, a line each: from an offset (`--offset`), from a time on (`--from`), the last ones "
        "(`--last`), up to an offset or a time. Of a topic, partition by partition. A reader that has had "
        "enough, as `head`, ends it. `--isolation read_committed` leaves out what transactions have aborted.",
        "$ kstore cat data/orders-0 --max 2",
        "$ kstore cat data/orders --from 2013-06-01T08:55 --format '%t-%p %o %T %k=%s\\n'",
        "The fields of `--format` are those of kcat: `%t` topic, `%p` partition, `%o` offset, `%T` "
        "timestamp, `%k` key, `%s` value, `%K` and `%S` their lengths (-1 for null), `%R` the value's length "
        "as 4 bytes, `%h` headers.",
        "$ kstore cat data/orders-1 --last 1 --json",
    ),
    "tail": (
        "The last records, ten of each partition unless `-n` says otherwise. With `-f` it goes on as more "
        "come, from this process or another, until Ctrl-C, or until nothing has come for `--timeout` "
        "seconds.",
        "$ kstore tail -n 1 data/orders",
        "$ kstore tail -f -n 1 --timeout 0.1 data/orders-0 --key-separator ' '",
    ),
    "offsets": (
        "Where partitions start (`earliest`), end (`latest`), have their greatest timestamp "
        "(`max-timestamp`), or the first offset whose timestamp is at or after a time; as Kafka's tool of "
        "that name prints it.",
        "$ kstore offsets data",
        "$ kstore offsets data --time 2013-06-01T08:30",
        "$ kstore offsets data/orders-0 --time max-timestamp --json",
    ),
    "append": (
        "A record for each line of standard input, to a partition (made if it is missing) or to a topic, "
        "where the key decides about the partition as in Kafka's producer. On the disk when the command "
        "ends.",
        "$ printf 'customer-3:sixty\\ncustomer-5:sixty-one\\n' | kstore append data/orders --key-separator :",
        '$ printf \'{"key": "a", "value": "1", "timestamp": 1370073600000}\\n\' | kstore append elsewhere/log-0 --json',
        "$ kstore cat elsewhere/log-0 --format '%o %T %k %s\\n'",
    ),
    "ingest": (
        "The rows of CSV files (packed or not), JSON lines, Parquet and Arrow files, or of standard input: each a "
        "record, whose value is the row as JSON or one column (`--value-column`). The key decides about the partition. "
        "What is wrong with a file as a whole, a missing column say, is told before anything is appended; a bad row "
        "ends it, and it says what was stored before (`--check` reads all rows first). CSV, Parquet and Arrow "
        "need PyArrow: `pip install kstore[arrow]`.",
        "$ printf 'tea,grams,at\\nassam,100,2013-06-01T11:00\\n\"oolong, dark\",50.5,2013-06-01T11:01\\n' > teas.csv",
        "$ kstore ingest teas.csv --to elsewhere --topic teas --key-column tea --timestamp-column at",
        "$ kstore cat elsewhere/teas --format '%o %T %k %s\\n'",
        "$ printf 'tea,grams,at\\nassam,100,2013-06-01T11:02\\nsencha\\n' > more.csv",
        "$ kstore ingest teas.csv more.csv --to elsewhere --topic teas --key-column tea --timestamp-column at",
    ),
    "export": (
        "Records into a Parquet, Arrow or JSON lines file, from an offset or a time on, in the columns asked for. The "
        "file appears when it is whole. `--text` makes keys and values text in Parquet and Arrow files. "
        "`kstore ingest` takes all of it back: `--key-column key --value-column value --timestamp-column timestamp "
        "--headers-column headers`.",
        "$ kstore export data/orders --to orders.jsonl --from 2013-06-01T08:58 --columns partition,offset,key,value",
        "$ cat orders.jsonl",
        "$ kstore export data/orders-0 --to orders.jsonl",
    ),
    "dump": (
        "The text of Kafka's dump tool, line by line: logs, indexes, snapshots, the topics of coordinators. With "
        "`--files` alone it stops where that tool stops.",
        "$ kstore dump --files data/orders-0/00000000000000000000.log --print-data-log --max-bytes 200",
        "$ kstore dump --files data/orders-0/00000000000000000000.index,data/orders-0/00000000000000000000.timeindex",
        "Not in Kafka's tool: a directory, a topic or a partition instead of files; JSON; a range of offsets or of "
        "times, found through the indexes. These go on behind damage, and say so.",
        "$ kstore dump data/orders-1 --from-offset 33 --print-data-log",
        "$ kstore dump data/orders --from-time 2013-06-01T08:58 --to-time 2013-06-02 --deep-iteration --json",
    ),
    "retain": (
        "A pass of retention now, with the topic's own settings, or with others to see what they would do. "
        "With `--dry-run` nothing is deleted.",
        "$ kstore retain data --dry-run --retention-bytes 900",
    ),
    "verify": (
        "Everything that can be wrong: each batch, each entry of each index, borders of segments, names, "
        "checkpoints, snapshots, leftovers. Nothing is changed. Here somebody has damaged a byte.",
        "$ kstore verify data",
        "$ printf x | dd of=data/orders-0/00000000000000000000.log bs=1 seek=400 conv=notrunc status=none",
        "$ kstore verify data",
        "$ kstore verify --json data",
    ),
    "repair": (
        "Says what would be kept and lost, and changes nothing, unless `--yes` is given. Then copies of all "
        "that changes go into a backup first (`--backup DIR`; a new directory beside the data directory "
        "otherwise). Batches behind a bad one stay, with their offsets. A directory in use is left alone.",
        "$ kstore repair data",
        "$ kstore repair data --yes --backup backup",
        "$ kstore cat data/orders-0 --max 4 --format '%o %k\\n'",
        "$ kstore verify data",
    ),
    "config": (
        "The settings, by Kafka's names: what they are, what some of them come to, and what they will do.",
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
    columns = {"COLUMNS": "100"}  # not the width of whoever makes the page
    with _a_place() as root, unittest.mock.patch.dict(os.environ, columns):
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
