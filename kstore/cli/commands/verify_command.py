"""`kstore verify`: checks data directories, topics, partitions or single files, and prints what is wrong."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from kstore.cli import command_options, command_paths, output
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.cli.progress import Progress
from kstore.tools.check.verify import Report, targets, verify

__all__ = ["run"]

_ABOUT = """\
Check everything that can be wrong with logs: batches and their order, each index entry, borders of segments, file
names, checkpoints, epochs, snapshots, leftovers. Changes nothing and takes no lock, so a directory in use may be
checked: an error there is checked again, and reported only if it persists. Exit code 1 if anything is wrong."""
_EXAMPLES = """\
A finding says what is wrong and where, then in brackets the rule that is broken: [FORMAT 2.7] is section 2.7 of
docs/rules/format.md, [SEMANTICS 8.9] is rule 8.9 of docs/rules/semantics.md.

With --json each finding is an object on a line of its own: path, position (bytes from the start of the file), offset,
rule, severity ("error", or "note" with --notes), what, repair (what 'kstore repair' would do).

examples:
  kstore verify data
  kstore verify data/events data/orders-0 --records
  kstore verify --json data/orders-0/00000000000000000000.log
"""


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand and return its exit code: 1 if anything is wrong."""
    parser = command_options.Parser("verify", _ABOUT, _EXAMPLES)
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="a data directory, DIR/TOPIC, DIR/TOPIC-P or a file; or a URL"
    )
    parser.add_argument("--records", action="store_true", help="also decompress batches, to check their records")
    parser.add_argument("--notes", action="store_true", help="also print what is odd but allowed")
    parser.add_argument("--json", action="store_true", help="print findings as JSON, one a line")
    parser.add_argument(
        "--threads", type=_threads, metavar="N", help="partitions checked at a time (default: processors)"
    )
    object_store_options.add_reading(parser, until=["--until"])
    parsed = parser.parse_args(arguments)
    with mounted_paths.mounted("verify", parsed.paths, parsed) as parsed.paths:
        return _verify(parsed)


def _verify(parsed: argparse.Namespace) -> int:
    total = sum(command_paths.log_bytes(target.path) for target in targets(parsed.paths))
    with Progress("verify", total) as progress:
        report = verify(parsed.paths, deep=parsed.records, threads=parsed.threads, progress=progress.add)
    shown = [finding for finding in report.findings if parsed.notes or finding.severity == "error"]
    for finding in shown:
        severity = output.painted(finding.severity, "red" if finding.severity == "error" else "yellow")
        print(json.dumps(dataclasses.asdict(finding)) if parsed.json else finding.in_one_line(severity))
    if not parsed.json:
        print(summary(report, notes_shown=parsed.notes))
    return 1 if report.errors else 0


def _threads(value: str) -> int:
    number = int(value)
    if not 1 <= number <= 256:
        raise argparse.ArgumentTypeError(f"{number} is not in 1..256")
    return number


def summary(report: Report, *, notes_shown: bool) -> str:
    """Return the last line: what was checked, and the number of errors. For single files the line omits counts of 0."""
    notes = len(report.findings) - report.errors
    nouns = ("file", "partition", "segment", "batch", "record")
    counts = (report.files, report.partitions, report.segments, report.batches, report.records)
    told = [(number, noun) for number, noun in zip(counts, nouns, strict=True) if number or not report.files]
    checked = ", ".join(output.count(number, noun) for number, noun in (told if report.files else told[1:]))
    wrong = output.painted(output.count(report.errors, "error"), "red") if report.errors else "nothing wrong"
    line = f"{checked}, {output.count(report.size_bytes, 'byte')} checked: {wrong}"
    hint = "" if notes_shown or not notes else " (--notes shows them)"
    return line if not notes else f"{line}, {output.count(notes, 'note')}{hint}"
